//! The option `delivery` of a queue: with `latest`, a pop takes the newest message of a partition
//! and settles the older ones with it. How it does that, the engine says (`queen_engine::pop`).
//! Here: it goes with ordered groups alone, whichever of the two is set later.
//!
//! A call that gives a group an ordering of its own shares the row of the queue, which
//! `queen_configure` locks. So of two calls that contradict each other, the second one sees the
//! first. Only a group that is registered before its queue exists has no row to share.

use crate::broker::lookup;
use crate::error::{Error, Result};
use crate::pg::snapshot::ActiveSnapshot;
use crate::store::group::{self, Group, QUEUE_MODE};
use crate::store::queue::{Options, Queue, UNORDERED};

/// Check the options that the queue is to have; `before`: those that it had. Error 22023 if it is
/// to be without order, or if one of its groups is. The caller has locked the queue's row.
pub fn check_queue(queue: &Queue, before: &Options) -> Result<()> {
    let (name, options) = (&queue.name, &queue.options);
    if !options.is_latest() {
        return Ok(());
    }
    if options.ordering() == UNORDERED {
        return Err(refused(name, "The queue is to have both."));
    }
    if before.is_latest() {
        return Ok(());
    }
    let groups = ActiveSnapshot::latest_snapshot(|under| group::of_queue(name, under))?;
    match groups.iter().find(|group| !group.is_ordered(options)) {
        None => Ok(()),
        Some(Group { name: group, .. }) if group == QUEUE_MODE => {
            Err(refused(name, "Queue mode has that ordering of its own."))
        }
        Some(Group { name: group, .. }) => {
            let why = format!("Consumer group \"{group}\" has that ordering of its own.");
            Err(refused(name, &why))
        }
    }
}

/// Check the ordering that a group of the queue is to have of its own; None: it has none. Error
/// 22023 if it is to be without order and the queue delivers the newest message alone.
pub fn check_group(queue: &str, ordering: Option<&str>) -> Result<()> {
    if ordering != Some(UNORDERED) {
        return Ok(());
    }
    match lookup::share_queue(queue)? {
        Some(found) if found.options.is_latest() => {
            Err(refused(queue, "The queue has the one, and the group is to have the other."))
        }
        _ => Ok(()),
    }
}

fn refused(queue: &str, why: &str) -> Error {
    Error::invalid(
        format!("delivery \"latest\" of queue \"{queue}\" does not go with ordering \"none\""),
        why,
        "Use delivery 'latest' with ordering 'partition', or ordering 'none' with delivery 'all'.",
    )
}
