//! The locks that have a name of their own, for what has no row to be locked (yet). All of them are here,
//! in the order in which a transaction takes them that waits:
//!
//! | lock | whole | share |
//! |---|---|---|
//! | [`registration`] of a group | who registers it | |
//! | [`tally`] of a queue | who counts for it, or removes messages | |
//! | [`first_reads`] in a queue | purge, delete, a change of ordering | who creates a cursor or a claim, or holds a group |
//! | [`first_reads_of`] a group | a seek of the group | the same, in the group |
//! | [`discovery`] of a group | who looks for news for it | |
//! | [`takes`] from a partition | who removes messages, in a group without order | |
//!
//! The row of a queue that is configured or deleted comes before them. After them come rows: of groups, of
//! cursors and claims, each ascending, and of timers and dead letters. Pops and sweeps wait for none of all
//! these, they only try. [`crate::patience`] says how the others wait.
//!
//! Cursors and claims that are new, and not committed, are seen by nobody who looks for them. So who
//! creates one holds shares of both first reads to the end of its transaction; retention, which creates a
//! cursor to keep others from it, holds the row of the group. Who is to see all cursors and claims has the
//! whole of one of the two locks, and the rows of the groups, before looking.
//!
//! A lock is an object lock, with the OID of a relation of ours as its class and a key in place of the
//! object: no function or statement of SQL takes such a lock (advisory locks are of another type, LOCK
//! TABLE locks relations as a whole, and DDL locks objects of the system catalogues), so no role can stop
//! a queue by it. They are released at the end of the transaction, go through PREPARE TRANSACTION, and are
//! shown by `pg_locks` as `classid::regclass`. Two names of one key share a lock, which costs a wait or
//! a miss and nothing else.
//!
//! The server has room for so many locks in all sessions together. A call takes a constant number,
//! whatever it covers: relations of ours and their indexes; one lock of each kind above, where it is about
//! one queue and one group; a tuple lock or another transaction's id while it waits. Rows that are locked,
//! or new, are no entries there. What a call that covers many queues or groups can do without (counts,
//! discoveries, the keeping from takes, first reads of a sweep) it takes as long as the transaction has
//! taken fewer than [`SPARE`], and leaves undone after that: a later call, or the worker, whose
//! transactions are of one queue, does it.

use std::cell::Cell;
use std::ffi::CStr;

use pgrx::{IntoDatum, direct_function_call, pg_sys};

use super::catalogue;

/// Locks of a transaction, beyond which those it can do without are not to be had.
const SPARE: u32 = 64;

const SHARE: i32 = pg_sys::ShareLock as i32;
const WHOLE: i32 = pg_sys::ExclusiveLock as i32;

/// A lock by its name.
#[derive(Clone, Copy)]
pub struct Lock {
    /// A relation, one for each kind.
    class: &'static CStr,
    /// 48 bits of it count.
    key: u64,
}

/// Registering the group of this name.
pub fn registration(queue: &str, group: &str) -> Lock {
    // No name has control characters.
    Lock { class: c"consumer_group", key: hash(format!("{queue}\n{group}").as_bytes()) }
}

/// Counting what has arrived in a queue.
pub fn tally(queue: i64) -> Lock {
    Lock { class: c"tally", key: queue as u64 }
}

/// Taking from a partition, or a message, that has nothing yet that could be locked; and keeping a group
/// as it is.
pub fn first_reads(queue: i64) -> Lock {
    Lock { class: c"queue", key: queue as u64 }
}

/// The same in one group.
pub fn first_reads_of(group: i64) -> Lock {
    Lock { class: c"cursor", key: group as u64 }
}

/// Looking for news for a group.
pub fn discovery(group: i64) -> Lock {
    Lock { class: c"discovery", key: group as u64 }
}

/// Taking messages of a partition in a group without order.
pub fn takes(group: i64, partition: &str) -> Lock {
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
    /// Take the whole of it, if nobody has any of it.
    pub fn try_whole(self) -> bool {
        self.acquire(WHOLE, true)
    }

    /// The same, for those who can do without.
    pub fn try_spare(self) -> bool {
        (self.is_own() || has_spare()) && self.try_whole()
    }

    /// Take the whole of it, waiting for all who have some.
    pub fn whole(self) {
        self.acquire(WHOLE, false);
    }

    /// Take a share, if nobody has the whole, or is waiting for it.
    pub fn try_share(self) -> bool {
        self.acquire(SHARE, true)
    }

    /// Take a share, waiting for whoever has the whole. Who waits for a share keeps nobody else from one.
    pub fn share(self) {
        self.acquire(SHARE, false);
    }

    /// Give back a share that has just been taken, and that nothing has come of. One that the transaction
    /// had before stays.
    pub fn give_back_share(self) {
        // SAFETY: locks are counted: this undoes the last `try_share`.
        unsafe { pg_sys::LockRelease(&self.tag(), SHARE, false) };
    }

    /// Whether nobody has the whole of it at this moment, or is waiting for it.
    pub fn is_free(self) -> bool {
        let tag = self.tag();
        let is_free = try_acquire(&tag, SHARE, false);
        if is_free {
            // SAFETY: gives back what was just taken.
            unsafe { pg_sys::LockRelease(&tag, SHARE, false) };
        }
        is_free
    }

    /// Wait for the transactions that have some of it at this moment, keeping nobody from it.
    pub fn wait_for_holders(self) {
        let tag = self.tag();
        let mut count = 0;
        // SAFETY: the answer is an array of so many, in the current memory context. Each is waited for
        // by its own lock, as a lock is waited for: with deadlock detection and time-outs.
        unsafe {
            let holders = pg_sys::GetLockConflicts(&tag, WHOLE, &mut count);
            for holder in 0..count as usize {
                pg_sys::VirtualXactLock(*holders.add(holder), true);
            }
        }
    }

    /// Whether this transaction has the whole of it.
    fn is_own(self) -> bool {
        // SAFETY: reads the backend's memory.
        unsafe {
            #[cfg(any(feature = "pg15", feature = "pg16"))]
            return pg_sys::LockHeldByMe(&self.tag(), WHOLE);
            #[cfg(not(any(feature = "pg15", feature = "pg16")))]
            return pg_sys::LockHeldByMe(&self.tag(), WHOLE, false);
        }
    }

    fn acquire(self, mode: i32, passes_by: bool) -> bool {
        let tag = self.tag();
        if passes_by {
            return try_acquire(&tag, mode, true);
        }
        // SAFETY: a transaction-level lock on a tag of ours; released at the end of the transaction.
        let outcome = unsafe { pg_sys::LockAcquire(&tag, mode, false, false) };
        note(outcome);
        true
    }

    fn tag(self) -> pg_sys::LOCKTAG {
        tag(catalogue::oid_of(self.class), self.key)
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

/// A transaction-level lock, if it is to be had; and whether it `counts`. A standby has none to give.
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
    /// The transaction, and how many locks it has taken.
    static TAKEN: Cell<(pg_sys::LocalTransactionId, u32)> = const { Cell::new((0, 0)) };
}

fn note(outcome: pg_sys::LockAcquireResult::Type) {
    if outcome == pg_sys::LockAcquireResult::LOCKACQUIRE_OK {
        TAKEN.set((transaction(), taken() + 1));
    }
}

/// Locks that this transaction has taken: those given back with a subtransaction count as well.
fn taken() -> u32 {
    let (transaction_then, taken) = TAKEN.get();
    if transaction_then == transaction() { taken } else { 0 }
}

fn transaction() -> pg_sys::LocalTransactionId {
    // SAFETY: the place of this backend in shared memory, which it alone writes.
    unsafe {
        #[cfg(any(feature = "pg15", feature = "pg16"))]
        return (*pg_sys::MyProc).lxid;
        #[cfg(not(any(feature = "pg15", feature = "pg16")))]
        return (*pg_sys::MyProc).vxid.lxid;
    }
}

/// How many locks the transaction may take yet that it can do without.
pub fn spare() -> usize {
    SPARE.saturating_sub(taken()) as usize
}

/// Whether there is one.
pub fn has_spare() -> bool {
    spare() > 0
}

/// That of the worker of this database: a lock of its session. It is there before the extension is, so it
/// is named after the database; what locks databases names them in another way (as shared objects).
fn worker() -> pg_sys::LOCKTAG {
    /// Nothing but this counts parts of a database.
    const WORKER: u64 = 1 << 32;
    // SAFETY: a plain global of the backend.
    let database = u64::from(unsafe { pg_sys::MyDatabaseId }.to_u32());
    let mut tag = tag(pg_sys::DatabaseRelationId, WORKER | database);
    // A lock of this method stays when a transaction of the worker fails, and goes with its process.
    tag.locktag_lockmethodid = pg_sys::USER_LOCKMETHOD as u8;
    tag
}

/// Be the worker of this database for as long as the session lasts. False if there is one.
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
