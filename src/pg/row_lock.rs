//! Locking one row without the executor.

use std::ptr;

use pgrx::pg_sys;

use super::relation::{self, KEEP, WRITE};
use super::snapshot::ActiveSnapshot;
use super::table::{RowLocation, Table};
use crate::error::Error;

impl Table {
    /// Lock the row `FOR NO KEY UPDATE`, to the end of the transaction. False if the row is gone,
    /// or, without `wait`, if another transaction has locked it. `under`: a snapshot that sees the
    /// row, so that no vacuum gives its location to another row.
    pub fn lock(&'static self, place: RowLocation, wait: bool, _under: &ActiveSnapshot) -> bool {
        let policy = match wait {
            true => pg_sys::LockWaitPolicy::LockWaitBlock,
            false => pg_sys::LockWaitPolicy::LockWaitSkip,
        };
        // SAFETY: the relation is opened and closed in pairs; on an ERROR the transaction's
        // resource owner closes it.
        unsafe {
            pg_sys::PreventCommandIfReadOnly(c"SELECT FOR NO KEY UPDATE".as_ptr());
            let table = relation::open(self, WRITE).relation;
            let mode = pg_sys::LockTupleMode::LockTupleNoKeyExclusive;
            let is_locked = lock(table, place, mode, policy);
            pg_sys::table_close(table, KEEP);
            is_locked
        }
    }
}

/// Lock a row `FOR UPDATE`. False if another transaction has locked, replaced or deleted it. Never
/// waits.
///
/// # Safety
/// The table is open for writing, and the active snapshot shows the row.
pub unsafe fn try_lock_to_delete(table: pg_sys::Relation, place: RowLocation) -> bool {
    let mode = pg_sys::LockTupleMode::LockTupleExclusive;
    // SAFETY: as above.
    unsafe { lock(table, place, mode, pg_sys::LockWaitPolicy::LockWaitSkip) }
}

/// Whether the row could be locked.
///
/// # Safety
/// The table is open for writing, and the active snapshot shows the row.
unsafe fn lock(
    table: pg_sys::Relation,
    mut place: RowLocation,
    mode: pg_sys::LockTupleMode::Type,
    policy: pg_sys::LockWaitPolicy::Type,
) -> bool {
    let mut failure = pg_sys::TM_FailureData::default();
    // SAFETY: the slot is opened and closed in pairs; on an ERROR the transaction's resource owner
    // closes it. The access method's function is called behind a guard, as pgrx calls PostgreSQL's
    // own: an ERROR in it unwinds.
    unsafe {
        let slot = pg_sys::table_slot_create(table, ptr::null_mut());
        let Some(lock) = (*(*table).rd_tableam).tuple_lock else {
            Error::corrupt("the table's access method can't lock rows").raise()
        };
        let snapshot = pg_sys::GetActiveSnapshot();
        let command = pg_sys::GetCurrentCommandId(false);
        let outcome = pg_sys::ffi::pg_guard_ffi_boundary(|| {
            let place = &mut place.0;
            lock(table, place, snapshot, slot, command, mode, policy, 0, &mut failure)
        });
        pg_sys::ExecDropSingleTupleTableSlot(slot);
        outcome == pg_sys::TM_Result::TM_Ok
    }
}
