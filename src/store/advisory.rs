//! Advisory locks on names, held to the end of the transaction: for what has no row to be locked
//! yet. Two names with one hash share a lock, which costs a wait or a miss and nothing else.

use pgrx::{IntoDatum, direct_function_call, pg_sys};

/// Take the lock on `name` if nobody has it.
pub fn try_lock(name: &str) -> bool {
    let key = key(name);
    // SAFETY: takes a bigint and returns a boolean.
    let taken = unsafe {
        direct_function_call::<bool>(pg_sys::pg_try_advisory_xact_lock_int8, &[key.into_datum()])
    };
    taken.unwrap_or(false)
}

/// Take the lock on `name`, waiting for whoever has it.
pub fn lock(name: &str) {
    let key = key(name);
    // SAFETY: takes a bigint and returns nothing.
    unsafe {
        direct_function_call::<()>(pg_sys::pg_advisory_xact_lock_int8, &[key.into_datum()]);
    }
}

/// Take a share of the lock on `name`, if nobody has the whole.
pub fn try_share(name: &str) -> bool {
    let key = key(name);
    // SAFETY: takes a bigint and returns a boolean.
    let taken = unsafe {
        direct_function_call::<bool>(
            pg_sys::pg_try_advisory_xact_lock_shared_int8,
            &[key.into_datum()],
        )
    };
    taken.unwrap_or(false)
}

/// Take a share of the lock on `name`, waiting for whoever has the whole.
pub fn share(name: &str) {
    let key = key(name);
    // SAFETY: takes a bigint and returns nothing.
    unsafe {
        direct_function_call::<()>(pg_sys::pg_advisory_xact_lock_shared_int8, &[key.into_datum()]);
    }
}

/// Whether nobody has the whole of the lock on `name` at this moment, or is waiting for it.
pub fn is_free(name: &str) -> bool {
    let key = key(name) as u64;
    let share = pg_sys::ShareLock as i32;
    // SAFETY: the tag of the lock that the functions above take. What was taken is given back.
    unsafe {
        let tag = pg_sys::LOCKTAG {
            locktag_field1: pg_sys::MyDatabaseId.to_u32(),
            locktag_field2: (key >> 32) as u32,
            locktag_field3: key as u32,
            locktag_field4: 1,
            locktag_type: pg_sys::LockTagType::LOCKTAG_ADVISORY as u8,
            locktag_lockmethodid: pg_sys::USER_LOCKMETHOD as u8,
        };
        let taken = pg_sys::LockAcquire(&tag, share, false, true);
        let is_free = taken != pg_sys::LockAcquireResult::LOCKACQUIRE_NOT_AVAIL;
        if is_free {
            pg_sys::LockRelease(&tag, share, false);
        }
        is_free
    }
}

/// Within the database, as all advisory locks are.
fn key(name: &str) -> i64 {
    let name = format!("queen_mq {name}");
    // SAFETY: takes a varlena and a seed and returns a bigint.
    let hash = unsafe {
        let args = [name.into_datum(), 0i64.into_datum()];
        direct_function_call::<i64>(pg_sys::hashvarlenaextended, &args)
    };
    hash.unwrap_or_default()
}
