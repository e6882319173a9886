//! Locking one row without the executor.

use std::ptr;

use pgrx::pg_sys;

use super::relation::{self, WRITE};
use super::snapshot::ActiveSnapshot;
use super::table::{RowLocation, Table};
use crate::error::Error;

impl Table {
    /// Lock the row `FOR NO KEY UPDATE`, to the end of the transaction. False if the row is gone,
    /// or, without `wait`, if another transaction has locked it. `under`: a snapshot that sees the
    /// row, so that no vacuum gives its location to another row.
    pub fn lock(&'static self, place: RowLocation, wait: bool, _under: &ActiveSnapshot) -> bool {
        let mut place = place.0;
        let mut failure = pg_sys::TM_FailureData::default();
        let policy = match wait {
            true => pg_sys::LockWaitPolicy::LockWaitBlock,
            false => pg_sys::LockWaitPolicy::LockWaitSkip,
        };
        // SAFETY: relation and slot are opened and closed in pairs; on an ERROR the transaction's
        // resource owner closes them. The access method's function is called behind a guard, as
        // pgrx calls PostgreSQL's own: an ERROR in it unwinds.
        unsafe {
            pg_sys::PreventCommandIfReadOnly(c"SELECT FOR NO KEY UPDATE".as_ptr());
            let opened = relation::open(self, WRITE);
            let table = opened.relation;
            let slot = pg_sys::table_slot_create(table, ptr::null_mut());
            let method = &*(*table).rd_tableam;
            let Some(lock) = method.tuple_lock else {
                Error::corrupt("the table's access method can't lock rows").raise()
            };
            let snapshot = pg_sys::GetActiveSnapshot();
            let command = pg_sys::GetCurrentCommandId(false);
            let outcome = pg_sys::ffi::pg_guard_ffi_boundary(|| {
                lock(
                    table,
                    &mut place,
                    snapshot,
                    slot,
                    command,
                    pg_sys::LockTupleMode::LockTupleNoKeyExclusive,
                    policy,
                    0,
                    &mut failure,
                )
            });
            pg_sys::ExecDropSingleTupleTableSlot(slot);
            opened.close();
            outcome == pg_sys::TM_Result::TM_Ok
        }
    }
}
