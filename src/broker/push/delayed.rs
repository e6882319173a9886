//! Messages that enter the log later: timers, and pushes with a delay.

use std::collections::BTreeMap;

use crate::broker::push::segmenting::push_to;
use crate::broker::push::{Destination, Message, Pushed};
use crate::error::Result;
use crate::pg::clock::{self, Moment};
use crate::pg::datum::random;
use crate::store::admission;
use crate::store::queue::Queue;
use crate::store::timer::{self, Due, NewTimer};
use crate::wait::waiters::{self, Topic};

/// Due messages that a pop moves into the log at most: they are its transaction's until it commits.
pub const MOVED_BY_POP: usize = 100;

/// A timer as it was scheduled.
#[derive(Debug)]
pub struct Scheduled {
    /// There was none of its key.
    pub is_new: bool,
    pub transaction_id: String,
    pub deliver_at: Moment,
}

/// Schedule `message` under `key`, replacing what is scheduled under it.
pub fn schedule(queue: &Queue, key: &str, message: &Message, deliver_at: Moment) -> Scheduled {
    waiters::touch(Topic::queue(&queue.name));
    let given = message.transaction_id.clone();
    let transaction_id =
        given.unwrap_or_else(|| format!("timer-{:016x}{:016x}", random(), random()));
    let is_new = new_timer(queue, key, message, &transaction_id, deliver_at).replace();
    Scheduled { is_new, transaction_id, deliver_at }
}

/// Schedule a push. A transaction_id that is remembered, or waits to be pushed, is a duplicate.
pub fn push_later(queue: &Queue, message: &Message, delay: i64) -> Result<Pushed> {
    let now = clock::now();
    let partition = &message.to.partition;
    let random_id = || format!("delayed-{:016x}{:016x}", random(), random());
    let transaction_id = message.transaction_id.clone().unwrap_or_else(random_id);
    let window = queue.options.dedup_window();
    if window > 0
        && let Some(original) = admission::find(queue.id, partition, &transaction_id, now - window)?
    {
        return Ok(Pushed::duplicate_of(Some(original), transaction_id));
    }
    waiters::touch(Topic::queue(&queue.name));
    // No key that a user gives has control characters.
    let key = match window {
        0 => format!("\u{1}{}", random_id()),
        _ => format!("\u{1}{partition}\u{1f}{transaction_id}"),
    };
    let is_new = new_timer(queue, &key, message, &transaction_id, now + delay).add();
    Ok(match is_new {
        true => Pushed::scheduled(transaction_id),
        false => Pushed::duplicate_of(None, transaction_id),
    })
}

fn new_timer<'a>(
    queue: &Queue,
    key: &'a str,
    message: &'a Message,
    transaction_id: &'a str,
    deliver_at: Moment,
) -> NewTimer<'a> {
    NewTimer {
        queue: queue.id,
        key,
        partition: &message.to.partition,
        transaction_id,
        deliver_at,
        payload: message.payload,
        headers: message.headers,
    }
}

/// Move what is due into the log, by partitions; returns how many. `next`: the moment of the queue's
/// next timer. One whose transaction_id somebody is pushing at this moment is left for later: a pop
/// waits for nobody.
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
                transaction_id: Some(due.transaction_id),
                headers: due.headers,
            });
        }
    }
    if !ids.is_empty() {
        timer::delete(ids);
        // However many wait: they were let in when they were scheduled.
        push_to(queue, partition, &messages.iter().collect::<Vec<_>>())?;
    }
    Ok(messages.len())
}
