//! Relations that a call keeps open: each is opened once, and closed in time.

use std::ops::ControlFlow;

use pgrx::pg_sys;

use crate::pg::catalogue;
use crate::pg::changes;
use crate::pg::columns::{Columns, arg};
use crate::pg::kept_open::CallRelations;
use crate::pg::scan::ScanEnd;
use crate::pg::snapshot::ActiveSnapshot;
use crate::pg::subtransaction::all_or_nothing;
use crate::pg::table::{Index, Table, table};

table! {
    ITEMS = c"item";
    ID: c"id" INT8OID,
    BODY: c"body" TEXTOID,
}
static TABLES: &[&Table] = &[&ITEMS];
static BY_ID: Index = Index { table: &ITEMS, name: c"item_pkey", columns: &[ID] };
const DDL: &str = "CREATE TABLE item (id bigint PRIMARY KEY, body text)";

/// How often this session has the table and its index open.
fn opened() -> [i32; 2] {
    [c"item", c"item_pkey"].map(|name| {
        // SAFETY: the relation is opened, looked at and closed.
        unsafe {
            let relation = pg_sys::RelationIdGetRelation(catalogue::oid_of(name));
            let count = (*relation).rd_refcnt - 1;
            pg_sys::RelationClose(relation);
            count
        }
    })
}

/// The ids in the table.
fn ids() -> Vec<i64> {
    let mut found = Vec::new();
    let read = ActiveSnapshot::new_snapshot(|under| {
        BY_ID.scan::<()>(&[], ScanEnd::Start, under, |row| {
            found.push(row.need(ID));
            ControlFlow::Continue(())
        });
        Ok(())
    });
    assert!(read.is_ok());
    found
}

fn insert(id: i64) {
    ITEMS.insert(&[(ID, arg(id)), (BODY, None)]);
}

#[pgrx::pg_schema]
mod tests {
    use pgrx::prelude::pg_test;

    use super::super::backend::refused;
    use super::super::lab::{run, set_up, value};
    use super::*;
    use crate::error::Error;

    #[pg_test]
    fn a_call_opens_a_relation_once_and_closes_it_at_its_end() {
        set_up("kept_once", TABLES, DDL);
        assert_eq!((ids(), opened()), (vec![], [0, 0]));
        let call = CallRelations::begin();
        insert(1);
        assert_eq!((ids(), opened()), (vec![1], [2, 2]), "for writing and for reading");
        insert(2);
        assert_eq!((ids(), opened()), (vec![1, 2], [2, 2]));
        // A call within the call has its own.
        let inner = CallRelations::begin();
        assert_eq!((ids(), opened()), (vec![1, 2], [3, 3]));
        inner.end();
        assert_eq!(opened(), [2, 2]);
        // After a change of any relation each is opened anew, in place of what was open.
        for _ in 0..3 {
            changes::count_one();
            insert(3);
            run("DELETE FROM item WHERE id = 3");
            assert_eq!((ids(), opened()), (vec![1, 2], [2, 2]));
        }
        call.end();
        assert_eq!((ids(), opened()), (vec![1, 2], [0, 0]));
    }

    #[pg_test]
    fn a_subtransaction_has_relations_of_its_own() {
        set_up("kept_sub", TABLES, DDL);
        let call = CallRelations::begin();
        assert_eq!((ids(), opened()), (vec![], [1, 1]));
        let insert_in_it = |is_good: bool| {
            all_or_nothing(|| {
                insert(1);
                // Those of the call were closed before.
                assert_eq!((ids(), opened()), (vec![1], [2, 2]));
                if is_good { Ok(()) } else { Err(()) }
            })
        };
        assert_eq!(insert_in_it(false), Err(()));
        assert_eq!((ids(), opened()), (vec![], [1, 1]));
        assert_eq!(insert_in_it(true), Ok(()));
        assert_eq!((ids(), opened()), (vec![1], [1, 1]));
        call.end();
        assert_eq!(opened(), [0, 0]);
    }

    #[pg_test]
    fn an_error_leaves_no_relation_behind_that_a_later_call_would_use() {
        set_up("kept_error", TABLES, DDL);
        let failing = || {
            let _call = CallRelations::begin();
            insert(1);
            Error::corrupt("fails here").raise();
        };
        assert!(refused(failing).is_some());
        assert_eq!(opened(), [0, 0]);
        let call = CallRelations::begin();
        assert_eq!((ids(), opened()), (vec![], [1, 1]));
        call.end();
    }

    /// PostgreSQL refuses to alter a table that the session has open.
    #[pg_test]
    fn a_trigger_can_alter_a_table_that_the_call_has_read() {
        set_up("kept_trigger", TABLES, DDL);
        run("CREATE TABLE watched (id int);
             CREATE FUNCTION alter_it() RETURNS trigger LANGUAGE plpgsql AS
                 'BEGIN ALTER TABLE item ADD seen int; RETURN NULL; END';
             CREATE TRIGGER alter_it AFTER INSERT ON watched
                 FOR EACH STATEMENT EXECUTE FUNCTION alter_it()");
        let call = CallRelations::begin();
        insert(1);
        assert_eq!((ids(), opened()), (vec![1], [2, 2]));
        crate::pg::guard::pin_search_path();
        assert_eq!(opened(), [0, 0]);
        run("INSERT INTO watched VALUES (1)");
        insert(2);
        assert_eq!(ids(), [1, 2]);
        call.end();
        assert_eq!(value("SELECT count(*) FROM item WHERE seen IS NULL"), "2");
        assert_eq!(opened(), [0, 0]);
    }
}
