//! `queen_pop`: take messages, under a lease.
//!
//! A pop looks at partitions that may have work ([`Search`]) one by one, reads what each has to
//! give under the pop's one snapshot, and only then locks the cursor and writes its next state. So
//! an empty pop writes nothing, and what somebody else holds is passed by.

use std::collections::HashMap;

use pgrx::datum::{Interval, TimestampWithTimeZone, Uuid};
use pgrx::prelude::*;
use queen_engine::cursor::{Cursor, Readiness};
use queen_engine::discovery::Discovery;
use queen_engine::lease::{Handle, LeaseId};
use queen_engine::message::{MessageId, Spans};
use queen_engine::pop::{Pop, Popped};

use super::args;
use super::register::{Mode, Registration};
use crate::datum::{Jsonb, ResultContext};
use crate::error::{Error, OrRaise, Result};
use crate::search::Search;
use crate::settings;
use crate::store::clock::{self, Moment, SECOND};
use crate::store::cursor::{self, Located, Notice, Status};
use crate::store::group::{Group, Patience, QUEUE_MODE};
use crate::store::identity::Identity;
use crate::store::lookup::{self, ForPop};
use crate::store::queue::Queue;
use crate::store::segment::{Log, Stored};
use crate::store::snapshot::{self, Taken};
use crate::store::spi::{Under, connected};
use crate::store::{lease_set, receipt};
use crate::wait::Poll;

/// A delivered message.
pub struct Delivery {
    partition: String,
    message: MessageId,
    transaction_id: String,
    payload: Jsonb,
    headers: Option<Jsonb>,
    created_at: Moment,
    attempt: u32,
    lease: Option<(LeaseId, Moment)>,
}

/// What was asked for.
struct Request<'a> {
    queue: &'a str,
    group: &'a str,
    batch: usize,
    partition: Option<&'a str>,
    partitions: usize,
    lease_time: Option<i64>,
    wait: i64,
    auto_ack: bool,
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
#[pg_extern(security_definer)]
#[search_path(pg_catalog, pg_temp)]
fn queen_pop(
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
            batch: args::within("batch", batch.unwrap_or(1), 1, 10_000)? as usize,
            partition: partition.map(|name| args::name("partition", Some(name))).transpose()?,
            partitions: args::within("partitions", partitions.unwrap_or(1), 1, 1_000)? as usize,
            lease_time: lease_time.map(args::lease_time).transpose()?,
            wait: wait
                .map(|wait| args::length("wait", wait, 0, 60 * SECOND, "0 to 60 seconds"))
                .transpose()?
                .unwrap_or(0),
            auto_ack: auto_ack.unwrap_or(false),
            mode: Mode::parse(subscription_mode, subscription_from)?,
        })
    })()
    .or_raise();
    let queue = request.queue.to_owned();
    let group = (request.group != QUEUE_MODE).then(|| request.group.to_owned());
    let deliveries = pop(&request).or_raise();
    TableIterator::new(deliveries.into_iter().map(move |d| {
        (
            queue.clone(),
            d.partition,
            d.message.to_sql(),
            d.transaction_id,
            d.payload,
            d.headers,
            clock::timestamp(d.created_at),
            group.clone(),
            d.attempt as i32,
            d.lease.map(|(id, _)| Uuid::from_bytes(id.0)),
            d.lease.and_then(|(_, deadline)| clock::timestamp(deadline)),
        )
    }))
}

/// Pop now, or as soon as there is something within the time to wait.
fn pop(request: &Request<'_>) -> Result<Vec<Delivery>> {
    let results = ResultContext::here();
    let mut poll = Poll::until(clock::now() + request.wait);
    let mut newcomer = Newcomer::Unknown;
    loop {
        let last = poll.is_over();
        let deliveries = connected(|| attempt(request, &mut newcomer, last, results))?;
        if !deliveries.is_empty() || last {
            return Ok(deliveries);
        }
        poll.pause();
    }
}

/// A group that the call finds unregistered.
enum Newcomer {
    /// Not looked yet.
    Unknown,
    /// To be registered with what it may read from the start of the call on.
    Prepared(Registration),
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
) -> Result<Vec<Delivery>> {
    let mut found = lookup::for_pop(request.queue, request.group)?;
    if found.queue.is_none() && !settings::auto_create() {
        return Err(Error::no_such_queue(request.queue));
    }
    if found.group.is_none() {
        register(request, newcomer, last, &mut found)?;
    } else {
        *newcomer = Newcomer::Settled;
    }
    let (Some(queue), Some(group)) = (&found.queue, &found.group) else { return Ok(Vec::new()) };
    // A partition that was moved on between the snapshot and the lock is looked at again.
    for _ in 0..MOVED_ON_LIMIT {
        let mut take = Taking::new(request, queue, group, &found, results);
        let moved_on = Under::new_snapshot(|under| take.run(under))?;
        if !take.deliveries.is_empty() || !moved_on {
            return Ok(take.deliveries);
        }
        pgrx::check_for_interrupts!();
    }
    Ok(Vec::new())
}

/// Register the group, if it is time.
fn register(
    request: &Request<'_>,
    newcomer: &mut Newcomer,
    last: bool,
    found: &mut ForPop,
) -> Result<()> {
    let (queue, identity) = (found.queue.as_ref(), found.identity);
    let registration = match std::mem::replace(newcomer, Newcomer::Settled) {
        Newcomer::Unknown => Registration::prepare(request.group, queue, request.mode, identity)?,
        Newcomer::Prepared(registration) => registration,
        Newcomer::Settled => return Ok(()),
    };
    if !last && !registration.has_news(queue, identity)? {
        *newcomer = Newcomer::Prepared(registration);
        return Ok(());
    }
    match registration.write(request.queue, request.group, Patience::PassBy) {
        Some((group, discovery)) => {
            (found.group, found.discovery) = (Some(group), discovery);
        }
        None => *found = lookup::for_pop(request.queue, request.group)?,
    }
    Ok(())
}

/// How often one look is taken anew because somebody was faster.
const MOVED_ON_LIMIT: usize = 8;

/// What became of one partition.
enum Tried {
    Took,
    /// Busy, or nothing to read.
    Nothing,
    /// Somebody has it locked, or is creating it.
    Locked,
    /// Somebody wrote its next state after our snapshot.
    MovedOn,
}

/// Taking messages from partitions under one snapshot.
struct Taking<'a> {
    request: &'a Request<'a>,
    queue: &'a Queue,
    group: &'a Group,
    identity: Identity,
    /// How far the group has looked.
    discovery: &'a (i64, Discovery),
    now: Moment,
    /// The lease over several partitions, drawn when the first is taken.
    set: Option<(u64, LeaseId)>,
    cursors: Vec<u64>,
    deliveries: Vec<Delivery>,
    results: ResultContext,
}

impl<'a> Taking<'a> {
    fn new(
        request: &'a Request<'a>,
        queue: &'a Queue,
        group: &'a Group,
        found: &'a ForPop,
        results: ResultContext,
    ) -> Self {
        Self {
            request,
            queue,
            group,
            identity: found.identity,
            discovery: &found.discovery,
            now: clock::now(),
            set: None,
            cursors: Vec::new(),
            deliveries: Vec::new(),
            results,
        }
    }

    /// Take what was asked for. True if a partition was moved on in the meantime.
    fn run(&mut self, under: &Under) -> Result<bool> {
        let taken = snapshot::describe(under, self.identity);
        let moved_on = match self.request.partition {
            Some(name) => {
                let start = &self.group.start;
                let names = vec![name.to_owned()];
                let status = cursor::status(self.group.id, start, names, under)?;
                self.try_each(status, &taken, under, &mut |_, _| ())?
            }
            None => {
                let mut search = Search::open(
                    self.group,
                    self.queue.id,
                    self.now,
                    &taken,
                    under,
                    self.discovery,
                );
                let mut moved_on = false;
                while !self.is_done() {
                    let status = search.next()?;
                    if status.is_empty() {
                        break;
                    }
                    let mut resolve = |partition: &str, took| search.resolve(partition, took);
                    moved_on |= self.try_each(status, &taken, under, &mut resolve)?;
                }
                search.close(!self.cursors.is_empty());
                moved_on
            }
        };
        if let Some((id, _)) = self.set {
            lease_set::insert(id, &self.cursors);
        }
        Ok(moved_on)
    }

    fn is_done(&self) -> bool {
        self.cursors.len() >= self.request.partitions || self.deliveries.len() >= self.request.batch
    }

    fn try_each(
        &mut self,
        status: Vec<Status>,
        taken: &Taken,
        under: &Under,
        resolve: &mut dyn FnMut(&str, bool),
    ) -> Result<bool> {
        let mut moved_on = false;
        for status in status {
            if self.is_done() {
                break;
            }
            match self.try_one(&status, taken, under)? {
                Tried::Took => resolve(&status.partition, true),
                Tried::Nothing => resolve(&status.partition, false),
                Tried::Locked => (),
                Tried::MovedOn => moved_on = true,
            }
        }
        Ok(moved_on)
    }

    /// Read without a lock; if there is something, lock, write the next state, deliver.
    fn try_one(&mut self, status: &Status, taken: &Taken, under: &Under) -> Result<Tried> {
        let cursor = match &status.located {
            Some(located) => located.cursor.clone(),
            None => Cursor::new(self.group.start.clone()),
        };
        if let Readiness::At(_) = cursor.readiness(self.now, self.identity.void_before) {
            return Ok(Tried::Nothing);
        }
        let log = Log {
            queue: self.queue.id,
            partition: &status.partition,
            start_at: self.group.start_at,
        };
        let wanted = self.request.batch - self.deliveries.len();
        let mut pop = Pop::begin(cursor, &taken.snapshot, wanted);
        let mut segments = read_log(&mut pop, &log, under);
        if !pop.found_any() {
            return Ok(Tried::Nothing);
        }
        let Some(located) = self.lock(status)? else {
            return Ok(Tried::Locked);
        };
        let lease = self.lease(&located);
        let Some(popped) = pop.finish(lease, self.now) else { return Ok(Tried::Nothing) };
        if !self.write(&located, &popped)? {
            return Ok(Tried::MovedOn);
        }
        fetch_missing(&mut segments, &popped.taken, &log, under);
        self.cursors.push(located.id);
        self.deliver(&status.partition, &popped, &segments, lease)?;
        Ok(Tried::Took)
    }

    fn lock(&self, status: &Status) -> Result<Option<Located>> {
        match &status.located {
            Some(located) => {
                Ok(cursor::try_lock(located.id, located.revision).then(|| located.clone()))
            }
            None => {
                let id = cursor::try_create(self.group.id, &status.partition);
                Ok(id.map(|id| Located {
                    id,
                    group: self.group.id,
                    partition: status.partition.clone(),
                    revision: 0,
                    cursor: Cursor::default(),
                }))
            }
        }
    }

    /// The lease for what is taken from this cursor; None with `auto_ack`.
    fn lease(&mut self, located: &Located) -> Option<(LeaseId, i64)> {
        if self.request.auto_ack {
            return None;
        }
        let duration = self.request.lease_time.unwrap_or(self.queue.options.lease_time());
        let id = if self.request.partitions == 1 {
            LeaseId::new(self.now, Handle::Cursor(located.id), crate::datum::random())
        } else {
            let now = self.now;
            let (_, id) = *self.set.get_or_insert_with(|| {
                let set = lease_set::draw_id();
                (set, LeaseId::new(now, Handle::Set(set), crate::datum::random()))
            });
            id
        };
        Some((id, duration))
    }

    fn write(&self, located: &Located, popped: &Popped) -> Result<bool> {
        let notice = match popped.cursor.leases.is_empty() {
            true => Notice::Ready { xid: snapshot::assign_xid(self.identity) },
            false => Notice::Leased,
        };
        if !cursor::append(located, &popped.cursor, notice)? {
            return Ok(false);
        }
        for (lease, trace) in &popped.ended {
            receipt::insert(located.id, *lease, trace, self.now);
        }
        Ok(true)
    }

    fn deliver(
        &mut self,
        partition: &str,
        popped: &Popped,
        segments: &HashMap<u64, Stored>,
        lease: Option<(LeaseId, i64)>,
    ) -> Result<()> {
        for span in popped.taken.iter() {
            let Some(stored) = segments.get(&span.segment) else { continue };
            let created_at = stored.created_at();
            let unpacked = self.results.allocate(|| stored.unpack());
            for message in span.messages() {
                self.deliveries.push(Delivery {
                    partition: partition.to_owned(),
                    message,
                    transaction_id: unpacked.transaction_id(message),
                    payload: unpacked.payload(message.index())?,
                    headers: unpacked.headers(message.index()),
                    created_at,
                    attempt: span.deliveries,
                    lease: lease.map(|(id, duration)| (id, self.now.saturating_add(duration))),
                });
            }
        }
        Ok(())
    }
}

/// Segments read at first, when nothing is known of how full they are.
const FIRST_SEGMENTS: usize = 8;

/// Read the log until the pop has what it wants, or all there is.
fn read_log(pop: &mut Pop<'_>, log: &Log<'_>, under: &Under) -> HashMap<u64, Stored> {
    let mut segments = HashMap::new();
    let mut limit = FIRST_SEGMENTS;
    while let Some(read) = pop.next_read() {
        let limit_now = limit.min(pop.missing());
        let stored = log.read(&read, limit_now, under);
        let found: Vec<_> = stored.iter().map(Stored::found).collect();
        pop.supply(&read, &found, stored.len() < limit_now);
        segments.extend(stored.into_iter().map(|segment| (segment.id(), segment)));
        limit *= 4;
        pgrx::check_for_interrupts!();
    }
    segments
}

/// Segments of messages that came back: the log was not read for them.
fn fetch_missing(segments: &mut HashMap<u64, Stored>, taken: &Spans, log: &Log<'_>, under: &Under) {
    let missing: Spans =
        taken.iter().filter(|span| !segments.contains_key(&span.segment)).collect();
    if !missing.is_empty() {
        let stored = log.segments(&missing, under);
        segments.extend(stored.into_iter().map(|segment| (segment.id(), segment)));
    }
}
