//! Transaction ids across a restore.
//!
//! A dump carries the transaction ids of the cluster that it was taken from. In the cluster where
//! it is restored, the next ids may be lower. So the tables store the cluster's own id plus an
//! offset ([`Identity`]), and the offset is raised where new ids would not exceed every stored one.
//!
//! Two signs tell a call of that, when it looks up a queue or reads a state: a row that another
//! installation wrote, which is so after a restore; and a stored id above the next one. The second
//! sign comes when a clone that ran ahead was dumped and loaded back into the tables of its
//! original, or when an administrator has set the cluster's counter back. The first call that finds
//! a sign sets the identity anew, under a lock on the table `queen_mq.identity`. Other calls that
//! find it wait for this one transaction.
//!
//! The cluster's system identifier would tell neither: pg_upgrade changes it and keeps the
//! transaction ids, and a clone has the one of its original and counts by itself.

use std::cell::Cell;

use crate::error::{Error, Result};
use crate::pg::session_cache::SessionCache;
use crate::pg::snapshot::ActiveSnapshot;
use crate::pg::{changes, clock, transaction};
use crate::store::identity::{self, Identity, IdentityLock};
use crate::store::queue::{Queue, StoredQueue};
use crate::store::{discovery, group, segment, tally};

/// The distance between the highest id of a dump and new ids: more than any cluster could have had
/// running. The search for the highest id leaves out holes of cursors. A hole above the new ids
/// does no harm: a message that is pushed now has a higher segment id than any position, so it is
/// read in order of id, whatever its transaction, and the holes of that read's snapshot replace the
/// old ones.
const GAP: u64 = 1 << 32;
/// No cluster counts this far, so the extension has not stored a higher id.
const HIGHEST_LEGAL: u64 = 1 << 61;

/// Number of queues that a session remembers to have checked. Large: the worker visits all of them
/// again and again.
const CHECKED: usize = 1 << 16;

thread_local! {
    /// By queue: the installation and the offset that it was checked with.
    static KNOWN_GOOD: SessionCache<i64, (i64, u64)> = SessionCache::of(CHECKED);
    /// A next transaction id that the session has read. The real one is not lower.
    static NEXT: Cell<u64> = const { Cell::new(0) };
}

/// The identity in force, for a call that finds no queue to tell it.
pub fn current() -> Result<Identity> {
    match identity::in_force() {
        Some(identity) => Ok(identity),
        None => adopt(Sign::ForeignRow),
    }
}

/// The queue with the identity in force: that of its row, or a new one where the row gives a sign,
/// or where an id that is stored of the queue exceeds the next one. A session checks each queue
/// once.
pub fn adopted(stored: StoredQueue, under: &ActiveSnapshot) -> Result<Queue> {
    let identity = in_force_for(&stored, stored.identity(), under)?;
    Ok(stored.with(identity))
}

/// [`adopted`] for all queues.
pub fn all_adopted(all: Vec<StoredQueue>, under: &ActiveSnapshot) -> Result<Vec<Queue>> {
    // The identity that the first row of another installation leads to is right for all of them.
    let mut foreign = None;
    let adopted = |stored: StoredQueue| {
        let identity = in_force_for(&stored, stored.identity().or(foreign), under)?;
        foreign = foreign.or(stored.identity().is_none().then_some(identity));
        Ok(stored.with(identity))
    };
    all.into_iter().map(adopted).collect()
}

/// The identity in force for a queue, of which `known` says so far what it is.
fn in_force_for(
    stored: &StoredQueue,
    known: Option<Identity>,
    under: &ActiveSnapshot,
) -> Result<Identity> {
    match known {
        None => adopt(Sign::ForeignRow),
        Some(identity) => checked(identity, stored, under),
    }
}

/// This identity, unless `stored`, an id that was found, exceeds the next one: then a new identity.
/// No id that was stored under the identity in force does.
pub fn above(identity: Identity, stored: u64) -> Result<Identity> {
    match exceeds_next(stored, identity) {
        true => adopt(Sign::IdAboveNext),
        false => Ok(identity),
    }
}

/// This identity, if it was right for the queue when the session first used it: from then on new
/// ids exceed those that are stored. Otherwise a new identity.
fn checked(identity: Identity, stored: &StoredQueue, under: &ActiveSnapshot) -> Result<Identity> {
    let with = (identity::own(), identity.xid_offset);
    let queue = stored.id();
    if KNOWN_GOOD.with(|known| known.change(&queue, |before| *before == with)) == Some(true) {
        return Ok(identity);
    }
    let in_log = segment::newest_xid(queue).unwrap_or(0);
    let counted = tally::newest(queue, under)?.1.reached();
    let starts = group::newest_start(stored.name(), under)?;
    if exceeds_next(in_log.max(counted).max(starts), identity) {
        return adopt(Sign::IdAboveNext);
    }
    KNOWN_GOOD.with(|known| known.keep(queue, with));
    Ok(identity)
}

fn exceeds_next(stored: u64, identity: Identity) -> bool {
    let exceeds = |next: u64| stored > next.saturating_add(identity.xid_offset);
    exceeds(NEXT.get()) && exceeds(read_next())
}

fn read_next() -> u64 {
    let next = identity::next_xid();
    NEXT.set(next);
    next
}

/// The sign by which a call has found that the identity is to be set anew.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Sign {
    /// A row that another installation wrote.
    ForeignRow,
    /// A stored id above the next one.
    IdAboveNext,
}

/// Set the identity so that new transaction ids exceed every stored one, and no lease is alive. The
/// lock on the table `identity` is kept to the end of the transaction, unless another session has
/// set the identity in the meantime. In REPEATABLE READ that is 40001, because that session has
/// replaced the row.
fn adopt(sign: Sign) -> Result<Identity> {
    if transaction::is_read_only() {
        return provisional();
    }
    let lock = IdentityLock::take();
    if let Some(identity) = set_by_another(sign)? {
        lock.give_back();
        return Ok(identity);
    }
    let identity = above_all()?;
    lock.set(identity);
    Ok(identity)
}

/// The identity in force, if another session has set it since the sign was found; None if this one
/// has to.
fn set_by_another(sign: Sign) -> Result<Option<Identity>> {
    let Some(identity) = identity::in_force() else { return Ok(None) };
    let is_set = !identity::has_stray_queue(identity)
        && (sign == Sign::ForeignRow || !exceeds_next(highest()?, identity));
    Ok(is_set.then_some(identity))
}

/// The identity that the next transaction that writes would set, for a standby or a READ ONLY
/// transaction. Views use it; the session does not remember it.
fn provisional() -> Result<Identity> {
    changes::count_one();
    above_all()
}

/// An identity under which new transaction ids exceed every stored one. The offset never falls.
fn above_all() -> Result<Identity> {
    let before = identity::own_offset();
    let needed = (highest()? + GAP).saturating_sub(read_next());
    let xid_offset = needed.max(before.unwrap_or(0));
    Ok(Identity { xid_offset, void_before: clock::now() })
}

/// The highest transaction id that is stored. An error where no cluster can have assigned it.
fn highest() -> Result<u64> {
    let states = [discovery::highest_xid()?, tally::highest_xid()?, group::highest_xid()?];
    match states.into_iter().fold(identity::highest_xid_in_columns(), u64::max) {
        highest if highest < HIGHEST_LEGAL => Ok(highest),
        highest => Err(Error::corrupt(format!("{highest} is stored as a transaction id"))),
    }
}
