//! Roles of the server: their names, who has the privileges of whom, and how a session hears of
//! changes.
//!
//! PostgreSQL keeps roles and memberships in caches of its catalogue, and sends a message to each
//! session when one has changed. What a session derives from them carries [`changes`] from before
//! it was looked up, and is believed while that stays as it is.

use std::cell::Cell;
use std::ffi::{CStr, CString, c_int};

use pgrx::pg_sys;

thread_local! {
    /// Messages about roles and memberships that this session has heard.
    static CHANGES: Cell<u64> = const { Cell::new(0) };
    static IS_LISTENING: Cell<bool> = const { Cell::new(false) };
}

/// How many changes of roles and memberships this session has heard of.
pub fn changes() -> u64 {
    if !IS_LISTENING.replace(true) {
        let caches = [
            pg_sys::SysCacheIdentifier::AUTHOID as c_int,
            pg_sys::SysCacheIdentifier::AUTHMEMROLEMEM as c_int,
            // The owner of the database is a member of pg_database_owner.
            pg_sys::SysCacheIdentifier::DATABASEOID as c_int,
        ];
        for cache in caches {
            // SAFETY: the callback lives as long as the process, and does nothing but count.
            unsafe {
                pg_sys::CacheRegisterSyscacheCallback(cache, Some(hear), pg_sys::Datum::null());
            }
        }
    }
    CHANGES.get()
}

extern "C-unwind" fn hear(_: pg_sys::Datum, _: c_int, _: u32) {
    CHANGES.set(CHANGES.get().wrapping_add(1));
}

/// Whether `role` has the privileges of `of`: it is that role, or a member that inherits from it,
/// or a superuser.
pub fn has_privileges_of(role: pg_sys::Oid, of: pg_sys::Oid) -> bool {
    // SAFETY: look-ups in the catalogue caches, in a transaction.
    unsafe { pg_sys::has_privs_of_role(role, of) }
}

/// The role of this name, if there is one.
pub fn named(name: &str) -> Option<pg_sys::Oid> {
    // A longer name is no role's, and the cache does not expect one.
    let name = CString::new(name).ok().filter(|_| name.len() < pg_sys::NAMEDATALEN as usize)?;
    // SAFETY: a look-up in the catalogue caches, with a NUL-terminated name.
    let role = unsafe { pg_sys::get_role_oid(name.as_ptr(), true) };
    (role != pg_sys::InvalidOid).then_some(role)
}

/// The name of a role; None if it is gone.
pub fn name(role: pg_sys::Oid) -> Option<String> {
    // SAFETY: a look-up in the catalogue caches, which returns a copy of the name, or NULL.
    unsafe {
        let name = pg_sys::GetUserNameFromId(role, true);
        (!name.is_null()).then(|| CStr::from_ptr(name).to_string_lossy().into_owned())
    }
}
