//! `queen_mq.timer`: messages that enter the log later: scheduled ones, those that recur, and
//! pushes with a delay.

use std::ops::ControlFlow;

use pgrx::datum::Interval;
use pgrx::pg_sys;

use crate::error::Error;
use crate::pg::clock::{At, Moment};
use crate::pg::columns::{Columns, arg};
use crate::pg::datum::Jsonb;
use crate::pg::key::{Key, Value};
use crate::pg::own_commits;
use crate::pg::scan::{ScanEnd, Tuple};
use crate::pg::snapshot::ActiveSnapshot;
use crate::pg::spi::Statement;
use crate::pg::table::{Index, table};

table! {
    TIMERS = c"timer";
    ID: c"id" INT8OID,
    QUEUE_ID: c"queue_id" INT8OID,
    TIMER_KEY: c"timer_key" TEXTOID,
    PARTITION: c"partition" TEXTOID,
    TRANSACTION_ID: c"transaction_id" TEXTOID,
    DELIVER_AT: c"deliver_at" TIMESTAMPTZOID,
    PAYLOAD: c"payload" JSONBOID,
    HEADERS: c"headers" JSONBOID,
    SCHEDULE: c"schedule" TEXTOID,
    TIME_ZONE: c"time_zone" TEXTOID,
    EVERY: c"every" INTERVALOID,
    LAST_AT: c"last_at" TIMESTAMPTZOID,
}

/// A message to be scheduled.
pub struct NewTimer<'a> {
    pub queue: i64,
    pub key: &'a str,
    pub partition: &'a str,
    pub transaction_id: &'a str,
    pub deliver_at: Moment,
    pub payload: Jsonb,
    pub headers: Option<Jsonb>,
    /// None: it enters the log once.
    pub recurrence: Option<Recurrence>,
}

/// How a message recurs.
#[derive(Clone, Debug)]
pub struct Recurrence {
    /// As the user wrote it.
    pub schedule: String,
    pub time_zone: String,
    /// The value of a schedule that is an interval. None: the schedule is a cron expression.
    pub every: Option<Interval>,
}

/// The column as it is, if the message recurs by the schedule that it had, and its next moment is
/// known; otherwise as given.
macro_rules! unless_same {
    ($column:literal, $given:literal) => {
        concat!(
            $column,
            " = CASE WHEN t.schedule = excluded.schedule AND t.time_zone = excluded.time_zone
                 AND pg_catalog.isfinite(t.deliver_at) THEN t.",
            $column,
            " ELSE ",
            $given,
            " END"
        )
    };
}

// `xmax = 0`: the row was inserted, not updated.
static REPLACE: Statement = Statement::new(
    concat!(
        "INSERT INTO queen_mq.timer AS t (queue_id, timer_key, partition, transaction_id,
         deliver_at, payload, headers, schedule, time_zone, every)
     VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10)
     ON CONFLICT ON CONSTRAINT timer_once DO UPDATE SET partition = excluded.partition,
         payload = excluded.payload, headers = excluded.headers,
         schedule = excluded.schedule, time_zone = excluded.time_zone,
         every = excluded.every, ",
        unless_same!("transaction_id", "excluded.transaction_id"),
        ", ",
        unless_same!("deliver_at", "excluded.deliver_at"),
        ", ",
        unless_same!("last_at", "NULL"),
        " RETURNING t.xmax = 0 AS is_new, t.deliver_at"
    ),
    &[
        pg_sys::INT8OID,
        pg_sys::TEXTOID,
        pg_sys::TEXTOID,
        pg_sys::TEXTOID,
        pg_sys::TIMESTAMPTZOID,
        pg_sys::JSONBOID,
        pg_sys::JSONBOID,
        pg_sys::TEXTOID,
        pg_sys::TEXTOID,
        pg_sys::INTERVALOID,
    ],
);

impl NewTimer<'_> {
    /// Schedule it in place of the timer of this key. Returns whether there was none, and when the
    /// message comes: where it recurs by the schedule that it had before, at the moment that it
    /// had. Waits for a transaction that is scheduling, delivering or cancelling that timer.
    pub fn replace(self) -> (bool, Moment) {
        own_commits::note_moment(self.deliver_at);
        let recurrence = self.recurrence.as_ref();
        let values = [
            arg(self.queue),
            arg(self.key),
            arg(self.partition),
            arg(self.transaction_id),
            arg(At(self.deliver_at)),
            arg(self.payload),
            self.headers.and_then(arg),
            recurrence.and_then(|recurrence| arg(recurrence.schedule.as_str())),
            recurrence.and_then(|recurrence| arg(recurrence.time_zone.as_str())),
            recurrence.and_then(|recurrence| arg(recurrence.every?)),
        ];
        match REPLACE.run(&values).first() {
            Some(row) => (row.need(c"is_new"), row.need::<At>(c"deliver_at").0),
            None => Error::suppressed("queen_mq.timer").raise(),
        }
    }
}

static CANCEL: Statement = Statement::new(
    "DELETE FROM queen_mq.timer WHERE queue_id = $1 AND timer_key = $2
     RETURNING transaction_id, deliver_at",
    &[pg_sys::INT8OID, pg_sys::TEXTOID],
);

/// Delete a timer; returns its transaction_id and its moment. Waits as `replace` does.
pub fn cancel(queue: i64, key: &str) -> Option<(String, Moment)> {
    CANCEL
        .run(&[arg(queue), arg(key)])
        .first()
        .map(|row| (row.need(TRANSACTION_ID), row.need::<At>(DELIVER_AT).0))
}

static LOCK_OF_QUEUE: Statement = Statement::new(
    "SELECT FROM queen_mq.timer WHERE queue_id = $1 ORDER BY id FOR UPDATE",
    &[pg_sys::INT8OID],
);

/// Lock all timers of a queue, ascending, waiting for transactions that are delivering, replacing
/// or cancelling one.
pub fn lock_of_queue(queue: i64) {
    LOCK_OF_QUEUE.run(&[arg(queue)]);
}

/// A message that is due; this transaction has locked its timer.
pub struct Due {
    pub id: i64,
    pub key: String,
    pub partition: String,
    pub transaction_id: String,
    pub payload: Jsonb,
    pub headers: Option<Jsonb>,
    pub deliver_at: Moment,
    /// None: it enters the log once.
    pub recurrence: Option<Recurrence>,
}

// Timers that another transaction is delivering, replacing or cancelling are skipped.
static HOLD_DUE: Statement = Statement::new(
    "SELECT id, timer_key, partition, transaction_id, payload, headers, deliver_at, schedule,
         time_zone, every
     FROM queen_mq.timer
     WHERE queue_id = $1 AND deliver_at >= $4 AND deliver_at <= $2
     ORDER BY deliver_at, id LIMIT $3 FOR UPDATE SKIP LOCKED",
    &[pg_sys::INT8OID, pg_sys::TIMESTAMPTZOID, pg_sys::INT8OID, pg_sys::TIMESTAMPTZOID],
);

/// Lock up to `limit` timers that are due, in the order of their moments, which begin with `first`.
/// Never waits. The values live until SPI closes.
pub fn hold_due(queue: i64, first: Moment, now: Moment, limit: usize) -> Vec<Due> {
    HOLD_DUE
        .run(&[arg(queue), arg(At(now)), arg(limit as i64), arg(At(first))])
        .map(|row| Due {
            id: row.need(ID),
            key: row.need(TIMER_KEY),
            partition: row.need(PARTITION),
            transaction_id: row.need(TRANSACTION_ID),
            payload: row.need(PAYLOAD),
            headers: row.get(HEADERS),
            deliver_at: row.need::<At>(DELIVER_AT).0,
            recurrence: row.get(SCHEDULE).map(|schedule| Recurrence {
                schedule,
                time_zone: row.need(TIME_ZONE),
                every: row.get(EVERY),
            }),
        })
        .collect()
}

static DELETE: Statement =
    Statement::new("DELETE FROM queen_mq.timer WHERE id = ANY ($1)", &[pg_sys::INT8ARRAYOID]);

/// Delete timers that this transaction has locked.
pub fn delete(ids: Vec<i64>) {
    DELETE.run(&[arg(ids)]);
}

static ADVANCE: Statement = Statement::new(
    "UPDATE queen_mq.timer SET deliver_at = $2, transaction_id = $3, last_at = $4 WHERE id = $1",
    &[pg_sys::INT8OID, pg_sys::TIMESTAMPTZOID, pg_sys::TEXTOID, pg_sys::TIMESTAMPTZOID],
);

/// Write down when a message that recurs comes next, and with which transaction_id. The transaction
/// has locked its timer, and delivers the occurrence of `last`.
pub fn advance(id: i64, next: Moment, transaction_id: &str, last: Moment) {
    own_commits::note_moment(next);
    let values = [arg(id), arg(At(next)), arg(transaction_id), arg(At(last))];
    if ADVANCE.run(&values).affected() == 0 {
        Error::suppressed("queen_mq.timer").raise();
    }
}

pub(super) static BY_MOMENT: Index =
    Index { table: &TIMERS, name: c"timer_due", columns: &[QUEUE_ID, DELIVER_AT, ID] };

pub(super) static BY_TRANSACTION: Index = Index {
    table: &TIMERS,
    name: c"timer_of_transaction",
    columns: &[QUEUE_ID, PARTITION, TRANSACTION_ID, DELIVER_AT],
};

/// When the next message that will carry this transaction_id enters the log.
pub fn moment_of(
    queue: i64,
    partition: &str,
    transaction_id: &str,
    under: &ActiveSnapshot,
) -> Option<Moment> {
    let key = [Value::Int(queue), Value::Text(partition), Value::Text(transaction_id)];
    BY_TRANSACTION.end(&key, ScanEnd::Start, under, |row| row.need::<At>(DELIVER_AT).0)
}

/// The moment of the queue's next timer; there is none before `from`.
pub fn next(queue: i64, from: Moment, under: &ActiveSnapshot) -> Option<Moment> {
    let keys = [
        (QUEUE_ID, Key::Is(Value::Int(queue))),
        (DELIVER_AT, Key::Above(Value::Time(from.saturating_sub(1)))),
    ];
    let read = |row: &Tuple| ControlFlow::Break(row.need::<At>(DELIVER_AT).0);
    BY_MOMENT.scan(&keys, ScanEnd::Start, under, read)
}

/// The queues in whose part of the index there is a timer, or was one. Costs one look-up for each.
pub fn queues() -> Vec<i64> {
    BY_MOMENT.leading_numbers(QUEUE_ID)
}

static COUNT: Statement = Statement::new(
    "SELECT count(*) FROM queen_mq.timer
     WHERE queue_id = $1 AND deliver_at >= $2 AND deliver_at <= $3",
    &[pg_sys::INT8OID, pg_sys::TIMESTAMPTZOID, pg_sys::TIMESTAMPTZOID],
);

/// How many timers a queue has up to a moment; there is none before `from`.
pub fn count(queue: i64, from: Moment, until: Moment, under: &ActiveSnapshot) -> i64 {
    let found = COUNT.read(&[arg(queue), arg(At(from)), arg(At(until))], under);
    found.first().and_then(|row| row.only()).unwrap_or(0)
}
