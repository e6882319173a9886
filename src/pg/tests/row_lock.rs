//! Locks of single rows, against other sessions.

use crate::pg::key::Value;
use crate::pg::scan::ScanEnd;
use crate::pg::snapshot::ActiveSnapshot;
use crate::pg::table::{Index, RowLocation, Table, table};

table! {
    ITEMS = c"item";
    ID: c"id" INT8OID,
    BODY: c"body" TEXTOID,
}
static BY_ID: Index = Index { table: &ITEMS, name: c"item_pkey", columns: &[ID] };
static TABLES: &[&Table] = &[&ITEMS];
const DDL: &str = "CREATE TABLE item (id bigint PRIMARY KEY, body text);
    INSERT INTO item VALUES (1, 'old'), (2, 'old')";

/// Where the snapshot has row 1.
fn place(under: &ActiveSnapshot) -> RowLocation {
    BY_ID.end(&[Value::Int(1)], ScanEnd::Start, under, |row| row.place()).expect("the row")
}

/// Finds row 1 under a snapshot, lets `meanwhile` happen, and locks the row.
fn locks_after(wait: bool, meanwhile: impl FnOnce()) -> bool {
    let locked = ActiveSnapshot::new_snapshot(|under| {
        let place = place(under);
        meanwhile();
        Ok(ITEMS.lock(place, wait, under))
    });
    locked.expect("an answer")
}

#[pgrx::pg_schema]
mod tests {
    use pgrx::prelude::*;

    use super::super::backend::refused;
    use super::super::lab::{enter, run, set_up};
    use super::super::session::OtherSession;
    use super::*;

    #[pg_test]
    fn a_locked_row_is_kept_from_other_sessions_to_the_end_of_the_transaction() {
        let mut other = set_up("lock_free", TABLES, DDL);
        for wait in [false, true] {
            assert!(locks_after(wait, || {}));
        }
        let lock = |strength: &str| format!("SELECT FROM item WHERE id = 1 FOR {strength} NOWAIT");
        for strength in ["UPDATE", "NO KEY UPDATE", "SHARE"] {
            let error = other.try_run(&lock(strength)).expect_err("the row is locked");
            assert_eq!(error.code, "55P03");
        }
        // A foreign key of the user's may still refer to the row.
        other.run(&lock("KEY SHARE"));
        other.run("SELECT FROM item WHERE id = 2 FOR UPDATE NOWAIT");
    }

    #[pg_test]
    fn without_waiting_a_row_that_another_session_has_locked_is_left() {
        let mut other = set_up("lock_held", TABLES, DDL);
        run("SET LOCAL lock_timeout = '1s'");
        for strength in ["UPDATE", "NO KEY UPDATE", "SHARE"] {
            other.run(&format!("BEGIN; SELECT FROM item WHERE id = 1 FOR {strength}"));
            assert!(!locks_after(false, || {}), "{strength}");
            other.run("ROLLBACK");
        }
        other.run("BEGIN; SELECT FROM item WHERE id = 1 FOR KEY SHARE");
        assert!(locks_after(false, || {}));
    }

    #[pg_test]
    fn waiting_ends_when_the_other_session_does() {
        for end in ["ROLLBACK", "COMMIT"] {
            let mut other = set_up(&format!("lock_wait_{}", end.to_lowercase()), TABLES, DDL);
            other.run("BEGIN; SELECT FROM item WHERE id = 1 FOR UPDATE");
            let is_locked = locks_after(true, || other.send_when_this_one_waits(end));
            other.answer().expect("it has seen this session wait");
            assert!(is_locked, "{end}");
        }
    }

    #[pg_test]
    fn a_row_that_was_deleted_or_updated_is_not_locked() {
        for (number, change) in [
            (1, "DELETE FROM item"),
            (2, "UPDATE item SET body = 'new'"),
            (3, "UPDATE item SET id = 5"),
        ] {
            for wait in [false, true] {
                let mut other = set_up(&format!("lock_gone_{number}_{wait}"), TABLES, DDL);
                let change = format!("{change} WHERE id = 1");
                assert!(!locks_after(wait, || drop(other.run(&change))), "{change}");
            }
        }
    }

    #[pg_test]
    fn a_row_that_is_deleted_or_updated_during_the_wait_is_not_locked() {
        for (number, change) in [(1, "DELETE FROM item"), (2, "UPDATE item SET body = 'new'")] {
            let mut other = set_up(&format!("lock_going_{number}"), TABLES, DDL);
            other.run(&format!("BEGIN; {change} WHERE id = 1"));
            let is_locked = locks_after(true, || other.send_when_this_one_waits("COMMIT"));
            other.answer().expect("it has seen this session wait");
            assert!(!is_locked, "{change}");
        }
    }

    #[pg_test]
    fn a_change_that_is_undone_leaves_the_row_to_the_lock() {
        let mut other = set_up("lock_undone", TABLES, DDL);
        other.run("BEGIN; DELETE FROM item WHERE id = 1");
        assert!(locks_after(true, || other.send_when_this_one_waits("ROLLBACK")));
        other.answer().expect("it has seen this session wait");
    }

    #[pg_extern]
    fn locks_in_repeatable_read() {
        enter("lock_repeatable", TABLES);
        let mut other = OtherSession::connect();
        let change = "UPDATE lock_repeatable.item SET body = 'new' WHERE id = 1";
        assert!(!locks_after(true, || drop(other.run(change))));
        assert!(!locks_after(false, || {}));
    }

    /// What it means for the transaction is up to the caller.
    #[pg_test]
    fn in_repeatable_read_a_row_that_was_updated_is_not_locked_and_no_error() {
        let mut other = set_up("lock_repeatable", TABLES, DDL);
        other.run("BEGIN ISOLATION LEVEL REPEATABLE READ; SELECT tests.locks_in_repeatable_read()");
    }

    #[pg_test]
    fn a_read_only_transaction_locks_no_row() {
        set_up("lock_read_only", TABLES, DDL);
        run("SET LOCAL transaction_read_only = on");
        let refusal = refused(|| assert!(locks_after(true, || {}))).expect("an error");
        assert_eq!(refusal.code, PgSqlErrorCode::ERRCODE_READ_ONLY_SQL_TRANSACTION);
        let (message, sql) = (refusal.message, "cannot execute SELECT FOR NO KEY UPDATE");
        assert_eq!(message, format!("{sql} in a read-only transaction"));
    }

    #[pg_test]
    fn a_wait_for_a_row_ends_with_the_lock_timeout() {
        let mut other = set_up("lock_timeout", TABLES, DDL);
        other.run("BEGIN; SELECT FROM item WHERE id = 1 FOR UPDATE");
        run("SET LOCAL lock_timeout = '50ms'");
        let refusal = refused(|| assert!(locks_after(true, || {}))).expect("an error");
        assert_eq!(refusal.code, PgSqlErrorCode::ERRCODE_LOCK_NOT_AVAILABLE);
    }
}
