//! `queen_pop`: pop messages, under a lease. Arguments in, one call of the broker, rows out: what a
//! pop does is in [`crate::broker::pop`].

use std::rc::Rc;

use pgrx::datum::{Interval, TimestampWithTimeZone};
use pgrx::prelude::*;
use queen_engine::lease::LeaseId;

use super::args;
use super::call::Call;
use crate::broker::pop::request::{self, PopRequest};
use crate::broker::pop::{PopLimits, Unpacking};
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
        Ok(PopRequest {
            queue: args::name("queue", queue)?,
            group: args::group(consumer_group)?,
            limits: PopLimits {
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
            mode: super::group::given_mode(subscription_mode, subscription_from)?,
        })
    });
    let (queue, group) = (Text::copied(request.queue), request.group);
    let group = (group != QUEUE_MODE).then(|| Text::copied(group));
    let mut shared = SharedValues { results: ResultContext::here(), partition: None, lease: None };
    let deliveries = request::pop(&request, |look| call.write(look)).or_raise();
    let mut unpacking = Unpacking::new();
    TableIterator::new(deliveries.into_iter().map(move |delivery| {
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
