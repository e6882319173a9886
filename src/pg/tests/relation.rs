//! Tables and indexes that were altered by hand: those that direct access can't serve are refused,
//! and usable again when they are put back.

use std::ops::ControlFlow;

use crate::pg::columns::{Columns, arg};
use crate::pg::key::Value;
use crate::pg::scan::ScanEnd;
use crate::pg::snapshot::ActiveSnapshot;
use crate::pg::table::{Index, Table, table};

table! {
    ITEMS = c"item";
    ID: c"id" INT8OID,
    BODY: c"body" TEXTOID,
}
static TABLES: &[&Table] = &[&ITEMS];
static BY_BOTH: Index = Index { table: &ITEMS, name: c"item_by_both", columns: &[BODY, ID] };
const DDL: &str = "CREATE TABLE item (id bigint, body text COLLATE \"C\");
    CREATE UNIQUE INDEX item_by_both ON item (body, id)";

/// An operator class that puts numbers into another order.
const REVERSED: &str = "CREATE FUNCTION reversed(bigint, bigint) RETURNS int
        LANGUAGE sql IMMUTABLE STRICT AS 'SELECT pg_catalog.btint8cmp($2, $1)';
    CREATE OPERATOR CLASS reversed_ops FOR TYPE bigint USING btree AS
        OPERATOR 1 >, OPERATOR 2 >=, OPERATOR 3 =, OPERATOR 4 <=, OPERATOR 5 <,
        FUNCTION 1 reversed(bigint, bigint)";

/// Reads and writes the table.
fn use_it() {
    ITEMS.insert(&[(ID, arg(1i64)), (BODY, arg("one"))]);
    let ids = ActiveSnapshot::new_snapshot(|under| {
        Ok(BY_BOTH.end(&[Value::Text("one")], ScanEnd::Start, under, |row| row.need::<i64>(ID)))
    });
    assert_eq!(ids.ok(), Some(Some(1)));
}

#[pgrx::pg_schema]
mod tests {
    use pgrx::prelude::*;

    use super::super::backend::{RaisedError, refused};
    use super::super::lab::{enter, run, set_up, value};
    use super::super::session::{OtherSession, wait_until};
    use super::*;

    /// After each change by hand the use is refused, and after what takes the change back it is
    /// not.
    fn refuses(schema: &str, changes: &[(&str, &str, &str)], code: PgSqlErrorCode) {
        set_up(schema, TABLES, DDL);
        run(REVERSED);
        refused(use_it_and_fail);
        for (change, back, expected) in changes {
            run(change);
            let refusal = refused(use_it).unwrap_or_else(|| panic!("{change} is not refused"));
            let RaisedError { message, detail, .. } = &refusal;
            assert_eq!(refusal.code, code, "{change}: {refusal:?}");
            let said = format!("{message}. {detail}");
            assert!(said.contains(expected), "{change}: {said}");
            run(back);
            let undone = refused(use_it_and_fail).expect("an error");
            assert_eq!(undone.message, "used", "{change}, taken back");
        }
    }

    /// For a subtransaction, which undoes it.
    fn use_it_and_fail() {
        use_it();
        panic!("used");
    }

    #[pg_test]
    fn a_table_that_needs_the_planner_is_refused() {
        refuses(
            "relation_planner",
            &[
                (
                    "CREATE RULE r AS ON INSERT TO item DO ALSO NOTHING",
                    "DROP RULE r ON item",
                    "queen_mq can't use table relation_planner.item, which has rules",
                ),
                (
                    "ALTER TABLE item ENABLE ROW LEVEL SECURITY, FORCE ROW LEVEL SECURITY",
                    "ALTER TABLE item NO FORCE ROW LEVEL SECURITY",
                    "has forced row security",
                ),
                (
                    "CREATE TABLE child () INHERITS (item)",
                    "DROP TABLE child; ANALYZE item",
                    "has child tables",
                ),
                (
                    "ALTER TABLE item RENAME TO other; CREATE VIEW item AS SELECT * FROM other",
                    "DROP VIEW item; ALTER TABLE other RENAME TO item",
                    "is not an ordinary table",
                ),
            ],
            PgSqlErrorCode::ERRCODE_FEATURE_NOT_SUPPORTED,
        );
    }

    #[pg_test]
    fn a_table_without_the_columns_that_the_code_knows_is_refused() {
        refuses(
            "relation_columns",
            &[
                (
                    "ALTER TABLE item RENAME body TO text",
                    "ALTER TABLE item RENAME text TO body",
                    "column \"body\" of table relation_columns.item is not as queen_mq has made \
                     it. The table has no such column.",
                ),
                (
                    "ALTER TABLE item ALTER body TYPE varchar COLLATE \"C\"",
                    "ALTER TABLE item ALTER body TYPE text COLLATE \"C\"",
                    "The table has a column of another type.",
                ),
                (
                    "ALTER TABLE item DROP id",
                    "ALTER TABLE item ADD id bigint;
                     CREATE UNIQUE INDEX item_by_both ON item (body, id)",
                    "column \"id\"",
                ),
            ],
            PgSqlErrorCode::ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE,
        );
    }

    #[pg_test]
    fn an_index_that_is_not_of_the_columns_in_their_order_is_refused() {
        let broken: Vec<(String, &str, &str)> = [
            "UNIQUE INDEX item_by_both ON item (id, body)",
            "INDEX item_by_both ON item (body)",
            "INDEX item_by_both ON item (body, id, (id + 1))",
            "INDEX item_by_both ON item (body, id DESC)",
            "INDEX item_by_both ON item (body NULLS FIRST, id)",
            "INDEX item_by_both ON item (body, id reversed_ops)",
            "INDEX item_by_both ON item (body COLLATE \"POSIX\", id)",
            "INDEX item_by_both ON item (body, (id + 1))",
            "INDEX item_by_both ON item USING brin (body, id)",
        ]
        .map(|index| {
            let change = format!("DROP INDEX item_by_both; CREATE {index}");
            let back = "DROP INDEX item_by_both;
                CREATE UNIQUE INDEX item_by_both ON item (body, id) INCLUDE (body)";
            (change, back, "index relation_index.item_by_both is not as queen_mq has made it.")
        })
        .into();
        let mut changes: Vec<_> =
            broken.iter().map(|(change, back, expected)| (&change[..], *back, *expected)).collect();
        changes.extend([
            (
                "UPDATE pg_index SET indisvalid = false
                 WHERE indexrelid = 'item_by_both'::regclass",
                "UPDATE pg_index SET indisvalid = true
                 WHERE indexrelid = 'item_by_both'::regclass",
                "The index is not valid, so rows may be missing in it.",
            ),
            (
                "ALTER INDEX item_by_both RENAME TO other",
                "ALTER INDEX other RENAME TO item_by_both",
                "There is no such relation.",
            ),
            (
                "ALTER INDEX item_by_both RENAME TO other;
                 CREATE TABLE second (body text COLLATE \"C\", id bigint);
                 CREATE UNIQUE INDEX item_by_both ON second (body, id)",
                "DROP TABLE second; ALTER INDEX other RENAME TO item_by_both",
                "It is not the b-tree index on columns body, id of table relation_index.item.",
            ),
        ]);
        let code = PgSqlErrorCode::ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE;
        refuses("relation_index", &changes, code);
    }

    #[pg_test]
    fn what_other_statements_allow_is_allowed() {
        set_up("relation_allowed", TABLES, DDL);
        for change in [
            "ALTER TABLE item ENABLE ROW LEVEL SECURITY",
            "CREATE POLICY p ON item USING (false) WITH CHECK (false)",
            "ALTER TABLE item ADD extra int, ADD CHECK (id > 0)",
            "ALTER TABLE item SET (fillfactor = 50)",
            "CREATE INDEX ON item USING hash (body)",
            "DROP INDEX item_by_both;
             CREATE INDEX item_by_both ON item (body text_pattern_ops, id)",
            "DROP INDEX item_by_both; CREATE INDEX item_by_both ON item (body, id) WHERE id > 0",
            "CREATE STATISTICS related ON id, body FROM item",
        ] {
            run(change);
            let undone = refused(use_it_and_fail).expect("an error");
            assert_eq!(undone.message, "used", "{change}");
        }
    }

    /// The session reads and writes the table in a transaction of its own.
    #[pg_extern]
    fn writes_while_indexes_are_rebuilt() -> String {
        enter("relation_reindex", TABLES);
        let next = value("SELECT count(*) + 1 FROM item").parse::<i64>().expect("a number");
        let row = [(ID, arg(next)), (BODY, arg("row"))];
        assert!(ITEMS.try_insert(&BY_BOTH, &row).is_some());
        assert!(ITEMS.try_insert(&BY_BOTH, &row).is_none());
        let ids = ActiveSnapshot::new_snapshot(|under| {
            let mut ids = Vec::new();
            BY_BOTH.scan::<()>(&[], ScanEnd::Start, under, |row| {
                ids.push(row.need::<i64>(ID).to_string());
                ControlFlow::Continue(())
            });
            Ok(ids.join(" "))
        });
        ids.expect("rows")
    }

    /// In a database of its own: REINDEX CONCURRENTLY waits for all old snapshots of its database,
    /// of which the test has one.
    #[pg_test]
    fn an_index_may_be_rebuilt_while_it_is_in_use() {
        let database = "relation_reindex";
        OtherSession::connect().run(&format!("CREATE DATABASE {database}"));
        let mut sessions = [(); 3].map(|()| OtherSession::connect_to(database));
        let [rebuilding, first, second] = &mut sessions;
        rebuilding.run("CREATE EXTENSION queen_mq");
        rebuilding.run(&format!("CREATE SCHEMA {database}; SET search_path = {database}; {DDL}"));
        let write = "SELECT tests.writes_while_indexes_are_rebuilt()";
        assert_eq!(first.value(write), "1");
        let before = rebuilding.value("SELECT 'item_by_both'::regclass::oid");

        // It first makes the new index, which is not written to yet, and waits for the first
        // session.
        first.run("BEGIN");
        assert_eq!(first.value(write), "1 2");
        rebuilding.send("REINDEX INDEX CONCURRENTLY item_by_both");
        rebuilding.wait_until_blocked();
        assert_eq!(first.value(write), "1 2 3");
        // Then it fills the new index, and waits for the second session. Rows go into both indexes.
        second.run("BEGIN; LOCK TABLE relation_reindex.item IN ROW EXCLUSIVE MODE");
        first.run("COMMIT");
        let is_ready = "SELECT count(*) FROM pg_index WHERE indisready AND NOT indisvalid";
        wait_until("the new index", || first.value(is_ready) == "1");
        assert_eq!(first.value(write), "1 2 3 4");
        second.run("COMMIT");
        rebuilding.answer().expect("a new index");

        assert_ne!(rebuilding.value("SELECT 'item_by_both'::regclass::oid"), before);
        assert_eq!(first.value(write), "1 2 3 4 5");
    }
}
