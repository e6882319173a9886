//! Look-ups by an index and row locks without the executor. Inserts are in [`super::insert`].
//!
//! A pop and an ack are about ten look-ups by a key and a few inserts. Run as SQL, each of them
//! costs several times what the look-up itself costs, for the executor is set up and taken down
//! around it. So the hot path goes straight to the table: the same snapshots, locks and checks,
//! through the functions the executor and logical replication use themselves. Everything that is
//! not called for every message is SQL (see [`super::spi`]).
//!
//! Relations are opened once for each call (see [`super::kept_open`]), and their locks kept to the
//! end of the transaction, as by a statement. What a session has found out about them is valid
//! until it hears of a change, by `DROP EXTENSION` or `REINDEX CONCURRENTLY` for instance (see
//! [`super::relation`]).

use std::ops::ControlFlow;
use std::ptr;

use pgrx::{FromDatum, pg_sys};

use super::allocator;
use super::clock::{At, Moment};
use super::columns::{Arg, Columns};
use super::key::{Key, Value};
use super::relation::{self, Attributes, READ};
use super::snapshot::ActiveSnapshot;
use super::table::{Column, Index, RowLocation, Table};
use crate::error::Error;

/// Where a scan begins.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum ScanEnd {
    Start,
    End,
}

/// What other transactions, which have not ended, have done to a row.
#[derive(Clone, Copy, Debug)]
pub struct Unended {
    pub written: bool,
    pub replaced: bool,
}

/// A row under a scan, lent while the scan stands there.
pub struct Tuple {
    pub(super) slot: *mut pg_sys::TupleTableSlot,
    pub(super) relation: pg_sys::Relation,
    pub(super) table: &'static Table,
    /// Where the columns lie.
    pub(super) attributes: Attributes,
}

impl Columns<Column> for Tuple {
    fn datum(&self, column: Column) -> Arg {
        debug_assert!(self.table.has(column), "{:?} has no column {column:?}", self.table.name);
        let Some(attribute) = self.attributes.get(column.place()) else {
            Error::corrupt(format!("{:?} has no column {column:?}", self.table.name)).raise()
        };
        let attribute = *attribute as usize;
        // SAFETY: the slot holds a row until the scan moves on, which outlives this borrow. The
        // table has the attribute. After slot_getsomeattrs the values up to it are filled in.
        unsafe {
            let slot = &*self.slot;
            if usize::from(slot.tts_nvalid as u16) < attribute {
                pg_sys::slot_getsomeattrs_int(self.slot, attribute as i32);
            }
            let slot = &*self.slot;
            let is_null = *slot.tts_isnull.add(attribute - 1);
            (!is_null).then(|| *slot.tts_values.add(attribute - 1))
        }
    }
}

impl Tuple {
    pub fn place(&self) -> RowLocation {
        // SAFETY: the slot holds a row.
        RowLocation(unsafe { (*self.slot).tts_tid })
    }

    /// Whether the current transaction has written the row.
    pub fn is_own(&self) -> bool {
        // SAFETY: reads the backend's memory.
        unsafe { self.writer().is_none_or(|xid| pg_sys::TransactionIdIsCurrentTransactionId(xid)) }
    }

    /// Where the row lies, and which transaction wrote it: another version of the row differs in
    /// one of them.
    pub fn version(&self) -> (u64, u32) {
        (self.place().number(), self.writer().map_or(0, |xid| xid.into_inner()))
    }

    fn writer(&self) -> Option<pg_sys::TransactionId> {
        let mut is_null = false;
        // SAFETY: the slot holds a row of a table, which has this column. The slot's function is
        // called behind a guard, as pgrx calls PostgreSQL's own: an ERROR in it unwinds.
        unsafe {
            let read = (*(*self.slot).tts_ops).getsysattr?;
            let writer = pg_sys::ffi::pg_guard_ffi_boundary(|| {
                read(self.slot, pg_sys::MinTransactionIdAttributeNumber, &mut is_null)
            });
            Some(pg_sys::TransactionId::from(writer.value() as u32))
        }
    }

    /// Whether the snapshot shows the row, for a scan that visits others as well. False, too, where
    /// it shows a later version of the row that was updated in place.
    pub fn is_visible(&self, _under: &ActiveSnapshot) -> bool {
        // SAFETY: the slot holds a row of this table, which is open. An `ActiveSnapshot` proves
        // that there is an active snapshot. The function is called behind a guard, as above.
        unsafe {
            let snapshot = pg_sys::GetActiveSnapshot();
            let Some(access) = (*self.relation).rd_tableam.as_ref() else { return false };
            let Some(shows) = access.tuple_satisfies_snapshot else { return false };
            pg_sys::ffi::pg_guard_ffi_boundary(|| shows(self.relation, self.slot, snapshot))
        }
    }

    /// Bytes that a varlena column takes where it is stored.
    pub fn stored_size(&self, column: Column) -> u64 {
        // SAFETY: the column is a varlena.
        self.datum(column).map_or(0, |datum| unsafe { pg_sys::toast_datum_size(datum) }) as u64
    }
}

/// A copy of a varlena, as it lies in a table (which may be a toast pointer), in the current memory
/// context.
fn copied(datum: pg_sys::Datum) -> pg_sys::Datum {
    // SAFETY: a varlena is as long as its header says, and the copy has that much room.
    unsafe {
        let size = pgrx::varsize_any(datum.cast_mut_ptr());
        let copy: *mut u8 = pg_sys::palloc(size).cast();
        ptr::copy_nonoverlapping(datum.cast_mut_ptr::<u8>(), copy, size);
        copy.into()
    }
}

impl Index {
    /// Visit the rows that meet `keys`, with columns of the index, from one end, until `visit`
    /// breaks off.
    pub fn scan<B>(
        &self,
        keys: &[(Column, Key<'_>)],
        from: ScanEnd,
        _under: &ActiveSnapshot,
        visit: impl FnMut(&Tuple) -> ControlFlow<B>,
    ) -> Option<B> {
        // SAFETY: an `ActiveSnapshot` proves that there is an active snapshot.
        unsafe { self.scan_as(pg_sys::GetActiveSnapshot(), keys, from, visit) }
    }

    /// Whether a transaction that has not ended has written, or is replacing or deleting, a row
    /// with these leading columns: an insert of the same key would wait for it.
    pub fn is_busy(&self, prefix: &[Value<'_>]) -> bool {
        let keys = self.leading(prefix.iter().map(|value| Key::Is(*value)));
        let visit = |_: &Tuple, by: Unended| match by.written || by.replaced {
            true => ControlFlow::Break(()),
            false => ControlFlow::Continue(()),
        };
        self.scan_dirty(&keys, ScanEnd::Start, visit).is_some()
    }

    /// Visit the rows that meet `keys`, in order, also those of transactions that have not ended.
    pub fn scan_dirty<B>(
        &self,
        keys: &[(Column, Key<'_>)],
        from: ScanEnd,
        mut visit: impl FnMut(&Tuple, Unended) -> ControlFlow<B>,
    ) -> Option<B> {
        let mut dirty = pg_sys::SnapshotData {
            snapshot_type: pg_sys::SnapshotType::SNAPSHOT_DIRTY,
            ..Default::default()
        };
        let dirty: *mut pg_sys::SnapshotData = &mut dirty;
        // SAFETY: the snapshot outlives the scan, which leaves in it who is at the row.
        unsafe {
            let is_at_it = |xid: pg_sys::TransactionId| xid != pg_sys::InvalidTransactionId;
            self.scan_as(dirty, keys, from, |tuple| {
                let (xmin, xmax) = ((*dirty).xmin, (*dirty).xmax);
                visit(tuple, Unended { written: is_at_it(xmin), replaced: is_at_it(xmax) })
            })
        }
    }

    /// Visit whatever the index has, in order: also rows that no snapshot sees any more. For a name
    /// alone, whose row the caller looks up by a snapshot after this.
    pub fn scan_any<B>(
        &self,
        keys: &[(Column, Key<'_>)],
        from: ScanEnd,
        visit: impl FnMut(&Tuple) -> ControlFlow<B>,
    ) -> Option<B> {
        let mut any = pg_sys::SnapshotData {
            snapshot_type: pg_sys::SnapshotType::SNAPSHOT_ANY,
            ..Default::default()
        };
        // SAFETY: the snapshot outlives the scan, and is of a kind that needs no registration.
        unsafe { self.scan_as(&mut any, keys, from, visit) }
    }

    /// The numbers that stand in the index's first column, each once, ascending: also those of rows
    /// that no snapshot sees any more. Leaps from one to the next, so it passes no row one by one.
    pub fn leading_numbers(&self, column: Column) -> Vec<i64> {
        let mut found: Vec<i64> = Vec::new();
        loop {
            let above = found.last().map(|last| (column, Key::Above(Value::Int(*last))));
            let keys = Vec::from_iter(above);
            let read = |row: &Tuple| ControlFlow::Break(row.need::<i64>(column));
            match self.scan_any(&keys, ScanEnd::Start, read) {
                Some(number) => found.push(number),
                None => return found,
            }
        }
    }

    /// Those of the next `most` entries whose row is visible, in order: of a number in the first
    /// column, behind a moment in the second. And the moment at which the entries end, if there may
    /// be more.
    pub fn visible_of_next<T>(
        &self,
        (first, number): (Column, i64),
        (second, after): (Column, Moment),
        most: usize,
        under: &ActiveSnapshot,
        read: impl Fn(&Tuple) -> T,
    ) -> (Vec<T>, Option<Moment>) {
        let keys = [(first, Key::Is(Value::Int(number))), (second, Key::Above(Value::Time(after)))];
        let (mut rows, mut count) = (Vec::new(), 0);
        let end = self.scan_any(&keys, ScanEnd::Start, |row| {
            count += 1;
            if row.is_visible(under) {
                rows.push(read(row));
            }
            match count < most {
                true => ControlFlow::Continue(()),
                false => ControlFlow::Break(row.need::<At>(second).0),
            }
        });
        (rows, end)
    }

    /// # Safety
    /// The snapshot is active, or of a kind that needs no registration.
    unsafe fn scan_as<B>(
        &self,
        snapshot: pg_sys::Snapshot,
        keys: &[(Column, Key<'_>)],
        from: ScanEnd,
        mut visit: impl FnMut(&Tuple) -> ControlFlow<B>,
    ) -> Option<B> {
        let direction = match from {
            ScanEnd::Start => pg_sys::ScanDirection::ForwardScanDirection,
            ScanEnd::End => pg_sys::ScanDirection::BackwardScanDirection,
        };
        // SAFETY: the caller vouches for the snapshot. Relations, scan and slot are opened and
        // closed in pairs; on an ERROR the transaction's resource owner closes them. The keys'
        // datums live in the current memory context, longer than the scan.
        unsafe {
            let table = relation::open(self.table, READ);
            let index = relation::open_index(self, &table);
            let mut scan_keys: Vec<pg_sys::ScanKeyData> =
                keys.iter().map(|(column, key)| key.on(self.number_of(*column))).collect();
            let slot = pg_sys::table_slot_create(table.relation, ptr::null_mut());
            let scan = begin(table.relation, index.relation, snapshot, scan_keys.len() as i32);
            let count = scan_keys.len() as i32;
            pg_sys::index_rescan(scan, scan_keys.as_mut_ptr(), count, ptr::null_mut(), 0);
            let mut broken_off = None;
            let (relation, attributes) = (table.relation, table.attributes.clone());
            let tuple = Tuple { slot, relation, table: self.table, attributes };
            while pg_sys::index_getnext_slot(scan, direction, slot) {
                if let ControlFlow::Break(value) = visit(&tuple) {
                    broken_off = Some(value);
                    break;
                }
                pgrx::check_for_interrupts!();
                allocator::check();
            }
            pg_sys::index_endscan(scan);
            pg_sys::ExecDropSingleTupleTableSlot(slot);
            index.close();
            table.close();
            broken_off
        }
    }

    /// The number, counted from 1, of a column in the index.
    fn number_of(&self, column: Column) -> i16 {
        let is_it = |key: &&Column| key.place() == column.place();
        match (1..).zip(self.columns).find(|(_, key)| is_it(key)) {
            Some((number, _)) => number,
            None => Error::corrupt(format!("index {:?} is not of {column:?}", self.name)).raise(),
        }
    }

    /// Conditions on the leading columns of the index, one each.
    fn leading<'a>(&self, keys: impl Iterator<Item = Key<'a>>) -> Vec<(Column, Key<'a>)> {
        self.columns.iter().copied().zip(keys).collect()
    }

    /// The first, or last, row whose leading columns are these.
    pub fn end<T>(
        &self,
        prefix: &[Value<'_>],
        from: ScanEnd,
        under: &ActiveSnapshot,
        mut read: impl FnMut(&Tuple) -> T,
    ) -> Option<T> {
        let keys: Vec<(Column, Key<'_>)> = self.leading(prefix.iter().map(|value| Key::Is(*value)));
        self.scan(&keys, from, under, |tuple| ControlFlow::Break(read(tuple)))
    }

    /// Whether more than `most` visible rows have these leading columns.
    pub fn has_more(&self, prefix: &[Value<'_>], most: usize, under: &ActiveSnapshot) -> bool {
        let keys = self.leading(prefix.iter().map(|value| Key::Is(*value)));
        let mut count = 0;
        let visit = |_: &Tuple| {
            count += 1;
            if count > most { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
        };
        self.scan(&keys, ScanEnd::Start, under, visit).is_some()
    }

    /// Up to `limit` rows whose leading columns are `prefix` and whose following ones come after
    /// `after`, compared as a row; in order. `bound`: an upper limit of the first of these.
    pub fn after<T>(
        &self,
        prefix: &[Value<'_>],
        after: &[Value<'_>],
        bound: Option<Value<'_>>,
        limit: usize,
        under: &ActiveSnapshot,
        mut read: impl FnMut(&Tuple) -> T,
    ) -> Vec<T> {
        let mut rows = Vec::new();
        // (a, b, c) > (x, y, z): first a = x, b = y, c > z; then a = x, b > y; then a > x.
        for depth in (0..after.len()).rev() {
            if rows.len() >= limit {
                break;
            }
            let same = prefix.iter().chain(&after[..depth]).map(|value| Key::Is(*value));
            let mut keys = self.leading(same.chain([Key::Above(after[depth])]));
            // Also where the first one is that of `after`, which may lie beyond the bound.
            if let Some(bound) = bound {
                keys.insert(prefix.len() + 1, (self.columns[prefix.len()], Key::UpTo(bound)));
            }
            self.scan::<()>(&keys, ScanEnd::Start, under, |tuple| {
                rows.push(read(tuple));
                if rows.len() < limit { ControlFlow::Continue(()) } else { ControlFlow::Break(()) }
            });
        }
        rows
    }
}

/// # Safety
/// Both are open, the index is one of the table, and the snapshot may be used.
pub(super) unsafe fn begin(
    table: pg_sys::Relation,
    index: pg_sys::Relation,
    snapshot: pg_sys::Snapshot,
    keys: i32,
) -> pg_sys::IndexScanDesc {
    // SAFETY: as above.
    unsafe {
        #[cfg(feature = "pg18")]
        return pg_sys::index_beginscan(table, index, snapshot, ptr::null_mut(), keys, 0);
        #[cfg(not(feature = "pg18"))]
        return pg_sys::index_beginscan(table, index, snapshot, keys, 0);
    }
}

/// A by-reference column copied out of a row, read when it is wanted.
#[derive(Clone, Copy)]
pub struct StoredValue(Arg);

impl StoredValue {
    pub fn of(tuple: &Tuple, column: Column) -> Self {
        Self(tuple.datum(column).map(copied))
    }

    /// A copy in the current memory context, still as it lies in the table.
    pub fn copied(self) -> Self {
        Self(self.0.map(copied))
    }

    pub fn nothing() -> Self {
        Self(None)
    }

    pub fn get<T: FromDatum>(self) -> Option<T> {
        // SAFETY: a copy of a column of the type it is read as.
        self.0.and_then(|datum| unsafe { T::from_datum(datum, false) })
    }
}
