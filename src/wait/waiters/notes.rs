//! What the open transaction brings, and whom its end wakes.

use std::cell::{Cell, RefCell};
use std::ffi::c_void;

use pgrx::pg_sys;
use pgrx::prelude::*;

use super::super::fresh;
use super::{LeaseEnd, PartitionHash, Topic, WakeUp, is_shared, tell_moments, wake_for_each};
use crate::pg::clock::Moment;

/// Notes of one transaction that are told apart. With more of them, its end wakes all sessions that
/// wait for a topic that it has noted.
const TOLD_APART: usize = 64;

thread_local! {
    /// Callbacks that this process has registered.
    static REGISTERED: Cell<usize> = const { Cell::new(0) };
    /// For the commit of the open transaction.
    static BROUGHT: RefCell<Vec<WakeUp>> = const { RefCell::new(Vec::new()) };
    /// For a rollback of it, or of a part of it.
    static HELD: RefCell<Vec<Held>> = const { RefCell::new(Vec::new()) };
    /// Leases that the open transaction has given, and those of one that has just ended.
    static LEASES: RefCell<Vec<LeaseEnd>> = const { RefCell::new(Vec::new()) };
    static GIVEN: RefCell<Vec<LeaseEnd>> = const { RefCell::new(Vec::new()) };
    /// Partitions that the open transaction has pushed to, and those of one that has committed.
    static PUSHED: RefCell<Vec<Push>> = const { RefCell::new(Vec::new()) };
    static COMMITTED: RefCell<Vec<Push>> = const { RefCell::new(Vec::new()) };
    /// Of the transaction that has just ended, and has not given up its locks yet.
    static ENDED: RefCell<Vec<WakeUp>> = const { RefCell::new(Vec::new()) };
}

/// Note that this transaction has messages for `topic` in a partition: its commit wakes one session
/// of each group that waits for them. Rolling back a subtransaction leaves the note, and so may
/// wake a session in vain.
pub fn touch(topic: Topic, partition: PartitionHash) {
    BROUGHT.with_borrow_mut(|notes| note(notes, topic, partition));
}

/// A queue, and a partition that was pushed to.
type Push = (Topic, Box<str>);

/// Note that this transaction has pushed to a partition: [`touch`], and a hint for pops.
pub fn touch_pushed(queue: &str, partition: &str) {
    if !is_shared() {
        return;
    }
    let topic = Topic::queue(queue);
    touch(topic, PartitionHash::of(partition));
    PUSHED.with_borrow_mut(|pushed| {
        let is_known =
            || pushed.iter().any(|(known, name)| *known == topic && **name == *partition);
        if pushed.len() < TOLD_APART && !is_known() {
            pushed.push((topic, partition.into()));
        }
    });
}

/// Note that this transaction changes what all sessions that wait for `topic` may pop.
pub fn touch_all(topic: Topic) {
    BROUGHT.with_borrow_mut(|notes| {
        note(notes, topic, PartitionHash::ANY);
        widen(notes, topic);
    });
}

/// What a subtransaction has locked or claimed. Subtransactions are numbered in the order in which
/// they begin, so a rollback undoes its own notes and all with a higher number.
type Held = (pg_sys::SubTransactionId, WakeUp);

/// Note that this subtransaction has locked or claimed messages of a partition for `topic`: if that
/// is rolled back, another session may pop them.
pub fn touch_if_undone(topic: Topic, partition: PartitionHash) {
    if !is_shared() {
        return;
    }
    call_back_at_end();
    // SAFETY: reads a number of the open transaction.
    let own = unsafe { pg_sys::GetCurrentSubTransactionId() };
    let news = WakeUp { topic: topic.0, partition, for_all: false };
    HELD.with_borrow_mut(|held| {
        let is_known = |(begun, known): &Held| {
            *begun == own && known.topic == topic.0 && (known.for_all || *known == news)
        };
        if held.iter().any(is_known) {
            return;
        }
        held.push((own, news));
        if held.len() > TOLD_APART {
            // What earlier subtransactions have noted now counts as this one's: each that may still
            // be rolled back by itself has this one in it.
            held.retain(|(_, known)| known.topic != topic.0);
            held.push((own, WakeUp { partition: PartitionHash::ANY, for_all: true, ..news }));
        }
    });
}

/// Forget what this subtransaction has noted for a rollback: it is about to be rolled back, and has
/// held its locks for a moment. A session that has met one looks again soon by itself.
pub fn forget_held() {
    // SAFETY: reads a number of the open transaction.
    let own = unsafe { pg_sys::GetCurrentSubTransactionId() };
    HELD.with_borrow_mut(|held| held.retain(|(begun, _)| *begun < own));
}

/// Note that this transaction gives a lease of messages of a partition until `at`: if it commits, a
/// session that waits for them must know when the lease ends.
pub fn touch_at(group: Topic, partition: PartitionHash, at: Moment) {
    if !is_shared() {
        return;
    }
    call_back_at_end();
    LEASES.with_borrow_mut(|leases| {
        let partition = if leases.len() < TOLD_APART { partition } else { PartitionHash::ANY };
        let known =
            leases.iter_mut().find(|known| (known.group, known.partition) == (group.0, partition));
        match known {
            Some(known) => known.at = known.at.min(at),
            None => leases.push(LeaseEnd { group: group.0, partition, at }),
        }
    });
}

fn note(notes: &mut Vec<WakeUp>, topic: Topic, partition: PartitionHash) {
    if !is_shared() {
        return;
    }
    call_back_at_end();
    let news = WakeUp { topic: topic.0, partition, for_all: false };
    if notes.iter().any(|known| known.topic == topic.0 && (known.for_all || *known == news)) {
        return;
    }
    match notes.len() < TOLD_APART {
        true => notes.push(news),
        false => {
            notes.push(news);
            widen(notes, topic);
        }
    }
}

/// Make of all notes of a topic one that is for all.
fn widen(notes: &mut Vec<WakeUp>, topic: Topic) {
    notes.retain(|known| known.topic != topic.0);
    notes.push(WakeUp { topic: topic.0, partition: PartitionHash::ANY, for_all: true });
}

fn call_back_at_end() {
    // Each may fail for want of memory. What is registered once is not registered again.
    let register: [unsafe fn(); 3] = [register_end, register_subtransaction, register_release];
    while let Some(next) = register.get(REGISTERED.get()) {
        // SAFETY: called once for this process; the callbacks are functions of this library, which
        // stays loaded.
        unsafe { next() };
        REGISTERED.set(REGISTERED.get() + 1);
    }
}

unsafe fn register_end() {
    // SAFETY: see `call_back_at_end`.
    unsafe { pg_sys::RegisterXactCallback(Some(at_end), std::ptr::null_mut()) }
}

unsafe fn register_subtransaction() {
    // SAFETY: see `call_back_at_end`.
    unsafe { pg_sys::RegisterSubXactCallback(Some(at_subtransaction), std::ptr::null_mut()) }
}

unsafe fn register_release() {
    // SAFETY: see `call_back_at_end`.
    unsafe { pg_sys::RegisterResourceReleaseCallback(Some(at_release), std::ptr::null_mut()) }
}

/// Keep the notes that the end of the transaction is for. Nothing here may fail.
#[pg_guard]
unsafe extern "C-unwind" fn at_end(event: pg_sys::XactEvent::Type, _argument: *mut c_void) {
    use pg_sys::XactEvent::{XACT_EVENT_ABORT, XACT_EVENT_COMMIT, XACT_EVENT_PREPARE};
    match event {
        XACT_EVENT_COMMIT => {
            drop(HELD.take());
            ENDED.set(BROUGHT.take());
            COMMITTED.set(PUSHED.take());
            GIVEN.set(LEASES.take());
        }
        XACT_EVENT_ABORT => {
            drop((BROUGHT.take(), PUSHED.take(), LEASES.take()));
            ENDED.set(HELD.take().into_iter().map(|(_, news)| news).collect());
        }
        XACT_EVENT_PREPARE => drop((BROUGHT.take(), PUSHED.take(), HELD.take(), LEASES.take())),
        _ => (),
    }
}

/// A subtransaction that is rolled back gives up the rows that it has locked. Its notes stay, and
/// may wake a session in vain when the transaction ends. One that has noted nothing wakes no
/// session: a look in vain must not wake the session that looks.
#[pg_guard]
unsafe extern "C-unwind" fn at_subtransaction(
    event: pg_sys::SubXactEvent::Type,
    own: pg_sys::SubTransactionId,
    _parent: pg_sys::SubTransactionId,
    _argument: *mut c_void,
) {
    if event == pg_sys::SubXactEvent::SUBXACT_EVENT_ABORT_SUB {
        HELD.with_borrow(|held| {
            let undone = held.iter().filter(|(begun, _)| *begun >= own);
            wake_for_each(undone.map(|(_, news)| news));
        });
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
        COMMITTED.take().iter().for_each(|(queue, partition)| fresh::add(*queue, partition));
        wake_for_each(ENDED.take().iter());
        tell_moments(&GIVEN.take());
    }
}
