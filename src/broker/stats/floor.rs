//! The floor of a queue's log: up to where the log is empty, so that no reader steps over what was
//! deleted there. What a floor says, and why it holds, is the engine's
//! ([`Floor`](queen_engine::floor::Floor)). It is stored with the count of the queue, by the
//! transaction that holds the lock `tally`: one that has deleted messages.

use queen_engine::floor::Floor;

use crate::error::Result;
use crate::pg::snapshot::{ActiveSnapshot, one_snapshot_per_transaction};
use crate::store::queue::Queue;
use crate::store::segment;
use crate::store::{seen_snapshot, waterline};

/// The floor as it is after what this transaction has deleted. The caller holds the lock `tally` of
/// the queue, and writes the floor with its count. In REPEATABLE READ the floor stays.
pub fn raise(queue: &Queue, floor: &Floor) -> Result<Floor> {
    if one_snapshot_per_transaction() {
        return Ok(floor.clone());
    }
    note_waterline(queue)?;
    ActiveSnapshot::new_snapshot(|under| {
        let own = seen_snapshot::assign_xid(queue.identity);
        let seen = seen_snapshot::describe(under, queue.identity);
        let kept = segment::still_excepted(queue.id, floor, &seen.snapshot, under);
        let first = segment::first_pusher(queue.id, floor.xid, under).unwrap_or(own);
        let raised = floor.raised(first, &kept, &seen.snapshot);
        let Some((xid, segment)) = waterline::upto(queue.id, raised.xid, under) else {
            return Ok(raised);
        };
        if let Some((before, _)) = waterline::upto(queue.id, floor.xid, under) {
            waterline::prune(queue.id, before, xid);
        }
        Ok(raised.with_segment(segment))
    })
}

/// So many segment ids may be drawn between two waterlines. A reader steps over as many at most.
const APART: u64 = 64;

/// Note how far segment ids have come at this moment, for the time when the floor comes to the
/// present xid.
pub fn note_waterline(queue: &Queue) -> Result<()> {
    ActiveSnapshot::new_snapshot(|under| {
        // The segment id first: a transaction that gets its xid after that draws higher ones.
        let drawn = segment::last_drawn_id(under);
        let last = waterline::upto(queue.id, i64::MAX as u64, under);
        if last.is_some_and(|(_, segment)| drawn < segment + APART) {
            return Ok(());
        }
        let seen = seen_snapshot::describe(under, queue.identity);
        waterline::note(queue.id, seen.snapshot.next, drawn);
        Ok(())
    })
}
