//! What a scan sees, by each kind of snapshot.

use std::ops::ControlFlow;

use crate::pg::columns::{Columns, arg};
use crate::pg::key::Value;
use crate::pg::scan::{ScanEnd, Unended};
use crate::pg::snapshot::ActiveSnapshot;
use crate::pg::table::{Index, Table, table};

table! {
    ITEMS = c"item";
    ID: c"id" INT8OID,
    BODY: c"body" TEXTOID,
}
static BY_ID: Index = Index { table: &ITEMS, name: c"item_pkey", columns: &[ID] };
static TABLES: &[&Table] = &[&ITEMS];
const DDL: &str = "CREATE TABLE item (id bigint PRIMARY KEY, body text);";

/// The rows that a scan under this snapshot visits, as one text.
fn seen(under: &ActiveSnapshot) -> String {
    let mut seen = Vec::new();
    BY_ID.scan::<()>(&[], ScanEnd::Start, under, |row| {
        seen.push(format!("{} {}", row.need::<i64>(ID), row.need::<String>(BODY)));
        ControlFlow::Continue(())
    });
    seen.join(", ")
}

/// What a new snapshot shows.
fn seen_now() -> String {
    ActiveSnapshot::new_snapshot(|under| Ok(seen(under))).expect("rows")
}

fn seen_by_the_latest() -> String {
    ActiveSnapshot::latest_snapshot(|under| Ok(seen(under))).expect("rows")
}

/// Every row that a dirty scan visits, with what it says of other transactions.
fn seen_dirty() -> Vec<String> {
    let mut seen = Vec::new();
    BY_ID.scan_dirty::<()>(&[], ScanEnd::Start, |row, Unended { written, replaced }| {
        let own = if row.is_own() { " own" } else { "" };
        let written = if written { " written" } else { "" };
        let replaced = if replaced { " replaced" } else { "" };
        let (id, body) = (row.need::<i64>(ID), row.need::<String>(BODY));
        seen.push(format!("{id} {body}{own}{written}{replaced}"));
        ControlFlow::Continue(())
    });
    seen
}

fn insert(id: i64, body: &str) {
    ITEMS.insert(&[(ID, arg(id)), (BODY, arg(body))]);
}

#[pgrx::pg_schema]
mod tests {
    use pgrx::prelude::*;

    use super::super::lab::{enter, run, set_up, value};
    use super::super::session::OtherSession;
    use super::*;
    use crate::pg::snapshot::one_snapshot_per_transaction;

    #[pg_test]
    fn a_new_snapshot_shows_own_and_committed_rows_and_none_of_open_transactions() {
        let mut other = set_up("scan_new", TABLES, DDL);
        other.run("INSERT INTO item VALUES (1, 'old')");
        other.run("BEGIN; INSERT INTO item VALUES (2, 'new'); UPDATE item SET body = 'new'");
        insert(3, "own");
        assert_eq!(seen_now(), "1 old, 3 own");
        other.run("COMMIT");
        assert_eq!(seen_now(), "1 new, 2 new, 3 own");
        other.run(
            "BEGIN; INSERT INTO item VALUES (4, 'never'); ROLLBACK; DELETE FROM item WHERE id = 1",
        );
        assert_eq!(seen_now(), "2 new, 3 own");
        assert!(!one_snapshot_per_transaction());
    }

    #[pg_test]
    fn a_snapshot_stays_as_it_is_while_it_is_active() {
        let mut other = set_up("scan_active", TABLES, DDL);
        other.run("INSERT INTO item VALUES (1, 'old')");
        let result = ActiveSnapshot::new_snapshot(|under| {
            insert(2, "own");
            other.run("UPDATE item SET body = 'new'; INSERT INTO item VALUES (3, 'new')");
            assert_eq!(seen(under), "1 old");
            assert_eq!(seen_now(), "1 new, 2 own, 3 new");
            assert_eq!(seen(under), "1 old");
            Ok(())
        });
        assert!(result.is_ok());
    }

    #[pg_extern]
    fn scans_in_repeatable_read() {
        enter("scan_repeatable", TABLES);
        let mut other = OtherSession::connect();
        assert!(one_snapshot_per_transaction());
        assert_eq!(seen_now(), "1 old");
        other.run("UPDATE scan_repeatable.item SET body = 'new'");
        other.run("INSERT INTO scan_repeatable.item VALUES (2, 'new')");
        insert(3, "own");
        assert_eq!(seen_now(), "1 old, 3 own");
        assert_eq!(seen_by_the_latest(), "1 new, 2 new, 3 own");
        assert_eq!(seen_now(), "1 old, 3 own");
    }

    #[pg_test]
    fn in_repeatable_read_only_the_latest_snapshot_shows_what_others_commit() {
        let mut other = set_up("scan_repeatable", TABLES, DDL);
        other.run("INSERT INTO item VALUES (1, 'old')");
        other.run("BEGIN ISOLATION LEVEL REPEATABLE READ; SELECT tests.scans_in_repeatable_read()");
    }

    #[pg_test]
    fn in_read_committed_the_latest_snapshot_is_a_new_one() {
        let mut other = set_up("scan_latest", TABLES, DDL);
        let result = ActiveSnapshot::new_snapshot(|_| {
            other.run("INSERT INTO item VALUES (1, 'new')");
            assert_eq!(seen_by_the_latest(), "1 new");
            Ok(())
        });
        assert!(result.is_ok());
    }

    /// Nine rows, each with another thing that an open transaction, or an ended one, has done to
    /// it.
    fn set_up_dirty(schema: &str) -> Vec<OtherSession> {
        let mut other = set_up(schema, TABLES, DDL);
        other.run("INSERT INTO item SELECT id, 'old' FROM generate_series(1, 5) AS id");
        other.run("BEGIN; INSERT INTO item VALUES (6, 'aborted'); ROLLBACK");
        let mut sharing = OtherSession::connect();
        sharing.run(&format!("BEGIN; SELECT FROM {schema}.item WHERE id IN (4, 5) FOR KEY SHARE"));
        other.run(
            "BEGIN;
             DELETE FROM item WHERE id = 2;
             UPDATE item SET body = 'new' WHERE id IN (3, 4);
             SELECT FROM item WHERE id = 5 FOR KEY SHARE;
             INSERT INTO item VALUES (7, 'new')",
        );
        insert(8, "own");
        insert(9, "own");
        run("DELETE FROM item WHERE id = 9");
        vec![other, sharing]
    }

    #[pg_test]
    fn a_dirty_scan_shows_what_open_transactions_have_written_and_replaced() {
        let mut others = set_up_dirty("scan_dirty");
        let mut seen = seen_dirty();
        seen.sort();
        assert_eq!(
            seen,
            [
                "1 old",
                "2 old replaced",
                "3 new written",
                "3 old replaced",
                "4 new written",
                "4 old replaced",
                "5 old",
                "7 new written",
                "8 own own",
            ]
        );
        others[0].run("COMMIT");
        assert_eq!(seen_dirty(), ["1 old", "3 new", "4 new", "5 old", "7 new", "8 own own"]);
    }

    #[pg_test]
    fn a_key_is_busy_while_an_open_transaction_of_another_session_writes_it() {
        let mut others = set_up_dirty("scan_busy");
        let busy = || (1..=10).filter(|id| BY_ID.is_busy(&[Value::Int(*id)])).collect::<Vec<_>>();
        assert_eq!(busy(), [2, 3, 4, 7]);
        others[0].run("ROLLBACK");
        assert_eq!(busy(), [0; 0]);
    }

    #[pg_test]
    fn a_scan_of_any_rows_shows_dead_ones() {
        let mut other = set_up("scan_any", TABLES, DDL);
        other.run("INSERT INTO item VALUES (1, 'old'), (2, 'old')");
        // This transaction's snapshot keeps dead rows from being removed.
        assert_eq!(seen_now(), "1 old, 2 old");
        other.run("DELETE FROM item WHERE id = 1; UPDATE item SET body = 'new' WHERE id = 2");
        assert_eq!(seen_now(), "2 new");
        let any = |from| {
            let mut seen = Vec::new();
            BY_ID.scan_any::<()>(&[], from, |row| {
                seen.push((row.need::<i64>(ID), row.need::<String>(BODY)));
                ControlFlow::Continue(())
            });
            seen
        };
        let mut seen = any(ScanEnd::Start);
        assert_eq!(any(ScanEnd::End).len(), 3);
        seen.sort();
        assert_eq!(seen, [(1, "old"), (2, "new"), (2, "old")].map(|(id, b)| (id, b.to_owned())));
    }

    #[pg_test]
    fn a_row_tells_its_place_its_size_and_its_writer() {
        let mut other = set_up("scan_row", TABLES, DDL);
        other.run("ALTER TABLE item ALTER body SET STORAGE EXTERNAL");
        other.run("INSERT INTO item VALUES (1, 'four'), (2, repeat('x', 100000)), (3, NULL)");
        insert(4, "own");
        let told = ActiveSnapshot::new_snapshot(|under| {
            let mut told = Vec::new();
            BY_ID.scan::<()>(&[], ScanEnd::Start, under, |row| {
                let body = row.get::<String>(BODY).map(|body| body.len());
                told.push((row.place(), row.stored_size(BODY), row.is_own(), body));
                ControlFlow::Continue(())
            });
            Ok(told)
        });
        let told = told.expect("rows");
        for (id, (place, ..)) in (1..).zip(&told) {
            let ctid = value(&format!("SELECT ctid FROM item WHERE id = {id}"));
            let block = u32::from(place.0.ip_blkid.bi_hi) << 16 | u32::from(place.0.ip_blkid.bi_lo);
            assert_eq!(ctid, format!("({block},{})", place.0.ip_posid));
        }
        // A short text has a header of one byte. A long one lies out of line, as it is.
        let rest: Vec<_> = told.into_iter().map(|(_, size, own, body)| (size, own, body)).collect();
        assert_eq!(rest[0], (5, false, Some(4)));
        assert_eq!(rest[1], (100_000, false, Some(100_000)));
        assert_eq!(rest[2], (0, false, None));
        assert_eq!((rest[3].1, rest[3].2), (true, Some(3)));
    }
}
