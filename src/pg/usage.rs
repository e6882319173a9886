//! What this session has used up.

use pgrx::pg_sys;

/// Pages that were looked at so far, in shared buffers: found there, or read from the disk.
pub fn buffers() -> i64 {
    // SAFETY: counters in the backend's memory.
    unsafe { pg_sys::pgBufferUsage.shared_blks_hit + pg_sys::pgBufferUsage.shared_blks_read }
}
