//! `queen_schedule`, `queen_every`, `queen_cancel`: messages that enter the log later. What a timer
//! is, is in [`crate::broker::timer`].

use pgrx::datum::{Interval, TimestampWithTimeZone};
use pgrx::prelude::*;

use super::args::{self, YEAR};
use super::call::Call;
use super::push::{destination, message};
use crate::broker::push::recurring::Times;
use crate::broker::timer::{self, Scheduled};
use crate::error::{Error, Result};
use crate::pg::clock::{self, Moment};
use crate::pg::datum::Jsonb;
use crate::pg::result_rows::TableIterator;

/// Push a message to `partition` of `queue` later: after `delay`, or at `deliver_at` (one of the
/// two; at most 366 days ahead; a time that is past is due at once). A queue has one timer for each
/// `timer_key` (1..1024 bytes): a second call replaces the first. The queue is created as by a
/// push. `transaction_id`: what the delivered message carries; made up if it is not given.
///
/// Returns `scheduled`, or `rescheduled` where a timer was replaced. A due timer is moved into the
/// log exactly once, by the worker, by `queen_sweep`, or by any pop of the queue; the message's
/// created_at is then.
///
/// Errors: 22023; 42704 for an unknown queue when `queen_mq.auto_create` is off.
///
/// Transaction: takes effect when the caller commits. Waits for a transaction that is scheduling,
/// moving or cancelling the same timer.
#[allow(clippy::too_many_arguments)]
#[pg_extern]
fn queen_schedule(
    call: Call,
    queue: Option<&str>,
    timer_key: Option<&str>,
    payload: Option<Jsonb>,
    delay: default!(Option<Interval>, "NULL"),
    deliver_at: default!(Option<TimestampWithTimeZone>, "NULL"),
    partition: default!(Option<&str>, "'Default'"),
    transaction_id: default!(Option<&str>, "NULL"),
    headers: default!(Option<Jsonb>, "NULL"),
) -> TableIterator<
    'static,
    (
        name!(status, &'static str),
        name!(transaction_id, String),
        name!(deliver_at, Option<TimestampWithTimeZone>),
    ),
> {
    let scheduled = call.answer(|| {
        let to = destination(queue, partition)?;
        let key = args::timer_key(timer_key)?;
        let message = message(&to, payload, transaction_id, headers)?;
        let delay = delay.map(args::delay).transpose()?;
        let at = deliver_at.map(clock::moment);
        let deliver_at = moment(delay, at, clock::now(), ["delay", "deliver_at"])?;
        call.write(|| timer::schedule(key, &message, deliver_at))
    });
    let status = status(&scheduled);
    let deliver_at = clock::timestamp(scheduled.deliver_at);
    TableIterator::once((status, scheduled.transaction_id, deliver_at))
}

/// Push a message to `partition` of `queue` over and over, by `schedule`: a cron expression of five
/// fields (or `@hourly`, `@daily`, `@weekly`, `@monthly`, `@yearly`), read in `time_zone`; or an
/// interval of at least 1 s (a day is 24 hours, a month 30 days), from the registration on. A local
/// time that does not exist comes with the next one that does; one that exists twice comes once,
/// the first time. The queue is created as by a push.
///
/// Returns `scheduled`, or `rescheduled` where the queue had a timer of this `timer_key` (1..990
/// bytes), of one message or of a recurring one; and the next moment. Where that one recurs by an
/// equal `schedule` in an equal `time_zone`, `next_at` stays as it was.
///
/// Each occurrence enters the log once, as a due timer does, with the transaction_id
/// `<timer_key>@<UTC time>`. What was missed while nothing ran comes once, for the newest time.
///
/// Errors: 22023; 42704 for an unknown queue when `queen_mq.auto_create` is off.
///
/// Transaction: as `queen_schedule`.
#[allow(clippy::too_many_arguments)]
#[pg_extern]
fn queen_every(
    call: Call,
    queue: Option<&str>,
    timer_key: Option<&str>,
    schedule: Option<&str>,
    payload: Option<Jsonb>,
    partition: default!(Option<&str>, "'Default'"),
    headers: default!(Option<Jsonb>, "NULL"),
    time_zone: default!(Option<&str>, "'UTC'"),
) -> TableIterator<
    'static,
    (name!(status, &'static str), name!(next_at, Option<TimestampWithTimeZone>)),
> {
    let scheduled = call.answer(|| {
        let to = destination(queue, partition)?;
        let key = args::recurring_key(timer_key)?;
        let schedule = args::schedule(schedule)?;
        let time_zone = args::name("time_zone", time_zone.or(Some("UTC")))?;
        let message = message(&to, payload, None, headers)?;
        let times = Times::parse(schedule, time_zone)?;
        call.write(|| timer::every(key, &message, &times, clock::now()))
    });
    let next_at = clock::timestamp(scheduled.deliver_at);
    TableIterator::once((status(&scheduled), next_at))
}

/// What a user is told.
pub fn status(scheduled: &Scheduled) -> &'static str {
    if scheduled.is_new { "scheduled" } else { "rescheduled" }
}

/// The moment of delivery: after a delay in microseconds, or at a time. Exactly one is given.
/// `names`: what the user calls the two.
pub fn moment(
    delay: Option<i64>,
    at: Option<Moment>,
    now: Moment,
    names: [&str; 2],
) -> Result<Moment> {
    let at = match (delay, at) {
        (Some(delay), None) => now.saturating_add(delay),
        (None, Some(at)) => at,
        (given, _) => {
            return Err(Error::invalid(
                "a timer needs one of a delay and a time",
                if given.is_some() { "Both were given." } else { "Neither was given." },
                format!("Pass {} or {}.", names[0], names[1]),
            ));
        }
    };
    if at > now.saturating_add(YEAR) {
        return Err(Error::invalid(
            "the timer is too far ahead",
            format!("It would be delivered at {}.", clock::show(at)),
            "Schedule it for at most 366 days ahead.",
        ));
    }
    Ok(at.max(clock::EARLIEST))
}

/// Cancel a timer, or end a recurring message. Returns false if there is none: it has been moved
/// into the log, or was never set.
///
/// Errors: 22023.
///
/// Transaction: takes effect when the caller commits. Waits for a transaction that is scheduling,
/// moving or cancelling the same timer.
#[pg_extern]
fn queen_cancel(call: Call, queue: Option<&str>, timer_key: Option<&str>) -> bool {
    call.answer(|| {
        let queue = args::name("queue", queue)?;
        let key = args::timer_key(timer_key)?;
        call.write(|| Ok(timer::cancel(queue, key)?.is_some()))
    })
}
