//! The transactions of a worker: what becomes of an error in one of them?

use std::panic::AssertUnwindSafe;

use pgrx::PgTryBuilder;
use pgrx::pg_sys::panic::{CaughtError, ErrorReport};
use pgrx::prelude::*;

use crate::error::Result;
use crate::pg::error_context;
use crate::pg::raise::OrRaise;
use crate::pg::sqlstate;

/// Run `body` in a transaction of its own. An error in it is reported to the log, aborts the
/// transaction, and gives None; the worker goes on with the rest.
pub fn in_transaction<T>(what: &str, body: impl FnOnce() -> Result<T>) -> Option<T> {
    // SAFETY: a transaction is begun where none is, and ended on both ways out.
    unsafe {
        pg_sys::SetCurrentStatementStartTimestamp();
        pg_sys::StartTransactionCommand();
        pg_sys::PushActiveSnapshot(pg_sys::GetTransactionSnapshot());
        let commit = PgTryBuilder::new(AssertUnwindSafe(|| {
            let value = body().or_raise();
            pg_sys::PopActiveSnapshot();
            pg_sys::CommitTransactionCommand();
            Some(value)
        }))
        .catch_others(|error| {
            sqlstate::forget();
            tell(what, &error);
            None
        });
        let committed = error_context::restored(|| commit.execute());
        if committed.is_none() {
            pg_sys::AbortCurrentTransaction();
        }
        committed
    }
}

/// Write an error to the server log, unless a later round makes good for it.
fn tell(what: &str, error: &CaughtError) {
    let (CaughtError::PostgresError(report)
    | CaughtError::ErrorReport(report)
    | CaughtError::RustPanic { ereport: report, .. }) = error;
    match report.sql_error_code() {
        // Another transaction is at work on the same rows: the next round will do it.
        PgSqlErrorCode::ERRCODE_LOCK_NOT_AVAILABLE
        | PgSqlErrorCode::ERRCODE_T_R_SERIALIZATION_FAILURE
        | PgSqlErrorCode::ERRCODE_T_R_DEADLOCK_DETECTED => (),
        // The extension is being dropped, which the next round sees.
        PgSqlErrorCode::ERRCODE_UNDEFINED_TABLE
        | PgSqlErrorCode::ERRCODE_UNDEFINED_OBJECT
        | PgSqlErrorCode::ERRCODE_INVALID_SCHEMA_NAME => {
            log!("queen_mq worker, {what}: {}", report.message());
        }
        _ => {
            let message = format!("queen_mq worker, {what}: {}", report.message());
            let mut warning =
                ErrorReport::new(PgSqlErrorCode::ERRCODE_WARNING, message, "queen_mq worker");
            if let Some(detail) = report.detail() {
                warning = warning.set_detail(detail);
            }
            if let Some(hint) = report.hint() {
                warning = warning.set_hint(hint);
            }
            warning.report(PgLogLevel::WARNING);
        }
    }
}

/// Whether the transaction has written something, or has locked a row.
pub fn has_written() -> bool {
    // SAFETY: reads the backend's memory.
    unsafe { pg_sys::GetTopTransactionIdIfAny() != pg_sys::InvalidTransactionId }
}
