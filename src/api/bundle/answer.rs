//! What a bundle answers. Stored values go into it as the text they are, digit for digit.

use std::collections::BTreeMap;

use queen_engine::message::DERIVED_MAX;
use serde::Serialize;

use crate::api::timer::status;
use crate::broker::bundle::{Json, NamedTimer, OperationResult, json, json_of};
use crate::error::{Code, Error, Result};
use crate::pg::clock::{self, Moment};
use crate::store::marker::LiveMarker;

/// Bytes of one operation's answer, apart from markers' values: twice, as it also becomes text.
pub const OPERATION: usize = 4096;

#[derive(Serialize)]
struct Success {
    success: bool,
    results: Vec<Json>,
}

/// The answer of a bundle that has been carried out.
pub fn success(results: Vec<OperationResult>) -> Result<Json> {
    let results = results.into_iter().enumerate().map(|(index, result)| answer(index, result));
    json(Success { success: true, results: results.collect::<Result<_>>()? })
}

/// The answer for an error that is an outcome of the bundle; other errors stay errors.
pub fn refusal(error: Error) -> Result<Json> {
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

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct AckAnswer {
    index: usize,
    r#type: &'static str,
    success: bool,
    lease_id: String,
    settled: i32,
    already: i32,
    dead_lettered: i32,
    lease_released: bool,
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct PushAnswer<'a> {
    index: usize,
    r#type: &'static str,
    success: bool,
    queue: &'a str,
    partition: &'a str,
    message_id: Option<i64>,
    transaction_id: &'a str,
    status: &'static str,
}

#[derive(Serialize)]
struct WriteAnswer<'a> {
    index: usize,
    op: &'static str,
    applied: bool,
    key: &'a str,
    value: Json,
    version: Option<i64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    reason: Option<&'static str>,
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct GetAnswer<'a> {
    index: usize,
    op: &'static str,
    found: bool,
    key: &'a str,
    value: Json,
    version: Option<i64>,
    expires_at: Option<String>,
}

#[derive(Serialize)]
struct GetManyAnswer<'a> {
    index: usize,
    op: &'static str,
    rows: Vec<FoundMarker<'a>>,
    missing: Vec<&'a str>,
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct FoundMarker<'a> {
    key: &'a str,
    value: Json,
    version: i64,
    expires_at: Option<String>,
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct TimerAnswer<'a> {
    index: usize,
    op: &'static str,
    status: &'static str,
    queue: &'a str,
    timer_key: &'a str,
    transaction_id: Option<&'a str>,
    deliver_at: Option<String>,
}

/// The answer for the operation at `index`.
fn answer(index: usize, result: OperationResult) -> Result<Json> {
    match result {
        OperationResult::Settled { lease, counts, released } => {
            let (settled, already, dead_lettered) = counts;
            json(AckAnswer {
                index,
                r#type: "ack",
                success: true,
                lease_id: lease.to_string(),
                settled,
                already,
                dead_lettered,
                lease_released: released,
            })
        }
        OperationResult::Pushed { message, pushed } => json(PushAnswer {
            index,
            r#type: "push",
            success: true,
            queue: &message.to.queue,
            partition: &message.to.partition,
            message_id: pushed.message,
            transaction_id: pushed.transaction_id(&mut [0; DERIVED_MAX]),
            status: pushed.status.name(),
        }),
        OperationResult::Written { write, outcome } => json(WriteAnswer {
            index,
            op: write.label,
            applied: outcome.applied,
            key: &write.key,
            value: json_of(outcome.value)?,
            version: outcome.version,
            reason: outcome.reason.map(|reason| reason.as_str()),
        }),
        OperationResult::Got { key, marker } => json(GetAnswer {
            index,
            op: "get",
            found: marker.is_some(),
            key,
            value: json_of(marker.map(|marker| marker.value))?,
            version: marker.map(|marker| marker.version),
            expires_at: marker.and_then(|marker| marker.expires_at).map(clock::iso),
        }),
        OperationResult::GotMany { keys, markers } => got_many(index, keys, markers),
        OperationResult::Scheduled { timer, scheduled } => {
            let found = (scheduled.transaction_id.as_str(), scheduled.deliver_at);
            timed(index, "schedule", timer, status(&scheduled), Some(found))
        }
        OperationResult::Cancelled { timer, found } => {
            let status = if found.is_some() { "cancelled" } else { "absent" };
            let found = found.as_ref().map(|(id, deliver_at)| (id.as_str(), *deliver_at));
            timed(index, "cancel", timer, status, found)
        }
    }
}

/// Rows in the order of their keys, each key once.
fn got_many(index: usize, keys: &[String], markers: Vec<Option<LiveMarker>>) -> Result<Json> {
    let mut rows = BTreeMap::new();
    let mut missing = Vec::new();
    for (key, marker) in keys.iter().zip(markers) {
        let Some(LiveMarker { value, version, expires_at, .. }) = marker else {
            missing.push(key.as_str());
            continue;
        };
        let (value, expires_at) = (json_of(Some(value))?, expires_at.map(clock::iso));
        rows.insert(key, FoundMarker { key, value, version, expires_at });
    }
    json(GetManyAnswer { index, op: "getMany", rows: rows.into_values().collect(), missing })
}

/// `found`: the timer's transaction_id and moment.
fn timed(
    index: usize,
    op: &'static str,
    timer: &NamedTimer,
    status: &'static str,
    found: Option<(&str, Moment)>,
) -> Result<Json> {
    let (queue, timer_key) = timer.name();
    let transaction_id = found.map(|(id, _)| id);
    let deliver_at = found.map(|(_, at)| clock::iso(at));
    json(TimerAnswer { index, op, status, queue, timer_key, transaction_id, deliver_at })
}
