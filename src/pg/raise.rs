//! How an error leaves Rust: as an ERROR of PostgreSQL with the SQLSTATE of its own.

use pgrx::pg_sys::panic::ErrorReport;
use pgrx::prelude::*;

use super::{ballast, sqlstate};
use crate::error::{ClientNotice, Code, Error, Result};

impl Error {
    /// Leave as a PostgreSQL ERROR.
    pub fn raise(self) -> ! {
        // pgrx copies the error several times before it is thrown.
        if self.code == Code::OutOfMemory {
            ballast::drop_ballast();
        }
        sqlstate::leave_with(self.code.packed());
        // pgrx turns our own SQLSTATEs into XX000; `sqlstate` sets them again when the error is
        // thrown.
        let code = PgSqlErrorCode::from(self.code.packed());
        let mut report = ErrorReport::new(code, self.message, "queen_mq");
        if let Some(detail) = self.detail {
            report = report.set_detail(detail);
        }
        if let Some(hint) = self.hint {
            report = report.set_hint(hint);
        }
        report.report(PgLogLevel::ERROR);
        unreachable!("ERROR does not return")
    }
}

impl ClientNotice {
    /// Send it to the client, as its `client_min_messages` says.
    pub fn send(self) {
        self.report(PgLogLevel::NOTICE, PgSqlErrorCode::ERRCODE_SUCCESSFUL_COMPLETION);
    }

    /// Send it to the client and to the server's log, as a WARNING.
    pub fn warn(self) {
        self.report(PgLogLevel::WARNING, PgSqlErrorCode::ERRCODE_WARNING);
    }

    fn report(self, level: PgLogLevel, code: PgSqlErrorCode) {
        let mut report = ErrorReport::new(code, self.message, "queen_mq");
        if let Some(detail) = self.detail {
            report = report.set_detail(detail);
        }
        if let Some(hint) = self.hint {
            report = report.set_hint(hint);
        }
        report.report(level);
    }
}

/// Unwrap, or raise.
pub trait OrRaise<T> {
    fn or_raise(self) -> T;
}

impl<T> OrRaise<T> for Result<T> {
    fn or_raise(self) -> T {
        self.unwrap_or_else(|error| error.raise())
    }
}
