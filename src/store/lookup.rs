//! What a call needs to know before it can begin.

use queen_engine::discovery::Discovery;

use super::cursor::{self, Located};
use super::discovery;
use super::group::{self, Group};
use super::identity::{self, Identity};
use super::queue::{self, Queue};
use super::spi::Under;
use crate::error::Result;

/// What there is of a queue and a group.
pub struct ForPop {
    pub queue: Option<Queue>,
    pub group: Option<Group>,
    /// How far the group has looked, and the revision of that.
    pub discovery: (i64, Discovery),
}

impl ForPop {
    /// How transaction ids are stored.
    pub fn identity(&self) -> Result<Identity> {
        self.queue.as_ref().map_or_else(identity::current, |queue| Ok(queue.identity))
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
        Ok(ForPop { queue: queue_found, group, discovery: discovery.unwrap_or_default() })
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
        Ok(ForSettle { queue, identity, located: cursor::locate(locked, under)? })
    })
}
