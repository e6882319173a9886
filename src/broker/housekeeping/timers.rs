//! The task `timers`: move due timers into the log; and note from which moment on the queue may
//! have timers, where that saves the next calls a walk.
//!
//! Each pop of a queue asks for its next timer, at the end of the index where timers are deleted.
//! While a transaction holds an old snapshot, these stay in the index. So the count of the queue
//! has a floor for timers ([`TimerFloor`]). A session raises it in
//! two steps of this task, the second of which sees that nothing was left behind at the time of the
//! first. It takes the lock `tally` of the queue by a try.
//!
//! That rests on the clock: who schedules a timer after the first step sees a later time. If the
//! clock was set between the two steps, the first one counts for nothing. And now and then a step
//! looks from the start of the index, and moves what should not be there.

use std::time::Instant;

use queen_engine::floor::TimerFloor;
use queen_engine::holes::Holes;

use crate::broker::push::delayed;
use crate::error::Result;
use crate::pg::clock::{self, HOUR, Moment, SECOND};
use crate::pg::random::random;
use crate::pg::session_cache::SessionCache;
use crate::pg::snapshot::{ActiveSnapshot, one_snapshot_per_transaction};
use crate::pg::usage;
use crate::store::queue::Queue;
use crate::store::sweep::SweepStep;
use crate::store::{seen_snapshot, tally, timer};

/// Timers that one step moves into the log.
const TIMERS: usize = 500;
/// A look for the next timer that takes more buffers than this has walked over dead ones.
const LONG_WALK: i64 = 32;
/// A clock that is set back by less than this, just then, leaves no timer behind the floor.
const CLOCK: i64 = SECOND;
/// A first step that is older than this counts for nothing.
const OLD: i64 = 600 * SECOND;
/// Where there is a floor, a session looks below it this often; and once in so many of its first
/// looks, since it may be a short one.
const WHOLE_AFTER: i64 = HOUR;
const FIRST_LOOKS: u64 = 64;
/// Number of queues of which a session remembers the first step, and when it is to look below the
/// floor.
const REMEMBERED: usize = 1024;

/// What the first of two steps has seen.
struct FirstStep {
    /// There was no timer before this moment.
    at: Moment,
    holes: Holes,
    /// When that was: by the server's clock, and by one that is never set.
    seen_at: Moment,
    seen: Instant,
}

impl FirstStep {
    /// Whether the clock has gone on as time has since then, which is not long ago.
    fn is_good(&self, now: Moment) -> bool {
        let passed = i64::try_from(self.seen.elapsed().as_micros()).unwrap_or(i64::MAX);
        passed <= OLD && (now - self.seen_at).abs_diff(passed) < CLOCK.unsigned_abs()
    }
}

thread_local! {
    static FIRST_STEPS: SessionCache<(i64, Moment), FirstStep> = SessionCache::of(REMEMBERED);
    /// When a queue that has a floor is to be looked at from the start.
    static WHOLE_AT: SessionCache<(i64, Moment), Moment> = SessionCache::of(REMEMBERED);
}

/// One step on one queue; counts timers.
pub fn step(queue: &Queue) -> Result<SweepStep> {
    let (first, was_long) = ActiveSnapshot::new_snapshot(|under| look(queue, under))?;
    let moved = delayed::deliver_due(queue, first, TIMERS)?;
    if moved == TIMERS {
        return Ok(SweepStep { removed: moved as u64, goes_on: true, idle_until: None });
    }
    let left = match first {
        Some(at) if at <= clock::now() => {
            // What this step has moved lies before the others.
            ActiveSnapshot::new_snapshot(|under| Ok(timer::next(queue.id, at, under)))?
        }
        first => first,
    };
    // Where the walk was long, the next step raises the floor, or another one after it.
    let again = if was_long { clock::now() + SECOND } else { Moment::MAX };
    let whole_at = WHOLE_AT.with(|all| all.change(&(queue.id, queue.created_at), |at| *at));
    let again = again.min(whole_at.unwrap_or(Moment::MAX));
    let idle_until = Some(left.unwrap_or(Moment::MAX).min(again));
    Ok(SweepStep { removed: moved as u64, goes_on: false, idle_until })
}

/// The moment of the next timer, and whether the look for it was a long one. Then it raises the
/// floor.
fn look(queue: &Queue, under: &ActiveSnapshot) -> Result<(Option<Moment>, bool)> {
    let now = clock::now();
    let floor = tally::timers_from(queue, now, under);
    let from = if looks_below(queue, floor, now) { Moment::MIN } else { floor };
    let before = usage::buffers();
    let next = timer::next(queue.id, from, under);
    let is_from_floor = from == floor && !one_snapshot_per_transaction();
    let was_long = usage::buffers() - before > LONG_WALK && is_from_floor;
    if was_long {
        raise(queue, next.unwrap_or(Moment::MAX), now, under)?;
    }
    Ok((next, was_long))
}

/// Whether it is time to look at the queue's timers from the start.
fn looks_below(queue: &Queue, floor: Moment, now: Moment) -> bool {
    let key = (queue.id, queue.created_at);
    let known = WHOLE_AT.with(|all| all.take(&key));
    if floor == TimerFloor::default().at {
        return false;
    }
    // The clock may have been set back.
    let known = known.map(|at| at.min(now + WHOLE_AFTER));
    let is_time = known.map_or_else(|| random().is_multiple_of(FIRST_LOOKS), |at| at <= now);
    let next = known.filter(|_| !is_time).unwrap_or(now + WHOLE_AFTER);
    WHOLE_AT.with(|all| all.keep(key, next));
    is_time
}

/// Raise the floor to what the first step has seen, if this is the second one, and remember what
/// `under` shows for the next. There is no timer before `next`.
fn raise(queue: &Queue, next: Moment, now: Moment, under: &ActiveSnapshot) -> Result<()> {
    let key = (queue.id, queue.created_at);
    let seen = seen_snapshot::describe(under, queue.identity);
    let earlier = FIRST_STEPS.with(|steps| steps.take(&key));
    let is_good = |first: &FirstStep| first.at <= next && first.is_good(now);
    if let Some(FirstStep { at, holes, .. }) = earlier.filter(is_good) {
        let (revision, mut count) = tally::newest(queue.id, under)?;
        let raised = count.timers.raised(at, &holes, &seen.snapshot);
        if raised != count.timers && tally::try_lead(queue.id, revision)? {
            count.timers = raised;
            tally::append(queue.id, revision, &count);
        }
    }
    let (at, holes) = (next.min(now - CLOCK), seen.snapshot.holes);
    let first = FirstStep { at, holes, seen_at: now, seen: Instant::now() };
    FIRST_STEPS.with(|steps| steps.keep(key, first));
    Ok(())
}
