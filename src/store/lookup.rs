//! What a call needs to know before it can begin.

use std::collections::HashSet;

use queen_engine::cursor::Start;
use queen_engine::discovery::Discovery;
use queen_engine::lease::LeaseId;
use queen_engine::message::MessageId;
use queen_engine::receipt::Receipt;

use super::clock::{self, Moment};
use super::cursor::{self, Located};
use super::discovery;
use super::group::{self, Group};
use super::identity::{self, Identity};
use super::queue::{self, Queue};
use super::receipt;
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
    let (queue, group) = (queue::known(queue)?, group::known(queue, group)?);
    Under::new_snapshot(|under| {
        let discovery = match &group {
            Some(group) => discovery::newest(group.id, under)?,
            None => None,
        };
        let next_timer = queue.as_ref().and_then(|queue| timer::next(queue.id, under));
        let discovery = discovery.unwrap_or_default();
        Ok(ForPop { queue, group, discovery, next_timer })
    })
}

/// Cursors and claims of one lease, locked, with their newest states.
pub struct ForSettle {
    /// None: the group has been removed, and its leases with it.
    pub queue: Option<Queue>,
    pub identity: Identity,
    pub located: Vec<Located>,
    /// Claims of the lease that are gone, with what it left there.
    pub gone: Vec<(Located, Receipt)>,
}

/// Lock what the lease covers, which is ascending, waiting for whoever has it, and read what it is.
pub fn for_settle(lease: LeaseId, cursors: &[u64]) -> Result<ForSettle> {
    let locked = cursor::lock_unsettled(cursors)?;
    let mut gone = Vec::new();
    if locked.len() < cursors.len() {
        let here: HashSet<u64> = locked.iter().map(|locked| locked.id).collect();
        let is_here = |id: &u64| here.contains(id);
        for id in cursors.iter().copied().filter(|id| !is_here(id)) {
            if let Some((group, partition, receipt)) = receipt::find_of_claim(id, lease)? {
                let message = MessageId::from_sql(0);
                gone.push((Located::claim(id, group, &partition, message), receipt));
            }
        }
    }
    let group = locked.first().map(|locked| locked.group);
    let group = group.or_else(|| gone.first().map(|(located, _)| located.group));
    let name = group.map(group::queue_of).transpose()?.flatten();
    let queue = name.as_deref().map(queue::known).transpose()?.flatten();
    Under::new_snapshot(|under| {
        let identity = queue.as_ref().map_or_else(identity::current, |queue| Ok(queue.identity))?;
        // Who holds a lease has a state, so the start is not looked at.
        let start = Start::default();
        let located = cursor::locate(locked, |_| &start, under)?;
        Ok(ForSettle { queue, identity, located, gone })
    })
}
