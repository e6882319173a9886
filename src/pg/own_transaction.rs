//! Transactions that a background process begins and ends by itself.

use std::panic::{AssertUnwindSafe, RefUnwindSafe, UnwindSafe};

use pgrx::pg_sys::panic::CaughtError;
use pgrx::{PgTryBuilder, pg_sys};

use super::raise::OrRaise;
use super::{error_context, sqlstate};
use crate::error::{Error, Result};

/// Run `body` in a transaction of its own, under a snapshot. An error in it, or in the commit, is
/// shown to `on_error`, aborts the transaction, and gives None.
pub fn run<T>(
    body: impl FnOnce() -> Result<T>,
    on_error: impl Fn(&CaughtError) + UnwindSafe + RefUnwindSafe,
) -> Option<T> {
    refuse_within_transaction();
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
            on_error(&error);
            None
        });
        let committed = error_context::restored(|| commit.execute());
        if committed.is_none() {
            pg_sys::AbortCurrentTransaction();
        }
        committed
    }
}

/// Run `body` in a transaction of its own, without a snapshot. An error in it goes on, and ends the
/// process.
pub(super) fn run_without_snapshot<T>(body: impl FnOnce() -> T) -> T {
    refuse_within_transaction();
    // SAFETY: a transaction is begun where none is, and ended on the way that returns.
    unsafe {
        pg_sys::StartTransactionCommand();
        let value = body();
        pg_sys::CommitTransactionCommand();
        value
    }
}

pub(super) fn refuse_within_transaction() {
    // SAFETY: reads the backend's memory.
    if unsafe { pg_sys::IsTransactionOrTransactionBlock() } {
        Error::corrupt("a transaction of its own was to begin within another one").raise();
    }
}
