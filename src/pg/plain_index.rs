//! Indexes that a row can be put into without the executor: their keys are columns, and their
//! predicates tests of columns for NULL.

use std::rc::Rc;

use pgrx::{PgList, pg_sys};

/// An index of which no more need be known than which columns it takes, and of which rows.
pub struct PlainIndex {
    pub oid: pg_sys::Oid,
    /// The attributes of the table that it has, in its order.
    pub attributes: Vec<i16>,
    /// How many of them, from the first on, are its key.
    keys: usize,
    /// It has the rows in which each of these attributes is NULL (true), or is not.
    tests: Vec<(i16, bool)>,
    pub is_unique: bool,
}

impl PlainIndex {
    /// Whether the index has a row. `is_null` tells of an attribute whether it is NULL.
    pub fn takes(&self, is_null: impl Fn(i16) -> bool) -> bool {
        self.tests.iter().all(|(attribute, wanted)| is_null(*attribute) == *wanted)
    }

    /// Whether this is `other`, or one that REINDEX CONCURRENTLY is putting in its place, or has
    /// left behind.
    pub fn is_like(&self, other: &Self) -> bool {
        self.is_unique && other.is_unique && self.key() == other.key()
    }

    fn key(&self) -> &[i16] {
        &self.attributes[..self.keys]
    }
}

/// The indexes of a table that take new rows; None if one of them is not plain. The caller has
/// found that none runs code of the table's owner.
///
/// # Safety
/// The table is open.
pub unsafe fn plain_indexes(table: pg_sys::Relation) -> Option<Rc<[PlainIndex]>> {
    // SAFETY: the indexes stay while the table is locked.
    unsafe {
        let indexes = PgList::<pg_sys::Oid>::from_pg(pg_sys::RelationGetIndexList(table));
        let mut plain = Vec::new();
        for oid in indexes.iter_oid() {
            let index = pg_sys::index_open(oid, pg_sys::AccessShareLock as i32);
            let found = described(index);
            pg_sys::index_close(index, pg_sys::NoLock as i32);
            plain.extend(found?);
        }
        Some(plain.into())
    }
}

/// `Some(None)`: it takes no rows yet, or no more. None: it is not plain.
///
/// # Safety
/// The index is open.
unsafe fn described(index: pg_sys::Relation) -> Option<Option<PlainIndex>> {
    // SAFETY: an open index has these parts, and as many keys as it says.
    unsafe {
        let form = &*(*index).rd_index;
        if !form.indisready {
            return Some(None);
        }
        let is_plain = (*(*index).rd_rel).relam == pg_sys::BTREE_AM_OID
            && form.indimmediate
            && !form.indisexclusion;
        let first = form.indkey.values.as_ptr();
        let attributes = std::slice::from_raw_parts(first, form.indnatts as usize).to_vec();
        if !is_plain || attributes.iter().any(|attribute| *attribute <= 0) {
            return None;
        }
        let tests = null_tests(index)?;
        let (oid, keys) = (form.indexrelid, form.indnkeyatts as usize);
        Some(Some(PlainIndex { oid, attributes, keys, tests, is_unique: form.indisunique }))
    }
}

/// What the predicate of an index tests, if it tests no more than columns for NULL.
///
/// # Safety
/// The index is open.
pub unsafe fn null_tests(index: pg_sys::Relation) -> Option<Vec<(i16, bool)>> {
    // SAFETY: a list of nodes, in the current memory context; their tags say what they are.
    unsafe {
        let nodes = PgList::<pg_sys::Node>::from_pg(pg_sys::RelationGetIndexPredicate(index));
        nodes.iter_ptr().map(|node| null_test(node)).collect()
    }
}

/// # Safety
/// A node.
unsafe fn null_test(node: *mut pg_sys::Node) -> Option<(i16, bool)> {
    // SAFETY: as above.
    unsafe {
        if !pgrx::is_a(node, pg_sys::NodeTag::T_NullTest) {
            return None;
        }
        let test = &*node.cast::<pg_sys::NullTest>();
        if test.argisrow || !pgrx::is_a(test.arg.cast(), pg_sys::NodeTag::T_Var) {
            return None;
        }
        let attribute = (*test.arg.cast::<pg_sys::Var>()).varattno;
        let is_null = test.nulltesttype == pg_sys::NullTestType::IS_NULL;
        (attribute > 0).then_some((attribute, is_null))
    }
}

/// An empty description, for [`pg_sys::index_insert`]: a b-tree reads none.
///
/// # Safety
/// In a memory context that outlives its use.
pub unsafe fn no_details() -> *mut pg_sys::IndexInfo {
    // SAFETY: a node is zeroed memory with its tag.
    unsafe {
        let details: *mut pg_sys::IndexInfo =
            pg_sys::palloc0(size_of::<pg_sys::IndexInfo>()).cast();
        (*details).type_ = pg_sys::NodeTag::T_IndexInfo;
        details
    }
}
