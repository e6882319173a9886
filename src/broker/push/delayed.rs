//! Messages that enter the log later. A push with a delay goes into the table of timers, as
//! [`crate::broker::timer`] puts timers there; [`deliver_due`] moves what is due into the log.
//!
//! `api::push` calls [`push_later`]. Every pop of a queue, and every sweep, calls [`deliver_due`].
//! The row of a timer is locked by the transaction that schedules, replaces, cancels or moves it.

use std::collections::BTreeMap;

use crate::broker::push::max_depth;
use crate::broker::push::message::{Destination, Message, Pushed};
use crate::broker::push::recurring::{self, Upcoming};
use crate::broker::push::segmenting::push_to_partition;
use crate::broker::queue::find_or_auto_create;
use crate::error::Result;
use crate::pg::clock::{self, Moment};
use crate::pg::random::random;
use crate::pg::snapshot::{ActiveSnapshot, one_snapshot_per_transaction};
use crate::store::admission::{self, Original};
use crate::store::queue::Queue;
use crate::store::timer::{self, Due, NewTimer};
use crate::store::{seen_snapshot, tally};
use crate::wait::waiters::{self, PartitionHash, Topic};

/// How many due messages one pop moves into the log at most: its transaction holds them until it
/// ends.
pub const MOVED_BY_POP: usize = 100;

/// Push a message after `delay` microseconds. Its transaction_id is admitted now, so it is a
/// duplicate if the dedup window remembers that one, also of a message that waits for its delay.
/// QN020 where the queue is full;
/// 42704 where it is not there and may not be created. Waits for a transaction that is creating the
/// queue, or is delaying or moving the same message.
pub fn push_later(message: &Message, delay: i64) -> Result<Pushed> {
    let queue = find_or_auto_create(&message.to.queue)?;
    let now = clock::now();
    let partition = &message.to.partition;
    let random_id = || format!("delayed-{:016x}{:016x}", random(), random());
    let transaction_id = message.transaction_id.clone().unwrap_or_else(|| random_id().into());
    max_depth::admit(&queue, partition, &[message])?;
    if let Some(original) = admit(&queue, message, now) {
        return Ok(Pushed::duplicate_of(original, transaction_id));
    }
    // Of each group, one session learns of the moment, and moves the message when it is due.
    waiters::touch(Topic::queue(&queue.name), PartitionHash::ANY);
    // No key that a user gives has control characters.
    let key = format!("{MADE_UP}{}", random_id());
    let deliver_at = moment_of(&queue, now.saturating_add(delay))?;
    message.as_timer(&queue, &key, &transaction_id, deliver_at).replace();
    Ok(Pushed::scheduled(transaction_id))
}

/// With what the key of a delayed push begins.
const MADE_UP: char = '\u{1}';

/// Remember the transaction_id that a message with a delay was given, for the dedup window from now
/// on. The original, if the message is a duplicate.
fn admit(queue: &Queue, message: &Message, now: Moment) -> Option<Original> {
    let window = queue.options.dedup_window();
    let id = message.transaction_id.as_deref().filter(|_| window > 0)?;
    admission::admit(queue.id, &message.to.partition, &[id], &[None], now, window).remove(id)
}

/// The moment for which a timer is set that is to be delivered at `wanted`: that one, if it lies
/// ahead. Otherwise the present one, so that the timer is where readers begin to look. They know
/// which transactions may have timers before that: so this transaction gets its id before it looks
/// at the clock ([`TimerFloor`](queen_engine::floor::TimerFloor)).
pub fn moment_of(queue: &Queue, wanted: Moment) -> Result<Moment> {
    seen_snapshot::assign_xid(queue.identity);
    let now = clock::now();
    let floors = ActiveSnapshot::latest_snapshot(|under| Ok(tally::floors(queue, now, under)))?;
    // The clock may have been set back.
    Ok(wanted.max(now).max(floors.timers.at))
}

impl Message {
    /// The row of the table of timers that keeps the message until `deliver_at`. One that comes
    /// without a transaction_id is given one, for it has no id yet that it could be derived from.
    pub fn as_timer<'a>(
        &'a self,
        queue: &Queue,
        key: &'a str,
        transaction_id: &'a str,
        deliver_at: Moment,
    ) -> NewTimer<'a> {
        NewTimer {
            queue: queue.id,
            key,
            partition: &self.to.partition,
            transaction_id,
            deliver_at,
            payload: self.payload,
            headers: self.headers,
            recurrence: None,
        }
    }
}

/// Move up to `limit` messages that are due into the log, by partitions; returns how many. `next`
/// is the moment of the queue's next timer. Waits for no other transaction: a timer that one holds,
/// and a message whose transaction_id one is pushing, is left for later.
///
/// A message that recurs stays in the table of timers, with the moment of its next occurrence. Its
/// row is locked and updated in the transaction that pushes the occurrence, so no other transaction
/// pushes it.
pub fn deliver_due(queue: &Queue, next: Option<Moment>, limit: usize) -> Result<usize> {
    let now = clock::now();
    let Some(first) = next.filter(|next| *next <= now) else { return Ok(0) };
    if is_moved(queue, first, now)? {
        return Ok(0);
    }
    let mut partitions: BTreeMap<String, Vec<Due>> = BTreeMap::new();
    for due in timer::hold_due(queue.id, first, now, limit) {
        partitions.entry(due.partition.clone()).or_default().push(due);
    }
    // A message that recurs gets a moment after this one, as a new timer would.
    let base = moment_of(queue, now)?;
    let mut count = 0;
    for (partition, held) in partitions {
        count += deliver_in(queue, &partition, held, base)?;
        pgrx::check_for_interrupts!();
    }
    Ok(count)
}

/// Whether the snapshot of a transaction in REPEATABLE READ still shows timers as due, while all
/// have been moved. To lock their rows would be error 40001 then, and in vain.
fn is_moved(queue: &Queue, first: Moment, now: Moment) -> Result<bool> {
    if !one_snapshot_per_transaction() {
        return Ok(false);
    }
    let next = ActiveSnapshot::latest_snapshot(|under| Ok(timer::next(queue.id, first, under)))?;
    Ok(next.is_none_or(|next| next > now))
}

fn deliver_in(queue: &Queue, partition: &str, held: Vec<Due>, base: Moment) -> Result<usize> {
    let has_window = queue.options.dedup_window() > 0;
    let to = Destination { queue: queue.name.as_str().into(), partition: partition.into() };
    let mut ids = Vec::new();
    let mut messages = Vec::new();
    for due in held {
        let upcoming = due.recurrence.as_ref().map(|recurrence| {
            let title = || format!("\"{}\" of queue \"{}\"", due.key, queue.name);
            Upcoming::of(recurrence, &due, base, title)
        });
        let transaction_id = match &upcoming {
            Some(upcoming) => recurring::transaction_id(&due.key, upcoming.newest),
            None => due.transaction_id,
        };
        if has_window && admission::is_busy(queue.id, partition, &transaction_id)? {
            continue;
        }
        match upcoming {
            Some(Upcoming { newest, next }) => {
                let next_id = recurring::transaction_id(&due.key, next);
                timer::advance(due.id, next, &next_id, newest);
            }
            None => ids.push(due.id),
        }
        messages.push(Message {
            was_admitted: due.key.starts_with(MADE_UP),
            to: to.clone(),
            payload: due.payload,
            transaction_id: Some(transaction_id.into()),
            headers: due.headers,
        });
    }
    if !ids.is_empty() {
        timer::delete(ids);
    }
    if !messages.is_empty() {
        // `max_depth` let them in when they were scheduled.
        push_to_partition(queue, partition, &messages.iter().collect::<Vec<_>>())?;
    }
    Ok(messages.len())
}
