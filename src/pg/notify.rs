//! NOTIFY: what a transaction tells clients that LISTEN when it commits.

use std::ffi::{CStr, CString, c_char};

use pgrx::pg_sys::ffi::pg_guard_ffi_boundary;

unsafe extern "C-unwind" {
    /// In PostgreSQL's `commands/async.h`, of which pgrx has no bindings.
    #[link_name = "Async_Notify"]
    fn async_notify(channel: *const c_char, payload: *const c_char);
}

/// Send a notification at the commit of this transaction. What is sent several times arrives once.
/// If this subtransaction is rolled back, it is not sent. A transaction that has called this can't
/// be prepared: PostgreSQL refuses that.
pub fn notify(channel: &CStr, payload: &str) {
    // A text of PostgreSQL has no zero byte.
    let Ok(payload) = CString::new(payload) else { return };
    // SAFETY: in a transaction; PostgreSQL copies both strings. A payload of 8000 bytes or more is
    // an ERROR, which the boundary turns into a panic.
    unsafe { pg_guard_ffi_boundary(|| async_notify(channel.as_ptr(), payload.as_ptr())) };
}
