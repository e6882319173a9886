//! The last row of each value of an indexed column, in one scan that leaps over the others.

use std::ptr;

use pgrx::pg_sys;

use super::allocator;
use super::columns::Columns;
use super::key::{Key, Value};
use super::relation::{self, READ};
use super::scan::{Tuple, begin};
use super::snapshot::ActiveSnapshot;
use super::table::{Column, Index};

impl Index {
    /// Visit the last visible row of each text in `column`, which is the second of the index and
    /// has no empty text, among the rows whose first column is `first`; texts descending.
    ///
    /// The scan goes backward. Where the next row has the same text, the scan begins anew before
    /// that text: two steps for each text, however many rows have it.
    pub fn last_of_each(
        &self,
        first: Value<'_>,
        column: Column,
        _under: &ActiveSnapshot,
        mut visit: impl FnMut(&str, &Tuple),
    ) {
        let lead = Key::Is(first).on(1);
        // SAFETY: an `ActiveSnapshot` proves that there is an active snapshot. Relations, scan and
        // slot are opened and closed in pairs; on an ERROR the transaction's resource owner closes
        // them. The text of a key lives as long as the scan uses it.
        unsafe {
            let table = relation::open(self.table, READ);
            let index = relation::open_index(self, &table);
            let slot = pg_sys::table_slot_create(table.relation, ptr::null_mut());
            let snapshot = pg_sys::GetActiveSnapshot();
            let scan = begin(table.relation, index.relation, snapshot, 2);
            let relation = table.relation;
            let tuple =
                Tuple { slot, relation, table: self.table, attributes: table.attributes.clone() };
            let backward = pg_sys::ScanDirection::BackwardScanDirection;
            let mut is_at_start = true;
            let mut text: Option<String> = None;
            loop {
                if is_at_start {
                    let below = text.as_deref().map(|text| Key::Below(Value::Text(text)));
                    let mut keys = [lead, below.unwrap_or(Key::Above(Value::Text(""))).on(2)];
                    pg_sys::index_rescan(scan, keys.as_mut_ptr(), 2, ptr::null_mut(), 0);
                }
                if !pg_sys::index_getnext_slot(scan, backward, slot) {
                    break;
                }
                let found: String = tuple.need(column);
                is_at_start = text.as_ref() == Some(&found);
                if !is_at_start {
                    visit(&found, &tuple);
                    text = Some(found);
                }
                pgrx::check_for_interrupts!();
                allocator::check();
            }
            pg_sys::index_endscan(scan);
            pg_sys::ExecDropSingleTupleTableSlot(slot);
            index.close();
            table.close();
        }
    }
}
