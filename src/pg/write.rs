//! What the executor does around a statement that writes rows, where there is no executor.
//!
//! To triggers and constraints of the table such a write is a statement: triggers of rows and of
//! statements fire, generated columns are computed, constraints are checked. PostgreSQL refuses
//! (42501) a trigger or constraint that is deferred to the commit: it would run outside of the
//! owner's restricted operation. Columns that the code does not know get their defaults. A table
//! without triggers pays for none of them.

use std::ffi::{CStr, c_void};
use std::ptr;

use pgrx::pg_sys;

use super::columns::Arg;
use super::executor::{compute_generated, init_range_table, null_of_domain};
use super::relation::{self, Opened, WRITE};
use super::table::{Column, Table};
use super::{allocator, async_commit, catalogue, guard, kept_open, own_commits};
use crate::error::Error;

/// A statement that writes rows. On an ERROR the transaction's resource owner closes what is open,
/// and the memory is freed with the context that was current.
pub struct Writing {
    pub name: &'static CStr,
    /// The table as the code knows it.
    pub code: &'static Table,
    pub table: Opened,
    pub state: *mut pg_sys::EState,
    pub target: *mut pg_sys::ResultRelInfo,
    /// NULL: the table has no triggers.
    pub triggers: *const pg_sys::TriggerDesc,
    /// For triggers that look at all rows of a statement.
    pub capture: *mut pg_sys::TransitionCaptureState,
}

/// Open a table to write rows of it. `tag`: the command, in the words of an error.
///
/// # Safety
/// In a transaction.
pub unsafe fn open(table: &'static Table, tag: &CStr) -> Opened {
    allocator::check();
    // SAFETY: raises an ERROR where nothing may be written; the tag ends in a NUL.
    let opened = unsafe {
        pg_sys::PreventCommandIfReadOnly(tag.as_ptr());
        relation::open(table, WRITE)
    };
    async_commit::note_write(table, opened.runs_code);
    own_commits::note_write();
    if opened.runs_code {
        guard::pin_search_path();
    }
    opened
}

impl Writing {
    /// # Safety
    /// In a transaction, with an active snapshot.
    pub unsafe fn begin(table: &'static Table, tag: &CStr, command: pg_sys::CmdType::Type) -> Self {
        // SAFETY: the steps of the executor, and of logical replication, for one statement. All
        // that is allocated lives as long as the state.
        unsafe {
            allocator::check();
            let opened = open(table, tag);
            Self::begin_on(table, opened, command)
        }
    }

    /// # Safety
    /// As for [`Self::begin`]; the table has been opened by [`open`].
    pub unsafe fn begin_on(
        code: &'static Table,
        table: Opened,
        command: pg_sys::CmdType::Type,
    ) -> Self {
        // SAFETY: as in `begin`.
        unsafe {
            let name = code.name;
            let state = pg_sys::CreateExecutorState();
            let context = pg_sys::MemoryContextSwitchTo((*state).es_query_cxt);
            (*state).es_snapshot = pg_sys::GetActiveSnapshot();
            (*state).es_output_cid = pg_sys::GetCurrentCommandId(true);
            if table.runs_code {
                init_range_table(state, table.relation);
            }
            let target: *mut pg_sys::ResultRelInfo =
                pg_sys::palloc0(size_of::<pg_sys::ResultRelInfo>()).cast();
            pg_sys::InitResultRelInfo(target, table.relation, 1, ptr::null_mut(), 0);
            // Triggers find the table here; it does not count as opened by them.
            (*state).es_opened_result_relations =
                pg_sys::lappend((*state).es_opened_result_relations, target.cast::<c_void>());
            let triggers = (*target).ri_TrigDesc;
            let mut capture = ptr::null_mut();
            if !triggers.is_null() {
                pg_sys::AfterTriggerBeginQuery();
                let oid = (*table.relation).rd_id;
                capture = pg_sys::MakeTransitionCaptureState(triggers, oid, command);
            }
            pg_sys::MemoryContextSwitchTo(context);
            Self { name, code, table, state, target, triggers, capture }
        }
    }

    /// Fire the triggers that wait for the end of the statement, and close it.
    ///
    /// # Safety
    /// Once, after everything else.
    pub unsafe fn end(self) {
        // SAFETY: the counterpart of `begin`. Relations that triggers have opened are closed with
        // their slots; ours is not counted among them.
        unsafe {
            if !self.triggers.is_null() {
                kept_open::close_unused();
                pg_sys::AfterTriggerEndQuery(self.state);
            }
            pg_sys::ExecResetTupleTable((*self.state).es_tupleTable, false);
            pg_sys::FreeExecutorState(self.state);
            self.table.close();
        }
    }

    /// Put the values into the slot: NULL for a column of the code that is not named, and the
    /// default for a column that the code does not know.
    ///
    /// # Safety
    /// In the state's memory context; the slot is one of the table's.
    pub unsafe fn fill(&self, slot: *mut pg_sys::TupleTableSlot, values: &[(Column, Arg)]) {
        let attributes = &self.table.attributes;
        // SAFETY: the slot is as wide as the table.
        unsafe {
            pg_sys::ExecClearTuple(slot);
            fill_known(self.code, &self.table, slot, values);
            let described = relation::described(self.table.relation);
            if described.len() > attributes.len() {
                let added =
                    |other: &&pg_sys::FormData_pg_attribute| !attributes.contains(&other.attnum);
                for attribute in described.iter().filter(added) {
                    put(slot, attribute.attnum, self.default(attribute));
                }
            }
            pg_sys::ExecStoreVirtualTuple(slot);
        }
    }

    /// The default of a column for which the caller gives no value.
    ///
    /// # Safety
    /// In the state's memory context.
    unsafe fn default(&self, attribute: &pg_sys::FormData_pg_attribute) -> Arg {
        if attribute.attisdropped || attribute.attgenerated != 0 {
            return None;
        }
        // SAFETY: an expression that fits the column, evaluated as the executor evaluates one. The
        // function is called behind a guard, as pgrx calls PostgreSQL's own: an ERROR in it
        // unwinds.
        unsafe {
            let relation = self.table.relation;
            let mut default = pg_sys::build_column_default(relation, attribute.attnum.into());
            if default.is_null() {
                default = null_of_domain(attribute);
            }
            if default.is_null() {
                return None;
            }
            let prepared = pg_sys::ExecPrepareExpr(default.cast(), self.state);
            let mut around = (*self.state).es_per_tuple_exprcontext;
            if around.is_null() {
                around = pg_sys::MakePerTupleExprContext(self.state);
            }
            let evaluate = (*prepared).evalfunc?;
            let mut is_null = false;
            let value =
                pg_sys::ffi::pg_guard_ffi_boundary(|| evaluate(prepared, around, &mut is_null));
            (!is_null).then_some(value)
        }
    }

    /// Compute generated columns, and check the constraints.
    ///
    /// # Safety
    /// The slot holds a row for the table.
    pub unsafe fn check(&self, slot: *mut pg_sys::TupleTableSlot) {
        let (state, target, relation) = (self.state, self.target, self.table.relation);
        // SAFETY: the steps of the executor on an open statement; the slot holds a row of its
        // table.
        unsafe {
            // The executor needs a range table for the message of a failed constraint only.
            if !self.table.runs_code {
                need_values(self.name, &self.table, slot);
                return;
            }
            if let Some(constraints) = (*(*relation).rd_att).constr.as_ref() {
                if constraints.has_generated_stored {
                    compute_generated(target, state, slot);
                }
                pg_sys::ExecConstraints(target, slot, state);
            }
            if (*(*relation).rd_rel).relispartition {
                pg_sys::ExecPartitionCheck(target, slot, state, true);
            }
        }
    }

    pub fn refuse_suppression(&self) -> ! {
        Error::suppressed(&catalogue::full_name(self.name)).raise()
    }
}

/// Put a value into the slot, in the place of an attribute.
///
/// # Safety
/// The slot has the attribute, and is empty.
unsafe fn put(slot: *mut pg_sys::TupleTableSlot, attribute: i16, value: Arg) {
    let at = attribute as usize - 1;
    // SAFETY: as above; attributes are numbered from 1.
    unsafe {
        *(*slot).tts_values.add(at) = value.unwrap_or(pg_sys::Datum::null());
        *(*slot).tts_isnull.add(at) = value.is_none();
    }
}

/// Put the values into the slot. Every other attribute of the table is NULL: columns of the code
/// that are not named, and columns that were dropped.
///
/// # Safety
/// The slot is one of the table's, and empty.
pub unsafe fn fill_known(
    code: &Table,
    table: &Opened,
    slot: *mut pg_sys::TupleTableSlot,
    values: &[(Column, Arg)],
) {
    // SAFETY: the slot is as wide as the table, and attributes are numbered from 1 up to that.
    unsafe {
        let width = relation::described(table.relation).len();
        (1..=width as i16).for_each(|attribute| put(slot, attribute, None));
        for (column, value) in values {
            debug_assert!(code.has(*column), "{:?} has no column {column:?}", code.name);
            put(slot, table.attributes[column.place()], *value);
        }
    }
}

/// What ExecConstraints does for a table whose only constraints are NOT NULL. All its columns are
/// ours (see `relation::runs_code`).
///
/// # Safety
/// The slot holds a row for the table.
pub unsafe fn need_values(name: &CStr, table: &Opened, slot: *mut pg_sys::TupleTableSlot) {
    // SAFETY: a slot has a flag for each column of its table.
    unsafe {
        for (at, column) in relation::described(table.relation).iter().enumerate() {
            if column.attnotnull && *(*slot).tts_isnull.add(at) {
                let column = CStr::from_ptr(column.attname.data.as_ptr());
                Error::null_in(name, column).raise();
            }
        }
    }
}
