//! Inserting rows without the executor.

use std::ptr;

use pgrx::pg_sys;

use super::catalogue;
use super::columns::Arg;
use super::plain_insert::PlainInsert;
use super::relation::Opened;
use super::table::{Column, Index, RowLocation, Table};
use super::write::{self, Writing};

impl Table {
    /// Insert one row, with a value for each column. A duplicate of a unique key is an ERROR.
    pub fn insert(&'static self, values: &[(Column, Arg)]) {
        let inserting = self.inserting();
        inserting.row(values);
        inserting.end();
    }

    /// Begin to insert rows as one statement, whose table and indexes are opened once.
    pub fn inserting(&'static self) -> Inserting {
        // SAFETY: in a transaction, with an active snapshot, as every call of ours.
        unsafe { Inserting::begin(self) }
    }

    /// Insert one row, unless its key is taken by a row that is there, or whose transaction has not
    /// ended. Never waits (except for a unique index that is not ours). As for ON CONFLICT DO
    /// NOTHING, BEFORE ROW triggers then have run, AFTER ROW triggers have not.
    pub fn try_insert(&'static self, key: &Index, values: &[(Column, Arg)]) -> Option<RowLocation> {
        let inserting = self.inserting();
        let arbiter = catalogue::oid_of(key.name);
        // SAFETY: the statement has been begun.
        let place = unsafe { inserting.insert(values, Some(arbiter)) };
        inserting.end();
        place
    }
}

/// A statement that inserts rows whose key is not taken. The caller ends it, unless an ERROR has.
pub struct InsertingIfNew {
    plain: PlainInsert,
    arbiter: pg_sys::Oid,
}

impl InsertingIfNew {
    /// None where code of the table's owner runs when rows are written.
    pub fn begin(code: &'static Table, key: &Index) -> Option<Self> {
        // SAFETY: in a transaction, with an active snapshot, as every call of ours.
        unsafe {
            let table = write::open(code, c"INSERT");
            let Some(indexes) = table.plain.clone() else {
                table.close();
                return None;
            };
            let arbiter = catalogue::oid_of(key.name);
            let plain = PlainInsert::begin(code, table, &indexes);
            if plain.has_index(arbiter) {
                return Some(Self { plain, arbiter });
            }
            plain.end();
            None
        }
    }

    /// Insert a row. False where its key is taken, by a row that is there, or by one whose
    /// transaction has not ended. Never waits.
    pub fn row(&self, values: &[(Column, Arg)]) -> bool {
        // SAFETY: the statement has been begun, and not ended.
        unsafe { self.plain.insert_if_new(values, self.arbiter) }
    }

    pub fn end(self) {
        // SAFETY: it has been begun, and is ended once.
        unsafe { self.plain.end() };
    }
}

/// A statement that inserts rows. The caller ends it, unless an ERROR has.
pub enum Inserting {
    /// No code of the table's owner runs.
    Plain(PlainInsert),
    Full(FullInsert),
}

impl Inserting {
    /// # Safety
    /// In a transaction, with an active snapshot.
    unsafe fn begin(code: &'static Table) -> Self {
        // SAFETY: as above.
        unsafe {
            let table = write::open(code, c"INSERT");
            match table.plain.clone() {
                Some(plain) => Self::Plain(PlainInsert::begin(code, table, &plain)),
                None => Self::Full(FullInsert::begin(code, table)),
            }
        }
    }

    /// Insert a row, with a value for each column. A duplicate of a unique key is an ERROR.
    pub fn row(&self, values: &[(Column, Arg)]) {
        // SAFETY: the statement has been begun, and not ended.
        unsafe { self.insert(values, None) };
    }

    /// Insert a row. With an `arbiter`, a unique index: None where its key is taken.
    ///
    /// # Safety
    /// The statement has been begun, and not ended.
    unsafe fn insert(
        &self,
        values: &[(Column, Arg)],
        arbiter: Option<pg_sys::Oid>,
    ) -> Option<RowLocation> {
        // SAFETY: as above.
        unsafe {
            match self {
                Self::Plain(plain) => plain.insert(values, arbiter),
                Self::Full(full) => full.insert(values, arbiter.unwrap_or(pg_sys::InvalidOid)),
            }
        }
    }

    /// End the statement.
    pub fn end(self) {
        // SAFETY: it has been begun, and is ended once.
        unsafe {
            match self {
                Self::Plain(plain) => plain.end(),
                Self::Full(full) => full.end(),
            }
        }
    }
}

/// As the executor inserts, with triggers, constraints and defaults.
pub struct FullInsert {
    writing: Writing,
    /// Holds one row after the other.
    slot: *mut pg_sys::TupleTableSlot,
}

impl FullInsert {
    /// # Safety
    /// In a transaction, with an active snapshot; the table is open for writing.
    unsafe fn begin(code: &'static Table, table: Opened) -> Self {
        // SAFETY: as above; the slot is as wide as the table, and lives as long as the statement.
        unsafe {
            let writing = Writing::begin_on(code, table, pg_sys::CmdType::CMD_INSERT);
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

    /// # Safety
    /// Once, after everything else.
    unsafe fn end(self) {
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
    /// The statement has not been ended.
    unsafe fn insert(&self, values: &[(Column, Arg)], arbiter: pg_sys::Oid) -> Option<RowLocation> {
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

impl Writing {
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
}
