//! Rows that a session remembers until it hears of a change.

use std::cell::Cell;

use crate::pg::columns::Columns;
use crate::pg::key::Value;
use crate::pg::row_cache::RowCache;
use crate::pg::scan::ScanEnd;
use crate::pg::table::{Index, Table, table};

table! {
    ITEMS = c"item";
    ID: c"id" INT8OID,
    BODY: c"body" TEXTOID,
}
static TABLES: &[&Table] = &[&ITEMS];
static BY_ID: Index = Index { table: &ITEMS, name: c"item_pkey", columns: &[ID] };
const DDL: &str = "CREATE TABLE item (id bigint PRIMARY KEY, body text);
    INSERT INTO item VALUES (1, 'old'), (2, 'second')";

/// A cache of the table's rows that counts how often it reads the table.
struct CountedCache {
    rows: RowCache<i64, String>,
    reads: Cell<u32>,
}

impl CountedCache {
    fn new() -> Self {
        Self { rows: RowCache::of(10), reads: Cell::new(0) }
    }

    fn get(&self, id: i64) -> Option<String> {
        let found = self.rows.get(id, |under| {
            self.reads.set(self.reads.get() + 1);
            let read = |row: &_| Columns::need::<String>(row, BODY);
            Ok(BY_ID.end(&[Value::Int(id)], ScanEnd::Start, under, read))
        });
        found.expect("a row, or none")
    }

    /// Whether it has given a row without a look at the table.
    fn remembers(&self, id: i64) -> bool {
        let before = self.reads.get();
        self.get(id);
        self.reads.get() == before
    }
}

#[pgrx::pg_schema]
mod tests {
    use pgrx::prelude::*;

    use super::super::lab::{enter, run, set_up};
    use super::super::session::{OtherSession, wait_until};
    use super::*;
    use crate::pg::catalogue;

    #[pg_test]
    fn a_row_is_remembered_and_one_that_is_missing_is_not() {
        set_up("cache_remember", TABLES, DDL);
        let cache = CountedCache::new();
        assert_eq!(cache.get(1).as_deref(), Some("old"));
        // What other tests change lets this session read again.
        wait_until("a row that is remembered", || cache.remembers(1));
        assert_eq!(cache.get(1).as_deref(), Some("old"));
        assert_eq!(cache.get(3), None);
        assert!(!cache.remembers(3));
    }

    /// Changes a row as the extension does: it announces the change first.
    #[pg_extern]
    fn change_a_cached_row(schema: &str) {
        enter(schema, TABLES);
        catalogue::announce();
        run("UPDATE item SET body = 'new' WHERE id = 1");
    }

    #[pg_test]
    fn a_change_of_another_session_is_read_as_soon_as_it_is_committed() {
        let mut other = set_up("cache_change", TABLES, DDL);
        let cache = CountedCache::new();
        other.run("BEGIN; SELECT tests.change_a_cached_row('cache_change')");
        assert_eq!(cache.get(1).as_deref(), Some("old"));
        wait_until("a row that is remembered", || cache.remembers(1));
        other.run("COMMIT");
        assert_eq!(cache.get(1).as_deref(), Some("new"));
    }

    #[pg_test]
    fn a_change_of_its_own_is_read_at_once_and_forgotten_when_it_is_undone() {
        set_up("cache_own", TABLES, DDL);
        let cache = CountedCache::new();
        assert_eq!(cache.get(1).as_deref(), Some("old"));
        let undone = crate::pg::subtransaction::undone(|| {
            change_a_cached_row("cache_own");
            Ok::<_, ()>((cache.get(1), cache.get(1)))
        });
        let new = Some("new".to_owned());
        assert_eq!(undone, Ok((new.clone(), new)));
        assert_eq!(cache.get(1).as_deref(), Some("old"));
    }

    #[pg_extern]
    fn cache_in_repeatable_read() {
        enter("cache_repeatable", TABLES);
        let mut other = OtherSession::connect();
        let cache = CountedCache::new();
        assert_eq!(cache.get(1).as_deref(), Some("old"));
        other.run("SELECT tests.change_a_cached_row('cache_repeatable')");
        assert_eq!(cache.get(1).as_deref(), Some("old"));
        assert!(!cache.remembers(1));
        assert!(!cache.remembers(2));
        assert_eq!(cache.reads.get(), 4);
    }

    #[pg_test]
    fn in_repeatable_read_rows_are_read_each_time_as_the_transaction_sees_them() {
        let mut other = set_up("cache_repeatable", TABLES, DDL);
        other.run("BEGIN ISOLATION LEVEL REPEATABLE READ; SELECT tests.cache_in_repeatable_read()");
    }
}
