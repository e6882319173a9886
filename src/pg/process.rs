//! The server process that runs this code: which one is it, and what is to be done when it ends?

use pgrx::{pg_guard, pg_sys};

use super::listener;

/// The database that the process is connected to; InvalidOid where it is connected to none.
#[inline]
pub fn database() -> pg_sys::Oid {
    // SAFETY: a plain global of the process.
    unsafe { pg_sys::MyDatabaseId }
}

/// The process id, as `pg_stat_activity` shows it.
pub fn pid() -> i32 {
    // SAFETY: a plain global of the process.
    unsafe { pg_sys::MyProcPid }
}

unsafe extern "C" {
    /// Of the C library.
    fn kill(process: i32, signal: i32) -> i32;
}

/// Terminate a process of this server, as `pg_terminate_backend` does: it ends at its next check
/// for interrupts. The caller knows that it is alive. 0: none.
pub fn terminate(process: i32) {
    // Negative numbers are groups of processes.
    if process > 0 {
        // SAFETY: a system call that touches no memory of this process.
        unsafe { kill(process, pg_sys::SIGTERM as i32) };
    }
}

/// Whether this is the postmaster, which is loading the libraries of `shared_preload_libraries`.
pub fn is_preloading() -> bool {
    // SAFETY: a plain global of the process.
    unsafe { pg_sys::process_shared_preload_libraries_in_progress }
}

/// Call `listener` when the process ends, while shared memory is still there: also where it is
/// terminated, which unwinds nothing. A call for each time that this was called. Nothing in it may
/// fail.
pub fn before_exit(listener: fn()) {
    // SAFETY: the callback is a function of this library, which stays loaded, and takes this
    // argument.
    unsafe { pg_sys::before_shmem_exit(Some(at_exit), listener::argument(listener)) };
}

#[pg_guard]
unsafe extern "C-unwind" fn at_exit(_code: i32, argument: pg_sys::Datum) {
    // SAFETY: `before_exit` has made the argument.
    unsafe { listener::call(argument) }
}
