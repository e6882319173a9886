//! The place that talks SPI (but for [`super::procedure`], which ends transactions): statements
//! prepared once per session, run under a snapshot the caller names.
//!
//! pgrx has an SPI client of its own. It decides by itself whether a statement is read-only, and
//! with that, which snapshot it sees. What a queue delivers depends on exactly that choice, for a
//! cursor is a position and a snapshot. So each caller here names the snapshot.

use std::cell::Cell;
use std::ffi::{CStr, CString, c_char, c_int, c_long};
use std::ptr;
use std::sync::atomic::{AtomicBool, AtomicPtr, Ordering};

use pgrx::{FromDatum, PgList, pg_sys};

use super::columns::{Arg, Columns};
use super::planning::PinnedPlans;
use super::snapshot::ActiveSnapshot;
use super::table::Column;
use super::{async_commit, catalogue, kept_open, own_commits};
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
    /// Whether the plan may write rows.
    writes: AtomicBool,
}

/// What a statement sees.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum View {
    /// A snapshot of its own, as any statement of the transaction would take. May write.
    Own,
    /// The active snapshot, unchanged. Reads only.
    Active,
}

impl Statement {
    pub const fn new(sql: &'static str, types: &'static [pg_sys::Oid]) -> Self {
        let (plan, writes) = (AtomicPtr::new(ptr::null_mut()), AtomicBool::new(true));
        Self { sql, types, plan, writes }
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
        // SAFETY: every statement runs within [`connected`], which keeps the connection open;
        // values and nulls are as long as the plan has parameters and outlive the call.
        unsafe {
            let plan = self.plan();
            if self.writes.load(Ordering::Relaxed) {
                async_commit::note_statement();
                own_commits::note_write();
            }
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
            self.writes.store(writes(plan), Ordering::Relaxed);
            self.plan.store(plan, Ordering::Relaxed);
            plan
        }
    }
}

/// Whether a plan may write rows. Locking them does not count, nor what functions do.
///
/// # Safety
/// A plan that is kept.
unsafe fn writes(plan: pg_sys::SPIPlanPtr) -> bool {
    // SAFETY: lists of these types, which live as long as the plan.
    unsafe {
        let sources = pg_sys::SPI_plan_get_plan_sources(plan);
        PgList::<pg_sys::CachedPlanSource>::from_pg(sources).iter_ptr().any(|source| {
            PgList::<pg_sys::Query>::from_pg((*source).query_list).iter_ptr().any(|query| {
                (*query).commandType != pg_sys::CmdType::CMD_SELECT || (*query).hasModifyingCTE
            })
        })
    }
}

thread_local! {
    /// How many calls of [`connected`] have begun in this session.
    static BEGUN: Cell<u64> = const { Cell::new(0) };
    /// The number of the innermost one that runs.
    static RUNNING: Cell<u64> = const { Cell::new(0) };
}

/// The number of the call of [`connected`] that runs. A trigger may make a call within a call.
pub fn call_number() -> u64 {
    RUNNING.get()
}

/// Numbers a call, and gives the number of the call around it back at its end.
struct Numbered {
    outer: u64,
}

impl Numbered {
    fn begin() -> Self {
        BEGUN.set(BEGUN.get() + 1);
        Self { outer: RUNNING.replace(BEGUN.get()) }
    }
}

impl Drop for Numbered {
    fn drop(&mut self) {
        RUNNING.set(self.outer);
    }
}

/// Run `body` as the role that owns the extension, in a restricted context, with an open SPI
/// connection. What the function wants to keep, it copies out before this closes.
///
/// There is no `Drop` for the connection: on an error PostgreSQL closes it itself, when it rolls
/// the (sub)transaction back.
pub fn connected<T>(body: impl FnOnce() -> Result<T>) -> Result<T> {
    refuse_under_binary_upgrade()?;
    let _number = Numbered::begin();
    // Dropped last. The guard first undoes what a trigger has set, back to the pinned values.
    let _plans = PinnedPlans::pin();
    let _guard = Guard::act_as(catalogue::owner());
    let _ballast = Ballast::hold()?;
    let relations = kept_open::CallRelations::begin();
    // SAFETY: connect and finish are paired on the way that returns; an ERROR ends the connection
    // with the transaction, so a Result error, which is about to be raised, need not.
    sqlstate::keep(|| unsafe {
        pg_sys::SPI_connect();
        let value = body()?;
        relations.end();
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
    /// How many rows were returned, or written where the statement returns none.
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

impl Columns<Column> for SqlRow {
    fn datum(&self, column: Column) -> Arg {
        self.datum(column.name())
    }
}

impl Columns<&'static CStr> for SqlRow {
    fn datum(&self, column: &'static CStr) -> Arg {
        // SAFETY: the shape of an open tuple table, and a NUL-terminated name.
        let number = unsafe { pg_sys::SPI_fnumber(self.shape, column.as_ptr()) };
        if number <= 0 {
            Error::corrupt(format!("a statement returns no column {column:?}")).raise();
        }
        self.at(number as usize)
    }
}

impl SqlRow {
    /// The value of the only column of the result; None for NULL.
    pub fn only<T: FromDatum>(&self) -> Option<T> {
        let datum = self.at(1)?;
        // SAFETY: the caller reads the column as the type that its statement gives it.
        unsafe { T::from_datum(datum, false) }
    }
}

impl SqlRow {
    /// The value of a column by its number, counted from 1.
    fn at(&self, column: usize) -> Arg {
        let mut is_null = false;
        // SAFETY: tuple and shape belong to one tuple table that lives until SPI closes;
        // SPI_getbinval answers NULL for a column that is not there.
        let datum =
            unsafe { pg_sys::SPI_getbinval(self.tuple, self.shape, column as c_int, &mut is_null) };
        (!is_null).then_some(datum)
    }
}
