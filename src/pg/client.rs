//! The client at the other end of the session's connection.

use pgrx::pg_sys;

unsafe extern "C-unwind" {
    /// Whether the client is still connected, as far as the operating system knows. It asks the
    /// socket, and waits for nothing. (pgrx has no binding of it.)
    fn pq_check_connection() -> bool;
}

/// End the session if its client has gone, as PostgreSQL does where it finds out by itself: FATAL
/// 08006. Otherwise a session notices that only when it answers.
pub fn ensure_connected() {
    // SAFETY: plain globals of the process. A session with a client has a port, and the set of
    // events that the check waits on. The function is called behind a guard, as pgrx calls
    // PostgreSQL's own: an ERROR in it unwinds.
    unsafe {
        if pg_sys::MyProcPort.is_null()
            || pg_sys::whereToSendOutput != pg_sys::CommandDest::DestRemote
        {
            return;
        }
        if !pg_sys::ffi::pg_guard_ffi_boundary(|| pq_check_connection()) {
            pg_sys::ClientConnectionLost = 1;
            pg_sys::InterruptPending = 1;
        }
    }
    pgrx::check_for_interrupts!();
}
