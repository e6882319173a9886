//! Putting back what expired leases hold.

use crate::error::Result;
use crate::pg::clock::{self, Moment, SECOND};
use crate::pg::spi::ActiveSnapshot;
use crate::store::cursor::{self, LockAttempt, Notice};
use crate::store::group::{self, Group};
use crate::store::queue::Queue;
use crate::store::sweep::SweepStep;
use crate::store::unit::Unit;
use crate::store::{claim, discovery, receipt, seen_snapshot};

/// Timers, or leases, dealt with in one step.
const STEP: usize = 500;
/// A step that has found nothing to do goes on for this long.
const LONGEST_STEP: i64 = SECOND / 20;

/// Put back what expired leases hold, so that it is found as soon as somebody looks. Begins where
/// the group's search has come to: before that, others have looked.
pub fn reclaim(queue: &Queue, now: Moment) -> Result<SweepStep> {
    ActiveSnapshot::new_snapshot(|under| {
        let mut all = SweepStep::default();
        for group in group::of_queue(&queue.name, under)? {
            let (_, found) = discovery::newest(group.id, under)?.unwrap_or_default();
            let mut from = found.due;
            loop {
                let due = discovery::due(group.id, from, now, STEP, under);
                let full = due.len() == STEP;
                from = due.last().map_or(from, |hint| (hint.at, hint.cursor));
                for unit in due.into_iter().filter_map(|hint| hint.unit) {
                    all.removed += reclaim_in(queue, &group, Unit::named(&unit), now, under)?;
                }
                if !full || all.removed > 0 || clock::now() - now > LONGEST_STEP {
                    all.goes_on |= full && all.removed > 0;
                    break;
                }
                pgrx::check_for_interrupts!();
            }
        }
        Ok(all)
    })
}

/// Put back what expired leases of one partition hold, or of one claim; how many leases.
fn reclaim_in(
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
    if ended.is_empty() || cursor::try_lock(&located, place, under)? != LockAttempt::Locked {
        return Ok(0);
    }
    let xid = seen_snapshot::assign_xid(queue.identity);
    cursor::append(&located, &state, Notice::Ready { xid });
    for (lease, trace) in &ended {
        receipt::insert(&located, *lease, trace, now);
    }
    Ok(ended.len() as u64)
}
