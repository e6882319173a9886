//! The locks that have a name of their own: each stands for something that has no row (yet) which a
//! transaction could lock. All of them are here. A call that waits for several takes them in this
//! order, which debug builds assert ([`order`]):
//!
//! | lock | class | held whole by | shared by |
//! |---|---|---|---|
//! | [`registration`] of a group's name | `consumer_group` | the call that registers it | |
//! | [`tally`] of a queue | `tally` | who counts for it, or removes its messages | |
//! | [`first_reads`] of a queue | `queue` | purge, delete, change of ordering | creators, stayers |
//! | [`first_reads_of`] a group | `cursor` | a seek of the group | creators, stayers |
//! | [`discovery`] of a group | `discovery` | the pop whose search reads on early | |
//! | [`claims`] of a partition | `claim` | retention, in a group without order | |
//!
//! Creators are calls that create a cursor or a claim: pops, folds, a seek of one partition.
//! Stayers are calls during which the group must stay as it is: `queen_unsubscribe`, a replay of a
//! dead letter, and, on the queue's lock alone, a seek. In a group without order a seek of one
//! partition holds the group's lock whole.
//!
//! Retention only tries [`claims`]. A pop that has inserted claims takes nothing of that lock: it
//! looks whether the lock is free.
//!
//! The table `identity`, which the first call after a restore locks, and the row of a queue that is
//! configured, paused or deleted are locked before them, and so is that row where a call shares it
//! that gives a group an ordering of its own. Rows of groups, of cursors and claims (both
//! ascending), of timers, dead letters and bindings are locked after them. Pops and sweeps only try
//! these locks, they wait for none. The module `broker::hold::attempts` says how the other calls
//! wait.
//!
//! One call departs from this order: a replay deletes its dead letter before it shares
//! [`first_reads`], because the letter names the queue. The call that could wait for it in the
//! other direction is a deletion of the queue, which comes to the dead letters while it holds
//! [`first_reads`] whole. It does so in an attempt, which ends by itself and gives the replay way.
//!
//! A seek, a purge and the like find cursors and claims by a snapshot, which shows none that are
//! not committed. So a transaction that creates one shares [`first_reads`] and [`first_reads_of`]
//! to its end. Retention, which creates a cursor to keep consumers away from a partition, holds the
//! row of the group instead. A call that has to see all cursors and claims takes one of the two
//! locks whole, and the rows of the groups, before it takes its snapshot.
//!
//! A lock is an object lock. Its class is the OID of a relation of ours, which the table names, and
//! a key stands in place of the object. The row of a queue is another thing than the lock of the
//! class `queue`: a row lock of PostgreSQL locks no object. No function or statement of SQL takes
//! such a lock (advisory locks are of another type, LOCK TABLE locks whole relations, DDL locks
//! objects of the system catalogues), so no role can stop a queue with one. The locks are released
//! at the end of the transaction, survive PREPARE TRANSACTION, and `pg_locks` shows their class as
//! `classid::regclass`. Two names with one key share a lock, which costs a wait or a miss and
//! nothing else.
//!
//! All sessions share one lock table of fixed size. So a call takes a constant number of entries,
//! whatever it covers: relations of ours and their indexes; one lock of each kind above, where the
//! call is about one queue and one group; and, while it waits, a tuple lock or another
//! transaction's id. Locked rows and new rows take no entry. A call that covers many queues or
//! groups can do without some locks: those for counts, for discoveries, for claims, and for first
//! reads of a sweep. It takes them while the transaction has taken fewer than [`SPARE`] locks. What
//! it leaves undone after that, a later call does, or the worker, each of whose transactions covers
//! one queue.

use std::cell::Cell;
use std::ffi::CStr;

use pgrx::{IntoDatum, direct_function_call, pg_sys};

use crate::pg::catalogue;

/// A transaction that has taken this many locks gets none of those that it can do without.
const SPARE: u32 = 64;

const SHARE: i32 = pg_sys::ShareLock as i32;
const WHOLE: i32 = pg_sys::ExclusiveLock as i32;

/// A lock by its name.
#[derive(Clone, Copy)]
pub struct Lock {
    /// The relation that stands for the lock's kind.
    class: &'static CStr,
    /// The lower 48 bits are used.
    key: u64,
}

/// The classes of all locks, in the order in which a call waits for them.
pub const CLASSES: [&CStr; 6] =
    [c"consumer_group", c"tally", c"queue", c"cursor", c"discovery", c"claim"];

/// Registering the group of this name.
pub fn registration(queue: &str, group: &str) -> Lock {
    // No name has control characters.
    Lock { class: c"consumer_group", key: hash(format!("{queue}\n{group}").as_bytes()) }
}

/// Counting what has arrived in a queue.
pub fn tally(queue: i64) -> Lock {
    Lock { class: c"tally", key: queue as u64 }
}

/// Creating the first cursor of a partition, or a claim, in any group of the queue. A share also
/// keeps the groups as they are.
pub fn first_reads(queue: i64) -> Lock {
    Lock { class: c"queue", key: queue as u64 }
}

/// Creating the first cursor of a partition, or a claim, in this group.
pub fn first_reads_of(group: i64) -> Lock {
    Lock { class: c"cursor", key: group as u64 }
}

/// Reading on for a group, in what its search for work reads, while it knows of partitions to try.
pub fn discovery(group: i64) -> Lock {
    Lock { class: c"discovery", key: group as u64 }
}

/// Claiming messages of a partition in a group without order: no consumer keeps a claim that it
/// inserts there while another transaction holds this lock.
pub fn claims(group: i64, partition: &str) -> Lock {
    let name = [&group.to_ne_bytes(), partition.as_bytes()].concat();
    Lock { class: c"claim", key: hash(&name) }
}

fn hash(name: &[u8]) -> u64 {
    // SAFETY: takes a varlena and a seed and returns a bigint.
    let hash = unsafe {
        let args = [name.into_datum(), 0i64.into_datum()];
        direct_function_call::<i64>(pg_sys::hashvarlenaextended, &args)
    };
    hash.unwrap_or_default() as u64
}

impl Lock {
    /// Take the lock whole, if no other transaction holds any of it.
    pub fn try_whole(self) -> bool {
        self.acquire(WHOLE, true)
    }

    /// [`Self::try_whole`] for a caller that can do without the lock: fails once the transaction
    /// has taken [`SPARE`] locks.
    pub fn try_spare(self) -> bool {
        (self.is_own() || has_spare()) && self.try_whole()
    }

    /// Take the lock whole, waiting for all transactions that hold any of it.
    pub fn whole(self) {
        self.acquire(WHOLE, false);
    }

    /// Take a share, if no other transaction holds the lock whole or waits for that.
    pub fn try_share(self) -> bool {
        self.acquire(SHARE, true)
    }

    /// Take a share, waiting for the transaction that holds the lock whole. A transaction that
    /// waits for a share keeps no other one from a share.
    pub fn share(self) {
        self.acquire(SHARE, false);
    }

    /// Give back a share that the caller has just taken and does not need. A share that the
    /// transaction held before stays.
    pub fn give_back_share(self) {
        order::gave_back(self);
        // SAFETY: locks are counted: this undoes the last `try_share`.
        unsafe { pg_sys::LockRelease(&self.tag(), SHARE, false) };
    }

    /// Whether no other transaction holds the lock whole, or waits for that, at this moment.
    pub fn is_free(self) -> bool {
        let tag = self.tag();
        let is_free = try_acquire(&tag, SHARE, false);
        if is_free {
            // SAFETY: gives back what was just taken.
            unsafe { pg_sys::LockRelease(&tag, SHARE, false) };
        }
        is_free
    }

    /// Wait for the transactions that hold any of the lock at this moment. The caller takes
    /// nothing, so it keeps no other transaction from the lock.
    pub fn wait_for_holders(self) {
        let tag = self.tag();
        let mut count = 0;
        // SAFETY: the answer is an array of `count` in the current memory context. VirtualXactLock
        // waits for each holder's own lock, with deadlock detection and timeouts.
        unsafe {
            let holders = pg_sys::GetLockConflicts(&tag, WHOLE, &mut count);
            for holder in 0..count as usize {
                pg_sys::VirtualXactLock(*holders.add(holder), true);
            }
        }
    }

    /// Whether this transaction holds the lock whole.
    fn is_own(self) -> bool {
        self.is_held_in(WHOLE)
    }

    /// Whether this transaction holds the lock so that it gets it in this mode without a wait.
    fn is_granted(self, mode: i32) -> bool {
        self.is_held_in(WHOLE) || (mode == SHARE && self.is_held_in(SHARE))
    }

    fn is_held_in(self, mode: i32) -> bool {
        // SAFETY: reads the backend's memory.
        unsafe {
            #[cfg(any(feature = "pg15", feature = "pg16"))]
            return pg_sys::LockHeldByMe(&self.tag(), mode);
            #[cfg(not(any(feature = "pg15", feature = "pg16")))]
            return pg_sys::LockHeldByMe(&self.tag(), mode, false);
        }
    }

    fn acquire(self, mode: i32, passes_by: bool) -> bool {
        let tag = self.tag();
        if passes_by {
            return try_acquire(&tag, mode, true);
        }
        order::will_wait(self, mode);
        // SAFETY: a transaction-level lock on a tag of ours; released at the end of the
        // transaction.
        let outcome = unsafe { pg_sys::LockAcquire(&tag, mode, false, false) };
        note(outcome);
        true
    }

    fn tag(self) -> pg_sys::LOCKTAG {
        tag(catalogue::oid_of(self.class), self.key)
    }
}

/// Debug builds assert that each call waits for locks in the order of [`CLASSES`].
pub mod order {
    use std::cell::Cell;

    use super::{CLASSES, Lock};
    use crate::pg::spi;

    thread_local! {
        /// The call that waited last, and the place in the order that it has come to.
        static REACHED: Cell<(u64, usize)> = const { Cell::new((0, 0)) };
    }

    fn place_of(lock: Lock) -> usize {
        CLASSES.iter().position(|class| *class == lock.class).unwrap_or(CLASSES.len())
    }

    /// The place in the order that the running call has come to.
    pub fn reached() -> usize {
        let (call, place) = REACHED.get();
        if call == spi::call_number() { place } else { 0 }
    }

    /// What the call has locked since it was at this place has been released.
    pub fn back_to(place: usize) {
        REACHED.set((spi::call_number(), place.min(reached())));
    }

    /// A call within this one, by a trigger, has an order of its own. After it the outer call
    /// begins anew, as far as the assertion knows.
    pub(super) fn will_wait(lock: Lock, mode: i32) {
        if cfg!(debug_assertions) && !lock.is_granted(mode) {
            let place = place_of(lock);
            assert!(place >= reached(), "waits for {:?} out of order", lock.class);
            REACHED.set((spi::call_number(), place));
        }
    }

    pub(super) fn gave_back(lock: Lock) {
        if cfg!(debug_assertions) {
            back_to(place_of(lock));
        }
    }
}

fn tag(class: pg_sys::Oid, key: u64) -> pg_sys::LOCKTAG {
    pg_sys::LOCKTAG {
        // SAFETY: a plain global of the backend.
        locktag_field1: unsafe { pg_sys::MyDatabaseId }.to_u32(),
        locktag_field2: class.to_u32(),
        locktag_field3: key as u32,
        locktag_field4: (key >> 32) as u16,
        locktag_type: pg_sys::LockTagType::LOCKTAG_OBJECT as u8,
        locktag_lockmethodid: pg_sys::DEFAULT_LOCKMETHOD as u8,
    }
}

/// Take a transaction-level lock, unless another transaction is in the way. `counts`: as one of the
/// [`SPARE`]. A standby gives none.
fn try_acquire(tag: &pg_sys::LOCKTAG, mode: i32, counts: bool) -> bool {
    // SAFETY: a tag of ours.
    unsafe {
        if pg_sys::RecoveryInProgress() {
            return false;
        }
        let outcome = pg_sys::LockAcquire(tag, mode, false, true);
        if counts {
            note(outcome);
        }
        outcome != pg_sys::LockAcquireResult::LOCKACQUIRE_NOT_AVAIL
    }
}

thread_local! {
    /// The transaction that took locks last, and how many it has taken.
    static TAKEN: Cell<(pg_sys::LocalTransactionId, u32)> = const { Cell::new((0, 0)) };
}

fn note(outcome: pg_sys::LockAcquireResult::Type) {
    if outcome == pg_sys::LockAcquireResult::LOCKACQUIRE_OK {
        TAKEN.set((transaction(), taken() + 1));
    }
}

/// How many locks this transaction has taken. Those released with a subtransaction count as well.
fn taken() -> u32 {
    let (transaction_then, taken) = TAKEN.get();
    if transaction_then == transaction() { taken } else { 0 }
}

fn transaction() -> pg_sys::LocalTransactionId {
    // SAFETY: this backend's entry in shared memory; no other process writes this field.
    unsafe {
        #[cfg(any(feature = "pg15", feature = "pg16"))]
        return (*pg_sys::MyProc).lxid;
        #[cfg(not(any(feature = "pg15", feature = "pg16")))]
        return (*pg_sys::MyProc).vxid.lxid;
    }
}

/// How many more locks the transaction may take that it can do without.
pub fn spare() -> usize {
    SPARE.saturating_sub(taken()) as usize
}

/// Whether the transaction may take one more lock that it can do without.
pub fn has_spare() -> bool {
    spare() > 0
}

/// The lock of this database's worker, held by its session. The worker may start before the
/// extension is created, so the lock's class is `pg_database`. PostgreSQL itself locks a database
/// as a shared object, which is another name.
fn worker() -> pg_sys::LOCKTAG {
    /// No lock of PostgreSQL uses a number of a part within a database.
    const WORKER: u64 = 1 << 32;
    // SAFETY: a plain global of the backend.
    let database = u64::from(unsafe { pg_sys::MyDatabaseId }.to_u32());
    let mut tag = tag(pg_sys::DatabaseRelationId, WORKER | database);
    // A lock of this method outlives a failed transaction of the worker. It is released with the
    // process.
    tag.locktag_lockmethodid = pg_sys::USER_LOCKMETHOD as u8;
    tag
}

/// Become the worker of this database for as long as the session lasts. False if there is one.
pub fn try_be_worker() -> bool {
    // SAFETY: a tag of ours; a session-level lock needs no owner.
    unsafe {
        !pg_sys::RecoveryInProgress()
            && pg_sys::LockAcquire(&worker(), WHOLE, true, true)
                != pg_sys::LockAcquireResult::LOCKACQUIRE_NOT_AVAIL
    }
}

/// Whether this database has a worker.
pub fn has_worker() -> bool {
    // SAFETY: a tag of ours. What was taken is given back.
    unsafe {
        if pg_sys::RecoveryInProgress() {
            return false;
        }
        let taken = pg_sys::LockAcquire(&worker(), SHARE, true, true);
        let is_taken = taken != pg_sys::LockAcquireResult::LOCKACQUIRE_NOT_AVAIL;
        if is_taken {
            pg_sys::LockRelease(&worker(), SHARE, true);
        }
        !is_taken
    }
}
