//! `queen_mq.queue`: queues and their options.

use pgrx::{IntoDatum, pg_sys};

use super::identity::{self, Identity};
pub use super::options::*;
use crate::pg::catalogue;
use crate::pg::clock::{At, Moment};
use crate::pg::columns::{Arg, Columns, arg};
use crate::pg::key::Value;
use crate::pg::relation;
use crate::pg::scan::{ScanEnd, Tuple};
use crate::pg::snapshot::ActiveSnapshot;
use crate::pg::spi::Statement;
use crate::pg::table::{Column, Index, table};

/// A queue.
#[derive(Clone, Debug)]
pub struct Queue {
    pub id: i64,
    pub name: String,
    pub created_at: Moment,
    /// What is added to transaction ids before they are stored.
    pub identity: Identity,
    pub options: Options,
    /// Pops find nothing.
    pub is_paused: bool,
}

// As sql/tables.sql has them.
macro_rules! columns {
    () => {
        "id, name, created_at, installation, xid_offset, restored_at, lease_time, retry_limit,
         retry_delay, retry_backoff, retry_delay_max, on_exhausted, dedup_window,
         max_deliveries, delay, retention, completed_retention, max_depth, ordering,
         delivery, notify, paused"
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
    DELIVERY: c"delivery" TEXTOID,
    NOTIFY: c"notify" BOOLOID,
    PAUSED: c"paused" BOOLOID,
}

pub(super) static BY_NAME: Index =
    Index { table: &QUEUES, name: c"queue_name_key", columns: &[NAME] };
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
static SHARE: Statement = Statement::new(
    concat!("SELECT ", columns!(), " FROM queen_mq.queue WHERE name = $1 FOR SHARE"),
    &[pg_sys::TEXTOID],
);
static UPDATE: Statement = Statement::new(
    "UPDATE queen_mq.queue SET lease_time = $2, retry_limit = $3, retry_delay = $4,
         retry_backoff = $5, retry_delay_max = $6, on_exhausted = $7, dedup_window = $8,
         max_deliveries = $9, delay = $10, retention = $11, completed_retention = $12,
         max_depth = $13, ordering = $14, delivery = $15, notify = $16
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
        pg_sys::TEXTOID,
        pg_sys::BOOLOID,
    ],
);

/// A queue as its row says. Before its transaction ids can be used, `broker::restore` decides which
/// identity is in force.
pub struct StoredQueue {
    /// None: another installation wrote the row.
    identity: Option<Identity>,
    queue: Queue,
}

impl StoredQueue {
    pub fn id(&self) -> i64 {
        self.queue.id
    }

    pub fn name(&self) -> &str {
        &self.queue.name
    }

    /// The identity that the row has; None if another installation wrote the row.
    pub fn identity(&self) -> Option<Identity> {
        self.identity
    }

    /// The queue, under the identity that is in force.
    pub fn with(self, identity: Identity) -> Queue {
        Queue { identity, ..self.queue }
    }
}

fn read(row: &impl Columns<Column>) -> StoredQueue {
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
            delivery: row.get(DELIVERY),
            notify: row.get(NOTIFY),
        },
        is_paused: row.need(PAUSED),
    };
    StoredQueue { identity, queue }
}

/// Which version of the queue's row the snapshot shows: another one after each change of an option.
pub fn version(name: &str, under: &ActiveSnapshot) -> Option<(u64, u32)> {
    BY_NAME.end(&[Value::Text(name)], ScanEnd::Start, under, Tuple::version)
}

/// The queue of this name, if there is one.
pub fn find(name: &str, under: &ActiveSnapshot) -> Option<StoredQueue> {
    // From the end: of a row that was updated, the newest version most likely lies there.
    BY_NAME.end(&[Value::Text(name)], ScanEnd::End, under, |row: &Tuple| read(row))
}

/// Create the queue with the default options, unless there is one of this name. Waits for another
/// transaction that is creating it.
pub fn create(name: &str, now: Moment, identity: Identity) {
    let [own, offset, restored_at] = identity.args();
    catalogue::announce();
    CREATE.run(&[arg(name), arg(At(now)), own, offset, restored_at]);
}

/// For a caller that has called [`create`] and finds no queue: an error, if a trigger may have
/// suppressed the row.
pub fn refuse_suppression() {
    relation::refuse_suppression(&QUEUES);
}

/// The queue of this name, its row locked `FOR UPDATE`: no other transaction changes its options
/// before this one ends. Lock order: the table `identity` before rows of queues.
pub fn lock(name: &str) -> Option<StoredQueue> {
    LOCK.run(&[arg(name)]).first().map(|row| read(&row))
}

/// [`lock`] for a call that changes nothing: its row is locked `FOR SHARE`.
pub fn share(name: &str) -> Option<StoredQueue> {
    SHARE.run(&[arg(name)]).first().map(|row| read(&row))
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
        option(&o.delivery),
        option(&o.notify),
    ]);
}

static SET_PAUSED: Statement = Statement::new(
    "UPDATE queen_mq.queue SET paused = $2 WHERE id = $1",
    &[pg_sys::INT8OID, pg_sys::BOOLOID],
);

/// Let pops of the queue find nothing, or what there is again. The caller has locked the row.
pub fn set_paused(queue: i64, is_paused: bool) {
    catalogue::announce();
    SET_PAUSED.run(&[arg(queue), arg(is_paused)]);
}

static ALL: Statement =
    Statement::new(concat!("SELECT ", columns!(), " FROM queen_mq.queue ORDER BY name"), &[]);

/// All queues, by name.
pub fn all(under: &ActiveSnapshot) -> Vec<StoredQueue> {
    ALL.read(&[], under).map(|row| read(&row)).collect()
}

// A queue whose id the sequence has not given out yet may be one of a dump that is being loaded.
static GONE: Statement = Statement::new(
    "SELECT id FROM pg_catalog.unnest($1) AS used(id)
     WHERE id <= (SELECT last_value FROM queen_mq.queue_id_seq WHERE is_called)
       AND NOT EXISTS (SELECT FROM queen_mq.queue q WHERE q.id = used.id OFFSET 0)",
    &[pg_sys::INT8ARRAYOID],
);

/// Those of the ids of which the snapshot shows no queue. A transaction that creates a queue and
/// pushes to it commits both at once: so if the snapshot shows a segment of such an id, its queue
/// has been removed.
pub fn gone(ids: Vec<i64>, under: &ActiveSnapshot) -> Vec<i64> {
    GONE.read(&[arg(ids)], under).filter_map(|row| row.only()).collect()
}

static DELETE: Statement =
    Statement::new("DELETE FROM queen_mq.queue WHERE id = $1", &[pg_sys::INT8OID]);
static DELETE_PARTS: [Statement; 4] = [
    Statement::new("DELETE FROM queen_mq.admission WHERE queue_id = $1", &[pg_sys::INT8OID]),
    Statement::new("DELETE FROM queen_mq.timer WHERE queue_id = $1", &[pg_sys::INT8OID]),
    Statement::new("DELETE FROM queen_mq.tally WHERE queue_id = $1", &[pg_sys::INT8OID]),
    Statement::new("DELETE FROM queen_mq.waterline WHERE queue_id = $1", &[pg_sys::INT8OID]),
];

/// Delete the queue with its admissions, timers and count. The caller has deleted its log before.
pub fn delete(queue: &Queue) {
    for statement in &DELETE_PARTS {
        statement.run(&[arg(queue.id)]);
    }
    catalogue::announce();
    DELETE.run(&[arg(queue.id)]);
}
