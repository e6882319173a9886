//! What the main function of a background process needs: signals, a connection, a pause, and what
//! others see of it.

use std::ffi::CString;
use std::ptr;
use std::sync::atomic::{AtomicBool, Ordering};

use pgrx::pg_sys;

use super::{latch, own_transaction};
use crate::error::Error;

/// Install the signal handlers of a background process: SIGTERM ends it at its next check for
/// interrupts, SIGHUP lets it read the configuration anew ([`pause`]).
pub fn take_signals() {
    // SAFETY: PostgreSQL's own handlers, installed before signals are let through.
    unsafe {
        #[cfg(not(feature = "pg18"))]
        {
            pg_sys::pqsignal(pg_sys::SIGTERM as i32, Some(die));
            pg_sys::pqsignal(pg_sys::SIGHUP as i32, Some(reload));
        }
        #[cfg(feature = "pg18")]
        {
            pg_sys::pqsignal_be(pg_sys::SIGTERM as i32, Some(die));
            pg_sys::pqsignal_be(pg_sys::SIGHUP as i32, Some(reload));
        }
        pg_sys::BackgroundWorkerUnblockSignals();
    }
}

unsafe extern "C-unwind" fn die(signal: i32) {
    // SAFETY: a signal handler, called as one.
    unsafe { pg_sys::die(signal) }
}

unsafe extern "C-unwind" fn reload(signal: i32) {
    // SAFETY: a signal handler, called as one.
    unsafe { pg_sys::SignalHandlerForConfigReload(signal) }
}

/// Connect this background process to the shared catalogues, and to no database.
pub fn connect_to_no_database() {
    refuse_second_connection();
    // SAFETY: a background process that has not connected yet.
    unsafe { pg_sys::BackgroundWorkerInitializeConnection(ptr::null(), ptr::null(), 0) };
}

/// Connect this background process to a database, as the superuser of the cluster's creation. FATAL
/// if the database is gone, or takes no connections.
pub fn connect_to(database: pg_sys::Oid) {
    refuse_second_connection();
    // SAFETY: a background process that has not connected yet.
    unsafe {
        pg_sys::BackgroundWorkerInitializeConnectionByOid(database, pg_sys::InvalidOid, 0);
    }
}

/// Refuse what is no background process, and one that has connected.
fn refuse_second_connection() {
    static HAS_CONNECTED: AtomicBool = AtomicBool::new(false);
    // SAFETY: a plain global of the process.
    let is_background = !unsafe { pg_sys::MyBgworkerEntry }.is_null();
    if !is_background || HAS_CONNECTED.swap(true, Ordering::Relaxed) {
        Error::corrupt("only a background process connects by itself, and only once").raise();
    }
}

/// [`latch::sleep`], then do what signals have asked for. True if the process has read the
/// configuration anew.
pub fn pause(ms: i64) -> bool {
    latch::sleep(ms);
    // SAFETY: a flag that a signal handler sets; a process of its own reads the files between its
    // transactions, as sessions do between statements.
    unsafe {
        let is_asked = pg_sys::ConfigReloadPending != 0;
        if is_asked {
            pg_sys::ConfigReloadPending = 0;
            pg_sys::ProcessConfigFile(pg_sys::GucContext::PGC_SIGHUP);
        }
        is_asked
    }
}

/// Report what the process has counted to PostgreSQL's statistics. Between transactions.
pub fn report_statistics() {
    own_transaction::refuse_within_transaction();
    // SAFETY: outside of a transaction, as it has to be.
    unsafe { pg_sys::pgstat_report_stat(true) };
}

/// Let `pg_stat_activity` show that the process is active with `text`; idle where it is empty.
pub fn show_activity(text: &str) {
    let state = match text {
        "" => pg_sys::BackendState::STATE_IDLE,
        _ => pg_sys::BackendState::STATE_RUNNING,
    };
    if let Ok(text) = CString::new(text) {
        // SAFETY: copies the text.
        unsafe { pg_sys::pgstat_report_activity(state, text.as_ptr()) };
    }
}
