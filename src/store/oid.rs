//! The OIDs of what lies in the schema `queen_mq`, by name. A session looks each of them up once, and
//! again when PostgreSQL says that a relation has changed: as it does of `DROP EXTENSION` or `REINDEX
//! CONCURRENTLY`, no later than the lock on the relation is taken.

use std::cell::{Cell, RefCell};
use std::collections::HashMap;
use std::ffi::{CStr, c_char};

use pgrx::pg_sys;

use crate::error::Error;

const SCHEMA: &CStr = c"queen_mq";

thread_local! {
    /// By the address of the name: with the count of changes before it was looked up.
    static KNOWN: RefCell<HashMap<*const c_char, (u64, pg_sys::Oid)>> = RefCell::default();
    /// Changes of any relation that the session has heard of.
    static CHANGES: Cell<u64> = const { Cell::new(0) };
    static IS_LISTENING: Cell<bool> = const { Cell::new(false) };
}

/// The relation's OID; relations of an extension are there as long as its functions.
pub fn of(name: &'static CStr) -> pg_sys::Oid {
    if !IS_LISTENING.replace(true) {
        // SAFETY: the callback lives as long as the process, and does nothing but count.
        unsafe { pg_sys::CacheRegisterRelcacheCallback(Some(heard), pg_sys::Datum::null()) };
    }
    let changes = CHANGES.get();
    let known = KNOWN.with_borrow(|known| known.get(&name.as_ptr()).copied());
    if let Some((_, oid)) = known.filter(|(before, _)| *before == changes) {
        return oid;
    }
    let oid = look_up(name);
    KNOWN.with_borrow_mut(|known| known.insert(name.as_ptr(), (changes, oid)));
    oid
}

extern "C-unwind" fn heard(_: pg_sys::Datum, _: pg_sys::Oid) {
    CHANGES.set(CHANGES.get().wrapping_add(1));
}

fn look_up(name: &CStr) -> pg_sys::Oid {
    // SAFETY: look-ups in the catalogue caches, with NUL-terminated names.
    let oid = unsafe {
        pg_sys::get_relname_relid(name.as_ptr(), pg_sys::get_namespace_oid(SCHEMA.as_ptr(), true))
    };
    if oid == pg_sys::InvalidOid {
        Error::dropped().raise();
    }
    oid
}
