//! `queen_mq.queue`: queues and their options.

use pgrx::{IntoDatum, pg_sys};

use super::identity::{self, Identity};
pub use super::options::*;
use crate::error::Result;
use crate::pg::catalogue;
use crate::pg::clock::{At, Moment};
use crate::pg::relation;
use crate::pg::row_cache::RowCache;
use crate::pg::scan::{ScanEnd, Tuple, Value};
use crate::pg::spi::{ActiveSnapshot, Arg, Columns, Statement, arg};
use crate::pg::table::{Column, Index, table};

/// How many queues a session remembers.
const REMEMBERED: usize = 1024;

/// A queue.
#[derive(Clone, Debug)]
pub struct Queue {
    pub id: i64,
    pub name: String,
    pub created_at: Moment,
    /// What is added to transaction ids before they are stored.
    pub identity: Identity,
    pub options: Options,
}

// As sql/tables.sql has them.
macro_rules! columns {
    () => {
        "id, name, created_at, installation, xid_offset, restored_at, lease_time, retry_limit,
         retry_delay, retry_backoff, retry_delay_max, on_exhausted, dedup_window,
         max_deliveries, delay, retention, completed_retention, max_depth, ordering"
    };
}

table! {
    QUEUES = c"queue";
    ID: c"id" INT8OID,
    NAME: c"name" TEXTOID,
    CREATED_AT: c"created_at" TIMESTAMPTZOID,
    INSTALLATION: c"installation" INT8OID,
    XID_OFFSET: c"xid_offset" INT8OID,
    RESTORED_AT: c"restored_at" TIMESTAMPTZOID,
    LEASE_TIME: c"lease_time" INTERVALOID,
    RETRY_LIMIT: c"retry_limit" INT4OID,
    RETRY_DELAY: c"retry_delay" INTERVALOID,
    RETRY_BACKOFF: c"retry_backoff" FLOAT8OID,
    RETRY_DELAY_MAX: c"retry_delay_max" INTERVALOID,
    ON_EXHAUSTED: c"on_exhausted" TEXTOID,
    DEDUP_WINDOW: c"dedup_window" INTERVALOID,
    MAX_DELIVERIES: c"max_deliveries" INT4OID,
    DELAY: c"delay" INTERVALOID,
    RETENTION: c"retention" INTERVALOID,
    COMPLETED_RETENTION: c"completed_retention" INTERVALOID,
    MAX_DEPTH: c"max_depth" INT8OID,
    ORDERING: c"ordering" TEXTOID,
}

static BY_NAME: Index = Index { table: &QUEUES, name: c"queue_name_key", columns: &[NAME] };
static CREATE: Statement = Statement::new(
    "INSERT INTO queen_mq.queue
         (name, created_at, installation, xid_offset, restored_at)
     VALUES ($1, $2, $3, $4, $5) ON CONFLICT (name) DO NOTHING",
    &[
        pg_sys::TEXTOID,
        pg_sys::TIMESTAMPTZOID,
        pg_sys::INT8OID,
        pg_sys::INT8OID,
        pg_sys::TIMESTAMPTZOID,
    ],
);
static LOCK: Statement = Statement::new(
    concat!("SELECT ", columns!(), " FROM queen_mq.queue WHERE name = $1 FOR UPDATE"),
    &[pg_sys::TEXTOID],
);
static UPDATE: Statement = Statement::new(
    "UPDATE queen_mq.queue SET lease_time = $2, retry_limit = $3, retry_delay = $4,
         retry_backoff = $5, retry_delay_max = $6, on_exhausted = $7, dedup_window = $8,
         max_deliveries = $9, delay = $10, retention = $11, completed_retention = $12,
         max_depth = $13, ordering = $14
     WHERE id = $1",
    &[
        pg_sys::INT8OID,
        pg_sys::INTERVALOID,
        pg_sys::INT4OID,
        pg_sys::INTERVALOID,
        pg_sys::FLOAT8OID,
        pg_sys::INTERVALOID,
        pg_sys::TEXTOID,
        pg_sys::INTERVALOID,
        pg_sys::INT4OID,
        pg_sys::INTERVALOID,
        pg_sys::INTERVALOID,
        pg_sys::INTERVALOID,
        pg_sys::INT8OID,
        pg_sys::TEXTOID,
    ],
);

/// A row of the table; the identity is None if another installation wrote it.
fn read(row: &impl Columns<Column>) -> (Option<Identity>, Queue) {
    let identity = identity::read(row, [INSTALLATION, XID_OFFSET, RESTORED_AT]);
    let queue = Queue {
        id: row.need(ID),
        created_at: row.need::<At>(CREATED_AT).0,
        identity: identity.unwrap_or(Identity::PLAIN),
        name: row.need(NAME),
        options: Options {
            lease_time: row.get(LEASE_TIME),
            retry_limit: row.get(RETRY_LIMIT),
            retry_delay: row.get(RETRY_DELAY),
            retry_backoff: row.get(RETRY_BACKOFF),
            retry_delay_max: row.get(RETRY_DELAY_MAX),
            on_exhausted: row.get(ON_EXHAUSTED),
            dedup_window: row.get(DEDUP_WINDOW),
            max_deliveries: row.get(MAX_DELIVERIES),
            delay: row.get(DELAY),
            retention: row.get(RETENTION),
            completed_retention: row.get(COMPLETED_RETENTION),
            max_depth: row.get(MAX_DEPTH),
            ordering: row.get(ORDERING),
        },
    };
    (identity, queue)
}

/// The queue with the identity in force, where another installation wrote the row, or a stored id
/// of the queue exceeds the row's identity.
fn adopted(
    (identity, mut queue): (Option<Identity>, Queue),
    under: &ActiveSnapshot,
) -> Result<Queue> {
    queue.identity = match identity {
        None => identity::adopt_foreign()?,
        Some(identity) => identity.checked(queue.id, &queue.name, under)?,
    };
    Ok(queue)
}

/// The queue of this name, if there is one.
pub fn find(name: &str, under: &ActiveSnapshot) -> Result<Option<Queue>> {
    let found = BY_NAME.end(&[Value::Text(name)], ScanEnd::Start, under, |row: &Tuple| read(row));
    found.map(|found| adopted(found, under)).transpose()
}

thread_local! {
    static KNOWN: RowCache<String, Queue> = RowCache::of(REMEMBERED);
}

/// The queue of this name: as it is at this moment; in REPEATABLE READ, as the transaction sees it.
pub fn known(name: &str) -> Result<Option<Queue>> {
    KNOWN.with(|rows| rows.get(name.to_owned(), |under| find(name, under)))
}

/// The queue of this name, created with the default options if there is none. Waits for another
/// transaction that is creating it.
pub fn find_or_create(name: &str, now: Moment) -> Result<Queue> {
    let mut has_tried = false;
    loop {
        if let Some(queue) = known(name)? {
            return Ok(queue);
        }
        if has_tried {
            relation::refuse_suppression(&QUEUES);
        }
        has_tried = true;
        let [own, offset, restored_at] = identity::current()?.args();
        catalogue::announce();
        CREATE.run(&[arg(name), arg(At(now)), own, offset, restored_at]);
        pgrx::check_for_interrupts!();
    }
}

/// The queue of this name, its row locked `FOR UPDATE`: no other transaction changes its options
/// before this one ends.
///
/// Lock order: the table `identity` before rows of queues. So this looks the queue up first, which
/// sets the identity after a restore, and locks the row only then.
pub fn lock(name: &str) -> Result<Option<Queue>> {
    known(name)?;
    let Some(row) = LOCK.run(&[arg(name)]).first() else { return Ok(None) };
    ActiveSnapshot::new_snapshot(|under| adopted(read(&row), under)).map(Some)
}

/// Write the queue's options.
pub fn update(queue: &Queue) {
    fn option<T: IntoDatum + Clone>(value: &Option<T>) -> Arg {
        value.clone().and_then(IntoDatum::into_datum)
    }
    let o = &queue.options;
    catalogue::announce();
    UPDATE.run(&[
        arg(queue.id),
        option(&o.lease_time),
        option(&o.retry_limit),
        option(&o.retry_delay),
        option(&o.retry_backoff),
        option(&o.retry_delay_max),
        option(&o.on_exhausted),
        option(&o.dedup_window),
        option(&o.max_deliveries),
        option(&o.delay),
        option(&o.retention),
        option(&o.completed_retention),
        option(&o.max_depth),
        option(&o.ordering),
    ]);
}

static ALL: Statement =
    Statement::new(concat!("SELECT ", columns!(), " FROM queen_mq.queue ORDER BY name"), &[]);

/// All queues, by name.
pub fn all(under: &ActiveSnapshot) -> Result<Vec<Queue>> {
    // The identity that the first row of another installation leads to is right for all of them.
    let mut foreign = None;
    let rows = ALL.read(&[], under).map(|row| {
        let (identity, queue) = read(&row);
        let queue = adopted((identity.or(foreign), queue), under)?;
        foreign = foreign.or(identity.is_none().then_some(queue.identity));
        Ok(queue)
    });
    rows.collect()
}

static DELETE: Statement =
    Statement::new("DELETE FROM queen_mq.queue WHERE id = $1", &[pg_sys::INT8OID]);
static DELETE_PARTS: [Statement; 3] = [
    Statement::new("DELETE FROM queen_mq.admission WHERE queue_id = $1", &[pg_sys::INT8OID]),
    Statement::new("DELETE FROM queen_mq.timer WHERE queue_id = $1", &[pg_sys::INT8OID]),
    Statement::new("DELETE FROM queen_mq.tally WHERE queue_id = $1", &[pg_sys::INT8OID]),
];

/// Delete the queue with its admissions, timers and count. The caller has deleted its log before.
pub fn delete(queue: &Queue) {
    for statement in &DELETE_PARTS {
        statement.run(&[arg(queue.id)]);
    }
    catalogue::announce();
    DELETE.run(&[arg(queue.id)]);
}
