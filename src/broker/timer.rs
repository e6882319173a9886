//! Timers that users name, of messages that come once or recur: scheduled, replaced, cancelled.
//! [`crate::broker::push::delayed`] moves them into the log when they are due.
//!
//! Called by `api::timer` and by [`crate::broker::bundle`]. The row of a timer is locked to the end
//! of the transaction that schedules, replaces, cancels or moves it; another transaction that names
//! the same timer waits for it.

use queen_engine::rights::Privilege;

use crate::broker::lookup;
use crate::broker::push::Message;
use crate::broker::push::delayed::moment_of;
use crate::broker::push::recurring::{self, Times};
use crate::broker::queue::find_or_auto_create;
use crate::broker::rights;
use crate::error::Result;
use crate::pg::clock::Moment;
use crate::pg::random::random;
use crate::store::timer;
use crate::wait::waiters::{self, PartitionHash, Topic};

/// A timer as it was scheduled.
#[derive(Debug)]
pub struct Scheduled {
    /// There was no timer of its key.
    pub is_new: bool,
    pub transaction_id: String,
    /// As it was asked for. A moment that is past stands in the table as the present one.
    pub deliver_at: Moment,
}

/// Schedule `message` under `key`, in place of what is scheduled under it. 42704 where the queue is
/// not there and may not be created.
pub fn schedule(key: &str, message: &Message, deliver_at: Moment) -> Result<Scheduled> {
    let queue = find_or_auto_create(&message.to.queue)?;
    // Of each group, one session learns of the moment, and moves the message when it is due.
    waiters::touch(Topic::queue(&queue.name), PartitionHash::ANY);
    let given = message.transaction_id.as_deref().map(str::to_owned);
    let transaction_id =
        given.unwrap_or_else(|| format!("timer-{:016x}{:016x}", random(), random()));
    let moment = moment_of(&queue, deliver_at)?;
    let (is_new, _) = message.as_timer(&queue, key, &transaction_id, moment).replace();
    Ok(Scheduled { is_new, transaction_id, deliver_at })
}

/// Let `message` recur by this schedule under `key`, in place of what is scheduled under it. A
/// message that recurs by the same schedule under this key goes on as it did, with the new content.
/// Otherwise it comes first after `now`. 22023 where it never comes; otherwise as [`schedule`].
pub fn every(key: &str, message: &Message, times: &Times, now: Moment) -> Result<Scheduled> {
    // Before the queue is created.
    times.first(now)?;
    let queue = find_or_auto_create(&message.to.queue)?;
    waiters::touch(Topic::queue(&queue.name), PartitionHash::ANY);
    let deliver_at = times.first(moment_of(&queue, now)?)?;
    let transaction_id = recurring::transaction_id(key, deliver_at);
    let mut timer = message.as_timer(&queue, key, &transaction_id, deliver_at);
    timer.recurrence = Some(times.recurrence().clone());
    let (is_new, deliver_at) = timer.replace();
    Ok(Scheduled { is_new, transaction_id, deliver_at })
}

/// Take a timer out; returns its transaction_id and its moment. None: there is no such timer, or no
/// such queue.
pub fn cancel(queue: &str, key: &str) -> Result<Option<(String, Moment)>> {
    rights::require(Privilege::Push, queue)?;
    let queue = lookup::queue_named(queue)?;
    Ok(queue.and_then(|queue| timer::cancel(queue.id, key)))
}
