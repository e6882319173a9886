//! `queen_wait`: wait for something to pop, outside of any transaction. Arguments in, one call of
//! the broker ([`crate::broker::pop::ready`]), one row out. Each look of the broker runs in a
//! transaction of its own, which is committed before the session sleeps.

use pgrx::datum::Interval;
use pgrx::prelude::*;

use super::args;
use super::call::Call;
use crate::broker::pop::ready::wait_until_ready;
use crate::error::{Code, Error, Result};
use crate::pg::clock::HOUR;
use crate::pg::raise::OrRaise;
use crate::pg::sqlstate;

pgrx::extension_sql_file!("../../sql/wait.sql", name = "queen_wait", requires = ["tables"]);

/// Tells PostgreSQL how `queen_wait` is called: version 1.
#[unsafe(no_mangle)]
pub extern "C" fn pg_finfo_queen_wait() -> &'static pg_sys::Pg_finfo_record {
    const RECORD: pg_sys::Pg_finfo_record = pg_sys::Pg_finfo_record { api_version: 1 };
    &RECORD
}

/// Wait until there is something for `consumer_group` (NULL: queue mode) to pop from `queue`, up to
/// `timeout` (0 to 1 hour). `ready` comes back true if there is, false at the timeout. The group is
/// registered, as a pop does it. While it waits, the session holds no snapshot and no lock.
///
/// Errors: 25001 in a transaction block, or where else a procedure can't commit; 22023; 42704 for
/// an unknown queue when `queen_mq.auto_create` is off.
///
/// Transaction: commits, and begins another, each time before it sleeps.
///
/// # Safety
/// Called by PostgreSQL, as a procedure with the arguments that sql/wait.sql declares.
#[pg_guard]
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn queen_wait(fcinfo: pg_sys::FunctionCallInfo) -> pg_sys::Datum {
    // SAFETY: the record of the call that PostgreSQL is making.
    let call = unsafe { Call::accept(fcinfo) };
    // SAFETY: the arguments have the types that sql/wait.sql declares, as has just been checked.
    let (queue, group, timeout) = unsafe {
        (
            pgrx::pg_getarg::<String>(fcinfo, 0),
            pgrx::pg_getarg::<String>(fcinfo, 1),
            pgrx::pg_getarg::<Interval>(fcinfo, 2),
        )
    };
    let is_ready = call.answer(|| {
        let queue = args::name("queue", queue.as_deref())?;
        let group = args::group(group.as_deref())?;
        let timeout = args::required("timeout", timeout)?;
        let timeout = args::length("timeout", timeout, 0, HOUR, "0 to 1 hour")?;
        // SAFETY: the call's own record.
        if unsafe { is_atomic(fcinfo) } {
            return Err(in_transaction());
        }
        wait_until_ready(queue, group, timeout, |look| {
            // A commit runs deferred constraints of the caller, which may fail.
            sqlstate::keep(|| Ok(commit_after(&call, look)))
        })
    });
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
        .detail("It commits before it waits, so that it holds no snapshot and no lock.")
        .hint("CALL it outside of a transaction block; inside one, use queen_pop with wait.")
}

/// Run `look` in a transaction that is over when this returns: the next one has no snapshot yet. An
/// error is raised here, so that PostgreSQL cleans up what is open.
fn commit_after<T>(call: &Call, look: impl FnOnce() -> Result<T>) -> T {
    // SAFETY: a non-atomic SPI connection may commit. The look is over by then, and what it found
    // are plain values.
    unsafe {
        pg_sys::SPI_connect_ext(pg_sys::SPI_OPT_NONATOMIC as i32);
        pg_sys::PushActiveSnapshot(pg_sys::GetTransactionSnapshot());
        let found = call.write(look).or_raise();
        pg_sys::PopActiveSnapshot();
        pg_sys::SPI_commit();
        pg_sys::SPI_finish();
        found
    }
}
