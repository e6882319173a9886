//! The verb push: messages are appended to the log, in segments, or scheduled for later.
//!
//! Called by `api::push` and by [`crate::broker::bundle`]. Dead letters that are replayed go into the
//! log by [`crate::broker::dead_letter`].
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
mod segmenting;

use std::collections::{BTreeMap, HashMap};
use std::rc::Rc;

use crate::broker::push::segmenting::push_to_partition;
use crate::broker::queue::find_or_auto_create;
use crate::error::Result;
use crate::pg::allocator;
use crate::pg::datum::Jsonb;
use crate::store::queue::Queue;

/// A queue and a partition, by their names.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Destination {
    pub queue: Rc<str>,
    pub partition: Rc<str>,
}

/// A message to be pushed, its parts checked.
#[derive(Clone, Debug)]
pub struct Message {
    pub to: Destination,
    pub payload: Jsonb,
    /// None: derived from the message's id.
    pub transaction_id: Option<String>,
    pub headers: Option<Jsonb>,
}

/// What became of a pushed message.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Pushed {
    /// The id of the message, or of the original that it duplicates. None: it is not in the log
    /// yet.
    pub message: Option<i64>,
    pub transaction_id: String,
    pub status: PushStatus,
    /// It duplicates a message that an earlier call pushed.
    pub was_stored_before: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PushStatus {
    /// In the log.
    Queued,
    /// Not stored: its transaction_id has been pushed before.
    Duplicate,
    /// In the table of timers.
    Scheduled,
}

impl PushStatus {
    /// What a user is told.
    pub fn name(self) -> &'static str {
        match self {
            PushStatus::Queued => "queued",
            PushStatus::Duplicate => "duplicate",
            PushStatus::Scheduled => "scheduled",
        }
    }
}

impl Pushed {
    fn scheduled(transaction_id: String) -> Self {
        let status = PushStatus::Scheduled;
        Self { message: None, transaction_id, status, was_stored_before: false }
    }

    fn duplicate_of(message: Option<i64>, transaction_id: String) -> Self {
        let status = PushStatus::Duplicate;
        Self { message, transaction_id, status, was_stored_before: true }
    }
}

/// Bytes of a message in the lists that a push makes of it, beyond its transaction_id.
const ON_ITS_WAY: usize = 600;

/// Push `messages`, in their order within each partition. Returns what became of each, in their
/// order. QN020 where a queue is full; 42704 for a queue that is not there and may not be created.
pub fn push(messages: &[&Message]) -> Result<Vec<Pushed>> {
    let ids = messages.iter().filter_map(|message| message.transaction_id.as_ref());
    let ids: usize = ids.map(String::len).sum();
    allocator::ensure(messages.len() * ON_ITS_WAY + 3 * ids)?;
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
        max_depth::admit(&queue, places.len())?;
        let there: Vec<&Message> = places.iter().map(|&at| messages[at]).collect();
        for (at, result) in places.iter().zip(push_to_partition(&queue, partition, &there)?) {
            pushed[*at] = Some(result);
        }
        queues.insert(name, queue);
    }
    Ok(pushed.into_iter().flatten().collect())
}
