//! Messages that enter the log later. A push with a delay goes into the table of timers, as
//! [`crate::broker::timer`] puts timers there; [`deliver_due`] moves what is due into the log.
//!
//! `api::push` calls [`push_later`]. Every pop of a queue, and every sweep, calls [`deliver_due`].
//! The row of a timer is locked by the transaction that schedules, replaces, cancels or moves it.

use std::collections::BTreeMap;

use crate::broker::push::max_depth;
use crate::broker::push::message::{Destination, Message, Pushed};
use crate::broker::push::segmenting::push_to_partition;
use crate::broker::queue::find_or_auto_create;
use crate::error::Result;
use crate::pg::clock::{self, Moment};
use crate::pg::random::random;
use crate::store::admission;
use crate::store::queue::Queue;
use crate::store::timer::{self, Due, NewTimer};
use crate::wait::waiters::{self, PartitionHash, Topic};

/// How many due messages one pop moves into the log at most: its transaction holds them until it
/// ends.
pub const MOVED_BY_POP: usize = 100;

/// Push a message after `delay` microseconds. It is a duplicate if the dedup window remembers its
/// transaction_id, or if a push of it has been delayed and waits. QN020 where the queue is full;
/// 42704 where it is not there and may not be created. Waits for a transaction that is creating the
/// queue, or is delaying or moving the same message.
pub fn push_later(message: &Message, delay: i64) -> Result<Pushed> {
    let queue = find_or_auto_create(&message.to.queue)?;
    max_depth::admit(&queue, 1)?;
    let now = clock::now();
    let partition = &message.to.partition;
    let random_id = || format!("delayed-{:016x}{:016x}", random(), random());
    let transaction_id = message.transaction_id.clone().unwrap_or_else(|| random_id().into());
    let window = queue.options.dedup_window();
    if window > 0
        && let Some(original) = admission::find(queue.id, partition, &transaction_id, now - window)?
    {
        return Ok(Pushed::duplicate_of(Some(original), transaction_id));
    }
    // Of each group, one session learns of the moment, and moves the message when it is due.
    waiters::touch(Topic::queue(&queue.name), PartitionHash::ANY);
    // No key that a user gives has control characters.
    let key = match window {
        0 => format!("\u{1}{}", random_id()),
        _ => format!("\u{1}{partition}\u{1f}{transaction_id}"),
    };
    let is_new = message.as_timer(&queue, &key, &transaction_id, now + delay).add();
    Ok(match is_new {
        true => Pushed::scheduled(transaction_id),
        false => Pushed::duplicate_of(None, transaction_id),
    })
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
        }
    }
}

/// Move up to `limit` messages that are due into the log, by partitions; returns how many. `next`
/// is the moment of the queue's next timer. Waits for no other transaction: a timer that one holds,
/// and a message whose transaction_id one is pushing, is left for later.
pub fn deliver_due(queue: &Queue, next: Option<Moment>, limit: usize) -> Result<usize> {
    let now = clock::now();
    if next.is_none_or(|next| next > now) {
        return Ok(0);
    }
    let mut partitions: BTreeMap<String, Vec<Due>> = BTreeMap::new();
    for due in timer::hold_due(queue.id, now, limit) {
        partitions.entry(due.partition.clone()).or_default().push(due);
    }
    let mut count = 0;
    for (partition, held) in partitions {
        count += deliver_in(queue, &partition, held)?;
        pgrx::check_for_interrupts!();
    }
    Ok(count)
}

fn deliver_in(queue: &Queue, partition: &str, held: Vec<Due>) -> Result<usize> {
    let has_window = queue.options.dedup_window() > 0;
    let to = Destination { queue: queue.name.as_str().into(), partition: partition.into() };
    let mut ids = Vec::new();
    let mut messages = Vec::new();
    for due in held {
        if !has_window || !admission::is_busy(queue.id, partition, &due.transaction_id)? {
            ids.push(due.id);
            messages.push(Message {
                to: to.clone(),
                payload: due.payload,
                transaction_id: Some(due.transaction_id.into()),
                headers: due.headers,
            });
        }
    }
    if !ids.is_empty() {
        timer::delete(ids);
        // `max_depth` let them in when they were scheduled.
        push_to_partition(queue, partition, &messages.iter().collect::<Vec<_>>())?;
    }
    Ok(messages.len())
}
