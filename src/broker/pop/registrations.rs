//! What there is of the queues and the group that a call names, and the registrations of the group
//! by one call of a pop: in each of its queues.
//!
//! A call that takes from the first of its queues does not come to the others. It registers the
//! group there nevertheless, as of the beginning of the call. Otherwise the group would miss what
//! is pushed to them before a later call finds the first queue empty. A session remembers that a
//! group is registered in all queues of a list, so its later calls look nothing up for that.

use queen_engine::rights::Privilege;

use super::notices;
use crate::broker::group::beginning::Mode;
use crate::broker::group::register::Registration;
use crate::broker::lookup::{self, ForPop};
use crate::broker::rights;
use crate::error::{Error, Result};
use crate::settings;
use crate::store::group::Patience;

/// What there is of the queue and the group at this moment. Error 42704 where the queue is unknown
/// and `queen_mq.auto_create` is off.
pub fn find(queue: &str, group: &str) -> Result<ForPop> {
    let found = lookup::for_pop(queue, group)?;
    if found.queue.is_none() {
        if !settings::auto_create() {
            return Err(Error::no_such_queue(queue));
        }
        notices::queue_is_missing(queue);
    }
    Ok(found)
}

/// What the call will register a group with that some look has missed: what the group may read is
/// fixed from then on.
pub type PendingRegistration = Option<Box<Registration>>;

/// The registrations that a call has prepared and not written.
pub struct Registrations<'a> {
    queues: &'a [&'a str],
    group: &'a str,
    mode: Mode,
    /// By the queues.
    pub pending: Vec<PendingRegistration>,
    is_prepared: bool,
}

impl<'a> Registrations<'a> {
    /// Of a call that has prepared none. One of one queue prepares it when it looks at the queue.
    pub fn of(queues: &'a [&'a str], group: &'a str, mode: Mode) -> Self {
        let pending = queues.iter().map(|_| None).collect();
        Self { queues, group, mode, pending, is_prepared: queues.len() == 1 }
    }

    /// At the first look: fix what the group will read in the queues where it is not registered.
    /// Error 42501 where the caller may not pop from one of several queues; 42704 where one is
    /// unknown and `queen_mq.auto_create` is off.
    pub fn prepare(&mut self) -> Result<()> {
        if std::mem::replace(&mut self.is_prepared, true) {
            return Ok(());
        }
        for queue in self.queues {
            rights::require(Privilege::Pop, queue)?;
        }
        let need_queues = !settings::auto_create();
        if lookup::is_registered_in_all(self.queues, self.group, need_queues)? {
            return Ok(());
        }
        for (queue, pending) in self.queues.iter().zip(&mut self.pending) {
            let found = find(queue, self.group)?;
            if found.group.is_none() {
                let identity = found.identity()?;
                let new = Registration::prepare(queue, self.group, self.mode, identity)?;
                *pending = Some(Box::new(new));
            }
        }
        Ok(())
    }

    /// At the end of the call: register the group in the queues where that is left to do. It stays
    /// undone where another transaction is registering the group, or has since. Never waits.
    pub fn write_rest(&mut self) -> Result<()> {
        for (queue, pending) in self.queues.iter().zip(&mut self.pending) {
            let Some(registration) = pending.take() else { continue };
            let passes_by_messages = registration.passes_by_messages;
            let written = registration.write(queue, self.group, Patience::PassBy)?;
            if written.is_some() && passes_by_messages {
                notices::registered_as_new(queue, self.group);
            }
        }
        Ok(())
    }
}
