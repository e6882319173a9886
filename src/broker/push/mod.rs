//! The verb push: messages are appended to the log, in segments, or scheduled for later.
//!
//! Called by `api::push` and by [`crate::broker::bundle`]. Dead letters that are replayed go into
//! the log by [`crate::broker::dead_letter`].
//!
//! **The push rule.** A transaction first gets its xid, then draws a segment's id, then writes the
//! segment's row. So a segment with an id below that of a committed one belongs to a transaction
//! that had its xid before that commit. Readers rely on it (see `queen_engine::holes`).
//!
//! **Locks.** A push locks nothing that other pushes need, and waits in two cases only: for a
//! transaction that is pushing one of its transaction_ids, and for one that is creating its queue.
//! Destinations come in ascending order, so that two calls wait for each other's transaction_ids in
//! one order. With `max_depth`, a push may count what waits in the queue (see [`max_depth`]).

pub mod delayed;
pub mod max_depth;
mod message;
pub mod notify;
pub mod recurring;
mod segmenting;

use std::collections::{BTreeMap, HashMap};
use std::rc::Rc;

pub use message::{Destination, Message, PushStatus, Pushed};

use crate::broker::push::segmenting::push_to_partition;
use crate::broker::queue::find_or_auto_create;
use crate::error::Result;
use crate::pg::allocator;
use crate::store::queue::Queue;

/// Bytes of a message in the lists that a push makes of it, beyond its transaction_id.
const ON_ITS_WAY: usize = 600;

/// Push `messages`, in their order within each partition. Returns what became of each, in their
/// order. QN020 where a queue is full; 42704 for a queue that is not there and may not be created.
pub fn push(messages: &[&Message]) -> Result<Vec<Pushed>> {
    let ids = messages.iter().filter_map(|message| message.transaction_id.as_ref());
    let ids: usize = ids.map(|id| id.len()).sum();
    allocator::ensure(messages.len() * ON_ITS_WAY + 3 * ids)?;
    if let Some(to) = only_destination(messages) {
        let queue = find_or_auto_create(&to.queue)?;
        max_depth::admit(&queue, &to.partition, messages)?;
        return push_to_partition(&queue, &to.partition, messages);
    }
    let mut places: BTreeMap<&Destination, Vec<usize>> = BTreeMap::new();
    for (at, message) in messages.iter().enumerate() {
        places.entry(&message.to).or_default().push(at);
    }
    let mut pushed = allocator::room(messages.len())?;
    pushed.resize(messages.len(), None);
    let mut queues: HashMap<&str, Queue> = HashMap::new();
    for (Destination { queue: name, partition }, places) in places {
        let queue = match queues.remove(&**name) {
            Some(known) => known,
            None => find_or_auto_create(name)?,
        };
        let there: Vec<&Message> = places.iter().map(|&at| messages[at]).collect();
        max_depth::admit(&queue, partition, &there)?;
        for (at, result) in places.iter().zip(push_to_partition(&queue, partition, &there)?) {
            pushed[*at] = Some(result);
        }
        queues.insert(name, queue);
    }
    Ok(pushed.into_iter().flatten().collect())
}

/// Where all messages go; None if there are several destinations, or no message.
fn only_destination<'a>(messages: &[&'a Message]) -> Option<&'a Destination> {
    let to = &messages.first()?.to;
    let is_there = |other: &Destination| {
        let is_one = |a: &Rc<str>, b: &Rc<str>| Rc::ptr_eq(a, b) || a == b;
        is_one(&other.queue, &to.queue) && is_one(&other.partition, &to.partition)
    };
    messages.iter().all(|message| is_there(&message.to)).then_some(to)
}
