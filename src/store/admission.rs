//! `queen_mq.admission`: transaction_ids remembered for the dedup window.

use std::collections::{HashMap, HashSet};

use pgrx::pg_sys;
use queen_engine::message::MessageId;

use crate::error::Result;
use crate::pg::clock::{At, Moment};
use crate::pg::columns::{Columns, arg};
use crate::pg::insert::InsertingIfNew;
use crate::pg::key::Value;
use crate::pg::relation;
use crate::pg::scan::{ScanEnd, Tuple};
use crate::pg::scratch::Scratch;
use crate::pg::snapshot::ActiveSnapshot;
use crate::pg::spi::Statement;
use crate::pg::table::{Index, table};

table! {
    ADMISSIONS = c"admission";
    QUEUE_ID: c"queue_id" INT8OID,
    PARTITION: c"partition" TEXTOID,
    TRANSACTION_ID: c"transaction_id" TEXTOID,
    MESSAGE_ID: c"message_id" INT8OID,
    ADMITTED_AT: c"admitted_at" TIMESTAMPTZOID,
}

// In order of the key, so that two calls with equal ids in another order do not deadlock. An id
// that is not returned is a duplicate: its row is there, within its window, and locked by this
// statement.
static ADMIT: Statement = Statement::new(
    "INSERT INTO queen_mq.admission AS a
         (queue_id, partition, transaction_id, message_id, admitted_at)
     SELECT $1, $2, t.id, t.message_id, $5
     FROM unnest($3, $4) AS t(id, message_id) ORDER BY t.id COLLATE \"C\"
     ON CONFLICT ON CONSTRAINT admission_once DO UPDATE
         SET message_id = excluded.message_id, admitted_at = excluded.admitted_at
         WHERE a.admitted_at <= $6
     RETURNING transaction_id",
    &[
        pg_sys::INT8OID,
        pg_sys::TEXTOID,
        pg_sys::TEXTARRAYOID,
        pg_sys::INT8ARRAYOID,
        pg_sys::TIMESTAMPTZOID,
        pg_sys::TIMESTAMPTZOID,
    ],
);
// With OFFSET, PostgreSQL looks each id up by the whole key, and uses no other plan.
static ORIGINALS: Statement = Statement::new(
    "SELECT t.id, a.message_id FROM unnest($3) AS t(id)
     CROSS JOIN LATERAL (SELECT message_id FROM queen_mq.admission
         WHERE queue_id = $1 AND partition = $2 AND transaction_id = t.id OFFSET 0) AS a",
    &[pg_sys::INT8OID, pg_sys::TEXTOID, pg_sys::TEXTARRAYOID],
);
static RENUMBER: Statement = Statement::new(
    "UPDATE queen_mq.admission AS a SET message_id = t.message_id
     FROM unnest($3, $4) AS t(id, message_id)
     CROSS JOIN LATERAL (SELECT ctid FROM queen_mq.admission
         WHERE queue_id = $1 AND partition = $2 AND transaction_id = t.id OFFSET 0) AS own
     WHERE a.ctid = own.ctid",
    &[pg_sys::INT8OID, pg_sys::TEXTOID, pg_sys::TEXTARRAYOID, pg_sys::INT8ARRAYOID],
);

/// The id of the message that a duplicate repeats. None: that message waits for its delay.
pub type Original = Option<i64>;

/// Remember `ids`, no two of which are equal, with their message ids for the dedup window; no
/// message id yet for a message that is pushed with a delay. Waits for an open transaction that has
/// pushed one of them, and for nothing else. Returns the duplicates, with their originals.
pub fn admit(
    queue: i64,
    partition: &str,
    ids: &[&str],
    messages: &[Option<i64>],
    now: Moment,
    window: i64,
) -> HashMap<String, Original> {
    let mut all: Vec<(&str, Option<i64>)> =
        ids.iter().copied().zip(messages.iter().copied()).collect();
    all.sort_unstable();
    let new = insert_new(queue, partition, &all, now);
    let (ids, messages): (Vec<&str>, Vec<Option<i64>>) = all[new..].iter().copied().unzip();
    if ids.is_empty() {
        return HashMap::new();
    }
    let admitted: HashSet<String> = ADMIT
        .run(&[
            arg(queue),
            arg(partition),
            arg(ids.clone()),
            arg(messages),
            arg(At(now)),
            arg(At(now.saturating_sub(window))),
        ])
        .map(|row| row.need(TRANSACTION_ID))
        .collect();
    if admitted.len() == ids.len() {
        return HashMap::new();
    }
    let originals: HashMap<String, Original> = ORIGINALS
        .run(&[arg(queue), arg(partition), arg(ids.clone())])
        .map(|row| (row.need::<String>(c"id"), row.get(MESSAGE_ID)))
        .filter(|(id, _)| !admitted.contains(id))
        .collect();
    if admitted.len() + originals.len() < ids.len() {
        relation::refuse_suppression(&ADMISSIONS);
    }
    originals
}

/// Insert the first of `rows`, which are in order of the key, up to one whose key may be taken.
/// Returns how many. The rest is for the statement that waits: so all calls still wait in the order
/// of the key. Duplicates come in runs, and a row that gives way is a dead row, so one is enough.
fn insert_new(queue: i64, partition: &str, rows: &[(&str, Option<i64>)], now: Moment) -> usize {
    let Some(inserting) = InsertingIfNew::begin(&ADMISSIONS, &REMEMBERED) else { return 0 };
    let (scratch, partition) = (Scratch::new(), arg(partition));
    let is_new = |(id, message): &(&str, Option<i64>)| {
        pgrx::check_for_interrupts!();
        scratch.run(|| {
            inserting.row(&[
                (QUEUE_ID, arg(queue)),
                (PARTITION, partition),
                (TRANSACTION_ID, arg(*id)),
                (MESSAGE_ID, message.and_then(arg)),
                (ADMITTED_AT, arg(At(now))),
            ])
        })
    };
    let new = rows.iter().take_while(|row| is_new(row)).count();
    inserting.end();
    new
}

/// Write the message ids that these ids got in the end. This transaction has admitted them.
pub fn renumber(queue: i64, partition: &str, ids: &[&str], messages: &[i64]) {
    RENUMBER.run(&[arg(queue), arg(partition), arg(ids.to_vec()), arg(messages.to_vec())]);
}

static COMPLETE: Statement = Statement::new(
    "UPDATE queen_mq.admission AS a SET message_id = t.message_id
     FROM unnest($3, $4) AS t(id, message_id)
     CROSS JOIN LATERAL (SELECT ctid FROM queen_mq.admission
         WHERE queue_id = $1 AND partition = $2 AND transaction_id = t.id AND message_id IS NULL
         OFFSET 0) AS own
     WHERE a.ctid = own.ctid",
    &[pg_sys::INT8OID, pg_sys::TEXTOID, pg_sys::TEXTARRAYOID, pg_sys::INT8ARRAYOID],
);

/// Write the message ids of messages that were admitted when they were pushed with a delay. Those
/// whose row is gone, or is a later message's by now, are left as they are. The caller knows by
/// [`is_busy`] that no other transaction has locked a row.
pub fn complete(queue: i64, partition: &str, ids: &[&str], messages: &[i64]) {
    COMPLETE.run(&[arg(queue), arg(partition), arg(ids.to_vec()), arg(messages.to_vec())]);
}

// The transaction_id of a message that waits for its delay stays, as the message does. A row that
// another transaction has locked stays: that transaction is pushing the transaction_id
// again, and has found the duplicate before the purge.
static FORGET_ALL: Statement = Statement::new(
    "DELETE FROM queen_mq.admission WHERE ctid = ANY (ARRAY(
         SELECT ctid FROM queen_mq.admission
         WHERE queue_id = $1 AND message_id IS NOT NULL FOR UPDATE SKIP LOCKED))",
    &[pg_sys::INT8OID],
);
static FORGET_IN: Statement = Statement::new(
    "DELETE FROM queen_mq.admission WHERE ctid = ANY (ARRAY(
         SELECT ctid FROM queen_mq.admission
         WHERE queue_id = $1 AND partition = $2 AND message_id IS NOT NULL
         FOR UPDATE SKIP LOCKED))",
    &[pg_sys::INT8OID, pg_sys::TEXTOID],
);

/// Forget every transaction_id of the queue, or of one partition, whose message is or was in the
/// log, as far as this transaction can see. Waits for no other transaction.
pub fn forget(queue: i64, partition: Option<&str>) {
    match partition {
        None => FORGET_ALL.run(&[arg(queue)]),
        Some(partition) => FORGET_IN.run(&[arg(queue), arg(partition)]),
    };
}

pub(super) static REMEMBERED: Index = Index {
    table: &ADMISSIONS,
    name: c"admission_once",
    columns: &[QUEUE_ID, PARTITION, TRANSACTION_ID],
};

/// Whether this transaction_id was admitted after `since`.
pub fn is_remembered(queue: i64, partition: &str, id: &str, since: Moment) -> Result<bool> {
    let key = [Value::Int(queue), Value::Text(partition), Value::Text(id)];
    let read = |row: &Tuple| row.need::<At>(ADMITTED_AT).0;
    let found = ActiveSnapshot::new_snapshot(|under| {
        Ok(REMEMBERED.end(&key, ScanEnd::Start, under, read))
    })?;
    Ok(found.is_some_and(|at| at > since))
}

/// A transaction_id that was pushed, as far as it is remembered: also for a while after the dedup
/// window.
pub struct Admitted {
    /// None: the message waits for its delay.
    pub message: Option<MessageId>,
    pub at: Moment,
}

/// What is remembered of this transaction_id.
pub fn find(queue: i64, partition: &str, id: &str, under: &ActiveSnapshot) -> Option<Admitted> {
    let key = [Value::Int(queue), Value::Text(partition), Value::Text(id)];
    let read = |row: &Tuple| Admitted {
        message: row.get::<i64>(MESSAGE_ID).map(MessageId::from_sql),
        at: row.need::<At>(ADMITTED_AT).0,
    };
    REMEMBERED.end(&key, ScanEnd::Start, under, read)
}

/// Whether an open transaction is pushing this transaction_id. (A push of a duplicate locks the row
/// of its original.) If not, and there is a row, the caller has locked it now.
pub fn is_busy(queue: i64, partition: &str, id: &str) -> Result<bool> {
    let key = [Value::Int(queue), Value::Text(partition), Value::Text(id)];
    if REMEMBERED.is_busy(&key) {
        return Ok(true);
    }
    ActiveSnapshot::latest_snapshot(|under| {
        let place = REMEMBERED.end(&key, ScanEnd::Start, under, Tuple::place);
        Ok(place.is_some_and(|place| !ADMISSIONS.lock(place, false, under)))
    })
}
