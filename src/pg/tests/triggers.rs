//! Triggers of the table's owner, on rows that are written without the executor. What they see is
//! compared with what they see of the statement that does the same.

use std::ops::ControlFlow;

use crate::pg::columns::arg;
use crate::pg::snapshot::ActiveSnapshot;
use crate::pg::table::{Index, Table, table};

table! {
    ITEMS = c"item";
    ID: c"id" INT8OID,
    BODY: c"body" TEXTOID,
}
static TABLES: &[&Table] = &[&ITEMS];
static BY_ID: Index = Index { table: &ITEMS, name: c"item_pkey", columns: &[ID] };

/// Triggers of each kind note what they see. Rows of a transition table are put in order.
const DDL: &str = "CREATE TABLE item (id bigint PRIMARY KEY, body text);
    CREATE TABLE seen (number int GENERATED ALWAYS AS IDENTITY, what text);
    CREATE FUNCTION note() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN
        INSERT INTO seen (what) VALUES (concat_ws(' ', TG_NAME, TG_WHEN, TG_OP, TG_LEVEL,
            TG_TABLE_SCHEMA, CASE WHEN TG_LEVEL = 'ROW' THEN coalesce(NEW.body, OLD.body) END));
        RETURN coalesce(NEW, OLD);
    END $$;
    CREATE FUNCTION note_rows() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN
        INSERT INTO seen (what) SELECT string_agg(body, ',' ORDER BY body) FROM written;
        RETURN NULL;
    END $$;
    CREATE TRIGGER a BEFORE INSERT OR DELETE ON item EXECUTE FUNCTION note();
    CREATE TRIGGER b BEFORE INSERT OR DELETE ON item FOR EACH ROW EXECUTE FUNCTION note();
    CREATE TRIGGER c AFTER INSERT OR DELETE ON item FOR EACH ROW EXECUTE FUNCTION note();
    CREATE TRIGGER d AFTER INSERT OR DELETE ON item EXECUTE FUNCTION note();
    CREATE TRIGGER e AFTER INSERT ON item REFERENCING NEW TABLE AS written
        EXECUTE FUNCTION note_rows();
    CREATE TRIGGER f AFTER DELETE ON item REFERENCING OLD TABLE AS written
        EXECUTE FUNCTION note_rows();";

#[pgrx::pg_schema]
mod tests {
    use pgrx::prelude::*;

    use super::super::backend::{RaisedError, refused};
    use super::super::lab::{run, set_up, value};
    use super::*;

    /// What the triggers have noted since the last call.
    fn noted() -> String {
        let noted = value("SELECT string_agg(what, E'\\n' ORDER BY number) FROM seen");
        run("DELETE FROM seen");
        noted
    }

    fn insert(id: i64, body: &str) {
        ITEMS.insert(&[(ID, arg(id)), (BODY, arg(body))]);
    }

    #[pg_test]
    fn triggers_see_an_insert_as_they_see_the_statement() {
        set_up("trigger_insert", TABLES, DDL);
        run("INSERT INTO item VALUES (1, 'one'), (2, 'two')");
        let of_statement = noted();
        assert_eq!(of_statement.lines().count(), 7);
        assert_eq!(of_statement.lines().last(), Some("one,two"));
        let inserting = ITEMS.inserting();
        inserting.row(&[(ID, arg(3i64)), (BODY, arg("one"))]);
        inserting.row(&[(ID, arg(4i64)), (BODY, arg("two"))]);
        inserting.end();
        assert_eq!(noted(), of_statement);
    }

    #[pg_test]
    fn triggers_see_a_withdrawal_as_they_see_a_delete() {
        set_up("trigger_delete", TABLES, DDL);
        insert(1, "one");
        let place = ITEMS.try_insert(&BY_ID, &[(ID, arg(2i64)), (BODY, arg("one"))]);
        noted();
        run("DELETE FROM item WHERE id = 1");
        let of_statement = noted();
        assert_eq!(of_statement.lines().count(), 5);
        ITEMS.withdraw(place.expect("a row"));
        assert_eq!(noted(), of_statement);
        assert_eq!(value("SELECT count(*) FROM item"), "0");
    }

    #[pg_test]
    fn triggers_see_a_delete_as_they_see_the_statement() {
        set_up("trigger_delete_rows", TABLES, DDL);
        for (id, body) in [(1, "one"), (2, "two"), (3, "one"), (4, "two")] {
            insert(id, body);
        }
        noted();
        run("DELETE FROM item WHERE id <= 2");
        let of_statement = noted();
        assert_eq!(of_statement.lines().count(), 7);
        let all = |_: &_| ControlFlow::Continue(Some(()));
        let deleted = ActiveSnapshot::fresh(|under| BY_ID.delete(&[], under, all));
        assert_eq!((deleted.len(), noted()), (2, of_statement));
        assert_eq!(value("SELECT count(*) FROM item"), "0");
    }

    #[pg_test]
    fn a_trigger_may_change_the_row_and_the_change_is_checked() {
        set_up("trigger_change", TABLES, DDL);
        run("CREATE FUNCTION shout() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN
                 NEW.body := upper(NEW.body); RETURN NEW;
             END $$;
             CREATE TRIGGER shout BEFORE INSERT ON item FOR EACH ROW EXECUTE FUNCTION shout();
             ALTER TABLE item ADD CHECK (body <> 'BAD')");
        insert(1, "good");
        assert_eq!(value("SELECT body FROM item"), "GOOD");
        let refusal = refused(|| insert(2, "bad")).expect("an error");
        assert_eq!(refusal.code, PgSqlErrorCode::ERRCODE_CHECK_VIOLATION);
    }

    #[pg_test]
    fn a_row_that_a_trigger_suppresses_is_an_error() {
        set_up("trigger_suppress", TABLES, DDL);
        let place = ITEMS.try_insert(&BY_ID, &[(ID, arg(1i64)), (BODY, arg("one"))]);
        run("CREATE FUNCTION suppress() RETURNS trigger LANGUAGE plpgsql AS
                 $$ BEGIN RETURN NULL; END $$;
             CREATE TRIGGER suppress BEFORE INSERT OR DELETE ON item
                 FOR EACH ROW EXECUTE FUNCTION suppress()");
        let expected = "a trigger of table trigger_suppress.item has suppressed a row of queen_mq";
        let place = place.expect("a row");
        let insert: &dyn Fn() = &|| insert(2, "two");
        let withdraw: &dyn Fn() = &|| ITEMS.withdraw(place);
        for write in [insert, withdraw] {
            let RaisedError { code, message, .. } = refused(write).expect("an error");
            assert_eq!(code, PgSqlErrorCode::ERRCODE_FEATURE_NOT_SUPPORTED);
            assert_eq!(message, expected);
        }
        assert_eq!(value("SELECT array_agg(id) FROM item"), "{1}");
    }

    #[pg_test]
    fn an_error_of_a_trigger_goes_on_and_nothing_is_written() {
        set_up("trigger_error", TABLES, DDL);
        run("CREATE FUNCTION refuse() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN
                 RAISE 'not % %', TG_WHEN, TG_LEVEL USING ERRCODE = '23000';
             END $$");
        for timing in ["BEFORE", "AFTER"] {
            for level in ["ROW", "STATEMENT"] {
                run(&format!(
                    "CREATE TRIGGER refuse {timing} INSERT ON item
                     FOR EACH {level} EXECUTE FUNCTION refuse()"
                ));
                let refusal = refused(|| insert(1, "one")).expect("an error");
                let expected = PgSqlErrorCode::ERRCODE_INTEGRITY_CONSTRAINT_VIOLATION;
                assert_eq!(refusal.code, expected);
                assert_eq!(refusal.message, format!("not {timing} {level}"));
                run("DROP TRIGGER refuse ON item");
            }
        }
        assert_eq!(value("SELECT count(*) FROM item"), "0");
        insert(1, "one");
    }

    /// A trigger may write to the table itself.
    #[pg_test]
    fn a_trigger_may_insert_into_its_own_table() {
        set_up("trigger_recursive", TABLES, DDL);
        run("CREATE FUNCTION copy() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN
                 IF NEW.id < 10 THEN INSERT INTO item VALUES (NEW.id * 10, 'copy'); END IF;
                 RETURN NEW;
             END $$;
             CREATE TRIGGER copy AFTER INSERT ON item FOR EACH ROW EXECUTE FUNCTION copy()");
        insert(1, "one");
        assert_eq!(
            value("SELECT string_agg(item::text, ' ' ORDER BY id) FROM item"),
            "(1,one) (10,copy)"
        );
    }

    #[pg_test]
    fn a_trigger_that_is_disabled_does_not_fire() {
        set_up("trigger_disabled", TABLES, DDL);
        run("ALTER TABLE item DISABLE TRIGGER ALL");
        insert(1, "one");
        run("ALTER TABLE item ENABLE TRIGGER d");
        insert(2, "two");
        assert_eq!(noted(), "d AFTER INSERT STATEMENT trigger_disabled");
    }
}
