//! `queen_ack`, `queen_settle`, `queen_extend`: what became of messages, under the lease's fence.

use std::borrow::Cow;
use std::rc::Rc;

use pgrx::datum::{Interval, TimestampWithTimeZone, Uuid};
use pgrx::prelude::*;
use queen_engine::lease::LeaseId;
use queen_engine::message::MessageId;
use queen_engine::settle::{Outcome, Status};
use serde::Deserialize;

use super::call::Call;
use super::{args, json};
use crate::broker::settle::{SettleItem, SettleTarget, extend_lease, settle_lease};
use crate::error::{Error, Result};
use crate::pg::allocator;
use crate::pg::arrays::{BigintArray, TextArray};
use crate::pg::clock;
use crate::pg::datum::Jsonb;
use crate::pg::result_rows::TableIterator;

/// Settle messages of a lease: those of `message_ids` or of `transaction_ids` (not both), or all
/// that are not settled yet, in `partition` or in all. `status` is 'completed', 'failed', 'retry'
/// or 'dead_letter'; `error` is kept with a dead letter (8 KiB of it). With 'failed' and 'retry',
/// messages come back no sooner than `delay` (0 to 366 days) from now, in place of the queue's
/// retry delay. Up to 100,000 messages can be named.
///
/// Returns how many were settled or given back, how many had been settled under this lease
/// before, how many went to the dead letters, and whether nothing of the lease is left.
///
/// Errors: QN001 lease_expired, QN002 lease_superseded, QN003 lease_unknown, QN004
/// message_not_in_lease, QN005 already_settled, 22023. They are raised so that whatever else the
/// transaction did is rolled back with the ack: this is the fence.
///
/// Transaction: takes effect when the caller commits. Waits for a transaction that is settling
/// the same lease.
#[pg_extern]
fn queen_ack(
    call: Call,
    lease_id: Option<Uuid>,
    message_ids: default!(Option<BigintArray>, "NULL"),
    status: default!(Option<&str>, "'completed'"),
    error: default!(Option<&str>, "NULL"),
    transaction_ids: default!(Option<TextArray>, "NULL"),
    partition: default!(Option<&str>, "NULL"),
    delay: default!(Option<Interval>, "NULL"),
) -> TableIterator<
    'static,
    (
        name!(settled, i32),
        name!(already, i32),
        name!(dead_lettered, i32),
        name!(lease_released, bool),
    ),
> {
    let report = call.answer(|| {
        let lease = LeaseId(*args::required("lease_id", lease_id)?.as_bytes());
        let messages = args::given_elements::<i64>("message_ids", message_ids, &args::NAMES)?;
        let transactions =
            args::given_elements::<&str>("transaction_ids", transaction_ids, &args::NAMES)?;
        let given = if messages.is_some() { "message_ids" } else { "transaction_ids" };
        let mut targets = allocator::room(1)?;
        match (messages, transactions) {
            (None, None) => targets.push(SettleTarget::All),
            (Some(ids), None) => {
                let each = ids.iter().map(|id| Ok(SettleTarget::Message(MessageId::from_sql(*id))));
                targets = allocator::list(ids.len(), each)?;
            }
            (None, Some(ids)) => {
                let target =
                    |id: &&str| Ok(SettleTarget::Transaction(args::transaction_id(id)?.into()));
                targets = allocator::list(ids.len(), ids.iter().map(target))?;
            }
            (Some(_), Some(_)) => {
                return Err(Error::invalid(
                    "message_ids and transaction_ids can't be given together",
                    "Both were given.",
                    "Pass message_ids or transaction_ids.",
                ));
            }
        }
        if targets.is_empty() {
            return Err(nothing_named(given, "Leave it out to settle all that the lease holds."));
        }
        let delay = delay.map(args::delay).transpose()?;
        let status = parse_status(status.unwrap_or("completed"), delay, "delay")?;
        let partition = partition.map(|name| args::name("partition", Some(name))).transpose()?;
        let (partition, error) = (partition.map(Rc::from), error.map(args::error_text));
        let item = |target| {
            Ok(SettleItem { target, partition: partition.clone(), status, error: error.clone() })
        };
        let items = allocator::list(targets.len(), targets.into_iter().map(item))?;
        call.write(|| settle_lease(lease, &items, false))
    });
    let (settled, already, dead) = report.counts(|_| true);
    TableIterator::once((settled, already, dead, report.released))
}

/// `given`: the argument that is an empty array.
fn nothing_named(given: &str, hint: &str) -> Error {
    Error::invalid("no message is named", format!("{given} is an empty array."), hint)
}

/// A status by its name; an unknown one is an error, never a default. `delay`, in microseconds,
/// goes with those that bring a message back; an argument or a field, called `what`, gives it.
fn parse_status(name: &str, delay: Option<i64>, what: &str) -> Result<Status> {
    match name {
        "failed" => Ok(Status::Failed { delay }),
        "retry" => Ok(Status::Retry { delay: delay.unwrap_or(0) }),
        "completed" | "dead_letter" if delay.is_some() => Err(Error::invalid(
            format!("{what} does not go with status \"{name}\""),
            "Such a message is not delivered again.",
            format!("Leave {what} out, or use status 'failed' or 'retry'."),
        )),
        "completed" => Ok(Status::Completed),
        "dead_letter" => Ok(Status::DeadLetter),
        other => Err(Error::invalid(
            format!("unknown status \"{}\"", args::quoted(other)),
            "The value is not one of those accepted.",
            "Use 'completed', 'failed', 'retry' or 'dead_letter'.",
        )),
    }
}

const VERDICT_FIELDS: &str = "Each element has status and one of messageId and transactionId, and \
                              may have partition, error and delayMs.";

/// One element of `queen_settle`'s results.
#[derive(Deserialize)]
#[serde(deny_unknown_fields, rename_all = "camelCase")]
struct Verdict<'a> {
    #[serde(default, deserialize_with = "json::message_id")]
    message_id: Option<i64>,
    #[serde(borrow)]
    transaction_id: Option<Cow<'a, str>>,
    #[serde(borrow)]
    partition: Option<Cow<'a, str>>,
    #[serde(borrow)]
    status: Cow<'a, str>,
    #[serde(borrow)]
    error: Option<Cow<'a, str>>,
    delay_ms: Option<f64>,
}

impl Verdict<'_> {
    fn item(self) -> Result<SettleItem> {
        Ok(SettleItem {
            target: target(self.message_id, self.transaction_id.as_deref())?.ok_or_else(|| {
                Error::invalid(
                    "a result names no message",
                    "It has neither messageId nor transactionId.",
                    "Pass one of the two.",
                )
            })?,
            partition: checked_partition(self.partition.as_deref())?,
            status: status_with_delay(&self.status, self.delay_ms)?,
            error: self.error.as_deref().map(args::error_text),
        })
    }
}

/// A status by its name, with `delayMs` of an element.
pub fn status_with_delay(name: &str, delay_ms: Option<f64>) -> Result<Status> {
    parse_status(name, delay_ms.map(args::milliseconds).transpose()?, "delayMs")
}

/// A partition that narrows down what is meant.
pub fn checked_partition(name: Option<&str>) -> Result<Option<Rc<str>>> {
    name.map(|name| args::name("partition", Some(name)).map(Rc::from)).transpose()
}

/// A message named by one of two ids; None for neither.
pub fn target(
    message_id: Option<i64>,
    transaction_id: Option<&str>,
) -> Result<Option<SettleTarget>> {
    match (message_id, transaction_id) {
        (Some(id), None) => Ok(Some(SettleTarget::Message(MessageId::from_sql(id)))),
        (None, Some(id)) => Ok(Some(SettleTarget::Transaction(args::transaction_id(id)?.into()))),
        (None, None) => Ok(None),
        (Some(_), Some(_)) => Err(Error::invalid(
            "messageId and transactionId can't be given together",
            "Both were given.",
            "Pass messageId or transactionId.",
        )),
    }
}

/// Settle a mixed batch of one lease as one set. `results` is an array of
/// `{"messageId" | "transactionId", "partition"?, "status", "error"?, "delayMs"?}`. Returns a row
/// for each message with its outcome: completed, failed, retry, dead_lettered, dropped or already.
/// Errors and transaction behaviour as of `queen_ack`.
#[pg_extern]
fn queen_settle(
    call: Call,
    lease_id: Option<Uuid>,
    results: Option<Jsonb>,
) -> TableIterator<
    'static,
    (
        name!(message_id, i64),
        name!(transaction_id, String),
        name!(partition, String),
        name!(outcome, &'static str),
    ),
> {
    let report = call.answer(|| {
        let lease = LeaseId(*args::required("lease_id", lease_id)?.as_bytes());
        let results = args::required("results", results)?;
        let text = json::text("results", results, &args::STATEMENTS)?;
        let verdicts: Vec<Verdict> = json::parse("results", &text, VERDICT_FIELDS)?;
        let item = |(at, verdict): (usize, Verdict)| {
            verdict.item().map_err(|error| error.in_element(format!("results[{at}]")))
        };
        let items = allocator::list(verdicts.len(), verdicts.into_iter().enumerate().map(item))?;
        if items.is_empty() {
            return Err(nothing_named(
                "results",
                "Use queen_ack to settle all that the lease holds.",
            ));
        }
        call.write(|| settle_lease(lease, &items, true))
    });
    TableIterator::new(report.settled.into_iter().map(|s| {
        (s.message.to_sql(), s.transaction_id, s.partition.to_string(), outcome_name(s.outcome))
    }))
}

fn outcome_name(outcome: Outcome) -> &'static str {
    match outcome {
        Outcome::Completed => "completed",
        Outcome::Failed => "failed",
        Outcome::Retry => "retry",
        Outcome::DeadLettered => "dead_lettered",
        Outcome::Dropped => "dropped",
        Outcome::Already => "already",
    }
}

/// Hold on to what is left of a lease until at least `lease_time` from now (default: the time the
/// pop used). Never shortens, never revives. Returns when the lease ends.
///
/// Errors: QN001 to QN003 as of `queen_ack`; QN004 when nothing is left to hold; 22023.
#[pg_extern]
fn queen_extend(
    call: Call,
    lease_id: Option<Uuid>,
    lease_time: default!(Option<Interval>, "NULL"),
) -> Option<TimestampWithTimeZone> {
    let until = call.answer(|| {
        let lease = LeaseId(*args::required("lease_id", lease_id)?.as_bytes());
        let duration = lease_time.map(args::lease_time).transpose()?;
        call.write(|| extend_lease(lease, duration))
    });
    clock::timestamp(until)
}
