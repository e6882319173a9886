//! The plans of our statements: they depend on the statement and the indexes alone.

use crate::pg::columns::arg;
use crate::pg::spi::{SqlRow, Statement, connected};
use crate::pg::table::{Table, table};
use pgrx::pg_sys;

table! {
    ITEMS = c"item";
    ID: c"id" INT8OID,
}
static TABLES: &[&Table] = &[&ITEMS];
const SCHEMA: &str = "planning";

static BY_KEY: Statement =
    Statement::new("EXPLAIN SELECT * FROM planning.item WHERE id = 1 AND kind = 2", &[]);
static JOINED: Statement = Statement::new(
    "EXPLAIN SELECT * FROM planning.item AS a JOIN planning.item AS b ON b.id = a.kind
     WHERE a.id = 1",
    &[],
);
static ELSEWHERE: Statement =
    Statement::new("EXPLAIN SELECT * FROM planned_elsewhere.item WHERE id = 1", &[]);
static FAILING: Statement = Statement::new("SELECT 1 / $1", &[pg_sys::INT8OID]);

/// The plan of a statement of ours, without the costs.
fn plan(statement: &'static Statement) -> String {
    let line = |row: SqlRow| {
        let line = row.only::<String>().expect("a line");
        line.split("  (cost").next().unwrap_or_default().trim().to_owned()
    };
    let plan = connected(|| Ok(statement.run(&[]).map(line).collect::<Vec<_>>()));
    plan.expect("a plan").join(" / ")
}

#[pgrx::pg_schema]
mod tests {
    use pgrx::prelude::*;

    use super::super::backend::{Backend, refused};
    use super::super::lab::{run, set_up};
    use super::*;
    use crate::pg::planning::PinnedPlans;

    const BY_INDEX: &str = "Index Scan using item_pkey on item / Index Cond: (id = 1) / \
        Filter: (kind = 2)";

    /// The plan of the statement when it is the user's own.
    fn plan_of_user(statement: &str) -> String {
        let plan = Spi::get_one::<String>(&format!("EXPLAIN {statement}"));
        plan.expect("a plan").expect("a line")
    }

    #[pg_test]
    fn a_statement_of_ours_uses_the_index_whatever_the_settings_and_the_statistics_say() {
        set_up(
            SCHEMA,
            TABLES,
            "CREATE TABLE item (id bigint PRIMARY KEY, kind int);
             CREATE SCHEMA planned_elsewhere;
             CREATE TABLE planned_elsewhere.item (id bigint PRIMARY KEY);
             INSERT INTO planned_elsewhere.item VALUES (1);
             ANALYZE planned_elsewhere.item",
        );
        let of_user = "SELECT * FROM planning.item WHERE id = 1 AND kind = 2";
        assert_eq!(plan(&BY_KEY), BY_INDEX);
        let settings = "SET LOCAL enable_indexscan = off; SET LOCAL enable_indexonlyscan = off;
            SET LOCAL enable_bitmapscan = off; SET LOCAL enable_nestloop = off;
            SET LOCAL plan_cache_mode = force_custom_plan; SET LOCAL random_page_cost = 1000";
        run(settings);
        assert!(plan_of_user(of_user).starts_with("Seq Scan"), "{}", plan_of_user(of_user));
        assert_eq!(plan(&BY_KEY), BY_INDEX);
        let joined = plan(&JOINED);
        assert!(joined.starts_with("Nested Loop / ->  Index Scan"), "{joined}");
        assert!(!joined.contains("Seq Scan"), "{joined}");
        // One row, of which there are statistics.
        run("INSERT INTO item VALUES (1, 2); ANALYZE item");
        assert_eq!(plan(&BY_KEY), BY_INDEX);
        the_sizes_of_other_tables_are_their_own();
    }

    /// One page is read faster without its index, which shows where sequential scans are allowed.
    fn the_sizes_of_other_tables_are_their_own() {
        let rows = |plan: &str| {
            let rows = plan.split("rows=").nth(1).and_then(|rest| rest.split(' ').next());
            rows.and_then(|rows| rows.parse::<f64>().ok()).expect("an estimate")
        };
        let _plans = PinnedPlans::pin();
        assert_eq!(rows(&plan_of_user("SELECT * FROM planned_elsewhere.item")), 1.0);
        assert_eq!(rows(&plan_of_user("SELECT * FROM planning.item")), 1e8);
        let plan = plan(&ELSEWHERE);
        assert!(plan.contains("item_pkey"), "{plan}");
    }

    #[pg_test]
    fn the_settings_are_put_back_also_by_an_error() {
        set_up("planning_settings", TABLES, "CREATE TABLE item (id bigint)");
        run("SET LOCAL enable_seqscan = off; SET LOCAL enable_hashjoin = on; SET LOCAL jit = on;
             SET LOCAL max_parallel_workers_per_gather = 3");
        let before = Backend::now();
        {
            let _plans = PinnedPlans::pin();
            let now = Backend::now();
            let generic = pg_sys::PlanCacheMode::PLAN_CACHE_MODE_FORCE_GENERIC_PLAN as i32;
            assert_eq!(now.plans, (false, false, false, false, false, false, generic, 0));
            {
                let _inner = PinnedPlans::pin();
            }
            assert_eq!(Backend::now(), now);
        }
        assert_eq!(Backend::now(), before);
        let refusal = refused(|| {
            let result = connected(|| Ok(FAILING.run(&[arg(0i64)]).affected()));
            assert!(result.is_err());
        });
        let expected = Some(PgSqlErrorCode::ERRCODE_DIVISION_BY_ZERO);
        assert_eq!(refusal.map(|refusal| refusal.code), expected);
        assert_eq!(Backend::now(), before);
    }
}
