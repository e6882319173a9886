//! Locking one row without the executor.

use std::ptr;

use pgrx::pg_sys;

use super::relation::{self, READ, WRITE};
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
            let opened = relation::open(self, WRITE);
            let mode = pg_sys::LockTupleMode::LockTupleNoKeyExclusive;
            let is_locked = lock(opened.relation, place, mode, policy);
            opened.close();
            is_locked
        }
    }

    /// Whether another transaction, which has not ended, has locked or replaced the row, as far
    /// as can be told without a lock: a moment later it may be otherwise. `place` as in
    /// [`Self::lock`].
    pub fn is_held(&'static self, place: RowLocation, _under: &ActiveSnapshot) -> bool {
        let mut place = place.0;
        // SAFETY: as in `lock`. The slot keeps the row's page until it is dropped.
        unsafe {
            let opened = relation::open(self, READ);
            let table = opened.relation;
            let slot = pg_sys::table_slot_create(table, ptr::null_mut());
            let method = &*(*table).rd_tableam;
            let snapshot = pg_sys::GetActiveSnapshot();
            let is_there = method.tuple_fetch_row_version.is_some_and(|fetch| {
                pg_sys::ffi::pg_guard_ffi_boundary(|| fetch(table, &mut place, snapshot, slot))
            });
            let mut is_copy = false;
            let is_held = is_there
                && is_held_by_another(pg_sys::ExecFetchSlotHeapTuple(slot, false, &mut is_copy));
            pg_sys::ExecDropSingleTupleTableSlot(slot);
            opened.close();
            is_held
        }
    }
}

/// # Safety
/// The row lies in a pinned page, or is a copy.
unsafe fn is_held_by_another(row: pg_sys::HeapTuple) -> bool {
    // SAFETY: by the caller. Another backend may change the header meanwhile; each field is read
    // once, and what they say together is a guess in any case.
    unsafe {
        let header = (*row).t_data;
        let flags = u32::from((*header).t_infomask);
        let holder = (*header).t_choice.t_heap.t_xmax;
        if flags & pg_sys::HEAP_XMAX_INVALID != 0 || holder == pg_sys::InvalidTransactionId {
            return false;
        }
        if flags & pg_sys::HEAP_XMAX_IS_MULTI != 0 {
            return pg_sys::MultiXactIdIsRunning(holder, flags & pg_sys::HEAP_XMAX_LOCK_ONLY != 0);
        }
        !pg_sys::TransactionIdIsCurrentTransactionId(holder)
            && pg_sys::TransactionIdIsInProgress(holder)
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
