//! Whether the server is a standby.

use pgrx::pg_sys;

/// Whether the server replays the log of another one, or its own after a crash: nothing can be
/// written.
#[inline]
pub fn is_under_way() -> bool {
    // SAFETY: reads shared memory.
    unsafe { pg_sys::RecoveryInProgress() }
}
