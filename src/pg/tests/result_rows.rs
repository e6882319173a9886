//! Functions that return rows.

use pgrx::name;

use crate::pg::result_rows::TableIterator;

#[pgrx::pg_schema]
mod tests {
    use pgrx::prelude::{PgSqlErrorCode, Spi, pg_extern, pg_test};

    use super::super::backend::refused;
    use super::super::lab::{run, value};
    use super::*;
    use crate::error::Error;

    /// Numbers up to `count`, each with its text, or NULL where it is even. Fails at `fails_at`.
    #[pg_extern]
    fn numbered(
        count: i64,
        fails_at: Option<i64>,
    ) -> TableIterator<'static, (name!(number, i64), name!(text, Option<String>))> {
        TableIterator::new((1..=count).map(move |number| {
            if Some(number) == fails_at {
                Error::corrupt("fails here").raise();
            }
            (number, (number % 2 == 1).then(|| format!("row {number}")))
        }))
    }

    #[pg_extern]
    fn one_row(text: &str) -> TableIterator<'static, (name!(text, String), name!(length, i32))> {
        TableIterator::once((text.to_owned(), text.len() as i32))
    }

    #[pg_test]
    fn rows_come_in_order_with_their_nulls() {
        let all = "SELECT string_agg(t::text, ' ') FROM tests.numbered(4, NULL) AS t";
        assert_eq!(value(all), "(1,\"row 1\") (2,) (3,\"row 3\") (4,)");
        assert_eq!(value("SELECT count(*) FROM tests.numbered(0, NULL)"), "0");
        assert_eq!(value("SELECT t FROM tests.one_row('four') AS t"), "(four,4)");
        let nested = "SELECT sum(b.number) FROM tests.numbered(3, NULL) AS a
            CROSS JOIN LATERAL tests.numbered(a.number, NULL) AS b";
        assert_eq!(value(nested), "10");
    }

    /// More rows than work_mem holds.
    #[pg_test]
    fn many_rows_are_put_aside_on_disk() {
        run("SET LOCAL work_mem = '64kB'");
        let many = "SELECT count(*) || ' ' || sum(number) || ' ' || count(text)
            FROM tests.numbered(100000, NULL)";
        assert_eq!(value(many), "100000 5000050000 50000");
    }

    #[pg_test]
    fn an_error_between_two_rows_goes_to_the_caller() {
        let fail = || run("SELECT * FROM tests.numbered(10, 5)");
        let refusal = refused(fail).expect("an error");
        assert_eq!(refusal.message, "fails here");
        assert_eq!(value("SELECT count(*) FROM tests.numbered(10, 11)"), "10");
    }

    #[pg_test]
    fn a_function_that_is_declared_with_other_columns_is_refused() {
        let library = Spi::get_one::<String>(
            "SELECT probin FROM pg_proc WHERE oid = 'tests.numbered'::regproc",
        );
        let library = library.expect("a look-up").expect("a library");
        run(&format!(
            "CREATE FUNCTION pg_temp.other(bigint, bigint) RETURNS TABLE (a bigint, b text, c int)
             LANGUAGE c AS '{library}', 'numbered_wrapper'"
        ));
        let refusal = refused(|| run("SELECT * FROM pg_temp.other(1, NULL)")).expect("an error");
        let expected = PgSqlErrorCode::ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE;
        assert_eq!(refusal.code, expected);
        let detail = "It is declared to return 3 columns, not 2.";
        assert_eq!(refusal.detail, detail);
    }

    #[pg_test]
    fn a_caller_that_takes_no_set_is_refused() {
        let refusal = refused(|| run("SELECT 1 WHERE tests.numbered(1, NULL) IS NULL"));
        let code = refusal.map(|refusal| refusal.code);
        assert_eq!(code, Some(PgSqlErrorCode::ERRCODE_FEATURE_NOT_SUPPORTED));
    }
}
