//! `queen_mq.sweep`, and the deletion of rows that nobody needs any more.
//!
//! What goes by age has no index of its own: it would cost every message. Instead tables are passed
//! piece by piece, a number of pages at a time, and where a pass has come to is kept in a row, whose
//! lock keeps two sweeps off the same piece. OFFSET 0 makes a condition one look-up for each row.

use pgrx::pg_sys;

use crate::pg::clock::{At, HOUR, Moment};
use crate::pg::spi::{Arg, Columns, Statement, arg};
use crate::pg::table::table;

table! {
    SWEEPS = c"sweep";
    TASK: c"task" TEXTOID,
    PAGE: c"page" INT8OID,
}

table! {
    OWNERS = c"owner";
    ROLE_NAME: c"role_name" TEXTOID,
}

/// Pages of a table passed in one step.
const PAGES: i64 = 64;
/// Rows of an index passed in one step.
const ROWS: i64 = 1000;

/// What a step did.
#[derive(Clone, Copy, Debug, Default)]
pub struct SweepStep {
    pub removed: u64,
    /// There may be more to do at once.
    pub goes_on: bool,
}

/// A table that is passed page by page.
pub struct Pass {
    /// As queen_sweep reports it.
    pub task: &'static str,
    table: &'static str,
    /// Takes the first and the last page as tids, and a moment.
    delete: Statement,
    /// How long before now that moment lies.
    age: i64,
}

static BEGIN: Statement = Statement::new(
    "SELECT page, pg_catalog.pg_relation_size($2::text::regclass)
                  / pg_catalog.current_setting('block_size')::bigint
     FROM queen_mq.sweep WHERE task = $1 FOR UPDATE SKIP LOCKED",
    &[pg_sys::TEXTOID, pg_sys::TEXTOID],
);
static END: Statement = Statement::new(
    "UPDATE queen_mq.sweep SET page = $2 WHERE task = $1 AND page <> $2",
    &[pg_sys::TEXTOID, pg_sys::INT8OID],
);

impl Pass {
    /// Pass the next pages. Goes on while something is found, to the end of the table.
    pub fn step(&self, now: Moment) -> SweepStep {
        let Some(row) = BEGIN.run(&[arg(self.task), arg(self.table)]).first() else {
            return SweepStep::default();
        };
        let (page, pages): (i64, i64) = (row.need(1), row.need(2));
        let page = if page < pages { page } else { 0 };
        let next = (page + PAGES).min(pages);
        let tid = |page: i64| arg(format!("({page},0)"));
        let removed = self.delete.run(&[tid(page), tid(next), arg(At(now - self.age))]).affected();
        END.run(&[arg(self.task), arg(next)]);
        SweepStep { removed: removed as u64, goes_on: removed > 0 && next < pages }
    }
}

macro_rules! pass {
    ($task:literal, $table:literal, $age:expr, $doomed:literal) => {
        Pass {
            task: $task,
            table: concat!("queen_mq.", $table),
            delete: Statement::new(
                concat!(
                    "DELETE FROM queen_mq.",
                    $table,
                    " WHERE ctid = ANY (ARRAY(SELECT t.ctid FROM queen_mq.",
                    $table,
                    " AS t ",
                    $doomed,
                    " FOR UPDATE OF t SKIP LOCKED))"
                ),
                &[pg_sys::TEXTOID, pg_sys::TEXTOID, pg_sys::TIMESTAMPTZOID],
            ),
            age: $age,
        }
    };
}

/// The tables that are swept. A row whose queue or cursor is gone is deleted only if a sequence has
/// already given out that number: a dump loads such rows before those that they belong to, and sets
/// the sequences last.
pub static PASSES: [Pass; 6] = [
    pass!(
        "transaction_ids",
        "admission",
        0,
        "WHERE t.ctid >= $1::tid AND t.ctid < $2::tid
           AND t.admitted_at <= coalesce(
               (SELECT $3 - coalesce(q.dedup_window, '1 hour') FROM queen_mq.queue q
                WHERE q.id = t.queue_id),
               CASE WHEN t.queue_id <= (SELECT last_value FROM queen_mq.queue_id_seq WHERE is_called)
                    THEN 'infinity'::timestamptz ELSE '-infinity' END)"
    ),
    // A newer revision says what there is; the cursor may be gone.
    pass!(
        "progress",
        "progress",
        0,
        "WHERE t.ctid >= $1::tid AND t.ctid < $2::tid AND $3 IS NOT NULL
           AND (EXISTS (SELECT FROM queen_mq.progress n
                        WHERE n.cursor_id = t.cursor_id AND n.revision > t.revision)
                OR t.cursor_id <= (SELECT last_value FROM queen_mq.cursor_id_seq WHERE is_called)
                   AND NOT EXISTS (SELECT FROM queen_mq.cursor c WHERE c.id = t.cursor_id
                                   UNION ALL
                                   SELECT FROM queen_mq.claim c WHERE c.id = t.cursor_id))"
    ),
    pass!(
        "receipts",
        "receipt",
        HOUR,
        "WHERE t.ctid >= $1::tid AND t.ctid < $2::tid AND t.ended_at < $3"
    ),
    // A set goes once none of its partitions holds a message or has one waiting, and its claims and
    // receipts are gone. Where consumers always hold messages, it goes by age: a lease lasts 12
    // hours, and longer only if it is extended.
    pass!(
        "lease_sets",
        "lease_set",
        HOUR,
        "WHERE t.ctid >= $1::tid AND t.ctid < $2::tid AND t.created_at < $3
           AND NOT EXISTS (SELECT FROM unnest(t.cursor_ids) AS held(id)
                           CROSS JOIN LATERAL (SELECT due_at FROM queen_mq.progress
                               WHERE cursor_id = held.id ORDER BY revision DESC LIMIT 1) AS p
                           WHERE p.due_at > CASE WHEN t.created_at < $3 - interval '12 hours'
                                            THEN $3 - interval '12 hours'
                                            ELSE '-infinity' END OFFSET 0)
           AND NOT EXISTS (SELECT FROM unnest(t.cursor_ids) AS held(id)
                           CROSS JOIN LATERAL (SELECT id FROM queen_mq.claim
                               WHERE id = held.id OFFSET 0) AS c OFFSET 0)
           AND NOT EXISTS (SELECT FROM unnest(t.cursor_ids) AS held(id)
                           CROSS JOIN LATERAL (SELECT ended_at FROM queen_mq.receipt
                               WHERE cursor_id = held.id AND lease_id = t.lease_id OFFSET 0) AS r
                           WHERE r.ended_at >= $3 OFFSET 0)"
    ),
    // Cursors of groups that are gone, once nobody is to be told of their leases any more.
    pass!(
        "cursors",
        "cursor",
        HOUR,
        "WHERE t.ctid >= $1::tid AND t.ctid < $2::tid
           AND t.group_id <= (SELECT last_value FROM queen_mq.consumer_group_id_seq WHERE is_called)
           AND NOT EXISTS (SELECT FROM queen_mq.consumer_group g WHERE g.id = t.group_id OFFSET 0)
           AND NOT EXISTS (SELECT FROM queen_mq.receipt r
                           WHERE r.cursor_id = t.id AND r.ended_at >= $3 OFFSET 0)
           AND NOT EXISTS (SELECT FROM (SELECT due_at FROM queen_mq.progress
                                        WHERE cursor_id = t.id OFFSET 0) AS p
                           WHERE p.due_at >= $3 OFFSET 0)"
    ),
    pass!(
        "removed_claims",
        "claim",
        HOUR,
        "WHERE t.ctid >= $1::tid AND t.ctid < $2::tid
           AND t.group_id <= (SELECT last_value FROM queen_mq.consumer_group_id_seq WHERE is_called)
           AND NOT EXISTS (SELECT FROM queen_mq.consumer_group g WHERE g.id = t.group_id OFFSET 0)
           AND (t.deadline IS NULL OR t.deadline < $3)
           AND NOT EXISTS (SELECT FROM (SELECT due_at FROM queen_mq.progress
                                        WHERE cursor_id = t.id OFFSET 0) AS p
                           WHERE p.due_at >= $3 OFFSET 0)"
    ),
];

// From one queue's first message to that of the next, so that it costs by the queues. A message is
// there before its queue is for nobody: whoever creates a queue and pushes commits both at once.
static ORPHANS: Statement = Statement::new(
    "WITH RECURSIVE used (id) AS (
         (SELECT queue_id FROM queen_mq.segment ORDER BY queue_id LIMIT 1)
         UNION ALL
         SELECT (SELECT s.queue_id FROM queen_mq.segment s
                 WHERE s.queue_id > used.id ORDER BY s.queue_id LIMIT 1)
         FROM used WHERE used.id IS NOT NULL),
     gone AS MATERIALIZED (
         SELECT id FROM used
         WHERE id <= (SELECT last_value FROM queen_mq.queue_id_seq WHERE is_called)
           AND NOT EXISTS (SELECT FROM queen_mq.queue q WHERE q.id = used.id OFFSET 0))
     DELETE FROM queen_mq.segment WHERE ctid = ANY (ARRAY(
         SELECT t.ctid FROM queen_mq.segment t WHERE t.queue_id = ANY (ARRAY(SELECT id FROM gone))
         LIMIT $1 FOR UPDATE OF t SKIP LOCKED))",
    &[pg_sys::INT8OID],
);

/// Messages of queues that are gone: of transactions that had pushed before, and committed after.
pub fn orphans() -> SweepStep {
    let removed = ORPHANS.run(&[arg(ROWS)]).affected();
    SweepStep { removed: removed as u64, goes_on: removed as i64 == ROWS }
}

static OWNER: Statement = Statement::new(
    "UPDATE queen_mq.owner o SET role_name = r.rolname::text
     FROM pg_catalog.pg_extension e JOIN pg_catalog.pg_roles r ON r.oid = e.extowner
     WHERE e.extname = 'queen_mq' AND o.role_name <> r.rolname::text",
    &[],
);

/// Keep the owner's name in `queen_mq.owner`, which dumps carry, true after REASSIGN OWNED and the
/// like.
pub fn owner() {
    OWNER.run(&[]);
}

static MARKERS: Statement = Statement::new(
    "DELETE FROM queen_mq.marker WHERE ctid = ANY (ARRAY(
         SELECT ctid FROM queen_mq.marker WHERE expires_at <= $1
         ORDER BY expires_at LIMIT $2 FOR UPDATE SKIP LOCKED))",
    &[pg_sys::TIMESTAMPTZOID, pg_sys::INT8OID],
);

/// Markers whose time is over.
pub fn markers(now: Moment) -> SweepStep {
    let args: [Arg; 2] = [arg(At(now)), arg(ROWS)];
    let removed = MARKERS.run(&args).affected();
    SweepStep { removed: removed as u64, goes_on: removed as i64 == ROWS }
}
