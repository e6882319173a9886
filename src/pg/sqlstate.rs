//! SQLSTATEs on their way through Rust.
//!
//! pgrx carries errors with the SQLSTATEs it knows and turns all others into XX000: our own, and
//! those that a user's trigger or function raises below a call of ours. PostgreSQL runs the error
//! context callbacks just before it throws. A callback of ours reads the code there when an error
//! is thrown for the first time, and sets it when pgrx throws the error anew.

use std::any::Any;
use std::cell::Cell;
use std::ffi::{c_int, c_void};
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::ptr;

use pgrx::pg_sys;
use pgrx::pg_sys::errcodes::PgSqlErrorCode;
use pgrx::pg_sys::panic::CaughtError;

use crate::pg::error_context;

thread_local! {
    /// The SQLSTATE that the ERROR now being raised shall carry.
    static LEAVING: Cell<c_int> = const { Cell::new(0) };
    /// The SQLSTATE of the error that was reported last.
    static REPORTED: Cell<c_int> = const { Cell::new(0) };
}

/// The SQLSTATEs of messages that are no errors.
const IN_PASSING: [c_int; 2] = [
    PgSqlErrorCode::ERRCODE_SUCCESSFUL_COMPLETION as c_int,
    PgSqlErrorCode::ERRCODE_WARNING as c_int,
];

/// A backend has one thread, and this lives for ever: the stack never holds a dangling pointer.
static mut CALLBACK: pg_sys::ErrorContextCallback = pg_sys::ErrorContextCallback {
    previous: ptr::null_mut(),
    callback: Some(read_and_set),
    arg: ptr::null_mut(),
};

/// The next ERROR carries this SQLSTATE, packed as PostgreSQL packs it.
pub fn leave_with(code: c_int) {
    LEAVING.set(code);
    push();
}

/// Code of ours has caught its own error in Rust and does not throw it: the next error has its own
/// code.
pub fn forget() {
    LEAVING.set(0);
}

/// Run `body`; an ERROR in it goes on with the SQLSTATE that it was thrown with.
pub fn keep<T>(body: impl FnOnce() -> T) -> T {
    let pushed = push();
    // Nothing of `body` is used after it has panicked: the panic goes on at once.
    let done = catch_unwind(AssertUnwindSafe(body));
    match done {
        Ok(value) => {
            if pushed {
                // SAFETY: the stack is what it was after the push, with ours on top.
                unsafe { pg_sys::error_context_stack = CALLBACK.previous };
            }
            value
        }
        // The callback stays: it sets the code. The code that catches the error restores the stack.
        Err(payload) => {
            if let Some(code) = lost_by(payload.as_ref()) {
                LEAVING.set(code);
            }
            resume_unwind(payload)
        }
    }
}

/// The SQLSTATE of an error of PostgreSQL, where pgrx does not know it.
fn lost_by(payload: &(dyn Any + Send)) -> Option<c_int> {
    let unknown = PgSqlErrorCode::ERRCODE_INTERNAL_ERROR;
    let Some(CaughtError::PostgresError(report)) = payload.downcast_ref() else { return None };
    let code = REPORTED.get();
    let is_lost = report.sql_error_code() == unknown
        && code != unknown as c_int
        && PgSqlErrorCode::from(code) == unknown;
    is_lost.then_some(code)
}

fn push() -> bool {
    // SAFETY: a backend has one thread, and the callback lives for ever.
    unsafe { error_context::push(&raw mut CALLBACK) }
}

unsafe extern "C-unwind" fn read_and_set(_: *mut c_void) {
    unsafe extern "C-unwind" {
        fn errcode(sqlerrcode: c_int) -> c_int;
        fn geterrcode() -> c_int;
    }
    // SAFETY: errfinish calls this with an error on the stack, which is all that both need.
    unsafe {
        // Not a message that is sent while an error is on its way, for instance by a rollback.
        if IN_PASSING.contains(&geterrcode()) {
            return;
        }
        let code = LEAVING.replace(0);
        if code != 0 {
            errcode(code);
        }
        REPORTED.set(geterrcode());
    }
}
