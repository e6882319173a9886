//! `queen_message_status`: what became of a message.

use pgrx::datum::TimestampWithTimeZone;
use pgrx::prelude::*;
use queen_engine::message::MessageId;

use super::args;
use super::call::Call;
use crate::broker::message_status;
use crate::pg::clock;
use crate::pg::result_rows::TableIterator;
use crate::pg::snapshot::ActiveSnapshot;

/// What became of the message of `transaction_id` in `partition` of `queue`: one row for each group
/// that it is for, and one with a NULL group where the queue has no groups. `consumer_group` is
/// NULL for queue mode as well. `state` is 'scheduled' (it enters the log at `due_at`), 'pending'
/// (never delivered), 'leased' (until `lease_expires_at`), 'retrying' (delivered before, and to be
/// delivered again from `due_at` on), 'completed' or 'dead_letter'. `delivery_attempt` is how often
/// it was delivered, and NULL for a completed one. `error` is what the last failure said, or the
/// dead letter. No row where nothing is known.
///
/// A transaction_id is known within the `dedup_window`; one that is derived from the message id, as
/// long as the message is in the log; one of a dead letter, of a replayed message in the log, or of
/// a timer at all times. Of several messages that carry it, the newest is meant.
///
/// Errors: 22023 for a malformed argument.
///
/// Transaction: reads under the snapshot of the statement, and locks nothing. It costs a few
/// look-ups for each group, whatever the backlog.
#[allow(clippy::type_complexity)]
#[pg_extern]
fn queen_message_status(
    call: Call,
    queue: Option<&str>,
    transaction_id: Option<&str>,
    partition: default!(Option<&str>, "'Default'"),
) -> TableIterator<
    'static,
    (
        name!(consumer_group, Option<String>),
        name!(message_id, Option<i64>),
        name!(state, &'static str),
        name!(delivery_attempt, Option<i32>),
        name!(lease_expires_at, Option<TimestampWithTimeZone>),
        name!(due_at, Option<TimestampWithTimeZone>),
        name!(error, Option<String>),
    ),
> {
    let all = call.answer(|| {
        let queue = args::name("queue", queue)?;
        let id = args::transaction_id(args::required("transaction_id", transaction_id)?)?;
        let partition = args::name("partition", Some(partition.unwrap_or("Default")))?;
        call.read(|| {
            ActiveSnapshot::of_statement(|under| message_status::of(queue, partition, id, under))
        })
    });
    TableIterator::new(all.into_iter().map(|status| {
        (
            Some(status.group).filter(|name| !name.is_empty()),
            status.message.map(MessageId::to_sql),
            status.state.name(),
            status.deliveries.map(|deliveries| deliveries as i32),
            status.lease_expires_at.and_then(clock::timestamp),
            status.due_at.and_then(clock::timestamp),
            status.error,
        )
    }))
}
