//! Topics: a message that is published on one is pushed to each queue that is bound to it. What a
//! pattern matches is in [`queen_engine::topic`].
//!
//! Called by `api::topic`. A session remembers all bindings, so most publishes read none of their
//! rows. It hears of a change no later than it could see it. A publish pushes to its queues in
//! ascending order of their names, as any push of several messages, so it waits where such a push
//! would.

use std::rc::Rc;

use queen_engine::rights::Privilege;
use queen_engine::topic::Bindings;

use crate::broker::push::{Destination, Message, Pushed, push};
use crate::broker::{lookup, rights};
use crate::error::{Error, Result};
use crate::pg::allocator;
use crate::pg::row_cache::RowCache;
use crate::settings;
use crate::store::binding;

thread_local! {
    static BINDINGS: RowCache<(), Rc<Bindings>> = RowCache::weighed(1, |all| all.size());
}

/// The bindings as they are at this moment; in REPEATABLE READ, as the transaction sees them.
fn bindings() -> Result<Rc<Bindings>> {
    let read = |under: &_| Ok(Some(Rc::new(Bindings::new(binding::all(under)))));
    let found = BINDINGS.with(|all| all.get((), read))?;
    Ok(found.unwrap_or_default())
}

/// Bind the queue to the topics that the pattern matches. False if it was bound so already. The
/// queue need not exist; with `queen_mq.auto_create` off it must (42704). Waits for a transaction
/// that is binding it so.
pub fn bind(pattern: &str, queue: &str) -> Result<bool> {
    rights::require(Privilege::Manage, queue)?;
    if !settings::auto_create() && lookup::queue_named(queue)?.is_none() {
        return Err(Error::no_such_queue(queue));
    }
    Ok(binding::insert(pattern, queue))
}

/// Undo a binding. False if there is none. Waits for a transaction that is undoing it.
pub fn unbind(pattern: &str, queue: &str) -> Result<bool> {
    rights::require(Privilege::Manage, queue)?;
    Ok(binding::delete(pattern, queue))
}

/// Push a message to each queue that is bound to the topic. `message` is what is pushed to a queue
/// of this name. Returns what became of each, in ascending order of the queues. Errors are those
/// of a push: the caller must have the privilege on each of them.
pub fn publish(topic: &str, message: impl Fn(&str) -> Message) -> Result<Vec<(Rc<str>, Pushed)>> {
    let bindings = bindings()?;
    let queues = bindings.queues_of(topic);
    let messages: Vec<Message> =
        allocator::list(queues.len(), queues.into_iter().map(|queue| Ok(message(queue))))?;
    let pushed = push(&allocator::list(messages.len(), messages.iter().map(Ok))?)?;
    let queues = messages.iter().map(|Message { to: Destination { queue, .. }, .. }| queue.clone());
    Ok(queues.zip(pushed).collect())
}
