//! Inserts that give way without a trace, for callers that then wait by a statement of SQL.

use crate::pg::columns::arg;
use crate::pg::insert::InsertingIfNew;
use crate::pg::table::{Index, Table, table};

table! {
    ITEMS = c"item";
    ID: c"id" INT8OID,
    BODY: c"body" TEXTOID,
}
static TABLES: &[&Table] = &[&ITEMS];
static BY_ID: Index = Index { table: &ITEMS, name: c"item_pkey", columns: &[ID] };
const DDL: &str = "CREATE TABLE item (id bigint PRIMARY KEY, body text)";

/// Which of the rows were inserted; None if the table takes none of them so.
fn insert(ids: &[i64]) -> Option<Vec<bool>> {
    let inserting = InsertingIfNew::begin(&ITEMS, &BY_ID)?;
    let row = |id: &i64| inserting.row(&[(ID, arg(*id)), (BODY, arg("ours"))]);
    let inserted = ids.iter().map(row).collect();
    inserting.end();
    Some(inserted)
}

#[pgrx::pg_schema]
mod tests {
    use pgrx::prelude::*;

    use super::super::backend::refused;
    use super::super::lab::{run, set_up, value};
    use super::*;

    fn all() -> String {
        run("SET LOCAL enable_seqscan = off");
        value("SELECT coalesce(string_agg(item::text, ' ' ORDER BY id), '') FROM item WHERE id > 0")
    }

    #[pg_test]
    fn rows_whose_keys_are_free_are_inserted_and_the_others_are_not() {
        let mut other = set_up("if_new", TABLES, DDL);
        other.run("INSERT INTO item VALUES (2, 'theirs')");
        assert_eq!(insert(&[1, 2, 3, 3]), Some(vec![true, false, true, false]));
        assert_eq!(all(), "(1,ours) (2,theirs) (3,ours)");
        assert_eq!(other.value("SELECT count(*) FROM item"), "1");
        assert_eq!(insert(&[1, 4]), Some(vec![false, true]));
        assert_eq!(all(), "(1,ours) (2,theirs) (3,ours) (4,ours)");
    }

    #[pg_test]
    fn a_key_that_an_open_transaction_writes_is_left_to_it() {
        let mut other = set_up("if_new_open", TABLES, DDL);
        other.run("INSERT INTO item VALUES (2, 'theirs')");
        run("SET LOCAL lock_timeout = '1s'");
        other.run("BEGIN; INSERT INTO item VALUES (1, 'theirs'); DELETE FROM item WHERE id = 2");
        assert_eq!(insert(&[1, 2, 3]), Some(vec![false, false, true]));
        other.run("ROLLBACK");
        assert_eq!(insert(&[1, 2]), Some(vec![true, false]));
        assert_eq!(all(), "(1,ours) (2,theirs) (3,ours)");
    }

    /// If the row that gave way stood in the index until this transaction ends, the other session
    /// would wait for it here.
    #[pg_test]
    fn a_row_that_has_given_way_keeps_no_other_session_waiting() {
        let mut other = set_up("if_new_gone", TABLES, DDL);
        other.run("SET lock_timeout = '1s'");
        other.run("BEGIN; INSERT INTO item VALUES (1, 'theirs')");
        assert_eq!(insert(&[1]), Some(vec![false]));
        other.run("ROLLBACK");
        other.run("INSERT INTO item VALUES (1, 'theirs again')");
        assert_eq!(all(), "(1,\"theirs again\")");
    }

    #[pg_test]
    fn a_row_whose_key_was_new_keeps_it_from_other_sessions() {
        let mut other = set_up("if_new_kept", TABLES, DDL);
        assert_eq!(insert(&[1]), Some(vec![true]));
        other.send("INSERT INTO item VALUES (1, 'theirs')");
        other.wait_until_blocked();
    }

    #[pg_test]
    fn a_key_of_another_index_that_is_taken_is_an_error() {
        let mut other = set_up("if_new_keys", TABLES, DDL);
        other.run("CREATE UNIQUE INDEX ON item (body); INSERT INTO item VALUES (1, 'ours')");
        let refusal = refused(|| assert!(insert(&[2]).is_none())).expect("an error");
        assert_eq!(refusal.code, PgSqlErrorCode::ERRCODE_UNIQUE_VIOLATION);
    }

    #[pg_test]
    fn a_table_with_a_trigger_is_left_to_sql() {
        let mut other = set_up("if_new_trigger", TABLES, DDL);
        other.run(
            "CREATE FUNCTION pass() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN RETURN NEW; END';
             CREATE TRIGGER pass BEFORE INSERT ON item FOR EACH ROW EXECUTE FUNCTION pass()",
        );
        assert_eq!(insert(&[1]), None);
        run("DROP TRIGGER pass ON item; ALTER TABLE item ADD CHECK (id > 0)");
        assert_eq!(insert(&[1]), None);
        assert_eq!(all(), "");
    }
}
