//! `queen_seek`: moving a consumer group along the log by hand, in all partitions or in one.
//!
//! The holder of a lease there loses it ([`revoke`](crate::broker::group::revoke)). Every call
//! shares [`locks::first_reads`](crate::store::locks::first_reads) of the queue first. It waits for
//! that, and for the share of a group, as long as it takes; the other locks it takes in attempts:
//!
//! | | ordered | without order |
//! |---|---|---|
//! | the whole group | the group alone, its cursors | the group alone, its cursors and claims |
//! | one partition | a share of the group, one cursor | the group alone, one cursor, its claims |
//!
//! An ordered group keeps its cursors, which get new states. In a group without order consumers
//! lock no cursor, so that a new state would not be noticed. There the whole group gets a new id,
//! and a partition gets a new cursor; what consumers have looked at before then belongs to nothing.

use std::collections::HashSet;
use std::rc::Rc;

use queen_engine::cursor::Cursor;
use queen_engine::floor::Floor;
use queen_engine::rights::Privilege;

use crate::broker::group::beginning::{Beginning, LogEnd, Mode};
use crate::broker::group::no_such_group;
use crate::broker::group::revoke::{delete_claims, locate, renumber, retire, write_state};
use crate::broker::group::unordered_partition::UnorderedPartition;
use crate::broker::hold::attempts::hold_in_attempts;
use crate::broker::hold::{
    all_there_are, delete_discovery, hold_cursors, hold_group, share_queue_and_group,
};
use crate::broker::{lookup, rights};
use crate::error::{Error, Result};
use crate::pg::clock;
use crate::pg::snapshot::ActiveSnapshot;
use crate::store::group::{self, Group};
use crate::store::queue::Queue;
use crate::store::segment::{self, SegmentSummary};
use crate::store::{cursor, cursor_or_claim, discovery, tally};

/// Move the group to where `mode` says, in one partition or in all (None). Returns the number of
/// partitions moved. Error 42704 if the queue or the group is not there, 40001 in REPEATABLE READ
/// if either has been changed since the snapshot.
pub fn seek(queue: &str, group: &str, partition: Option<&str>, mode: Mode) -> Result<usize> {
    rights::require(Privilege::Manage, queue)?;
    loop {
        let (found, found_group) = share_queue_and_group(queue, group, false)?;
        let found = found.ok_or_else(|| Error::no_such_queue(queue))?;
        let found_group = found_group.ok_or_else(|| no_such_group(queue, group))?;
        let moved = match (partition, found_group.is_ordered(&found.options)) {
            (None, true) => move_group(&found, &found_group, mode)?,
            (None, false) => replace_group(&found, &found_group, mode)?,
            (Some(partition), _) => seek_partition(&found, &found_group, partition, mode)?,
        };
        if let Some(moved) = moved {
            return Ok(moved);
        }
        cursor_or_claim::moved_on(|| found_group.title(queue))?;
        pgrx::check_for_interrupts!();
    }
}

/// Move every cursor of an ordered group. Returns how many; None where the group has been moved or
/// removed since it was looked up.
fn move_group(queue: &Queue, group: &Group, mode: Mode) -> Result<Option<usize>> {
    let held = hold_in_attempts(&queue.name, |attempt| {
        if !hold_group(attempt, queue, group)? {
            return Ok(None);
        }
        // A partition that the group has not read gets a cursor: its state announces the partition,
        // so that pops find it.
        let partitions = ActiveSnapshot::new_snapshot(|under| {
            Ok(segment::partitions(queue.id, &floor(queue, under), under))
        })?;
        cursor::create(group.id, partitions);
        hold_cursors(attempt, &[group.id]).map(Some)
    })?;
    let Some(locked) = held else { return Ok(None) };
    ActiveSnapshot::new_snapshot(|under| {
        let end = LogEnd::look(queue.identity, under);
        let located = cursor_or_claim::locate(locked, |_| &group.start, under)?;
        let beginning = Beginning::of(mode, Some(queue.id), &end, under);
        let settled = located.iter().map(|located| located.cursor.settled).sum();
        begin_at(queue, group.id, &beginning, settled, under)?;
        for located in &located {
            write_state(queue, located, located.cursor.moved_to(beginning.start.clone()));
        }
        Ok(Some(located.len()))
    })
}

/// Let a group without order begin anew, under a new id. Returns as [`move_group`].
fn replace_group(queue: &Queue, group: &Group, mode: Mode) -> Result<Option<usize>> {
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
        let end = LogEnd::look(queue.identity, under);
        let mut beginning = Beginning::of(mode, Some(queue.id), &end, under);
        let id = renumber(queue, group);
        begin_at(queue, id, &beginning, 0, under)?;
        discovery::append(id, 0, &mut beginning.discovery);
        let mut partitions: HashSet<String> =
            segment::partitions(queue.id, &floor(queue, under), under).into_iter().collect();
        partitions.extend(located.into_iter().map(|located| located.partition));
        Ok(Some(partitions.len()))
    })
}

/// Write the group's row: it begins there, and its cursors count `settled` messages already.
fn begin_at(
    queue: &Queue,
    group: i64,
    beginning: &Beginning,
    settled: i64,
    under: &ActiveSnapshot,
) -> Result<()> {
    let (initial, baseline) = match beginning.messages {
        Some(messages) => (messages + settled, None),
        None => {
            let removed = tally::newest(queue.id, under)?.1.removed_messages as i64;
            (0, Some(removed - settled))
        }
    };
    group::move_to(group, &beginning.start, initial, baseline);
    Ok(())
}

/// Move the group in one partition. Returns 1; 0 if there is no partition of this name; None where
/// the group has been moved or removed since it was looked up.
fn seek_partition(
    queue: &Queue,
    group: &Group,
    partition: &str,
    mode: Mode,
) -> Result<Option<usize>> {
    let is_there = ActiveSnapshot::new_snapshot(|under| {
        let of = (queue.id, partition);
        Ok(segment::oldest_from(of, 0, &floor(queue, under), under).is_some()
            || cursor::status(group.id, &group.start, partition, under)?.is_some())
    })?;
    if !is_there {
        return Ok(Some(0));
    }
    match group.is_ordered(&queue.options) {
        true => move_cursor(queue, group, partition, mode),
        false => replace_cursor(queue, group, partition, mode),
    }
}

/// Move the cursor of one partition of an ordered group. Consumers go on in other partitions, and a
/// seek of the whole group waits for this transaction's share.
fn move_cursor(queue: &Queue, group: &Group, partition: &str, mode: Mode) -> Result<Option<usize>> {
    cursor::share_first_reads(queue.id, group.id);
    if !lookup::is_current(queue, group)? {
        return Ok(None);
    }
    let locked = hold_in_attempts(&queue.name, |attempt| {
        let (id, name) = (group.id, partition.to_owned());
        attempt.lock_rows(move || {
            cursor::create(id, vec![name.clone()]);
            Ok(())
        })?;
        let ids = |under: &ActiveSnapshot| Ok(cursor_or_claim::ids_in(group.id, partition, under));
        attempt.lock_cursors(&all_there_are(ids)?)
    })?;
    ActiveSnapshot::new_snapshot(|under| {
        let end = LogEnd::look(queue.identity, under);
        for located in cursor_or_claim::locate(locked, |_| &group.start, under)? {
            let rows = segment::rows((queue.id, partition), &floor(queue, under), under);
            let (mut moved, revoked) = located.cursor.moved_to(end.start_in(&rows, mode));
            moved.settled += unsettled(&located.cursor, &rows) - unsettled(&moved, &rows);
            write_state(queue, &located, (moved, revoked));
        }
        Ok(Some(1))
    })
}

/// Replace the cursor of one partition of a group without order, and delete the partition's claims.
fn replace_cursor(
    queue: &Queue,
    group: &Group,
    partition: &str,
    mode: Mode,
) -> Result<Option<usize>> {
    let held = hold_in_attempts(&queue.name, |attempt| {
        if !hold_group(attempt, queue, group)? {
            return Ok(None);
        }
        let ids = |under: &ActiveSnapshot| Ok(cursor_or_claim::ids_in(group.id, partition, under));
        attempt.lock_cursors(&all_there_are(ids)?).map(Some)
    })?;
    let Some(locked) = held else { return Ok(None) };
    let located = locate(group, locked)?;
    ActiveSnapshot::new_snapshot(|under| {
        let end = LogEnd::look(queue.identity, under);
        let rows = segment::rows((queue.id, partition), &floor(queue, under), under);
        let before = UnorderedPartition::of(group, located);
        let mut moved = Cursor::new(end.start_in(&rows, mode));
        moved.last_pop_at = before.last_pop_at();
        moved.settled = before.settled() + before.unsettled(&rows) - unsettled(&moved, &rows);
        delete_claims(&before.claims)?;
        let new = cursor::replace(group.id, partition)?;
        write_state(queue, &new, (moved, Vec::new()));
        Ok(Some(1))
    })
}

/// Up to where the queue's log is empty.
fn floor(queue: &Queue, under: &ActiveSnapshot) -> Rc<Floor> {
    tally::floors(queue, clock::now(), under).log
}

/// Messages of a partition that are not settled: read and open, or not read yet.
fn unsettled(cursor: &Cursor, rows: &[SegmentSummary]) -> i64 {
    let unread = rows.iter().filter(|row| !cursor.has_read(row.id, row.xid));
    unread.map(|row| row.messages as i64).sum::<i64>() + cursor.open() as i64
}
