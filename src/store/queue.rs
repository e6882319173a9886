//! `queen_mq.queue`: queues and their options.

use pgrx::datum::Interval;
use pgrx::{IntoDatum, pg_sys};

use super::identity::{self, Identity};
use crate::error::Result;
use crate::pg::catalogue::{self, CachedRows};
use crate::pg::clock::{At, DAY, HOUR, Moment, SECOND, micros};
use crate::pg::relation;
use crate::pg::session_cache::SessionCache;
use crate::pg::spi::{ActiveSnapshot, Arg, Columns, Statement, arg};
use crate::pg::table::{Index, ScanEnd, Table, Tuple, Value};

/// Queues that a session remembers.
const REMEMBERED: usize = 1024;

/// A queue's options as set; None is the default.
#[derive(Clone, Debug, Default)]
pub struct Options {
    pub lease_time: Option<Interval>,
    pub retry_limit: Option<i32>,
    pub retry_delay: Option<Interval>,
    pub retry_backoff: Option<f64>,
    pub retry_delay_max: Option<Interval>,
    pub on_exhausted: Option<String>,
    pub dedup_window: Option<Interval>,
    pub max_deliveries: Option<i32>,
    pub delay: Option<Interval>,
    pub retention: Option<Interval>,
    pub completed_retention: Option<Interval>,
    pub max_depth: Option<i64>,
    pub ordering: Option<String>,
}

/// A queue.
#[derive(Clone, Debug)]
pub struct Queue {
    pub id: i64,
    pub name: String,
    pub created_at: Moment,
    /// How transaction ids are stored.
    pub identity: Identity,
    pub options: Options,
}

pub const DEFAULT_LEASE_TIME: i64 = 60 * SECOND;
pub const DEFAULT_RETRY_LIMIT: i32 = 3;
pub const DEFAULT_RETRY_BACKOFF: f64 = 1.0;
pub const DEFAULT_RETRY_DELAY_MAX: i64 = HOUR;
/// A value of on_exhausted, and the default.
pub const DEAD_LETTER: &str = "dead_letter";
/// A value of ordering: competing consumers.
pub const UNORDERED: &str = "none";
pub const DEFAULT_DEDUP_WINDOW: i64 = HOUR;
pub const DEFAULT_COMPLETED_RETENTION: i64 = DAY;

impl Options {
    pub fn lease_time(&self) -> i64 {
        length(self.lease_time, DEFAULT_LEASE_TIME)
    }

    pub fn retry_limit(&self) -> i32 {
        self.retry_limit.unwrap_or(DEFAULT_RETRY_LIMIT)
    }

    pub fn retry_delay(&self) -> i64 {
        length(self.retry_delay, 0)
    }

    pub fn retry_backoff(&self) -> f64 {
        self.retry_backoff.unwrap_or(DEFAULT_RETRY_BACKOFF)
    }

    pub fn retry_delay_max(&self) -> i64 {
        length(self.retry_delay_max, DEFAULT_RETRY_DELAY_MAX)
    }

    pub fn on_exhausted(&self) -> &str {
        self.on_exhausted.as_deref().unwrap_or(DEAD_LETTER)
    }

    pub fn dedup_window(&self) -> i64 {
        length(self.dedup_window, DEFAULT_DEDUP_WINDOW)
    }

    pub fn max_deliveries(&self) -> Option<u32> {
        self.max_deliveries.map(|max| max as u32)
    }

    pub fn delay(&self) -> i64 {
        length(self.delay, 0)
    }

    /// None: messages are kept, whatever their age.
    pub fn retention(&self) -> Option<i64> {
        self.retention.and_then(micros)
    }

    pub fn ordering(&self) -> &str {
        self.ordering.as_deref().unwrap_or("partition")
    }

    pub fn completed_retention(&self) -> i64 {
        length(self.completed_retention, DEFAULT_COMPLETED_RETENTION)
    }
}

fn length(option: Option<Interval>, default: i64) -> i64 {
    option.and_then(micros).unwrap_or(default)
}

// As sql/tables.sql has them.
macro_rules! columns {
    () => {
        "id, name, created_at, installation, xid_offset, restored_at, lease_time, retry_limit,
         retry_delay, retry_backoff, retry_delay_max, on_exhausted, dedup_window,
         max_deliveries, delay, retention, completed_retention, max_depth, ordering"
    };
}

static BY_NAME: Index = Index { table: Table(c"queue"), name: c"queue_name_key" };
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
fn read(row: &impl Columns) -> (Option<Identity>, Queue) {
    let identity = identity::read(row, 4);
    let queue = Queue {
        id: row.need(1),
        created_at: row.need::<At>(3).0,
        identity: identity.unwrap_or(Identity::PLAIN),
        name: row.need(2),
        options: Options {
            lease_time: row.get(7),
            retry_limit: row.get(8),
            retry_delay: row.get(9),
            retry_backoff: row.get(10),
            retry_delay_max: row.get(11),
            on_exhausted: row.get(12),
            dedup_window: row.get(13),
            max_deliveries: row.get(14),
            delay: row.get(15),
            retention: row.get(16),
            completed_retention: row.get(17),
            max_depth: row.get(18),
            ordering: row.get(19),
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
    static KNOWN: CachedRows<String, Queue> = SessionCache::of(REMEMBERED);
}

/// The queue of this name as it is at this moment, or, in REPEATABLE READ, as the transaction sees it.
pub fn known(name: &str) -> Result<Option<Queue>> {
    KNOWN.with(|rows| catalogue::known(rows, name.to_owned(), |under| find(name, under)))
}

/// The queue, created with the defaults if it is not there. Waits for a transaction that is
/// creating it.
pub fn find_or_create(name: &str, now: Moment) -> Result<Queue> {
    let mut has_tried = false;
    loop {
        if let Some(queue) = known(name)? {
            return Ok(queue);
        }
        if has_tried {
            relation::refuse_suppression(c"queue");
        }
        has_tried = true;
        let [own, offset, restored_at] = identity::current()?.args();
        catalogue::announce();
        CREATE.run(&[arg(name), arg(At(now)), own, offset, restored_at]);
        pgrx::check_for_interrupts!();
    }
}

/// The queue, locked against a concurrent change of its options.
///
/// Lock order: the table `identity` before rows of queues. So this looks the queue up first, which
/// sets the identity after a restore, and locks the row only then.
pub fn lock(name: &str) -> Result<Option<Queue>> {
    known(name)?;
    let Some(row) = LOCK.run(&[arg(name)]).first() else { return Ok(None) };
    ActiveSnapshot::new_snapshot(|under| adopted(read(&row), under)).map(Some)
}

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

/// Remove the queue with its admissions, timers and count. Its log is removed before.
pub fn delete(queue: &Queue) {
    for statement in &DELETE_PARTS {
        statement.run(&[arg(queue.id)]);
    }
    catalogue::announce();
    DELETE.run(&[arg(queue.id)]);
}
