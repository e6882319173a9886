//! `queen_subscribe`, `queen_unsubscribe`, `queen_seek`, `queen_configure_group`: the arguments of
//! calls about consumer groups.

use pgrx::datum::{Interval, TimestampWithTimeZone};
use pgrx::prelude::*;

use super::args;
use super::call::Call;
use super::queue::{checked, checked_unset, shown};
use crate::broker::group::beginning::Mode;
use crate::broker::group::{configure, register, seek};
use crate::broker::queue::Change;
use crate::error::{Error, Result};
use crate::pg::arrays::TextArray;
use crate::pg::clock;
use crate::pg::result_rows::TableIterator;
use crate::store::group::QUEUE_MODE;
use crate::store::queue::Options;

/// Register `consumer_group` on `queue`, by name: the queue need not exist. `mode` 'new' reads what
/// commits after the snapshot of this call, 'all' everything retained; `start_at` reads what was
/// created then or later. `ordering`: as `queen_configure` has it, for this group alone. Returns
/// false if the group existed, which is then left as it is.
///
/// Errors: 22023; 42704 for an unknown queue when `queen_mq.auto_create` is off.
///
/// Transaction: the group exists for others when the caller commits. Waits for a transaction that
/// is registering the same group.
#[pg_extern]
fn queen_subscribe(
    call: Call,
    queue: Option<&str>,
    consumer_group: Option<&str>,
    mode: default!(Option<&str>, "'new'"),
    start_at: default!(Option<TimestampWithTimeZone>, "NULL"),
    ordering: default!(Option<&str>, "NULL"),
) -> bool {
    call.answer(|| {
        let queue = args::name("queue", queue)?;
        let group = args::name("consumer_group", consumer_group)?;
        let mode = subscription_mode(mode, start_at)?;
        ordering.map(args::ordering).transpose()?;
        call.write(|| register::subscribe(queue, group, mode, ordering))
    })
}

/// Remove `consumer_group` (NULL: queue mode) from `queue`. The holder of one of its leases has
/// lost it (QN002). Its dead letters stay. Returns false if there is no such group.
///
/// Errors: 22023; 40001 in REPEATABLE READ.
///
/// Transaction: takes effect when the caller commits. Waits for transactions of the group that have
/// popped or settled and not ended, and for those that purge the queue or change its `ordering`;
/// meanwhile others go on.
#[pg_extern]
fn queen_unsubscribe(call: Call, queue: Option<&str>, consumer_group: Option<&str>) -> bool {
    call.answer(|| {
        let queue = args::name("queue", queue)?;
        let group = args::group(consumer_group)?;
        call.write(|| register::unsubscribe(queue, group))
    })
}

/// Move `consumer_group` (NULL: queue mode) of `queue`, in `partition` or in all: `to_position`
/// 'start' reads everything retained again, 'end' only what commits after the snapshot of this
/// call; `to_time` what was created then or later. Failures and deliveries are counted anew.
/// The holder of a lease there has lost it (QN002). Returns the number of partitions moved.
///
/// Errors: 22023, also for neither or both of `to_position` and `to_time`; 42704 for an unknown
/// queue or group; 40001 in REPEATABLE READ.
///
/// Transaction: takes effect when the caller commits. Waits for transactions of the group that have
/// popped or settled and not ended, and for those that purge the queue or change its `ordering`;
/// meanwhile others go on. Other groups are not concerned.
#[pg_extern]
fn queen_seek(
    call: Call,
    queue: Option<&str>,
    consumer_group: Option<&str>,
    to_position: default!(Option<&str>, "NULL"),
    to_time: default!(Option<TimestampWithTimeZone>, "NULL"),
    partition: default!(Option<&str>, "NULL"),
) -> i32 {
    call.answer(|| {
        let queue = args::name("queue", queue)?;
        let group = args::group(consumer_group)?;
        let partition = partition.map(|name| args::name("partition", Some(name))).transpose()?;
        let mode = destination(to_position, to_time)?;
        call.write(|| Ok(seek::seek(queue, group, partition, mode)? as i32))
    })
}

/// Where a new group begins, from a mode's name and a time, either of which may be missing.
pub fn given_mode(mode: Option<&str>, from: Option<TimestampWithTimeZone>) -> Result<Option<Mode>> {
    let is_given = mode.is_some() || from.is_some();
    Ok(Some(subscription_mode(mode, from)?).filter(|_| is_given))
}

fn subscription_mode(mode: Option<&str>, from: Option<TimestampWithTimeZone>) -> Result<Mode> {
    match (mode, from.map(clock::moment)) {
        (None | Some("new"), Some(at)) => Ok(Mode::From(at)),
        (None | Some("new"), None) => Ok(Mode::New),
        (Some("all"), None) => Ok(Mode::All),
        (Some("all"), Some(_)) => Err(Error::invalid(
            "mode \"all\" does not go with a time",
            "Both were given.",
            "Leave out one of them.",
        )),
        (Some(other), _) => Err(Error::invalid(
            format!("unknown subscription mode \"{}\"", args::quoted(other)),
            "The value is not one of those accepted.",
            "Use 'new' or 'all', or pass a time.",
        )),
    }
}

/// Where a seek goes, from a position's name or a time, exactly one of which must be given.
fn destination(position: Option<&str>, time: Option<TimestampWithTimeZone>) -> Result<Mode> {
    match (position, time.map(clock::moment)) {
        (Some("start"), None) => Ok(Mode::All),
        (Some("end"), None) => Ok(Mode::New),
        (None, Some(at)) => Ok(Mode::From(at)),
        (Some(other), None) => Err(Error::invalid(
            format!("unknown position \"{}\"", args::quoted(other)),
            "The value is not one of those accepted.",
            "Use 'start' or 'end', or pass to_time.",
        )),
        (given, _) => Err(Error::invalid(
            "a seek needs one of to_position and to_time",
            if given.is_some() { "Both were given." } else { "Neither was given." },
            "Pass to_position or to_time.",
        )),
    }
}

/// Give `consumer_group` (NULL: queue mode) of `queue` options of its own, in place of the queue's:
/// NULL keeps an option, one named in `unset` is the queue's again. Returns the options in effect
/// for the group. What each option is, and its range: see `queen_configure`.
///
/// Errors: 22023; 42704 if there is no such group; 55000 for a change of `ordering` while the group
/// has live leases; 40001 in REPEATABLE READ.
///
/// Transaction: takes effect for other transactions when the caller commits; leases that were given
/// before keep their length. Waits for a transaction that moves, removes or configures the group. A
/// change of `ordering` also waits for transactions of the group that have popped or settled and
/// not ended; meanwhile others go on.
#[allow(clippy::too_many_arguments, clippy::type_complexity)]
#[pg_extern]
fn queen_configure_group(
    call: Call,
    queue: Option<&str>,
    consumer_group: Option<&str>,
    lease_time: default!(Option<Interval>, "NULL"),
    retry_limit: default!(Option<i32>, "NULL"),
    retry_delay: default!(Option<Interval>, "NULL"),
    retry_backoff: default!(Option<f64>, "NULL"),
    retry_delay_max: default!(Option<Interval>, "NULL"),
    max_deliveries: default!(Option<i32>, "NULL"),
    on_exhausted: default!(Option<&str>, "NULL"),
    ordering: default!(Option<&str>, "NULL"),
    unset: default!(Option<TextArray>, "NULL"),
) -> TableIterator<
    'static,
    (
        name!(queue, String),
        name!(consumer_group, Option<String>),
        name!(lease_time, Option<Interval>),
        name!(retry_limit, i32),
        name!(retry_delay, Option<Interval>),
        name!(retry_backoff, f64),
        name!(retry_delay_max, Option<Interval>),
        name!(max_deliveries, Option<i32>),
        name!(on_exhausted, String),
        name!(ordering, String),
    ),
> {
    let (queue, group, o) = call.answer(|| {
        let queue = args::name("queue", queue)?;
        let group = args::group(consumer_group)?;
        let given = checked(Options {
            lease_time,
            retry_limit,
            retry_delay,
            retry_backoff,
            retry_delay_max,
            max_deliveries,
            on_exhausted: on_exhausted.map(args::quoted).map(str::to_owned),
            ordering: ordering.map(args::quoted).map(str::to_owned),
            ..Options::default()
        })?;
        let unset = checked_unset(unset, &given)?;
        if let Some(name) = unset.iter().find(|name| OF_QUEUE_ALONE.contains(&name.as_str())) {
            return Err(Error::invalid(
                format!("{name} is not an option of a group"),
                "A queue has it for all of its groups.",
                "Name options as the arguments of queen_configure_group are named.",
            ));
        }
        let change = Change { given, unset, reset: false };
        let options = call.write(|| configure::configure(queue, group, &change))?;
        Ok((queue, group, options))
    });
    TableIterator::once((
        queue.to_owned(),
        (group != QUEUE_MODE).then(|| group.to_owned()),
        shown(o.lease_time, o.lease_time()),
        o.retry_limit(),
        shown(o.retry_delay, o.retry_delay()),
        o.retry_backoff(),
        shown(o.retry_delay_max, o.retry_delay_max()),
        o.max_deliveries,
        o.on_exhausted().to_owned(),
        o.ordering().to_owned(),
    ))
}

/// Options that a group does not have.
const OF_QUEUE_ALONE: &[&str] = &[
    "dedup_window",
    "delay",
    "retention",
    "completed_retention",
    "max_depth",
    "delivery",
    "notify",
];
