//! The task `leases`: put back what expired leases hold, and announce it, so that the next pop
//! finds it at once. Without this a pop finds it too, when its search comes to the deadline.
//!
//! The step tries the lock of each cursor or claim. One that another transaction holds, or has
//! moved on since the step's snapshot, is left as it is.

use crate::broker::stats::outcomes;
use crate::error::Result;
use crate::pg::clock::{self, Moment, SECOND};
use crate::pg::session_cache::SessionCache;
use crate::pg::snapshot::ActiveSnapshot;
use crate::store::cursor;
use crate::store::cursor_or_claim::{self, LockAttempt};
use crate::store::group::{self, Group};
use crate::store::long_walk::LongWalk;
use crate::store::progress::{self, Notice};
use crate::store::queue::Queue;
use crate::store::sweep::{Bookmark, SweepStep};
use crate::store::unit::Unit;
use crate::store::{claim, discovery, seen_snapshot};

/// Moments looked at at a time.
const CHUNK: usize = 500;
/// Number of groups for which the worker remembers how far it has looked.
const REMEMBERED: usize = 4096;
/// A step that has found nothing to do looks on for this long, in microseconds.
const LONGEST_STEP: i64 = SECOND / 20;

thread_local! {
    /// By group and registration: up to which moment the worker has looked.
    static LOOKED: SessionCache<(i64, Moment), LongWalk<(Moment, u64)>> =
        SessionCache::of(REMEMBERED);
}

/// One step on one queue: put back what leases hold that had expired at `now`. Counts leases. While
/// the tables stay as they are, the next step has nothing to do before the next lease ends.
pub fn step(queue: &Queue, now: Moment, bookmark: Bookmark) -> Result<SweepStep> {
    ActiveSnapshot::new_snapshot(|under| {
        let mut all = SweepStep::idle(Moment::MAX);
        for group in group::of_queue(&queue.name, under)? {
            // A pop that searches for work has looked at all moments before this one.
            let (_, found) = discovery::newest(group.id, under)?.unwrap_or_default();
            let key = (group.id, group.registered_at);
            let known = LOOKED.with(|looked| looked.take(&key));
            let mut known = known.filter(|_| bookmark == Bookmark::InMemory).unwrap_or_default();
            let mut look = known.begin(now);
            let mut from = found.due_from(now);
            from = look.from.map_or(from, |looked| looked.max(from));
            loop {
                let due = look.walk(|| discovery::due(group.id, from, now, CHUNK, under));
                let is_full = due.len() == CHUNK;
                from = due.last().map_or(from, |hint| (hint.at, hint.cursor));
                for unit in due.into_iter().filter_map(|hint| hint.unit) {
                    all.removed += reclaim(queue, &group, Unit::named(&unit), now, under)?;
                }
                if !is_full {
                    let next = discovery::next_due(group.id, now, under).unwrap_or(Moment::MAX);
                    let complete_until = known.end(&look, (now, 0), clock::now());
                    let next = next.min(complete_until);
                    all.idle_until = all.idle_until.map(|until| until.min(next));
                    break;
                }
                if all.removed > 0 || clock::now() - now > LONGEST_STEP {
                    all.goes_on |= all.removed > 0;
                    all.idle_until = None;
                    break;
                }
                pgrx::check_for_interrupts!();
            }
            if bookmark == Bookmark::InMemory {
                LOOKED.with(|looked| looked.keep(key, known));
            }
        }
        Ok(all)
    })
}

/// Put back what expired leases hold of one partition, or of one claim. Returns how many leases.
fn reclaim(
    queue: &Queue,
    group: &Group,
    unit: Unit<'_>,
    now: Moment,
    under: &ActiveSnapshot,
) -> Result<u64> {
    let status = match unit {
        Unit::Partition(name) => cursor::status(group.id, &group.start, name, under)?,
        Unit::Claim { id, .. } => {
            claim::find(id, under).map(|row| row.locate(under)).transpose()?
        }
    };
    let Some((located, place)) = status else { return Ok(0) };
    let mut state = located.cursor.clone();
    let ended = state.reclaim(now, queue.identity.void_before);
    if ended.is_empty() || cursor_or_claim::try_lock(&located, place, under)? != LockAttempt::Locked
    {
        return Ok(0);
    }
    let xid = seen_snapshot::assign_xid(queue.identity);
    progress::append(&located, &state, Notice::Ready { xid }, &ended);
    outcomes::count_expired(group.id, ended.len());
    Ok(ended.len() as u64)
}
