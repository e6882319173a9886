//! A bundle as it comes: read, checked, and refused with 22023 before anything is done.

use std::borrow::Cow;
use std::collections::HashSet;

use pgrx::datum::Uuid;
use queen_engine::lease::LeaseId;
use serde::Deserialize;
use serde_json::value::RawValue;

use super::fields::{FIELDS, given, needed, refuse_fields, unknown};
use super::marker::{self, KvOperation, OnMarker};
use super::timer::TimerOperation;
use crate::api::push::PushItem;
use crate::api::settle::{checked_partition, status_with_delay, target};
use crate::api::{args, json};
use crate::broker::bundle::{Bundle, NamedTimer, NamedWrite};
use crate::broker::settle::{SettleItem, SettleTarget};
use crate::error::{Error, Result};
use crate::pg::arrays::UuidArray;
use crate::pg::clock::Moment;
use crate::pg::datum;

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
    #[serde(default, deserialize_with = "json::message_id")]
    message_id: Option<i64>,
    #[serde(borrow)]
    status: Option<Cow<'a, str>>,
    #[serde(borrow)]
    error: Option<Cow<'a, str>>,
    #[serde(borrow)]
    partition: Option<Cow<'a, str>>,
    delay_ms: Option<f64>,
    #[serde(borrow)]
    queue: Option<Cow<'a, str>>,
    #[serde(borrow, default, deserialize_with = "given")]
    payload: Option<&'a RawValue>,
    #[serde(borrow)]
    headers: Option<&'a RawValue>,
}

/// Read and check all parts of a bundle, given as JSON text. `now`: the moment of the call.
pub fn parse(
    operations: &str,
    kv: &str,
    timers: &str,
    leases: Option<UuidArray>,
    now: Moment,
) -> Result<Bundle> {
    let operations: Vec<Operation> = json::parse("operations", operations, FIELDS)?;
    let kv: Vec<KvOperation> = json::parse("kv", kv, FIELDS)?;
    let timers: Vec<TimerOperation> = json::parse("timers", timers, FIELDS)?;
    let leases =
        args::given_elements::<Uuid>("required_leases", leases, &args::LEASES)?.unwrap_or_default();
    if operations.is_empty() && kv.is_empty() && timers.is_empty() {
        return Err(Error::invalid(
            "the bundle is empty",
            "It has no operations, no kv and no timers.",
            "Pass operations, kv or timers.",
        ));
    }
    let required = leases.iter().map(|id| LeaseId(*id.as_bytes())).collect();
    let mut bundle = Bundle { now, required, ..Bundle::default() };
    let first_kv = operations.len();
    let first_timer = first_kv + kv.len();
    for (at, operation) in operations.into_iter().enumerate() {
        let name = args::quoted(&operation.r#type).to_owned();
        add_operation(&mut bundle, at, operation).map_err(in_element("operations", at, &name))?;
    }
    marker::check_size(&kv)?;
    let mut written = HashSet::new();
    for (at, operation) in kv.into_iter().enumerate() {
        let name = args::quoted(&operation.op).to_owned();
        add_on_marker(&mut bundle, first_kv + at, operation, &mut written)
            .map_err(in_element("kv", at, &name))?;
    }
    for (at, operation) in timers.into_iter().enumerate() {
        let name = args::quoted(&operation.op).to_owned();
        add_timer(&mut bundle, first_timer + at, operation)
            .map_err(in_element("timers", at, &name))?;
    }
    Ok(bundle)
}

/// Adds to an error in which element of the argument `of` it is: its place, from 0, and the `name`
/// of the operation.
fn in_element(of: &str, at: usize, name: &str) -> impl FnOnce(Error) -> Error {
    move |error| error.in_element(format!("{of}[{at}] ({name})"))
}

/// `written`: markers that operations before this one write.
fn add_on_marker(
    bundle: &mut Bundle,
    at: usize,
    operation: KvOperation,
    written: &mut HashSet<(String, String)>,
) -> Result<()> {
    match operation.checked(bundle.now)? {
        OnMarker::Read(read) => bundle.reads.push((at, read)),
        OnMarker::Write(write) => {
            check_written_once(&write, written)?;
            bundle.writes.push((at, write));
        }
    }
    Ok(())
}

fn add_timer(bundle: &mut Bundle, at: usize, operation: TimerOperation) -> Result<()> {
    let timer = operation.checked(bundle.now)?;
    check_named_once(&timer, &bundle.timers)?;
    bundle.timers.push((at, timer));
    Ok(())
}

fn add_operation(bundle: &mut Bundle, at: usize, op: Operation) -> Result<()> {
    let has = [
        ("leaseId", op.lease_id.is_some()),
        ("messageId", op.message_id.is_some()),
        ("status", op.status.is_some()),
        ("error", op.error.is_some()),
        ("delayMs", op.delay_ms.is_some()),
        ("queue", op.queue.is_some()),
        ("payload", op.payload.is_some()),
        ("headers", op.headers.is_some()),
    ];
    match op.r#type.as_ref() {
        "ack" => {
            refuse_fields("ack", &has, &["queue", "payload", "headers"])?;
            let lease = lease_id(&needed("leaseId", op.lease_id)?)?;
            let target =
                target(op.message_id, op.transaction_id.as_deref())?.unwrap_or(SettleTarget::All);
            let status =
                status_with_delay(op.status.as_deref().unwrap_or("completed"), op.delay_ms)?;
            let partition = checked_partition(op.partition.as_deref())?;
            let error = op.error.as_deref().map(args::error_text);
            let item = SettleItem { target, partition, status, error };
            bundle.acks.entry(lease).or_default().push((at, item));
        }
        "push" => {
            refuse_fields("push", &has, &["leaseId", "messageId", "status", "error", "delayMs"])?;
            let item = PushItem {
                queue: needed("queue", op.queue)?,
                payload: needed("payload", op.payload)?,
                partition: op.partition,
                transaction_id: op.transaction_id,
                headers: op.headers,
            };
            bundle.pushes.push((at, item.message()?));
        }
        other => return Err(unknown("operation type", other, "Use \"ack\" or \"push\".")),
    }
    Ok(())
}

fn check_written_once(write: &NamedWrite, written: &mut HashSet<(String, String)>) -> Result<()> {
    let name = (write.ns.clone(), write.key.clone());
    if write.write.is_check() || written.insert(name) {
        return Ok(());
    }
    Err(Error::invalid(
        format!("marker \"{}\" is written twice", write.key),
        "Two operations of the bundle write the same key.",
        "Write each key once.",
    ))
}

fn check_named_once(timer: &NamedTimer, others: &[(usize, NamedTimer)]) -> Result<()> {
    if others.iter().all(|(_, other)| other.name() != timer.name()) {
        return Ok(());
    }
    let (_, key) = timer.name();
    Err(Error::invalid(
        format!("timer \"{key}\" is named twice"),
        "Two operations of the bundle are about the same timer.",
        "Schedule or cancel each timer once.",
    ))
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
