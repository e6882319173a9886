//! A bundle as it comes: read, checked, and refused with 22023 before anything is done.

use std::borrow::Cow;
use std::collections::HashSet;

use pgrx::datum::Uuid;
use queen_engine::kv::{self, Expect, Ttl};
use queen_engine::lease::LeaseId;
use serde::{Deserialize, Deserializer};
use serde_json::value::RawValue;

use super::timer::TimerOperation;
use super::{Bundle, Lookup, Marker};
use crate::api::push::PushItem;
use crate::api::settle::{checked_partition, parse_status, target};
use crate::api::{args, json};
use crate::broker::marker::MarkerWrite;
use crate::broker::settle::{SettleItem, Target};
use crate::error::{Error, Result};
use crate::pg::clock::Moment;
use crate::pg::datum::{self, Jsonb, Numeric, UuidArray};

const MAX_KV_OPS: usize = 64;
const MAX_KV_KEYS: usize = 256;
const NUMBER_MAX: usize = 200_000;

/// An element of `operations`.
#[derive(Deserialize)]
#[serde(deny_unknown_fields, rename_all = "camelCase")]
struct Operation<'a> {
    #[serde(borrow)]
    r#type: Cow<'a, str>,
    #[serde(borrow)]
    lease_id: Option<Cow<'a, str>>,
    #[serde(borrow)]
    transaction_id: Option<Cow<'a, str>>,
    message_id: Option<i64>,
    #[serde(borrow)]
    status: Option<Cow<'a, str>>,
    #[serde(borrow)]
    error: Option<Cow<'a, str>>,
    #[serde(borrow)]
    partition: Option<Cow<'a, str>>,
    #[serde(borrow)]
    queue: Option<Cow<'a, str>>,
    #[serde(borrow, default, deserialize_with = "given")]
    payload: Option<&'a RawValue>,
    #[serde(borrow)]
    headers: Option<&'a RawValue>,
}

/// An element of `kv`.
#[derive(Deserialize)]
#[serde(deny_unknown_fields, rename_all = "camelCase")]
struct KvOperation<'a> {
    op: String,
    ns: String,
    key: Option<String>,
    keys: Option<Vec<String>>,
    #[serde(borrow, default, deserialize_with = "given")]
    value: Option<&'a RawValue>,
    ttl_seconds: Option<f64>,
    forever: Option<bool>,
    expect: Option<i64>,
    #[serde(borrow)]
    delta: Option<&'a RawValue>,
    #[serde(borrow)]
    min: Option<&'a RawValue>,
    #[serde(borrow)]
    max: Option<&'a RawValue>,
    required: Option<bool>,
}

/// A field that is there, also as JSON null.
pub fn given<'de, D: Deserializer<'de>>(
    input: D,
) -> std::result::Result<Option<&'de RawValue>, D::Error> {
    <&RawValue>::deserialize(input).map(Some)
}

impl Bundle {
    pub(super) fn parse(
        operations: &str,
        kv: &str,
        timers: &str,
        leases: Option<UuidArray>,
        now: Moment,
    ) -> Result<Self> {
        let operations: Vec<Operation> = json::parse("operations", operations)?;
        let kv: Vec<KvOperation> = json::parse("kv", kv)?;
        let timers: Vec<TimerOperation> = json::parse("timers", timers)?;
        let leases = args::given_elements::<Uuid>("required_leases", leases, &args::LEASES)?
            .unwrap_or_default();
        if operations.is_empty() && kv.is_empty() && timers.is_empty() {
            return Err(Error::invalid(
                "the bundle is empty",
                "It has no operations, no kv and no timers.",
                "Leave out the call.",
            ));
        }
        let mut bundle = Self {
            size: operations.len() + kv.len() + timers.len(),
            now,
            required: leases.iter().map(|id| LeaseId(*id.as_bytes())).collect(),
            ..Self::default()
        };
        let first_kv = operations.len();
        let first_timer = first_kv + kv.len();
        for (at, operation) in operations.into_iter().enumerate() {
            bundle.add_operation(at, operation)?;
        }
        check_size(&kv)?;
        let mut written = HashSet::new();
        for (at, operation) in (first_kv..).zip(kv) {
            bundle.add_kv(at, operation, &mut written)?;
        }
        for (at, operation) in (first_timer..).zip(timers) {
            bundle.add_timer(at, operation)?;
        }
        for (_, marker) in &mut bundle.writes {
            if written.contains(&(marker.ns.clone(), marker.key.clone())) {
                marker.op.lock_for_write();
            }
        }
        // The order in which every bundle locks markers.
        bundle.writes.sort_by(|(_, a), (_, b)| (&a.ns, &a.key).cmp(&(&b.ns, &b.key)));
        Ok(bundle)
    }

    fn add_operation(&mut self, at: usize, op: Operation) -> Result<()> {
        let has = [
            ("leaseId", op.lease_id.is_some()),
            ("messageId", op.message_id.is_some()),
            ("status", op.status.is_some()),
            ("error", op.error.is_some()),
            ("queue", op.queue.is_some()),
            ("payload", op.payload.is_some()),
            ("headers", op.headers.is_some()),
        ];
        match op.r#type.as_ref() {
            "ack" => {
                refuse_fields("ack", &has, &["queue", "payload", "headers"])?;
                let lease = lease_id(&needed("leaseId", op.lease_id)?)?;
                let target =
                    target(op.message_id, op.transaction_id.as_deref())?.unwrap_or(Target::All);
                let status = parse_status(op.status.as_deref().unwrap_or("completed"))?;
                let partition = checked_partition(op.partition.as_deref())?;
                let error = op.error.as_deref().map(args::error_text);
                let item = SettleItem { target, partition, status, error };
                self.acks.entry(lease).or_default().push((at, item));
            }
            "push" => {
                refuse_fields("push", &has, &["leaseId", "messageId", "status", "error"])?;
                let item = PushItem {
                    queue: needed("queue", op.queue)?,
                    payload: needed("payload", op.payload)?,
                    partition: op.partition,
                    transaction_id: op.transaction_id,
                    headers: op.headers,
                };
                self.pushes.push((at, item.message()?));
            }
            other => return Err(unknown("operation type", other, "Use \"ack\" or \"push\".")),
        }
        Ok(())
    }

    fn add_timer(&mut self, at: usize, op: TimerOperation) -> Result<()> {
        let timer = op.checked(self.now)?;
        if self.timers.iter().any(|(_, other)| other.name() == timer.name()) {
            let (_, key) = timer.name();
            return Err(Error::invalid(
                format!("timer \"{key}\" is named twice"),
                "Two operations of the bundle are about the same timer.",
                "Say once what becomes of each timer.",
            ));
        }
        self.timers.push((at, timer));
        Ok(())
    }

    fn add_kv(
        &mut self,
        at: usize,
        op: KvOperation,
        written: &mut HashSet<(String, String)>,
    ) -> Result<()> {
        op.check_fields()?;
        kv::check_ns(&op.ns)?;
        match op.op.as_str() {
            "get" => {
                let key = needed("key", op.key)?;
                kv::check_key(&key)?;
                self.reads.push((at, Lookup::Get(op.ns, key)));
            }
            "getMany" => {
                let keys = needed("keys", op.keys)?;
                keys.iter().try_for_each(|key| kv::check_key(key))?;
                self.reads.push((at, Lookup::GetMany(op.ns, keys)));
            }
            _ => {
                let marker = op.marker(self.now)?;
                let is_write = marker.label != "check";
                let name = (marker.ns.clone(), marker.key.clone());
                if is_write && !written.insert(name) {
                    return Err(Error::invalid(
                        format!("marker \"{}\" is written twice", marker.key),
                        "Two operations of the bundle write the same key.",
                        "Write each key once.",
                    ));
                }
                self.writes.push((at, marker));
            }
        }
        Ok(())
    }
}

impl KvOperation<'_> {
    /// Refuse fields that the operation does not have.
    fn check_fields(&self) -> Result<()> {
        let has = [
            ("key", self.key.is_some()),
            ("keys", self.keys.is_some()),
            ("value", self.value.is_some()),
            ("ttlSeconds", self.ttl_seconds.is_some()),
            ("forever", self.forever.is_some()),
            ("expect", self.expect.is_some()),
            ("delta", self.delta.is_some()),
            ("min", self.min.is_some()),
            ("max", self.max.is_some()),
            ("required", self.required.is_some()),
        ];
        let number = ["delta", "min", "max"];
        let expiry = ["ttlSeconds", "forever"];
        let others: Vec<&str> = match self.op.as_str() {
            "put" => [&["keys"][..], &number].concat(),
            "putIfAbsent" => [&["keys", "expect"][..], &number].concat(),
            "incr" => vec!["keys", "value", "expect"],
            "delete" | "check" => [&["keys", "value"][..], &number, &expiry].concat(),
            "get" => [&["keys", "value", "expect", "required"][..], &number, &expiry].concat(),
            "getMany" => [&["key", "value", "expect", "required"][..], &number, &expiry].concat(),
            other => {
                let hint = "Use putIfAbsent, put, delete, incr, check, get or getMany.";
                return Err(unknown("kv op", other, hint));
            }
        };
        refuse_fields(&self.op, &has, &others)
    }

    fn marker(self, now: Moment) -> Result<Marker> {
        let key = needed("key", self.key)?;
        kv::check_key(&key)?;
        let (ttl, forever) = (self.ttl_seconds, self.forever.unwrap_or(false));
        let expiry = || expiry(ttl, forever, now);
        let expect = Expect::new(self.expect)?;
        let value = || jsonb("value", self.value);
        let (label, op) = match self.op.as_str() {
            "put" => ("put", MarkerWrite::put(value()?, expiry()?, expect)?),
            "putIfAbsent" => {
                ("putIfAbsent", MarkerWrite::put(value()?, expiry()?, Expect::Absent)?)
            }
            "delete" => ("delete", MarkerWrite::delete(expect)),
            "check" => {
                needed("expect", self.expect)?;
                ("check", MarkerWrite::check(expect))
            }
            _ => {
                let delta = number("delta", self.delta)?;
                let one = || Numeric::from_text("1");
                let delta = needed("delta", delta.or_else(one))?;
                let min = number("min", self.min)?;
                let max = number("max", self.max)?;
                ("incr", MarkerWrite::incr(delta, min, max, expiry()?)?)
            }
        };
        let required = self.required.unwrap_or(false);
        Ok(Marker { ns: self.ns, key, label, op, required })
    }
}

fn check_size(kv: &[KvOperation]) -> Result<()> {
    let keys: usize = kv.iter().map(|op| op.keys.as_ref().map_or(1, Vec::len)).sum();
    if kv.len() <= MAX_KV_OPS && keys <= MAX_KV_KEYS {
        return Ok(());
    }
    Err(Error::invalid(
        "kv is too large",
        format!("It has {} operations on {keys} keys.", kv.len()),
        format!("A bundle takes up to {MAX_KV_OPS} operations and {MAX_KV_KEYS} keys."),
    ))
}

fn expiry(ttl_seconds: Option<f64>, forever: bool, now: Moment) -> Result<Option<i64>> {
    let ttl = match ttl_seconds {
        None => None,
        // Beyond the range of timestamptz anyway; and an integer number of microseconds below.
        Some(seconds) if seconds.abs() < 1e13 => {
            Some(Ttl { months: 0, days: 0, micros: (seconds * 1e6).round() as i64 })
        }
        Some(seconds) => {
            return Err(Error::invalid(
                "invalid ttlSeconds",
                format!("It is {seconds}."),
                "Pass a number of seconds greater than zero, or forever.",
            ));
        }
    };
    Ok(kv::expiry(ttl, forever, now, |ttl| now + ttl.micros)?)
}

fn number(what: &str, text: Option<&RawValue>) -> Result<Option<Numeric>> {
    let Some(text) = text.map(RawValue::get).filter(|text| *text != "null") else {
        return Ok(None);
    };
    // numeric has fewer digits than this, and PostgreSQL would quote all of them.
    let is_number =
        text.len() <= NUMBER_MAX && text.starts_with(|c: char| c == '-' || c.is_ascii_digit());
    let number = if is_number { Numeric::from_text(text) } else { None };
    let error = || Error::invalid(format!("invalid {what}"), args::quoted(text), "Pass a number.");
    number.map(Some).ok_or_else(error)
}

fn jsonb(what: &str, value: Option<&RawValue>) -> Result<Jsonb> {
    needed(what, value.and_then(|value| Jsonb::from_text(value.get())))
}

fn lease_id(text: &str) -> Result<LeaseId> {
    datum::parse_uuid(text).map(LeaseId).ok_or_else(|| {
        Error::invalid(
            format!("\"{}\" is not a lease id", args::quoted(text)),
            "It is not a UUID.",
            "Use the lease_id that queen_pop returned.",
        )
    })
}

pub fn needed<T>(field: &str, value: Option<T>) -> Result<T> {
    value.ok_or_else(|| {
        Error::invalid(
            format!("{field} is missing"),
            "An element of the bundle needs it.",
            "See the reference for the fields of each operation.",
        )
    })
}

pub fn unknown(what: &str, name: &str, hint: &str) -> Error {
    let name = args::quoted(name);
    Error::invalid(format!("unknown {what} \"{name}\""), "Nothing of the bundle was done.", hint)
}

pub fn refuse_fields(what: &str, has: &[(&str, bool)], others: &[&str]) -> Result<()> {
    match has.iter().find(|(name, given)| *given && others.contains(name)) {
        None => Ok(()),
        Some((name, _)) => Err(Error::invalid(
            format!("{what} has no field {name}"),
            "A field that has no meaning is refused, not ignored.",
            "See the reference for the fields of each operation.",
        )),
    }
}
