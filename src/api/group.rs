//! `queen_subscribe`, `queen_unsubscribe`, `queen_seek`: the arguments of calls about consumer
//! groups.

use pgrx::datum::TimestampWithTimeZone;
use pgrx::prelude::*;

use super::args;
use super::call::Call;
use crate::broker::group::beginning::Mode;
use crate::broker::group::{register, seek};
use crate::error::{Error, Result};
use crate::pg::clock;

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
