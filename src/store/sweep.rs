//! `queen_mq.sweep`: how far the sweep of each table has come; and the statements that delete rows
//! which no call can need any more. The tasks of a sweep (`broker::housekeeping`) call them.
//!
//! Rows that go by age have no index by age, which every push or pop would have to maintain.
//! Instead a step reads the next pages of the table. The page at which it stopped stands in the
//! task's row of `queen_mq.sweep`. A step locks that row, so no two sweeps read one piece at a
//! time; a step that finds it locked does nothing. A row that another transaction holds stays.
//!
//! The worker looks before it writes, because a write takes a transaction id and a flush. It keeps
//! in memory up to which page it has looked ([`Bookmark::InMemory`]).
//!
//! OFFSET 0 in a statement makes a condition one look-up by an index for each row.

use std::cell::Cell;

use pgrx::pg_sys;

use super::long_walk::LongWalk;
use super::{admission, aging, claim, cursor, lease_set, marker, progress, receipt};
use crate::pg::clock::{self, At, HOUR, Moment, SECOND};
use crate::pg::columns::{Arg, Columns, arg};
use crate::pg::snapshot::ActiveSnapshot;
use crate::pg::spi::Statement;
use crate::pg::table::{Table, table};
pub use crate::store::pass::Pass;
use crate::store::pass::Position;

table! {
    SWEEPS = c"sweep";
    TASK: c"task" TEXTOID,
    PAGE: c"page" INT8OID,
}

table! {
    OWNERS = c"owner";
    ROLE_NAME: c"role_name" TEXTOID,
}

/// Pages of a table that one step reads.
const PAGES: i64 = 64;
/// Rows that one step deletes, where an index finds them.
const ROWS: i64 = 1000;
/// What goes by age, at a moment that the table does not tell, is looked at this often.
const AGING: i64 = 30 * SECOND;

/// What one step of a task did.
#[derive(Clone, Copy, Debug, Default)]
pub struct SweepStep {
    /// Rows deleted, messages deleted, or timers moved, as the task counts.
    pub removed: u64,
    /// There may be more to do at once.
    pub goes_on: bool,
    /// Set where the steps up to this one have looked everywhere: while the tables stay as they
    /// are, there is nothing to do before this moment. None where they have not, or where a lock of
    /// another transaction was in the way.
    pub idle_until: Option<Moment>,
}

impl SweepStep {
    /// A step that has looked everywhere, and found nothing to do before this moment.
    pub fn idle(until: Moment) -> Self {
        Self { idle_until: Some(until), ..Self::default() }
    }
}

/// Where a sweep notes how far it has come, and so who sweeps.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Bookmark {
    /// In the tables: a call of `queen_sweep`, whose session may end after it.
    InTable,
    /// In the memory of the process: the worker, which writes nothing where there is nothing to do.
    InMemory,
}

/// Tables that are swept page by page.
pub const TABLES: usize = 6;

/// A table that is swept page by page.
pub struct PagedTable {
    /// The name of its task, as `queen_sweep` reports it.
    pub task: &'static str,
    rows: &'static Table,
    table: &'static str,
    /// Asks whether the pages from $1 up to $2 have anything that is doomed at the moment $3, and
    /// for the soonest moment that dooms one of their rows. What may be doomed at any time, by its
    /// age, says -infinity.
    look: Statement,
    position: Position,
    /// Writes in the pages from $1 up to $2 from which moment on receipts age that a prepared
    /// transaction has left ([`super::aging`]).
    stamp: Option<&'static Statement>,
    /// Finds in the pages from $1 up to $2, which are tids, what is doomed at the moment $3.
    doomed: Statement,
    /// How long before now that moment lies, in microseconds.
    age: i64,
}

static BEGIN: Statement = Statement::new(
    "SELECT page, pg_catalog.pg_relation_size($2::text::regclass)
                  / pg_catalog.current_setting('block_size')::bigint AS pages
     FROM queen_mq.sweep WHERE task = $1 FOR UPDATE SKIP LOCKED",
    &[pg_sys::TEXTOID, pg_sys::TEXTOID],
);
static END: Statement = Statement::new(
    "UPDATE queen_mq.sweep SET page = $2 WHERE task = $1 AND page <> $2",
    &[pg_sys::TEXTOID, pg_sys::INT8OID],
);

/// How far this process has looked through each of the tables.
pub fn passes() -> [Pass; TABLES] {
    std::array::from_fn(|table| PAGED_TABLES[table].position.get())
}

/// Go on from there.
pub fn resume(passes: &[Pass; TABLES]) {
    for (table, pass) in PAGED_TABLES.iter().zip(passes) {
        table.position.set(*pass);
    }
}

impl PagedTable {
    /// Sweep the next pages, from the start again where the last step came to the end. Goes on as
    /// long as pages have something to delete, up to the end of the table.
    pub fn step(&self, now: Moment, bookmark: Bookmark) -> SweepStep {
        match bookmark {
            Bookmark::InTable => self.delete(now, None),
            Bookmark::InMemory => self.look(now),
        }
    }

    /// The pages from `page` on, or from where the last step stopped.
    fn delete(&self, now: Moment, page: Option<i64>) -> SweepStep {
        let Some(row) = BEGIN.run(&[arg(self.task), arg(self.table)]).first() else {
            return SweepStep::default();
        };
        let pages: i64 = row.need(c"pages");
        let page = page.unwrap_or_else(|| row.need(PAGE));
        let page = if page < pages { page } else { 0 };
        let next = (page + PAGES).min(pages);
        let [first, end, moment] = self.range(page, now);
        if let Some(stamp) = self.stamp {
            stamp.run(&[first, end]);
        }
        let removed = ActiveSnapshot::fresh(|under| {
            let doomed = self.doomed.read(&[first, end, moment], under);
            self.rows.delete_found(doomed, under)
        });
        END.run(&[arg(self.task), arg(next)]);
        let goes_on = removed > 0 && next < pages;
        SweepStep { removed: removed as u64, goes_on, idle_until: None }
    }

    /// Look at the next pages, and sweep them if they have something to delete.
    fn look(&self, now: Moment) -> SweepStep {
        let page = self.position.get().page;
        let Some(row) = self.look.run(&self.range(page, now)).first() else {
            return SweepStep::default();
        };
        let pages: i64 = row.need(c"pages");
        if row.need(c"is_doomed") {
            let done = self.delete(now, Some(page));
            // What another transaction has locked is looked at again in the next pass.
            self.position.go_to(page + PAGES, pages);
            return done;
        }
        let soonest = row.get::<At>(c"soonest").map_or(Moment::MAX, |at| at.0);
        let soonest = self.position.lower(soonest);
        match self.position.go_to(page + PAGES, pages) {
            true => SweepStep::idle(match soonest.saturating_add(self.age) {
                past if past < now => now + AGING,
                moment => moment.saturating_add(1),
            }),
            false => SweepStep::default(),
        }
    }

    fn range(&self, page: i64, now: Moment) -> [Arg; 3] {
        let tid = |page: i64| arg(format!("({page},0)"));
        [tid(page), tid(page + PAGES), arg(At(now.saturating_sub(self.age)))]
    }
}

macro_rules! paged {
    ($task:literal, $rows:path, $table:literal, $age:expr, $doomed:literal, $soonest:literal) => {
        paged!($task, $rows, $table, $age, $doomed, $soonest, None, "")
    };
    ($task:literal, $rows:path, $table:literal, $age:expr, $doomed:literal, $soonest:literal,
     $stamp:expr, $or:literal) => {
        PagedTable {
            task: $task,
            rows: &$rows,
            table: concat!("queen_mq.", $table),
            look: Statement::new(
                concat!(
                    "SELECT EXISTS (SELECT FROM queen_mq.",
                    $table,
                    " AS t ",
                    $doomed,
                    ")",
                    $or,
                    " AS is_doomed, (",
                    $soonest,
                    ")::timestamptz AS soonest, pg_catalog.pg_relation_size('queen_mq.",
                    $table,
                    "') / pg_catalog.current_setting('block_size')::bigint AS pages"
                ),
                &[pg_sys::TEXTOID, pg_sys::TEXTOID, pg_sys::TIMESTAMPTZOID],
            ),
            position: Position::first(),
            stamp: $stamp,
            doomed: Statement::new(
                concat!("SELECT ctid FROM queen_mq.", $table, " AS t ", $doomed),
                &[pg_sys::TEXTOID, pg_sys::TEXTOID, pg_sys::TIMESTAMPTZOID],
            ),
            age: $age,
        }
    };
}

/// The tables that are swept page by page. A row whose queue or cursor is gone is deleted only if
/// the sequence has already given out the number that the row refers to. While a dump is loaded,
/// rows may come before the queue or cursor that they belong to; the sequences are set last.
pub static PAGED_TABLES: [PagedTable; TABLES] = [
    paged!(
        "transaction_ids",
        admission::ADMISSIONS,
        "admission",
        0,
        "WHERE t.ctid >= $1::tid AND t.ctid < $2::tid
           AND t.admitted_at <= coalesce(
               (SELECT $3 - coalesce(q.dedup_window, '1 hour') FROM queen_mq.queue q
                WHERE q.id = t.queue_id),
               CASE WHEN t.queue_id
                         <= (SELECT last_value FROM queen_mq.queue_id_seq WHERE is_called)
                    THEN 'infinity'::timestamptz ELSE '-infinity' END)",
        "SELECT min(a.first + coalesce(q.dedup_window, '1 hour'))
         FROM (SELECT queue_id, min(admitted_at) AS first FROM queen_mq.admission t
               WHERE t.ctid >= $1::tid AND t.ctid < $2::tid GROUP BY queue_id) AS a
         LEFT JOIN queen_mq.queue q ON q.id = a.queue_id"
    ),
    // A state goes when there is a newer revision, and its receipts are old; or when its cursor is
    // gone. Receipts of a busy cursor are moved by who writes its states.
    paged!(
        "progress",
        progress::PROGRESS,
        "progress",
        0,
        "WHERE t.ctid >= $1::tid AND t.ctid < $2::tid
           AND ((t.ended_at IS NULL OR t.ended_at < $3 - interval '1 hour')
                   AND EXISTS (SELECT FROM queen_mq.progress n
                               WHERE n.cursor_id = t.cursor_id AND n.revision > t.revision)
                OR t.cursor_id <= (SELECT last_value FROM queen_mq.cursor_id_seq WHERE is_called)
                   AND NOT EXISTS (SELECT FROM queen_mq.cursor c WHERE c.id = t.cursor_id
                                   UNION ALL
                                   SELECT FROM queen_mq.claim c WHERE c.id = t.cursor_id))",
        "SELECT min(t.ended_at) + interval '1 hour' FROM queen_mq.progress t
         WHERE t.ctid >= $1::tid AND t.ctid < $2::tid AND t.ended_at IS NOT NULL
           AND EXISTS (SELECT FROM queen_mq.progress n
                       WHERE n.cursor_id = t.cursor_id AND n.revision > t.revision)",
        Some(&aging::STAMP_SEEN_STATES),
        " OR EXISTS (SELECT FROM queen_mq.progress t
                     WHERE t.ctid >= $1::tid AND t.ctid < $2::tid AND t.ended_at = 'infinity')"
    ),
    paged!(
        "receipts",
        receipt::RECEIPTS,
        "receipt",
        HOUR,
        "WHERE t.ctid >= $1::tid AND t.ctid < $2::tid AND t.ended_at < $3",
        "SELECT min(ended_at) FROM queen_mq.receipt t
         WHERE t.ctid >= $1::tid AND t.ctid < $2::tid",
        Some(&aging::STAMP_SEEN_BLOCKS),
        " OR EXISTS (SELECT FROM queen_mq.receipt t
                     WHERE t.ctid >= $1::tid AND t.ctid < $2::tid AND t.ended_at = 'infinity')"
    ),
    // A lease set goes once no cursor in it holds a message or has one waiting, and its claims and
    // receipts are gone. If consumers always hold messages there, it goes by age: a lease is given
    // for 12 hours at most, and lasts longer only if its holder extends it.
    paged!(
        "lease_sets",
        lease_set::LEASE_SETS,
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
                           CROSS JOIN LATERAL (SELECT max(revision) AS newest
                               FROM queen_mq.progress WHERE cursor_id = held.id) AS p
                           CROSS JOIN LATERAL (SELECT ended_at, receipts FROM queen_mq.progress
                               WHERE cursor_id = held.id AND revision > p.newest - 128
                               OFFSET 0) AS r
                           WHERE r.ended_at >= $3
                             AND position(uuid_send(t.lease_id) IN r.receipts) > 0 OFFSET 0)
           AND NOT EXISTS (SELECT FROM unnest(t.cursor_ids, t.revisions) AS held(id, given_by)
                           CROSS JOIN LATERAL (SELECT ended_at, body FROM queen_mq.receipt
                               WHERE cursor_id = held.id AND revision > held.given_by
                               ORDER BY revision LIMIT 2) AS r
                           WHERE r.ended_at >= $3
                             AND position(uuid_send(t.lease_id) IN r.body) > 0 OFFSET 0)
           AND NOT EXISTS (SELECT FROM queen_mq.receipt
                           WHERE cursor_id = -t.id AND ended_at >= $3 OFFSET 0)",
        "SELECT min(created_at) FROM queen_mq.lease_set t
         WHERE t.ctid >= $1::tid AND t.ctid < $2::tid"
    ),
    // Cursors of groups that are gone, once their leases are forgotten: until then a late ack is
    // told that its lease was taken away.
    paged!(
        "cursors",
        cursor::CURSORS,
        "cursor",
        HOUR,
        "WHERE t.ctid >= $1::tid AND t.ctid < $2::tid
           AND t.group_id <= (SELECT last_value FROM queen_mq.consumer_group_id_seq WHERE is_called)
           AND NOT EXISTS (SELECT FROM queen_mq.consumer_group g WHERE g.id = t.group_id OFFSET 0)
           AND NOT EXISTS (SELECT FROM queen_mq.receipt r
                           WHERE r.cursor_id = t.id AND r.ended_at >= $3 OFFSET 0)
           AND NOT EXISTS (SELECT FROM (SELECT due_at, ended_at FROM queen_mq.progress
                                        WHERE cursor_id = t.id OFFSET 0) AS p
                           WHERE p.due_at >= $3 OR p.ended_at >= $3 OFFSET 0)",
        "SELECT '-infinity' FROM queen_mq.cursor t
         WHERE t.ctid >= $1::tid AND t.ctid < $2::tid
           AND NOT EXISTS (SELECT FROM queen_mq.consumer_group g WHERE g.id = t.group_id OFFSET 0)
         LIMIT 1"
    ),
    paged!(
        "removed_claims",
        claim::CLAIMS,
        "claim",
        HOUR,
        "WHERE t.ctid >= $1::tid AND t.ctid < $2::tid
           AND t.group_id <= (SELECT last_value FROM queen_mq.consumer_group_id_seq WHERE is_called)
           AND NOT EXISTS (SELECT FROM queen_mq.consumer_group g WHERE g.id = t.group_id OFFSET 0)
           AND (t.deadline IS NULL OR t.deadline < $3)
           AND NOT EXISTS (SELECT FROM (SELECT due_at, ended_at FROM queen_mq.progress
                                        WHERE cursor_id = t.id OFFSET 0) AS p
                           WHERE p.due_at >= $3 OR p.ended_at >= $3 OFFSET 0)",
        "SELECT '-infinity' FROM queen_mq.claim t
         WHERE t.ctid >= $1::tid AND t.ctid < $2::tid
           AND NOT EXISTS (SELECT FROM queen_mq.consumer_group g WHERE g.id = t.group_id OFFSET 0)
         LIMIT 1"
    ),
];

static OWNER: Statement = Statement::new(
    "UPDATE queen_mq.owner o SET role_name = r.rolname::text
     FROM pg_catalog.pg_extension e JOIN pg_catalog.pg_roles r ON r.oid = e.extowner
     WHERE e.extname = 'queen_mq' AND o.role_name <> r.rolname::text",
    &[],
);

/// Write the owner of the extension to `queen_mq.owner`, which dumps carry, if REASSIGN OWNED or
/// the like has changed it.
pub fn owner() {
    OWNER.run(&[]);
}

static MARKERS: Statement = Statement::new(
    "DELETE FROM queen_mq.marker WHERE ctid = ANY (ARRAY(
         SELECT ctid FROM queen_mq.marker WHERE expires_at >= $3 AND expires_at <= $1
         ORDER BY expires_at LIMIT $2 FOR UPDATE SKIP LOCKED))",
    &[pg_sys::TIMESTAMPTZOID, pg_sys::INT8OID, pg_sys::TIMESTAMPTZOID],
);

thread_local! {
    static MARKERS_LOOK: Cell<LongWalk<Moment>> = Cell::default();
}

/// Delete markers that have expired.
pub fn markers(now: Moment, bookmark: Bookmark, under: &ActiveSnapshot) -> SweepStep {
    let mut known = match bookmark {
        Bookmark::InTable => LongWalk::default(),
        Bookmark::InMemory => MARKERS_LOOK.get(),
    };
    let mut look = known.begin(now);
    let from = look.from.unwrap_or(Moment::MIN);
    let next = look.walk(|| marker::next_expiry(from, under)).unwrap_or(Moment::MAX);
    let complete_until = known.end(&look, next.min(now), clock::now());
    if bookmark == Bookmark::InMemory {
        MARKERS_LOOK.set(known);
    }
    if next > now {
        return SweepStep::idle(next.min(complete_until));
    }
    let args: [Arg; 3] = [arg(At(now)), arg(ROWS), arg(At(next))];
    let removed = MARKERS.run(&args).affected();
    SweepStep { removed: removed as u64, goes_on: removed as i64 == ROWS, idle_until: None }
}
