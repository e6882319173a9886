//! Moving groups along the log by hand: seek, purge, unsubscribe. Whoever holds a lease there
//! loses it, and is told so (QN002).

use std::collections::HashMap;

use queen_engine::cursor::{Cursor, Start};
use queen_engine::lease::LeaseId;
use queen_engine::receipt::Receipt;

use crate::api::register::{Beginning, Mode};
use crate::error::Result;
use crate::store::clock::{self, Moment};
use crate::store::cursor::{self, Located, Notice};
use crate::store::group::{self, Group};
use crate::store::queue::Queue;
use crate::store::segment::{self, Row};
use crate::store::snapshot::{self, Taken};
use crate::store::spi::Under;
use crate::store::{discovery, receipt, tally};
use crate::tallying::Count;

/// Move the whole group; returns the number of partitions moved.
pub fn seek(queue: &Queue, group: &Group, mode: Mode) -> Result<usize> {
    // Partitions nobody has read get a cursor, whose announcement lets them be found again.
    for partition in Under::new_snapshot(|under| Ok(segment::partitions(queue.id, under)))? {
        cursor::create(queue.id, group.id, &partition)?;
    }
    let locked = cursor::lock(&cursors_of(&[group.id])?)?;
    Under::new_snapshot(|under| {
        let last_drawn = segment::last_drawn_id(under);
        let taken = snapshot::describe(under, queue.identity);
        let located = cursor::locate(locked, |_| &group.start, under)?;
        let beginning = Beginning::of(mode, Some(queue.id), last_drawn, &taken, under);
        let settled: i64 = located.iter().map(|located| located.cursor.settled).sum();
        match beginning.messages {
            Some(messages) => group::move_to(group.id, &beginning.start, messages + settled, None),
            None => {
                let removed = tally::newest(queue.id, under)?.1.removed_messages as i64;
                group::move_to(group.id, &beginning.start, 0, Some(removed - settled));
            }
        }
        for located in &located {
            write(queue, located, located.cursor.moved_to(beginning.start.clone()));
        }
        Ok(located.len())
    })
}

/// Move the group in one partition; returns 0 if there is none of this name.
pub fn seek_partition(queue: &Queue, group: &Group, partition: &str, mode: Mode) -> Result<usize> {
    let is_there = Under::new_snapshot(|under| {
        Ok(segment::oldest_from(queue.id, partition, 0, under).is_some()
            || cursor::status(group.id, &group.start, partition, under)?.is_some())
    })?;
    if !is_there {
        return Ok(0);
    }
    cursor::create(queue.id, group.id, partition)?;
    let id = Under::new_snapshot(|under| {
        Ok(cursor::status(group.id, &group.start, partition, under)?.map(|(found, _)| found.id))
    })?;
    let locked = cursor::lock(&id.into_iter().collect::<Vec<_>>())?;
    Under::new_snapshot(|under| {
        let last_drawn = segment::last_drawn_id(under);
        let taken = snapshot::describe(under, queue.identity);
        for located in cursor::locate(locked, |_| &group.start, under)? {
            let rows = segment::rows(queue.id, partition, under);
            let start = start_in(&rows, mode, last_drawn, &taken);
            let (mut moved, revoked) = located.cursor.moved_to(start);
            moved.settled += unsettled(&located.cursor, &rows) - unsettled(&moved, &rows);
            write(queue, &located, (moved, revoked));
        }
        Ok(1)
    })
}

/// Where a cursor begins in a partition that holds `rows`.
fn start_in(rows: &[Row], mode: Mode, last_drawn: u64, taken: &Taken) -> Start {
    match mode {
        Mode::All => Start::default(),
        Mode::New => Start::after(last_drawn, &taken.snapshot),
        Mode::From(at) => {
            let first = rows.iter().filter(|row| row.created_at >= at).map(|row| row.id).min();
            let position = first.map_or(last_drawn, |first| first - 1);
            Start { since: Some(at), ..Start::after(position, &taken.snapshot) }
        }
    }
}

/// Messages of a partition that are not settled: read and open, or not read yet.
fn unsettled(cursor: &Cursor, rows: &[Row]) -> i64 {
    let unread = rows.iter().filter(|row| !cursor.has_read(row.id, row.xid));
    unread.map(|row| row.messages as i64).sum::<i64>() + cursor.open() as i64
}

/// Remove the group. Whoever holds a lease of it has lost it.
pub fn unsubscribe(queue: Option<&Queue>, group: &Group) -> Result<()> {
    let locked = cursor::lock(&cursors_of(&[group.id])?)?;
    let located = Under::new_snapshot(|under| cursor::locate(locked, |_| &group.start, under))?;
    for located in located.iter().filter(|located| !located.cursor.leases.is_empty()) {
        let revoked = located.cursor.revoked();
        let cursor = Cursor { leases: Vec::new(), ..located.cursor.clone() };
        match queue {
            Some(queue) => write(queue, located, (cursor, revoked)),
            None => trace(located, &revoked, clock::now()),
        }
    }
    discovery::delete(group.id);
    group::forget(group.id);
    Ok(())
}

/// Remove every visible message of the queue; returns how many.
pub fn purge(queue: &Queue) -> Result<i64> {
    // Before the cursors: who has counted, and not ended, may settle something yet.
    tally::lead(queue.id);
    // Those who read a partition for the first time have nothing yet that could be locked.
    cursor::prevent_all(queue.id);
    let groups = Under::new_snapshot(|under| group::of_queue(&queue.name, under))?;
    let locked =
        cursor::lock(&cursors_of(&groups.iter().map(|group| group.id).collect::<Vec<_>>())?)?;
    Under::new_snapshot(|under| {
        let taken = snapshot::describe(under, queue.identity);
        let mut count = Count::take(queue.id, &taken, None, under)?;
        count.need_newest()?;
        let starts: HashMap<i64, &Start> = groups.iter().map(|g| (g.id, &g.start)).collect();
        let located = cursor::locate(locked, |group| starts[&group], under)?;
        for group in &groups {
            let settled: i64 = located
                .iter()
                .filter(|located| located.group == group.id)
                .map(|located| located.cursor.settled)
                .sum();
            // Nothing is pending any more; what this transaction has pushed will never be counted.
            group::set_baseline(group.id, count.tally.messages as i64 - settled);
        }
        for located in &located {
            let revoked = located.cursor.revoked();
            write(queue, located, (located.cursor.emptied(), revoked));
        }
        let removed = segment::delete_all(queue.id);
        count.remove_all();
        count.write();
        Ok(removed)
    })
}

/// The cursors of groups, ascending.
fn cursors_of(groups: &[i64]) -> Result<Vec<u64>> {
    Under::new_snapshot(|under| Ok(cursor::ids_of(groups, under)))
}

fn write(queue: &Queue, located: &Located, (cursor, revoked): (Cursor, Vec<(LeaseId, Receipt)>)) {
    let xid = snapshot::assign_xid(queue.identity);
    cursor::append(located, &cursor, Notice::Ready { xid });
    trace(located, &revoked, clock::now());
}

fn trace(located: &Located, revoked: &[(LeaseId, Receipt)], now: Moment) {
    for (lease, receipt) in revoked {
        receipt::insert(located.id, *lease, receipt, now);
    }
}
