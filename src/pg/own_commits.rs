//! Which transactions of this process have written rows by this library, and when they have ended.
//!
//! Each statement of ours that writes is noted ([`note_write`]). When the transaction has ended,
//! and other processes can see what it has written, the function that was registered is told.
//! Writes of others to the same tables, by statements of their own, are not noted.

use std::cell::Cell;
use std::ffi::c_void;
use std::ptr;
use std::sync::OnceLock;

use pgrx::{pg_guard, pg_sys};

use super::clock::Moment;
use super::transaction;

/// How a transaction that has written has ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ended {
    /// `soonest`: the first of the moments that it has noted; `Moment::MAX` if there is none.
    Committed {
        soonest: Moment,
    },
    RolledBack,
    /// It ends later, maybe in another process, which knows nothing of it.
    Prepared,
}

/// Called at the end of a transaction, where nothing may fail.
type Listener = fn(Ended);

static LISTENER: OnceLock<Listener> = OnceLock::new();

thread_local! {
    static HAS_WRITTEN: Cell<bool> = const { Cell::new(false) };
    static SOONEST: Cell<Moment> = const { Cell::new(Moment::MAX) };
}

/// Called once, as the library is loaded.
pub fn register(listener: Listener) {
    if LISTENER.set(listener).is_ok() {
        // SAFETY: the callback is a function of this library, which stays loaded.
        unsafe { pg_sys::RegisterXactCallback(Some(at_event), ptr::null_mut()) };
    }
}

/// The open transaction writes rows, or may do so.
pub fn note_write() {
    HAS_WRITTEN.set(true);
}

/// What the open transaction writes has to be looked at at this moment. A note of a subtransaction
/// that is rolled back stays.
pub fn note_moment(at: Moment) {
    SOONEST.set(SOONEST.get().min(at));
}

/// At these events other processes see what the transaction has written, or never will, and its
/// locks are held still. Nothing here may fail.
#[pg_guard]
unsafe extern "C-unwind" fn at_event(event: pg_sys::XactEvent::Type, _argument: *mut c_void) {
    use pg_sys::XactEvent::{XACT_EVENT_ABORT, XACT_EVENT_COMMIT, XACT_EVENT_PREPARE};
    if !matches!(event, XACT_EVENT_ABORT | XACT_EVENT_COMMIT | XACT_EVENT_PREPARE) {
        return;
    }
    let soonest = SOONEST.replace(Moment::MAX);
    if !HAS_WRITTEN.replace(false) {
        return;
    }
    let ended = match event {
        XACT_EVENT_PREPARE => Ended::Prepared,
        // Its statements have found nothing to write.
        _ if !transaction::has_id() => return,
        XACT_EVENT_COMMIT => Ended::Committed { soonest },
        _ => Ended::RolledBack,
    };
    if let Some(listener) = LISTENER.get() {
        listener(ended);
    }
}
