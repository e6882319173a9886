//! Snapshots: which one a read goes by.

use std::ffi::c_int;

use pgrx::pg_sys;

use crate::error::Result;

/// Makes one snapshot the active one, so that several reads see the same moment.
pub struct ActiveSnapshot {
    _private: (),
}

impl ActiveSnapshot {
    /// Take a snapshot now (in REPEATABLE READ: the transaction's) and run `body` under it. Own
    /// writes up to here are visible.
    pub fn new_snapshot<T>(body: impl FnOnce(&ActiveSnapshot) -> Result<T>) -> Result<T> {
        // SAFETY: push and pop are paired on the way that returns; an ERROR unwinds the stack of
        // active snapshots with the (sub)transaction.
        unsafe {
            pg_sys::CommandCounterIncrement();
            pg_sys::PushActiveSnapshot(pg_sys::GetTransactionSnapshot());
        }
        let value = body(&ActiveSnapshot { _private: () })?;
        // SAFETY: as above.
        unsafe { pg_sys::PopActiveSnapshot() };
        Ok(value)
    }

    /// Run `body` under the snapshot of the statement that calls: it shows what the statement's own
    /// reads of tables show, and all calls of one statement see the same moment.
    pub fn of_statement<T>(body: impl FnOnce(&ActiveSnapshot) -> Result<T>) -> Result<T> {
        // SAFETY: reads the backend's memory. An active snapshot stays to the end of the call.
        match unsafe { pg_sys::ActiveSnapshotSet() } {
            true => body(&ActiveSnapshot { _private: () }),
            false => Self::new_snapshot(body),
        }
    }

    /// [`Self::new_snapshot`] for a `body` that can't fail.
    pub fn fresh<T>(body: impl FnOnce(&ActiveSnapshot) -> T) -> T {
        // SAFETY: as in `new_snapshot`.
        unsafe {
            pg_sys::CommandCounterIncrement();
            pg_sys::PushActiveSnapshot(pg_sys::GetTransactionSnapshot());
        }
        let value = body(&ActiveSnapshot { _private: () });
        // SAFETY: as above.
        unsafe { pg_sys::PopActiveSnapshot() };
        value
    }

    /// The newest state there is, also in REPEATABLE READ: to find out that the transaction's own
    /// snapshot is out of date, never to act upon.
    pub fn latest_snapshot<T>(body: impl FnOnce(&ActiveSnapshot) -> Result<T>) -> Result<T> {
        // SAFETY: as in `new_snapshot`.
        unsafe { pg_sys::PushActiveSnapshot(pg_sys::GetLatestSnapshot()) };
        let value = body(&ActiveSnapshot { _private: () })?;
        // SAFETY: as above.
        unsafe { pg_sys::PopActiveSnapshot() };
        Ok(value)
    }
}

/// REPEATABLE READ or SERIALIZABLE: one snapshot for the whole transaction.
pub fn one_snapshot_per_transaction() -> bool {
    // SAFETY: a plain global of the backend.
    unsafe { pg_sys::XactIsoLevel >= pg_sys::XACT_REPEATABLE_READ as c_int }
}

/// SERIALIZABLE: PostgreSQL has to hear of every read.
pub fn is_serializable() -> bool {
    // SAFETY: a plain global of the backend.
    unsafe { pg_sys::XactIsoLevel == pg_sys::XACT_SERIALIZABLE as c_int }
}
