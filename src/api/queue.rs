//! `queen_configure`, `queen_pause`, `queen_resume`, `queen_purge`, `queen_delete_queue`: a queue
//! as a whole. A group can be paused, too.

use pgrx::datum::{Interval, TimestampWithTimeZone};
use pgrx::prelude::*;

use super::args;
use super::call::Call;
use crate::broker::pause;
use crate::broker::queue::{self, Change};
use crate::error::{Error, Result};
use crate::pg::arrays::TextArray;
use crate::pg::clock::{self, DAY};
use crate::pg::result_rows::TableIterator;
use crate::store::queue::{Options, Queue};

/// No option is longer than this: 100 years of 365 days.
const LONGEST: i64 = 36_500 * DAY;

/// Create `queue`, or change its options: NULL keeps an option, one named in `unset` goes back to
/// its default, `reset` first puts all of them back. Returns the options in effect.
///
/// `lease_time` (60 s; more than 0, at most 12 h): how long popped messages are held.
/// `retry_limit` (3): `failed` settlements a message survives. `retry_delay` (0), `retry_backoff`
/// (1.0; 1 to 100), `retry_delay_max` (1 h): the wait before redelivery after `failed`, delay ×
/// backoff^(failures − 1), capped. `on_exhausted` ('dead_letter', or 'drop'). `dedup_window` (1 h;
/// 0: off): how long a transaction_id is remembered. `max_deliveries` (none): deliveries after
/// which a message is exhausted. `delay` (0): how old a message must be to be delivered.
/// `retention` (none) and `completed_retention` (1 day): the age at which messages are deleted,
/// whatever their state, and once every group has settled them. `max_depth` (none): about how many
/// messages may wait for the slowest group. `ordering` ('partition', or 'none'): one live lease per
/// partition and group, in order, or competing consumers; for groups that have none of their own.
/// `delivery` ('all', or 'latest'): whether a pop takes the newest message of a partition alone and
/// settles the older ones with it. `notify` (false): whether a push sends NOTIFY queen_mq, with the
/// name of the queue, at its commit.
///
/// Errors: 22023 for a malformed argument, also for `delivery` 'latest' where the queue or one of
/// its groups is without order; 55000 for a change of `ordering` while a group that it concerns has
/// live leases; 40001 in REPEATABLE READ.
///
/// Transaction: takes effect for other transactions when the caller commits. Waits for a
/// transaction that is creating or changing the queue. A change of `ordering` also waits for
/// transactions that have popped or settled, moved or removed a group, or replayed a dead letter,
/// and have not ended; meanwhile other consumers go on.
#[allow(clippy::too_many_arguments, clippy::type_complexity)]
#[pg_extern]
fn queen_configure(
    call: Call,
    queue: Option<&str>,
    lease_time: default!(Option<Interval>, "NULL"),
    retry_limit: default!(Option<i32>, "NULL"),
    retry_delay: default!(Option<Interval>, "NULL"),
    retry_backoff: default!(Option<f64>, "NULL"),
    retry_delay_max: default!(Option<Interval>, "NULL"),
    max_deliveries: default!(Option<i32>, "NULL"),
    on_exhausted: default!(Option<&str>, "NULL"),
    dedup_window: default!(Option<Interval>, "NULL"),
    delay: default!(Option<Interval>, "NULL"),
    retention: default!(Option<Interval>, "NULL"),
    completed_retention: default!(Option<Interval>, "NULL"),
    max_depth: default!(Option<i64>, "NULL"),
    ordering: default!(Option<&str>, "NULL"),
    delivery: default!(Option<&str>, "NULL"),
    notify: default!(Option<bool>, "NULL"),
    unset: default!(Option<TextArray>, "NULL"),
    reset: default!(Option<bool>, "false"),
) -> TableIterator<
    'static,
    (
        name!(queue, String),
        name!(lease_time, Option<Interval>),
        name!(retry_limit, i32),
        name!(retry_delay, Option<Interval>),
        name!(retry_backoff, f64),
        name!(retry_delay_max, Option<Interval>),
        name!(max_deliveries, Option<i32>),
        name!(on_exhausted, String),
        name!(dedup_window, Option<Interval>),
        name!(delay, Option<Interval>),
        name!(retention, Option<Interval>),
        name!(completed_retention, Option<Interval>),
        name!(max_depth, Option<i64>),
        name!(ordering, String),
        name!(delivery, String),
        name!(notify, bool),
        name!(created_at, Option<TimestampWithTimeZone>),
    ),
> {
    let queue = call.answer(|| {
        let name = args::name("queue", queue)?;
        let given = checked(Options {
            lease_time,
            retry_limit,
            retry_delay,
            retry_backoff,
            retry_delay_max,
            on_exhausted: on_exhausted.map(args::quoted).map(str::to_owned),
            dedup_window,
            max_deliveries,
            delay,
            retention,
            completed_retention,
            max_depth,
            ordering: ordering.map(args::quoted).map(str::to_owned),
            delivery: delivery.map(args::quoted).map(str::to_owned),
            notify,
        })?;
        let unset = checked_unset(unset, &given)?;
        call.write(|| queue::configure(name, &Change { given, unset, reset: reset == Some(true) }))
    });
    TableIterator::once(options_in_effect(queue))
}

/// A row of `queen_configure`.
type OptionsInEffect = (
    String,
    Option<Interval>,
    i32,
    Option<Interval>,
    f64,
    Option<Interval>,
    Option<i32>,
    String,
    Option<Interval>,
    Option<Interval>,
    Option<Interval>,
    Option<Interval>,
    Option<i64>,
    String,
    String,
    bool,
    Option<TimestampWithTimeZone>,
);

fn options_in_effect(queue: Queue) -> OptionsInEffect {
    let o = &queue.options;
    (
        queue.name,
        shown(o.lease_time, o.lease_time()),
        o.retry_limit(),
        shown(o.retry_delay, o.retry_delay()),
        o.retry_backoff(),
        shown(o.retry_delay_max, o.retry_delay_max()),
        o.max_deliveries,
        o.on_exhausted().to_owned(),
        shown(o.dedup_window, o.dedup_window()),
        shown(o.delay, o.delay()),
        o.retention,
        o.completed_retention.or(Some(Interval::from_days(1))),
        o.max_depth,
        o.ordering().to_owned(),
        o.delivery().to_owned(),
        o.notify(),
        clock::timestamp(queue.created_at),
    )
}

/// What the row of results shows of an interval: the value that was set, in the user's units, or
/// the default in microseconds.
pub fn shown(set: Option<Interval>, in_effect: i64) -> Option<Interval> {
    set.or_else(|| clock::interval(in_effect))
}

/// The options that `unset` names. 22023 if the call also gives one of them a value.
pub fn checked_unset(unset: Option<TextArray>, given: &Options) -> Result<Vec<String>> {
    let unset = args::given_elements::<String>("unset", unset, &args::OPTIONS)?;
    let unset = unset.unwrap_or_default();
    for name in &unset {
        match queue::is_set(given, name) {
            Some(false) => (),
            Some(true) => {
                return Err(Error::invalid(
                    format!("{name} is both set and unset"),
                    "The option has a value in this call and is named in unset.",
                    "Set the option or unset it.",
                ));
            }
            None => {
                return Err(Error::invalid(
                    format!("unknown option \"{}\" in unset", args::quoted(name)),
                    "A queue has no such option.",
                    "Name options as the arguments of queen_configure are named.",
                ));
            }
        }
    }
    Ok(unset)
}

/// Options within their ranges.
pub fn checked(options: Options) -> Result<Options> {
    if let Some(time) = options.lease_time {
        args::lease_time(time)?;
    }
    if let Some(limit) = options.retry_limit {
        args::within("retry_limit", limit, 0, i32::MAX)?;
    }
    for (what, value) in [
        ("retry_delay", options.retry_delay),
        ("retry_delay_max", options.retry_delay_max),
        ("dedup_window", options.dedup_window),
        ("delay", options.delay),
    ] {
        if let Some(value) = value {
            args::length(what, value, 0, LONGEST, "0 to 100 years")?;
        }
    }
    for (what, value) in
        [("retention", options.retention), ("completed_retention", options.completed_retention)]
    {
        if let Some(value) = value {
            args::length(what, value, 1, LONGEST, "more than 0, at most 100 years")?;
        }
    }
    if let Some(max) = options.max_deliveries {
        args::within("max_deliveries", max, 1, i32::MAX)?;
    }
    if let Some(max) = options.max_depth {
        args::within("max_depth", max, 1, i64::MAX)?;
    }
    if let Some(ordering) = &options.ordering {
        args::ordering(ordering)?;
    }
    if let Some(delivery) = &options.delivery {
        args::delivery(delivery)?;
    }
    if let Some(factor) = options.retry_backoff {
        args::within("retry_backoff", factor, 1.0, 100.0)?;
    }
    match options.on_exhausted.as_deref() {
        None | Some("dead_letter" | "drop") => Ok(options),
        Some(other) => Err(Error::invalid(
            format!("unknown on_exhausted \"{other}\""),
            "The value is not one of those accepted.",
            "Use 'dead_letter' or 'drop'.",
        )),
    }
}

/// Pause `consumer_group` of `queue`, or all of the queue (NULL), until `queen_resume`: pops find
/// nothing, and those that wait go on waiting. Pushes and settlements go on, and leases stay as
/// they are. Returns false if it was paused already.
///
/// Errors: 42704 for an unknown queue or group; 22023; 40001 in REPEATABLE READ.
///
/// Transaction: takes effect for other transactions when the caller commits; a pop that has begun
/// before may still deliver. Waits for a transaction that changes the queue, or that moves, removes
/// or configures the group.
#[pg_extern]
fn queen_pause(
    call: Call,
    queue: Option<&str>,
    consumer_group: default!(Option<&str>, "NULL"),
) -> bool {
    call.answer(|| set_paused(&call, queue, consumer_group, true))
}

/// End what `queen_pause` has begun, for `consumer_group` of `queue`, or for the queue (NULL). A
/// group that was paused by itself stays so when its queue is resumed. Pops that wait are woken.
/// Returns false if it was not paused.
///
/// Errors: 42704 for an unknown queue or group; 22023; 40001 in REPEATABLE READ.
///
/// Transaction: as `queen_pause`.
#[pg_extern]
fn queen_resume(
    call: Call,
    queue: Option<&str>,
    consumer_group: default!(Option<&str>, "NULL"),
) -> bool {
    call.answer(|| set_paused(&call, queue, consumer_group, false))
}

fn set_paused(
    call: &Call,
    queue: Option<&str>,
    group: Option<&str>,
    is_paused: bool,
) -> Result<bool> {
    let queue = args::name("queue", queue)?;
    let group = group.map(|name| args::name("consumer_group", Some(name))).transpose()?;
    call.write(|| match group {
        None => pause::set_queue(queue, is_paused),
        Some(group) => pause::set_group(queue, group, is_paused),
    })
}

/// Remove `queue`: its log, groups, leases, timers, bindings and dead letters. Markers stay.
/// Returns the number of messages removed. Settling a lease of it is QN003 from then on.
///
/// Errors: 42704 if there is no such queue; 22023.
///
/// Transaction: takes effect when the caller commits. Waits for transactions that have popped or
/// settled, registered, moved or removed a group, replayed a dead letter, moved a timer, undone a
/// binding, or pushed where `max_depth` is set, and have not ended; meanwhile other consumers go
/// on. A push that has not committed by then is lost with the queue.
#[pg_extern]
fn queen_delete_queue(call: Call, queue: Option<&str>) -> i64 {
    call.answer(|| {
        let name = args::name("queue", queue)?;
        call.write(|| queue::delete(name))
    })
}

/// Remove all messages of `queue`, or those of one `partition`; options and groups stay. Returns
/// how many. A consumer that holds a lease on one of them has lost it (QN002). Timers and dead
/// letters stay.
///
/// Errors: 42704 if there is no such queue; 22023; 40001 in REPEATABLE READ.
///
/// Transaction: takes effect when the caller commits; a message whose push has not committed by the
/// time of the call stays. Waits for transactions that have popped or settled, registered, moved
/// or removed a group, replayed a dead letter, or pushed where `max_depth` is set, and have not
/// ended; meanwhile other consumers go on.
#[pg_extern]
fn queen_purge(call: Call, queue: Option<&str>, partition: default!(Option<&str>, "NULL")) -> i64 {
    call.answer(|| {
        let name = args::name("queue", queue)?;
        let partition = partition.map(|name| args::name("partition", Some(name))).transpose()?;
        call.write(|| queue::purge(name, partition))
    })
}
