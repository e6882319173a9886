//! Elements of `kv`: writes and look-ups of markers.

use queen_engine::kv::{self, Expect, Ttl};
use serde::Deserialize;
use serde_json::value::RawValue;

use super::fields::{given, needed, refuse_fields, unknown};
use crate::api::args;
use crate::broker::bundle::{NamedRead, NamedWrite};
use crate::broker::marker::MarkerWrite;
use crate::error::{Error, Result};
use crate::pg::clock::Moment;
use crate::pg::datum::{Jsonb, Numeric};

/// Operations of a bundle on markers at most.
const MAX_OPERATIONS: usize = 64;
/// Keys that they name at most.
const MAX_KEYS: usize = 256;
/// Characters of a number: more than numeric has digits.
const NUMBER_MAX: usize = 200_000;

/// An element of `kv`.
#[derive(Deserialize)]
#[serde(deny_unknown_fields, rename_all = "camelCase")]
pub struct KvOperation<'a> {
    pub op: String,
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

/// A checked element.
pub enum OnMarker {
    Write(NamedWrite),
    Read(NamedRead),
}

/// Refuse more operations and keys than a bundle may have.
pub fn check_size(kv: &[KvOperation]) -> Result<()> {
    let keys: usize = kv.iter().map(|op| op.keys.as_ref().map_or(1, Vec::len)).sum();
    if kv.len() <= MAX_OPERATIONS && keys <= MAX_KEYS {
        return Ok(());
    }
    Err(Error::invalid(
        "kv is too large",
        format!("It has {} operations on {keys} keys.", kv.len()),
        format!("A bundle takes up to {MAX_OPERATIONS} operations and {MAX_KEYS} keys."),
    ))
}

impl KvOperation<'_> {
    /// The operation, checked. `now`: the moment of the call, from which a ttl counts.
    pub fn checked(self, now: Moment) -> Result<OnMarker> {
        self.check_fields()?;
        kv::check_ns(&self.ns)?;
        match self.op.as_str() {
            "get" => {
                let key = needed("key", self.key)?;
                kv::check_key(&key)?;
                Ok(OnMarker::Read(NamedRead::Get { ns: self.ns, key }))
            }
            "getMany" => {
                let keys = needed("keys", self.keys)?;
                keys.iter().try_for_each(|key| kv::check_key(key))?;
                Ok(OnMarker::Read(NamedRead::GetMany { ns: self.ns, keys }))
            }
            _ => self.write(now).map(OnMarker::Write),
        }
    }

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

    fn write(self, now: Moment) -> Result<NamedWrite> {
        let key = needed("key", self.key)?;
        kv::check_key(&key)?;
        let (ttl, forever) = (self.ttl_seconds, self.forever.unwrap_or(false));
        let expiry = || expiry(ttl, forever, now);
        let expect = Expect::new(self.expect)?;
        let value = || jsonb("value", self.value);
        let (label, write) = match self.op.as_str() {
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
        Ok(NamedWrite { ns: self.ns, key, label, write, required })
    }
}

/// What a user may do about a refused expiry.
const EXPIRY: &str = "Pass ttlSeconds, greater than zero, or \"forever\": true.";

/// When a marker that is written now expires; None: never.
fn expiry(ttl_seconds: Option<f64>, forever: bool, now: Moment) -> Result<Option<i64>> {
    let ttl = match ttl_seconds {
        None => None,
        // Below this, a whole number of microseconds; beyond it, no timestamptz either.
        Some(seconds) if seconds.abs() < 1e13 => {
            Some(Ttl { months: 0, days: 0, micros: (seconds * 1e6).round() as i64 })
        }
        Some(seconds) => {
            return Err(Error::invalid("invalid ttlSeconds", format!("It is {seconds}."), EXPIRY));
        }
    };
    let expiry = kv::expiry(ttl, forever, now, |ttl| now + ttl.micros);
    expiry.map_err(|invalid| Error::from(invalid).hint(EXPIRY))
}

/// A number with all its digits; None where the field is missing or null.
fn number(what: &str, text: Option<&RawValue>) -> Result<Option<Numeric>> {
    let Some(text) = text.map(RawValue::get).filter(|text| *text != "null") else {
        return Ok(None);
    };
    // PostgreSQL would quote all of a longer text.
    let is_number =
        text.len() <= NUMBER_MAX && text.starts_with(|c: char| c == '-' || c.is_ascii_digit());
    let number = if is_number { Numeric::from_text(text) } else { None };
    number.map(Some).ok_or_else(|| {
        let detail = format!("It is {}.", args::quoted(text));
        Error::invalid(format!("invalid {what}"), detail, "Pass a number.")
    })
}

fn jsonb(what: &str, value: Option<&RawValue>) -> Result<Jsonb> {
    needed(what, value.and_then(|value| Jsonb::from_text(value.get())))
}
