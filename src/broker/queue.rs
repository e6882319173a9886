//! Queues: created, changed and removed.

use crate::broker::group::seek;
use crate::broker::hold::attempt::hold_all;
use crate::broker::hold::{forget_search, hold_everything};
use crate::error::{Error, Result};
use crate::pg::clock;
use crate::store::queue::{self, Options, Queue};
use crate::store::{dead_letter, group, segment, timer};

pub struct Change {
    pub given: Options,
    pub unset: Vec<String>,
    pub reset: bool,
}

pub fn configure(name: &str, change: Change) -> Result<Queue> {
    queue::find_or_create(name, clock::now())?;
    // Gone again in the meantime: deleted by a transaction that this one waited for.
    let mut queue = queue::lock(name)?.ok_or_else(|| Error::no_such_queue(name))?;
    let before = queue.options.clone();
    if change.reset {
        queue.options = Options::default();
    }
    let options = &mut queue.options;
    merge(options, change.given.clone());
    for name in &change.unset {
        unset(options, name);
    }
    queue::update(&queue);
    if queue.options.ordering() != before.ordering() {
        seek::reorder(&queue, &before)?;
    }
    Ok(queue)
}

/// Each option by its name: what is set, and what is given.
macro_rules! options {
    ($($name:ident),* $(,)?) => {
        fn merge(options: &mut Options, given: Options) {
            $(if given.$name.is_some() {
                options.$name = given.$name;
            })*
        }

        /// Put one option back to its default.
        fn unset(options: &mut Options, name: &str) {
            match name {
                $(stringify!($name) => options.$name = None,)*
                _ => (),
            }
        }

        /// Whether an option has a value; None if there is none of this name.
        pub fn is_set(options: &Options, name: &str) -> Option<bool> {
            match name {
                $(stringify!($name) => Some(options.$name.is_some()),)*
                _ => None,
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
);

/// Remove a queue whose row the caller has locked.
pub fn delete(queue: &Queue) -> Result<i64> {
    let groups = hold_all(&queue.name, |attempt| {
        let (groups, _) = hold_everything(attempt, queue)?;
        groups.iter().try_for_each(|group| forget_search(attempt, group))?;
        let (id, name) = (queue.id, queue.name.clone());
        attempt.rows(move || {
            timer::lock_of_queue(id);
            dead_letter::delete_of_queue(&name);
            Ok(())
        })?;
        Ok(groups)
    })?;
    group::delete(&groups);
    let messages = segment::delete_all(queue.id);
    queue::delete(queue);
    Ok(messages)
}
