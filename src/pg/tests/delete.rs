//! Deletes of rows that an index finds: against other sessions, and beside the statement that does
//! the same.

use std::ops::ControlFlow;

use crate::pg::columns::Columns;
use crate::pg::key::{Key, Value};
use crate::pg::scan::Tuple;
use crate::pg::snapshot::ActiveSnapshot;
use crate::pg::table::{Index, Table, table};

table! {
    ITEMS = c"item";
    ID: c"id" INT8OID,
    BODY: c"body" TEXTOID,
}
static BY_ID: Index = Index { table: &ITEMS, name: c"item_pkey", columns: &[ID] };
static TABLES: &[&Table] = &[&ITEMS];
const DDL: &str = "CREATE TABLE item (id bigint PRIMARY KEY, body text);
    INSERT INTO item SELECT i, 'row ' || i FROM generate_series(1, 6) AS i";

/// Delete the rows from 2 to 5, and return what was in them. `meanwhile` runs when they have been
/// found, before the first one is deleted.
fn delete_after(meanwhile: impl FnOnce()) -> Vec<String> {
    let keys = [(ID, Key::Above(Value::Int(1))), (ID, Key::UpTo(Value::Int(5)))];
    let mut meanwhile = Some(meanwhile);
    ActiveSnapshot::fresh(|under| {
        BY_ID.delete(&keys, under, |row: &Tuple| {
            if let Some(run) = meanwhile.take_if(|_| row.need::<i64>(ID) == 5) {
                run();
            }
            ControlFlow::Continue(Some(row.need::<String>(BODY)))
        })
    })
}

fn delete() -> Vec<String> {
    delete_after(|| {})
}

#[pgrx::pg_schema]
mod tests {
    use pgrx::prelude::*;

    use super::super::backend::refused;
    use super::super::lab::{enter, run, set_up, value};
    use super::super::session::OtherSession;
    use super::*;

    fn left() -> String {
        value("SELECT string_agg(id::text, ' ' ORDER BY id) FROM item")
    }

    /// A wait for another session would be an error.
    fn wait_for_nothing() {
        run("SET LOCAL lock_timeout = '1s'");
    }

    const SUPPRESS: &str = "CREATE FUNCTION suppress() RETURNS trigger LANGUAGE plpgsql AS
            $$ BEGIN IF OLD.id = 3 THEN RETURN NULL; END IF; RETURN OLD; END $$;
        CREATE TRIGGER suppress BEFORE DELETE ON item FOR EACH ROW EXECUTE FUNCTION suppress()";

    #[pg_test]
    fn the_rows_between_the_bounds_go_and_their_values_are_returned_in_order() {
        set_up("delete_range", TABLES, DDL);
        assert_eq!(delete(), ["row 2", "row 3", "row 4", "row 5"]);
        assert_eq!(left(), "1 6");
        assert_eq!(delete(), [""; 0]);
    }

    #[pg_test]
    fn rows_that_are_not_chosen_stay_and_so_do_those_behind_the_break() {
        set_up("delete_chosen", TABLES, DDL);
        let deleted = ActiveSnapshot::fresh(|under| {
            BY_ID.delete(&[], under, |row| match row.need::<i64>(ID) {
                2 | 4 => ControlFlow::Continue(Some(row.need::<i64>(ID))),
                5.. => ControlFlow::Break(()),
                _ => ControlFlow::Continue(None),
            })
        });
        assert_eq!(deleted, [2, 4]);
        assert_eq!(left(), "1 3 5 6");
    }

    #[pg_test]
    fn rows_that_another_session_has_at_hand_are_passed_by_without_a_wait() {
        let mut other = set_up("delete_busy", TABLES, DDL);
        wait_for_nothing();
        other.run(
            "BEGIN; SELECT FROM item WHERE id = 2 FOR SHARE; DELETE FROM item WHERE id = 3;
             UPDATE item SET body = 'theirs' WHERE id = 4",
        );
        assert_eq!(delete(), ["row 5"]);
        assert_eq!(left(), "1 2 3 4 6");
        other.run("ROLLBACK");
        assert_eq!(delete(), ["row 2", "row 3", "row 4"]);
        assert_eq!(left(), "1 6");
    }

    #[pg_test]
    fn rows_that_this_transaction_has_locked_go() {
        let mut other = set_up("delete_own_lock", TABLES, DDL);
        wait_for_nothing();
        run("DO 'BEGIN PERFORM FROM item WHERE id <= 3 FOR NO KEY UPDATE; END'");
        other.run("BEGIN; SELECT FROM item WHERE id = 4 FOR UPDATE");
        assert_eq!(delete(), ["row 2", "row 3", "row 5"]);
        assert_eq!(left(), "1 4 6");
    }

    #[pg_test]
    fn a_row_that_another_session_has_changed_since_it_was_found_stays_as_it_is() {
        let mut other = set_up("delete_changed", TABLES, DDL);
        let deleted = delete_after(|| {
            other.run("DELETE FROM item WHERE id = 2");
            other.run("UPDATE item SET body = 'theirs' WHERE id = 3");
        });
        assert_eq!(deleted, ["row 4", "row 5"]);
        assert_eq!(left(), "1 3 6");
        assert_eq!(value("SELECT body FROM item WHERE id = 3"), "theirs");
    }

    #[pg_extern]
    fn delete_in_repeatable_read() {
        enter("delete_repeatable", TABLES);
        assert_eq!(left(), "1 2 3 4 5 6");
        let mut other = OtherSession::connect();
        other.run("DELETE FROM delete_repeatable.item WHERE id = 3");
        assert_eq!(delete(), ["row 2", "row 4", "row 5"]);
    }

    #[pg_test]
    fn in_repeatable_read_a_row_that_has_gone_meanwhile_is_no_error() {
        let mut other = set_up("delete_repeatable", TABLES, DDL);
        other.run("BEGIN ISOLATION LEVEL REPEATABLE READ");
        other.run("SELECT tests.delete_in_repeatable_read()");
        other.run("COMMIT");
        assert_eq!(left(), "1 6");
    }

    #[pg_test]
    fn a_savepoint_that_is_rolled_back_gives_the_rows_back() {
        set_up("delete_savepoint", TABLES, DDL);
        let refusal = refused(|| {
            assert_eq!(delete().len(), 4);
            pgrx::error!("no");
        });
        assert_eq!(refusal.expect("an error").message, "no");
        assert_eq!(left(), "1 2 3 4 5 6");
        assert_eq!(delete().len(), 4);
    }

    #[pg_test]
    fn a_row_whose_delete_a_trigger_suppresses_stays() {
        set_up("delete_suppressed", TABLES, DDL);
        run(SUPPRESS);
        assert_eq!(delete(), ["row 2", "row 4", "row 5"]);
        assert_eq!(left(), "1 3 6");
    }

    #[pg_test]
    fn with_triggers_rows_that_another_session_has_at_hand_are_passed_by_too() {
        let mut other = set_up("delete_trigger_busy", TABLES, DDL);
        other.run(SUPPRESS);
        wait_for_nothing();
        other.run(
            "BEGIN; SELECT FROM item WHERE id = 2 FOR SHARE;
             UPDATE item SET body = 'theirs' WHERE id = 4",
        );
        assert_eq!(delete(), ["row 5"]);
        assert_eq!(left(), "1 2 3 4 6");
    }

    #[pg_test]
    fn a_read_only_transaction_refuses() {
        set_up("delete_read_only", TABLES, DDL);
        run("SET TRANSACTION READ ONLY");
        let refusal = refused(|| drop(delete())).expect("an error");
        assert_eq!(refusal.code, PgSqlErrorCode::ERRCODE_READ_ONLY_SQL_TRANSACTION);
    }
}
