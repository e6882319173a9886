//! `queen_subscribe`: register a consumer group without popping.

use pgrx::datum::TimestampWithTimeZone;
use pgrx::prelude::*;

use super::args;
use super::push::not_built;
use super::register::{Mode, Registration};
use crate::error::{Error, OrRaise};
use crate::settings;
use crate::store::group::Patience;
use crate::store::lookup;
use crate::store::spi::connected;

/// Register `consumer_group` on `queue`, by name: the queue need not exist. `mode` 'new' reads what
/// commits after the snapshot of this call, 'all' everything retained; `start_at` reads what was
/// created then or later. Returns false if the group existed, which is then left as it is.
///
/// Errors: 22023; 42704 for an unknown queue when `queen_mq.auto_create` is off.
///
/// Transaction: the group exists for others when the caller commits. Waits for a transaction that
/// is registering the same group.
#[pg_extern(security_definer)]
#[search_path(pg_catalog, pg_temp)]
fn queen_subscribe(
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
        match ordering {
            None | Some("partition") => (),
            Some("none") => return Err(not_built("ordering \"none\"")),
            Some(other) => return Err(unknown_ordering(other)),
        }
        connected(|| {
            let found = lookup::for_pop(queue, group)?;
            if found.queue.is_none() && !settings::auto_create() {
                return Err(Error::no_such_queue(queue));
            }
            if found.group.is_some() {
                return Ok(false);
            }
            let new = Registration::prepare(group, found.queue.as_ref(), mode, found.identity()?)?;
            Ok(new.write(queue, group, Patience::Wait).is_some())
        })
    })()
    .or_raise()
}

pub fn unknown_ordering(name: &str) -> Error {
    Error::invalid(
        format!("unknown ordering \"{name}\""),
        "A queue is ordered by partition or not at all.",
        "Use 'partition' or 'none'.",
    )
}
