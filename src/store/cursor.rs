//! `queen_mq.cursor` and `queen_mq.progress`: who reads where, and how far.
//!
//! The cursor row is an identity and a lock. Its state is the newest row of progress: written by
//! the holder of the lock alone, as the next revision, never updated.

use pgrx::pg_sys;
use queen_engine::codec::encode;
use queen_engine::cursor::{Cursor, Start};

use super::clock::{self, At};
use super::spi::{Arg, Row, Statement, Under, arg, one_snapshot_per_transaction};
use super::{decode, receipt, signed, unsigned};
use crate::error::{Error, Result};

/// A cursor with its newest state.
#[derive(Clone, Debug)]
pub struct Located {
    pub id: u64,
    pub group: i64,
    pub partition: String,
    pub revision: i64,
    pub cursor: Cursor,
}

/// What is known of a partition for a group: its cursor, unless nobody has read it yet.
#[derive(Clone, Debug)]
pub struct Status {
    pub partition: String,
    pub located: Option<Located>,
}

macro_rules! newest {
    () => {
        "LEFT JOIN LATERAL (SELECT revision, state FROM queen_mq.progress
             WHERE cursor_id = c.id ORDER BY revision DESC LIMIT 1) AS p ON true"
    };
}
pub(super) use newest;

static STATUS: Statement = Statement::new(
    concat!(
        "SELECT wanted.partition, c.id, p.revision, p.state
         FROM unnest($2) WITH ORDINALITY AS wanted(partition, place)
         LEFT JOIN LATERAL (SELECT id FROM queen_mq.cursor
             WHERE group_id = $1 AND partition = wanted.partition LIMIT 1) AS c ON true ",
        newest!(),
        " ORDER BY wanted.place"
    ),
    &[pg_sys::INT8OID, pg_sys::TEXTARRAYOID],
);

/// The state of each of `partitions` for `group`, in their order. `start`: of new cursors.
pub fn status(
    group: i64,
    start: &Start,
    partitions: Vec<String>,
    under: &Under,
) -> Result<Vec<Status>> {
    STATUS
        .read(&[arg(group), arg(partitions)], under)
        .map(|row| {
            let partition: String = row.need(1);
            let located = match row.get::<i64>(2) {
                None => None,
                Some(id) => Some(Located {
                    id: unsigned(id),
                    group,
                    partition: partition.clone(),
                    revision: row.get(3).unwrap_or(0),
                    cursor: state(&row, 4, start)?,
                }),
            };
            Ok(Status { partition, located })
        })
        .collect()
}

pub(super) fn state(row: &Row, column: usize, start: &Start) -> Result<Cursor> {
    match row.get::<Vec<u8>>(column) {
        Some(bytes) => decode(&bytes, "the state of a cursor"),
        None => Ok(Cursor::new(start.clone())),
    }
}

// Looks once more before it locks: what was popped since the caller's snapshot is left alone.
static TRY_LOCK: Statement = Statement::new(
    "SELECT FROM queen_mq.cursor c WHERE c.id = $1
       AND NOT EXISTS (SELECT FROM queen_mq.progress WHERE cursor_id = $1 AND revision > $2)
     FOR NO KEY UPDATE SKIP LOCKED",
    &[pg_sys::INT8OID, pg_sys::INT8OID],
);

/// Lock the cursor unless somebody else has it, or has moved it on. Never waits.
pub fn try_lock(cursor: u64, revision: i64) -> bool {
    TRY_LOCK.run(&[arg(signed(cursor)), arg(revision)]).affected() == 1
}

static TRY_NAME: Statement = Statement::new(
    "SELECT pg_catalog.pg_try_advisory_xact_lock(
         pg_catalog.hashtextextended('queen_mq.cursor ' || $1 || ' ' || $2, 0))",
    &[pg_sys::INT8OID, pg_sys::TEXTOID],
);
static CREATE: Statement = Statement::new(
    "INSERT INTO queen_mq.cursor (group_id, partition) VALUES ($1, $2)
     ON CONFLICT ON CONSTRAINT cursor_once DO NOTHING RETURNING id",
    &[pg_sys::INT8OID, pg_sys::TEXTOID],
);

/// Create the cursor, locked by being new. None where somebody else has just done so or is about
/// to: an insert of the same key would wait for them.
pub fn try_create(group: i64, partition: &str) -> Option<u64> {
    let free = TRY_NAME.run(&[arg(group), arg(partition)]).first()?.need::<bool>(1);
    if !free {
        return None;
    }
    CREATE.run(&[arg(group), arg(partition)]).first().map(|row| unsigned(row.need(1)))
}

static LOCK: Statement = Statement::new(
    "SELECT FROM queen_mq.cursor WHERE id = ANY ($1) ORDER BY id FOR NO KEY UPDATE",
    &[pg_sys::INT8ARRAYOID],
);

/// Lock the cursors, ascending, waiting for whoever has them. Their states are to be read after
/// this: by a statement with a snapshot from after the wait.
pub fn lock(cursors: &[u64]) {
    let ids: Vec<i64> = cursors.iter().copied().map(signed).collect();
    LOCK.run(&[arg(ids)]);
}

static APPEND: Statement = Statement::new(
    "INSERT INTO queen_mq.progress
         (cursor_id, revision, group_id, settled, due_at, announced_xid, state)
     SELECT $1, $2 + 1, $3, $4, $5, $6, $7
     WHERE NOT EXISTS (SELECT FROM queen_mq.progress WHERE cursor_id = $1 AND revision > $2)
     ON CONFLICT ON CONSTRAINT progress_newest DO NOTHING",
    &[
        pg_sys::INT8OID,
        pg_sys::INT8OID,
        pg_sys::INT8OID,
        pg_sys::INT8OID,
        pg_sys::TIMESTAMPTZOID,
        pg_sys::INT8OID,
        pg_sys::BYTEAOID,
    ],
);

/// How the search for work learns of a state.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Notice {
    /// Leased: there is nothing to look for before the deadline.
    Leased,
    /// Ready, or waiting for a retry: announced under this transaction id. A retry is announced
    /// too, since its moment may have passed before the transaction commits.
    Ready { xid: u64 },
}

/// Write `state` as the revision after that of `at`, whose lock the caller holds. False: somebody
/// else has written since `at` was read.
pub fn append(at: &Located, state: &Cursor, notice: Notice) -> Result<bool> {
    refuse_stale(at.id, at.revision)?;
    let due: Arg = state.due_at().and_then(|moment| arg(At(moment)));
    let announced = match notice {
        Notice::Leased => None,
        Notice::Ready { xid } => arg(signed(xid)),
    };
    let written = APPEND.run(&[
        arg(signed(at.id)),
        arg(at.revision),
        arg(at.group),
        arg(signed(state.settled)),
        due,
        announced,
        arg(encode(state)),
    ]);
    if written.affected() == 0 {
        return Ok(false);
    }
    prune(at.id, at.revision + 1);
    Ok(true)
}

/// Superseded revisions are deleted this many at a time, and this many are left.
const PRUNED: i64 = 64;

static PRUNE: Statement = Statement::new(
    "DELETE FROM queen_mq.progress WHERE cursor_id = $1 AND revision > $2 AND revision <= $3",
    &[pg_sys::INT8OID, pg_sys::INT8OID, pg_sys::INT8OID],
);

/// Every 64th revision removes the 64 before the last 64. The lower bound keeps the scan away from
/// the end of the index where rows die.
fn prune(cursor: u64, revision: i64) {
    if revision % PRUNED == 0 && revision > PRUNED {
        PRUNE.run(&[arg(signed(cursor)), arg(revision - 2 * PRUNED), arg(revision - PRUNED)]);
        receipt::prune(cursor, clock::now());
    }
}

static NEWEST_REVISION: Statement = Statement::new(
    "SELECT revision FROM queen_mq.progress WHERE cursor_id = $1 ORDER BY revision DESC LIMIT 1",
    &[pg_sys::INT8OID],
);

/// In REPEATABLE READ what was read may be long out of date: then nothing may be written on top.
pub(super) fn refuse_stale(cursor: u64, revision: i64) -> Result<()> {
    if !one_snapshot_per_transaction() {
        return Ok(());
    }
    let newest = Under::latest_snapshot(|under| {
        let row = NEWEST_REVISION.read(&[arg(signed(cursor))], under).first();
        Ok(row.map_or(0, |row| row.need(1)))
    })?;
    if newest == revision {
        Ok(())
    } else {
        Err(Error::conflict("The position of this consumer group"))
    }
}

static OF_GROUP: Statement = Statement::new(
    concat!(
        "SELECT c.id, c.partition, p.revision, p.state FROM queen_mq.cursor c ",
        newest!(),
        " WHERE c.group_id = $1 ORDER BY c.id"
    ),
    &[pg_sys::INT8OID],
);

/// Every cursor of the group.
pub fn of_group(group: i64, start: &Start, under: &Under) -> Result<Vec<Located>> {
    OF_GROUP
        .read(&[arg(group)], under)
        .map(|row| {
            Ok(Located {
                id: unsigned(row.need(1)),
                group,
                partition: row.need(2),
                revision: row.get(3).unwrap_or(0),
                cursor: state(&row, 4, start)?,
            })
        })
        .collect()
}
