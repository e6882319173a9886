//! Callbacks of ours on PostgreSQL's stack of error contexts, which it runs just before it throws.

use pgrx::pg_sys;

/// Put a callback on top of the stack; false if it is on the stack already. Code that catches an
/// error takes the stack back to where it was, as PG_TRY and the main loop always do. So a callback
/// that was pushed on the way to an error, or left there, goes with it.
///
/// # Safety
/// The callback lives for ever, and no other part of the stack is freed while it is on it.
pub unsafe fn push(callback: *mut pg_sys::ErrorContextCallback) -> bool {
    // SAFETY: the stack is a list of live callbacks. A second entry of ours would close a circle.
    unsafe {
        let mut one = pg_sys::error_context_stack;
        while !one.is_null() {
            if one == callback {
                return false;
            }
            one = (*one).previous;
        }
        (*callback).previous = pg_sys::error_context_stack;
        pg_sys::error_context_stack = callback;
    }
    true
}

/// Take a callback off the stack, if it is on top of it.
///
/// # Safety
/// The callback has been pushed.
pub unsafe fn pop(callback: *mut pg_sys::ErrorContextCallback) {
    // SAFETY: as above.
    unsafe {
        if pg_sys::error_context_stack == callback {
            pg_sys::error_context_stack = (*callback).previous;
        }
    }
}

/// Run `body`, and take the stack back to where it is now, whatever `body` has pushed: for code
/// that catches an error in Rust and does not throw it again.
pub fn restored<T>(body: impl FnOnce() -> T) -> T {
    // SAFETY: reads and sets a plain global; what the stack holds now outlives `body`.
    unsafe {
        let before = pg_sys::error_context_stack;
        let value = body();
        pg_sys::error_context_stack = before;
        value
    }
}
