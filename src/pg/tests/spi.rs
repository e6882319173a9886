//! Statements through SPI: what they see, what they return, and as which role they run.

use crate::error::{Code, Error};
use crate::pg::columns::{Columns, arg};
use crate::pg::raise::OrRaise;
use crate::pg::snapshot::ActiveSnapshot;
use crate::pg::spi::{Statement, connected};
use crate::pg::table::{Table, table};
use pgrx::pg_sys;

table! {
    ITEMS = c"item";
    ID: c"id" INT8OID,
    BODY: c"body" TEXTOID,
}
static TABLES: &[&Table] = &[&ITEMS];
const DDL: &str = "CREATE TABLE item (id bigint PRIMARY KEY, body text)";

const SCHEMA: &str = "spi";

static COUNT: Statement =
    Statement::new("SELECT count(*) FROM spi.item WHERE id >= $1", &[pg_sys::INT8OID]);
static READ: Statement = Statement::new(
    "SELECT body, id, NULL::text AS nothing FROM spi.item WHERE id >= $1 ORDER BY id",
    &[pg_sys::INT8OID],
);
static WRITE: Statement = Statement::new(
    "INSERT INTO spi.item VALUES ($1, $2), ($1 + 1, NULL)",
    &[pg_sys::INT8OID, pg_sys::TEXTOID],
);
static ROLES: Statement = Statement::new(
    "SELECT current_user::text AS role, current_setting('search_path') AS path,
            session_user::text AS session",
    &[],
);
static DIVIDE: Statement = Statement::new("SELECT 1 / $1", &[pg_sys::INT8OID]);

fn count(under: Option<&ActiveSnapshot>) -> i64 {
    let rows = match under {
        Some(under) => COUNT.read(&[arg(0i64)], under),
        None => COUNT.run(&[arg(0i64)]),
    };
    rows.first().and_then(|row| row.only()).expect("a count")
}

#[pgrx::pg_schema]
mod tests {
    use pgrx::prelude::*;

    use super::super::backend::{Backend, refused};
    use super::super::lab::{enter, run, set_up, value};
    use super::super::session::OtherSession;
    use super::*;

    fn fails(body: impl FnOnce(), code: PgSqlErrorCode, message: &str) {
        let refusal = refused(|| {
            let done = connected(|| {
                body();
                Ok(())
            });
            assert!(done.is_ok());
        });
        let refusal = refusal.expect("an error");
        assert_eq!((refusal.code, &refusal.message[..]), (code, message));
    }

    /// This is one test, since the statements name one schema.
    #[pg_test]
    fn statements_return_rows_by_name_and_see_what_they_are_to_see() {
        let mut other = set_up(SCHEMA, TABLES, DDL);
        columns_are_read_by_name();
        a_snapshot_is_the_one_that_the_caller_names(&mut other);
        a_read_writes_nothing();
        errors_leave_the_session_as_it_was();
    }

    fn columns_are_read_by_name() {
        let done = connected(|| {
            assert_eq!(WRITE.run(&[arg(1i64), arg("one")]).affected(), 2);
            let rows = READ.run(&[arg(1i64)]);
            assert_eq!(rows.affected(), 2);
            let rows: Vec<_> = rows
                .map(|row| {
                    assert_eq!(row.get::<String>(BODY), row.get(c"body"));
                    assert_eq!(row.need::<i64>(ID), row.need::<i64>(c"id"));
                    assert_eq!(row.get::<String>(c"nothing"), None);
                    (row.need::<i64>(c"id"), row.only::<String>())
                })
                .collect();
            assert_eq!(rows, [(1, Some("one".to_owned())), (2, None)]);
            assert!(READ.run(&[arg(9i64)]).first().is_none());
            assert_eq!(READ.run(&[None]).count(), 0);
            Ok(())
        });
        assert!(done.is_ok());
        let nothing =
            || drop(READ.run(&[arg(1i64)]).first().map(|row| row.need::<String>(c"nothing")));
        let message = "column \"nothing\" is NULL where it can't be";
        fails(nothing, PgSqlErrorCode::ERRCODE_INTERNAL_ERROR, message);
        let missing = || {
            let found = READ.run(&[arg(1i64)]).first().map(|row| row.get::<i64>(c"missing"));
            assert_eq!(found, None);
        };
        let message = "a statement returns no column \"missing\"";
        fails(missing, PgSqlErrorCode::ERRCODE_INTERNAL_ERROR, message);
        run("DELETE FROM item");
    }

    fn a_snapshot_is_the_one_that_the_caller_names(other: &mut OtherSession) {
        let done = connected(|| {
            ActiveSnapshot::new_snapshot(|under| {
                assert_eq!((count(Some(under)), count(None)), (0, 0));
                other.run("INSERT INTO item VALUES (10, 'theirs')");
                assert_eq!((count(Some(under)), count(None)), (0, 1));
                WRITE.run(&[arg(20i64), None]);
                assert_eq!((count(Some(under)), count(None)), (0, 3));
                ActiveSnapshot::new_snapshot(|now| {
                    assert_eq!(count(Some(now)), 3);
                    Ok(())
                })
            })
        });
        assert!(done.is_ok());
        run("DELETE FROM item");
    }

    fn a_read_writes_nothing() {
        let write = || {
            let done = ActiveSnapshot::new_snapshot(|under| {
                WRITE.read(&[arg(1i64), None], under);
                Ok(())
            });
            assert!(done.is_ok());
        };
        let message = "INSERT is not allowed in a non-volatile function";
        fails(write, PgSqlErrorCode::ERRCODE_FEATURE_NOT_SUPPORTED, message);
        assert_eq!(value("SELECT count(*) FROM item"), "0");
    }

    fn errors_leave_the_session_as_it_was() {
        let before = Backend::now();
        let divide = || assert_eq!(DIVIDE.run(&[arg(0i64)]).affected(), 1);
        fails(divide, PgSqlErrorCode::ERRCODE_DIVISION_BY_ZERO, "division by zero");
        assert_eq!(Backend::now(), before);
        // An error that is returned is raised next, which closes what is open.
        let full = || Error::new(Code::QueueFull, "full");
        let refusal = refused(|| connected(|| Err::<(), _>(full())).or_raise());
        assert_eq!(refusal.map(|refusal| refusal.message).as_deref(), Some("full"));
        assert_eq!(Backend::now(), before);
        let quotient =
            connected(|| Ok(DIVIDE.run(&[arg(1i64)]).first().and_then(|row| row.only())));
        assert_eq!(quotient.ok().flatten(), Some(1i64));
        assert_eq!(Backend::now(), before);
    }

    #[pg_test]
    fn statements_run_as_the_owner_of_the_tables_with_a_path_of_their_own() {
        let mut other = set_up("spi_owner", TABLES, DDL);
        other.run("CREATE ROLE spi_owner; ALTER TABLE item OWNER TO spi_owner");
        let session = value("SELECT session_user");
        let expected = format!("spi_owner in pg_catalog, pg_temp for {session}");
        assert_eq!(other.value("SELECT tests.told_by_statements()"), expected);
    }

    /// The role and the search_path of a statement, and the role that has called.
    #[pg_extern]
    fn told_by_statements() -> String {
        enter("spi_owner", TABLES);
        let told = connected(|| {
            let row = ROLES.run(&[]).first().expect("a row");
            let column = |name| row.need::<String>(name);
            let (role, path, session) = (column(c"role"), column(c"path"), column(c"session"));
            Ok(format!("{role} in {path} for {session}"))
        });
        told.expect("a row")
    }
}
