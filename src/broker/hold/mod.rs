//! The locks that a call holds before it moves a group by hand, or empties or removes a queue. It
//! takes them in attempts, so that no consumer waits for it for long (see [`crate::broker::hold::attempt`]).

pub mod attempt;

use crate::broker::hold::attempt::Attempt;
use crate::broker::lookup;
use crate::error::Result;
use crate::pg::spi::ActiveSnapshot;
use crate::store::cursor::{self, LockedCursor};
use crate::store::group::{self, Group};
use crate::store::queue::Queue;
use crate::store::{discovery, locks};

/// Hold the group alone: no other transaction begins to read a partition in it, moves it or removes
/// it. False if the group has been moved or removed in the meantime.
///
/// The caller looks at cursors and claims after this. Its snapshot shows none that is not
/// committed, but the transaction that creates one shares [`locks::first_reads_of`]; or, where
/// retention creates a cursor, holds the group's row.
pub fn hold_group(attempt: &Attempt, queue: &Queue, group: &Group) -> Result<bool> {
    attempt.whole(locks::first_reads_of(group.id));
    if !lookup::is_current(queue, group)? {
        return Ok(false);
    }
    hold_group_rows(attempt, vec![group.id])?;
    Ok(true)
}

/// Hold the rows of groups. Retention holds them, too, while it removes messages by their age.
pub fn hold_group_rows(attempt: &Attempt, groups: Vec<i64>) -> Result<()> {
    attempt.rows(move || {
        group::lock(&groups);
        Ok(())
    })
}

/// Forget where the group has looked for work. Waits for a sweep that is deleting superseded rows
/// of `queen_mq.discovery`.
pub fn delete_discovery(attempt: &Attempt, group: &Group) -> Result<()> {
    let id = group.id;
    attempt.rows(move || {
        discovery::delete(id);
        Ok(())
    })
}

/// Hold the queue alone, and its groups: no other transaction begins to read a partition in it, or
/// moves or removes a group.
pub fn hold_queue_and_groups(attempt: &Attempt, queue: &Queue) -> Result<Vec<Group>> {
    // Before the look at claims: its snapshot shows none that is not committed.
    attempt.whole(locks::first_reads(queue.id));
    let groups = ActiveSnapshot::new_snapshot(|under| group::of_queue(&queue.name, under))?;
    hold_group_rows(attempt, groups.iter().map(|group| group.id).collect())?;
    Ok(groups)
}

/// Hold the queue alone, with its groups and all their cursors and claims.
pub fn hold_queue_and_cursors(
    attempt: &Attempt,
    queue: &Queue,
) -> Result<(Vec<Group>, Vec<LockedCursor>)> {
    // Before the cursors: a transaction that has counted, and not ended, may still settle a
    // message.
    attempt.whole(locks::tally(queue.id));
    let groups = hold_queue_and_groups(attempt, queue)?;
    let ids: Vec<i64> = groups.iter().map(|group| group.id).collect();
    let locked = attempt.cursors(&cursor_ids_of(&ids)?)?;
    Ok((groups, locked))
}

/// The cursors of groups, ascending.
pub fn cursor_ids_of(groups: &[i64]) -> Result<Vec<u64>> {
    ActiveSnapshot::new_snapshot(|under| Ok(cursor::ids_of(groups, under)))
}
