//! The open transaction.

use pgrx::pg_sys;

/// Whether it is READ ONLY.
#[inline]
pub fn is_read_only() -> bool {
    // SAFETY: a plain global of the backend.
    unsafe { pg_sys::XactReadOnly }
}

/// Whether it has a transaction id: it has written something, or has locked a row.
#[inline]
pub fn has_id() -> bool {
    // SAFETY: reads the backend's memory.
    unsafe { pg_sys::GetTopTransactionIdIfAny() != pg_sys::InvalidTransactionId }
}
