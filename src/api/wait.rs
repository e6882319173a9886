//! `queen_wait`: wait for something to pop, outside of any transaction. Arguments in, one call of
//! the broker ([`crate::broker::pop::ready`]), one row out. Each look of the broker runs in a
//! transaction of its own, which is committed before the session sleeps.

use pgrx::datum::Interval;
use pgrx::prelude::*;

use super::args;
use super::call::Call;
use crate::broker::pop::ready::wait_until_ready;
use crate::error::{Code, Error};
use crate::pg::clock::HOUR;
use crate::pg::procedure::{ProcedureCall, procedure};
use crate::pg::sqlstate;

pgrx::extension_sql_file!("../../sql/wait.sql", name = "queen_wait", requires = ["tables"]);

procedure!(queen_wait, pg_finfo_queen_wait);

/// Wait until there is something for `consumer_group` (NULL: queue mode) to pop from `queue`, up to
/// `timeout` (0 to 1 hour). `ready` comes back true if there is, false at the timeout. The group is
/// registered, as a pop does it. While it waits, the session holds no snapshot and no lock.
///
/// Errors: 25001 in a transaction block, or where else a procedure can't commit; 22023; 42704 for
/// an unknown queue when `queen_mq.auto_create` is off.
///
/// Transaction: commits, and begins another, each time before it sleeps.
fn queen_wait(procedure: ProcedureCall<'_>) -> pg_sys::Datum {
    let call = Call::accept(procedure.record);
    let queue: Option<String> = procedure.argument(0);
    let group: Option<String> = procedure.argument(1);
    let timeout: Option<Interval> = procedure.argument(2);
    let is_ready = call.answer(|| {
        let queue = args::name("queue", queue.as_deref())?;
        let group = args::group(group.as_deref())?;
        let timeout = args::required("timeout", timeout)?;
        let timeout = args::length("timeout", timeout, 0, HOUR, "0 to 1 hour")?;
        if procedure.is_atomic {
            return Err(in_transaction());
        }
        wait_until_ready(queue, group, timeout, |look| {
            // A commit runs deferred constraints of the caller, which may fail.
            sqlstate::keep(|| Ok(procedure.commit_after(|| call.write(look))))
        })
    });
    procedure.row(is_ready)
}

fn in_transaction() -> Error {
    Error::new(Code::ActiveSqlTransaction, "queen_wait can't run inside a transaction block")
        .detail("It commits before it waits, so that it holds no snapshot and no lock.")
        .hint("CALL it outside of a transaction block; inside one, use queen_pop with wait.")
}
