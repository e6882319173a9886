//! `queen_pause`, `queen_resume`: pops of a queue, or of one of its groups, find nothing for a
//! while.
//!
//! A flag in the row of the queue, or of the group, which sessions remember with its options. The
//! call locks that row. Pops that wait go on waiting; those of a queue or a group that is resumed
//! are woken by the commit.

use queen_engine::rights::Privilege;

use crate::broker::group::no_such_group;
use crate::broker::{lookup, rights};
use crate::error::{Error, Result};
use crate::pg::snapshot::ActiveSnapshot;
use crate::store::{cursor_or_claim, group, group_options, queue};
use crate::wait::waiters::{self, Topic};

/// Pause the queue, or resume it. False if it was so already; 42501 for a caller that may not
/// manage it; 42704 without the queue. Waits for a transaction that changes the queue.
pub fn set_queue(name: &str, is_paused: bool) -> Result<bool> {
    rights::require(Privilege::Manage, name)?;
    let queue = lookup::lock_queue(name)?.ok_or_else(|| Error::no_such_queue(name))?;
    if queue.is_paused == is_paused {
        return Ok(false);
    }
    queue::set_paused(queue.id, is_paused);
    if !is_paused {
        waiters::touch_all(Topic::queue(name));
    }
    Ok(true)
}

/// Pause a group of the queue, or resume it. False if it was so already; 42501 for a caller that
/// may not manage the queue; 42704 without the queue or the group; 40001 in REPEATABLE READ if the
/// group has been changed since the snapshot. Waits for a transaction that moves, removes or
/// configures the group.
pub fn set_group(queue: &str, name: &str, is_paused: bool) -> Result<bool> {
    rights::require(Privilege::Manage, queue)?;
    loop {
        let (found, group) = lookup::queue_and_group(queue, name)?;
        found.ok_or_else(|| Error::no_such_queue(queue))?;
        let group = group.ok_or_else(|| no_such_group(queue, name))?;
        group::lock(&[group.id]);
        let now = ActiveSnapshot::latest_snapshot(|under| group::find(queue, name, under))?;
        match now {
            Some(now) if now.id == group.id && now.is_paused == is_paused => return Ok(false),
            Some(now) if now.id == group.id => {
                group_options::set_paused(group.id, is_paused);
                if !is_paused {
                    waiters::touch_all(Topic::group(group.id));
                }
                return Ok(true);
            }
            _ => drop(cursor_or_claim::moved_on(|| group.title(queue))?),
        }
        pgrx::check_for_interrupts!();
    }
}
