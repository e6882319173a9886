//! Tables of the extension as the code knows them: their columns by name and type, the columns of
//! their indexes, and where a row lies.
//!
//! A column is named, never counted. Where it lies in the table is found out when a session opens
//! the table (see [`super::relation`]). So a column that was added or dropped by hand, or that came
//! with an update of the extension, moves none of those that the code reads.

use std::ffi::CStr;

use pgrx::pg_sys;

/// A table of the extension's schema. [`table!`] makes one.
pub struct Table {
    pub name: &'static CStr,
    /// Name and type of each column that the code reads or writes.
    pub columns: &'static [(&'static CStr, pg_sys::Oid)],
}

impl Table {
    /// Whether this is a column of this table.
    pub fn has(&self, column: Column) -> bool {
        self.columns.get(column.place).is_some_and(|(name, _)| *name == column.name)
    }
}

/// A column of a table.
#[derive(Clone, Copy)]
pub struct Column {
    /// Its place in [`Table::columns`].
    place: usize,
    name: &'static CStr,
}

impl std::fmt::Debug for Column {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "\"{}\"", self.name.to_string_lossy())
    }
}

impl Column {
    pub const fn new(place: usize, name: &'static CStr) -> Self {
        Self { place, name }
    }

    pub fn place(self) -> usize {
        self.place
    }

    pub fn name(self) -> &'static CStr {
        self.name
    }
}

/// A b-tree index of a table, with its key columns in their order.
pub struct Index {
    pub table: &'static Table,
    pub name: &'static CStr,
    pub columns: &'static [Column],
}

/// Defines a table, and a constant for each of its columns:
///
/// ```text
/// table! {
///     TIMERS = c"timer";
///     ID: c"id" INT8OID,
///     DELIVER_AT: c"deliver_at" TIMESTAMPTZOID,
/// }
/// ```
macro_rules! table {
    ($table:ident = $name:literal; $($column:ident: $column_name:literal $type:ident),* $(,)?) => {
        pub static $table: $crate::pg::table::Table = $crate::pg::table::Table {
            name: $name,
            columns: &[$(($column_name, pgrx::pg_sys::$type)),*],
        };
        $crate::pg::table::columns! { 0; $($column: $column_name,)* }
    };
}
pub(crate) use table;

/// The constants of [`table!`], each with its place.
macro_rules! columns {
    ($place:expr;) => {};
    ($place:expr; $column:ident: $name:literal, $($rest:tt)*) => {
        #[allow(dead_code)]
        const $column: $crate::pg::table::Column = $crate::pg::table::Column::new($place, $name);
        $crate::pg::table::columns! { $place + 1; $($rest)* }
    };
}
pub(crate) use columns;

/// Where a row lies.
#[derive(Clone, Copy, Debug)]
pub struct RowLocation(pub(super) pg_sys::ItemPointerData);

impl RowLocation {
    /// As one number.
    pub fn number(self) -> u64 {
        pgrx::itemptr::item_pointer_to_u64(self.0)
    }
}
