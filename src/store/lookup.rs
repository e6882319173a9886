//! What a call needs to know before it can begin.

use queen_engine::cursor::Start;
use queen_engine::discovery::Discovery;

use super::clock::{self, Moment};
use super::cursor::{self, Located};
use super::discovery;
use super::group::{self, Group};
use super::identity::{self, Identity};
use super::queue::{self, Queue};
use super::spi::Under;
use super::timer;
use crate::error::Result;

/// What there is of a queue and a group.
pub struct ForPop {
    pub queue: Option<Queue>,
    pub group: Option<Group>,
    /// How far the group has looked, and the revision of that.
    pub discovery: (i64, Discovery),
    /// The moment of the queue's next timer.
    pub next_timer: Option<Moment>,
}

impl ForPop {
    /// How transaction ids are stored.
    pub fn identity(&self) -> Result<Identity> {
        self.queue.as_ref().map_or_else(identity::current, |queue| Ok(queue.identity))
    }

    /// Whether a message is due to enter the log.
    pub fn has_due_timer(&self) -> bool {
        self.next_timer.is_some_and(|next| next <= clock::now())
    }
}

pub fn for_pop(queue: &str, group: &str) -> Result<ForPop> {
    Under::new_snapshot(|under| {
        let queue_found = queue::find(queue, under)?;
        let group = group::find(queue, group, under)?;
        let discovery = match &group {
            Some(group) => discovery::newest(group.id, under)?,
            None => None,
        };
        let next_timer = queue_found.as_ref().and_then(|queue| timer::next(queue.id, under));
        let discovery = discovery.unwrap_or_default();
        Ok(ForPop { queue: queue_found, group, discovery, next_timer })
    })
}

/// Cursors of one group, ascending, locked, with their newest states.
pub struct ForSettle {
    /// None: the group has been removed, and its leases with it.
    pub queue: Option<Queue>,
    pub identity: Identity,
    pub located: Vec<Located>,
}

/// Lock the cursors, which are ascending, waiting for whoever has them, and read what they are.
pub fn for_settle(cursors: &[u64]) -> Result<ForSettle> {
    let locked = cursor::lock(cursors)?;
    Under::new_snapshot(|under| {
        let name = locked.first().and_then(|&(_, group, _)| group::queue_of(group, under));
        let queue = match name {
            Some(name) => queue::find(&name, under)?,
            None => None,
        };
        let identity = queue.as_ref().map_or_else(identity::current, |queue| Ok(queue.identity))?;
        // Who holds a lease has a state, so the start is not looked at.
        let start = Start::default();
        let located = cursor::locate(locked, |_| &start, under)?;
        Ok(ForSettle { queue, identity, located })
    })
}
