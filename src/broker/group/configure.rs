//! `queen_configure_group`: options of one group, in place of its queue's.
//!
//! The call locks the group's row. A change of `ordering` holds the group alone, with its cursors
//! and claims, and turns the group round as a change of its queue's ordering does.

use queen_engine::rights::Privilege;

use crate::broker::group::no_such_group;
use crate::broker::group::reorder::reorder_one;
use crate::broker::hold::attempts::hold_in_attempts;
use crate::broker::hold::{delete_discovery, hold_cursors, hold_group, share_queue_and_group};
use crate::broker::latest;
use crate::broker::lookup;
use crate::broker::queue::Change;
use crate::broker::rights;
use crate::error::Result;
use crate::pg::snapshot::ActiveSnapshot;
use crate::store::cursor_or_claim::{self, LockedCursor};
use crate::store::group::{self, Group};
use crate::store::group_options;
use crate::store::queue::{Options, Queue};

/// Change the options that the group has of its own; returns those that are in effect for it. Error
/// 42704 if there is no such group, 55000 for a change of `ordering` while the group has live
/// leases, 40001 in REPEATABLE READ if the group has been changed since the snapshot, 22023 for an
/// ordering that does not go with the queue's `delivery`.
pub fn configure(queue: &str, name: &str, change: &Change) -> Result<Options> {
    rights::require(Privilege::Manage, queue)?;
    latest::check_group(queue, change.given.ordering.as_deref())?;
    loop {
        let (found, group) = share_queue_and_group(queue, name, false)?;
        let group = group.ok_or_else(|| no_such_group(queue, name))?;
        let own = change.after(&group.own);
        let of_queue = lookup::queue_named(queue)?.map(|queue| queue.options).unwrap_or_default();
        let is_ordered = group.is_ordered(&of_queue);
        let after = Group { own, ..group.clone() };
        let turns = found.filter(|_| after.is_ordered(&of_queue) != is_ordered);
        let held = match &turns {
            Some(queue) => hold_whole(queue, &group)?,
            None => {
                group::lock(&[group.id]);
                Some(Vec::new())
            }
        };
        if let Some(locked) = held
            && is_unchanged(queue, &group)?
        {
            let options = of_queue.with(&after.own);
            group_options::set(group.id, &after.own);
            if let Some(queue) = turns {
                reorder_one(&Queue { options: options.clone(), ..queue }, &after, locked)?;
            }
            return Ok(options);
        }
        cursor_or_claim::moved_on(|| group.title(queue))?;
        pgrx::check_for_interrupts!();
    }
}

/// Hold the group alone, with its cursors and claims; None if it has been moved or removed.
fn hold_whole(queue: &Queue, group: &Group) -> Result<Option<Vec<LockedCursor>>> {
    hold_in_attempts(&queue.name, |attempt| {
        if !hold_group(attempt, queue, group)? {
            return Ok(None);
        }
        delete_discovery(attempt, group)?;
        hold_cursors(attempt, &[group.id]).map(Some)
    })
}

/// Whether the group's row, which is locked, is still what it was when it was looked up.
fn is_unchanged(queue: &str, group: &Group) -> Result<bool> {
    let now = ActiveSnapshot::latest_snapshot(|under| group::find(queue, &group.name, under))?;
    Ok(now.is_some_and(|now| now.id == group.id && now.own == group.own))
}
