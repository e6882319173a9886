//! `queen_purge`: removing every visible message of a queue.
//!
//! The call holds the queue alone, with its count, its groups and all their cursors and claims. The
//! holder of a lease loses it. Options, groups, timers and dead letters stay.

use std::collections::HashMap;

use queen_engine::cursor::Start;

use crate::broker::group::revoke::{delete_claims, write_state};
use crate::broker::hold::attempts::hold_in_attempts;
use crate::broker::hold::hold_queue_and_cursors;
use crate::broker::stats::count::ArrivalCount;
use crate::error::Result;
use crate::pg::snapshot::ActiveSnapshot;
use crate::store::queue::Queue;
use crate::store::{cursor_or_claim, group, seen_snapshot, segment};

/// Remove every visible message of the queue; returns how many. Error 40001 in REPEATABLE READ if
/// the queue's count has been written since the snapshot.
pub fn purge(queue: &Queue) -> Result<i64> {
    let (groups, locked) =
        hold_in_attempts(&queue.name, |attempt| hold_queue_and_cursors(attempt, queue))?;
    ActiveSnapshot::new_snapshot(|under| {
        let seen = seen_snapshot::describe(under, queue.identity);
        let mut count = ArrivalCount::as_of(queue.id, &seen, None, under)?;
        count.need_newest(&queue.name)?;
        let starts: HashMap<i64, &Start> = groups.iter().map(|g| (g.id, &g.start)).collect();
        let located = cursor_or_claim::locate(locked, |group| starts[&group], under)?;
        for group in &groups {
            let settled: i64 = located
                .iter()
                .filter(|located| located.group == group.id && located.message.is_none())
                .map(|located| located.cursor.settled)
                .sum();
            // Nothing is pending any more; what this transaction has pushed will never be counted.
            group::set_baseline(group.id, count.tally.messages as i64 - settled);
        }
        let mut claims = Vec::new();
        for located in &located {
            let cursor = &located.cursor;
            match located.message {
                None => write_state(queue, located, (cursor.emptied(), cursor.revoked())),
                Some(_) => claims.push(located),
            }
        }
        delete_claims(claims)?;
        let removed = segment::delete_all(queue.id);
        count.remove_all();
        count.write();
        Ok(removed)
    })
}
