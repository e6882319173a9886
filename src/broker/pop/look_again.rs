//! The wait between two looks, for a call that waits until there is something to pop, in one queue
//! or in one of several: [`super::request`] and [`super::ready`].
//!
//! Between two looks the session holds no lock on a row or an object of ours, and no snapshot of a
//! look. (A pop is one statement of its caller, and keeps PostgreSQL's weakest lock on the tables
//! that it has read: commands that need a table for themselves wait for it.) A transaction that
//! commits messages wakes the session ([`crate::wait`]). Where no commit will, the clock does, at
//! the moment that [`NextLook`] names.

use std::ops::ControlFlow;

use crate::broker::lookup::ForPop;
use crate::error::Result;
use crate::pg::clock::{self, Moment, SECOND};
use crate::pg::snapshot::ActiveSnapshot;
use crate::store::discovery;
use crate::wait::Wait;
use crate::wait::waiters::{PartitionHash, Topic, Wanted};

/// What a look at a queue in vain says of the next one.
pub struct NextLook {
    /// The group's id, if there is a group.
    group: Option<i64>,
    /// When there may be something without a commit, if such a moment is known.
    at: Option<Moment>,
}

/// What the last look of a call came to.
pub struct LookEnd<T> {
    pub found: T,
    /// How many of the queues it has looked at, from the first on.
    pub looked_at: usize,
}

/// What a look came to. `Break`: the call is over, with this. `Continue`: what it says of each
/// queue.
pub type LookResult<T> = Result<ControlFlow<LookEnd<T>, Vec<NextLook>>>;

/// Look until a look ends the call. `partition`: the one that the call waits for alone. `is_last`
/// tells `look` that the time is over at `until`: it must end the call then.
pub fn look_until<T>(
    queues: &[&str],
    group: &str,
    partition: Option<&str>,
    until: Moment,
    mut look: impl FnMut(bool) -> LookResult<T>,
) -> Result<T> {
    let mut wait = Wait::until(until);
    loop {
        let is_last = wait.is_over();
        let looked_at = |result: &ControlFlow<LookEnd<T>, _>| match result {
            ControlFlow::Break(end) => end.looked_at,
            ControlFlow::Continue(_) => queues.len(),
        };
        match wait.look(|| look(is_last), looked_at)? {
            ControlFlow::Break(end) => return Ok(end.found),
            ControlFlow::Continue(next) => {
                let wanted = queues.iter().zip(&next).map(|(queue, next)| Wanted {
                    queue: Topic::queue(queue),
                    group: next.group.map(Topic::group),
                    consumer: Topic::consumer(queue, group),
                    partition: partition.map_or(PartitionHash::ANY, PartitionHash::of),
                });
                let moments: Vec<_> = next.iter().map(|next| next.at).collect();
                wait.pause(wanted.collect(), &moments);
            }
        }
    }
}

/// How often a waiting call looks for messages that become old enough to be delivered: these have
/// no moment of their own.
const RIPENING: i64 = SECOND / 10;
/// How often a waiting call looks for messages that another transaction has locked. Its end wakes
/// the call, unless that transaction was prepared, or has given the lock back within the look.
const LOCKED: i64 = SECOND / 10;
/// The shortest time to a moment. Moments come in crowds, and what is due may be locked by another
/// consumer of the group, so a waiting call looks at most this often for them.
const SHORTEST: i64 = SECOND / 50;

impl NextLook {
    /// For a look that has found no group, or no queue, or a group that is paused.
    pub fn when_woken(group: Option<i64>) -> Self {
        Self { group, at: None }
    }

    /// For a look that has found this: at the next timer, the end of a lease, a retry, or when a
    /// message may have become old enough; while the group is paused, when woken. `met_lock`: or
    /// soon, since another transaction may give messages back.
    pub fn after(found: &ForPop, met_lock: bool, under: &ActiveSnapshot) -> Self {
        let now = clock::now();
        let group = found.group.as_ref().map(|group| group.id);
        if found.is_paused() {
            return Self::when_woken(group);
        }
        let delay = found.queue.as_ref().map_or(0, |queue| queue.options.delay());
        let ripe = (delay > 0).then(|| now + delay.min(RIPENING));
        let due = group.and_then(|group| discovery::next_due(group, now, under));
        let unlocked = met_lock.then_some(now + LOCKED);
        let next = [found.next_timer, ripe, due, unlocked].into_iter().flatten().min();
        Self { group, at: next.map(|next| next.max(now + SHORTEST)) }
    }
}
