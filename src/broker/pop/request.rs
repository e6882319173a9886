//! A request of `queen_pop`, from the look-up of its queue and group to its messages.

use queen_engine::discovery::Discovery;

use crate::broker::group::beginning::Mode;
use crate::broker::group::register::Registration;
use crate::broker::lookup::{self, ForPop};
use crate::broker::pop::{Delivery, Taking, Wanted};
use crate::broker::push::delayed;
use crate::error::{Error, Result};
use crate::pg::clock::{self, Moment, SECOND};
use crate::pg::result_context::ResultContext;
use crate::pg::spi::ActiveSnapshot;
use crate::pg::subtransaction::kept_if;
use crate::settings;
use crate::store::discovery;
use crate::store::group::Group;
use crate::store::queue::Queue;
use crate::wait::Wait;
use crate::wait::waiters::Topic;

/// What was asked for.
pub struct Request<'a> {
    pub queue: &'a str,
    pub group: &'a str,
    pub wanted: Wanted<'a>,
    pub wait: i64,
    pub mode: Mode,
}

/// Pop now, or as soon as there is something within the time to wait.
pub fn pop(
    request: &Request<'_>,
    enter: impl Fn(&mut dyn FnMut() -> Result<Look>) -> Result<Look>,
) -> Result<Vec<Delivery>> {
    let results = ResultContext::here();
    let mut wait = Wait::until(clock::now() + request.wait);
    let mut newcomer = Newcomer::Unknown;
    loop {
        let last = wait.is_over();
        let look = enter(&mut || attempt(request, &mut newcomer, last, results))?;
        if last || look.has_moved || !look.deliveries.is_empty() {
            return Ok(look.deliveries);
        }
        wait.pause(Topic::queue(request.queue), look.group.map(Topic::group), look.next);
    }
}

/// What a look found.
#[derive(Default)]
pub struct Look {
    deliveries: Vec<Delivery>,
    /// Messages were moved into the log. That may be for others, who are not to wait for the end of
    /// this pop.
    has_moved: bool,
    /// The queue or the group has been changed meanwhile.
    is_outdated: bool,
    /// The group's id.
    group: Option<i64>,
    /// When there may be something by itself.
    next: Option<Moment>,
}

/// When something may be there by itself: a timer, what becomes old enough, the end of a lease, a
/// retry.
pub fn next_moment(found: &ForPop, under: &ActiveSnapshot) -> Option<Moment> {
    let now = clock::now();
    // What is too young to be delivered has no moment of its own.
    let delay = found.queue.as_ref().map_or(0, |queue| queue.options.delay());
    let ripe = (delay > 0).then(|| now + delay.min(LOOK_AGAIN));
    let due = found.group.as_ref().and_then(|group| discovery::next_due(group.id, now, under));
    let next = [found.next_timer, ripe, due].into_iter().flatten().min();
    next.map(|next| next.max(now + SOON))
}

/// How often a pop that waits looks for what becomes old enough.
const LOOK_AGAIN: i64 = SECOND / 10;
/// Moments come in crowds, and what is due may be in the hands of somebody else: no more than so many
/// looks a second for them.
const SOON: i64 = SECOND / 50;

/// A group that the call finds unregistered.
enum Newcomer {
    /// Not looked yet.
    Unknown,
    /// To be registered with what it may read from the start of the call on.
    Prepared(Box<Registration>),
    /// Registered, here or by somebody else.
    Settled,
}

/// Look once. A newcomer is registered when there is something for it, or at the `last` look: so
/// a pop that waits holds nothing.
fn attempt(
    request: &Request<'_>,
    newcomer: &mut Newcomer,
    last: bool,
    results: ResultContext,
) -> Result<Look> {
    let mut has_moved = false;
    loop {
        let mut look = attempt_once(request, newcomer, last, results)?;
        look.has_moved |= has_moved;
        if !look.is_outdated {
            return Ok(look);
        }
        has_moved = look.has_moved;
        pgrx::check_for_interrupts!();
    }
}

/// The same, as long as nobody changes the queue or the group meanwhile.
fn attempt_once(
    request: &Request<'_>,
    newcomer: &mut Newcomer,
    last: bool,
    results: ResultContext,
) -> Result<Look> {
    let mut found = lookup::for_pop(request.queue, request.group)?;
    if found.queue.is_none() && !settings::auto_create() {
        return Err(Error::no_such_queue(request.queue));
    }
    let registration = match found.group {
        Some(_) => {
            *newcomer = Newcomer::Settled;
            None
        }
        None => prepared(request, newcomer, last, &found)?,
    };
    let mut take = || {
        if let Some(registration) = &registration {
            registration.clone().write_into(&mut found, request.queue, request.group)?;
        }
        move_and_take(request, &found, results)
    };
    // A look that wrote nothing is undone with its locks, and with the registration of a group that
    // there is nothing for yet: a pop that waits must not hold them.
    let took = match last {
        true => take()?,
        false => kept_if(|took| took.has_written, take)?,
    };
    if let Some(registration) = registration
        && !(last || took.has_written)
    {
        found.group = None;
        *newcomer = Newcomer::Prepared(registration);
    }
    let Took { deliveries, is_outdated, has_written } = took;
    let group = found.group.as_ref().map(|group| group.id);
    let mut look = Look { deliveries, has_moved: has_written, is_outdated, group, next: None };
    if look.deliveries.is_empty() && !last {
        look.next = ActiveSnapshot::new_snapshot(|under| Ok(next_moment(&found, under)))?;
    }
    Ok(look)
}

/// Move into the log what is due, and take what there is.
fn move_and_take(request: &Request<'_>, found: &ForPop, results: ResultContext) -> Result<Took> {
    let (Some(queue), Some(group)) = (&found.queue, &found.group) else {
        return Ok(Took::default());
    };
    let moved = delayed::deliver_due(queue, found.next_timer, delayed::MOVED_BY_POP)?;
    let mut took = take(request, queue, group, &found.discovery, results)?;
    took.has_written |= moved > 0;
    Ok(took)
}

/// What was taken.
#[derive(Default)]
struct Took {
    deliveries: Vec<Delivery>,
    /// The queue or the group has been changed since it was looked up.
    is_outdated: bool,
    /// The pop wrote something that other transactions may wait for, even if it takes no message.
    has_written: bool,
}

/// Take what there is. A partition that was moved on between the snapshot and the lock is looked at
/// again.
fn take(
    request: &Request<'_>,
    queue: &Queue,
    group: &Group,
    discovery: &(i64, Discovery),
    results: ResultContext,
) -> Result<Took> {
    let mut has_written = false;
    for _ in 0..MOVED_ON_LIMIT {
        let mut take = Taking::new(&request.wanted, queue, group, discovery, results);
        let moved_on = ActiveSnapshot::new_snapshot(|under| take.run(under))?;
        let is_outdated = take.is_outdated() && !take.took_any();
        has_written |= take.has_written();
        if take.took_any() || is_outdated || !moved_on {
            return Ok(Took { deliveries: take.into_deliveries(), is_outdated, has_written });
        }
        pgrx::check_for_interrupts!();
    }
    Ok(Took { deliveries: Vec::new(), is_outdated: false, has_written })
}

/// What to register the group with, if it is time.
fn prepared(
    request: &Request<'_>,
    newcomer: &mut Newcomer,
    last: bool,
    found: &ForPop,
) -> Result<Option<Box<Registration>>> {
    let (queue, identity) = (found.queue.as_ref(), found.identity()?);
    let registration = match std::mem::replace(newcomer, Newcomer::Settled) {
        Newcomer::Unknown => {
            Box::new(Registration::prepare(request.group, queue, request.mode, identity)?)
        }
        Newcomer::Prepared(registration) => registration,
        Newcomer::Settled => return Ok(None),
    };
    if !last && !registration.has_news(queue, identity)? && !found.has_due_timer() {
        *newcomer = Newcomer::Prepared(registration);
        return Ok(None);
    }
    Ok(Some(registration))
}

/// How often one look is taken anew because somebody was faster.
const MOVED_ON_LIMIT: usize = 8;
