//! What is still to be done as a transaction commits or is prepared, after all that its user does.

use std::cell::Cell;
use std::ffi::c_void;
use std::ptr;
use std::sync::OnceLock;

use pgrx::{pg_guard, pg_sys};

use super::transaction;

/// What the transaction is about to do, or has done.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stage {
    /// Statements may run, and an error rolls the transaction back.
    Commits,
    /// As it commits; but it ends later, maybe in another process.
    Prepares,
    /// It has committed, or been prepared or rolled back. Nothing may fail.
    Over,
}

type StageListener = fn(Stage);

static LISTENER: OnceLock<StageListener> = OnceLock::new();

thread_local! {
    static IS_WANTED: Cell<bool> = const { Cell::new(false) };
}

/// Called once, as the library is loaded. What is registered later runs earlier: so this comes
/// after whatever looks at what the transaction has written.
pub fn register(listener: StageListener) {
    if LISTENER.set(listener).is_ok() {
        // SAFETY: the callback is a function of this library, which stays loaded.
        unsafe { pg_sys::RegisterXactCallback(Some(at_event), ptr::null_mut()) };
    }
}

/// The listener wants to hear of the stages of the open transaction.
pub fn want() {
    IS_WANTED.set(true);
}

#[pg_guard]
unsafe extern "C-unwind" fn at_event(event: pg_sys::XactEvent::Type, _argument: *mut c_void) {
    use pg_sys::XactEvent::{
        XACT_EVENT_ABORT, XACT_EVENT_COMMIT, XACT_EVENT_PRE_COMMIT, XACT_EVENT_PRE_PREPARE,
        XACT_EVENT_PREPARE,
    };
    let stage = match event {
        XACT_EVENT_PRE_COMMIT => Stage::Commits,
        XACT_EVENT_PRE_PREPARE => Stage::Prepares,
        XACT_EVENT_COMMIT | XACT_EVENT_PREPARE | XACT_EVENT_ABORT => Stage::Over,
        _ => return,
    };
    if !IS_WANTED.get() {
        return;
    }
    IS_WANTED.set(stage != Stage::Over);
    if stage != Stage::Over && transaction::is_read_only() {
        // It was made READ ONLY after it had written, and may write nothing more.
        return;
    }
    if let Some(listener) = LISTENER.get() {
        listener(stage);
    }
}
