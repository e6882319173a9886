//! Moving groups along the log by hand: seek, purge, unsubscribe. Whoever holds a lease there
//! loses it, and is told so (QN002).

use std::collections::HashSet;

use queen_engine::cursor::Cursor;

use crate::broker::group::beginning::{Beginning, Mode, start_in};
use crate::broker::group::revoke::{locate, renumber, retire, trace, write};
use crate::broker::group::unordered_partition::Unordered;
use crate::broker::hold::attempt::hold_in_attempts;
use crate::broker::hold::{delete_discovery, hold_cursors, hold_group};
use crate::broker::lookup;
use crate::error::Result;
use crate::pg::clock;
use crate::pg::spi::ActiveSnapshot;
use crate::store::group::{self, Group};
use crate::store::queue::Queue;
use crate::store::segment::{self, Row};
use crate::store::{claim, cursor, discovery, seen_snapshot, tally};

/// Move the whole group. Returns the number of partitions moved, or None where the group has been
/// moved or removed since it was looked up. The caller has kept the group as it is in all else.
pub fn seek(queue: &Queue, group: &Group, mode: Mode) -> Result<Option<usize>> {
    if !group.is_ordered(&queue.options) {
        return begin_anew(queue, group, mode);
    }
    let held = hold_in_attempts(&queue.name, |attempt| {
        if !hold_group(attempt, queue, group)? {
            return Ok(None);
        }
        // A partition that the group has not read gets a cursor: it is announced, so pops find it.
        let partitions =
            ActiveSnapshot::new_snapshot(|under| Ok(segment::partitions(queue.id, under)))?;
        cursor::create(group.id, partitions);
        hold_cursors(attempt, &[group.id]).map(Some)
    })?;
    let Some(locked) = held else { return Ok(None) };
    ActiveSnapshot::new_snapshot(|under| {
        let last_drawn = segment::last_drawn_id(under);
        let taken = seen_snapshot::describe(under, queue.identity);
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
        Ok(Some(located.len()))
    })
}

/// Move a group without order: it begins anew, and is another one to whoever has looked before.
fn begin_anew(queue: &Queue, group: &Group, mode: Mode) -> Result<Option<usize>> {
    let held = hold_in_attempts(&queue.name, |attempt| {
        if !hold_group(attempt, queue, group)? {
            return Ok(None);
        }
        delete_discovery(attempt, group)?;
        hold_cursors(attempt, &[group.id]).map(Some)
    })?;
    let Some(locked) = held else { return Ok(None) };
    let located = locate(group, locked)?;
    retire(queue, &located);
    ActiveSnapshot::new_snapshot(|under| {
        let last_drawn = segment::last_drawn_id(under);
        let taken = seen_snapshot::describe(under, queue.identity);
        let mut beginning = Beginning::of(mode, Some(queue.id), last_drawn, &taken, under);
        let removed = tally::newest(queue.id, under)?.1.removed_messages as i64;
        let id = renumber(queue, group);
        match beginning.messages {
            Some(messages) => group::move_to(id, &beginning.start, messages, None),
            None => group::move_to(id, &beginning.start, 0, Some(removed)),
        }
        discovery::append(id, 0, &mut beginning.discovery);
        let mut partitions: HashSet<String> =
            segment::partitions(queue.id, under).into_iter().collect();
        partitions.extend(located.into_iter().map(|located| located.partition));
        Ok(Some(partitions.len()))
    })
}

/// Move the group in one partition; returns 0 if there is none of this name, None as [`seek`].
pub fn seek_partition(
    queue: &Queue,
    group: &Group,
    partition: &str,
    mode: Mode,
) -> Result<Option<usize>> {
    let is_there = ActiveSnapshot::new_snapshot(|under| {
        Ok(segment::oldest_from(queue.id, partition, 0, under).is_some()
            || cursor::status(group.id, &group.start, partition, under)?.is_some())
    })?;
    if !is_there {
        return Ok(Some(0));
    }
    if !group.is_ordered(&queue.options) {
        return begin_anew_in(queue, group, partition, mode);
    }
    // Consumers go on in other partitions. A seek of the whole group waits for this share.
    cursor::share_first_reads(queue.id, group.id);
    if !lookup::is_current(queue, group)? {
        return Ok(None);
    }
    let locked = hold_in_attempts(&queue.name, |attempt| {
        let (id, partition) = (group.id, partition.to_owned());
        attempt.lock_rows({
            let partition = partition.clone();
            move || {
                cursor::create(id, vec![partition.clone()]);
                Ok(())
            }
        })?;
        attempt.lock_cursors(&ActiveSnapshot::new_snapshot(|under| {
            Ok(cursor::ids_in(id, &partition, under))
        })?)
    })?;
    ActiveSnapshot::new_snapshot(|under| {
        let last_drawn = segment::last_drawn_id(under);
        let taken = seen_snapshot::describe(under, queue.identity);
        for located in cursor::locate(locked, |_| &group.start, under)? {
            let rows = segment::rows(queue.id, partition, under);
            let start = start_in(&rows, mode, last_drawn, &taken);
            let (mut moved, revoked) = located.cursor.moved_to(start);
            moved.settled += unsettled(&located.cursor, &rows) - unsettled(&moved, &rows);
            write(queue, &located, (moved, revoked));
        }
        Ok(Some(1))
    })
}

/// The same in a group without order: with a new cursor, as nobody is to go on from the old one.
fn begin_anew_in(
    queue: &Queue,
    group: &Group,
    partition: &str,
    mode: Mode,
) -> Result<Option<usize>> {
    let held = hold_in_attempts(&queue.name, |attempt| {
        if !hold_group(attempt, queue, group)? {
            return Ok(None);
        }
        let ids =
            ActiveSnapshot::new_snapshot(|under| Ok(cursor::ids_in(group.id, partition, under)))?;
        attempt.lock_cursors(&ids).map(Some)
    })?;
    let Some(locked) = held else { return Ok(None) };
    let located = locate(group, locked)?;
    ActiveSnapshot::new_snapshot(|under| {
        let last_drawn = segment::last_drawn_id(under);
        let taken = seen_snapshot::describe(under, queue.identity);
        let rows = segment::rows(queue.id, partition, under);
        let start = start_in(&rows, mode, last_drawn, &taken);
        let before = Unordered::of(group, located);
        let mut moved = Cursor::new(start);
        moved.last_pop_at = before.last_pop_at();
        moved.settled = before.settled() + before.unsettled(&rows) - unsettled(&moved, &rows);
        let now = clock::now();
        for claim in &before.claims {
            trace(claim, &claim.cursor.revoked(), now);
        }
        claim::delete(&before.claims.iter().map(|claim| claim.id).collect::<Vec<_>>());
        let new = cursor::replace(group.id, partition)?;
        write(queue, &new, (moved, Vec::new()));
        Ok(Some(1))
    })
}

/// Messages of a partition that are not settled: read and open, or not read yet.
fn unsettled(cursor: &Cursor, rows: &[Row]) -> i64 {
    let unread = rows.iter().filter(|row| !cursor.has_read(row.id, row.xid));
    unread.map(|row| row.messages as i64).sum::<i64>() + cursor.open() as i64
}
