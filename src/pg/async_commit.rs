//! Which transactions may commit without waiting for the disk.
//!
//! Some tables hold what a crash may take. A transaction that has written nothing else commits as
//! with `synchronous_commit` off: COMMIT waits neither for the flush of its log records nor for a
//! standby. Any other write makes COMMIT wait as the session says, wherever the write came from.
//!
//! `XactLastRecEnd` is where the last log record of this transaction ends; records of other
//! sessions do not move it. [`may_be_lost`] notes it before and after its body. If it is at commit
//! where the last body has left it, and was at the beginning of each body where the body before had
//! left it, then all records are of these bodies. A body that writes to another table, or that runs
//! code which is not ours, counts as another write ([`note_write`], [`note_statement`]).
//!
//! Each doubt makes COMMIT wait: pages that were pruned between two bodies, a savepoint that was
//! rolled back. PREPARE TRANSACTION always waits.

use std::cell::Cell;
use std::ffi::{c_int, c_void};
use std::ptr;
use std::sync::OnceLock;

use pgrx::{pg_guard, pg_sys};

use super::table::Table;

/// What the layer has to know.
struct Rules {
    /// The tables whose rows a crash may take.
    tables: &'static [&'static Table],
    /// Whether COMMIT is to wait in any case.
    always_waits: fn() -> bool,
}

static RULES: OnceLock<Rules> = OnceLock::new();

thread_local! {
    /// Where the log records end that may be lost; 0: there are none yet.
    static MAY_BE_LOST: Cell<pg_sys::XLogRecPtr> = const { Cell::new(0) };
    /// Whether the transaction has written what may not be lost, as far as this layer was told.
    static IS_PROMISED: Cell<bool> = const { Cell::new(false) };
    /// What `synchronous_commit` was before it was changed for the commit that runs.
    static SESSION_SAYS: Cell<Option<c_int>> = const { Cell::new(None) };
}

/// Called once, as the library is loaded. The earlier a callback is registered, the later it runs:
/// after those of most other libraries, which may write before the commit.
pub fn register(tables: &'static [&'static Table], always_waits: fn() -> bool) {
    if RULES.set(Rules { tables, always_waits }).is_ok() {
        // SAFETY: the callback is a function of this library, which stays loaded.
        unsafe { pg_sys::RegisterXactCallback(Some(at_event), ptr::null_mut()) };
    }
}

/// Run `body`. If `may_be`, a crash may take its writes to the registered tables.
pub fn may_be_lost<T>(may_be: bool, body: impl FnOnce() -> T) -> T {
    let goes_on = may_be && !always_waits() && written_to() == MAY_BE_LOST.get();
    let value = body();
    if goes_on {
        MAY_BE_LOST.set(written_to());
    }
    value
}

/// The transaction writes rows of `table`. `runs_code`: code of the table's owner may run and
/// write, too.
pub fn note_write(table: &'static Table, runs_code: bool) {
    let is_listed =
        RULES.get().is_some_and(|rules| rules.tables.iter().any(|listed| ptr::eq(*listed, table)));
    if runs_code || !is_listed {
        IS_PROMISED.set(true);
    }
}

/// The transaction writes by a statement of SQL. Its triggers may write anything.
pub fn note_statement() {
    IS_PROMISED.set(true);
}

/// Where the last log record of the transaction ends; 0: it has written none.
fn written_to() -> pg_sys::XLogRecPtr {
    // SAFETY: a plain global of the backend.
    unsafe { pg_sys::XactLastRecEnd }
}

/// Nothing here may fail. Deferred triggers and constraints have run before PRE_COMMIT, and no
/// statement runs between that and COMMIT or ABORT.
#[pg_guard]
unsafe extern "C-unwind" fn at_event(event: pg_sys::XactEvent::Type, _argument: *mut c_void) {
    use pg_sys::XactEvent::{
        XACT_EVENT_ABORT, XACT_EVENT_COMMIT, XACT_EVENT_PRE_COMMIT, XACT_EVENT_PREPARE,
    };
    match event {
        XACT_EVENT_PRE_COMMIT if is_nothing_promised() => wait_for_nothing(),
        XACT_EVENT_COMMIT | XACT_EVENT_ABORT | XACT_EVENT_PREPARE => forget(),
        _ => (),
    }
}

/// Whether the transaction has written, and nothing but what may be lost.
fn is_nothing_promised() -> bool {
    let written = written_to();
    written != 0 && written == MAY_BE_LOST.get() && !IS_PROMISED.get() && !always_waits()
}

fn always_waits() -> bool {
    RULES.get().is_none_or(|rules| (rules.always_waits)())
}

/// Change the variable behind `synchronous_commit` for the commit that follows. The setting's own
/// books are left alone, so SHOW, SET LOCAL and RESET are as before.
fn wait_for_nothing() {
    let off = pg_sys::SyncCommitLevel::SYNCHRONOUS_COMMIT_OFF as c_int;
    // SAFETY: a plain global of the backend, which the commit reads, and `forget` puts back.
    unsafe {
        SESSION_SAYS.set(Some(pg_sys::synchronous_commit));
        pg_sys::synchronous_commit = off;
    }
}

/// The transaction has ended, or failed on its way to the commit. PostgreSQL takes back what SET
/// LOCAL has changed after this, so it finds the variable as it knows it.
fn forget() {
    if let Some(before) = SESSION_SAYS.take() {
        // SAFETY: a plain global of the backend.
        unsafe { pg_sys::synchronous_commit = before };
    }
    MAY_BE_LOST.set(0);
    IS_PROMISED.set(false);
}
