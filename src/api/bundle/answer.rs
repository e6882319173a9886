//! What a bundle answers. Stored values go into it as the text they are, digit for digit.

use std::collections::BTreeMap;

use queen_engine::lease::LeaseId;
use serde::Serialize;
use serde_json::value::{RawValue, to_raw_value};

use super::Marker;
use crate::broker::marker::MarkerOutcome;
use crate::broker::push::{Message, Pushed};
use crate::broker::settle::Report;
use crate::error::{Error, Result};
use crate::pg::clock;
use crate::pg::datum::Jsonb;
use crate::store::marker::LiveMarker;

/// A piece of JSON text.
pub type Json = Box<RawValue>;

pub fn json<T: Serialize>(value: T) -> Result<Json> {
    to_raw_value(&value).map_err(|error| Error::corrupt(error.to_string()))
}

/// A stored value; null for none.
pub fn stored(value: Option<Jsonb>) -> Result<Json> {
    match value {
        None => json(()),
        Some(value) => RawValue::from_string(value.to_text().to_owned())
            .map_err(|_| Error::corrupt("a jsonb value is not JSON")),
    }
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct Acked {
    index: usize,
    r#type: &'static str,
    success: bool,
    lease_id: String,
    settled: i32,
    already: i32,
    dead_lettered: i32,
    lease_released: bool,
}

pub fn acked(index: usize, lease: LeaseId, report: &Report, item: usize) -> Result<Json> {
    let (settled, already, dead_lettered) = report.counts(|i| i == item);
    json(Acked {
        index,
        r#type: "ack",
        success: true,
        lease_id: lease.to_string(),
        settled,
        already,
        dead_lettered,
        lease_released: report.released,
    })
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct Appended<'a> {
    index: usize,
    r#type: &'static str,
    success: bool,
    queue: &'a str,
    partition: &'a str,
    message_id: Option<i64>,
    transaction_id: &'a str,
    status: &'static str,
}

pub fn appended(index: usize, message: &Message, pushed: &Pushed) -> Result<Json> {
    json(Appended {
        index,
        r#type: "push",
        success: true,
        queue: &message.to.queue,
        partition: &message.to.partition,
        message_id: pushed.message,
        transaction_id: &pushed.transaction_id,
        status: pushed.status.name(),
    })
}

#[derive(Serialize)]
struct Written<'a> {
    index: usize,
    op: &'static str,
    applied: bool,
    key: &'a str,
    value: Json,
    version: Option<i64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    reason: Option<&'static str>,
}

pub fn written(index: usize, marker: &Marker, outcome: &MarkerOutcome) -> Result<Json> {
    json(Written {
        index,
        op: marker.label,
        applied: outcome.applied,
        key: &marker.key,
        value: stored(outcome.value)?,
        version: outcome.version,
        reason: outcome.reason.map(|reason| reason.as_str()),
    })
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct LookedUp<'a> {
    index: usize,
    op: &'static str,
    found: bool,
    key: &'a str,
    value: Json,
    version: Option<i64>,
    expires_at: Option<String>,
}

pub fn looked_up(index: usize, key: &str, held: Option<LiveMarker>) -> Result<Json> {
    json(LookedUp {
        index,
        op: "get",
        found: held.is_some(),
        key,
        value: stored(held.map(|held| held.value))?,
        version: held.map(|held| held.version),
        expires_at: held.and_then(|held| held.expires_at).map(clock::iso),
    })
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct Row<'a> {
    key: &'a str,
    value: Json,
    version: i64,
    expires_at: Option<String>,
}

#[derive(Serialize)]
struct LookedUpMany<'a> {
    index: usize,
    op: &'static str,
    rows: Vec<Row<'a>>,
    missing: Vec<&'a str>,
}

pub fn looked_up_many(
    index: usize,
    keys: &[String],
    held: Vec<Option<LiveMarker>>,
) -> Result<Json> {
    let mut rows = BTreeMap::new();
    let mut missing = Vec::new();
    for (key, held) in keys.iter().zip(held) {
        let Some(held) = held else {
            missing.push(key.as_str());
            continue;
        };
        let row = Row {
            key,
            value: stored(Some(held.value))?,
            version: held.version,
            expires_at: held.expires_at.map(clock::iso),
        };
        rows.insert(key, row);
    }
    json(LookedUpMany { index, op: "getMany", rows: rows.into_values().collect(), missing })
}

#[derive(Serialize)]
struct Success {
    success: bool,
    results: Vec<Json>,
}

pub fn success(results: Vec<Json>) -> Result<Json> {
    json(Success { success: true, results })
}

/// The answer for an error that is an outcome of the bundle; others stay errors.
pub fn refusal(error: Error) -> Result<Json> {
    use crate::error::Code;
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
    let mut answer: BTreeMap<&str, Json> = error.facts.into_iter().collect();
    answer.insert("success", json(false)?);
    answer.insert("reason", json(reason)?);
    answer.insert("error", json(error.message)?);
    answer.insert("results", json([(); 0])?);
    json(answer)
}
