//! `queen_dead_letter_replay`, `queen_dead_letter_purge`.

use pgrx::datum::Interval;
use pgrx::prelude::*;

use super::args;
use super::call::Call;
use crate::broker::dead_letter;
use crate::pg::clock;
use crate::pg::result_rows::TableIterator;

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
        call.write(|| Ok(dead_letter::purge(queue, group, before)))
    })
}
