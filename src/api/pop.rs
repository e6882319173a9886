//! `queen_pop` and `queen_pop_any`: pop messages, under a lease. Arguments in, one call of the
//! broker, rows out: what a pop does is in [`crate::broker::pop`].

use std::rc::Rc;

use pgrx::datum::{Interval, TimestampWithTimeZone};
use pgrx::prelude::*;
use queen_engine::lease::LeaseId;

use super::args;
use super::call::Call;
use crate::broker::pop::request::{self, PopRequest};
use crate::broker::pop::{PopLimits, Unpacking};
use crate::error::Result;
use crate::pg::arrays::TextArray;
use crate::pg::clock::{self, SECOND};
use crate::pg::datum::{Jsonb, UuidDatum};
use crate::pg::raise::OrRaise;
use crate::pg::result_context::ResultContext;
use crate::pg::result_rows::TableIterator;
use crate::pg::text::Text;
use crate::store::group::QUEUE_MODE;

/// Pop at most `batch` messages for `consumer_group` (NULL: queue mode) from up to `partitions`
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
        name!(queue, Text),
        name!(partition, Text),
        name!(message_id, i64),
        name!(transaction_id, Text),
        name!(payload, Jsonb),
        name!(headers, Option<Jsonb>),
        name!(created_at, Option<TimestampWithTimeZone>),
        name!(consumer_group, Option<Text>),
        name!(delivery_attempt, i32),
        name!(lease_id, Option<UuidDatum>),
        name!(lease_expires_at, Option<TimestampWithTimeZone>),
        name!(failures, i32),
    ),
> {
    let request = call.answer(|| {
        let queue = args::name("queue", queue)?;
        let partition = partition.map(|name| args::name("partition", Some(name))).transpose()?;
        PopArguments {
            consumer_group,
            batch,
            partitions,
            lease_time,
            wait,
            auto_ack,
            subscription_mode,
            subscription_from,
        }
        .request(vec![queue], partition)
    });
    pop(&call, &request)
}

/// [`queen_pop`] from the first of `queues` (1 to 32, each once) that has something for the group,
/// and from that one alone: so the order is the priority. `wait` waits for all of them. The other
/// arguments and the result are those of `queen_pop`.
///
/// Each pop looks at the queues in their order, with what is visible to it at that moment. The
/// first pop of a group registers it in all of them, as of the beginning of the call, also where it
/// takes messages from one of them; `subscription_mode` and `subscription_from` count for each.
///
/// Errors: 22023 for a malformed argument, also for a queue that is named twice; 42704 where
/// `queen_mq.auto_create` is off and one of the queues is unknown; 40001 in REPEATABLE READ when
/// another transaction has moved the group on.
///
/// Transaction: as for `queen_pop`.
#[allow(clippy::too_many_arguments, clippy::type_complexity)]
#[pg_extern]
fn queen_pop_any(
    call: Call,
    queues: Option<TextArray>,
    consumer_group: default!(Option<&str>, "NULL"),
    batch: default!(Option<i32>, "1"),
    partitions: default!(Option<i32>, "1"),
    lease_time: default!(Option<Interval>, "NULL"),
    wait: default!(Option<Interval>, "'0'"),
    auto_ack: default!(Option<bool>, "false"),
    subscription_mode: default!(Option<&str>, "NULL"),
    subscription_from: default!(Option<TimestampWithTimeZone>, "NULL"),
) -> TableIterator<
    'static,
    (
        name!(queue, Text),
        name!(partition, Text),
        name!(message_id, i64),
        name!(transaction_id, Text),
        name!(payload, Jsonb),
        name!(headers, Option<Jsonb>),
        name!(created_at, Option<TimestampWithTimeZone>),
        name!(consumer_group, Option<Text>),
        name!(delivery_attempt, i32),
        name!(lease_id, Option<UuidDatum>),
        name!(lease_expires_at, Option<TimestampWithTimeZone>),
        name!(failures, i32),
    ),
> {
    let request = call.answer(|| {
        let queues = args::queues(queues)?;
        PopArguments {
            consumer_group,
            batch,
            partitions,
            lease_time,
            wait,
            auto_ack,
            subscription_mode,
            subscription_from,
        }
        .request(queues, None)
    });
    pop(&call, &request)
}

/// What both functions take besides queues and partition.
struct PopArguments<'a> {
    consumer_group: Option<&'a str>,
    batch: Option<i32>,
    partitions: Option<i32>,
    lease_time: Option<Interval>,
    wait: Option<Interval>,
    auto_ack: Option<bool>,
    subscription_mode: Option<&'a str>,
    subscription_from: Option<TimestampWithTimeZone>,
}

impl<'a> PopArguments<'a> {
    fn request(self, queues: Vec<&'a str>, partition: Option<&'a str>) -> Result<PopRequest<'a>> {
        let (batch, partitions) = (self.batch.unwrap_or(1), self.partitions.unwrap_or(1));
        Ok(PopRequest {
            queues,
            group: args::group(self.consumer_group)?,
            limits: PopLimits {
                batch: args::within("batch", batch, 1, 10_000)? as usize,
                partition,
                partitions: args::within("partitions", partitions, 1, 1_000)? as usize,
                lease_time: self.lease_time.map(args::lease_time).transpose()?,
                auto_ack: self.auto_ack.unwrap_or(false),
            },
            wait: self
                .wait
                .map(|wait| args::length("wait", wait, 0, 60 * SECOND, "0 to 60 seconds"))
                .transpose()?
                .unwrap_or(0),
            mode: super::group::given_mode(self.subscription_mode, self.subscription_from)?,
        })
    }
}

/// A row of both.
type PoppedRow = (
    Text,
    Text,
    i64,
    Text,
    Jsonb,
    Option<Jsonb>,
    Option<TimestampWithTimeZone>,
    Option<Text>,
    i32,
    Option<UuidDatum>,
    Option<TimestampWithTimeZone>,
    i32,
);

fn pop(call: &Call, request: &PopRequest<'_>) -> TableIterator<'static, PoppedRow> {
    let group = (request.group != QUEUE_MODE).then(|| Text::copied(request.group));
    let mut shared = SharedValues { results: ResultContext::here(), partition: None, lease: None };
    let popped = request::pop(request, |look| call.write(look)).or_raise();
    let queue = shared.results.allocate(|| Text::copied(request.queues[popped.queue]));
    let mut unpacking = Unpacking::new();
    TableIterator::new(popped.deliveries.into_iter().map(move |delivery| {
        let (transaction_id, payload, headers) = unpacking.message(&delivery).or_raise();
        (
            queue,
            shared.partition(&delivery.partition),
            delivery.message.to_sql(),
            transaction_id,
            payload,
            headers,
            clock::timestamp(delivery.created_at),
            group,
            delivery.attempt as i32,
            delivery.lease.map(|(id, _)| shared.lease(id)),
            delivery.lease.and_then(|(_, deadline)| clock::timestamp(deadline)),
            delivery.failures as i32,
        )
    }))
}

/// Values that neighbouring rows have in common.
struct SharedValues {
    results: ResultContext,
    /// The partition of the row before.
    partition: Option<(Rc<str>, Text)>,
    /// The lease of the row before.
    lease: Option<(LeaseId, UuidDatum)>,
}

impl SharedValues {
    fn lease(&mut self, id: LeaseId) -> UuidDatum {
        match self.lease {
            Some((before, uuid)) if before == id => uuid,
            _ => {
                let uuid = self.results.allocate(|| UuidDatum::copied(id.0));
                self.lease = Some((id, uuid));
                uuid
            }
        }
    }

    fn partition(&mut self, name: &Rc<str>) -> Text {
        match &self.partition {
            Some((before, text)) if before == name => *text,
            _ => {
                let text = self.results.allocate(|| Text::copied(name));
                self.partition = Some((name.clone(), text));
                text
            }
        }
    }
}
