//! The place that talks SPI (but for `queen_wait`, which ends transactions): statements prepared once
//! per session, run under a snapshot the caller names.
//!
//! pgrx has an SPI client of its own. It decides by itself whether a statement is read-only, and
//! with that, which snapshot it sees; the engine's correctness is a matter of exactly that choice
//! (DESIGN: a cursor is a position and a snapshot), so it is made explicit here.

use std::ffi::{CString, c_char, c_int, c_long};
use std::ptr;
use std::sync::atomic::{AtomicPtr, Ordering};

use pgrx::{FromDatum, IntoDatum, pg_sys};

use super::catalogue;
use super::planning::PinnedPlans;
use crate::error::{Error, Result};
use crate::pg::allocator;
use crate::pg::ballast::Ballast;
use crate::pg::binary_upgrade::refuse_under_binary_upgrade;
use crate::pg::guard::{self, Guard};
use crate::pg::sqlstate;

/// A statement of the project: its text and the types of its parameters. Planned on first use and
/// kept for the session.
pub struct Statement {
    sql: &'static str,
    types: &'static [pg_sys::Oid],
    plan: AtomicPtr<pg_sys::_SPI_plan>,
}

/// What a statement sees.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum View {
    /// A snapshot of its own, as any statement of the transaction would take. May write.
    Own,
    /// The active snapshot, unchanged. Reads only.
    Active,
}

/// A bound parameter.
pub type Arg = Option<pg_sys::Datum>;

/// A parameter from a value; `None` is NULL.
pub fn arg<T: IntoDatum>(value: T) -> Arg {
    value.into_datum()
}

impl Statement {
    pub const fn new(sql: &'static str, types: &'static [pg_sys::Oid]) -> Self {
        Self { sql, types, plan: AtomicPtr::new(ptr::null_mut()) }
    }

    /// Run under a new snapshot (in REPEATABLE READ: the transaction's); may write.
    pub fn run(&self, args: &[Arg]) -> SqlRows {
        self.execute(args, View::Own)
    }

    /// Read under the snapshot that [`ActiveSnapshot`] has made active.
    pub fn read(&self, args: &[Arg], _under: &ActiveSnapshot) -> SqlRows {
        self.execute(args, View::Active)
    }

    fn execute(&self, args: &[Arg], view: View) -> SqlRows {
        assert_eq!(args.len(), self.types.len(), "{}", self.sql);
        guard::pin_search_path();
        allocator::check();
        let mut values: Vec<pg_sys::Datum> =
            args.iter().map(|a| a.unwrap_or(pg_sys::Datum::null())).collect();
        let nulls: Vec<c_char> =
            args.iter().map(|a| if a.is_some() { b' ' } else { b'n' } as c_char).collect();
        // SAFETY: an `Spi` guard keeps the connection open for the length of every call of a
        // statement; values and nulls are as long as the plan has parameters and outlive the call.
        unsafe {
            let plan = self.plan();
            let code = pg_sys::SPI_execute_plan(
                plan,
                values.as_mut_ptr(),
                nulls.as_ptr(),
                view == View::Active,
                0 as c_long,
            );
            if code < 0 {
                Error::corrupt(format!("SPI refused a statement with code {code}: {}", self.sql))
                    .raise();
            }
            SqlRows { table: pg_sys::SPI_tuptable, count: pg_sys::SPI_processed as usize, next: 0 }
        }
    }

    /// # Safety
    /// SPI must be connected.
    unsafe fn plan(&self) -> pg_sys::SPIPlanPtr {
        let known = self.plan.load(Ordering::Relaxed);
        if !known.is_null() {
            return known;
        }
        let Ok(sql) = CString::new(self.sql) else {
            Error::corrupt("a statement contains a NUL byte").raise()
        };
        let mut types = self.types.to_vec();
        // SAFETY: text and types live across the call; SPI_keepplan moves the plan into memory
        // that lives as long as the session, where PostgreSQL revalidates it by itself.
        unsafe {
            let plan = pg_sys::SPI_prepare(sql.as_ptr(), types.len() as c_int, types.as_mut_ptr());
            if plan.is_null() || pg_sys::SPI_keepplan(plan) != 0 {
                Error::corrupt(format!("SPI could not prepare: {}", self.sql)).raise();
            }
            self.plan.store(plan, Ordering::Relaxed);
            plan
        }
    }
}

/// Run `body` as the role that owns the extension, in a restricted context, with an open SPI
/// connection. What the function wants to keep, it copies out before this closes.
///
/// There is no `Drop` for the connection: on an error PostgreSQL closes it itself, when it rolls
/// the (sub)transaction back.
pub fn connected<T>(body: impl FnOnce() -> Result<T>) -> Result<T> {
    refuse_under_binary_upgrade()?;
    // Dropped last. The guard first undoes what a trigger has set, back to the pinned values.
    let _plans = PinnedPlans::pin();
    let _guard = Guard::act_as(catalogue::owner());
    let _ballast = Ballast::hold()?;
    // SAFETY: connect and finish are paired on the way that returns; an ERROR ends the connection
    // with the transaction, so a Result error, which is about to be raised, need not.
    sqlstate::keep(|| unsafe {
        pg_sys::SPI_connect();
        let value = body()?;
        pg_sys::SPI_finish();
        Ok(value)
    })
}

/// The result of a statement, read row by row.
pub struct SqlRows {
    table: *mut pg_sys::SPITupleTable,
    count: usize,
    next: usize,
}

impl SqlRows {
    /// SqlRows returned, or written where the statement returns none.
    pub fn affected(&self) -> usize {
        self.count
    }

    /// The first row, if there is one.
    pub fn first(mut self) -> Option<SqlRow> {
        self.next()
    }
}

impl Iterator for SqlRows {
    type Item = SqlRow;

    fn next(&mut self) -> Option<SqlRow> {
        if self.next >= self.count || self.table.is_null() {
            return None;
        }
        // SAFETY: the tuple table lives until SPI closes, and `next` is below its row count.
        let row = unsafe {
            SqlRow { tuple: *(*self.table).vals.add(self.next), shape: (*self.table).tupdesc }
        };
        self.next += 1;
        Some(row)
    }
}

/// One row of a result.
#[derive(Clone, Copy)]
pub struct SqlRow {
    tuple: pg_sys::HeapTuple,
    shape: pg_sys::TupleDesc,
}

/// Something with columns. They count from 1, as in SQL.
pub trait Columns {
    /// The raw column; by-reference values live as long as the row.
    fn datum(&self, column: usize) -> Arg;

    /// The column, None for NULL.
    fn get<T: FromDatum>(&self, column: usize) -> Option<T> {
        let datum = self.datum(column)?;
        // SAFETY: statements and tables are ours, and each column is read as the type it has.
        unsafe { T::from_datum(datum, false) }
    }

    /// The column, which is never NULL.
    fn need<T: FromDatum>(&self, column: usize) -> T {
        match self.get(column) {
            Some(value) => value,
            None => Error::corrupt(format!("column {column} is NULL where it can't be")).raise(),
        }
    }
}

impl Columns for SqlRow {
    fn datum(&self, column: usize) -> Arg {
        let mut is_null = false;
        // SAFETY: tuple and shape belong to one tuple table that lives until SPI closes;
        // SPI_getbinval answers NULL for a column that is not there.
        let datum =
            unsafe { pg_sys::SPI_getbinval(self.tuple, self.shape, column as c_int, &mut is_null) };
        (!is_null).then_some(datum)
    }
}

/// Makes one snapshot the active one, so that several reads see the same moment.
pub struct ActiveSnapshot {
    _private: (),
}

impl ActiveSnapshot {
    /// Take a snapshot now (in REPEATABLE READ: the transaction's) and run `body` under it. Own
    /// writes up to here are visible.
    pub fn new_snapshot<T>(body: impl FnOnce(&ActiveSnapshot) -> Result<T>) -> Result<T> {
        // SAFETY: push and pop are paired on the way that returns; an ERROR unwinds the stack of
        // active snapshots with the (sub)transaction.
        unsafe {
            pg_sys::CommandCounterIncrement();
            pg_sys::PushActiveSnapshot(pg_sys::GetTransactionSnapshot());
        }
        let value = body(&ActiveSnapshot { _private: () })?;
        // SAFETY: as above.
        unsafe { pg_sys::PopActiveSnapshot() };
        Ok(value)
    }

    /// The newest state there is, also in REPEATABLE READ: to find out that the transaction's own
    /// snapshot is out of date, never to act upon.
    pub fn latest_snapshot<T>(body: impl FnOnce(&ActiveSnapshot) -> Result<T>) -> Result<T> {
        // SAFETY: as in `new_snapshot`.
        unsafe { pg_sys::PushActiveSnapshot(pg_sys::GetLatestSnapshot()) };
        let value = body(&ActiveSnapshot { _private: () })?;
        // SAFETY: as above.
        unsafe { pg_sys::PopActiveSnapshot() };
        Ok(value)
    }
}

/// REPEATABLE READ or SERIALIZABLE: one snapshot for the whole transaction.
pub fn one_snapshot_per_transaction() -> bool {
    // SAFETY: a plain global of the backend.
    unsafe { pg_sys::XactIsoLevel >= pg_sys::XACT_REPEATABLE_READ as c_int }
}
