//! Deleting rows without the executor, with what the executor does around it.

use std::ops::ControlFlow;
use std::ptr;

use pgrx::pg_sys;

use super::executor::before_delete;
use super::key::Key;
use super::row_lock::try_lock_to_delete;
use super::scan::{ScanEnd, Tuple};
use super::snapshot::ActiveSnapshot;
use super::spi::SqlRows;
use super::table::{Column, Index, RowLocation, Table};
use super::write::Writing;
use crate::error::Error;

impl Table {
    /// Delete a row that this transaction has inserted.
    pub fn withdraw(&'static self, place: RowLocation) {
        // SAFETY: in a transaction, with an active snapshot. A command does not see rows that it
        // has inserted itself, so the delete is the next command.
        unsafe { pg_sys::CommandCounterIncrement() };
        let deleting = self.deleting();
        // SAFETY: the row is there, and no other transaction sees it.
        if !unsafe { deleting.delete(place) } {
            deleting.0.refuse_suppression();
        }
        deleting.end();
    }

    /// Begin to delete rows as one statement.
    pub fn deleting(&'static self) -> Deleting {
        // SAFETY: in a transaction, with an active snapshot, as every call of ours.
        unsafe {
            let writing = Writing::begin(self, c"DELETE", pg_sys::CmdType::CMD_DELETE);
            pg_sys::CheckCmdReplicaIdentity(writing.table.relation, pg_sys::CmdType::CMD_DELETE);
            if !writing.triggers.is_null() {
                let context = pg_sys::MemoryContextSwitchTo((*writing.state).es_query_cxt);
                pg_sys::ExecBSDeleteTriggers(writing.state, writing.target);
                pg_sys::MemoryContextSwitchTo(context);
            }
            Deleting(writing)
        }
    }
}

impl Table {
    /// Delete the rows at the places that a statement has returned as its only column, `ctid`,
    /// under this snapshot. One that another transaction has locked, replaced or deleted is passed
    /// by. Returns how many are deleted. Never waits.
    pub fn delete_found(&'static self, found: SqlRows, _under: &ActiveSnapshot) -> usize {
        let places: Vec<RowLocation> =
            found.filter_map(|row| row.only().map(RowLocation)).collect();
        if places.is_empty() {
            return 0;
        }
        let deleting = self.deleting();
        let deleted = places.into_iter().filter(|place| deleting.try_row(*place)).count();
        deleting.end();
        deleted
    }
}

impl Index {
    /// Delete rows that meet `keys`, with columns of the index: from its start on, those of which
    /// `choose` reads a value, until it breaks off. A row that another transaction has locked,
    /// replaced or deleted is passed by. Returns the values of the rows that are deleted, in the
    /// order of the index. Never waits.
    pub fn delete<T>(
        &self,
        keys: &[(Column, Key<'_>)],
        under: &ActiveSnapshot,
        mut choose: impl FnMut(&Tuple) -> ControlFlow<(), Option<T>>,
    ) -> Vec<T> {
        let chosen = self.choose(keys, under, &mut choose);
        if chosen.is_empty() {
            return Vec::new();
        }
        let deleting = self.table.deleting();
        let deleted = deleting.chosen(chosen);
        deleting.end();
        deleted
    }

    fn choose<T>(
        &self,
        keys: &[(Column, Key<'_>)],
        under: &ActiveSnapshot,
        choose: &mut impl FnMut(&Tuple) -> ControlFlow<(), Option<T>>,
    ) -> Vec<(RowLocation, T)> {
        let mut chosen = Vec::new();
        self.scan::<()>(keys, ScanEnd::Start, under, |row| {
            chosen.extend(choose(row)?.map(|value| (row.place(), value)));
            ControlFlow::Continue(())
        });
        chosen
    }
}

/// A statement that deletes rows. The caller ends it, unless an ERROR has.
pub struct Deleting(Writing);

impl Deleting {
    /// Delete a row that the active snapshot shows, and say so. False, and the row stays, if
    /// another transaction has locked, replaced or deleted it, or if a trigger suppresses the
    /// delete. Never waits.
    ///
    /// To `DELETE … WHERE ctid IN (SELECT … FOR UPDATE SKIP LOCKED)` this is the same, but there is
    /// no row lock before the delete, and so no log record of one.
    pub fn try_row(&self, place: RowLocation) -> bool {
        pgrx::check_for_interrupts!();
        // SAFETY: the statement has been begun, and not ended; the snapshot shows the row.
        unsafe {
            // A trigger has to see the row before it is deleted, and must not wait for it.
            let outcome = match self.0.triggers.is_null() {
                true => self.delete_unless_busy(place),
                false => pg_sys::TM_Result::TM_BeingModified,
            };
            match outcome {
                pg_sys::TM_Result::TM_Ok => true,
                // It may be this transaction that has locked the row.
                pg_sys::TM_Result::TM_BeingModified => {
                    try_lock_to_delete(self.0.table.relation, place) && self.delete(place)
                }
                _ => false,
            }
        }
    }

    /// [`Index::delete`] as a part of this statement, of whose table the index is.
    pub fn by_index<T>(
        &self,
        index: &Index,
        keys: &[(Column, Key<'_>)],
        under: &ActiveSnapshot,
        mut choose: impl FnMut(&Tuple) -> ControlFlow<(), Option<T>>,
    ) -> Vec<T> {
        self.chosen(index.choose(keys, under, &mut choose))
    }

    /// Delete these rows, and return the values of those that could be deleted.
    fn chosen<T>(&self, mut chosen: Vec<(RowLocation, T)>) -> Vec<T> {
        chosen.retain(|(place, _)| self.try_row(*place));
        chosen.into_iter().map(|(_, value)| value).collect()
    }

    /// End the statement.
    pub fn end(self) {
        let Self(writing) = self;
        // SAFETY: the counterpart of `deleting`.
        unsafe {
            if !writing.triggers.is_null() {
                let context = pg_sys::MemoryContextSwitchTo((*writing.state).es_query_cxt);
                pg_sys::ExecASDeleteTriggers(writing.state, writing.target, writing.capture);
                pg_sys::MemoryContextSwitchTo(context);
            }
            writing.end();
        }
    }

    /// Delete a row that no other transaction can change. False if a trigger suppresses that.
    ///
    /// # Safety
    /// This transaction has written or locked the row, and the statement has not ended.
    unsafe fn delete(&self, mut place: RowLocation) -> bool {
        let writing = &self.0;
        let (state, target) = (writing.state, writing.target);
        let place: *mut pg_sys::ItemPointerData = &mut place.0;
        // SAFETY: the steps of the executor on an open statement, in its order.
        unsafe {
            let context = pg_sys::MemoryContextSwitchTo((*state).es_query_cxt);
            let triggers = writing.triggers.as_ref();
            let goes = triggers.is_none_or(|all| !all.trig_delete_before_row)
                || before_delete(state, target, place);
            if goes {
                let relation = writing.table.relation;
                pg_sys::simple_table_tuple_delete(relation, place, (*state).es_snapshot);
                if triggers.is_some() {
                    let none = ptr::null_mut();
                    pg_sys::ExecARDeleteTriggers(
                        state,
                        target,
                        place,
                        none,
                        writing.capture,
                        false,
                    );
                }
            }
            pg_sys::MemoryContextSwitchTo(context);
            goes
        }
    }

    /// # Safety
    /// The statement has been begun, and not ended; its table has no triggers. The active snapshot
    /// shows the row.
    unsafe fn delete_unless_busy(&self, mut place: RowLocation) -> pg_sys::TM_Result::Type {
        let relation = self.0.table.relation;
        let mut failure = pg_sys::TM_FailureData::default();
        // SAFETY: the relation is open. The access method's function is called behind a guard, as
        // pgrx calls PostgreSQL's own: an ERROR in it unwinds.
        unsafe {
            let Some(delete) = (*(*relation).rd_tableam).tuple_delete else {
                Error::corrupt("the table's access method can't delete rows").raise()
            };
            let command = pg_sys::GetCurrentCommandId(true);
            let snapshot = (*self.0.state).es_snapshot;
            let (no_check, waits, moves) = (ptr::null_mut(), false, false);
            pg_sys::ffi::pg_guard_ffi_boundary(|| {
                let place = &mut place.0;
                delete(relation, place, command, snapshot, no_check, waits, &mut failure, moves)
            })
        }
    }
}
