//! Which sessions wait for messages, and which of them a commit wakes. The list is in shared
//! memory, so it is there only with the library preloaded. Without, nothing here does anything.
//!
//! A waiting session puts its latch on the list before it looks for messages. So a transaction that
//! commits after that look finds the latch there, and sets it. A transaction that pushes, or leaves
//! a partition ready, notes the topic of the queue or the group. When it has committed and given up
//! its locks, it goes through the list and sets the latches of sessions that wait for one of its
//! topics. A transaction that is rolled back wakes no session. COMMIT PREPARED may run in another
//! session, which knows nothing of the topics, so it wakes none either; waiting sessions look again
//! every few seconds for this reason.
//!
//! An LWLock guards the list. It is held for one walk through the list, and nothing under it can
//! fail or wait.

use std::cell::{Cell, RefCell};
use std::ffi::c_void;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::sync::atomic::{AtomicBool, Ordering};

use pgrx::lwlock::PgLwLock;
use pgrx::prelude::*;
use pgrx::shmem::PGRXSharedMemory;
use pgrx::{pg_shmem_init, pg_sys};

/// Sessions that can be on the list. A session that finds it full waits as without preload.
const CAPACITY: usize = 1024;

/// What a session waits for, as a hash. Where two topics have one hash, a commit wakes a session
/// that then finds nothing and sleeps on.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct Topic(u64);

impl Topic {
    /// Pushes to the queue of this name.
    pub fn queue(name: &str) -> Self {
        Self::of(name)
    }

    /// Partitions that become ready for the group of this id.
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
    /// The address of the session's latch.
    latch: usize,
    topics: [u64; 2],
}

/// The list; the first `count` entries are in use.
#[derive(Clone, Copy)]
pub struct Waiters {
    count: usize,
    list: [Waiter; CAPACITY],
}

// SAFETY: plain values; a latch lies in shared memory at one address for all processes.
unsafe impl PGRXSharedMemory for Waiters {}

// SAFETY: no other lock of the server has this name.
static WAITERS: PgLwLock<Waiters> = unsafe { PgLwLock::new(c"queen_mq waiters") };
/// Set in the postmaster, and so in all its children.
static IS_SHARED: AtomicBool = AtomicBool::new(false);

const UNUSED: Waiter = Waiter { latch: 0, topics: [0; 2] };

/// Called in the postmaster, while it preloads the library: have shared memory for the list.
pub fn set_up() {
    pg_shmem_init!(WAITERS = Waiters { count: 0, list: [UNUSED; CAPACITY] });
    IS_SHARED.store(true, Ordering::Relaxed);
}

/// A session's entry on the list. Dropping it removes the entry; so does an ERROR, which drops it,
/// and the end of the process.
pub struct WaiterSlot(());

impl WaiterSlot {
    /// Enter this session for these topics. None without preload, or if the list is full.
    pub fn take(queue: Topic, group: Option<Topic>) -> Option<Self> {
        if !IS_SHARED.load(Ordering::Relaxed) {
            return None;
        }
        leave_at_exit();
        let mut waiters = WAITERS.exclusive();
        let free = waiters.count;
        if free == CAPACITY {
            return None;
        }
        let topics = [queue.0, group.map_or(queue.0, |group| group.0)];
        waiters.list[free] = Waiter { latch: own_latch(), topics };
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

/// Remove this session's entries.
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
    /// Topics for which the open transaction has messages.
    static TOUCHED: RefCell<Vec<u64>> = const { RefCell::new(Vec::new()) };
    /// Topics of the transaction that has just committed, and has not given up its locks yet.
    static COMMITTED: RefCell<Vec<u64>> = const { RefCell::new(Vec::new()) };
}

/// See that this process leaves the list when it ends: termination does not unwind, so it drops no
/// slot.
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

/// Note that this transaction has messages for `topic`: its commit wakes the sessions that wait for
/// that. Rolling back a subtransaction leaves the note, and so may wake a session in vain.
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

/// Wake the sessions that wait for `topic` at once, whether or not this transaction commits. For a
/// caller that has held a lock for a moment: a pop that looked then found messages locked.
pub fn wake_now(topic: Topic) {
    if IS_SHARED.load(Ordering::Relaxed) {
        wake(&[topic.0]);
    }
}

/// Keep or forget the topics of the transaction, which is ending. Nothing here may fail.
#[pg_guard]
unsafe extern "C-unwind" fn at_end(event: pg_sys::XactEvent::Type, _argument: *mut c_void) {
    use pg_sys::XactEvent::{XACT_EVENT_ABORT, XACT_EVENT_COMMIT, XACT_EVENT_PREPARE};
    match event {
        XACT_EVENT_COMMIT => COMMITTED.set(TOUCHED.take()),
        XACT_EVENT_ABORT | XACT_EVENT_PREPARE => drop(TOUCHED.take()),
        _ => (),
    }
}

/// Wake the waiting sessions once the transaction has given up its locks, and has told other
/// sessions of its changes of queues and groups. A pop that was woken before that could find the
/// old state, or rows still locked, and would sleep on. Nothing here may fail.
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
