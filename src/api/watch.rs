//! `queen_metrics`, `queen_prometheus`, and the functions behind the views: the figures of
//! [`crate::broker::stats`] as rows. They lock nothing.

use pgrx::datum::{Interval, TimestampWithTimeZone, Uuid};
use pgrx::prelude::*;
use queen_engine::rights::Privilege;

use super::call::Call;
use super::options;
use crate::broker::rights;
use crate::broker::stats::blocked;
use crate::broker::stats::figures::{self, Figures};
use crate::broker::stats::metrics::{self, Metric};
use crate::error::Result;
use crate::pg::clock::{self, Moment};
use crate::pg::result_rows::TableIterator;
use crate::pg::snapshot::ActiveSnapshot;
use crate::store::locks;
use crate::worker;

/// The figures of the queues that the calling role may see.
fn all_figures(call: &Call) -> Figures {
    call.answer(|| {
        call.read(|| {
            let rights = rights::require_some(Privilege::Monitor)?;
            ActiveSnapshot::of_statement(|under| Figures::take(&rights, under))
        })
    })
}

/// What `find` finds about the queue, if the calling role may see it: the functions behind the
/// views tell no more than the views do.
fn figures_of<T: Default>(
    call: &Call,
    queue: &str,
    find: impl FnOnce(&ActiveSnapshot) -> Result<T>,
) -> Result<T> {
    call.read(|| match rights::may(Privilege::Monitor, queue)? {
        true => ActiveSnapshot::of_statement(find),
        false => Ok(T::default()),
    })
}

fn age(of: Option<Moment>, now: Moment) -> Option<Interval> {
    of.and_then(|at| clock::interval((now - at).max(0)))
}

/// Functions that live beside the tables: the views call them.
#[pg_schema]
pub mod queen_mq {
    use super::*;

    /// Behind the view queen_groups: one row, if there is the group. `consumer_group` is the name
    /// as it is stored: '' is queue mode.
    #[allow(clippy::type_complexity)]
    #[pg_extern(requires = ["tables"])]
    fn group_figures(
        call: Call,
        queue: Option<&str>,
        consumer_group: Option<&str>,
    ) -> TableIterator<
        'static,
        (
            name!(pending, i64),
            name!(in_flight, i64),
            name!(retrying, i64),
            name!(dead_letters, i64),
            name!(oldest_pending_age, Option<Interval>),
            name!(last_pop_at, Option<TimestampWithTimeZone>),
            name!(options, pgrx::JsonB),
        ),
    > {
        let found = call.answer(|| {
            let (queue, group) = (queue.unwrap_or_default(), consumer_group.unwrap_or_default());
            figures_of(&call, queue, |under| figures::group_named(queue, group, under))
        });
        let now = clock::now();
        TableIterator::new(found.into_iter().map(move |group| {
            (
                group.pending,
                group.in_flight,
                group.retrying,
                group.dead_letters,
                age(group.oldest_pending, now),
                group.last_pop_at.and_then(clock::timestamp),
                options::of_group(&group.options),
            )
        }))
    }

    /// Behind the view queen_queues: one row, if there is the queue.
    #[allow(clippy::type_complexity)]
    #[pg_extern(requires = ["tables"])]
    fn queue_figures(
        call: Call,
        queue: Option<&str>,
    ) -> TableIterator<
        'static,
        (
            name!(depth, i64),
            name!(bytes, i64),
            name!(oldest_age, Option<Interval>),
            name!(partitions, i64),
            name!(groups, i64),
            name!(options, pgrx::JsonB),
        ),
    > {
        let found = call.answer(|| {
            let queue = queue.unwrap_or_default();
            figures_of(&call, queue, |under| figures::queue_named(queue, under))
        });
        let now = clock::now();
        TableIterator::new(found.into_iter().map(move |queue| {
            (
                queue.depth,
                queue.bytes,
                age(queue.oldest, now),
                queue.partitions,
                queue.groups,
                options::of_queue(&queue.options),
            )
        }))
    }

    /// Behind the view queen_blocked: one row for each partition of an ordered group whose first
    /// message is leased or has come back. `consumer_group` is the name as it is stored: '' is
    /// queue mode.
    #[allow(clippy::type_complexity)]
    #[pg_extern(requires = ["tables"])]
    fn blocked_partitions(
        call: Call,
        queue: Option<&str>,
        consumer_group: Option<&str>,
    ) -> TableIterator<
        'static,
        (
            name!(partition, String),
            name!(message_id, i64),
            name!(transaction_id, String),
            name!(state, &'static str),
            name!(delivery_attempt, i32),
            name!(failures, i32),
            name!(last_error, Option<String>),
            name!(due_at, Option<TimestampWithTimeZone>),
        ),
    > {
        let found = call.answer(|| {
            let (queue, group) = (queue.unwrap_or_default(), consumer_group.unwrap_or_default());
            figures_of(&call, queue, |under| blocked::of_group(queue, group, under))
        });
        TableIterator::new(found.into_iter().map(|blocked| {
            (
                blocked.partition,
                blocked.message.to_sql(),
                blocked.transaction_id,
                blocked.state.name(),
                blocked.open.deliveries as i32,
                blocked.failures as i32,
                blocked.last_error,
                clock::timestamp(blocked.open.ready_at),
            )
        }))
    }

    /// Behind the view queen_leases: one row for each partition of the group that is leased.
    /// `consumer_group` is the name as it is stored: '' is queue mode.
    #[allow(clippy::type_complexity)]
    #[pg_extern(requires = ["tables"])]
    fn live_leases(
        call: Call,
        queue: Option<&str>,
        consumer_group: Option<&str>,
    ) -> TableIterator<
        'static,
        (
            name!(partition, String),
            name!(lease_id, Uuid),
            name!(expires_at, Option<TimestampWithTimeZone>),
            name!(messages, i64),
            name!(delivery_attempt, i32),
        ),
    > {
        let found = call.answer(|| {
            let (queue, group) = (queue.unwrap_or_default(), consumer_group.unwrap_or_default());
            figures_of(&call, queue, |under| figures::leases_of(queue, group, under))
        });
        TableIterator::new(found.into_iter().map(|lease| {
            (
                lease.partition.to_string(),
                Uuid::from_bytes(lease.lease.0),
                clock::timestamp(lease.expires_at),
                lease.messages,
                lease.attempt,
            )
        }))
    }
}

/// The metrics of queues, of groups, and of the database's worker.
fn all_metrics(call: &Call, now: Moment) -> Vec<Metric> {
    let mut all = metrics::of(&all_figures(call), now);
    let (service, is_running) = (worker::service(), locks::has_worker());
    let is_served = service.is_some_and(|service| service.is_served) || is_running;
    let gauge =
        |name, value, help| Metric { name, labels: Vec::new(), value, kind: metrics::GAUGE, help };
    all.push(gauge(
        "queen_worker_serves",
        f64::from(u8::from(is_served)),
        "Whether a background worker serves the database, at all times or in turn with others.",
    ));
    all.push(gauge(
        "queen_worker_running",
        f64::from(u8::from(is_running)),
        "Whether a background worker is in the database at this moment.",
    ));
    if let Some(swept_at) = service.and_then(|service| service.swept_at) {
        all.push(gauge(
            "queen_last_sweep_timestamp_seconds",
            metrics::since_1970(swept_at),
            "When a worker or queen_sweep last came to the end of a sweep since the server \
             started, in seconds since 1970; only with the library preloaded.",
        ));
    }
    if let Some(service) = service {
        all.push(gauge(
            "queen_worker_late_seconds",
            service.late_since.map_or(0.0, |since| (now - since).max(0) as f64 / 1e6),
            "For how long the database has needed a background worker and has had none.",
        ));
    }
    all
}

/// Figures of each queue that the caller may see, and of its groups: `labels` says of which, `kind`
/// is 'gauge' or 'counter'. The cost grows with the number of partitions that groups have read, and
/// with what has arrived since it was last counted.
///
/// Errors: 42501 if there is no queue on which the caller has the privilege.
#[pg_extern]
fn queen_metrics(
    call: Call,
) -> TableIterator<
    'static,
    (
        name!(name, &'static str),
        name!(labels, pgrx::JsonB),
        name!(value, f64),
        name!(kind, &'static str),
        name!(help, &'static str),
    ),
> {
    let now = clock::now();
    TableIterator::new(all_metrics(&call, now).into_iter().map(
        |Metric { name, labels, value, kind, help }| {
            let labels = labels.into_iter().map(|(k, v)| (k.to_owned(), v.into())).collect();
            (name, pgrx::JsonB(serde_json::Value::Object(labels)), value, kind, help)
        },
    ))
}

/// The figures of `queen_metrics` in the text format that Prometheus scrapes.
#[pg_extern]
fn queen_prometheus(call: Call) -> String {
    metrics::exposition(&all_metrics(&call, clock::now()))
}
