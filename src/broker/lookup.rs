//! What a call looks up before it can begin: a queue, a queue and a group, what a pop or a
//! settlement needs. Sessions remember queues and groups, so most calls read no row for them.
//!
//! Before it looks, a call asks for the privilege that it needs ([`crate::broker::rights`]):
//! [`for_pop`] does so for its callers, others ask where they begin.
//!
//! A look-up takes no lock, but for those that say so, and but for the first one after a restore
//! ([`crate::broker::restore`]).

use std::collections::HashSet;

use queen_engine::cursor::Start;
use queen_engine::discovery::Discovery;
use queen_engine::lease::{Handle, LeaseId};
use queen_engine::receipt::Receipt;
use queen_engine::rights::Privilege;

use crate::broker::{restore, rights};
use crate::error::Result;
use crate::pg::changes;
use crate::pg::clock::{self, Moment};
use crate::pg::row_cache::RowCache;
use crate::pg::snapshot::{ActiveSnapshot, one_snapshot_per_transaction};
use crate::store::cursor_or_claim::{self, LockedCursor, RowVerdict};
use crate::store::discovery;
use crate::store::group::{self, Group};
use crate::store::identity::Identity;
use crate::store::lease_set::Covered;
use crate::store::located::Located;
use crate::store::queue::{self, Queue, StoredQueue};
use crate::store::receipt;
use crate::store::tally;
use crate::store::timer;

thread_local! {
    static QUEUES: RowCache<String, Queue> = RowCache::of(REMEMBERED);
    static PAIRS: RowCache<(String, String), (Queue, Group)> = RowCache::of(REMEMBERED);
    /// Lists of queues, each with a group that is registered in all of them.
    static REGISTERED: RowCache<String, ()> = RowCache::of(REMEMBERED);
}

/// How many queues, and how many pairs of a queue and a group, a session remembers.
const REMEMBERED: usize = 1024;

/// The queue of this name, as the snapshot shows it.
pub fn find_queue(name: &str, under: &ActiveSnapshot) -> Result<Option<Queue>> {
    queue::find(name, under).map(|stored| restore::adopted(stored, under)).transpose()
}

/// The queue of this name: as it is at this moment; in REPEATABLE READ, as the transaction sees it.
pub fn queue_named(name: &str) -> Result<Option<Queue>> {
    QUEUES.with(|rows| rows.get(name.to_owned(), |under| find_queue(name, under)))
}

/// The queue of this name, created with the default options if there is none. Waits for another
/// transaction that is creating it.
pub fn find_or_create_queue(name: &str, now: Moment) -> Result<Queue> {
    let mut has_tried = false;
    loop {
        if let Some(queue) = queue_named(name)? {
            return Ok(queue);
        }
        if has_tried {
            queue::refuse_suppression();
        }
        has_tried = true;
        queue::create(name, now, restore::current()?);
        pgrx::check_for_interrupts!();
    }
}

/// The queue of this name, its row locked `FOR UPDATE`: no other transaction changes its options
/// before this one ends.
///
/// Lock order: the table `identity` before rows of queues. So this looks the queue up first, which
/// sets the identity after a restore, and locks the row only then.
pub fn lock_queue(name: &str) -> Result<Option<Queue>> {
    locked(name, queue::lock)
}

/// The queue of this name, its row shared with others that do so: no transaction changes its
/// options before this one ends. Lock order: as [`lock_queue`].
pub fn share_queue(name: &str) -> Result<Option<Queue>> {
    locked(name, queue::share)
}

fn locked(name: &str, lock: impl Fn(&str) -> Option<StoredQueue>) -> Result<Option<Queue>> {
    queue_named(name)?;
    let Some(stored) = lock(name) else { return Ok(None) };
    ActiveSnapshot::new_snapshot(|under| restore::adopted(stored, under)).map(Some)
}

/// All queues, by name.
pub fn all_queues(under: &ActiveSnapshot) -> Result<Vec<Queue>> {
    restore::all_adopted(queue::all(under), under)
}

/// The identity of this queue, or, without one, the identity in force.
fn identity_of(queue: Option<&Queue>) -> Result<Identity> {
    queue.map_or_else(restore::current, |queue| Ok(queue.identity))
}

/// What a pop goes by, all as of one snapshot but for the queue and the group themselves.
pub struct ForPop {
    pub queue: Option<Queue>,
    pub group: Option<Group>,
    /// How far the group's search for work has come, and the revision of that state.
    pub discovery: (i64, Discovery),
    /// The moment of the queue's next timer, which may be over.
    pub next_timer: Option<Moment>,
}

impl ForPop {
    /// How transaction ids are stored.
    pub fn identity(&self) -> Result<Identity> {
        identity_of(self.queue.as_ref())
    }

    /// Whether pops of the group find nothing: the queue is paused, or the group.
    pub fn is_paused(&self) -> bool {
        self.queue.as_ref().is_some_and(|queue| queue.is_paused)
            || self.group.as_ref().is_some_and(|group| group.is_paused)
    }

    /// Whether a message is due to enter the log.
    pub fn has_due_timer(&self) -> bool {
        self.next_timer.is_some_and(|next| next <= clock::now())
    }
}

/// The queue with the options that are in effect for the group.
fn for_group(queue: Queue, group: &Group) -> Queue {
    Queue { options: queue.options.with(&group.own), ..queue }
}

/// A queue, with the options that are in effect for a group, and the group, as they are at this
/// moment; in REPEATABLE READ, as the transaction sees them. Both are read under one snapshot: a
/// change of the queue's ordering may give the group a new id, and one must not be seen without the
/// other.
pub fn queue_and_group(queue: &str, group: &str) -> Result<(Option<Queue>, Option<Group>)> {
    let mut seen = (None, None);
    let key = (queue.to_owned(), group.to_owned());
    let both = PAIRS.with(|rows| {
        rows.get(key, |under| {
            seen = (find_queue(queue, under)?, group::find(queue, group, under)?);
            let both = seen.0.clone().zip(seen.1.clone());
            Ok(both.map(|(queue, group)| (for_group(queue, &group), group)))
        })
    })?;
    // A queue or a group that is not there is not remembered.
    Ok(if both.is_some() { both.unzip() } else { seen })
}

/// Whether the group of this name is registered in each of the queues; `need_queues`: and whether
/// these exist. At this moment; in REPEATABLE READ, as the transaction sees it.
pub fn is_registered_in_all(queues: &[&str], group: &str, need_queues: bool) -> Result<bool> {
    let read = |under: &ActiveSnapshot| {
        for queue in queues {
            let is_missing = need_queues && find_queue(queue, under)?.is_none();
            if is_missing || group::find(queue, group, under)?.is_none() {
                return Ok(None);
            }
        }
        Ok(Some(()))
    };
    // No name has control characters.
    let key = format!("{}\n{group}\n{need_queues}", queues.join("\n"));
    Ok(REGISTERED.with(|rows| rows.get(key, read))?.is_some())
}

/// Whether the group is still what it was when it was looked up, and read in the same way: at this
/// moment, also in REPEATABLE READ. A transaction that has the shares of
/// `cursor::try_share_first_reads` keeps it so to its end, so it asks after it has them.
pub fn is_current(queue: &Queue, group: &Group) -> Result<bool> {
    let (now, group_now) = match one_snapshot_per_transaction() {
        true => ActiveSnapshot::latest_snapshot(|under| {
            let now = find_queue(&queue.name, under)?;
            Ok((now, group::find(&queue.name, &group.name, under)?))
        })?,
        false => queue_and_group(&queue.name, &group.name)?,
    };
    Ok(now.zip(group_now).is_some_and(|(now, group_now)| {
        group_now.id == group.id
            && group_now.is_ordered(&now.options) == group.is_ordered(&queue.options)
    }))
}

/// The moment of the queue's next timer.
pub fn next_timer(queue: &Queue, under: &ActiveSnapshot) -> Option<Moment> {
    timer::next(queue.id, tally::timers_from(queue, clock::now(), under), under)
}

/// Look up what a pop goes by, for a caller that may pop from the queue (42501).
pub fn for_pop(queue: &str, group: &str) -> Result<ForPop> {
    rights::require(Privilege::Pop, queue)?;
    let (mut queue, group) = queue_and_group(queue, group)?;
    ActiveSnapshot::new_snapshot(|under| {
        let discovery = match &group {
            Some(group) => discovery::newest(group.id, under)?,
            None => None,
        };
        let next_timer = queue.as_ref().and_then(|queue| next_timer(queue, under));
        let discovery = discovery.unwrap_or_default();
        if let Some(queue) = &mut queue {
            queue.identity = restore::above(queue.identity, discovery.1.reached())?;
        }
        Ok(ForPop { queue, group, discovery, next_timer })
    })
}

/// What a settlement goes by: the cursors and claims of one lease, locked, with their newest
/// states.
pub struct ForSettle {
    /// None: the group has been removed, and its leases with it; or the queue has.
    pub queue: Option<Queue>,
    /// None: the group has been removed.
    pub queue_name: Option<String>,
    pub identity: Identity,
    pub located: Vec<Located>,
    /// Claims of the lease that are gone, each with the receipt that the lease has left.
    pub gone: Vec<(Located, Receipt)>,
}

/// What [`lock_leased`] has locked.
pub struct LockedRows {
    pub rows: Vec<LockedCursor>,
    /// Some are there, and were left out.
    pub has_left_out: bool,
    /// A queue of which these are that the caller may not pop from.
    pub denied: Option<String>,
}

/// Lock the cursors and claims of leases, which are given in ascending order, waiting for the
/// transactions that hold them.
///
/// A lease id can be made up. So what belongs to a queue that the caller may not pop from is left
/// out, before anything is locked or waited for. Of a group that has been removed, the queue is not
/// known any more: there `is_leased` must say of an id that a lease which the caller names is known
/// there, unless the caller may pop from all queues.
///
/// Lock order: the table `identity` before rows of cursors and claims. So the queue of a group is
/// looked up before the first row of the group is locked, which sets the identity after a restore:
/// the call that sets it updates claims.
pub fn lock_leased(cursors: &[u64], is_leased: impl Fn(u64) -> Result<bool>) -> Result<LockedRows> {
    let (mut granted, mut denied, mut has_left_out) = (None, None, false);
    let rows = cursor_or_claim::lock_unsettled(cursors, |id, group| {
        if granted == Some(group) {
            return Ok(RowVerdict::Lock);
        }
        let changes = changes::count();
        match group::names_of(group)? {
            Some((queue, name)) => {
                if !rights::may(Privilege::Pop, &queue)? {
                    (denied, has_left_out) = (Some(queue), true);
                    return Ok(RowVerdict::PassBy);
                }
                granted = Some(group);
                queue_and_group(&queue, &name)?;
            }
            None if rights::sees(Privilege::Pop, None)? => granted = Some(group),
            None if is_leased(id)? => return Ok(RowVerdict::Lock),
            None => {
                has_left_out = true;
                return Ok(RowVerdict::PassBy);
            }
        }
        Ok(if changes::count() == changes { RowVerdict::Lock } else { RowVerdict::LookAgain })
    })?;
    Ok(LockedRows { rows, has_left_out, denied })
}

/// Lock the cursors and claims that the lease covers, which are given ascending by id, and read
/// their states after that. Waits for the transactions that hold them. It is the caller who finds
/// out whether there is such a lease.
///
/// Error 42501 for a lease of a queue that the caller may not pop from. None for an id that is no
/// lease of that queue, and only names one of its cursors.
pub fn for_settle(lease: LeaseId, covered: &[Covered]) -> Result<Option<ForSettle>> {
    let ids: Vec<u64> = covered.iter().map(|covered| covered.id).collect();
    // A set was found by its whole lease id.
    let is_leased = |id| match lease.handle() {
        Some(Handle::Set(_)) => Ok(true),
        _ => cursor_or_claim::knows(id, lease),
    };
    let LockedRows { rows: locked, has_left_out, denied } = lock_leased(&ids, is_leased)?;
    if has_left_out {
        // All that a lease covers is of one group, so the first says enough.
        return match (denied, ids.first()) {
            (Some(queue), Some(first)) if is_leased(*first)? => {
                Err(rights::refusal(Privilege::Pop, Some(&queue)))
            }
            _ => Ok(None),
        };
    }
    let mut gone = Vec::new();
    if locked.len() < covered.len() {
        let here: HashSet<u64> = locked.iter().map(|locked| locked.id).collect();
        let missing = covered.iter().copied().filter(|covered| !here.contains(&covered.id));
        gone = receipt::find_of_gone(lease, &missing.collect::<Vec<_>>())?;
    }
    let group = locked.first().map(|locked| locked.group);
    let group = group.or_else(|| gone.first().map(|(located, _)| located.group));
    let names = group.map(group::names_of).transpose()?.flatten();
    let found = names.as_ref().map(|(queue, group)| queue_and_group(queue, group)).transpose()?;
    let queue = found.and_then(|(queue, _)| queue);
    let queue_name = names.map(|(queue, _)| queue);
    ActiveSnapshot::new_snapshot(|under| {
        let identity = identity_of(queue.as_ref())?;
        // A cursor or claim with a lease has a state, so the start of the group does not matter.
        let start = Start::default();
        let located = cursor_or_claim::locate(locked, |_| &start, under)?;
        Ok(Some(ForSettle { queue, queue_name, identity, located, gone }))
    })
}
