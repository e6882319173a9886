//! Messages that enter the log later: timers, and pushes with a delay.

use crate::api::push::{Destination, Message, Pushed, push_due};
use crate::datum::random;
use crate::error::Result;
use crate::store::admission;
use crate::store::clock::{self, Moment};
use crate::store::queue::{self, Queue};
use crate::store::spi::Under;
use crate::store::timer::{self, NewTimer};
use crate::waiters::{self, Topic};

/// Due messages that a pop moves into the log at most: they are its transaction's until it commits.
const MOVED_BY_POP: usize = 100;

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
    queue::use_timers(queue);
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
    queue::use_timers(queue);
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

/// Move what is due into the log; returns how many. Costs a look at an index where nothing is.
pub fn deliver_due(queue: &Queue, limit: usize) -> Result<usize> {
    let now = clock::now();
    let next = Under::new_snapshot(|under| Ok(timer::next(queue.id, under)))?;
    if next.is_none_or(|next| next > now) {
        return Ok(0);
    }
    // One whose transaction_id somebody is pushing at this moment is left for later: a pop waits
    // for nobody.
    let has_window = queue.options.dedup_window() > 0;
    let mut due = Vec::new();
    for held in timer::hold_due(queue.id, now, limit) {
        if !has_window || !admission::is_busy(queue.id, &held.partition, &held.transaction_id)? {
            due.push(held);
        }
    }
    if due.is_empty() {
        return Ok(0);
    }
    timer::delete(due.iter().map(|due| due.id).collect());
    let messages: Vec<Message> = due
        .into_iter()
        .map(|due| Message {
            to: Destination { queue: queue.name.as_str().into(), partition: due.partition.into() },
            payload: due.payload,
            transaction_id: Some(due.transaction_id),
            headers: due.headers,
        })
        .collect();
    let count = messages.len();
    push_due(messages)?;
    Ok(count)
}

/// The same, for a pop: only where the queue has ever had timers.
pub fn deliver_due_for_pop(queue: &Queue) -> Result<()> {
    if queue.uses_timers {
        deliver_due(queue, MOVED_BY_POP)?;
    }
    Ok(())
}
