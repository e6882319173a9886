//! `queen_mq.cursor` and `queen_mq.progress`: who reads where, and how far.
//!
//! The cursor row is an identity and a lock. Its state is the newest row of progress: written by
//! the holder of the lock alone, as the next revision, never updated.

use pgrx::pg_sys;
use queen_engine::codec::encode;
use queen_engine::cursor::{Cursor, Start};

use super::clock::{self, At};
use super::identity::Identity;
use super::spi::{Arg, Columns, Statement, Under, arg, one_snapshot_per_transaction};
use super::table::{self, From, Index, Place, Table, Value};
use super::{advisory, decode, receipt, signed, snapshot, unsigned};
use crate::error::{Error, Result};
use crate::waiters::{self, Topic};

/// A cursor with its newest state.
#[derive(Clone, Debug)]
pub struct Located {
    pub id: u64,
    pub group: i64,
    pub partition: String,
    pub revision: i64,
    /// The current transaction has written this revision, or may have.
    pub is_own: bool,
    pub cursor: Cursor,
}

static CURSORS: Table = Table(c"cursor");
static BY_PARTITION: Index = Index { table: Table(c"cursor"), name: c"cursor_once" };
static BY_ID: Index = Index { table: Table(c"cursor"), name: c"cursor_pkey" };
static PROGRESS: Table = Table(c"progress");
static REVISIONS: Index = Index { table: Table(c"progress"), name: c"progress_newest" };

/// What is known of a partition for a group: its cursor and where that row lies, unless nobody has
/// read the partition yet.
pub fn status(
    group: i64,
    start: &Start,
    partition: &str,
    under: &Under,
) -> Result<Option<(Located, Place)>> {
    let key = [Value::Int(group), Value::Text(partition)];
    let found = BY_PARTITION.end(&key, From::Start, under, |row| (row.need(1), row.place()));
    let Some((id, place)) = found else { return Ok(None) };
    let (revision, is_own, cursor) = newest(id, start, under)?;
    let partition = partition.to_owned();
    Ok(Some((Located { id: unsigned(id), group, partition, revision, is_own, cursor }, place)))
}

/// The newest revision of a cursor, whether it is the current transaction's, and the state; 0 and
/// the start where there is none.
fn newest(id: i64, start: &Start, under: &Under) -> Result<(i64, bool, Cursor)> {
    let read = |row: &table::Tuple| (need_revision(row), row.is_own(), state(row, 6, start));
    match REVISIONS.end(&[Value::Int(id)], From::End, under, read) {
        Some((revision, is_own, cursor)) => Ok((revision, is_own, cursor?)),
        None => Ok((0, false, Cursor::new(start.clone()))),
    }
}

fn need_revision(row: &impl Columns) -> i64 {
    row.need(2)
}

fn state(row: &impl Columns, column: usize, start: &Start) -> Result<Cursor> {
    match row.get::<Vec<u8>>(column) {
        Some(bytes) => decode(&bytes, "the state of a cursor"),
        None => Ok(Cursor::new(start.clone())),
    }
}

/// The newest revision there is at this moment, also in REPEATABLE READ.
fn latest_revision(cursor: u64) -> Result<i64> {
    Under::latest_snapshot(|under| {
        let key = [Value::Int(signed(cursor))];
        Ok(REVISIONS.end(&key, From::End, under, need_revision).unwrap_or(0))
    })
}

/// Whether `revision` is still the newest of its cursor: for hints, not for writing.
pub(super) fn is_newest(cursor: i64, revision: i64, under: &Under) -> bool {
    let newest = REVISIONS.end(&[Value::Int(cursor)], From::End, under, need_revision);
    newest.is_none_or(|newest| newest <= revision)
}

/// The partition of a cursor.
pub(super) fn partition_of(cursor: i64, under: &Under) -> Option<String> {
    BY_ID.end(&[Value::Int(cursor)], From::Start, under, |row| row.need(3))
}

/// What became of an attempt to lock a cursor.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Attempt {
    Locked,
    /// Somebody else has it.
    Taken,
    /// It has a newer state than the caller saw. The lock may have been taken all the same.
    MovedOn,
}

/// Lock the cursor unless somebody else has it, or has moved it on. Never waits. Looks before it
/// locks, so that what was popped since the caller's snapshot is left alone, and once more after:
/// the answer stands then. In REPEATABLE READ a newer state is an error.
pub fn try_lock(at: &Located, place: Place, under: &Under) -> Result<Attempt> {
    if latest_revision(at.id)? != at.revision {
        return moved_on();
    }
    if !CURSORS.lock(place, false, under) {
        return Ok(Attempt::Taken);
    }
    match latest_revision(at.id)? == at.revision {
        true => Ok(Attempt::Locked),
        false => moved_on(),
    }
}

/// What to do about a state that is newer than the snapshot.
pub fn moved_on() -> Result<Attempt> {
    match one_snapshot_per_transaction() {
        true => Err(stale()),
        false => Ok(Attempt::MovedOn),
    }
}

fn stale() -> Error {
    Error::conflict("The position of this consumer group")
}

/// Create the cursor, locked by being new. None where somebody else has just done so or is about
/// to: an insert of the same key would wait for them; or keeps everybody from it.
pub fn try_create(queue: i64, group: i64, partition: &str) -> Result<Option<Located>> {
    if !advisory::try_share(&first_reads(queue)) || !advisory::try_lock(&name_of(group, partition))
    {
        return Ok(None);
    }
    if exists(group, partition)? {
        return if one_snapshot_per_transaction() { Err(stale()) } else { Ok(None) };
    }
    let id = insert(group, partition);
    let partition = partition.to_owned();
    let cursor = Cursor::default();
    Ok(Some(Located { id, group, partition, revision: 0, is_own: false, cursor }))
}

/// See that the cursor exists, waiting for a transaction that is creating it.
pub fn create(queue: i64, group: i64, partition: &str) -> Result<()> {
    advisory::share(&first_reads(queue));
    if !exists(group, partition)? {
        advisory::lock(&name_of(group, partition));
        if !exists(group, partition)? {
            insert(group, partition);
        }
    }
    Ok(())
}

/// Keep others from creating the cursor, to the end of the transaction. False if somebody is at it.
pub fn try_prevent(group: i64, partition: &str) -> Result<bool> {
    Ok(advisory::try_lock(&name_of(group, partition)) && !exists(group, partition)?)
}

/// Keep others from creating cursors of the queue, to the end of the transaction, waiting for those
/// who have created some.
pub fn prevent_all(queue: i64) {
    advisory::lock(&first_reads(queue));
}

fn first_reads(queue: i64) -> String {
    format!("first reads {queue}")
}

fn name_of(group: i64, partition: &str) -> String {
    format!("cursor {group} {partition}")
}

/// Whether there is such a cursor at this moment: whoever held its name before has committed, and
/// the latest snapshot sees what they did.
fn exists(group: i64, partition: &str) -> Result<bool> {
    let key = [Value::Int(group), Value::Text(partition)];
    Under::latest_snapshot(|under| Ok(BY_PARTITION.end(&key, From::Start, under, |_| ()).is_some()))
}

fn insert(group: i64, partition: &str) -> u64 {
    let id = table::draw(c"cursor_id_seq");
    CURSORS.insert(&[arg(id), arg(group), arg(partition)]);
    unsigned(id)
}

static IDS_OF: Statement = Statement::new(
    "SELECT id FROM queen_mq.cursor WHERE group_id = ANY ($1) ORDER BY id",
    &[pg_sys::INT8ARRAYOID],
);

/// The cursors of the groups, ascending.
pub fn ids_of(groups: &[i64], under: &Under) -> Vec<u64> {
    IDS_OF.read(&[arg(groups.to_vec())], under).map(|row| unsigned(row.need(1))).collect()
}

/// Lock the cursors, in the order given, which is ascending, waiting for whoever has them; those
/// that are gone drop out. Their states are to be read after this, under a newer snapshot.
pub fn lock(cursors: &[u64]) -> Result<Vec<(u64, i64, String)>> {
    let mut locked = Vec::with_capacity(cursors.len());
    for &id in cursors {
        let found = Under::new_snapshot(|under| {
            let read = |row: &table::Tuple| (row.need(2), row.need(3), row.place());
            let key = [Value::Int(signed(id))];
            let found = BY_ID.end(&key, From::Start, under, read);
            if found.is_none() && one_snapshot_per_transaction() && exists_by_id(&key)? {
                return Err(stale());
            }
            Ok(found.filter(|(_, _, place)| CURSORS.lock(*place, true, under)))
        })?;
        locked.extend(found.map(|(group, partition, _)| (id, group, partition)));
    }
    Ok(locked)
}

/// Whether there is such a cursor at this moment, whatever the transaction's snapshot says.
fn exists_by_id(key: &[Value<'_>]) -> Result<bool> {
    Under::latest_snapshot(|under| Ok(BY_ID.end(key, From::Start, under, |_| ()).is_some()))
}

/// The newest states of locked cursors; `start` tells where a group begins. In REPEATABLE READ one
/// that is out of date is an error.
pub fn locate<'a>(
    locked: Vec<(u64, i64, String)>,
    start: impl Fn(i64) -> &'a Start,
    under: &Under,
) -> Result<Vec<Located>> {
    let mut located = Vec::with_capacity(locked.len());
    for (id, group, partition) in locked {
        let (revision, is_own, cursor) = newest(signed(id), start(group), under)?;
        if one_snapshot_per_transaction() && latest_revision(id)? != revision {
            return Err(stale());
        }
        located.push(Located { id, group, partition, revision, is_own, cursor });
    }
    Ok(located)
}

/// How the search for work learns of a state.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Notice {
    /// Leased: there is nothing to look for before the deadline.
    Leased,
    /// Ready, or waiting for a retry: announced under this transaction id. A retry is announced
    /// too, since its moment may have passed before the transaction commits.
    Ready { xid: u64 },
}

impl Notice {
    /// Of `state`, which follows `at`. What is leased is announced all the same where it hides an
    /// announcement of this transaction: its deadline may have passed before the commit, and others
    /// have passed such moments by then.
    pub fn of(at: &Located, state: &Cursor, identity: Identity) -> Self {
        match state.leases.is_empty() || at.is_own {
            true => Self::Ready { xid: snapshot::assign_xid(identity) },
            false => Self::Leased,
        }
    }
}

/// Write `state` as the revision after that of `at`, which is the newest and whose lock the caller
/// holds.
pub fn append(at: &Located, state: &Cursor, notice: Notice) {
    let due: Arg = state.due_at().and_then(|moment| arg(At(moment)));
    let announced = match notice {
        Notice::Leased => None,
        Notice::Ready { xid } => {
            waiters::touch(Topic::group(at.group));
            arg(signed(xid))
        }
    };
    PROGRESS.insert(&[
        arg(signed(at.id)),
        arg(at.revision + 1),
        arg(at.group),
        due,
        announced,
        arg(encode(state)),
    ]);
    prune(at.id, at.revision + 1);
}

/// Superseded revisions are deleted this many at a time, and this many are left.
const PRUNED: i64 = 64;

static PRUNE: Statement = Statement::new(
    "DELETE FROM queen_mq.progress WHERE ctid = ANY (ARRAY(
         SELECT ctid FROM queen_mq.progress
         WHERE cursor_id = $1 AND revision > $2 AND revision <= $3 FOR UPDATE SKIP LOCKED))",
    &[pg_sys::INT8OID, pg_sys::INT8OID, pg_sys::INT8OID],
);

/// Every 64th revision removes the 64 before the last 64. The lower bound keeps the scan away from
/// the end of the index where rows die. What a sweep is deleting is left to it.
fn prune(cursor: u64, revision: i64) {
    if revision % PRUNED == 0 && revision > PRUNED {
        PRUNE.run(&[arg(signed(cursor)), arg(revision - 2 * PRUNED), arg(revision - PRUNED)]);
        receipt::prune(cursor, clock::now());
    }
}

static OF_GROUP: Statement = Statement::new(
    "SELECT c.id, c.partition, p.revision, p.state FROM queen_mq.cursor c
     LEFT JOIN LATERAL (SELECT revision, state FROM queen_mq.progress
         WHERE cursor_id = c.id ORDER BY revision DESC LIMIT 1) AS p ON true
     WHERE c.group_id = $1 ORDER BY c.id",
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
                is_own: true,
                cursor: state(&row, 4, start)?,
            })
        })
        .collect()
}
