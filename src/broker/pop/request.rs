//! One call of `queen_pop` or `queen_pop_any`: find the queue and the group, register a group that
//! is new, move timers that are due into the log, pop, and wait and do it again while there is
//! nothing.
//!
//! A call that names several queues looks at them in their order, and pops from the first that has
//! something. It registers the group in all of them ([`super::registrations`]).
//!
//! A call that goes on waiting holds nothing. So each look but the last runs in a subtransaction,
//! which is rolled back, with all its locks, unless the look has written something. A group that is
//! new is registered by the first look that has something for it, or by the last; but from the
//! start of the call on it is fixed what the group will read.

use std::ops::ControlFlow;

use super::look_again::{LookEnd, LookResult, NextLook, look_until};
use super::registrations::{PendingRegistration, Registrations, find};
use super::run::PopResult;
use super::{Delivery, PopLimits, notices, pop_once};
use crate::broker::group::beginning::Mode;
use crate::broker::group::register::Registration;
use crate::broker::lookup::ForPop;
use crate::broker::push::delayed;
use crate::error::Result;
use crate::pg::async_commit::may_be_lost;
use crate::pg::clock;
use crate::pg::result_context::ResultContext;
use crate::pg::snapshot::ActiveSnapshot;
use crate::pg::subtransaction::kept_if;
use crate::wait::waiters::{self, Topic};

/// The arguments of a pop.
pub struct PopRequest<'a> {
    /// One or more, no two of which are equal: in the order in which they are looked at.
    pub queues: Vec<&'a str>,
    pub group: &'a str,
    pub limits: PopLimits<'a>,
    /// How long to wait for a first message, in microseconds.
    pub wait: i64,
    /// Where the group begins to read if this call registers it; None: the call does not say, so
    /// it is `new`.
    pub mode: Option<Mode>,
}

/// What was popped.
pub struct PoppedMessages {
    pub deliveries: Vec<Delivery>,
    /// Which of the call's queues they are of.
    pub queue: usize,
}

/// Pop now, or as soon as there is a message within the time to wait. `enter` runs each look as a
/// call of the extension, with SPI connected.
///
/// Errors: 42704 where the queue is unknown and `queen_mq.auto_create` is off; 40001 in REPEATABLE
/// READ where another transaction has moved the group on.
pub fn pop(
    request: &PopRequest<'_>,
    enter: impl Fn(&mut dyn FnMut() -> LookResult<PoppedMessages>) -> LookResult<PoppedMessages>,
) -> Result<PoppedMessages> {
    let results = ResultContext::here();
    let mut registrations =
        Registrations::of(&request.queues, request.group, request.mode.unwrap_or(Mode::New));
    let (until, partition) = (clock::now() + request.wait, request.limits.partition);
    look_until(&request.queues, request.group, partition, until, |is_last| {
        may_be_lost(!request.limits.auto_ack, || {
            enter(&mut || look(request, &mut registrations, is_last, results))
        })
    })
}

/// Look once at each queue, up to the first that has something.
fn look(
    request: &PopRequest<'_>,
    registrations: &mut Registrations<'_>,
    is_last: bool,
    results: ResultContext,
) -> LookResult<PoppedMessages> {
    registrations.prepare()?;
    let mut is_over = is_last;
    let mut in_vain = Vec::new();
    for (place, queue) in request.queues.iter().enumerate() {
        let pending = &mut registrations.pending[place];
        let (found, mut result) = look_at(request, queue, pending, is_last, results)?;
        let deliveries = std::mem::take(&mut result.deliveries);
        if !deliveries.is_empty() {
            registrations.write_rest()?;
            let found = PoppedMessages { deliveries, queue: place };
            return Ok(ControlFlow::Break(LookEnd { found, looked_at: place + 1 }));
        }
        // Messages that were moved into the log may be for other groups. These get them when this
        // transaction commits, so the call does not wait any longer.
        is_over |= result.has_written;
        in_vain.push((found, result.met_lock));
        pgrx::check_for_interrupts!();
    }
    if is_over {
        registrations.write_rest()?;
        let nothing = PoppedMessages { deliveries: Vec::new(), queue: 0 };
        return Ok(ControlFlow::Break(LookEnd { found: nothing, looked_at: in_vain.len() }));
    }
    ActiveSnapshot::new_snapshot(|under| {
        let next = in_vain.iter().map(|(found, met_lock)| NextLook::after(found, *met_lock, under));
        Ok(ControlFlow::Continue(next.collect()))
    })
}

/// Look at one queue, and once more each time another transaction has changed the queue or the
/// group meanwhile.
fn look_at(
    request: &PopRequest<'_>,
    queue: &str,
    pending: &mut PendingRegistration,
    is_last: bool,
    results: ResultContext,
) -> Result<(ForPop, PopResult)> {
    let mut has_written = false;
    loop {
        let mut found = find(queue, request.group)?;
        let result = register_and_pop(request, queue, &mut found, pending, is_last, results)?;
        has_written |= result.has_written;
        if result.is_outdated {
            pgrx::check_for_interrupts!();
            continue;
        }
        let is_kept = is_last || has_written || !result.deliveries.is_empty();
        if request.wait > 0
            && is_kept
            && let (Some(group), Some(partition)) = (&found.group, result.left_in)
        {
            waiters::hand_on(Topic::group(group.id), partition);
        }
        return Ok((found, PopResult { has_written, ..result }));
    }
}

/// Register the group, if it is new and the time for that has come; then pop. Where all of that is
/// rolled back, `found` is without the group again.
fn register_and_pop(
    request: &PopRequest<'_>,
    queue: &str,
    found: &mut ForPop,
    pending: &mut PendingRegistration,
    is_last: bool,
    results: ResultContext,
) -> Result<PopResult> {
    let registration = match found.group {
        // If the group is removed while the call waits, what it may read is fixed anew.
        Some(ref group) => {
            notices::compare_modes(queue, request.group, group, request.mode);
            *pending = None;
            None
        }
        None => registration_to_write(request, queue, pending, is_last, found)?,
    };
    let mut pop = || {
        if let Some(registration) = &registration {
            registration.clone().write_into(found, queue, request.group)?;
            if found.group.is_none() {
                // Another transaction is registering it.
                return Ok(PopResult { met_lock: true, ..PopResult::default() });
            }
        }
        move_due_and_pop(request, found, results)
    };
    let result = match is_last {
        true => pop()?,
        false => {
            let is_kept = |result: &PopResult| {
                if !result.has_written {
                    waiters::forget_held();
                }
                result.has_written
            };
            kept_if(is_kept, pop)?
        }
    };
    if let Some(registration) = registration {
        if !(is_last || result.has_written) {
            found.group = None;
            *pending = Some(registration);
        } else if registration.passes_by_messages && found.group.is_some() {
            notices::registered_as_new(queue, request.group);
        }
    }
    Ok(result)
}

/// What to register the group with, if there is something for it or the look is the last.
fn registration_to_write(
    request: &PopRequest<'_>,
    name: &str,
    pending: &mut PendingRegistration,
    is_last: bool,
    found: &ForPop,
) -> Result<Option<Box<Registration>>> {
    let (queue, identity) = (found.queue.as_ref(), found.identity()?);
    let registration = match pending.take() {
        Some(registration) => registration,
        None => {
            let mode = request.mode.unwrap_or(Mode::New);
            Box::new(Registration::prepare(name, request.group, mode, identity)?)
        }
    };
    if !is_last && !registration.has_news(queue, identity)? && !found.has_due_timer() {
        *pending = Some(registration);
        return Ok(None);
    }
    Ok(Some(registration))
}

/// Move messages that are due into the log, then pop; neither while the group is paused. Where
/// another transaction has moved a partition on between the pop's snapshot and its lock, and the
/// pop has got nothing, it is repeated under a newer snapshot.
fn move_due_and_pop(
    request: &PopRequest<'_>,
    found: &ForPop,
    results: ResultContext,
) -> Result<PopResult> {
    let (Some(queue), Some(group)) = (&found.queue, &found.group) else {
        return Ok(PopResult::default());
    };
    if found.is_paused() {
        return Ok(PopResult::default());
    }
    let moved = delayed::deliver_due(queue, found.next_timer, delayed::MOVED_BY_POP)?;
    let mut has_written = moved > 0;
    let mut met_lock = false;
    for _ in 0..MOST_SNAPSHOTS {
        let result = pop_once(&request.limits, queue, group, &found.discovery, results)?;
        has_written |= result.has_written;
        met_lock |= result.met_lock;
        if !result.deliveries.is_empty() || result.is_outdated || !result.has_moved_on {
            return Ok(PopResult { has_written, met_lock, ..result });
        }
        pgrx::check_for_interrupts!();
    }
    Ok(PopResult { has_written, met_lock: true, ..PopResult::default() })
}

/// Snapshots that one look pops under, where other transactions are faster each time.
const MOST_SNAPSHOTS: usize = 8;
