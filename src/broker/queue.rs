//! What becomes of a queue as a whole: created, changed, emptied, removed.
//!
//! `api::queue` calls these, and a push or a timer that needs a queue calls
//! [`find_or_auto_create`]. Each asks for the caller's privilege first ([`crate::broker::rights`]).
//! Then [`configure`] and [`delete`] lock the queue's row. Of two that change one queue, the second
//! waits here for the first transaction to end, and has locked nothing else yet. The locks that
//! follow (see [`crate::store::locks`]) are taken in attempts, as [`crate::broker::hold::attempts`]
//! says, so that consumers go on while the call waits.

use queen_engine::rights::Privilege;

use crate::broker::group::reorder::reorder;
use crate::broker::hold::attempts::hold_in_attempts;
use crate::broker::hold::{delete_discovery, hold_queue_and_cursors};
use crate::broker::latest;
use crate::broker::lookup;
use crate::broker::{purge, rights};
use crate::error::{Error, Result};
use crate::pg::clock;
use crate::settings;
use crate::store::queue::{self, Options, Queue};
use crate::store::{binding, dead_letter, group_removal, segment, timer};
use crate::wait::waiters::{self, Topic};

/// The queue of this name, for a caller that may push to it (42501). If there is none, it is
/// created, or, with `queen_mq.auto_create` off, refused with 42704.
pub fn find_or_auto_create(name: &str) -> Result<Queue> {
    rights::require(Privilege::Push, name)?;
    match lookup::queue_named(name)? {
        Some(queue) => Ok(queue),
        None if settings::auto_create() => lookup::find_or_create_queue(name, clock::now()),
        None => Err(Error::no_such_queue(name)),
    }
}

/// How a queue's options are to change: all of them are put back to their defaults if `reset` says
/// so, then those that are named in `unset`; then those of `given` are set. No option is both
/// given and named in `unset`.
pub struct Change {
    pub given: Options,
    pub unset: Vec<String>,
    pub reset: bool,
}

/// Define what needs the options' names.
macro_rules! options {
    ($($name:ident),* $(,)?) => {
        /// Whether `options` has a value for the option of this name; None if there is no such
        /// option.
        pub fn is_set(options: &Options, name: &str) -> Option<bool> {
            match name {
                $(stringify!($name) => Some(options.$name.is_some()),)*
                _ => None,
            }
        }

        impl Change {
            /// The options that were `before`, after the change.
            pub fn after(&self, before: &Options) -> Options {
                let is_unset = |name| self.reset || self.unset.iter().any(|unset| unset == name);
                Options {
                    $($name: match &self.given.$name {
                        None if is_unset(stringify!($name)) => None,
                        None => before.$name.clone(),
                        given => given.clone(),
                    },)*
                }
            }
        }
    };
}

options!(
    lease_time,
    retry_limit,
    retry_delay,
    retry_backoff,
    retry_delay_max,
    max_deliveries,
    on_exhausted,
    dedup_window,
    delay,
    retention,
    completed_retention,
    max_depth,
    ordering,
    delivery,
    notify,
);

/// Create the queue, or change its options; returns it with the options in effect. Groups without
/// an ordering of their own take over a new one: 55000 while one of them has live leases. 22023 if
/// its `delivery` does not go with an ordering.
///
/// Waits for a transaction that creates, changes or removes the queue. If that one has removed it,
/// the error is 42704.
pub fn configure(name: &str, change: &Change) -> Result<Queue> {
    rights::require(Privilege::Manage, name)?;
    lookup::find_or_create_queue(name, clock::now())?;
    let mut queue = lookup::lock_queue(name)?.ok_or_else(|| Error::no_such_queue(name))?;
    let before = queue.options.clone();
    queue.options = change.after(&before);
    latest::check_queue(&queue, &before)?;
    queue::update(&queue);
    if queue.options.ordering() != before.ordering() {
        reorder(&queue, &before)?;
    }
    Ok(queue)
}

/// Remove every message of the queue, or of one partition, that the call sees; returns how many.
/// 42704 without the queue.
pub fn purge(name: &str, partition: Option<&str>) -> Result<i64> {
    rights::require(Privilege::Manage, name)?;
    let queue = lookup::queue_named(name)?.ok_or_else(|| Error::no_such_queue(name))?;
    match partition {
        None => purge::purge(&queue),
        Some(partition) => purge::purge_partition(&queue, partition),
    }
}

/// Remove the queue and all that belongs to it but its markers; returns the number of its messages.
/// 42704 without the queue. Pops of its groups that wait learn at the commit that they are to
/// register their groups anew.
pub fn delete(name: &str) -> Result<i64> {
    rights::require(Privilege::Manage, name)?;
    let queue = lookup::lock_queue(name)?.ok_or_else(|| Error::no_such_queue(name))?;
    let groups = hold_in_attempts(&queue.name, |attempt| {
        let (groups, _) = hold_queue_and_cursors(attempt, &queue)?;
        groups.iter().try_for_each(|group| delete_discovery(attempt, group))?;
        let (id, name) = (queue.id, queue.name.clone());
        attempt.lock_rows(move || {
            timer::lock_of_queue(id);
            dead_letter::delete_of_queue(&name);
            binding::delete_of_queue(&name);
            Ok(())
        })?;
        Ok(groups)
    })?;
    group_removal::delete(&groups);
    let messages = segment::delete_all(queue.id);
    queue::delete(&queue);
    waiters::touch_all(Topic::queue(&queue.name));
    Ok(messages)
}
