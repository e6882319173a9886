//! How a call waits for messages. Between two looks it sleeps here, without a lock of its own.
//!
//! A look belongs to the caller: a pop with `wait`, which may look at several queues, or
//! `queen_wait`. With the library preloaded, a
//! transaction that brings messages wakes the sleeping session when it commits ([`waiters`]).
//! Without preload, or if too many sessions wait, the session looks again after pauses that grow.

pub mod fresh;
pub mod waiters;

use crate::error::Result;
use crate::pg::clock::{self, Moment, SECOND};
use crate::pg::{client, latch};
use crate::wait::waiters::{WaiterSlot, Wanted};

/// One call's wait for messages.
pub struct Wait {
    until: Moment,
    /// The next pause of a session that no commit wakes.
    pause_ms: i64,
    slot: Option<WaiterSlot>,
    /// What a slot was asked for, whether or not there was one.
    asked_for: Vec<Wanted>,
}

const FIRST_PAUSE_MS: i64 = 5;
/// With the time that a pop takes, a message waits for less than a tenth of a second.
const LONGEST_PAUSE_MS: i64 = 80;
/// A session that commits wake looks again after this all the same: COMMIT PREPARED wakes no
/// session.
const LONGEST_SLEEP: i64 = 5 * SECOND;

/// Called by `_PG_init`: in the postmaster it sets up shared memory for the list of waiting
/// sessions.
pub fn register() {
    waiters::set_up();
    fresh::set_up();
}

impl Wait {
    /// A wait that ends at this moment.
    pub fn until(until: Moment) -> Self {
        Self { until, pause_ms: FIRST_PAUSE_MS, slot: None, asked_for: Vec::new() }
    }

    /// Whether that moment has come.
    pub fn is_over(&self) -> bool {
        clock::now() >= self.until
    }

    /// Run one look. A commit that comes after its beginning may have something that it does not
    /// see: the session does not sleep then, before it has looked again. `looked_at` tells how many
    /// of the queues the look has come to, from the first on.
    pub fn look<T>(
        &self,
        look: impl FnOnce() -> Result<T>,
        looked_at: impl FnOnce(&T) -> usize,
    ) -> Result<T> {
        let Some(slot) = &self.slot else { return look() };
        slot.arm();
        let found = look()?;
        slot.has_looked(looked_at(&found));
        Ok(found)
    }

    /// Sleep after a look that has found nothing. `wanted`: what to be woken for, one for each
    /// queue in the order in which the session looks at them. `next`: the moment of each at which
    /// something is there without a commit: a lease expires, a retry or a timer is due.
    /// Cancellation, termination and shutdown end the sleep. If the client has gone, the session
    /// ends.
    ///
    /// Returns at once where it has just got a slot, which happens the first time, and when the
    /// group has been registered in the meantime. The caller has to look once more then: a commit
    /// after the last look, and before the slot, has not woken this session.
    pub fn pause(&mut self, wanted: Vec<Wanted>, next: &[Option<Moment>]) {
        if self.asked_for != wanted {
            // Give the old slot back first: a session has one.
            self.slot = None;
            self.slot = WaiterSlot::take(&wanted);
            self.asked_for = wanted;
            if self.slot.is_some() {
                latch::reset_own();
                return;
            }
        }
        let now = clock::now();
        let awake_at = match &self.slot {
            Some(slot) => {
                let next =
                    next.iter().map(|next| next.map_or(Moment::MAX, |at| at.max(now + 1000)));
                slot.keep_time(&next.collect::<Vec<_>>()).min(now + LONGEST_SLEEP)
            }
            None => {
                let pause = self.pause_ms;
                self.pause_ms = (pause * 2).min(LONGEST_PAUSE_MS);
                now + pause * 1000
            }
        };
        let ms = (awake_at.min(self.until) - now) / 1000 + 1;
        latch::sleep(ms);
        // The next look may take messages, which a client that has gone would keep from all others
        // for the time of a lease.
        client::ensure_connected();
    }
}
