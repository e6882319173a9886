//! `queen_pop`: pop messages, under a lease. Arguments in, one call of the broker, rows out: what a
//! pop does is in [`crate::broker::pop`].

use pgrx::datum::{Interval, TimestampWithTimeZone, Uuid};
use pgrx::prelude::*;

use super::args;
use super::call::Call;
use crate::broker::pop::request::{self, PopRequest};
use crate::broker::pop::{PopLimits, Unpacking};
use crate::pg::clock::{self, SECOND};
use crate::pg::datum::Jsonb;
use crate::pg::raise::OrRaise;
use crate::pg::result_rows::TableIterator;
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
    let queue = request.queue.to_owned();
    let group = (request.group != QUEUE_MODE).then(|| request.group.to_owned());
    let deliveries = request::pop(&request, |look| call.write(look)).or_raise();
    let mut unpacking = Unpacking::new();
    TableIterator::new(deliveries.into_iter().map(move |delivery| {
        let (transaction_id, payload, headers) = unpacking.message(&delivery).or_raise();
        (
            queue.clone(),
            delivery.partition.to_string(),
            delivery.message.to_sql(),
            transaction_id,
            payload,
            headers,
            clock::timestamp(delivery.created_at),
            group.clone(),
            delivery.attempt as i32,
            delivery.lease.map(|(id, _)| Uuid::from_bytes(id.0)),
            delivery.lease.and_then(|(_, deadline)| clock::timestamp(deadline)),
            delivery.failures as i32,
        )
    }))
}
