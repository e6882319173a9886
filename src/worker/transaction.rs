//! The transactions of a worker: what becomes of an error in one of them?

use pgrx::pg_sys::panic::{CaughtError, ErrorReport};
use pgrx::prelude::*;

use crate::error::Result;
use crate::pg::own_transaction;

/// Run `body` in a transaction of its own. An error in it is reported to the log, aborts the
/// transaction, and gives None; the worker goes on with the rest.
pub fn in_transaction<T>(what: &str, body: impl FnOnce() -> Result<T>) -> Option<T> {
    own_transaction::run(body, |error| tell(what, error))
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
