//! Which locks a call holds before it moves or removes a consumer group by hand, or empties,
//! removes or reorders a queue; and which ones while it wants the group to stay as it is.
//!
//! Called by [`crate::broker::group`], by purge and delete of a queue, and by dead letters. Each
//! function takes its locks in the order that [`locks`] states. Those with an [`Attempt`] wait as
//! that says, so no consumer waits for them for long.

pub mod attempts;

use std::collections::HashSet;
use std::hash::Hash;

use crate::broker::hold::attempts::Attempt;
use crate::broker::lookup;
use crate::error::{Error, Result};
use crate::pg::snapshot::{ActiveSnapshot, one_snapshot_per_transaction};
use crate::store::cursor_or_claim::{self, LockedCursor};
use crate::store::group::{self, Group};
use crate::store::locks::order;
use crate::store::queue::Queue;
use crate::store::{discovery, locks};

/// Look the queue and the group up, and share [`locks::first_reads`]: before the end of this
/// transaction no other one purges or removes the queue, or changes how the group is read. With
/// `with_group`, share [`locks::first_reads_of`] as well, so that no other one moves the group as a
/// whole. Waits for the transactions that hold these locks whole.
///
/// Without the queue, or without the group, nothing is locked. Error 40001 in REPEATABLE READ if
/// the group has been changed since the snapshot.
pub fn share_queue_and_group(
    queue: &str,
    group: &str,
    with_group: bool,
) -> Result<(Option<Queue>, Option<Group>)> {
    let locked_before = order::reached();
    loop {
        // The shares of a queue and a group that have been changed since stay, and do no harm.
        order::back_to(locked_before);
        let found = lookup::queue_and_group(queue, group)?;
        let (Some(queue), Some(group)) = &found else { return Ok(found) };
        locks::first_reads(queue.id).share();
        if with_group {
            locks::first_reads_of(group.id).share();
        }
        if lookup::is_current(queue, group)? {
            return Ok(found);
        }
        cursor_or_claim::moved_on(|| group.title(&queue.name))?;
        pgrx::check_for_interrupts!();
    }
}

/// Hold the group alone: [`locks::first_reads_of`] whole, and the group's row. No other transaction
/// begins to read a partition in the group, moves it or removes it. False, without the row, if the
/// group has been moved or removed since it was looked up.
///
/// The caller looks at cursors and claims after this. Its snapshot shows none that is not
/// committed. But the transaction that creates one shares [`locks::first_reads_of`]; or, where
/// retention creates a cursor, holds the group's row.
pub fn hold_group(attempt: &Attempt, queue: &Queue, group: &Group) -> Result<bool> {
    attempt.lock_whole(locks::first_reads_of(group.id));
    if !lookup::is_current(queue, group)? {
        return Ok(false);
    }
    hold_group_rows(attempt, vec![group.id])?;
    Ok(true)
}

/// Hold the rows of groups. Retention holds them, too, while it removes messages by their age.
pub fn hold_group_rows(attempt: &Attempt, groups: Vec<i64>) -> Result<()> {
    attempt.lock_rows(move || {
        group::lock(&groups);
        Ok(())
    })
}

/// Delete what the group knows of where it has looked for work. Waits for a sweep that is deleting
/// superseded rows of `queen_mq.discovery`.
pub fn delete_discovery(attempt: &Attempt, group: &Group) -> Result<()> {
    let id = group.id;
    attempt.lock_rows(move || {
        discovery::delete(id);
        Ok(())
    })
}

/// Hold the queue alone, and its groups: [`locks::first_reads`] whole, and the rows of the groups.
/// No other transaction begins to read a partition of the queue, or moves or removes a group. Error
/// 40001 as in [`all_there_are`].
pub fn hold_queue_and_groups(attempt: &Attempt, queue: &Queue) -> Result<Vec<Group>> {
    // Before the look at claims: its snapshot shows none that is not committed.
    attempt.lock_whole(locks::first_reads(queue.id));
    all_there_are(|under| {
        Ok(group::of_queue(&queue.name, under)?.into_iter().map(|group| group.id).collect())
    })?;
    let groups = ActiveSnapshot::new_snapshot(|under| group::of_queue(&queue.name, under))?;
    hold_group_rows(attempt, groups.iter().map(|group| group.id).collect())?;
    Ok(groups)
}

/// Hold the queue alone, with its count, its groups and all their cursors and claims.
pub fn hold_queue_and_cursors(
    attempt: &Attempt,
    queue: &Queue,
) -> Result<(Vec<Group>, Vec<LockedCursor>)> {
    // Before the cursors: a transaction that has counted, and not ended, may still settle a
    // message.
    attempt.lock_whole(locks::tally(queue.id));
    let groups = hold_queue_and_groups(attempt, queue)?;
    let ids: Vec<i64> = groups.iter().map(|group| group.id).collect();
    let locked = hold_cursors(attempt, &ids)?;
    Ok((groups, locked))
}

/// Hold the cursors and claims of groups. The caller holds a lock under which no other transaction
/// creates one, or can do without those that are created now. Error 40001 as in [`all_there_are`].
pub fn hold_cursors(attempt: &Attempt, groups: &[i64]) -> Result<Vec<LockedCursor>> {
    attempt.lock_cursors(&all_there_are(|under| Ok(cursor_or_claim::ids_of(groups, under)))?)
}

/// The ids of cursors and claims, or of groups, that `find` finds. In REPEATABLE READ the snapshot
/// may be older than one that another transaction has created, with a lease that the caller has to
/// take away: that is error 40001.
pub fn all_there_are<T: Eq + Hash>(
    find: impl Fn(&ActiveSnapshot) -> Result<Vec<T>>,
) -> Result<Vec<T>> {
    let seen = ActiveSnapshot::new_snapshot(&find)?;
    if one_snapshot_per_transaction() {
        let known: HashSet<&T> = seen.iter().collect();
        let now = ActiveSnapshot::latest_snapshot(&find)?;
        if now.iter().any(|id| !known.contains(id)) {
            return Err(Error::conflict("What consumer groups have read"));
        }
    }
    Ok(seen)
}
