//! Inserts and deletes of rows, with what the executor does around them.
//!
//! To triggers and constraints of the table they are statements: triggers of rows and of statements
//! fire, generated columns are computed, constraints are checked. PostgreSQL refuses (42501) a
//! trigger or constraint that is deferred to the commit: it would run outside of the owner's
//! restricted operation. Columns that are not ours get their defaults. A table without triggers
//! pays for none of them.

use std::ffi::{CStr, c_void};
use std::ptr;

use pgrx::pg_sys;

use super::executor::{before_delete, compute_generated, init_range_table, null_of_domain};
use super::relation::{self, KEEP, Opened, WRITE};
use super::table::{Index, RowLocation, Table};
use crate::error::Error;
use crate::pg::allocator;
use crate::pg::guard;
use crate::pg::spi::Arg;

impl Table {
    /// Insert one row, with a value for each column. A duplicate of a unique key is an ERROR.
    pub fn insert(&self, values: &[Arg]) {
        let inserting = self.inserting();
        inserting.row(values);
        inserting.end();
    }

    /// Begin to insert rows as one statement, whose table and indexes are opened once.
    pub fn inserting(&self) -> Inserting {
        // SAFETY: in a transaction, with an active snapshot, as every call of ours.
        unsafe { Inserting::begin(self) }
    }

    /// Insert one row, unless its key is taken by a row that is there, or whose transaction has not
    /// ended. Never waits (except for a unique index that is not ours). As for ON CONFLICT DO
    /// NOTHING, BEFORE ROW triggers then have run, AFTER ROW triggers have not.
    pub fn try_insert(&self, key: &Index, values: &[Arg]) -> Option<RowLocation> {
        let inserting = self.inserting();
        let arbiter = super::catalogue::oid_of(key.name);
        // SAFETY: the statement has been begun.
        let place = unsafe { inserting.insert(values, arbiter) };
        inserting.end();
        place
    }

    /// Delete a row that this transaction has inserted.
    pub fn withdraw(&self, place: RowLocation) {
        // SAFETY: as above. The row is there, and no other transaction sees it. A command does not
        // see rows that it has inserted itself, so the delete is the next command.
        unsafe {
            pg_sys::CommandCounterIncrement();
            let writing = Writing::begin(self, c"DELETE", pg_sys::CmdType::CMD_DELETE);
            writing.delete(place);
            writing.end();
        }
    }
}

/// A statement that inserts rows. The caller ends it, unless an ERROR has.
pub struct Inserting {
    writing: Writing,
    /// Holds one row after the other.
    slot: *mut pg_sys::TupleTableSlot,
}

impl Inserting {
    /// # Safety
    /// In a transaction, with an active snapshot.
    unsafe fn begin(table: &Table) -> Self {
        // SAFETY: as above; the slot is as wide as the table, and lives as long as the statement.
        unsafe {
            let writing = Writing::begin(table, c"INSERT", pg_sys::CmdType::CMD_INSERT);
            let context = pg_sys::MemoryContextSwitchTo((*writing.state).es_query_cxt);
            pg_sys::ExecOpenIndices(writing.target, false);
            let described = (*writing.table.relation).rd_att;
            let slot = pg_sys::MakeSingleTupleTableSlot(described, &pg_sys::TTSOpsVirtual);
            if !writing.triggers.is_null() {
                pg_sys::ExecBSInsertTriggers(writing.state, writing.target);
            }
            pg_sys::MemoryContextSwitchTo(context);
            Self { writing, slot }
        }
    }

    /// Insert a row, with a value for each column. A duplicate of a unique key is an ERROR.
    pub fn row(&self, values: &[Arg]) {
        // SAFETY: the statement has been begun, and not ended.
        unsafe { self.insert(values, pg_sys::InvalidOid) };
    }

    /// End the statement.
    pub fn end(self) {
        let Self { writing, slot } = self;
        // SAFETY: the counterpart of `begin`.
        unsafe {
            let context = pg_sys::MemoryContextSwitchTo((*writing.state).es_query_cxt);
            if !writing.triggers.is_null() {
                pg_sys::ExecASInsertTriggers(writing.state, writing.target, writing.capture);
            }
            pg_sys::ExecCloseIndices(writing.target);
            pg_sys::ExecDropSingleTupleTableSlot(slot);
            pg_sys::MemoryContextSwitchTo(context);
            writing.end();
        }
    }

    /// Insert a row. With an `arbiter`, a unique index: None where its key is taken.
    ///
    /// # Safety
    /// The statement has been begun, and not ended.
    unsafe fn insert(&self, values: &[Arg], arbiter: pg_sys::Oid) -> Option<RowLocation> {
        let Self { writing, slot } = self;
        let (state, target, slot) = (writing.state, writing.target, *slot);
        let relation = writing.table.relation;
        // SAFETY: the steps of the executor, in its order.
        unsafe {
            let context = pg_sys::MemoryContextSwitchTo((*state).es_query_cxt);
            writing.fill(slot, values);
            let triggers = writing.triggers.as_ref();
            if triggers.is_some_and(|all| all.trig_insert_before_row)
                && !pg_sys::ExecBRInsertTriggers(state, target, slot)
            {
                writing.refuse_suppression();
            }
            writing.check(slot);
            pg_sys::simple_table_tuple_insert(relation, slot);
            let mut is_taken = false;
            let recheck = writing.insert_keys(slot, arbiter, &mut is_taken);
            let place = (*slot).tts_tid;
            if is_taken {
                pg_sys::CommandCounterIncrement();
                let mut place = place;
                pg_sys::simple_table_tuple_delete(relation, &mut place, (*state).es_snapshot);
            } else if triggers.is_some() {
                pg_sys::ExecARInsertTriggers(state, target, slot, recheck, writing.capture);
            }
            if let Some(around) = (*state).es_per_tuple_exprcontext.as_ref() {
                pg_sys::MemoryContextReset(around.ecxt_per_tuple_memory);
            }
            pg_sys::MemoryContextSwitchTo(context);
            (!is_taken).then_some(RowLocation(place))
        }
    }
}

/// A statement that writes rows. On an ERROR the transaction's resource owner closes what is open,
/// and the memory is freed with the context that was current.
struct Writing {
    name: &'static CStr,
    table: Opened,
    state: *mut pg_sys::EState,
    target: *mut pg_sys::ResultRelInfo,
    /// NULL: the table has no triggers.
    triggers: *const pg_sys::TriggerDesc,
    /// For triggers that look at all rows of a statement.
    capture: *mut pg_sys::TransitionCaptureState,
}

impl Writing {
    /// # Safety
    /// In a transaction, with an active snapshot.
    unsafe fn begin(table: &Table, tag: &CStr, command: pg_sys::CmdType::Type) -> Self {
        // SAFETY: the steps of the executor, and of logical replication, for one statement. All
        // that is allocated lives as long as the state.
        unsafe {
            allocator::check();
            pg_sys::PreventCommandIfReadOnly(tag.as_ptr());
            let name = table.0;
            let table = relation::open(name, WRITE);
            if table.runs_code {
                guard::pin_search_path();
            }
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
            Self { name, table, state, target, triggers, capture }
        }
    }

    /// Fire the triggers that wait for the end of the statement, and close it.
    ///
    /// # Safety
    /// Once, after everything else.
    unsafe fn end(self) {
        // SAFETY: the counterpart of `begin`. Relations that triggers have opened are closed with
        // their slots; ours is not counted among them.
        unsafe {
            if !self.triggers.is_null() {
                pg_sys::AfterTriggerEndQuery(self.state);
            }
            pg_sys::ExecResetTupleTable((*self.state).es_tupleTable, false);
            pg_sys::FreeExecutorState(self.state);
            pg_sys::table_close(self.table.relation, KEEP);
        }
    }

    /// # Safety
    /// The row is there, and this transaction has written it.
    unsafe fn delete(&self, mut place: RowLocation) {
        let (state, target, relation) = (self.state, self.target, self.table.relation);
        let place: *mut pg_sys::ItemPointerData = &mut place.0;
        // SAFETY: as in `insert`.
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

    /// Put the values into the slot, with the defaults of columns that are not ours.
    ///
    /// # Safety
    /// In the state's memory context; the slot is one of the table's.
    unsafe fn fill(&self, slot: *mut pg_sys::TupleTableSlot, values: &[Arg]) {
        let attributes = &self.table.attributes;
        if attributes.len() != values.len() {
            let table = relation::full_name(self.name);
            Error::corrupt(format!("{table} does not have {} columns", values.len())).raise();
        }
        // SAFETY: the slot is as wide as the table, and attributes are numbered from 1 up to that.
        unsafe {
            pg_sys::ExecClearTuple(slot);
            let fill = |attribute: i16, value: Arg| {
                let i = attribute as usize - 1;
                *(*slot).tts_values.add(i) = value.unwrap_or(pg_sys::Datum::null());
                *(*slot).tts_isnull.add(i) = value.is_none();
            };
            for (attribute, value) in attributes.iter().zip(values) {
                fill(*attribute, *value);
            }
            let described = relation::described(self.table.relation);
            if described.len() > attributes.len() {
                let added =
                    |other: &&pg_sys::FormData_pg_attribute| !attributes.contains(&other.attnum);
                for attribute in described.iter().filter(added) {
                    fill(attribute.attnum, self.default(attribute));
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
    unsafe fn check(&self, slot: *mut pg_sys::TupleTableSlot) {
        let (state, target, relation) = (self.state, self.target, self.table.relation);
        // SAFETY: as in `insert`.
        unsafe {
            // The executor needs a range table for the message of a failed constraint only.
            if !self.table.runs_code {
                self.need_values(slot);
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

    /// What ExecConstraints does for a table whose only constraints are NOT NULL.
    ///
    /// # Safety
    /// The slot holds a row for the table.
    unsafe fn need_values(&self, slot: *mut pg_sys::TupleTableSlot) {
        // SAFETY: a slot has a flag for each column of its table.
        unsafe {
            for (at, column) in relation::described(self.table.relation).iter().enumerate() {
                if column.attnotnull && *(*slot).tts_isnull.add(at) {
                    Error::null_in(self.name, CStr::from_ptr(column.attname.data.as_ptr())).raise();
                }
            }
        }
    }

    /// Insert the keys of a row into the indexes. Sets `is_taken` if the arbiter has its key.
    /// Returns the indexes of deferred constraints that are to be checked again.
    ///
    /// # Safety
    /// The row has been inserted.
    unsafe fn insert_keys(
        &self,
        slot: *mut pg_sys::TupleTableSlot,
        arbiter: pg_sys::Oid,
        is_taken: &mut bool,
    ) -> *mut pg_sys::List {
        let (state, target) = (self.state, self.target);
        // SAFETY: the indexes are open. With an arbiter, keys are checked without waiting: of two
        // transactions that insert a key at once, each has announced its row by then.
        unsafe {
            if (*target).ri_NumIndices == 0 {
                return ptr::null_mut();
            }
            let tries = arbiter != pg_sys::InvalidOid;
            let arbiters = if tries { self.alike(arbiter) } else { ptr::null_mut() };
            let taken: *mut bool = is_taken;
            #[cfg(feature = "pg15")]
            return pg_sys::ExecInsertIndexTuples(
                target, slot, state, false, tries, taken, arbiters,
            );
            #[cfg(not(feature = "pg15"))]
            return pg_sys::ExecInsertIndexTuples(
                target, slot, state, false, tries, taken, arbiters, false,
            );
        }
    }

    /// The unique indexes with the columns of `arbiter`: itself, and one that REINDEX CONCURRENTLY
    /// is putting in its place, or has left behind.
    ///
    /// # Safety
    /// The indexes are open.
    unsafe fn alike(&self, arbiter: pg_sys::Oid) -> *mut pg_sys::List {
        // SAFETY: `ri_NumIndices` indexes are open; each has `indnkeyatts` columns.
        unsafe {
            let target = &*self.target;
            let count = target.ri_NumIndices as usize;
            let forms: Vec<&pg_sys::FormData_pg_index> =
                std::slice::from_raw_parts(target.ri_IndexRelationDescs, count)
                    .iter()
                    .map(|index| &*(**index).rd_index)
                    .collect();
            let columns = |form: &pg_sys::FormData_pg_index| {
                let first = form.indkey.values.as_ptr();
                std::slice::from_raw_parts(first, form.indnkeyatts as usize).to_vec()
            };
            let Some(wanted) = forms.iter().find(|form| form.indexrelid == arbiter) else {
                return pg_sys::list_append_unique_oid(ptr::null_mut(), arbiter);
            };
            let wanted = columns(wanted);
            let is_alike =
                |form: &&&pg_sys::FormData_pg_index| form.indisunique && columns(form) == wanted;
            forms.iter().filter(is_alike).fold(ptr::null_mut(), |all, form| {
                pg_sys::list_append_unique_oid(all, form.indexrelid)
            })
        }
    }

    fn refuse_suppression(&self) -> ! {
        Error::suppressed(&relation::full_name(self.name)).raise()
    }
}
