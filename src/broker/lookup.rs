//! What a call needs to know before it can begin.

use std::collections::HashSet;

use queen_engine::cursor::Start;
use queen_engine::discovery::Discovery;
use queen_engine::lease::LeaseId;
use queen_engine::message::MessageId;
use queen_engine::receipt::Receipt;

use crate::error::Result;
use crate::pg::clock::{self, Moment};
use crate::pg::row_cache::RowCache;
use crate::pg::spi::{ActiveSnapshot, one_snapshot_per_transaction};
use crate::store::cursor::{self, Located};
use crate::store::discovery;
use crate::store::group::{self, Group};
use crate::store::identity::{self, Identity};
use crate::store::queue::{self, Queue};
use crate::store::receipt;
use crate::store::timer;

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

thread_local! {
    static KNOWN: RowCache<(String, String), (Queue, Group)> = RowCache::of(REMEMBERED);
}

/// Pairs of a queue and a group that a session remembers.
const REMEMBERED: usize = 1024;

/// A queue and a group as they are at this moment, or, in REPEATABLE READ, as the transaction sees them:
/// both at the same. What the queue says of ordering goes with the id of the group.
pub fn queue_and_group(queue: &str, group: &str) -> Result<(Option<Queue>, Option<Group>)> {
    let mut seen = (None, None);
    let key = (queue.to_owned(), group.to_owned());
    let both = KNOWN.with(|rows| {
        rows.get(key, |under| {
            seen = (queue::find(queue, under)?, group::find(queue, group, under)?);
            Ok(seen.0.clone().zip(seen.1.clone()))
        })
    })?;
    // What is not there is not remembered.
    Ok(if both.is_some() { both.unzip() } else { seen })
}

/// Whether the group is still what it was when it was looked up, and read in the same way: at this
/// moment, also in REPEATABLE READ. A transaction that has the shares of
/// `cursor::try_share_first_reads` keeps it so to its end, so it asks after it has them.
pub fn is_current(queue: &Queue, group: &Group) -> Result<bool> {
    let (now, group_now) = match one_snapshot_per_transaction() {
        true => ActiveSnapshot::latest_snapshot(|under| {
            let now = queue::find(&queue.name, under)?;
            Ok((now, group::find(&queue.name, &group.name, under)?))
        })?,
        false => queue_and_group(&queue.name, &group.name)?,
    };
    Ok(now.zip(group_now).is_some_and(|(now, group_now)| {
        group_now.id == group.id
            && group_now.is_ordered(&now.options) == group.is_ordered(&queue.options)
    }))
}

pub fn for_pop(queue: &str, group: &str) -> Result<ForPop> {
    let (mut queue, group) = queue_and_group(queue, group)?;
    ActiveSnapshot::new_snapshot(|under| {
        let discovery = match &group {
            Some(group) => discovery::newest(group.id, under)?,
            None => None,
        };
        let next_timer = queue.as_ref().and_then(|queue| timer::next(queue.id, under));
        let discovery = discovery.unwrap_or_default();
        if let Some(queue) = &mut queue
            && queue.identity.is_behind(discovery.1.reached())
        {
            queue.identity = identity::adopt_beyond()?;
        }
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
    ActiveSnapshot::new_snapshot(|under| {
        let identity = queue.as_ref().map_or_else(identity::current, |queue| Ok(queue.identity))?;
        // Who holds a lease has a state, so the start is not looked at.
        let start = Start::default();
        let located = cursor::locate(locked, |_| &start, under)?;
        Ok(ForSettle { queue, identity, located, gone })
    })
}
