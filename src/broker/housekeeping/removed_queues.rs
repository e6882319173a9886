//! The task `removed_queues`: delete segments of queues that are gone. They come from transactions
//! that had pushed before the queue was removed, and committed after.
//!
//! The log of a removed queue is deleted at once. While a transaction holds an old snapshot, all of
//! it stays in the indexes. So a session remembers a floor for each such log, as the count of a
//! queue stores one. Takes no lock but those of the rows that it deletes, and waits for none.

use std::collections::BTreeMap;

use queen_engine::floor::Floor;

use crate::broker::restore;
use crate::error::Result;
use crate::pg::clock::Moment;
use crate::pg::session_cache::SessionCache;
use crate::pg::snapshot::{ActiveSnapshot, one_snapshot_per_transaction};
use crate::store::segment::{self, news_above};
use crate::store::sweep::SweepStep;
use crate::store::{queue, seen_snapshot};

/// Segments that a step deletes of one queue.
const STEP: usize = 1000;
/// Number of removed queues whose floor a session remembers.
const REMEMBERED: usize = 4096;

thread_local! {
    static FLOORS: SessionCache<i64, Floor> = SessionCache::of(REMEMBERED);
}

/// One step; counts segments.
pub fn step() -> Result<SweepStep> {
    // One snapshot for queues and segments, or a queue that has just been created would look like
    // one that has been removed.
    ActiveSnapshot::new_snapshot(|under| {
        let mut all = SweepStep::idle(Moment::MAX);
        for queue in queue::gone(segment::queues(), under) {
            let (removed, is_all) = delete(queue, under)?;
            all.removed += removed;
            all.goes_on |= !is_all;
            if removed > 0 || !is_all {
                all.idle_until = None;
            }
            pgrx::check_for_interrupts!();
        }
        Ok(all)
    })
}

/// Delete the segments of a removed queue; returns how many, and whether these were all. Segments
/// that another transaction is deleting are left to it.
fn delete(queue: i64, under: &ActiveSnapshot) -> Result<(u64, bool)> {
    let has_memory = !one_snapshot_per_transaction();
    let known = FLOORS.with(|floors| floors.take(&queue)).filter(|_| has_memory);
    let floor = known.unwrap_or_default();
    let found = news_above(queue, &floor, (0, &Default::default()), STEP, under);
    if found.is_empty() {
        let seen = seen_snapshot::describe(under, restore::current()?);
        // What this transaction has deleted itself may come back.
        if has_memory && seen.snapshot.own.is_none() {
            let kept = segment::still_excepted(queue, &floor, &seen.snapshot, under);
            let raised = floor.raised(seen.snapshot.next, &kept, &seen.snapshot);
            FLOORS.with(|floors| floors.keep(queue, raised));
        }
        return Ok((0, true));
    }
    let is_all = found.len() < STEP;
    let mut partitions = BTreeMap::<String, Vec<u64>>::new();
    for row in found {
        let (partition, id) = row.segment.key;
        partitions.entry(partition).or_default().push(id);
    }
    let deleted =
        partitions.iter().map(|(partition, ids)| segment::delete_free(queue, partition, ids));
    let removed = deleted.sum();
    // Where all of them were locked, another transaction deletes them.
    Ok((removed, is_all || removed == 0))
}
