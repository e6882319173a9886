//! `queen_mq.dead_letter`: messages that a group gave up on.

use pgrx::pg_sys;
use queen_engine::message::MessageId;
use queen_engine::settle::DeadLetter;

use super::signed;
use crate::pg::clock::{At, Moment};
use crate::pg::columns::{Columns, arg};
use crate::pg::datum::Jsonb;
use crate::pg::relation;
use crate::pg::snapshot::ActiveSnapshot;
use crate::pg::spi::{SqlRow, Statement};
use crate::pg::table::table;

table! {
    DEAD_LETTERS = c"dead_letter";
    ID: c"id" INT8OID,
    QUEUE: c"queue" TEXTOID,
    CONSUMER_GROUP: c"consumer_group" TEXTOID,
    PARTITION: c"partition" TEXTOID,
    MESSAGE_ID: c"message_id" INT8OID,
    TRANSACTION_ID: c"transaction_id" TEXTOID,
    PAYLOAD: c"payload" JSONBOID,
    HEADERS: c"headers" JSONBOID,
    ERROR: c"error" TEXTOID,
    FAILURES: c"failures" INT4OID,
    DELIVERIES: c"deliveries" INT4OID,
    CREATED_AT: c"created_at" TIMESTAMPTZOID,
    FAILED_AT: c"failed_at" TIMESTAMPTZOID,
}

// The statement copies the payload from the log, so it does not pass through Rust. A message that
// was pushed without a transaction_id gets the derived one.
static BURY: Statement = Statement::new(
    "INSERT INTO queen_mq.dead_letter
         (queue, consumer_group, partition, message_id, transaction_id, payload, headers, error,
          failures, deliveries, created_at, failed_at)
     SELECT g.queue, g.name, s.partition, $4, coalesce(s.transaction_ids[$5], $6), s.payloads[$5],
            s.headers[$5], $7, $8, $9, s.created_at, $10
     FROM queen_mq.consumer_group g
     JOIN queen_mq.queue q ON q.name = g.queue
     JOIN queen_mq.segment s ON s.queue_id = q.id AND s.partition = $2 AND s.id = $3
     WHERE g.id = $1",
    &[
        pg_sys::INT8OID,
        pg_sys::TEXTOID,
        pg_sys::INT8OID,
        pg_sys::INT8OID,
        pg_sys::INT4OID,
        pg_sys::TEXTOID,
        pg_sys::TEXTOID,
        pg_sys::INT4OID,
        pg_sys::INT4OID,
        pg_sys::TIMESTAMPTZOID,
    ],
);
// Whether the message is still in the log.
static IS_IN_LOG: Statement = Statement::new(
    "SELECT FROM queen_mq.consumer_group g
     JOIN queen_mq.queue q ON q.name = g.queue
     JOIN queen_mq.segment s ON s.queue_id = q.id AND s.partition = $2 AND s.id = $3
     WHERE g.id = $1",
    &[pg_sys::INT8OID, pg_sys::TEXTOID, pg_sys::INT8OID],
);
static DELETE_OF_QUEUE: Statement =
    Statement::new("DELETE FROM queen_mq.dead_letter WHERE queue = $1", &[pg_sys::TEXTOID]);

/// Copy a message into the dead letters of `group`.
pub fn bury(group: i64, partition: &str, dead: DeadLetter, error: Option<&str>, now: Moment) {
    let message: MessageId = dead.message;
    let buried = BURY.run(&[
        arg(group),
        arg(partition),
        arg(signed(message.segment())),
        arg(message.to_sql()),
        arg(i32::from(message.index()) + 1),
        arg(message.derived_transaction_id()),
        error.and_then(arg),
        arg(dead.failures as i32),
        arg(dead.deliveries as i32),
        arg(At(now)),
    ]);
    let segment = [arg(group), arg(partition), arg(signed(message.segment()))];
    if buried.affected() == 0 && IS_IN_LOG.run(&segment).affected() > 0 {
        relation::refuse_suppression(&DEAD_LETTERS);
    }
}

/// Delete the dead letters of a queue.
pub fn delete_of_queue(queue: &str) {
    DELETE_OF_QUEUE.run(&[arg(queue)]);
}

static COUNT: Statement = Statement::new(
    "SELECT count(*) FROM queen_mq.dead_letter WHERE queue = $1 AND consumer_group = $2",
    &[pg_sys::TEXTOID, pg_sys::TEXTOID],
);

/// How many dead letters a group has.
pub fn count(queue: &str, group: &str, under: &ActiveSnapshot) -> i64 {
    COUNT.read(&[arg(queue), arg(group)], under).first().and_then(|row| row.only()).unwrap_or(0)
}

/// What is known of a dead letter without its payload.
pub struct Buried {
    /// '' is queue mode.
    pub group: String,
    pub message: MessageId,
    pub error: Option<String>,
    pub deliveries: u32,
}

static NAMED: Statement = Statement::new(
    "SELECT consumer_group, message_id, error, deliveries FROM queen_mq.dead_letter
     WHERE queue = $1 AND partition = $2 AND transaction_id = $3 COLLATE \"C\"
     ORDER BY message_id DESC LIMIT 1000",
    &[pg_sys::TEXTOID, pg_sys::TEXTOID, pg_sys::TEXTOID],
);

/// The dead letters of messages with this transaction_id, the newest message first.
pub fn named(
    queue: &str,
    partition: &str,
    transaction_id: &str,
    under: &ActiveSnapshot,
) -> Vec<Buried> {
    let read = |row: SqlRow| Buried {
        group: row.need(CONSUMER_GROUP),
        message: MessageId::from_sql(row.need(MESSAGE_ID)),
        error: row.get(ERROR),
        deliveries: row.need::<i32>(DELIVERIES) as u32,
    };
    NAMED.read(&[arg(queue), arg(partition), arg(transaction_id)], under).map(read).collect()
}

/// A dead letter that was taken out of the table.
pub struct Letter {
    pub queue: String,
    /// '' is queue mode.
    pub group: String,
    pub partition: String,
    pub message: MessageId,
    pub transaction_id: String,
    pub payload: Jsonb,
    pub headers: Option<Jsonb>,
}

static QUEUE_OF: Statement =
    Statement::new("SELECT queue FROM queen_mq.dead_letter WHERE id = $1", &[pg_sys::INT8OID]);

/// The queue of a dead letter; None if there is no such id.
pub fn queue_of(id: i64, under: &ActiveSnapshot) -> Option<String> {
    QUEUE_OF.read(&[arg(id)], under).first().map(|row| row.need(QUEUE))
}

static TAKE: Statement = Statement::new(
    "DELETE FROM queen_mq.dead_letter WHERE id = $1
     RETURNING queue, consumer_group, partition, message_id, transaction_id, payload, headers",
    &[pg_sys::INT8OID],
);

/// Take a dead letter out; None if there is no such id. Its values live until SPI closes.
pub fn take(id: i64) -> Option<Letter> {
    TAKE.run(&[arg(id)]).first().map(|row| Letter {
        queue: row.need(QUEUE),
        group: row.need(CONSUMER_GROUP),
        partition: row.need(PARTITION),
        message: MessageId::from_sql(row.need(MESSAGE_ID)),
        transaction_id: row.need(TRANSACTION_ID),
        payload: row.need(PAYLOAD),
        headers: row.get(HEADERS),
    })
}

/// Which dead letters of a queue are meant.
pub struct LetterFilter<'a> {
    pub queue: &'a str,
    /// None: of every group.
    pub group: Option<&'a str>,
    /// A pattern of LIKE for the error; letters without an error do not match one.
    pub error_like: Option<&'a str>,
    pub failed_before: Option<Moment>,
}

// By groups, as the index has them. Letters of groups that are gone can't be replayed.
static NEXT: Statement = Statement::new(
    "SELECT d.id FROM queen_mq.consumer_group AS g
     CROSS JOIN LATERAL (SELECT id FROM queen_mq.dead_letter
         WHERE queue = g.queue AND consumer_group = g.name AND id > $5
           AND ($3 IS NULL OR error LIKE $3) AND ($4 IS NULL OR failed_at < $4)
         ORDER BY id LIMIT $6) AS d
     WHERE g.queue = $1 AND ($2 IS NULL OR g.name = $2) ORDER BY d.id LIMIT $6",
    &[
        pg_sys::TEXTOID,
        pg_sys::TEXTOID,
        pg_sys::TEXTOID,
        pg_sys::TIMESTAMPTZOID,
        pg_sys::INT8OID,
        pg_sys::INT8OID,
    ],
);

/// The ids of up to `limit` dead letters after the id `after` whose groups are there, ascending,
/// which is by age.
pub fn next(filter: &LetterFilter<'_>, after: i64, limit: i64) -> Vec<i64> {
    let LetterFilter { queue, group, error_like, failed_before } = *filter;
    let (group, error_like) = (group.and_then(arg), error_like.and_then(arg));
    let before = failed_before.and_then(|at| arg(At(at)));
    NEXT.run(&[arg(queue), group, error_like, before, arg(after), arg(limit)])
        .map(|row| row.need(ID))
        .collect()
}

static TRY_LOCK: Statement = Statement::new(
    "SELECT id FROM queen_mq.dead_letter WHERE id = ANY ($1) ORDER BY id FOR UPDATE SKIP LOCKED",
    &[pg_sys::INT8ARRAYOID],
);

/// Lock those of the letters that no other transaction is replaying or purging; returns their ids,
/// ascending. Never waits.
pub fn try_lock(ids: Vec<i64>) -> Vec<i64> {
    TRY_LOCK.run(&[arg(ids)]).map(|row| row.need(ID)).collect()
}

static PURGE: Statement = Statement::new(
    "DELETE FROM queen_mq.dead_letter WHERE queue = $1 AND ($2 IS NULL OR failed_at < $2)",
    &[pg_sys::TEXTOID, pg_sys::TIMESTAMPTZOID],
);
static PURGE_OF_GROUP: Statement = Statement::new(
    "DELETE FROM queen_mq.dead_letter
     WHERE queue = $1 AND consumer_group = $3 AND ($2 IS NULL OR failed_at < $2)",
    &[pg_sys::TEXTOID, pg_sys::TIMESTAMPTZOID, pg_sys::TEXTOID],
);

/// Delete dead letters of the queue that failed before a moment; returns how many.
pub fn purge(queue: &str, group: Option<&str>, before: Option<Moment>) -> i64 {
    let (queue, before) = (arg(queue), before.and_then(|at| arg(At(at))));
    let gone = match group {
        Some(group) => PURGE_OF_GROUP.run(&[queue, before, arg(group)]),
        None => PURGE.run(&[queue, before]),
    };
    gone.affected() as i64
}
