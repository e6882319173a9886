//! What is to be held before a group is moved by hand, or a queue is emptied or removed: in attempts, so
//! that nobody else has to wait (see [`crate::patience`]).

use crate::error::Result;
use crate::patience::Attempt;
use crate::store::cursor::{self, Locked};
use crate::store::group::{self, Group};
use crate::store::queue::Queue;
use crate::store::spi::Under;
use crate::store::{discovery, locks, lookup};

/// Hold the group alone: nobody begins to read in it, nor moves or removes it. False if it is another one
/// by now.
///
/// This comes before a look at cursors and claims: those that are new, and not committed, are seen by
/// nobody. Whoever creates one holds a share of the lock, or, to remove messages, the group's row.
pub fn hold_group(attempt: &Attempt, queue: &Queue, group: &Group) -> Result<bool> {
    attempt.whole(locks::first_reads_of(group.id));
    if !lookup::is_current(queue, group)? {
        return Ok(false);
    }
    hold_rows(attempt, vec![group.id])?;
    Ok(true)
}

/// Hold the rows of groups: who removes messages by their age holds them, too.
pub fn hold_rows(attempt: &Attempt, groups: Vec<i64>) -> Result<()> {
    attempt.rows(move || {
        group::lock(&groups);
        Ok(())
    })
}

/// Forget where the group has looked for work. Waits for who is forgetting what a look has superseded.
pub fn forget_search(attempt: &Attempt, group: &Group) -> Result<()> {
    let id = group.id;
    attempt.rows(move || {
        discovery::delete(id);
        Ok(())
    })
}

/// Hold the queue alone, and its groups: nobody begins to read in it, nor moves or removes a group.
pub fn hold_queue(attempt: &Attempt, queue: &Queue) -> Result<Vec<Group>> {
    // Before the claims: what is claimed, and not committed, is seen by nobody.
    attempt.whole(locks::first_reads(queue.id));
    let groups = Under::new_snapshot(|under| group::of_queue(&queue.name, under))?;
    hold_rows(attempt, groups.iter().map(|group| group.id).collect())?;
    Ok(groups)
}

/// Hold the queue alone, with its groups and all their cursors and claims.
pub fn hold_everything(attempt: &Attempt, queue: &Queue) -> Result<(Vec<Group>, Vec<Locked>)> {
    // Before the cursors: who has counted, and not ended, may settle something yet.
    attempt.whole(locks::tally(queue.id));
    let groups = hold_queue(attempt, queue)?;
    let ids: Vec<i64> = groups.iter().map(|group| group.id).collect();
    let locked = attempt.cursors(&cursors_of(&ids)?)?;
    Ok((groups, locked))
}

/// The cursors of groups, ascending.
pub fn cursors_of(groups: &[i64]) -> Result<Vec<u64>> {
    Under::new_snapshot(|under| Ok(cursor::ids_of(groups, under)))
}
