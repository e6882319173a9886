//! Waiting for something to pop, without a lock: woken by what commits where the library is
//! preloaded, and otherwise by looking again after pauses that grow.

pub mod waiters;

use pgrx::pg_sys;

use crate::pg::clock::{self, Moment, SECOND};
use crate::wait::waiters::{Topic, WaiterSlot};

/// A wait for messages.
pub struct Wait {
    until: Moment,
    pause_ms: i64,
    place: Option<WaiterSlot>,
    /// A place on the list of those who wait has been asked for: for these topics.
    asked_for: Option<(Topic, Option<Topic>)>,
}

const FIRST_PAUSE_MS: i64 = 5;
/// With what a pop takes, less than a tenth of a second.
const LONGEST_PAUSE_MS: i64 = 80;
/// Even who is woken looks again after this: what was prepared commits in silence.
const LONGEST_SLEEP: i64 = 5 * SECOND;

impl Wait {
    pub fn until(until: Moment) -> Self {
        Self { until, pause_ms: FIRST_PAUSE_MS, place: None, asked_for: None }
    }

    pub fn is_over(&self) -> bool {
        clock::now() >= self.until
    }

    /// Sleep after a look in vain, open to cancellation and shutdown. `next`: when something may be
    /// there by itself: a lease that runs out, a retry, a timer. The first time it returns at once,
    /// and when the group has come to be: with a place on the list of those who wait, one has to look
    /// once more.
    pub fn pause(&mut self, queue: Topic, group: Option<Topic>, next: Option<Moment>) {
        if self.asked_for != Some((queue, group)) {
            self.asked_for = Some((queue, group));
            // The old one first: there is one for each session.
            self.place = None;
            self.place = WaiterSlot::take(queue, group);
            if self.place.is_some() {
                // SAFETY: the backend's own latch.
                unsafe { pg_sys::ResetLatch(pg_sys::MyLatch) };
                return;
            }
        }
        let now = clock::now();
        let awake_at = match self.place {
            Some(_) => {
                let next = next.map_or(Moment::MAX, |next| next.max(now + 1000));
                next.min(now + LONGEST_SLEEP)
            }
            None => {
                let pause = self.pause_ms;
                self.pause_ms = (pause * 2).min(LONGEST_PAUSE_MS);
                now + pause * 1000
            }
        };
        let ms = (awake_at.min(self.until) - now) / 1000 + 1;
        let events = pg_sys::WL_LATCH_SET | pg_sys::WL_TIMEOUT | pg_sys::WL_EXIT_ON_PM_DEATH;
        // SAFETY: the backend's own latch.
        unsafe {
            pg_sys::WaitLatch(pg_sys::MyLatch, events as i32, ms.max(1), pg_sys::PG_WAIT_EXTENSION);
            pg_sys::ResetLatch(pg_sys::MyLatch);
        }
        pgrx::check_for_interrupts!();
    }
}
