//! `queen_wait`: wait for something to pop, outside of any transaction.
//!
//! Each look is a transaction of its own, which `queen_wait` commits before it sleeps.

use pgrx::datum::Interval;
use pgrx::prelude::*;

use super::args;
use super::call::Call;
use crate::broker::group::beginning::Mode;
use crate::broker::group::register::Registration;
use crate::broker::lookup;
use crate::broker::pop::{Taking, Wanted};
use crate::error::{Code, Error, Result};
use crate::pg::clock::{self, HOUR, Moment};
use crate::pg::datum::ResultContext;
use crate::pg::raise::OrRaise;
use crate::pg::spi::ActiveSnapshot;
use crate::pg::sqlstate;
use crate::settings;
use crate::store::timer;
use crate::wait::Wait;
use crate::wait::waiters::Topic;

/// What a look found.
struct Look {
    is_ready: bool,
    /// The group's id.
    group: Option<i64>,
    /// When something may be there by itself.
    next: Option<Moment>,
}

/// Register the group unless it exists, and look whether there is a message for it. Takes nothing.
fn look_for(queue_name: &str, group_name: &str) -> Result<Look> {
    let mut found = lookup::for_pop(queue_name, group_name)?;
    if found.queue.is_none() && !settings::auto_create() {
        return Err(Error::no_such_queue(queue_name));
    }
    if found.group.is_none() {
        let (queue, identity) = (found.queue.as_ref(), found.identity()?);
        Registration::prepare(group_name, queue, Mode::New, identity)?
            .write_into(&mut found, queue_name, group_name)?;
    }
    let (queue, group) = match (&found.queue, &found.group) {
        (Some(queue), Some(group)) => (queue, group),
        (_, group) => {
            let group = group.as_ref().map(|group| group.id);
            return Ok(Look { is_ready: false, group, next: None });
        }
    };
    ActiveSnapshot::new_snapshot(|under| {
        // Due, and in nobody's hands.
        let is_due =
            found.has_due_timer() && !timer::hold_due(queue.id, clock::now(), 1).is_empty();
        let wanted =
            Wanted { batch: 1, partition: None, partitions: 1, lease_time: None, auto_ack: false };
        let take = Taking::new(&wanted, queue, group, &found.discovery, ResultContext::here());
        let is_ready = is_due || take.peek(under)?;
        let next = super::pop::next_moment(&found, under);
        Ok(Look { is_ready, group: Some(group.id), next })
    })
}

pgrx::extension_sql!(
    "CREATE PROCEDURE queen_wait(queue text, consumer_group text, timeout interval,
                                 INOUT ready boolean DEFAULT NULL)
     LANGUAGE c AS 'MODULE_PATHNAME', 'queen_wait';",
    name = "queen_wait",
    requires = ["tables"]
);

/// The calling convention of `queen_wait`.
#[unsafe(no_mangle)]
pub extern "C" fn pg_finfo_queen_wait() -> &'static pg_sys::Pg_finfo_record {
    const RECORD: pg_sys::Pg_finfo_record = pg_sys::Pg_finfo_record { api_version: 1 };
    &RECORD
}

/// Wait until there is something for `consumer_group` (NULL: queue mode) to pop from `queue`, up to
/// `timeout` (0 to 1 hour). `ready` comes back true if there is, false at the timeout. The group is
/// registered, as a pop does it. While it waits, the session holds no snapshot and no lock.
///
/// Errors: 25001 in a transaction block, or where else a procedure can't commit; 22023; 42704 for an
/// unknown queue when `queen_mq.auto_create` is off.
///
/// Transaction: commits, and begins another, each time before it sleeps.
///
/// # Safety
/// Called by PostgreSQL, as a procedure with the arguments above.
#[pg_guard]
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn queen_wait(fcinfo: pg_sys::FunctionCallInfo) -> pg_sys::Datum {
    // SAFETY: the record of the call that PostgreSQL is making.
    let call = unsafe { Call::accept(fcinfo) };
    // SAFETY: the arguments have the types of the declaration above, as has just been checked.
    let (queue, group, timeout) = unsafe {
        (
            pgrx::pg_getarg::<String>(fcinfo, 0),
            pgrx::pg_getarg::<String>(fcinfo, 1),
            pgrx::pg_getarg::<Interval>(fcinfo, 2),
        )
    };
    let is_ready = (|| {
        let queue = args::name("queue", queue.as_deref())?;
        let group = args::group(group.as_deref())?;
        let timeout = args::required("timeout", timeout)?;
        let timeout = args::length("timeout", timeout, 0, HOUR, "0 to 1 hour")?;
        // SAFETY: the call's own record.
        if unsafe { is_atomic(fcinfo) } {
            return Err(in_transaction());
        }
        Ok(wait(&call, queue, group, timeout))
    })()
    .or_raise();
    // SAFETY: one column, as declared; the row is formed after the description that PostgreSQL has
    // for this call.
    unsafe {
        let mut shape = std::ptr::null_mut();
        pg_sys::get_call_result_type(fcinfo, std::ptr::null_mut(), &mut shape);
        let shape = pg_sys::BlessTupleDesc(shape);
        let (mut value, mut is_null) = (pg_sys::Datum::from(is_ready), false);
        let row = pg_sys::heap_form_tuple(shape, &raw mut value, &raw mut is_null);
        pg_sys::HeapTupleHeaderGetDatum((*row).t_data)
    }
}

/// # Safety
/// The record of a call.
unsafe fn is_atomic(fcinfo: pg_sys::FunctionCallInfo) -> bool {
    // SAFETY: CALL passes a CallContext; anything else is no CALL.
    unsafe {
        let context = (*fcinfo).context;
        context.is_null()
            || !pgrx::is_a(context, pg_sys::NodeTag::T_CallContext)
            || (*context.cast::<pg_sys::CallContext>()).atomic
    }
}

fn in_transaction() -> Error {
    Error::new(Code::ActiveSqlTransaction, "queen_wait can't run inside a transaction block")
        .detail("It commits before it waits, so that it holds nothing meanwhile.")
        .hint("CALL it by itself; inside of a transaction, use queen_pop with wait.")
}

fn wait(call: &Call, queue: &str, group: &str, timeout: i64) -> bool {
    let mut wait = Wait::until(clock::now().saturating_add(timeout));
    loop {
        let is_last = wait.is_over();
        // A commit runs deferred constraints of the caller, which may fail.
        let look = sqlstate::keep(|| look_and_commit(call, queue, group));
        if look.is_ready || is_last {
            return look.is_ready;
        }
        wait.pause(Topic::queue(queue), look.group.map(Topic::group), look.next);
    }
}

/// One look, in a transaction that is over when this returns: the next one has no snapshot yet.
fn look_and_commit(call: &Call, queue: &str, group: &str) -> Look {
    // SAFETY: a non-atomic SPI connection may commit. The look is over by then, and what it found
    // are plain values.
    unsafe {
        pg_sys::SPI_connect_ext(pg_sys::SPI_OPT_NONATOMIC as i32);
        pg_sys::PushActiveSnapshot(pg_sys::GetTransactionSnapshot());
        let look = call.write(|| look_for(queue, group)).or_raise();
        pg_sys::PopActiveSnapshot();
        pg_sys::SPI_commit();
        pg_sys::SPI_finish();
        look
    }
}
