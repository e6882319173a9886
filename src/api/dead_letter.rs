//! `queen_dead_letter_replay`, `queen_dead_letter_replay_all`, `queen_dead_letter_purge`.

use pgrx::datum::{Interval, TimestampWithTimeZone};
use pgrx::prelude::*;

use super::args;
use super::call::Call;
use crate::broker::dead_letter;
use crate::pg::clock;
use crate::pg::raise::OrRaise;
use crate::pg::result_rows::TableIterator;
use crate::store::dead_letter::LetterFilter;

/// Move a dead letter to the tail of its partition, for its own group alone: payload, headers and
/// transaction_id stay, attempts and failures start anew, and the dedup window is not asked.
/// Returns the new message's id and its transaction_id.
///
/// Errors: 42704 if there is no such dead letter (of two concurrent replays, the second), or its
/// group or queue has gone; 22023.
///
/// Transaction: takes effect when the caller commits. Waits for a transaction that is replaying or
/// purging the same dead letter, or that is purging the queue or changing its `ordering`.
#[pg_extern]
fn queen_dead_letter_replay(
    call: Call,
    dead_letter_id: Option<i64>,
) -> TableIterator<'static, (name!(message_id, i64), name!(transaction_id, String))> {
    let (message, transaction_id) = call.answer(|| {
        let id = args::required("dead_letter_id", dead_letter_id)?;
        call.write(|| dead_letter::replay(id))
    });
    TableIterator::once((message.to_sql(), transaction_id))
}

/// Move dead letters of `queue` as `queen_dead_letter_replay` does, the oldest first, up to
/// `max_messages` (1 to 100,000): of `consumer_group` or of every group that is there (NULL), of
/// any error or of those that match `error_like`, a pattern of LIKE, and of any age or those that
/// failed before a moment. Returns how many were moved.
///
/// Errors: 42704 if there is no such queue or group; 22023.
///
/// Transaction: takes effect when the caller commits. Skips letters that another transaction is
/// replaying or purging. Waits for one that is purging the queue or changing its `ordering`.
#[pg_extern]
fn queen_dead_letter_replay_all(
    call: Call,
    queue: Option<&str>,
    consumer_group: default!(Option<&str>, "NULL"),
    error_like: default!(Option<&str>, "NULL"),
    failed_before: default!(Option<TimestampWithTimeZone>, "NULL"),
    max_messages: default!(Option<i32>, "1000"),
) -> i64 {
    let (filter, limit) = call.answer(|| {
        let group = consumer_group.map(|name| args::name("consumer_group", Some(name)));
        let filter = LetterFilter {
            queue: args::name("queue", queue)?,
            group: group.transpose()?,
            error_like,
            failed_before: failed_before.map(clock::moment),
        };
        let limit = args::within("max_messages", max_messages.unwrap_or(1000), 1, 100_000)?;
        Ok((filter, i64::from(limit)))
    });
    dead_letter::replay_all(&filter, limit, |step| call.write(step)).or_raise()
}

/// Delete dead letters of `queue`: of `consumer_group` or of all (NULL), of any age or those that
/// failed more than `older_than` ago. Returns how many.
///
/// Errors: 22023.
///
/// Transaction: takes effect when the caller commits. Waits for transactions that are replaying or
/// purging one of them.
#[pg_extern]
fn queen_dead_letter_purge(
    call: Call,
    queue: Option<&str>,
    consumer_group: default!(Option<&str>, "NULL"),
    older_than: default!(Option<Interval>, "NULL"),
) -> i64 {
    call.answer(|| {
        let queue = args::name("queue", queue)?;
        let group = consumer_group.map(|name| args::name("consumer_group", Some(name)));
        let group = group.transpose()?;
        let age = older_than.map(|age| args::length("older_than", age, 1, i64::MAX, "more than 0"));
        let before = age.transpose()?.map(|age| clock::now().saturating_sub(age));
        call.write(|| dead_letter::purge(queue, group, before))
    })
}
