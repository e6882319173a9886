//! How many transactions that had a transaction id have ended, in all databases of the server.
//!
//! PostgreSQL counts them in shared memory, for its own snapshots: while the count stays as it is,
//! each new snapshot shows what the one before has shown. So a process that has looked at a table
//! need not look again before the count has changed. It reads the count before it takes the
//! snapshot that it looks under: what ends after that changes the count.

use std::ptr;

use pgrx::pg_sys;

/// The count at this moment. Needs no transaction.
pub fn count() -> u64 {
    // SAFETY: shared memory that lives as long as the server. The field is aligned, so it is read
    // whole. PostgreSQL writes it under a lock that every snapshot takes as well: a reader that is
    // late by a moment sees the change the next time.
    unsafe {
        #[cfg(any(feature = "pg15", feature = "pg16"))]
        let variables = pg_sys::ShmemVariableCache;
        #[cfg(not(any(feature = "pg15", feature = "pg16")))]
        let variables = pg_sys::TransamVariables;
        ptr::read_volatile(&raw const (*variables).xactCompletionCount)
    }
}
