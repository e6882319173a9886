//! Tables and indexes of ours, opened for direct look-ups and inserts: what the executor would find
//! out about them while it plans.
//!
//! A superuser or the owner of the tables may alter them. Added columns, constraints, triggers and
//! indexes work as they do for any statement. Rules, forced row security and child tables, which
//! direct access would silently ignore, are refused; so is a table that lacks a column that the
//! code reads. A session remembers what it found until it hears of a change of any relation.

use std::cell::RefCell;
use std::ffi::{CStr, c_char};
use std::rc::Rc;

use pgrx::{PgList, pg_sys};

use super::kept_open::{InUse, RelationKey};
use super::plain_index::{PlainIndex, null_tests, plain_indexes};
use super::table::{Index, Table};
use super::{catalogue, changes};
use crate::error::Error;
use crate::pg::address_map::AddressMap;

pub const READ: i32 = pg_sys::AccessShareLock as i32;
pub const WRITE: i32 = pg_sys::RowExclusiveLock as i32;
/// To close without giving up the lock.
pub const KEEP: i32 = pg_sys::NoLock as i32;

/// Where the columns of a [`Table`] lie in the table, in the order of [`Table::columns`].
pub type Attributes = Rc<[i16]>;

/// An open table. It is closed by hand: on an ERROR the transaction's resource owner does it.
pub struct Opened {
    in_use: InUse,
    pub relation: pg_sys::Relation,
    pub attributes: Attributes,
    /// Whether writing a row runs code of the table's owner: a trigger, a constraint, a default, an
    /// index's expression, predicate or operators.
    pub runs_code: bool,
    /// The indexes that take new rows, if a row can be put into each of them without the executor.
    pub plain: Option<Rc<[PlainIndex]>>,
}

/// What a session has found out about a table.
#[derive(Clone)]
struct Known {
    /// The count of changes before it looked.
    before: u64,
    attributes: Attributes,
    runs_code: bool,
    plain: Option<Rc<[PlainIndex]>>,
}

impl Known {
    fn of(self, in_use: InUse) -> Opened {
        let Self { attributes, runs_code, plain, .. } = self;
        Opened { relation: in_use.relation, in_use, attributes, runs_code, plain }
    }
}

impl Opened {
    /// Close the table. Its lock is kept to the end of the transaction.
    pub fn close(self) {
        self.in_use.close();
    }
}

thread_local! {
    /// By the address of a table's name.
    static TABLES: RefCell<AddressMap<*const c_char, Known>> = RefCell::default();
    /// Indexes that have been checked, with the count of changes before that.
    static INDEXES: RefCell<AddressMap<*const c_char, u64>> = RefCell::default();
}

/// Open a table. It may have gone since it was found by its name.
///
/// # Safety
/// In a transaction.
pub unsafe fn open(table: &Table, mode: i32) -> Opened {
    let name = table.name;
    let in_use = open_or_keep(name, mode);
    let relation = in_use.relation;
    // Taking the lock has made the session hear of every change before it.
    let changes = changes::count();
    let known = TABLES.with_borrow(|known| known.get(&name.as_ptr()).cloned());
    if let Some(known) = known.filter(|known| known.before == changes) {
        return known.of(in_use);
    }
    // SAFETY: the relation is open.
    let found = unsafe {
        refuse_unusable(name, relation);
        let attributes = attributes_of(table, relation);
        let runs_code = runs_code(relation, attributes.len());
        let plain = if runs_code { None } else { plain_indexes(relation) };
        Known { before: changes, attributes, runs_code, plain }
    };
    TABLES.with_borrow_mut(|known| known.insert(name.as_ptr(), found.clone()));
    found.of(in_use)
}

/// The table of this name: open still, or opened and locked now.
fn open_or_keep(name: &'static CStr, mode: i32) -> InUse {
    let key = RelationKey::Name(name.as_ptr(), mode);
    if let Some(kept) = InUse::kept(key, changes::count()) {
        return kept;
    }
    // SAFETY: answers NULL for what is not there.
    let relation = unsafe { pg_sys::try_relation_open(catalogue::oid_of(name), mode) };
    if relation.is_null() {
        Error::dropped().raise();
    }
    InUse::opened(key, changes::count(), relation)
}

/// An open table's attributes.
///
/// # Safety
/// The relation is open for as long as the result is used.
pub unsafe fn described<'a>(relation: pg_sys::Relation) -> &'a [pg_sys::FormData_pg_attribute] {
    // SAFETY: a descriptor has as many attributes as it says; in PostgreSQL 18 they follow the
    // compact ones.
    unsafe {
        let descriptor = (*relation).rd_att;
        let count = (*descriptor).natts as usize;
        #[cfg(feature = "pg18")]
        let first = (*descriptor).compact_attrs.as_ptr().add(count).cast();
        #[cfg(not(feature = "pg18"))]
        let first = (*descriptor).attrs.as_ptr();
        std::slice::from_raw_parts(first, count)
    }
}

/// # Safety
/// The relation is open.
unsafe fn refuse_unusable(name: &CStr, relation: pg_sys::Relation) {
    // SAFETY: an open relation has a row of pg_class.
    let (class, has_rules) = unsafe { (&*(*relation).rd_rel, !(*relation).rd_rules.is_null()) };
    let table = catalogue::full_name(name);
    let refuse = |what: &str, why: &str, hint: &str| {
        Error::unsupported(format!("queen_mq can't use table {table}, which {what}"))
            .detail(format!("queen_mq reads and writes rows without the planner, {why}."))
            .hint(hint)
            .raise()
    };
    if class.relkind != pg_sys::RELKIND_RELATION as c_char {
        let hint = "Put the table of the extension back.";
        refuse("is not an ordinary table", "so it needs an ordinary table", hint);
    }
    if has_rules {
        let hint = "Drop the rules. Triggers can do what they did.";
        refuse("has rules", "so the rules would have no effect", hint);
    }
    if class.relrowsecurity && class.relforcerowsecurity {
        let hint = format!(
            "Run ALTER TABLE {table} NO FORCE ROW LEVEL SECURITY. The policies then hold for all \
             roles but the owner."
        );
        refuse("has forced row security", "so the policies would have no effect", &hint);
    }
    if class.relhassubclass {
        let hint = "Drop the child tables, then ANALYZE this one.";
        refuse("has child tables", "so it would not see rows of child tables", hint);
    }
}

/// Whether writing a row of a table with `columns` of ours runs code of the table's owner.
///
/// # Safety
/// The relation is open.
unsafe fn runs_code(relation: pg_sys::Relation, columns: usize) -> bool {
    // SAFETY: an open relation has these parts; an index of it stays while its table is locked.
    unsafe {
        let constraints = (*(*relation).rd_att).constr.as_ref();
        let is_checked =
            constraints.is_some_and(|all| all.num_check > 0 || all.has_generated_stored);
        let indexes = PgList::<pg_sys::Oid>::from_pg(pg_sys::RelationGetIndexList(relation));
        let computes = |index: pg_sys::Oid| {
            let index = pg_sys::index_open(index, READ);
            let (row, none) = ((*index).rd_indextuple, std::ptr::null_mut());
            let has = |number: u32| !pg_sys::heap_attisnull(row, number as i32, none);
            let form = &*(*index).rd_index;
            let families =
                std::slice::from_raw_parts((*index).rd_opfamily, form.indnkeyatts as usize);
            let computes = has(pg_sys::Anum_pg_index_indexprs)
                || null_tests(index).is_none()
                || families.iter().any(|family| family.to_u32() >= pg_sys::FirstNormalObjectId);
            pg_sys::index_close(index, KEEP);
            computes
        };
        !(*relation).trigdesc.is_null()
            || (*(*relation).rd_rel).relispartition
            || is_checked
            || described(relation).iter().filter(|one| !one.attisdropped).count() > columns
            || indexes.iter_oid().any(computes)
    }
}

/// # Safety
/// The relation is open.
unsafe fn attributes_of(table: &Table, relation: pg_sys::Relation) -> Attributes {
    // SAFETY: the attributes are read before the relation is closed.
    let described = unsafe { described(relation) };
    let place = |(column, of_type): &(&CStr, pg_sys::Oid)| {
        let is_it = |attribute: &&pg_sys::FormData_pg_attribute| {
            // SAFETY: a name ends in a NUL.
            let called = unsafe { CStr::from_ptr(attribute.attname.data.as_ptr()) };
            !attribute.attisdropped && called == *column
        };
        match described.iter().find(is_it) {
            Some(attribute) if attribute.atttypid == *of_type => attribute.attnum,
            found => {
                let what = found.map_or("no such column", |_| "a column of another type");
                let column = column.to_string_lossy();
                Error::altered(format!(
                    "column \"{column}\" of table {}",
                    catalogue::full_name(table.name)
                ))
                .detail(format!("The table has {what}."))
                .raise()
            }
        }
    };
    table.columns.iter().map(place).collect()
}

/// Open an index of an open table.
///
/// # Safety
/// In a transaction.
pub unsafe fn open_index(wanted: &Index, table: &Opened) -> InUse {
    let name = wanted.name;
    let key = RelationKey::Name(name.as_ptr(), READ);
    if let Some(kept) = InUse::kept(key, changes::count()) {
        return kept;
    }
    // REINDEX CONCURRENTLY gives the name to another index, and then waits for all transactions
    // that have locked the table. A call that looked the name up before that, and opens it after,
    // looks again.
    let mut looked_at = pg_sys::InvalidOid;
    let mut fault = IndexFault::OtherColumns;
    loop {
        let oid = catalogue::oid_of(name);
        if oid == looked_at {
            fault.raise(wanted);
        }
        looked_at = oid;
        // SAFETY: answers NULL for what is not there; what was opened is closed, or given back.
        unsafe {
            let index = pg_sys::try_index_open(oid, READ);
            if index.is_null() {
                continue;
            }
            let changes = changes::count();
            let known = INDEXES.with_borrow(|known| known.get(&name.as_ptr()) == Some(&changes));
            let found = if known { None } else { fault_of(wanted, index, table) };
            let Some(found) = found else {
                INDEXES.with_borrow_mut(|known| known.insert(name.as_ptr(), changes));
                return InUse::opened(key, changes, index);
            };
            fault = found;
            pg_sys::index_close(index, READ);
        }
    }
}

/// Why an index can't be used.
enum IndexFault {
    OtherColumns,
    NotValid,
}

impl IndexFault {
    fn raise(self, wanted: &Index) -> ! {
        let error = Error::altered(format!("index {}", catalogue::full_name(wanted.name)));
        match self {
            IndexFault::NotValid => error
                .detail("The index is not valid, so rows may be missing in it.")
                .hint(format!("Run REINDEX INDEX {}.", catalogue::full_name(wanted.name))),
            IndexFault::OtherColumns => {
                let names = wanted.columns.iter().map(|column| column.name().to_string_lossy());
                error.detail(format!(
                    "It is not the b-tree index on columns {} of table {}.",
                    names.collect::<Vec<_>>().join(", "),
                    catalogue::full_name(wanted.table.name)
                ))
            }
        }
        .raise()
    }
}

/// Why an index does not have all rows in the order that the code relies on; None if it has. An
/// index that is too young for an old snapshot (indcheckxmin) is usable: no update changes a key of
/// ours.
///
/// # Safety
/// Both are open.
unsafe fn fault_of(wanted: &Index, index: pg_sys::Relation, table: &Opened) -> Option<IndexFault> {
    // SAFETY: the table is open.
    let described = unsafe { described(table.relation) };
    // SAFETY: the arrays of an open index are as long as it has key columns.
    unsafe {
        let form = &*(*index).rd_index;
        let is_ours = form.indrelid == (*table.relation).rd_id
            && (*(*index).rd_rel).relam == pg_sys::BTREE_AM_OID
            && form.indnkeyatts as usize == wanted.columns.len();
        let has_columns = is_ours
            && wanted.columns.iter().enumerate().all(|(i, key)| {
                let number = *form.indkey.values.as_ptr().add(i);
                let Some(column) = described.get((number as usize).wrapping_sub(1)) else {
                    return false;
                };
                let collation = *(*index).rd_indcollation.add(i);
                // Operators of the user's may compare otherwise.
                let family = *(*index).rd_opfamily.add(i);
                CStr::from_ptr(column.attname.data.as_ptr()) == key.name()
                    && *(*index).rd_opcintype.add(i) == column.atttypid
                    && family.to_u32() < pg_sys::FirstNormalObjectId
                    && *(*index).rd_indoption.add(i) == 0
                    && [pg_sys::InvalidOid, pg_sys::C_COLLATION_OID].contains(&collation)
            });
        match (has_columns, form.indisvalid) {
            (true, true) => None,
            (true, false) => Some(IndexFault::NotValid),
            (false, _) => Some(IndexFault::OtherColumns),
        }
    }
}

/// A statement of ours has not written its row. If a trigger may have suppressed it, raise an
/// error.
pub fn refuse_suppression(table: &Table) {
    // SAFETY: opened, looked at and closed.
    let can_be = unsafe {
        let table = open(table, READ);
        let can_be = (*table.relation).trigdesc.as_ref().is_some_and(|all| {
            all.trig_insert_before_row || all.trig_update_before_row || all.trig_delete_before_row
        });
        table.close();
        can_be
    };
    if can_be {
        Error::suppressed(&catalogue::full_name(table.name)).raise();
    }
}
