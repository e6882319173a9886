//! `queen_purge`: removing every visible message of a queue, or of one partition.
//!
//! The call holds the queue alone, with its count and its groups, and all cursors and claims in
//! question: those of the queue, or those of the partition. The holder of a lease there loses it.
//! Options, groups, timers and dead letters stay. The transaction_ids of the removed messages are
//! forgotten, so that their senders may push them again.

use std::collections::{HashMap, HashSet};

use queen_engine::cursor::{Cursor, Start};
use queen_engine::message::MessageId;

use crate::broker::group::revoke::{delete_claims, write_state};
use crate::broker::group::unordered_partition::UnorderedPartition;
use crate::broker::hold::attempts::hold_in_attempts;
use crate::broker::hold::{all_there_are, hold_queue_and_cursors, hold_queue_and_groups};
use crate::broker::push::max_depth;
use crate::broker::stats::count::{ArrivalCount, set_missing_baseline};
use crate::broker::stats::floor;
use crate::error::Result;
use crate::pg::clock;
use crate::pg::snapshot::ActiveSnapshot;
use crate::store::cursor_or_claim::LockedCursor;
use crate::store::group::Group;
use crate::store::located::Located;
use crate::store::queue::Queue;
use crate::store::segment::SegmentSummary;
use crate::store::{
    admission, cursor, cursor_or_claim, group, locks, seen_snapshot, segment, tally,
};

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
        admission::forget(queue.id, None);
        max_depth::forget(queue.id);
        count.remove_all();
        count.tally.purges += 1;
        count.tally.floor = floor::raise(queue, &count.tally.floor)?;
        count.write();
        Ok(removed)
    })
}

/// Remove every visible message of one partition; returns how many. Each group counts what it has
/// lost as settled. Error 40001 in REPEATABLE READ as in [`purge`].
pub fn purge_partition(queue: &Queue, partition: &str) -> Result<i64> {
    let of = (queue.id, partition);
    let floor = |under: &ActiveSnapshot| tally::floors(queue, clock::now(), under).log;
    let is_there =
        |under: &ActiveSnapshot| Ok(segment::oldest_from(of, 0, &floor(under), under).is_some());
    if !ActiveSnapshot::new_snapshot(is_there)? {
        return Ok(0);
    }
    let (mut groups, locked) = hold_partition(queue, partition)?;
    ActiveSnapshot::new_snapshot(|under| {
        let seen = seen_snapshot::describe(under, queue.identity);
        let mut count = ArrivalCount::as_of(queue.id, &seen, None, under)?;
        count.need_newest(&queue.name)?;
        groups.iter_mut().for_each(|group| set_missing_baseline(&count, group, under));
        let starts: HashMap<i64, &Start> = groups.iter().map(|g| (g.id, &g.start)).collect();
        let mut of_groups: HashMap<i64, Vec<Located>> = HashMap::new();
        for located in cursor_or_claim::locate(locked, |group| starts[&group], under)? {
            of_groups.entry(located.group).or_default().push(located);
        }
        let rows = segment::rows(of, &count.tally.floor, under);
        let (own, counted): (Vec<_>, Vec<_>) =
            rows.into_iter().partition(|row| seen.snapshot.own == Some(row.xid));
        let removed = Removed { counted, own };
        for group in &groups {
            let located = of_groups.remove(&group.id).unwrap_or_default();
            empty(queue, group, located, &removed)?;
        }
        for row in &removed.counted {
            count.tally.remove(row.messages, row.bytes);
        }
        count.tally.purges += 1;
        count.write();
        let ids: Vec<u64> = removed.all().map(|row| row.id).collect();
        segment::delete(queue.id, partition, &ids);
        admission::forget(queue.id, Some(partition));
        max_depth::forget(queue.id);
        Ok(removed.all().map(|row| row.messages as i64).sum())
    })
}

/// Hold the queue alone, with its count and its groups, and the cursors and claims of one
/// partition. A group that has not read the partition gets a cursor, which counts what it loses.
fn hold_partition(queue: &Queue, partition: &str) -> Result<(Vec<Group>, Vec<LockedCursor>)> {
    hold_in_attempts(&queue.name, |attempt| {
        attempt.lock_whole(locks::tally(queue.id));
        let groups = hold_queue_and_groups(attempt, queue)?;
        for group in &groups {
            let (id, name) = (group.id, partition.to_owned());
            attempt.lock_rows(move || {
                cursor::create(id, vec![name.clone()]);
                Ok(())
            })?;
        }
        let ids = |under: &ActiveSnapshot| {
            Ok(groups
                .iter()
                .flat_map(|g| cursor_or_claim::ids_in(g.id, partition, under))
                .collect())
        };
        let mut ids: Vec<u64> = all_there_are(ids)?;
        ids.sort_unstable();
        let locked = attempt.lock_cursors(&ids)?;
        Ok((groups, locked))
    })
}

/// The segments that a purge of a partition removes.
struct Removed {
    /// Those that have arrived in the queue's count.
    counted: Vec<SegmentSummary>,
    /// Those of this transaction. They will never be counted, since no later transaction sees them.
    own: Vec<SegmentSummary>,
}

impl Removed {
    fn all(&self) -> impl Iterator<Item = &SegmentSummary> {
        self.counted.iter().chain(&self.own)
    }
}

/// Write the state of a group whose messages of the partition are gone, and delete its claims.
fn empty(queue: &Queue, group: &Group, located: Vec<Located>, removed: &Removed) -> Result<()> {
    let own: HashSet<u64> = removed.own.iter().map(|row| row.id).collect();
    let (claims, cursors): (Vec<_>, Vec<_>) =
        located.into_iter().partition(|located| located.message.is_some());
    delete_claims(&claims)?;
    for located in &cursors {
        let revoked = located.cursor.revoked();
        let mut emptied = located.cursor.emptied();
        emptied.settled = match group.is_ordered(&queue.options) {
            true => settled(&located.cursor, removed, &own),
            false => {
                let is_counted =
                    |claim: &&Located| claim.message.is_none_or(|m| !own.contains(&m.segment()));
                let of = claims.iter().filter(is_counted).chain([located]).cloned().collect();
                let partition = UnorderedPartition::of(group, of);
                partition.settled() + partition.unsettled(&removed.counted)
            }
        };
        write_state(queue, located, (emptied, revoked));
    }
    Ok(())
}

/// What an ordered group has settled of the partition when all of it is gone: what it had settled
/// and all the rest, without what this transaction has pushed.
fn settled(cursor: &Cursor, removed: &Removed, own: &HashSet<u64>) -> i64 {
    let messages = |rows: &[SegmentSummary], is_read: bool| -> i64 {
        let rows = rows.iter().filter(|row| cursor.has_read(row.id, row.xid) == is_read);
        rows.map(|row| row.messages as i64).sum()
    };
    let held = cursor.leases.iter().flat_map(|lease| lease.held.messages());
    let is_own = |message: &MessageId| own.contains(&message.segment());
    let open_own = held.chain(cursor.waiting.messages()).filter(is_own).count() as i64;
    let settled_own = messages(&removed.own, true) - open_own;
    let open_counted = cursor.open() as i64 - open_own;
    cursor.settled - settled_own + messages(&removed.counted, false) + open_counted
}
