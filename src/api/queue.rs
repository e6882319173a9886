//! `queen_configure` and `queen_delete_queue`.

use pgrx::datum::{Interval, TimestampWithTimeZone};
use pgrx::prelude::*;

use super::args;
use super::group::unknown_ordering;
use super::push::not_built;
use crate::datum::TextArray;
use crate::error::{Error, OrRaise, Result};
use crate::rows::TableIterator;
use crate::store::clock::{self, DAY};
use crate::store::queue::{self, DEFAULT_COMPLETED_RETENTION_DAYS, Options, Queue};
use crate::store::spi::connected;
use crate::store::{dead_letter, group};

/// No option is longer than this: 100 years of 365 days.
const LONGEST: i64 = 36_500 * DAY;

/// Create `queue`, or change its options: NULL keeps an option, one named in `unset` goes back to
/// its default, `reset` first puts all of them back. Returns the options in effect.
///
/// `lease_time` (60 s; more than 0, at most 12 h): how long popped messages are held.
/// `retry_limit` (3): `failed` settlements a message survives. `retry_delay` (0), `retry_backoff`
/// (1.0; 1 to 100), `retry_delay_max` (1 h): the wait before redelivery after `failed`, delay ×
/// backoff^(failures − 1), capped. `on_exhausted` ('dead_letter', or 'drop'). `dedup_window` (1 h;
/// 0: off): how long a transaction_id is remembered.
///
/// Errors: 22023 for a malformed argument; 0A000 for an option that this version does not enforce
/// (max_deliveries, delay, retention, completed_retention, max_depth, ordering 'none').
///
/// Transaction: takes effect for others when the caller commits. Waits for a transaction that is
/// changing or creating the same queue.
#[allow(clippy::too_many_arguments, clippy::type_complexity)]
#[pg_extern(security_definer)]
#[search_path(pg_catalog, pg_temp)]
fn queen_configure(
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
        name!(ordering, &'static str),
        name!(created_at, Option<TimestampWithTimeZone>),
    ),
> {
    let (name, queue) = (|| {
        let name = args::name("queue", queue)?;
        for (what, given) in [
            ("max_deliveries", max_deliveries.is_some()),
            ("delay", delay.is_some()),
            ("retention", retention.is_some()),
            ("completed_retention", completed_retention.is_some()),
            ("max_depth", max_depth.is_some()),
        ] {
            if given {
                return Err(not_built(what));
            }
        }
        match ordering {
            None | Some("partition") => (),
            Some("none") => return Err(not_built("ordering \"none\"")),
            Some(other) => return Err(unknown_ordering(other)),
        }
        let given = checked(Options {
            lease_time,
            retry_limit,
            retry_delay,
            retry_backoff,
            retry_delay_max,
            on_exhausted: on_exhausted.map(str::to_owned),
            dedup_window,
        })?;
        let unset = args::given_elements::<String>("unset", unset.map(TextArray::elements))?;
        let change = Change { given, unset: unset.unwrap_or_default(), reset: reset == Some(true) };
        let queue = connected(|| configure(name, change))?;
        Ok((name.to_owned(), queue))
    })()
    .or_raise();
    let o = &queue.options;
    TableIterator::once((
        name,
        shown(o.lease_time, o.lease_time()),
        o.retry_limit(),
        shown(o.retry_delay, o.retry_delay()),
        o.retry_backoff(),
        shown(o.retry_delay_max, o.retry_delay_max()),
        None,
        o.on_exhausted().to_owned(),
        shown(o.dedup_window, o.dedup_window()),
        Some(Interval::from_micros(0)),
        None,
        Some(Interval::from_days(DEFAULT_COMPLETED_RETENTION_DAYS)),
        None,
        "partition",
        clock::timestamp(queue.created_at),
    ))
}

/// An interval as it was set, or the default.
fn shown(set: Option<Interval>, in_effect: i64) -> Option<Interval> {
    set.or_else(|| clock::interval(in_effect))
}

struct Change {
    given: Options,
    unset: Vec<String>,
    reset: bool,
}

fn configure(name: &str, change: Change) -> Result<Queue> {
    queue::find_or_create(name, clock::now())?;
    // Gone again in the meantime: deleted by a transaction that this one waited for.
    let mut queue = queue::lock(name)?.ok_or_else(|| Error::no_such_queue(name))?;
    if change.reset {
        queue.options = Options::default();
    }
    let options = &mut queue.options;
    merge(options, change.given.clone());
    for name in &change.unset {
        unset(options, &change.given, name)?;
    }
    queue::update(&queue);
    Ok(queue)
}

fn merge(options: &mut Options, given: Options) {
    fn set<T>(option: &mut Option<T>, given: Option<T>) {
        if given.is_some() {
            *option = given;
        }
    }
    set(&mut options.lease_time, given.lease_time);
    set(&mut options.retry_limit, given.retry_limit);
    set(&mut options.retry_delay, given.retry_delay);
    set(&mut options.retry_backoff, given.retry_backoff);
    set(&mut options.retry_delay_max, given.retry_delay_max);
    set(&mut options.on_exhausted, given.on_exhausted);
    set(&mut options.dedup_window, given.dedup_window);
}

/// Put one option back to its default.
fn unset(options: &mut Options, given: &Options, name: &str) -> Result<()> {
    let both = |given: bool| match given {
        false => Ok(()),
        true => Err(Error::invalid(
            format!("{name} is both set and unset"),
            "The option has a value in this call and is named in unset.",
            "Do one of the two.",
        )),
    };
    match name {
        "lease_time" => (both(given.lease_time.is_some())?, options.lease_time = None).0,
        "retry_limit" => (both(given.retry_limit.is_some())?, options.retry_limit = None).0,
        "retry_delay" => (both(given.retry_delay.is_some())?, options.retry_delay = None).0,
        "retry_backoff" => (both(given.retry_backoff.is_some())?, options.retry_backoff = None).0,
        "retry_delay_max" => {
            (both(given.retry_delay_max.is_some())?, options.retry_delay_max = None).0
        }
        "on_exhausted" => (both(given.on_exhausted.is_some())?, options.on_exhausted = None).0,
        "dedup_window" => (both(given.dedup_window.is_some())?, options.dedup_window = None).0,
        // At their defaults as long as they can't be set.
        "max_deliveries"
        | "delay"
        | "retention"
        | "completed_retention"
        | "max_depth"
        | "ordering" => (),
        other => {
            return Err(Error::invalid(
                format!("unknown option \"{other}\" in unset"),
                "A queue has no such option.",
                "Name options as the arguments of queen_configure are named.",
            ));
        }
    }
    Ok(())
}

/// Options within their ranges.
fn checked(options: Options) -> Result<Options> {
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
    ] {
        if let Some(value) = value {
            args::length(what, value, 0, LONGEST, "0 to 100 years")?;
        }
    }
    if let Some(factor) = options.retry_backoff.filter(|f| !(1.0..=100.0).contains(f)) {
        return Err(Error::invalid(
            "retry_backoff is out of range",
            format!("It is {factor}."),
            "Pass 1 to 100.",
        ));
    }
    match options.on_exhausted.as_deref() {
        None | Some("dead_letter" | "drop") => Ok(options),
        Some(other) => Err(Error::invalid(
            format!("unknown on_exhausted \"{other}\""),
            "A typing error must not drop messages.",
            "Use 'dead_letter' or 'drop'.",
        )),
    }
}

/// Remove `queue`: its log, groups, leases and dead letters. Markers stay. Returns the number of
/// messages removed. Settling a lease of it is QN003 from then on.
///
/// Errors: 42704 if there is no such queue; 22023.
///
/// Transaction: takes effect when the caller commits. Waits for transactions that have popped or
/// settled and not ended. A push that has not committed by then is lost with the queue.
#[pg_extern(security_definer)]
#[search_path(pg_catalog, pg_temp)]
fn queen_delete_queue(queue: Option<&str>) -> i64 {
    (|| {
        let name = args::name("queue", queue)?;
        connected(|| {
            let queue = queue::lock(name)?.ok_or_else(|| Error::no_such_queue(name))?;
            group::delete(&group::of_queue(name)?);
            dead_letter::delete_of_queue(name);
            queue::delete(&queue)
        })
    })()
    .or_raise()
}
