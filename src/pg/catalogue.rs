//! What a session remembers of things that hardly ever change: the OIDs of our relations, queues and
//! consumer groups.
//!
//! It goes the way of PostgreSQL's own catalogue caches. Whoever changes such a thing says so, and every
//! session hears of it no later than it could see the change: the message is on its way before the locks
//! of the transaction that changed it are given up, and before its client is told. What was looked up
//! before that is not believed any more.

use std::cell::{Cell, RefCell};
use std::ffi::{CStr, c_char};
use std::hash::Hash;

use pgrx::pg_sys;

use super::layout;
use crate::error::{Error, Result};
use crate::pg::address_map::AddressMap;
use crate::pg::session_cache::SessionCache;
use crate::pg::spi::{ActiveSnapshot, one_snapshot_per_transaction};

const SCHEMA: &CStr = c"queen_mq";
/// The relation in whose name changes are announced: one that is hardly ever opened, so that nobody has
/// to read its definition again.
const ANNOUNCES: &CStr = c"identity";

thread_local! {
    /// By the address of the name: with the count of changes before it was looked up.
    static OIDS: RefCell<AddressMap<*const c_char, (u64, pg_sys::Oid)>> = RefCell::default();
    /// Changes that the session has heard of: of any relation, and of what is announced.
    static CHANGES: Cell<u64> = const { Cell::new(0) };
    static IS_LISTENING: Cell<bool> = const { Cell::new(false) };
}

/// A relation's OID; relations of an extension are there as long as its functions. Changes are heard of
/// no later than the relation is locked.
pub fn oid_of(name: &'static CStr) -> pg_sys::Oid {
    let changes = changes();
    let known = OIDS.with_borrow(|known| known.get(&name.as_ptr()).copied());
    if let Some((_, oid)) = known.filter(|(before, _)| *before == changes) {
        return oid;
    }
    let oid = look_up(name);
    OIDS.with_borrow_mut(|known| known.insert(name.as_ptr(), (changes, oid)));
    oid
}

/// InvalidOid where there is no such relation.
fn find(name: &CStr) -> pg_sys::Oid {
    // SAFETY: look-ups in the catalogue caches, with NUL-terminated names.
    unsafe {
        pg_sys::get_relname_relid(name.as_ptr(), pg_sys::get_namespace_oid(SCHEMA.as_ptr(), true))
    }
}

fn look_up(name: &CStr) -> pg_sys::Oid {
    let oid = find(name);
    if oid == pg_sys::InvalidOid {
        refuse_missing(name);
    }
    oid
}

thread_local! {
    /// The owner, with the count of changes before it was looked up.
    static OWNER: Cell<(u64, pg_sys::Oid)> = const { Cell::new((0, pg_sys::InvalidOid)) };
}

/// The role that owns the extension's tables; all code of the extension runs with its rights. It is
/// the role that created the extension, unless REASSIGN OWNED or ALTER TABLE … OWNER has changed
/// that. This call locks the table of queues to the end of the transaction. A statement that
/// changes the owner waits for that lock, and a change before it has been heard of. Otherwise a
/// trigger of the new owner would run as the old one.
pub fn owner() -> pg_sys::Oid {
    loop {
        let queue = oid_of(c"queue");
        // SAFETY: a lock on what may be gone by now, which the look-ups tell.
        unsafe { pg_sys::LockRelationOid(queue, pg_sys::AccessShareLock as i32) };
        let changes = changes();
        let (before, known) = OWNER.get();
        if before == changes && known != pg_sys::InvalidOid {
            return known;
        }
        if oid_of(c"queue") != queue {
            continue;
        }
        let owner = owner_of(queue);
        refuse_other_owners(owner);
        OWNER.set((changes, owner));
        return owner;
    }
}

/// Refuse tables of different owners: a trigger of one owner would run with the rights of another.
fn refuse_other_owners(owner: pg_sys::Oid) {
    for name in layout::tables() {
        let table = find(name);
        // Where a table is gone, the code that needs it raises the error.
        if table != pg_sys::InvalidOid && owner_of(table) != owner {
            Error::altered(format!("the owner of table queen_mq.{}", name.to_string_lossy()))
                .detail("It is another one than that of table queen_mq.queue.")
                .raise();
        }
    }
}

fn owner_of(relation: pg_sys::Oid) -> pg_sys::Oid {
    let cache = pg_sys::SysCacheIdentifier::RELOID as i32;
    // SAFETY: the entry of a relation is a row of pg_class; it is read before it is given back.
    unsafe {
        let entry = pg_sys::SearchSysCache1(cache, pg_sys::Datum::from(relation));
        if entry.is_null() {
            Error::dropped().raise();
        }
        let owner = (*pg_sys::GETSTRUCT(entry).cast::<pg_sys::FormData_pg_class>()).relowner;
        pg_sys::ReleaseSysCache(entry);
        owner
    }
}

/// Whether a relation is one of queen_mq's.
pub(super) fn is_ours(relation: pg_sys::Oid) -> bool {
    // SAFETY: look-ups in the catalogue caches; neither is there for what is not a relation.
    unsafe {
        let schema = pg_sys::get_namespace_oid(SCHEMA.as_ptr(), true);
        schema != pg_sys::InvalidOid && pg_sys::get_rel_namespace(relation) == schema
    }
}

/// A relation is missing because its extension was dropped, or because it was dropped or renamed by
/// hand.
fn refuse_missing(name: &CStr) -> ! {
    // SAFETY: as in `look_up`.
    let rest = unsafe {
        let schema = pg_sys::get_namespace_oid(SCHEMA.as_ptr(), true);
        pg_sys::get_relname_relid(ANNOUNCES.as_ptr(), schema)
    };
    if rest == pg_sys::InvalidOid {
        Error::dropped().raise();
    }
    Error::altered(format!("relation queen_mq.{}", name.to_string_lossy()))
        .detail("There is no such relation.")
        .raise()
}

/// Rows that are remembered, by a key of theirs.
pub type CachedRows<K, T> = SessionCache<K, (u64, T)>;

/// The row of this key, as it is at this moment: remembered, or read by `read`. In REPEATABLE READ it is
/// read each time, as the transaction sees it, and not remembered.
pub fn known<K: Eq + Hash, T: Clone>(
    rows: &CachedRows<K, T>,
    key: K,
    read: impl FnOnce(&ActiveSnapshot) -> Result<Option<T>>,
) -> Result<Option<T>> {
    if one_snapshot_per_transaction() {
        return ActiveSnapshot::new_snapshot(read);
    }
    // SAFETY: any time in a transaction will do; a lock on a relation does the same.
    unsafe { pg_sys::AcceptInvalidationMessages() };
    let changes = changes();
    let remembered = rows.change(&key, |(before, row)| (*before == changes).then(|| row.clone()));
    if let Some(row) = remembered.flatten() {
        return Ok(Some(row));
    }
    let found = ActiveSnapshot::new_snapshot(read)?;
    if let Some(row) = &found {
        rows.keep(key, (changes, row.clone()));
    }
    Ok(found)
}

/// Before a queue or a consumer group is changed in any way: nobody is to go by what they remember of it
/// once the change can be seen.
pub fn announce() {
    forget();
    // SAFETY: in a transaction; an ERROR if there is no such relation.
    unsafe { pg_sys::CacheInvalidateRelcacheByRelid(oid_of(ANNOUNCES)) };
}

/// Do not remember the value that is being read: the tables do not hold it.
pub fn forget() {
    CHANGES.set(CHANGES.get().wrapping_add(1));
}

/// How many changes of relations, and announcements, this session has heard of. What it knows of a
/// relation is valid while the count stays as it is.
pub fn changes() -> u64 {
    if !IS_LISTENING.replace(true) {
        // SAFETY: the callback lives as long as the process, and does nothing but count.
        unsafe { pg_sys::CacheRegisterRelcacheCallback(Some(hear), pg_sys::Datum::null()) };
    }
    CHANGES.get()
}

extern "C-unwind" fn hear(_: pg_sys::Datum, _: pg_sys::Oid) {
    CHANGES.set(CHANGES.get().wrapping_add(1));
}
