//! `queen_subscribe`, `queen_unsubscribe`, `queen_seek`: consumer groups.

use pgrx::datum::TimestampWithTimeZone;
use pgrx::prelude::*;

use super::args;
use super::call::Call;
use crate::broker::group::beginning::Mode;
use crate::broker::group::register::{Registration, unsubscribe};
use crate::broker::group::seek;
use crate::broker::hold::share_queue_and_group;
use crate::broker::lookup;
use crate::error::{Code, Error, OrRaise, Result};
use crate::pg::clock;
use crate::settings;
use crate::store::cursor;
use crate::store::group::{Patience, QUEUE_MODE};
use crate::store::identity;

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
    (|| {
        let queue = args::name("queue", queue)?;
        let group = args::name("consumer_group", consumer_group)?;
        let mode = Mode::parse(mode, start_at)?;
        ordering.map(args::ordering).transpose()?;
        call.write(|| {
            let (found, existing) = lookup::queue_and_group(queue, group)?;
            if found.is_none() && !settings::auto_create() {
                return Err(Error::no_such_queue(queue));
            }
            if existing.is_some() {
                return Ok(false);
            }
            let identity = match &found {
                Some(queue) => queue.identity,
                None => identity::current()?,
            };
            let new = Registration::prepare(group, found.as_ref(), mode, identity)?;
            Ok(new.ordered(ordering).write(queue, group, Patience::Wait)?.is_some())
        })
    })()
    .or_raise()
}

/// Remove `consumer_group` (NULL: queue mode) from `queue`. Whoever holds a lease of it has lost it
/// (QN002). Its dead letters stay. Returns false if there is no such group.
///
/// Errors: 22023; 40001 in REPEATABLE READ.
///
/// Transaction: takes effect when the caller commits. Waits for transactions of the group that have
/// popped or settled and not ended, and for those that purge the queue or change its `ordering`;
/// meanwhile others go on.
#[pg_extern]
fn queen_unsubscribe(call: Call, queue: Option<&str>, consumer_group: Option<&str>) -> bool {
    (|| {
        let queue = args::name("queue", queue)?;
        let group = args::group(consumer_group)?;
        call.write(|| match share_queue_and_group(queue, group, true)? {
            (_, None) => Ok(false),
            (found, Some(group)) => {
                unsubscribe(found.as_ref(), &group)?;
                Ok(true)
            }
        })
    })()
    .or_raise()
}

/// Move `consumer_group` (NULL: queue mode) of `queue`, in `partition` or in all: `to_position`
/// 'start' reads everything retained again, 'end' only what commits after the snapshot of this
/// call; `to_time` what was created then or later. Failures and deliveries are counted anew.
/// Whoever holds a lease there has lost it (QN002). Returns the number of partitions moved.
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
    (|| {
        let name = args::name("queue", queue)?;
        let group_name = args::group(consumer_group)?;
        let partition = partition.map(|name| args::name("partition", Some(name))).transpose()?;
        let mode = destination(to_position, to_time)?;
        call.write(|| {
            loop {
                let (queue, group) = share_queue_and_group(name, group_name, false)?;
                let queue = queue.ok_or_else(|| Error::no_such_queue(name))?;
                let group = group.ok_or_else(|| no_such_group(name, group_name))?;
                let moved = match partition {
                    None => seek::seek(&queue, &group, mode)?,
                    Some(partition) => seek::seek_partition(&queue, &group, partition, mode)?,
                };
                if let Some(moved) = moved {
                    return Ok(moved as i32);
                }
                cursor::moved_on()?;
                pgrx::check_for_interrupts!();
            }
        })
    })()
    .or_raise()
}

fn destination(position: Option<&str>, time: Option<TimestampWithTimeZone>) -> Result<Mode> {
    match (position, time.map(clock::moment)) {
        (Some("start"), None) => Ok(Mode::All),
        (Some("end"), None) => Ok(Mode::New),
        (None, Some(at)) => Ok(Mode::From(at)),
        (Some(other), None) => Err(Error::invalid(
            format!("unknown position \"{}\"", args::quoted(other)),
            "A typing error must not replay or skip a log.",
            "Use 'start' or 'end', or give to_time.",
        )),
        (given, _) => Err(Error::invalid(
            "a seek needs one of to_position and to_time",
            if given.is_some() { "Both were given." } else { "Neither was given." },
            "Say where to in one way.",
        )),
    }
}

pub fn no_such_group(queue: &str, group: &str) -> Error {
    let message = match group {
        QUEUE_MODE => format!("queue \"{queue}\" has not been popped in queue mode"),
        name => format!("consumer group \"{name}\" of queue \"{queue}\" does not exist"),
    };
    Error::new(Code::UndefinedObject, message)
        .detail("No group of this name is registered on the queue.")
        .hint("Groups are registered by their first pop, or by queen_subscribe.")
}
