//! Inserts and deletes of single rows, with what the executor does around them.
//!
//! Each is a statement of its own to what hangs on the table: triggers of rows and of statements fire,
//! generated columns are computed, constraints are checked (deferred ones at the commit). Columns
//! that are not ours get their defaults. A table without triggers pays for none of them.

use std::ffi::{CStr, c_void};
use std::ptr;

use pgrx::pg_sys;

use super::relation::{self, KEEP, Opened, WRITE};
use super::spi::Arg;
use super::table::{Index, Place, Table};
use crate::allocator;
use crate::error::Error;
use crate::pg::guard;

unsafe extern "C-unwind" {
    fn ExecComputeStoredGenerated(
        target: *mut pg_sys::ResultRelInfo,
        state: *mut pg_sys::EState,
        slot: *mut pg_sys::TupleTableSlot,
        command: pg_sys::CmdType::Type,
    );
}

impl Table {
    /// Insert one row, with a value for each column. A duplicate of a unique key is an ERROR.
    pub fn insert(&self, values: &[Arg]) {
        // SAFETY: in a transaction, with an active snapshot, as every call of ours.
        unsafe {
            let writing = Writing::begin(self, c"INSERT", pg_sys::CmdType::CMD_INSERT);
            writing.insert(values, pg_sys::InvalidOid);
            writing.end();
        }
    }

    /// Insert one row, unless its key is taken: by a row that is there, or by one whose transaction has
    /// not ended. Never waits (except for a unique index that is not ours). Where it is taken this is
    /// what ON CONFLICT DO NOTHING is to triggers: the BEFORE ones have seen the row, no other has.
    pub fn try_insert(&self, key: &Index, values: &[Arg]) -> Option<Place> {
        // SAFETY: as above.
        unsafe {
            let writing = Writing::begin(self, c"INSERT", pg_sys::CmdType::CMD_INSERT);
            let arbiter = super::catalogue::oid_of(key.name);
            let place = writing.insert(values, arbiter);
            writing.end();
            place
        }
    }

    /// Delete a row that this transaction has inserted.
    pub fn withdraw(&self, place: Place) {
        // SAFETY: as above. The row is there, and no other transaction sees it. A command does not see
        // what it has inserted itself: this is the next one.
        unsafe {
            pg_sys::CommandCounterIncrement();
            let writing = Writing::begin(self, c"DELETE", pg_sys::CmdType::CMD_DELETE);
            writing.delete(place);
            writing.end();
        }
    }
}

/// A statement that writes one row. On an ERROR the transaction's resource owner closes what is open,
/// and the memory goes with the context that was current.
struct Writing {
    name: &'static CStr,
    table: Opened,
    state: *mut pg_sys::EState,
    target: *mut pg_sys::ResultRelInfo,
    /// NULL: nothing hangs on the table.
    triggers: *const pg_sys::TriggerDesc,
    /// For triggers that look at all rows of a statement.
    capture: *mut pg_sys::TransitionCaptureState,
}

impl Writing {
    /// # Safety
    /// In a transaction, with an active snapshot.
    unsafe fn begin(table: &Table, tag: &CStr, command: pg_sys::CmdType::Type) -> Self {
        // SAFETY: what the executor, and logical replication, set up for a statement. All that is
        // allocated lives as long as the state.
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
            init_range_table(state, table.relation);
            let target: *mut pg_sys::ResultRelInfo =
                pg_sys::palloc0(size_of::<pg_sys::ResultRelInfo>()).cast();
            pg_sys::InitResultRelInfo(target, table.relation, 1, ptr::null_mut(), 0);
            // Where triggers look for it; it is not counted as opened by them.
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

    /// Fire what waits for the end of the statement, and close it.
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

    /// Insert a row. With an `arbiter`, a unique index: None where its key is taken.
    ///
    /// # Safety
    /// The statement is an INSERT.
    unsafe fn insert(&self, values: &[Arg], arbiter: pg_sys::Oid) -> Option<Place> {
        let (state, target, relation) = (self.state, self.target, self.table.relation);
        // SAFETY: the steps of the executor, in its order.
        unsafe {
            let context = pg_sys::MemoryContextSwitchTo((*state).es_query_cxt);
            pg_sys::ExecOpenIndices(target, false);
            let slot = self.slot(values);
            if let Some(triggers) = self.triggers.as_ref() {
                pg_sys::ExecBSInsertTriggers(state, target);
                if triggers.trig_insert_before_row
                    && !pg_sys::ExecBRInsertTriggers(state, target, slot)
                {
                    self.refuse_suppression();
                }
            }
            self.check(slot);
            pg_sys::simple_table_tuple_insert(relation, slot);
            let mut is_taken = false;
            let recheck = self.insert_keys(slot, arbiter, &mut is_taken);
            let place = (*slot).tts_tid;
            if is_taken {
                pg_sys::CommandCounterIncrement();
                let mut place = place;
                pg_sys::simple_table_tuple_delete(relation, &mut place, (*state).es_snapshot);
            }
            if !self.triggers.is_null() {
                if !is_taken {
                    pg_sys::ExecARInsertTriggers(state, target, slot, recheck, self.capture);
                }
                pg_sys::ExecASInsertTriggers(state, target, self.capture);
            }
            pg_sys::ExecCloseIndices(target);
            pg_sys::ExecDropSingleTupleTableSlot(slot);
            pg_sys::MemoryContextSwitchTo(context);
            (!is_taken).then_some(Place(place))
        }
    }

    /// # Safety
    /// The row is there, and this transaction has written it.
    unsafe fn delete(&self, mut place: Place) {
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

    /// A slot with the values, and with the defaults of columns that are not ours.
    ///
    /// # Safety
    /// In the state's memory context.
    unsafe fn slot(&self, values: &[Arg]) -> *mut pg_sys::TupleTableSlot {
        let attributes = &self.table.attributes;
        if attributes.len() != values.len() {
            let table = relation::full_name(self.name);
            Error::corrupt(format!("{table} does not have {} columns", values.len())).raise();
        }
        // SAFETY: the slot is as wide as the table, and attributes are numbered from 1 up to that.
        unsafe {
            let relation = self.table.relation;
            let slot = pg_sys::MakeSingleTupleTableSlot((*relation).rd_att, &pg_sys::TTSOpsVirtual);
            let fill = |attribute: i16, value: Arg| {
                let i = attribute as usize - 1;
                *(*slot).tts_values.add(i) = value.unwrap_or(pg_sys::Datum::null());
                *(*slot).tts_isnull.add(i) = value.is_none();
            };
            for (attribute, value) in attributes.iter().zip(values) {
                fill(*attribute, *value);
            }
            let described = relation::described(relation);
            if described.len() > attributes.len() {
                let added =
                    |other: &&pg_sys::FormData_pg_attribute| !attributes.contains(&other.attnum);
                for attribute in described.iter().filter(added) {
                    fill(attribute.attnum, self.default(attribute));
                }
            }
            pg_sys::ExecStoreVirtualTuple(slot)
        }
    }

    /// What a column gets that no value is given for.
    ///
    /// # Safety
    /// In the state's memory context.
    unsafe fn default(&self, attribute: &pg_sys::FormData_pg_attribute) -> Arg {
        if attribute.attisdropped || attribute.attgenerated != 0 {
            return None;
        }
        // SAFETY: an expression that fits the column, evaluated as the executor evaluates one. The
        // function is called behind a guard, as pgrx calls PostgreSQL's own: an ERROR in it unwinds.
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
        // SAFETY: as in `insert`. The function that pgrx does not know is called behind a guard.
        unsafe {
            if let Some(constraints) = (*(*relation).rd_att).constr.as_ref() {
                if constraints.has_generated_stored {
                    let command = pg_sys::CmdType::CMD_INSERT;
                    pg_sys::ffi::pg_guard_ffi_boundary(|| {
                        ExecComputeStoredGenerated(target, state, slot, command)
                    });
                }
                pg_sys::ExecConstraints(target, slot, state);
            }
            if (*(*relation).rd_rel).relispartition {
                pg_sys::ExecPartitionCheck(target, slot, state, true);
            }
        }
    }

    /// Insert the keys of a row into the indexes. `is_taken`: the arbiter has its key. Gives back the
    /// deferred constraints that are to be looked at again.
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
        // SAFETY: the indexes are open. Keys are looked at without waiting where there is an arbiter,
        // since of two who come at once both have told by then that they are there.
        unsafe {
            if (*target).ri_NumIndices == 0 {
                return ptr::null_mut();
            }
            let tries = arbiter != pg_sys::InvalidOid;
            let mut arbiters = ptr::null_mut();
            if tries {
                arbiters = pg_sys::list_append_unique_oid(arbiters, arbiter);
            }
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

    fn refuse_suppression(&self) -> ! {
        Error::suppressed(&relation::full_name(self.name)).raise()
    }
}

/// The range table of a statement on one relation.
///
/// # Safety
/// In the state's memory context; the relation is open.
unsafe fn init_range_table(state: *mut pg_sys::EState, relation: pg_sys::Relation) {
    // SAFETY: a node is zeroed memory with its tag.
    unsafe {
        let entry: *mut pg_sys::RangeTblEntry =
            pg_sys::palloc0(size_of::<pg_sys::RangeTblEntry>()).cast();
        (*entry).type_ = pg_sys::NodeTag::T_RangeTblEntry;
        (*entry).rtekind = pg_sys::RTEKind::RTE_RELATION;
        (*entry).relid = (*relation).rd_id;
        (*entry).relkind = (*(*relation).rd_rel).relkind;
        (*entry).rellockmode = WRITE;
        let entries = pg_sys::lappend(ptr::null_mut(), entry.cast());
        #[cfg(feature = "pg15")]
        pg_sys::ExecInitRangeTable(state, entries);
        #[cfg(not(feature = "pg15"))]
        {
            let mut permissions = ptr::null_mut();
            pg_sys::addRTEPermissionInfo(&mut permissions, entry);
            #[cfg(not(feature = "pg18"))]
            pg_sys::ExecInitRangeTable(state, entries, permissions);
            #[cfg(feature = "pg18")]
            pg_sys::ExecInitRangeTable(state, entries, permissions, pg_sys::bms_make_singleton(1));
        }
    }
}

/// Fire the BEFORE ROW triggers of a DELETE: false where one of them suppresses it.
///
/// # Safety
/// All belong together.
unsafe fn before_delete(
    state: *mut pg_sys::EState,
    target: *mut pg_sys::ResultRelInfo,
    place: pg_sys::ItemPointer,
) -> bool {
    let (none, no_slot) = (ptr::null_mut(), ptr::null_mut());
    let mut recheck = pg_sys::EPQState::default();
    // SAFETY: no other transaction sees the row, so there is nothing to be looked at again.
    unsafe {
        #[cfg(feature = "pg15")]
        {
            pg_sys::EvalPlanQualInit(&mut recheck, state, ptr::null_mut(), ptr::null_mut(), -1);
            pg_sys::ExecBRDeleteTriggers(state, &mut recheck, target, place, none, no_slot)
        }
        #[cfg(not(feature = "pg15"))]
        {
            let (plan, marks, results) = (ptr::null_mut(), ptr::null_mut(), ptr::null_mut());
            pg_sys::EvalPlanQualInit(&mut recheck, state, plan, marks, -1, results);
            let (result, failure) = (ptr::null_mut(), ptr::null_mut());
            #[cfg(not(feature = "pg18"))]
            return pg_sys::ExecBRDeleteTriggers(
                state,
                &mut recheck,
                target,
                place,
                none,
                no_slot,
                result,
                failure,
            );
            #[cfg(feature = "pg18")]
            return pg_sys::ExecBRDeleteTriggers(
                state,
                &mut recheck,
                target,
                place,
                none,
                no_slot,
                result,
                failure,
                false,
            );
        }
    }
}

/// NULL as a value of a domain, which may have something against it; NULL for any other type.
///
/// # Safety
/// The attribute is one of a table.
unsafe fn null_of_domain(attribute: &pg_sys::FormData_pg_attribute) -> *mut pg_sys::Node {
    let of_type = attribute.atttypid;
    // SAFETY: look-ups in the catalogue caches, and new nodes.
    unsafe {
        if pg_sys::get_typtype(of_type) as u8 != pg_sys::TYPTYPE_DOMAIN {
            return ptr::null_mut();
        }
        let null = pg_sys::makeConst(
            of_type,
            -1,
            attribute.attcollation,
            attribute.attlen.into(),
            pg_sys::Datum::null(),
            true,
            attribute.attbyval,
        );
        pg_sys::coerce_to_domain(
            null.cast(),
            pg_sys::InvalidOid,
            -1,
            of_type,
            pg_sys::CoercionContext::COERCION_IMPLICIT,
            pg_sys::CoercionForm::COERCE_IMPLICIT_CAST,
            -1,
            false,
        )
    }
}
