//! One call of `queen_wait`: wait until there is something for a group to pop from a queue.
//!
//! Each look registers the group if there is none, and pops nothing. The caller commits after each
//! look. If a timer is due, a look locks it for that long, to know that no other consumer is moving
//! it into the log. No lock is waited for.

use std::ops::ControlFlow;

use super::look_again::{LookEnd, LookResult, NextLook, look_until};
use super::registrations::find;
use super::{Peek, notices, peek};
use crate::broker::group::beginning::Mode;
use crate::broker::group::register::Registration;
use crate::error::Result;
use crate::pg::clock;
use crate::pg::snapshot::ActiveSnapshot;
use crate::store::timer;
use crate::wait::waiters::{self, PartitionHash, Topic};

/// Wait up to `timeout` microseconds. False: the time is over, and there is nothing. `enter` runs
/// each look in a transaction of its own, which is committed when it returns.
///
/// Error 42704 where the queue is unknown and `queen_mq.auto_create` is off.
pub fn wait_until_ready(
    queue: &str,
    group: &str,
    timeout: i64,
    enter: impl Fn(&mut dyn FnMut() -> LookResult<bool>) -> LookResult<bool>,
) -> Result<bool> {
    let until = clock::now().saturating_add(timeout);
    look_until(&[queue], group, None, until, |is_last| enter(&mut || look(queue, group, is_last)))
}

fn look(queue_name: &str, group_name: &str, is_last: bool) -> LookResult<bool> {
    let mut found = find(queue_name, group_name)?;
    if found.group.is_none() {
        let identity = found.identity()?;
        let registration = Registration::prepare(queue_name, group_name, Mode::New, identity)?;
        let passes_by_messages = registration.passes_by_messages;
        registration.write_into(&mut found, queue_name, group_name)?;
        if passes_by_messages && found.group.is_some() {
            notices::registered_as_new(queue_name, group_name);
        }
    }
    let is_paused = found.is_paused();
    let (Some(queue), Some(group), false) = (&found.queue, &found.group, is_paused) else {
        let group = found.group.as_ref().map(|group| group.id);
        return Ok(match is_last {
            true => ControlFlow::Break(LookEnd { found: false, looked_at: 1 }),
            false => ControlFlow::Continue(vec![NextLook::when_woken(group)]),
        });
    };
    ActiveSnapshot::new_snapshot(|under| {
        let now = clock::now();
        let due = found.next_timer.filter(|next| *next <= now);
        let has_timer = due.is_some_and(|due| !timer::hold_due(queue.id, due, now, 1).is_empty());
        let Peek { is_any_there, met_lock } = peek(queue, group, &found.discovery, under)?;
        let is_ready = has_timer || is_any_there;
        if is_ready {
            // It is still there, for another session that waits.
            waiters::hand_on(Topic::group(group.id), PartitionHash::ANY);
        }
        Ok(match is_ready || is_last {
            true => ControlFlow::Break(LookEnd { found: is_ready, looked_at: 1 }),
            false => ControlFlow::Continue(vec![NextLook::after(&found, met_lock, under)]),
        })
    })
}
