//! Inserting rows into a table without triggers and the like: what the executor does for such a
//! table, without its state. Most tables of the extension are so, and each pop, ack and push
//! inserts rows into one or two.

use pgrx::pg_sys;

use super::changes;
use super::columns::Arg;
use super::kept_open::{InUse, RelationKey};
use super::plain_index::{PlainIndex, no_details};
use super::relation::{Opened, WRITE};
use super::table::{Column, RowLocation, Table};
use super::write;

/// A statement that inserts rows. The caller ends it, unless an ERROR has: then the transaction's
/// resource owner closes what is open.
pub struct PlainInsert {
    code: &'static Table,
    table: Opened,
    /// In the order of the table's plain indexes.
    indexes: Vec<InUse>,
    details: *mut pg_sys::IndexInfo,
    slot: *mut pg_sys::TupleTableSlot,
}

/// The most columns that a key of an index has.
const MOST_KEYS: usize = pg_sys::INDEX_MAX_KEYS as usize;

impl PlainInsert {
    /// # Safety
    /// In a transaction; the table is open for writing and plain. The memory context is the one in
    /// which rows will be inserted, or one above it.
    pub unsafe fn begin(code: &'static Table, table: Opened, plain: &[PlainIndex]) -> Self {
        // SAFETY: the indexes stay while the table is locked. The slot is as wide as the table.
        unsafe {
            let indexes = plain.iter().map(|index| open(index.oid)).collect();
            let described = (*table.relation).rd_att;
            let slot = pg_sys::MakeSingleTupleTableSlot(described, &pg_sys::TTSOpsVirtual);
            Self { code, table, indexes, details: no_details(), slot }
        }
    }

    /// Insert a row. With an `arbiter`, a unique index: None where its key is taken, by a row that
    /// is there, or by one whose transaction has not ended.
    ///
    /// # Safety
    /// The statement has not been ended, and an active snapshot is there.
    pub unsafe fn insert(
        &self,
        values: &[(Column, Arg)],
        arbiter: Option<pg_sys::Oid>,
    ) -> Option<RowLocation> {
        let (relation, slot) = (self.table.relation, self.slot);
        // SAFETY: the steps of the executor, in its order.
        unsafe {
            self.fill(values);
            pg_sys::simple_table_tuple_insert(relation, slot);
            if self.insert_keys(arbiter) {
                return Some(RowLocation((*slot).tts_tid));
            }
            pg_sys::CommandCounterIncrement();
            let mut place = (*slot).tts_tid;
            pg_sys::simple_table_tuple_delete(relation, &mut place, pg_sys::GetActiveSnapshot());
            None
        }
    }

    /// Insert a row, unless its key is taken in the `arbiter`: false where it is, by a row that is
    /// there, or by one whose transaction has not ended. A row that gives way is gone for other
    /// transactions at once: none waits for it, unlike for one that was inserted and deleted.
    ///
    /// # Safety
    /// The statement has not been ended.
    pub unsafe fn insert_if_new(&self, values: &[(Column, Arg)], arbiter: pg_sys::Oid) -> bool {
        let (relation, slot) = (self.table.relation, self.slot);
        // SAFETY: the steps of the executor for ON CONFLICT, in its order.
        unsafe {
            self.fill(values);
            let (xid, command) =
                (pg_sys::GetCurrentTransactionId(), pg_sys::GetCurrentCommandId(true));
            let token = pg_sys::SpeculativeInsertionLockAcquire(xid);
            let no_state = std::ptr::null_mut();
            pg_sys::table_tuple_insert_speculative(relation, slot, command, 0, no_state, token);
            let is_new = self.insert_keys(Some(arbiter));
            pg_sys::table_tuple_complete_speculative(relation, slot, token, is_new);
            pg_sys::SpeculativeInsertionLockRelease(xid);
            is_new
        }
    }

    /// Whether this is one of the indexes that rows are put into.
    pub fn has_index(&self, index: pg_sys::Oid) -> bool {
        self.plain().iter().any(|plain| plain.oid == index)
    }

    fn plain(&self) -> &[PlainIndex] {
        self.table.plain.as_deref().unwrap_or_default()
    }

    /// # Safety
    /// The statement has not been ended.
    unsafe fn fill(&self, values: &[(Column, Arg)]) {
        // SAFETY: the slot is one of the table's.
        unsafe {
            pg_sys::ExecClearTuple(self.slot);
            write::fill_known(self.code, &self.table, self.slot, values);
            pg_sys::ExecStoreVirtualTuple(self.slot);
            write::need_values(self.code.name, &self.table, self.slot);
        }
    }

    /// Put the keys of the row into the indexes. False if the arbiter has its key already.
    ///
    /// # Safety
    /// The row has been inserted.
    unsafe fn insert_keys(&self, arbiter: Option<pg_sys::Oid>) -> bool {
        let plain = self.plain();
        let arbiter = arbiter.and_then(|arbiter| plain.iter().find(|index| index.oid == arbiter));
        let mut values = [pg_sys::Datum::null(); MOST_KEYS];
        let mut nulls = [false; MOST_KEYS];
        // SAFETY: the slot has a value and a flag for each column of the table. An index has no
        // more columns than the lists.
        unsafe {
            let slot = &*self.slot;
            let is_null = |attribute: i16| *slot.tts_isnull.add(attribute as usize - 1);
            for (index, open) in plain.iter().zip(&self.indexes) {
                if !index.takes(is_null) {
                    continue;
                }
                for (at, attribute) in index.attributes.iter().enumerate() {
                    values[at] = *slot.tts_values.add(*attribute as usize - 1);
                    nulls[at] = is_null(*attribute);
                }
                let may_be_taken = arbiter.is_some_and(|arbiter| arbiter.is_like(index));
                let check = match (index.is_unique, may_be_taken) {
                    (false, _) => pg_sys::IndexUniqueCheck::UNIQUE_CHECK_NO,
                    (true, false) => pg_sys::IndexUniqueCheck::UNIQUE_CHECK_YES,
                    // Without waiting: of two transactions that insert a key at once, each has
                    // announced its row by then.
                    (true, true) => pg_sys::IndexUniqueCheck::UNIQUE_CHECK_PARTIAL,
                };
                let mut place = slot.tts_tid;
                let is_new = pg_sys::index_insert(
                    open.relation,
                    values.as_mut_ptr(),
                    nulls.as_mut_ptr(),
                    &mut place,
                    self.table.relation,
                    check,
                    false,
                    self.details,
                );
                if may_be_taken && !is_new {
                    return false;
                }
            }
        }
        true
    }

    /// # Safety
    /// Once, after everything else.
    pub unsafe fn end(self) {
        // SAFETY: the counterpart of `begin`. The locks are kept to the end of the transaction.
        unsafe {
            self.indexes.into_iter().for_each(InUse::close);
            pg_sys::ExecDropSingleTupleTableSlot(self.slot);
            pg_sys::pfree(self.details.cast());
            self.table.close();
        }
    }
}

/// Open an index of an open table for writing.
fn open(index: pg_sys::Oid) -> InUse {
    let (key, changes) = (RelationKey::Oid(index, WRITE), changes::count());
    // SAFETY: the index stays while its table is locked.
    let open = || InUse::opened(key, changes, unsafe { pg_sys::index_open(index, WRITE) });
    InUse::kept(key, changes).unwrap_or_else(open)
}
