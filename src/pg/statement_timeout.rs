//! The caller's `statement_timeout`, where an ERROR is caught in Rust and goes no further.
//!
//! One check for interrupts can find two timeouts that have passed: of the lock, and of the
//! statement. PostgreSQL raises the error of one of them and forgets both. Code that catches the
//! error of a lock timeout, and goes on, would go on for ever.

use std::ffi::c_int;

use pgrx::pg_sys::ffi::pg_guard_ffi_boundary;

/// PostgreSQL's number of this timeout. It is 3 in PostgreSQL 15 to 18.
const STATEMENT_TIMEOUT: c_int = 3;

unsafe extern "C-unwind" {
    fn get_timeout_active(id: c_int) -> bool;
    fn enable_timeout_after(id: c_int, delay_ms: c_int);
}

/// Whether the statement had a timeout ahead of it.
#[derive(Clone, Copy)]
pub struct StatementTimeout {
    was_ahead: bool,
}

impl StatementTimeout {
    pub fn now() -> Self {
        // SAFETY: reads the backend's memory, and raises nothing.
        Self { was_ahead: unsafe { get_timeout_active(STATEMENT_TIMEOUT) } }
    }

    /// The error of a lock timeout has been caught and goes no further: if the statement's timeout
    /// has passed meanwhile, let it pass again, so that PostgreSQL raises its error after all.
    pub fn renew_if_passed(self) {
        if self.was_ahead && !Self::now().was_ahead {
            // SAFETY: a timeout that PostgreSQL has registered; called behind a guard, as pgrx
            // calls what it knows.
            unsafe { pg_guard_ffi_boundary(|| enable_timeout_after(STATEMENT_TIMEOUT, 1)) };
        }
    }
}
