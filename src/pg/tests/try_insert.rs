//! Inserts that give way where a row of the key is there, or may come to be there.

use crate::pg::columns::arg;
use crate::pg::table::{Index, RowLocation, Table, table};

table! {
    ITEMS = c"item";
    ID: c"id" INT8OID,
    BODY: c"body" TEXTOID,
}
static TABLES: &[&Table] = &[&ITEMS];
static BY_ID: Index = Index { table: &ITEMS, name: c"item_pkey", columns: &[ID] };
const DDL: &str = "CREATE TABLE item (id bigint PRIMARY KEY, body text)";

fn try_insert(id: i64) -> Option<RowLocation> {
    ITEMS.try_insert(&BY_ID, &[(ID, arg(id)), (BODY, arg("ours"))])
}

#[pgrx::pg_schema]
mod tests {
    use pgrx::prelude::*;

    use super::super::backend::refused;
    use super::super::lab::{enter, run, set_up, value};
    use super::super::session::OtherSession;
    use super::*;

    /// A wait for another session would be an error.
    fn wait_for_nothing() {
        run("SET LOCAL lock_timeout = '1s'");
    }

    fn all() -> String {
        value("SELECT coalesce(string_agg(item::text, ' ' ORDER BY id), '') FROM item")
    }

    #[pg_test]
    fn a_row_whose_key_is_free_is_inserted_at_the_place_that_is_returned() {
        set_up("try_free", TABLES, DDL);
        let place = try_insert(1).expect("a row").0;
        assert_eq!(all(), "(1,ours)");
        let ctid = format!("({},{})", place.ip_blkid.bi_lo, place.ip_posid);
        assert_eq!(value("SELECT ctid FROM item"), ctid);
    }

    #[pg_test]
    fn a_row_whose_key_is_taken_is_not_inserted_and_leaves_nothing() {
        let mut other = set_up("try_taken", TABLES, DDL);
        other.run("INSERT INTO item VALUES (1, 'theirs')");
        assert!(try_insert(1).is_none());
        assert!(try_insert(2).is_some());
        assert!(try_insert(2).is_none());
        assert_eq!(all(), "(1,theirs) (2,ours)");
        other.run("DELETE FROM item");
        assert!(try_insert(1).is_some());
        assert_eq!(all(), "(1,ours) (2,ours)");
    }

    #[pg_test]
    fn an_open_transaction_that_writes_the_key_is_not_waited_for() {
        let mut other = set_up("try_open", TABLES, DDL);
        other.run("INSERT INTO item VALUES (2, 'theirs'), (3, 'theirs')");
        wait_for_nothing();
        let begun = "BEGIN; INSERT INTO item VALUES (1, 'theirs'); DELETE FROM item WHERE id = 2;
            UPDATE item SET id = 4 WHERE id = 3";
        other.run(begun);
        for id in 1..=4 {
            assert!(try_insert(id).is_none(), "{id}");
        }
        assert_eq!(all(), "(2,theirs) (3,theirs)");
        other.run("ROLLBACK");
        assert!(try_insert(1).is_some());
        assert!(try_insert(2).is_none());
        assert!(try_insert(4).is_some());
        assert_eq!(all(), "(1,ours) (2,theirs) (3,theirs) (4,ours)");
    }

    #[pg_test]
    fn what_an_open_transaction_has_deleted_makes_room_when_it_commits() {
        let mut other = set_up("try_deleted", TABLES, DDL);
        other.run("INSERT INTO item VALUES (1, 'theirs')");
        other.run("BEGIN; DELETE FROM item");
        assert!(try_insert(1).is_none());
        other.run("COMMIT");
        assert!(try_insert(1).is_some());
        assert_eq!(all(), "(1,ours)");
    }

    /// The other session's insert waits for this transaction, not the other way round.
    #[pg_test]
    fn a_row_that_was_inserted_keeps_its_key_from_other_sessions() {
        let mut other = set_up("try_kept", TABLES, DDL);
        assert!(try_insert(1).is_some());
        other.send("INSERT INTO item VALUES (1, 'theirs')");
        other.wait_until_blocked();
    }

    #[pg_test]
    fn a_duplicate_of_another_unique_key_is_an_error() {
        let mut other = set_up("try_other_key", TABLES, DDL);
        other.run("CREATE UNIQUE INDEX ON item (body); INSERT INTO item VALUES (1, 'ours')");
        let refusal = refused(|| assert!(try_insert(2).is_none())).expect("an error");
        assert_eq!(refusal.code, PgSqlErrorCode::ERRCODE_UNIQUE_VIOLATION);
    }

    /// As while REINDEX CONCURRENTLY builds an index beside the one that it replaces.
    #[pg_test]
    fn another_unique_index_of_the_columns_decides_as_the_one_that_is_named() {
        let mut other = set_up("try_alike", TABLES, DDL);
        other.run("CREATE UNIQUE INDEX item_twin ON item (id) INCLUDE (body)");
        other.run("INSERT INTO item VALUES (1, 'theirs')");
        other.run("BEGIN; INSERT INTO item VALUES (2, 'theirs')");
        wait_for_nothing();
        assert!(try_insert(1).is_none());
        assert!(try_insert(2).is_none());
        assert!(try_insert(3).is_some());
        other.run("ROLLBACK");
        assert_eq!(all(), "(1,theirs) (3,ours)");
    }

    #[pg_test]
    fn triggers_fire_as_for_a_conflict_that_does_nothing() {
        let mut other = set_up("try_triggers", TABLES, DDL);
        other.run(
            "CREATE TABLE fired (name text);
             CREATE FUNCTION note() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN
                 INSERT INTO try_triggers.fired VALUES (TG_WHEN || ' ' || TG_LEVEL);
                 RETURN NEW;
             END $$;
             CREATE TRIGGER a BEFORE INSERT ON item EXECUTE FUNCTION note();
             CREATE TRIGGER b BEFORE INSERT ON item FOR EACH ROW EXECUTE FUNCTION note();
             CREATE TRIGGER c AFTER INSERT ON item FOR EACH ROW EXECUTE FUNCTION note();
             CREATE TRIGGER d AFTER INSERT ON item EXECUTE FUNCTION note();
             INSERT INTO item VALUES (1, 'theirs');
             DELETE FROM fired",
        );
        let fired = || {
            let fired = value("SELECT string_agg(name, ', ') FROM fired");
            run("DELETE FROM fired");
            fired
        };
        assert!(try_insert(1).is_none());
        let direct = fired();
        assert_eq!(direct, "BEFORE STATEMENT, BEFORE ROW, AFTER STATEMENT");
        run("INSERT INTO item VALUES (1, 'theirs') ON CONFLICT (id) DO NOTHING");
        assert_eq!(fired(), direct);
        assert!(try_insert(2).is_some());
        let all = "BEFORE STATEMENT, BEFORE ROW, AFTER ROW, AFTER STATEMENT";
        assert_eq!(fired(), all);
    }

    #[pg_extern]
    fn try_insert_in_repeatable_read() {
        enter("try_repeatable", TABLES);
        let mut other = OtherSession::connect();
        assert_eq!(all(), "");
        other.run("INSERT INTO try_repeatable.item VALUES (1, 'theirs')");
        assert!(try_insert(1).is_none());
        assert_eq!(all(), "");
    }

    #[pg_test]
    fn in_repeatable_read_a_row_that_the_snapshot_does_not_show_is_in_the_way() {
        let mut other = set_up("try_repeatable", TABLES, DDL);
        other.run("BEGIN ISOLATION LEVEL REPEATABLE READ");
        other.run("SELECT tests.try_insert_in_repeatable_read()");
    }
}
