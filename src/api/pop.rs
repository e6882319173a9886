//! `queen_pop`: take messages, under a lease.
//!
//! A pop looks at partitions that may have work ([`crate::broker::pop::search`]) one by one, reads what each has
//! to give under the pop's one snapshot, and only then locks the cursor and writes its next state
//! ([`crate::broker::pop`]). So an empty pop writes nothing, and what somebody else holds is passed by.
//! What is decided on the way is the engine's: `queen_engine::pop`.

use pgrx::datum::{Interval, TimestampWithTimeZone, Uuid};
use pgrx::prelude::*;
use queen_engine::discovery::Discovery;

use super::args;
use super::call::Call;
use crate::broker::group::beginning::Mode;
use crate::broker::group::register::Registration;
use crate::broker::lookup::{self, ForPop};
use crate::broker::pop::{Delivery, Taking, Unpacking, Wanted};
use crate::broker::push::delayed;
use crate::error::{Error, Result};
use crate::pg::clock::{self, Moment, SECOND};
use crate::pg::datum::{Jsonb, ResultContext};
use crate::pg::raise::OrRaise;
use crate::pg::result_rows::TableIterator;
use crate::pg::spi::ActiveSnapshot;
use crate::pg::subtransaction::kept_if;
use crate::settings;
use crate::store::discovery;
use crate::store::group::{Group, QUEUE_MODE};
use crate::store::queue::Queue;
use crate::wait::Wait;
use crate::wait::waiters::Topic;

/// What was asked for.
struct Request<'a> {
    queue: &'a str,
    group: &'a str,
    wanted: Wanted<'a>,
    wait: i64,
    mode: Mode,
}

/// Take up to `batch` messages for `consumer_group` (NULL: queue mode) from up to `partitions`
/// partitions of `queue`, or from the one named, and hold them for `lease_time` (default: the
/// queue's) under one lease. Messages come in delivery order per partition; partitions that are
/// leased, waiting for a retry or locked are passed by, never waited for.
///
/// The first pop of a group registers it: `subscription_mode` 'new' (default), 'all', or
/// `subscription_from`, a time. `wait` (0 to 60 s) waits for a first message. `auto_ack` settles at
/// once: at most once, without a lease.
///
/// Errors: 22023 for a malformed argument; 42704 for an unknown queue when `queen_mq.auto_create`
/// is off; 40001 in REPEATABLE READ when another transaction has moved the group on.
///
/// Transaction: the lease is given when the caller commits and leaves no trace if it rolls back.
/// A pop that finds nothing writes nothing and takes no transaction id.
#[allow(clippy::too_many_arguments, clippy::type_complexity)]
#[pg_extern]
fn queen_pop(
    call: Call,
    queue: Option<&str>,
    consumer_group: default!(Option<&str>, "NULL"),
    batch: default!(Option<i32>, "1"),
    partition: default!(Option<&str>, "NULL"),
    partitions: default!(Option<i32>, "1"),
    lease_time: default!(Option<Interval>, "NULL"),
    wait: default!(Option<Interval>, "'0'"),
    auto_ack: default!(Option<bool>, "false"),
    subscription_mode: default!(Option<&str>, "NULL"),
    subscription_from: default!(Option<TimestampWithTimeZone>, "NULL"),
) -> TableIterator<
    'static,
    (
        name!(queue, String),
        name!(partition, String),
        name!(message_id, i64),
        name!(transaction_id, String),
        name!(payload, Jsonb),
        name!(headers, Option<Jsonb>),
        name!(created_at, Option<TimestampWithTimeZone>),
        name!(consumer_group, Option<String>),
        name!(delivery_attempt, i32),
        name!(lease_id, Option<Uuid>),
        name!(lease_expires_at, Option<TimestampWithTimeZone>),
    ),
> {
    let request = (|| {
        Ok(Request {
            queue: args::name("queue", queue)?,
            group: args::group(consumer_group)?,
            wanted: Wanted {
                batch: args::within("batch", batch.unwrap_or(1), 1, 10_000)? as usize,
                partition: partition.map(|name| args::name("partition", Some(name))).transpose()?,
                partitions: args::within("partitions", partitions.unwrap_or(1), 1, 1_000)? as usize,
                lease_time: lease_time.map(args::lease_time).transpose()?,
                auto_ack: auto_ack.unwrap_or(false),
            },
            wait: wait
                .map(|wait| args::length("wait", wait, 0, 60 * SECOND, "0 to 60 seconds"))
                .transpose()?
                .unwrap_or(0),
            mode: super::group::subscription_mode(subscription_mode, subscription_from)?,
        })
    })()
    .or_raise();
    let queue = request.queue.to_owned();
    let group = (request.group != QUEUE_MODE).then(|| request.group.to_owned());
    let deliveries = pop(&call, &request).or_raise();
    let mut unpacking = Unpacking::new();
    TableIterator::new(deliveries.into_iter().map(move |d| {
        let (transaction_id, payload, headers) = unpacking.message(&d).or_raise();
        (
            queue.clone(),
            d.partition.to_string(),
            d.message.to_sql(),
            transaction_id,
            payload,
            headers,
            clock::timestamp(d.created_at),
            group.clone(),
            d.attempt as i32,
            d.lease.map(|(id, _)| Uuid::from_bytes(id.0)),
            d.lease.and_then(|(_, deadline)| clock::timestamp(deadline)),
        )
    }))
}

/// Pop now, or as soon as there is something within the time to wait.
fn pop(call: &Call, request: &Request<'_>) -> Result<Vec<Delivery>> {
    let results = ResultContext::here();
    let mut wait = Wait::until(clock::now() + request.wait);
    let mut newcomer = Newcomer::Unknown;
    loop {
        let last = wait.is_over();
        let look = call.write(|| attempt(request, &mut newcomer, last, results))?;
        if last || look.has_moved || !look.deliveries.is_empty() {
            return Ok(look.deliveries);
        }
        wait.pause(Topic::queue(request.queue), look.group.map(Topic::group), look.next);
    }
}

/// What a look found.
#[derive(Default)]
struct Look {
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
