//! Changes that make what a session remembers wrong, and how the session hears of them.
//!
//! This is PostgreSQL's own way with its catalogue caches. The transaction that changes a thing
//! announces it. At its commit, PostgreSQL sends the message before the transaction gives up its
//! locks, and before its client is told. A session reads its messages when it locks a relation. So
//! it has heard of a change no later than it could see the change.
//!
//! A session counts what it hears. What it remembers carries the count from before it was looked
//! up, and is believed while the count stays as it is. Messages about one relation, the *watched*
//! one, are counted by themselves as well, for what depends on no other.

use std::cell::Cell;

use pgrx::pg_sys;

thread_local! {
    /// Messages about any relation that this session has heard.
    static CHANGES: Cell<u64> = const { Cell::new(0) };
    static IS_LISTENING: Cell<bool> = const { Cell::new(false) };
    /// The watched relation, and the messages about it, or about all relations at once.
    static WATCHED: Cell<(pg_sys::Oid, u64)> = const { Cell::new((pg_sys::InvalidOid, 0)) };
}

/// How many changes this session has heard of.
pub fn count() -> u64 {
    if !IS_LISTENING.replace(true) {
        // SAFETY: the callback lives as long as the process, and does nothing but count.
        unsafe { pg_sys::CacheRegisterRelcacheCallback(Some(hear), pg_sys::Datum::null()) };
    }
    CHANGES.get()
}

/// From now on, count the messages about this relation by themselves. Where another one was
/// watched, that is a change.
pub fn watch(relation: pg_sys::Oid) {
    count();
    if WATCHED.get().0 != relation {
        WATCHED.set((relation, count_of_watched().wrapping_add(1)));
    }
}

/// How many changes of the watched relation this session has heard of.
pub fn count_of_watched() -> u64 {
    WATCHED.get().1
}

/// Count a change, so that this session does not believe what it has looked up so far, nor
/// remembers what it is looking up at this moment.
pub fn count_one() {
    CHANGES.set(CHANGES.get().wrapping_add(1));
}

/// Read the messages that have arrived.
pub fn hear_all() {
    // SAFETY: any time in a transaction will do; a lock on a relation does the same.
    unsafe { pg_sys::AcceptInvalidationMessages() };
}

/// Announce a change in the name of a relation: every session hears of it when this transaction
/// commits, and this one at once. To be called before the change.
pub fn announce(relation: pg_sys::Oid) {
    count_about(relation);
    // SAFETY: in a transaction; an ERROR if there is no such relation.
    unsafe { pg_sys::CacheInvalidateRelcacheByRelid(relation) };
}

/// InvalidOid: about all relations at once.
fn count_about(relation: pg_sys::Oid) {
    count_one();
    let (watched, changes) = WATCHED.get();
    if relation == watched || relation == pg_sys::InvalidOid {
        WATCHED.set((watched, changes.wrapping_add(1)));
    }
}

extern "C-unwind" fn hear(_: pg_sys::Datum, relation: pg_sys::Oid) {
    count_about(relation);
}
