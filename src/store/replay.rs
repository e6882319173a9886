//! `queen_mq.replay`: replayed dead letters in the log, each for one group alone.

use pgrx::pg_sys;
use queen_engine::message::MessageId;

use super::{signed, unsigned};
use crate::pg::columns::{Columns, arg};
use crate::pg::key::Value;
use crate::pg::relation;
use crate::pg::scan::{ScanEnd, Tuple};
use crate::pg::snapshot::ActiveSnapshot;
use crate::pg::spi::{SqlRow, Statement};
use crate::pg::table::{Index, table};

table! {
    REPLAYS = c"replay";
    QUEUE_ID: c"queue_id" INT8OID,
    SEGMENT_ID: c"segment_id" INT8OID,
    XID: c"xid" INT8OID,
    PARTITION: c"partition" TEXTOID,
    GROUP_ID: c"group_id" INT8OID,
    TRANSACTION_ID: c"transaction_id" TEXTOID,
    MESSAGE_ID: c"message_id" INT8OID,
}

pub(super) static BY_SEGMENT: Index =
    Index { table: &REPLAYS, name: c"replay_once", columns: &[QUEUE_ID, SEGMENT_ID] };

/// A segment of one message, which is for one group alone.
pub struct Replay {
    pub segment: u64,
    pub xid: u64,
    pub partition: String,
    pub group: i64,
}

static INSERT: Statement = Statement::new(
    "INSERT INTO queen_mq.replay
         (queue_id, segment_id, xid, partition, group_id, transaction_id, message_id)
     VALUES ($1, $2, $3, $4, $5, $6, $7)",
    &[
        pg_sys::INT8OID,
        pg_sys::INT8OID,
        pg_sys::INT8OID,
        pg_sys::TEXTOID,
        pg_sys::INT8OID,
        pg_sys::TEXTOID,
        pg_sys::INT8OID,
    ],
);

/// Write down that a segment is for one group alone, that it repeats `message`, and which
/// transaction_id it carries.
pub fn insert(queue: i64, replay: &Replay, transaction_id: &str, message: MessageId) {
    let written = INSERT.run(&[
        arg(queue),
        arg(signed(replay.segment)),
        arg(signed(replay.xid)),
        arg(replay.partition.as_str()),
        arg(replay.group),
        arg(transaction_id),
        arg(message.to_sql()),
    ]);
    if written.affected() == 0 {
        relation::refuse_suppression(&REPLAYS);
    }
}

/// The message that a segment repeats: that of the first replay, if a replay was replayed. None if
/// the segment is none, or was written by a version that did not know.
pub fn repeated_by(queue: i64, segment: u64, under: &ActiveSnapshot) -> Option<MessageId> {
    let key = [Value::Int(queue), Value::Int(signed(segment))];
    let message = |row: &Tuple| row.get(MESSAGE_ID).map(MessageId::from_sql);
    BY_SEGMENT.end(&key, ScanEnd::Start, under, message).flatten()
}

static OF_QUEUE: Statement = Statement::new(
    "SELECT segment_id, xid, partition, group_id FROM queen_mq.replay WHERE queue_id = $1",
    &[pg_sys::INT8OID],
);

/// The replays of a queue.
pub fn of_queue(queue: i64, under: &ActiveSnapshot) -> Vec<Replay> {
    let read = |row: SqlRow| Replay {
        segment: unsigned(row.need(SEGMENT_ID)),
        xid: unsigned(row.need(XID)),
        partition: row.need(PARTITION),
        group: row.need(GROUP_ID),
    };
    OF_QUEUE.read(&[arg(queue)], under).map(read).collect()
}

static NAMED: Statement = Statement::new(
    "SELECT segment_id FROM queen_mq.replay
     WHERE queue_id = $1 AND partition = $2 AND transaction_id = $3
     ORDER BY segment_id DESC LIMIT 1000",
    &[pg_sys::INT8OID, pg_sys::TEXTOID, pg_sys::TEXTOID],
);

/// The segments of replayed messages with this transaction_id that are in the log, the newest
/// first.
pub fn named(
    queue: i64,
    partition: &str,
    transaction_id: &str,
    under: &ActiveSnapshot,
) -> Vec<u64> {
    let read = |row: SqlRow| unsigned(row.need(SEGMENT_ID));
    NAMED.read(&[arg(queue), arg(partition), arg(transaction_id)], under).map(read).collect()
}

static HAND_OVER: Statement = Statement::new(
    "WITH moved AS (UPDATE queen_mq.replay SET group_id = $2 WHERE queue_id = $3 AND group_id = $1
                    RETURNING partition, segment_id)
     UPDATE queen_mq.segment SET only_group = $2 WHERE ctid = ANY (ARRAY(
         SELECT s.ctid FROM moved CROSS JOIN LATERAL (
             SELECT ctid FROM queen_mq.segment
             WHERE queue_id = $3 AND partition = moved.partition AND id = moved.segment_id
             OFFSET 0) AS s))",
    &[pg_sys::INT8OID, pg_sys::INT8OID, pg_sys::INT8OID],
);

/// Give the messages that were replayed for group `from` of the queue to group `to`, which is that
/// group under its new id.
pub fn hand_over(queue: i64, from: i64, to: i64) {
    HAND_OVER.run(&[arg(from), arg(to), arg(queue)]);
}
