//! The extension in PostgreSQL's catalogue: the OIDs of its relations, and the role that owns them.
//! A session remembers both until it hears of a change (see [`changes`]).

use std::cell::{Cell, RefCell};
use std::ffi::{CStr, c_char};

use pgrx::pg_sys;

use super::address_map::AddressMap;
use super::table::Table;
use super::{changes, roles};
use crate::error::Error;

/// What this layer has to know of the extension that it serves.
pub struct Extension {
    pub schema: &'static CStr,
    /// All tables. The owner of the first is the role as which the extension's code runs.
    pub tables: &'static [&'static Table],
    /// The table in whose name changes of rows are announced: one that is hardly ever opened, since
    /// every session reads its definition again after each announcement.
    pub announces: &'static Table,
}

thread_local! {
    static EXTENSION: Cell<Option<&'static Extension>> = const { Cell::new(None) };
    /// By the address of the name: with the count of changes before it was looked up.
    static OIDS: RefCell<AddressMap<*const c_char, (u64, pg_sys::Oid)>> = RefCell::default();
}

/// To be called when the library is loaded.
pub fn register(extension: &'static Extension) {
    EXTENSION.set(Some(extension));
}

fn extension() -> &'static Extension {
    match EXTENSION.get() {
        Some(extension) => extension,
        None => Error::corrupt("the library was loaded without its entry point").raise(),
    }
}

/// A relation's OID; relations of an extension are there as long as its functions. Changes are
/// heard of no later than the relation is locked.
pub fn oid_of(name: &'static CStr) -> pg_sys::Oid {
    let changes = changes::count();
    let known = OIDS.with_borrow(|known| known.get(&name.as_ptr()).copied());
    if let Some((_, oid)) = known.filter(|(before, _)| *before == changes) {
        return oid;
    }
    let oid = look_up(name);
    OIDS.with_borrow_mut(|known| known.insert(name.as_ptr(), (changes, oid)));
    oid
}

/// Whether there is such a relation of the extension at this moment.
pub fn is_there(name: &CStr) -> bool {
    find(name) != pg_sys::InvalidOid
}

/// InvalidOid where there is no such relation.
fn find(name: &CStr) -> pg_sys::Oid {
    // SAFETY: look-ups in the catalogue caches, with NUL-terminated names.
    unsafe {
        pg_sys::get_relname_relid(
            name.as_ptr(),
            pg_sys::get_namespace_oid(extension().schema.as_ptr(), true),
        )
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
/// that. This call locks the first of the tables to the end of the transaction. A statement that
/// changes the owner waits for that lock, and a change before it has been heard of. Otherwise a
/// trigger of the new owner would run as the old one.
pub fn owner() -> pg_sys::Oid {
    loop {
        let first = oid_of(extension().tables[0].name);
        // SAFETY: a lock on what may be gone by now, which the look-ups tell.
        unsafe { pg_sys::LockRelationOid(first, pg_sys::AccessShareLock as i32) };
        let changes = changes::count();
        let (before, known) = OWNER.get();
        if before == changes && known != pg_sys::InvalidOid {
            return known;
        }
        if oid_of(extension().tables[0].name) != first {
            continue;
        }
        let owner = owner_of(first);
        refuse_other_owners(owner);
        OWNER.set((changes, owner));
        return owner;
    }
}

/// Refuse tables of different owners: a trigger of one owner would run with the rights of another.
fn refuse_other_owners(owner: pg_sys::Oid) {
    let tables = extension().tables;
    for table in tables {
        let oid = find(table.name);
        // Where a table is gone, the code that needs it raises the error.
        if oid != pg_sys::InvalidOid && owner_of(oid) != owner {
            refuse_owner(table, owner_of(oid), owner);
        }
    }
}

/// `of_rest`: the role that owns the first of the tables.
fn refuse_owner(table: &Table, owner: pg_sys::Oid, of_rest: pg_sys::Oid) -> ! {
    let first = full_name(extension().tables[0].name);
    let (owner, of_rest) = (role_name(owner), role_name(of_rest));
    Error::altered(format!("the owner of table {}", full_name(table.name)))
        .detail(format!(
            "Role {owner} owns it, and role {of_rest} owns table {first}. A trigger would run with \
             the rights of the wrong role."
        ))
        .hint("Give all tables of schema queen_mq to one role, with REASSIGN OWNED.")
        .raise()
}

/// The name of a role in quotes, or its OID if it is gone.
fn role_name(role: pg_sys::Oid) -> String {
    roles::name(role).map_or_else(|| role.to_u32().to_string(), |name| format!("\"{name}\""))
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

/// Whether an extension of this name is in the database.
pub fn has_extension(name: &CStr) -> bool {
    // SAFETY: a look-up in the catalogue caches, with a NUL-terminated name.
    unsafe { pg_sys::get_extension_oid(name.as_ptr(), true) != pg_sys::InvalidOid }
}

/// The schema of this name; InvalidOid where there is none.
pub fn schema(name: &CStr) -> pg_sys::Oid {
    // SAFETY: a look-up in the catalogue caches, with a NUL-terminated name.
    unsafe { pg_sys::get_namespace_oid(name.as_ptr(), true) }
}

/// Whether a relation lies in the extension's schema.
pub fn is_ours(relation: pg_sys::Oid) -> bool {
    // SAFETY: look-ups in the catalogue caches; neither is there for what is not a relation.
    unsafe {
        let schema = pg_sys::get_namespace_oid(extension().schema.as_ptr(), true);
        schema != pg_sys::InvalidOid && pg_sys::get_rel_namespace(relation) == schema
    }
}

/// A relation is missing because its extension was dropped, or because it was dropped or renamed by
/// hand.
fn refuse_missing(name: &CStr) -> ! {
    // SAFETY: as in `look_up`.
    let rest = unsafe {
        let schema = pg_sys::get_namespace_oid(extension().schema.as_ptr(), true);
        pg_sys::get_relname_relid(extension().announces.name.as_ptr(), schema)
    };
    if rest == pg_sys::InvalidOid {
        Error::dropped().raise();
    }
    Error::altered(format!("relation {}", full_name(name)))
        .detail("There is no such relation.")
        .raise()
}

/// Announce a change of rows that sessions remember, before it is made: no session goes by what it
/// remembers once it can see the change.
pub fn announce() {
    changes::announce(oid_of(extension().announces.name));
}

/// As a user would write it.
pub fn full_name(name: &CStr) -> String {
    format!("{}.{}", extension().schema.to_string_lossy(), name.to_string_lossy())
}
