//! Settings of the server (GUCs), beyond what pgrx does with them.

use std::ffi::CStr;

use pgrx::pg_sys;

/// Keep `prefix` for the settings that the library has defined: from now on SET of another one of
/// that prefix is an error, and one that was set before is forgotten with a WARNING.
pub fn reserve(prefix: &CStr) {
    // SAFETY: the prefix is copied.
    unsafe { pg_sys::MarkGUCPrefixReserved(prefix.as_ptr()) };
}

/// Give a setting a value in this process, whatever the configuration, ALTER DATABASE or ALTER ROLE
/// say. SET may change it after that. An ERROR if there is no such setting, or no such value of it.
pub fn override_with(name: &CStr, value: &CStr) {
    let (context, source) = (pg_sys::GucContext::PGC_SUSET, pg_sys::GucSource::PGC_S_OVERRIDE);
    // SAFETY: both are copied.
    unsafe { pg_sys::SetConfigOption(name.as_ptr(), value.as_ptr(), context, source) };
}
