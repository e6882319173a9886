//! Waiting for something to pop, without a snapshot of its own and without a lock.

use pgrx::pg_sys;

use crate::store::clock::{self, Moment};

/// Looks again after pauses that grow from 5 to 100 ms, until a moment has come.
pub struct Poll {
    until: Moment,
    pause_ms: i64,
}

const LONGEST_PAUSE_MS: i64 = 100;

impl Poll {
    pub fn until(until: Moment) -> Self {
        Self { until, pause_ms: 5 }
    }

    pub fn is_over(&self) -> bool {
        clock::now() >= self.until
    }

    /// Sleep, open to cancellation and shutdown.
    pub fn pause(&mut self) {
        let left_ms = (self.until - clock::now()) / 1000 + 1;
        let ms = self.pause_ms.min(left_ms).max(1);
        self.pause_ms = (self.pause_ms * 2).min(LONGEST_PAUSE_MS);
        let events = pg_sys::WL_LATCH_SET | pg_sys::WL_TIMEOUT | pg_sys::WL_EXIT_ON_PM_DEATH;
        // SAFETY: the backend's own latch.
        unsafe {
            pg_sys::WaitLatch(pg_sys::MyLatch, events as i32, ms, pg_sys::PG_WAIT_EXTENSION);
            pg_sys::ResetLatch(pg_sys::MyLatch);
        }
        pgrx::check_for_interrupts!();
    }
}
