//! Deleting one row without the executor, with what the executor does around it.

use std::ptr;

use pgrx::pg_sys;

use super::executor::before_delete;
use super::table::{RowLocation, Table};
use super::write::Writing;

impl Table {
    /// Delete a row that this transaction has inserted.
    pub fn withdraw(&'static self, place: RowLocation) {
        // SAFETY: in a transaction, with an active snapshot. The row is there, and no other
        // transaction sees it. A command does not see rows that it has inserted itself, so the
        // delete is the next command.
        unsafe {
            pg_sys::CommandCounterIncrement();
            let writing = Writing::begin(self, c"DELETE", pg_sys::CmdType::CMD_DELETE);
            writing.delete(place);
            writing.end();
        }
    }
}

impl Writing {
    /// # Safety
    /// The row is there, and this transaction has written it.
    unsafe fn delete(&self, mut place: RowLocation) {
        let (state, target, relation) = (self.state, self.target, self.table.relation);
        let place: *mut pg_sys::ItemPointerData = &mut place.0;
        // SAFETY: the steps of the executor on an open statement, in its order.
        unsafe {
            let context = pg_sys::MemoryContextSwitchTo((*state).es_query_cxt);
            pg_sys::CheckCmdReplicaIdentity(relation, pg_sys::CmdType::CMD_DELETE);
            if let Some(triggers) = self.triggers.as_ref() {
                pg_sys::ExecBSDeleteTriggers(state, target);
                if triggers.trig_delete_before_row && !before_delete(state, target, place) {
                    self.refuse_suppression();
                }
            }
            pg_sys::simple_table_tuple_delete(relation, place, (*state).es_snapshot);
            if !self.triggers.is_null() {
                let none = ptr::null_mut();
                pg_sys::ExecARDeleteTriggers(state, target, place, none, self.capture, false);
                pg_sys::ExecASDeleteTriggers(state, target, self.capture);
            }
            pg_sys::MemoryContextSwitchTo(context);
        }
    }
}
