//! `queen_tx_commit`: settle, push and write markers, all or nothing.
//!
//! The bundle is read and checked first. Then, in a subtransaction, locks are taken in one order
//! that all bundles share: markers ascending by (ns, key), cursors ascending, then appends. A
//! refusal undoes the subtransaction and is returned; the caller's transaction lives on.

use std::collections::{BTreeMap, HashSet};

use pgrx::datum::Uuid;
use pgrx::prelude::*;
use queen_engine::kv::{self, Expect, Name, Ttl};
use queen_engine::lease::LeaseId;
use serde::{Deserialize, Deserializer};
use serde_json::value::RawValue;
use serde_json::{Value, json};

use super::push::{Item as PushItem, Message, Pushed, not_built, push};
use super::settle::{parse_status, target};
use super::{args, json as json_args};
use crate::datum::{Jsonb, Numeric, ResultContext, UuidArray};
use crate::error::{Code, Error, OrRaise, Result};
use crate::settling::{self, Item as SettleItem, Report, Target, settle_lease};
use crate::store::clock;
use crate::store::cursor;
use crate::store::marker::{self, Held, KvOp, KvOutcome};
use crate::store::spi::connected;
use crate::subtransaction::all_or_nothing;

const MAX_KV_OPS: usize = 64;
const MAX_KV_KEYS: usize = 256;

/// Carry out a bundle inside the caller's transaction, or nothing of it.
///
/// `operations`: `{"type":"ack","leaseId","transactionId"|"messageId"|neither (all),"status"?,
/// "error"?,"partition"?}` and `{"type":"push","queue","payload","partition"?,"transactionId"?,
/// "headers"?}`. `kv`: `{"op":"putIfAbsent"|"put"|"delete"|"incr"|"check"|"get"|"getMany","ns",
/// "key"|"keys",…}`, at most 64 operations and 256 keys, a key written once. `required_leases` must
/// be live, whether or not an ack uses them. All acks of one lease are one set.
///
/// Returns `{"success":true,"results":[…]}` in the order operations, kv; or, with nothing changed,
/// `{"success":false,"reason","error","results":[]}`: kv_precondition (with failedIndex, kvReason,
/// version, value), duplicate (with failedIndex, messageId), lease_expired, lease_superseded,
/// lease_unknown, message_not_in_lease, already_settled, queue_full.
///
/// Errors: 22023 for a malformed or empty bundle, before anything is done; 42704 for an unknown
/// queue when `queen_mq.auto_create` is off; 40001 in REPEATABLE READ; 0A000 for timers, which
/// this version does not have.
///
/// Transaction: takes effect when the caller commits.
#[pg_extern(security_definer)]
#[search_path(pg_catalog, pg_temp)]
fn queen_tx_commit(
    operations: default!(Option<Jsonb>, "'[]'"),
    kv: default!(Option<Jsonb>, "'[]'"),
    timers: default!(Option<Jsonb>, "'[]'"),
    required_leases: default!(Option<UuidArray>, "NULL"),
) -> Option<Jsonb> {
    let answer = (|| {
        let text = |part: Option<Jsonb>| part.map_or("[]".to_owned(), Jsonb::to_text);
        let bundle = Bundle::parse(
            &text(operations),
            &text(kv),
            &text(timers),
            required_leases.map(UuidArray::elements),
        )?;
        let results = all_or_nothing(|| connected(|| bundle.carry_out()));
        match results {
            Ok(results) => Ok(json!({"success": true, "results": results})),
            Err(error) => refusal(error),
        }
    })()
    .or_raise();
    Jsonb::from_text(&answer.to_string())
}

/// The answer for an error that is an outcome; others stay errors.
fn refusal(error: Error) -> Result<Value> {
    let reason = match error.code {
        Code::KvPrecondition => "kv_precondition",
        Code::Duplicate => "duplicate",
        Code::LeaseExpired => "lease_expired",
        Code::LeaseSuperseded => "lease_superseded",
        Code::LeaseUnknown => "lease_unknown",
        Code::MessageNotInLease => "message_not_in_lease",
        Code::AlreadySettled => "already_settled",
        Code::QueueFull => "queue_full",
        _ => return Err(error),
    };
    let mut answer =
        json!({"success": false, "reason": reason, "error": error.message, "results": []});
    if let (Some(answer), Some(Value::Object(facts))) = (answer.as_object_mut(), error.facts) {
        answer.extend(facts);
    }
    Ok(answer)
}

/// An element of `operations`.
#[derive(Deserialize)]
#[serde(deny_unknown_fields, rename_all = "camelCase")]
struct Operation {
    r#type: String,
    lease_id: Option<String>,
    transaction_id: Option<String>,
    message_id: Option<i64>,
    status: Option<String>,
    error: Option<String>,
    partition: Option<String>,
    queue: Option<String>,
    #[serde(default, deserialize_with = "given")]
    payload: Option<Box<RawValue>>,
    headers: Option<Box<RawValue>>,
}

/// An element of `kv`.
#[derive(Deserialize)]
#[serde(deny_unknown_fields, rename_all = "camelCase")]
struct KvOperation {
    op: String,
    ns: String,
    key: Option<String>,
    keys: Option<Vec<String>>,
    #[serde(default, deserialize_with = "given")]
    value: Option<Box<RawValue>>,
    ttl_seconds: Option<f64>,
    forever: Option<bool>,
    expect: Option<i64>,
    delta: Option<Box<RawValue>>,
    min: Option<Box<RawValue>>,
    max: Option<Box<RawValue>>,
    required: Option<bool>,
}

/// A field that is there, also as JSON null.
fn given<'de, D: Deserializer<'de>>(
    input: D,
) -> std::result::Result<Option<Box<RawValue>>, D::Error> {
    Box::<RawValue>::deserialize(input).map(Some)
}

/// A checked bundle. Numbers are places in the order of results.
#[derive(Default)]
struct Bundle {
    acks: BTreeMap<LeaseId, Vec<(usize, SettleItem)>>,
    pushes: Vec<(usize, Message)>,
    writes: Vec<(usize, Marker)>,
    reads: Vec<(usize, Lookup)>,
    required: Vec<LeaseId>,
    size: usize,
}

/// A write on a marker.
struct Marker {
    ns: String,
    key: String,
    label: String,
    op: KvOp,
    required: bool,
}

/// A read of markers: one key, or several.
enum Lookup {
    Get(String, String),
    GetMany(String, Vec<String>),
}

impl Bundle {
    fn parse(
        operations: &str,
        kv: &str,
        timers: &str,
        leases: Option<Option<Vec<Option<pg_sys::Datum>>>>,
    ) -> Result<Self> {
        let operations: Vec<Operation> = json_args::parse("operations", operations)?;
        let kv: Vec<KvOperation> = json_args::parse("kv", kv)?;
        let timers: Vec<Value> = json_args::parse("timers", timers)?;
        let leases = args::given_elements::<Uuid>("required_leases", leases)?.unwrap_or_default();
        if !timers.is_empty() {
            return Err(not_built("timers"));
        }
        if operations.is_empty() && kv.is_empty() {
            return Err(Error::invalid(
                "the bundle is empty",
                "It has no operations, no kv and no timers.",
                "Leave out the call.",
            ));
        }
        let mut bundle = Self {
            size: operations.len() + kv.len(),
            required: leases.iter().map(|id| LeaseId(*id.as_bytes())).collect(),
            ..Self::default()
        };
        let first_kv = operations.len();
        for (at, operation) in operations.into_iter().enumerate() {
            bundle.add_operation(at, operation)?;
        }
        check_size(&kv)?;
        let mut written = HashSet::new();
        for (at, operation) in (first_kv..).zip(kv) {
            bundle.add_kv(at, operation, &mut written)?;
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
        match op.r#type.as_str() {
            "ack" => {
                refuse_fields("ack", &has, &["queue", "payload", "headers"])?;
                let lease = lease_id(&needed("leaseId", op.lease_id)?)?;
                let target = target(op.message_id, op.transaction_id)?.unwrap_or(Target::All);
                let status = parse_status(op.status.as_deref().unwrap_or("completed"))?;
                let item = SettleItem { target, partition: op.partition, status, error: op.error };
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
                let marker = op.marker()?;
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

    fn carry_out(&self) -> Result<Vec<Value>> {
        let mut results = vec![Value::Null; self.size];
        self.write_markers(&mut results)?;
        self.lock_leases()?;
        self.settle(&mut results)?;
        self.push(&mut results)?;
        self.read_markers(&mut results)?;
        Ok(results)
    }

    fn write_markers(&self, results: &mut [Value]) -> Result<()> {
        let now = clock::now();
        for (at, marker) in &self.writes {
            let name = Name::new(&marker.ns, &marker.key)?;
            let outcome = marker::apply(name, &marker.op, now, ResultContext::here())?;
            if marker.required && !outcome.applied {
                let facts = json!({
                    "failedIndex": at,
                    "kvReason": outcome.reason.map(|reason| reason.as_str()),
                    "version": outcome.version,
                    "value": raw(outcome.value)?,
                });
                return Err(outcome.precondition(name).facts(facts));
            }
            results[*at] = written(*at, marker, &outcome)?;
        }
        Ok(())
    }

    /// Every cursor of every lease, in one ascending order; then see that the required ones live.
    fn lock_leases(&self) -> Result<()> {
        let leases: HashSet<LeaseId> =
            self.acks.keys().copied().chain(self.required.iter().copied()).collect();
        let mut cursors: Vec<u64> = leases.into_iter().flat_map(settling::cursors_of).collect();
        cursors.sort_unstable();
        cursors.dedup();
        cursor::lock(&cursors)?;
        self.required.iter().try_for_each(|lease| settling::require_live(*lease))
    }

    fn settle(&self, results: &mut [Value]) -> Result<()> {
        for (lease, acks) in &self.acks {
            let items: Vec<SettleItem> = acks.iter().map(|(_, item)| item.clone()).collect();
            let report = settle_lease(*lease, &items, false)?;
            for (item, (at, _)) in acks.iter().enumerate() {
                results[*at] = acked(*at, *lease, &report, item);
            }
        }
        Ok(())
    }

    fn push(&self, results: &mut [Value]) -> Result<()> {
        let messages: Vec<Message> = self.pushes.iter().map(|(_, m)| m.clone()).collect();
        for ((at, message), pushed) in self.pushes.iter().zip(push(messages)?) {
            if pushed.was_stored_before {
                let id = &pushed.transaction_id;
                return Err(Error::new(
                    Code::Duplicate,
                    format!("transaction_id \"{id}\" has been pushed before"),
                )
                .facts(json!({"failedIndex": at, "messageId": pushed.message})));
            }
            results[*at] = appended(*at, message, &pushed);
        }
        Ok(())
    }

    fn read_markers(&self, results: &mut [Value]) -> Result<()> {
        let now = clock::now();
        let context = ResultContext::here();
        for (at, lookup) in &self.reads {
            results[*at] = match lookup {
                Lookup::Get(ns, key) => {
                    let held = marker::get(Name::new(ns, key)?, now, context);
                    looked_up(*at, key, held)?
                }
                Lookup::GetMany(ns, keys) => {
                    let names = keys.iter().map(String::as_str).collect();
                    looked_up_many(*at, keys, marker::get_many(ns, names, now, context))?
                }
            };
        }
        Ok(())
    }
}

impl KvOperation {
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

    fn marker(self) -> Result<Marker> {
        let key = needed("key", self.key)?;
        kv::check_key(&key)?;
        let (ttl, forever) = (self.ttl_seconds, self.forever.unwrap_or(false));
        let expiry = || expiry(ttl, forever);
        let expect = Expect::new(self.expect)?;
        let value = || jsonb("value", self.value.as_deref());
        let op = match self.op.as_str() {
            "put" => KvOp::put(value()?, expiry()?, expect)?,
            "putIfAbsent" => KvOp::put(value()?, expiry()?, Expect::Absent)?,
            "delete" => KvOp::delete(expect),
            "check" => {
                needed("expect", self.expect)?;
                KvOp::check(expect)
            }
            _ => {
                let delta = number("delta", self.delta.as_deref())?;
                let one = || Numeric::from_text("1");
                let delta = needed("delta", delta.or_else(one))?;
                let min = number("min", self.min.as_deref())?;
                let max = number("max", self.max.as_deref())?;
                KvOp::incr(delta, min, max, expiry()?)?
            }
        };
        let required = self.required.unwrap_or(false);
        Ok(Marker { ns: self.ns, key, label: self.op, op, required })
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

fn expiry(ttl_seconds: Option<f64>, forever: bool) -> Result<Option<i64>> {
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
    let now = clock::now();
    Ok(kv::expiry(ttl, forever, now, |ttl| now + ttl.micros)?)
}

fn number(what: &str, text: Option<&RawValue>) -> Result<Option<Numeric>> {
    let Some(text) = text.map(RawValue::get).filter(|text| *text != "null") else {
        return Ok(None);
    };
    let is_number = text.starts_with(|c: char| c == '-' || c.is_ascii_digit());
    let number = if is_number { Numeric::from_text(text) } else { None };
    let error = || Error::invalid(format!("invalid {what}"), text.to_owned(), "Pass a number.");
    number.map(Some).ok_or_else(error)
}

fn jsonb(what: &str, value: Option<&RawValue>) -> Result<Jsonb> {
    needed(what, value.and_then(|value| Jsonb::from_text(value.get())))
}

fn lease_id(text: &str) -> Result<LeaseId> {
    crate::datum::parse_uuid(text).map(LeaseId).ok_or_else(|| {
        Error::invalid(
            format!("\"{text}\" is not a lease id"),
            "It is not a UUID.",
            "Use the lease_id that queen_pop returned.",
        )
    })
}

fn needed<T>(field: &str, value: Option<T>) -> Result<T> {
    value.ok_or_else(|| {
        Error::invalid(
            format!("{field} is missing"),
            "An element of the bundle needs it.",
            "See the reference for the fields of each operation.",
        )
    })
}

fn unknown(what: &str, name: &str, hint: &str) -> Error {
    Error::invalid(format!("unknown {what} \"{name}\""), "Nothing of the bundle was done.", hint)
}

fn refuse_fields(what: &str, has: &[(&str, bool)], others: &[&str]) -> Result<()> {
    match has.iter().find(|(name, given)| *given && others.contains(name)) {
        None => Ok(()),
        Some((name, _)) => Err(Error::invalid(
            format!("{what} has no field {name}"),
            "A field that has no meaning is refused, not ignored.",
            "See the reference for the fields of each operation.",
        )),
    }
}

fn acked(at: usize, lease: LeaseId, report: &Report, item: usize) -> Value {
    let (settled, already, dead_lettered) = report.counts(|i| i == item);
    json!({
        "index": at, "type": "ack", "success": true, "leaseId": lease.to_string(),
        "settled": settled, "already": already, "deadLettered": dead_lettered,
        "leaseReleased": report.released,
    })
}

fn appended(at: usize, message: &Message, pushed: &Pushed) -> Value {
    json!({
        "index": at, "type": "push", "success": true, "queue": message.queue,
        "partition": message.partition, "messageId": pushed.message,
        "transactionId": pushed.transaction_id, "status": pushed.status(),
    })
}

fn written(at: usize, marker: &Marker, outcome: &KvOutcome) -> Result<Value> {
    let mut result = json!({
        "index": at, "op": marker.label, "applied": outcome.applied, "key": marker.key,
        "value": raw(outcome.value)?, "version": outcome.version,
    });
    if let Some(reason) = outcome.reason {
        result["reason"] = reason.as_str().into();
    }
    Ok(result)
}

fn looked_up(at: usize, key: &str, held: Option<Held>) -> Result<Value> {
    Ok(json!({
        "index": at, "op": "get", "found": held.is_some(), "key": key,
        "value": raw(held.map(|held| held.value))?,
        "version": held.map(|held| held.version),
        "expiresAt": held.and_then(|held| held.expires_at).map(clock::iso),
    }))
}

fn looked_up_many(at: usize, keys: &[String], held: Vec<Option<Held>>) -> Result<Value> {
    let mut rows: BTreeMap<&str, Value> = BTreeMap::new();
    let mut missing = Vec::new();
    for (key, held) in keys.iter().zip(held) {
        match held {
            None => missing.push(key),
            Some(held) => {
                let row = json!({
                    "key": key, "value": raw(Some(held.value))?, "version": held.version,
                    "expiresAt": held.expires_at.map(clock::iso),
                });
                rows.insert(key, row);
            }
        }
    }
    let rows: Vec<Value> = rows.into_values().collect();
    Ok(json!({"index": at, "op": "getMany", "rows": rows, "missing": missing}))
}

/// A stored value inside an answer. Numbers keep every digit (serde_json: arbitrary_precision).
fn raw(value: Option<Jsonb>) -> Result<Value> {
    match value {
        None => Ok(Value::Null),
        Some(value) => serde_json::from_str(&value.to_text())
            .map_err(|_| Error::corrupt("a jsonb value is not JSON")),
    }
}
