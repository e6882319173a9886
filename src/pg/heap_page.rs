//! The pages of a table, read without the executor, and which of their rows a snapshot shows.

use std::cell::UnsafeCell;

use pgrx::pg_sys;

use super::relation::Opened;
use super::scan::Tuple;
use super::snapshot::ActiveSnapshot;
use super::table::Table;

/// The tablespace and the number of a table's file.
pub type FileName = (u32, u32);

/// A row on a page: its offset, and the transaction that wrote it. Where a row was removed and
/// another one took its place, the transaction is another one.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct RowVersion {
    pub offset: u16,
    writer: u32,
}

/// What a look at a page has found.
pub struct PageSeen {
    /// Where the log record of the page's last change ends.
    pub stamp: pg_sys::XLogRecPtr,
    /// The rows are as visible to each later snapshot, as long as the page does not change.
    pub is_final: bool,
    /// The rows that are visible, in the order of their offsets.
    pub visible: Vec<RowVersion>,
}

/// # Safety
/// The table is open.
pub unsafe fn count_pages(table: &Opened) -> u32 {
    // SAFETY: as above.
    unsafe {
        let fork = pg_sys::ForkNumber::MAIN_FORKNUM;
        pg_sys::RelationGetNumberOfBlocksInFork(table.relation, fork)
    }
}

/// # Safety
/// The table is open.
pub unsafe fn file_of(table: &Opened) -> FileName {
    // SAFETY: as above.
    unsafe {
        #[cfg(feature = "pg15")]
        let (node, number) = {
            let node = (*table.relation).rd_node;
            (node.spcNode, node.relNode.to_u32())
        };
        #[cfg(not(feature = "pg15"))]
        let (node, number) = {
            let locator = (*table.relation).rd_locator;
            (locator.spcOid, locator.relNumber.to_u32())
        };
        (node.to_u32(), number)
    }
}

/// A table whose pages are read.
pub struct HeapPages {
    opened: Opened,
    /// The row that is shown to the visitor. Its slot refers to `place`.
    shown: Tuple,
    place: Box<UnsafeCell<pg_sys::HeapTupleData>>,
    strategy: pg_sys::BufferAccessStrategy,
}

impl HeapPages {
    /// # Safety
    /// In a transaction.
    pub unsafe fn begin(table: &'static Table, opened: Opened) -> Self {
        // SAFETY: the table is open. Like a sequential scan, a reading of a table that would fill a
        // large part of the server's buffers uses a few of them again and again.
        unsafe {
            let slot = pg_sys::table_slot_create(opened.relation, std::ptr::null_mut());
            let relation = opened.relation;
            let shown = Tuple { slot, relation, table, attributes: opened.attributes.clone() };
            let is_long = i64::from(count_pages(&opened)) > i64::from(pg_sys::NBuffers) / 4;
            let strategy = match is_long {
                true => pg_sys::GetAccessStrategy(pg_sys::BufferAccessStrategyType::BAS_BULKREAD),
                false => std::ptr::null_mut(),
            };
            Self { opened, shown, place: Box::default(), strategy }
        }
    }

    /// # Safety
    /// Once, at the end.
    pub unsafe fn end(self) {
        // SAFETY: the counterpart of `begin`.
        unsafe {
            pg_sys::ExecDropSingleTupleTableSlot(self.shown.slot);
            if !self.strategy.is_null() {
                pg_sys::FreeAccessStrategy(self.strategy);
            }
            self.opened.close();
        }
    }

    /// # Safety
    /// The table has such a page.
    pub unsafe fn pin(&self, number: u32) -> pg_sys::Buffer {
        // SAFETY: as above.
        unsafe {
            pg_sys::ReadBufferExtended(
                self.opened.relation,
                pg_sys::ForkNumber::MAIN_FORKNUM,
                number,
                pg_sys::ReadBufferMode::RBM_NORMAL,
                self.strategy,
            )
        }
    }

    /// How many pages there are.
    ///
    /// # Safety
    /// The table is open.
    pub unsafe fn count(&self) -> u32 {
        // SAFETY: as above.
        unsafe { count_pages(&self.opened) }
    }

    /// Look at the rows of a page.
    ///
    /// # Safety
    /// The page is pinned.
    pub unsafe fn look(
        &self,
        number: u32,
        buffer: pg_sys::Buffer,
        _under: &ActiveSnapshot,
    ) -> PageSeen {
        let mut seen = PageSeen { stamp: 0, is_final: true, visible: Vec::new() };
        // SAFETY: an `ActiveSnapshot` proves that there is an active snapshot. The page is locked
        // while its rows are looked at, and nothing in between raises an ERROR that is caught. A
        // page that was never written has no offsets.
        unsafe {
            let snapshot = pg_sys::GetActiveSnapshot();
            pg_sys::LockBuffer(buffer, pg_sys::BUFFER_LOCK_SHARE as i32);
            seen.stamp = pg_sys::BufferGetLSNAtomic(buffer);
            let page = pg_sys::BufferGetPage(buffer);
            for offset in 1..=pg_sys::PageGetMaxOffsetNumber(page) {
                let Some(mut tuple) = self.tuple_at(page, number, offset) else { continue };
                let is_visible = is_plainly_visible(&*tuple.t_data, snapshot)
                    || pg_sys::HeapTupleSatisfiesVisibility(&mut tuple, snapshot, buffer);
                seen.is_final = seen.is_final && is_decided(&*tuple.t_data, snapshot);
                if is_visible {
                    let writer = (*tuple.t_data).t_choice.t_heap.t_xmin.into_inner();
                    seen.visible.push(RowVersion { offset, writer });
                }
            }
            pg_sys::LockBuffer(buffer, pg_sys::BUFFER_LOCK_UNLOCK as i32);
        }
        seen
    }

    /// The row at an offset; None if there is none.
    ///
    /// # Safety
    /// The page is pinned and locked, or the row is known to stay.
    unsafe fn tuple_at(
        &self,
        page: pg_sys::Page,
        number: u32,
        offset: u16,
    ) -> Option<pg_sys::HeapTupleData> {
        // SAFETY: the page has this offset; an item that is in use points to a row on the page.
        unsafe {
            let item = pg_sys::PageGetItemId(page, offset);
            if (*item).lp_flags() != pg_sys::LP_NORMAL {
                return None;
            }
            let mut place = pg_sys::ItemPointerData::default();
            pgrx::itemptr::item_pointer_set_all(&mut place, number, offset);
            Some(pg_sys::HeapTupleData {
                t_len: (*item).lp_len(),
                t_self: place,
                t_tableOid: (*self.opened.relation).rd_id,
                t_data: pg_sys::PageGetItem(page, item).cast(),
            })
        }
    }

    /// # Safety
    /// The page is pinned, and an active snapshot shows the row.
    pub unsafe fn show(&self, number: u32, offset: u16, buffer: pg_sys::Buffer) -> &Tuple {
        // SAFETY: as above. The slot keeps the pointer, and pins the page until the next row.
        unsafe {
            let page = pg_sys::BufferGetPage(buffer);
            match self.tuple_at(page, number, offset) {
                Some(tuple) => {
                    *self.place.get() = tuple;
                    pg_sys::ExecStoreBufferHeapTuple(self.place.get(), self.shown.slot, buffer);
                }
                None => {
                    pg_sys::ExecStoreAllNullTuple(self.shown.slot);
                }
            }
        }
        &self.shown
    }
}

/// Whether the snapshot shows the row, as far as a look at both tells: most rows are known to be of
/// a transaction that was committed before all that ran, and not to be deleted.
///
/// # Safety
/// The row lies on a locked page, and the snapshot is valid.
unsafe fn is_plainly_visible(
    row: &pg_sys::HeapTupleHeaderData,
    snapshot: pg_sys::Snapshot,
) -> bool {
    let bits = pg_sys::HEAP_XMIN_COMMITTED | pg_sys::HEAP_XMAX_INVALID;
    // SAFETY: reads the header and the snapshot.
    unsafe {
        u32::from(row.t_infomask) & (bits | pg_sys::HEAP_XMIN_INVALID) == bits
            && is_before_all(row.t_choice.t_heap.t_xmin, snapshot)
    }
}

/// Whether the transaction had ended before all that the snapshot does not show.
///
/// # Safety
/// The snapshot is valid.
unsafe fn is_before_all(xid: pg_sys::TransactionId, snapshot: pg_sys::Snapshot) -> bool {
    // SAFETY: as above.
    let first = unsafe { (*snapshot).xmin }.into_inner();
    // Transaction ids go round in a circle: of any two, one is less than half of it behind.
    (xid.into_inner().wrapping_sub(first) as i32) < 0
}

/// # Safety
/// The snapshot is valid.
unsafe fn is_shown(xid: pg_sys::TransactionId, snapshot: pg_sys::Snapshot) -> bool {
    // SAFETY: as above.
    unsafe { is_before_all(xid, snapshot) || !pg_sys::XidInMVCCSnapshot(xid, snapshot) }
}

/// Whether the transactions that wrote and deleted the row had ended before the snapshot: then the
/// row is as visible to every later one. Asked after the row's visibility.
///
/// # Safety
/// The row lies on a locked page.
unsafe fn is_decided(row: &pg_sys::HeapTupleHeaderData, snapshot: pg_sys::Snapshot) -> bool {
    let has = |bits: u32| u32::from(row.t_infomask) & bits == bits;
    // SAFETY: reads the header and the snapshot.
    unsafe {
        let fields = row.t_choice.t_heap;
        let is_frozen = has(pg_sys::HEAP_XMIN_FROZEN);
        if !is_frozen && !is_shown(fields.t_xmin, snapshot) {
            return false;
        }
        // Rolled back, not deleted, or only locked.
        let is_void = !is_frozen && has(pg_sys::HEAP_XMIN_INVALID);
        if is_void || has(pg_sys::HEAP_XMAX_INVALID) || has(pg_sys::HEAP_XMAX_LOCK_ONLY) {
            return true;
        }
        !has(pg_sys::HEAP_XMAX_IS_MULTI) && is_shown(fields.t_xmax, snapshot)
    }
}
