//! A waiting session's place on the list: one entry for each queue that it waits for.
//!
//! A session that waits for several queues is found and woken in each as any other is, and keeps
//! the time in each. It looks at its queues in an order, and takes from the first that has
//! something. What it was woken for in the others it hands on when it leaves.

use std::cell::Cell;

use super::{CAPACITY, PartitionHash, UNUSED, WAITERS, Waiter, Waiters, Wanted, is_shared};
use crate::pg::clock::Moment;
use crate::pg::latch::LatchAddress;
use crate::pg::process;

/// A session's entries on the list. Dropping it removes them; so does an ERROR, which drops it, and
/// the end of the process.
pub struct WaiterSlot(());

impl WaiterSlot {
    /// Enter this session, for each of `wanted`: in the order in which it looks at them. None
    /// without preload, or if the list has no room.
    pub fn take(wanted: &[Wanted]) -> Option<Self> {
        if !is_shared() {
            return None;
        }
        leave_at_exit();
        let mut waiters = WAITERS.exclusive();
        let count = waiters.count;
        if wanted.len() > CAPACITY - count {
            return None;
        }
        for (entry, wanted) in wanted.iter().enumerate() {
            waiters.list[count + entry] = Waiter {
                latch: LatchAddress::own(),
                place: entry,
                queue: wanted.queue.0,
                group: wanted.group.map_or(0, |group| group.0),
                consumer: wanted.consumer.0,
                partition: wanted.partition,
                ..UNUSED
            };
        }
        waiters.count += wanted.len();
        Some(Self(()))
    }

    /// The session is about to take the snapshot of its next look: from now on a commit wakes it
    /// again.
    pub fn arm(&self) {
        for own in own(&mut WAITERS.exclusive()) {
            own.looks_for = own.is_awake.then_some(own.woken_for);
            own.is_awake = false;
            own.woken_for = PartitionHash::ANY;
            own.alarm = Moment::MAX;
        }
    }

    /// The look has come to its end. In so many of the queues, from the first on, it has used what
    /// the session was woken for.
    pub fn has_looked(&self, looked_at: usize) {
        let mut waiters = WAITERS.exclusive();
        own(&mut waiters).filter(|own| own.place < looked_at).for_each(|own| own.looks_for = None);
    }

    /// The session is about to sleep, and knows of each queue when there may be something. Returns
    /// when it has to wake by itself: at the first of these moments, of those for which it is the
    /// timekeeper.
    pub fn keep_time(&self, next: &[Moment]) -> Moment {
        let mut waiters = WAITERS.exclusive();
        // The look may have used up the latch, where it waited for a table or a page.
        if own(&mut waiters).any(|own| own.is_awake) {
            return 0;
        }
        let latch = LatchAddress::own();
        let mut first = Moment::MAX;
        for at in 0..waiters.count {
            let me = waiters.list[at];
            if me.latch != latch {
                continue;
            }
            let next = next.get(me.place).copied().unwrap_or(Moment::MAX);
            let knows = |other: &Waiter| {
                other.latch != latch && other.is_like(&me) && !other.is_awake && other.alarm <= next
            };
            let is_kept = next != Moment::MAX && waiters.used().iter().any(knows);
            let alarm = if is_kept { Moment::MAX } else { next };
            let own = &mut waiters.list[at];
            (own.is_timekeeper, own.alarm) = (alarm != Moment::MAX, alarm);
            first = first.min(alarm);
        }
        first
    }
}

impl Drop for WaiterSlot {
    fn drop(&mut self) {
        leave();
    }
}

/// This session's entries.
fn own(waiters: &mut Waiters) -> impl Iterator<Item = &mut Waiter> {
    let latch = LatchAddress::own();
    let count = waiters.count;
    waiters.list[..count].iter_mut().filter(move |waiter| waiter.latch == latch)
}

/// Remove this session's entries, and hand on what it was woken for, and the time that it kept.
fn leave() {
    let latch = LatchAddress::own();
    let mut waiters = WAITERS.exclusive();
    while let Some(place) = waiters.used().iter().position(|waiter| waiter.latch == latch) {
        let gone = waiters.list[place];
        waiters.count -= 1;
        waiters.list[place] = waiters.list[waiters.count];
        // An ERROR may have ended the look in the middle, or it has not come to this queue.
        let unused = [gone.is_awake.then_some(gone.woken_for), gone.looks_for];
        unused.into_iter().flatten().for_each(|partition| waiters.wake_another(&gone, partition));
        if gone.is_timekeeper {
            waiters.wake_one_like(&gone);
        }
    }
}

thread_local! {
    static LEAVES_AT_EXIT: Cell<bool> = const { Cell::new(false) };
}

/// See that this process leaves the list when it ends: termination does not unwind, so it drops no
/// slot.
fn leave_at_exit() {
    if !LEAVES_AT_EXIT.replace(true) {
        process::before_exit(leave);
    }
}
