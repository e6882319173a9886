//! Shared memory: the sessions that wait for messages, and waking them when a transaction commits
//! that brings some. There only with the library preloaded.
//!
//! A session that waits puts its latch on the list before it looks, so that what commits after the
//! look sets it. A transaction that pushes, or leaves a partition ready, remembers for whom; at its
//! commit it goes through the list. Rolled back, it wakes nobody. One that was prepared commits in
//! another session, which knows nothing of this: those who wait look again every few seconds anyway.

use std::cell::{Cell, RefCell};
use std::ffi::c_void;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::sync::atomic::{AtomicBool, Ordering};

use pgrx::lwlock::PgLwLock;
use pgrx::prelude::*;
use pgrx::shmem::PGRXSharedMemory;
use pgrx::{pg_shmem_init, pg_sys};

/// Sessions that can wait at a time; those beyond look again and again, as without preload.
const CAPACITY: usize = 1024;

/// What somebody waits for. Two of one hash wake each other's sessions in vain, nothing worse.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct Topic(u64);

impl Topic {
    /// Pushes to a queue.
    pub fn queue(name: &str) -> Self {
        Self::of(name)
    }

    /// Partitions that become ready for a group.
    pub fn group(id: i64) -> Self {
        Self::of(id)
    }

    fn of(what: impl Hash) -> Self {
        let mut hasher = DefaultHasher::new();
        // SAFETY: a plain global of the backend.
        let database = unsafe { pg_sys::MyDatabaseId };
        (database.to_u32(), what).hash(&mut hasher);
        Self(hasher.finish())
    }
}

#[derive(Clone, Copy)]
struct Waiter {
    latch: usize,
    topics: [u64; 2],
}

#[derive(Clone, Copy)]
pub struct Waiters {
    count: usize,
    list: [Waiter; CAPACITY],
}

// SAFETY: plain values; a latch lies in shared memory at one address for all processes.
unsafe impl PGRXSharedMemory for Waiters {}

// SAFETY: nobody else names a lock so.
static WAITERS: PgLwLock<Waiters> = unsafe { PgLwLock::new(c"queen_mq waiters") };
/// Set in the postmaster, and so in all its children.
static IS_SHARED: AtomicBool = AtomicBool::new(false);

const NOBODY: Waiter = Waiter { latch: 0, topics: [0; 2] };

pub fn set_up() {
    pg_shmem_init!(WAITERS = Waiters { count: 0, list: [NOBODY; CAPACITY] });
    IS_SHARED.store(true, Ordering::Relaxed);
}

/// A place on the list. Given back when it goes out of scope, which an ERROR brings about as well,
/// or with the process.
pub struct WaiterSlot(());

impl WaiterSlot {
    /// None without preload, or if the list is full.
    pub fn take(queue: Topic, group: Option<Topic>) -> Option<Self> {
        if !IS_SHARED.load(Ordering::Relaxed) {
            return None;
        }
        leave_at_exit();
        let mut waiters = WAITERS.exclusive();
        let place = waiters.count;
        if place == CAPACITY {
            return None;
        }
        let topics = [queue.0, group.map_or(queue.0, |group| group.0)];
        waiters.list[place] = Waiter { latch: own_latch(), topics };
        waiters.count += 1;
        Some(Self(()))
    }
}

impl Drop for WaiterSlot {
    fn drop(&mut self) {
        leave();
    }
}

fn own_latch() -> usize {
    // SAFETY: the address of the latch of this process's PGPROC.
    unsafe { pg_sys::MyLatch as usize }
}

fn leave() {
    let own = own_latch();
    let mut waiters = WAITERS.exclusive();
    let mut place = 0;
    while place < waiters.count {
        if waiters.list[place].latch == own {
            waiters.count -= 1;
            waiters.list[place] = waiters.list[waiters.count];
        } else {
            place += 1;
        }
    }
}

thread_local! {
    static LEAVES_AT_EXIT: Cell<bool> = const { Cell::new(false) };
    static WAKES_AT_COMMIT: Cell<bool> = const { Cell::new(false) };
    /// Topics that this transaction has something for.
    static TOUCHED: RefCell<Vec<u64>> = const { RefCell::new(Vec::new()) };
    /// Topics of a transaction that has committed and still has its locks.
    static COMMITTED: RefCell<Vec<u64>> = const { RefCell::new(Vec::new()) };
}

/// A process that is terminated does not unwind.
fn leave_at_exit() {
    if !LEAVES_AT_EXIT.replace(true) {
        // SAFETY: called once, as the process ends, while shared memory is still there.
        unsafe { pg_sys::before_shmem_exit(Some(at_exit), pg_sys::Datum::null()) };
    }
}

#[pg_guard]
unsafe extern "C-unwind" fn at_exit(_code: i32, _argument: pg_sys::Datum) {
    leave();
}

/// This transaction has something for those who wait for `topic`: they are woken when it commits.
pub fn touch(topic: Topic) {
    if !IS_SHARED.load(Ordering::Relaxed) {
        return;
    }
    if !WAKES_AT_COMMIT.replace(true) {
        // SAFETY: called once for this process; the callbacks are functions of this library, which
        // stays loaded.
        unsafe {
            pg_sys::RegisterXactCallback(Some(at_end), std::ptr::null_mut());
            pg_sys::RegisterResourceReleaseCallback(Some(at_release), std::ptr::null_mut());
        }
    }
    TOUCHED.with_borrow_mut(|touched| {
        if !touched.contains(&topic.0) {
            touched.push(topic.0);
        }
    });
}

/// Wake pops that wait for `topic`, whether or not this transaction commits: they may have looked
/// while it held for a moment what they wanted.
pub fn wake_now(topic: Topic) {
    if IS_SHARED.load(Ordering::Relaxed) {
        wake(&[topic.0]);
    }
}

/// The transaction has ended: nothing here may fail.
#[pg_guard]
unsafe extern "C-unwind" fn at_end(event: pg_sys::XactEvent::Type, _argument: *mut c_void) {
    use pg_sys::XactEvent::{XACT_EVENT_ABORT, XACT_EVENT_COMMIT, XACT_EVENT_PREPARE};
    match event {
        XACT_EVENT_COMMIT => COMMITTED.set(TOUCHED.take()),
        XACT_EVENT_ABORT | XACT_EVENT_PREPARE => drop(TOUCHED.take()),
        _ => (),
    }
}

/// The transaction has given up its locks, and other sessions have been told of its changes of queues and
/// groups. A pop that is woken before that may find the old state, or rows still locked, and sleep on.
/// Nothing here may fail.
#[pg_guard]
unsafe extern "C-unwind" fn at_release(
    phase: pg_sys::ResourceReleasePhase::Type,
    _is_commit: bool,
    is_top_level: bool,
    _argument: *mut c_void,
) {
    let after_locks = pg_sys::ResourceReleasePhase::RESOURCE_RELEASE_AFTER_LOCKS;
    if is_top_level && phase == after_locks {
        wake(&COMMITTED.take());
    }
}

fn wake(topics: &[u64]) {
    if topics.is_empty() {
        return;
    }
    let waiters = WAITERS.share();
    for waiter in &waiters.list[..waiters.count] {
        if waiter.topics.iter().any(|topic| topics.contains(topic)) {
            // SAFETY: a latch of a PGPROC, which stays where it is for as long as the server runs.
            unsafe { pg_sys::SetLatch(waiter.latch as *mut pg_sys::Latch) };
        }
    }
}
