//! Inserts without the executor: to the table's owner they are INSERT statements. What each of them
//! stores, and how it fails, is compared with the statement itself.

use crate::pg::columns::arg;
use crate::pg::table::{Index, Table, table};

table! {
    ITEMS = c"item";
    ID: c"id" INT8OID,
    BODY: c"body" TEXTOID,
}
static TABLES: &[&Table] = &[&ITEMS];
static BY_ID: Index = Index { table: &ITEMS, name: c"item_pkey", columns: &[ID] };
const DDL: &str = "CREATE TABLE item (id bigint PRIMARY KEY, body text)";

fn insert(id: i64, body: Option<&str>) {
    ITEMS.insert(&[(ID, arg(id)), (BODY, body.and_then(arg))]);
}

/// The statement that stands for [`insert`].
fn statement(id: i64, body: Option<&str>) -> String {
    let body = body.map_or("NULL".to_owned(), |body| format!("'{body}'"));
    format!("INSERT INTO item (id, body) VALUES ({id}, {body})")
}

#[pgrx::pg_schema]
mod tests {
    use pgrx::prelude::*;

    use super::super::backend::{RaisedError, refused, role};
    use super::super::lab::{run, set_up, value};
    use super::*;
    use crate::pg::guard::Guard;

    /// The direct insert fails with this SQLSTATE, and as the statement does.
    fn fails(code: PgSqlErrorCode, id: i64, body: Option<&str>) {
        let direct = refused(|| insert(id, body)).expect("an error");
        let as_statement = refused(|| run(&statement(id, body)));
        assert_eq!(direct.code, code);
        assert_eq!(Some(direct), as_statement);
    }

    /// What is in the row besides its id.
    fn rows_of(id: i64) -> String {
        value(&format!("SELECT to_jsonb(item) - 'id' FROM item WHERE id = {id}"))
    }

    #[pg_test]
    fn a_row_is_stored_with_its_values() {
        let mut other = set_up("insert_plain", TABLES, DDL);
        insert(1, Some("one"));
        insert(2, None);
        let rows = "SELECT string_agg(item::text, ' ' ORDER BY id) FROM item";
        assert_eq!(value(rows), "(1,one) (2,)");
        // The index has the rows, too, and other sessions see them once they are committed.
        run("SET LOCAL enable_seqscan = off");
        assert_eq!(value("SELECT body FROM item WHERE id = 1"), "one");
        assert_eq!(other.value("SELECT count(*) FROM item"), "0");
    }

    #[pg_test]
    fn checks_keys_and_references_are_kept() {
        set_up("insert_checks", TABLES, DDL);
        run("CREATE TABLE parent (name text PRIMARY KEY);
             INSERT INTO parent VALUES ('known'), ('twice');
             ALTER TABLE item ADD CHECK (id < 10), ADD UNIQUE (body),
                 ADD FOREIGN KEY (body) REFERENCES parent");
        insert(1, Some("known"));
        insert(2, None);
        fails(PgSqlErrorCode::ERRCODE_CHECK_VIOLATION, 10, None);
        fails(PgSqlErrorCode::ERRCODE_UNIQUE_VIOLATION, 1, None);
        fails(PgSqlErrorCode::ERRCODE_UNIQUE_VIOLATION, 3, Some("known"));
        fails(PgSqlErrorCode::ERRCODE_FOREIGN_KEY_VIOLATION, 3, Some("unknown"));
        run("DELETE FROM item WHERE id = 2");
        run("ALTER TABLE item ALTER body SET NOT NULL, DROP CONSTRAINT item_body_key");
        fails(PgSqlErrorCode::ERRCODE_NOT_NULL_VIOLATION, 4, None);
        insert(4, Some("twice"));
        assert_eq!(value("SELECT array_agg(id ORDER BY id) FROM item"), "{1,4}");
    }

    /// Without a CHECK the row is not checked by the executor.
    #[pg_test]
    fn a_column_that_must_have_a_value_gets_one() {
        set_up("insert_not_null", TABLES, DDL);
        run("ALTER TABLE item ALTER body SET NOT NULL");
        let RaisedError { code, message, .. } = refused(|| insert(1, None)).expect("an error");
        let as_statement = refused(|| run(&statement(1, None))).expect("an error");
        assert_eq!((code, message), (as_statement.code, as_statement.message));
        assert_eq!(code, PgSqlErrorCode::ERRCODE_NOT_NULL_VIOLATION);
    }

    #[pg_test]
    fn domains_hold_for_columns_that_the_code_does_not_know() {
        set_up("insert_domain", TABLES, DDL);
        run("CREATE DOMAIN needed AS text NOT NULL;
             CREATE DOMAIN small AS int DEFAULT 7 CHECK (VALUE < 10);
             ALTER TABLE item ADD size small");
        insert(1, None);
        run(&statement(2, None));
        assert_eq!(rows_of(1), rows_of(2));
        assert_eq!(value("SELECT size FROM item WHERE id = 1"), "7");
        run("ALTER TABLE item ALTER size SET DEFAULT 70");
        fails(PgSqlErrorCode::ERRCODE_CHECK_VIOLATION, 3, None);
        run("DELETE FROM item; ALTER TABLE item DROP size, ADD name needed");
        fails(PgSqlErrorCode::ERRCODE_NOT_NULL_VIOLATION, 4, None);
    }

    #[pg_test]
    fn columns_that_were_added_and_dropped_move_none_of_the_others() {
        let mut other = set_up(
            "insert_columns",
            TABLES,
            "CREATE TABLE item (gone int NOT NULL, between text DEFAULT 'between', body text,
                 also_gone text, id bigint);
             ALTER TABLE item DROP gone, DROP also_gone;
             CREATE SEQUENCE numbers;
             ALTER TABLE item ADD PRIMARY KEY (id), ADD number int DEFAULT nextval('numbers'),
                 ADD twice bigint GENERATED ALWAYS AS (id * 2) STORED,
                 ADD author text DEFAULT current_user, ADD nothing jsonb",
        );
        insert(1, Some("one"));
        insert(3, None);
        run(&statement(5, None));
        assert_eq!(
            value("SELECT string_agg(item::text, ' ' ORDER BY id) FROM item"),
            format!(
                "(between,one,1,1,2,{0},) (between,,3,2,6,{0},) (between,,5,3,10,{0},)",
                value("SELECT current_user")
            )
        );
        assert_eq!(other.value("SELECT nextval('numbers')"), "4");
    }

    /// A change within the life of a session is heard of.
    #[pg_test]
    fn columns_may_come_and_go_between_two_inserts() {
        set_up("insert_later", TABLES, DDL);
        insert(1, Some("one"));
        run("ALTER TABLE item ADD later int DEFAULT 5");
        insert(2, Some("two"));
        run("ALTER TABLE item DROP later, ADD latest text DEFAULT 'new'");
        insert(3, Some("three"));
        let rows = "SELECT string_agg(item::text, ' ' ORDER BY id) FROM item";
        assert_eq!(value(rows), "(1,one,new) (2,two,new) (3,three,new)");
        // Now all columns that are left are known, but not all that the table has room for.
        run("ALTER TABLE item DROP latest");
        insert(4, Some("four"));
        run("DELETE FROM item WHERE id < 4");
        assert_eq!(value(rows), "(4,four)");
    }

    #[pg_test]
    fn indexes_with_predicates_and_expressions_are_filled_and_kept() {
        set_up("insert_indexes", TABLES, DDL);
        run("CREATE UNIQUE INDEX item_lower ON item (lower(body)) WHERE id > 10;
             ALTER TABLE item ADD EXCLUDE (body WITH =) WHERE (id < 0)");
        insert(1, Some("one"));
        insert(2, Some("one"));
        insert(11, Some("One"));
        insert(-1, Some("one"));
        fails(PgSqlErrorCode::ERRCODE_UNIQUE_VIOLATION, 12, Some("oNE"));
        fails(PgSqlErrorCode::ERRCODE_EXCLUSION_VIOLATION, -2, Some("one"));
        run("SET LOCAL enable_seqscan = off");
        let by_index = "SELECT id FROM item WHERE lower(body) = 'one' AND id > 10";
        let plan = Spi::connect(|client| {
            let rows = client.select(&format!("EXPLAIN {by_index}"), None, &[]).expect("a plan");
            rows.map(|row| row.get::<String>(1).ok().flatten()).collect::<Vec<_>>()
        });
        assert!(format!("{plan:?}").contains("item_lower"), "{plan:?}");
        assert_eq!(value(by_index), "11");
    }

    /// An index whose predicate is left out of the plan shows all that it has.
    #[pg_test]
    fn indexes_that_test_for_null_have_the_rows_that_they_should_have() {
        set_up("insert_null_tests", TABLES, DDL);
        run("CREATE INDEX with_body ON item (id) WHERE body IS NOT NULL;
             CREATE UNIQUE INDEX no_body ON item (id) INCLUDE (body) WHERE body IS NULL;
             CREATE INDEX never ON item (id) WHERE body IS NULL AND id IS NULL;
             ALTER TABLE item DROP CONSTRAINT item_pkey");
        insert(1, Some("one"));
        insert(2, None);
        insert(3, Some("three"));
        fails(PgSqlErrorCode::ERRCODE_UNIQUE_VIOLATION, 2, None);
        run("SET LOCAL enable_seqscan = off; SET LOCAL enable_bitmapscan = off");
        let of = |test: &str| {
            value(&format!("SELECT array_agg(id ORDER BY id) FROM item WHERE body IS {test}"))
        };
        assert_eq!((of("NOT NULL"), of("NULL")), ("{1,3}".to_owned(), "{2}".to_owned()));
        let size = "SELECT pg_relation_size('never') = 8192";
        assert_eq!(value(size), "true");
    }

    #[pg_test]
    fn indexes_that_are_no_b_trees_are_filled() {
        set_up("insert_methods", TABLES, DDL);
        run("CREATE INDEX hashed ON item USING hash (body)");
        insert(1, Some("one"));
        insert(2, Some("two"));
        run("SET LOCAL enable_seqscan = off");
        assert_eq!(value("SELECT id FROM item WHERE body = 'two'"), "2");
        run("CREATE INDEX words ON item USING gin (to_tsvector('simple', body))");
        insert(3, Some("three four"));
        let found = "SELECT id FROM item
            WHERE to_tsvector('simple', body) @@ to_tsquery('simple', 'four')";
        assert_eq!(value(found), "3");
    }

    #[pg_test]
    fn a_constraint_that_is_deferred_to_the_commit_is_refused_under_a_guard() {
        set_up("insert_deferred", TABLES, DDL);
        let role = role("deferring");
        run("CREATE TABLE parent (name text PRIMARY KEY);
             ALTER TABLE item ADD FOREIGN KEY (body) REFERENCES parent
                 DEFERRABLE INITIALLY DEFERRED;
             GRANT ALL ON SCHEMA insert_deferred TO deferring;
             GRANT ALL ON item, parent TO deferring;");
        let guarded = |body: Option<&str>| {
            refused(|| {
                let _guard = Guard::act_as(role);
                insert(1, body);
            })
        };
        let refusal = guarded(Some("unknown")).expect("an error");
        assert_eq!(refusal.code, PgSqlErrorCode::ERRCODE_INSUFFICIENT_PRIVILEGE);
        let message = "cannot fire deferred trigger within security-restricted operation";
        assert_eq!(refusal.message, message);
        run("ALTER TABLE item ALTER CONSTRAINT item_body_fkey NOT DEFERRABLE");
        let refusal = guarded(Some("unknown")).expect("an error");
        assert_eq!(refusal.code, PgSqlErrorCode::ERRCODE_FOREIGN_KEY_VIOLATION);
        assert_eq!(guarded(None), None);
    }

    #[pg_test]
    fn a_read_only_transaction_inserts_nothing() {
        set_up("insert_read_only", TABLES, DDL);
        run("SET LOCAL transaction_read_only = on");
        fails(PgSqlErrorCode::ERRCODE_READ_ONLY_SQL_TRANSACTION, 1, None);
    }

    #[pg_test]
    fn a_row_that_is_withdrawn_is_gone() {
        set_up("insert_withdraw", TABLES, DDL);
        let place = ITEMS.try_insert(&BY_ID, &[(ID, arg(1i64)), (BODY, arg("first"))]);
        ITEMS.withdraw(place.expect("a row"));
        assert_eq!(value("SELECT count(*) FROM item"), "0");
        let place = ITEMS.try_insert(&BY_ID, &[(ID, arg(1i64)), (BODY, arg("second"))]);
        assert!(place.is_some());
        assert_eq!(value("SELECT body FROM item WHERE id = 1"), "second");
    }
}
