//! `queen_mq.cursor`: who reads where. A row is the identity and the lock of a partition for a
//! group; its state is the newest row of [`super::progress`].

use std::ops::ControlFlow;

use pgrx::pg_sys;
use queen_engine::cursor::{Cursor, Start};

use super::located::Located;
use super::{locks, progress, signed, unsigned};
use crate::error::{Error, Result};
use crate::pg::changes;
use crate::pg::columns::{Columns, arg};
use crate::pg::key::{Key, Value};
use crate::pg::scan::{ScanEnd, Tuple};
use crate::pg::sequence;
use crate::pg::session_cache::SessionCache;
use crate::pg::snapshot::{ActiveSnapshot, one_snapshot_per_transaction};
use crate::pg::spi::{SqlRow, Statement};
use crate::pg::table::{Index, RowLocation, table};

table! {
    CURSORS = c"cursor";
    ID: c"id" INT8OID,
    GROUP_ID: c"group_id" INT8OID,
    PARTITION: c"partition" TEXTOID,
}

pub(super) static BY_PARTITION: Index =
    Index { table: &CURSORS, name: c"cursor_once", columns: &[GROUP_ID, PARTITION] };
pub(super) static BY_ID: Index = Index { table: &CURSORS, name: c"cursor_pkey", columns: &[ID] };

/// The cursor of a partition for a group with its newest state, and where its row lies. None if the
/// group has not read the partition yet.
pub fn status(
    group: i64,
    start: &Start,
    partition: &str,
    under: &ActiveSnapshot,
) -> Result<Option<(Located, RowLocation)>> {
    let key = [Value::Int(group), Value::Text(partition)];
    let found = BY_PARTITION.end(&key, ScanEnd::Start, under, |row| (row.need(ID), row.place()));
    let Some((id, place)) = found else { return Ok(None) };
    let (revision, is_own, cursor) = progress::newest(id, || Cursor::new(start.clone()), under)?;
    let (id, partition, message) = (unsigned(id), partition.to_owned(), None);
    Ok(Some((Located { id, group, partition, message, revision, is_own, cursor }, place)))
}

/// What an error says has changed.
pub(super) fn position(partition: &str) -> String {
    format!("The position of the consumer group in partition \"{partition}\"")
}

/// Create the cursor of a partition. As long as this transaction is open, no other one can lock the
/// new row. None where another transaction has created the cursor, committed or not, or holds
/// [`locks::first_reads`] or [`locks::first_reads_of`] whole. Never waits. In REPEATABLE READ, a
/// cursor that another transaction has committed since the snapshot is error 40001.
pub fn try_create(queue: i64, group: i64, partition: &str) -> Result<Option<Located>> {
    if !try_share_first_reads(queue, group) {
        return Ok(None);
    }
    let new = try_create_with_shares(group, partition);
    if !matches!(new, Ok(Some(_))) {
        give_back_first_reads(queue, group);
    }
    new
}

/// [`try_create`] for a caller that has succeeded in [`try_share_first_reads`].
pub fn try_create_with_shares(group: i64, partition: &str) -> Result<Option<Located>> {
    let new = insert_if_new(group, partition);
    match new.is_none() && one_snapshot_per_transaction() && exists(group, partition)? {
        true => Err(Error::conflict(&position(partition))),
        false => Ok(new),
    }
}

/// Insert a cursor; None if there is one, also in REPEATABLE READ. The caller has succeeded in
/// [`try_share_first_reads`], or holds the group's row: a transaction that moves or removes the
/// group waits for both.
///
/// Of two transactions that insert at once, the second finds the key of the first in the unique
/// index and deletes its own row again.
pub fn insert_if_new(group: i64, partition: &str) -> Option<Located> {
    if is_at_hand(group, partition) {
        return None;
    }
    let id = sequence::draw(c"cursor_id_seq");
    CURSORS.try_insert(
        &BY_PARTITION,
        &[(ID, arg(id)), (GROUP_ID, arg(group)), (PARTITION, arg(partition))],
    )?;
    Some(fresh(unsigned(id), group, partition))
}

/// Whether there is such a cursor at this moment, committed or not. Asked before an insert, which
/// would fail then and leave a dead row.
fn is_at_hand(group: i64, partition: &str) -> bool {
    let keys =
        [(GROUP_ID, Key::Is(Value::Int(group))), (PARTITION, Key::Is(Value::Text(partition)))];
    BY_PARTITION.scan_dirty(&keys, ScanEnd::Start, |_, _| ControlFlow::Break(())).is_some()
}

/// Whether another transaction, which has not ended, has locked the cursor whose row lies there, or
/// is creating it where it has no row yet. A guess: a moment later it may be otherwise.
pub fn is_held(
    group: i64,
    partition: &str,
    place: Option<RowLocation>,
    under: &ActiveSnapshot,
) -> bool {
    match place {
        Some(place) => CURSORS.is_held(place, under),
        None => is_at_hand(group, partition),
    }
}

/// A cursor that has just been inserted.
fn fresh(id: u64, group: i64, partition: &str) -> Located {
    let (partition, cursor) = (partition.to_owned(), Cursor::default());
    Located { id, group, partition, message: None, revision: 0, is_own: false, cursor }
}

/// Share [`locks::first_reads`] and [`locks::first_reads_of`], under which the caller may create
/// cursors and claims of the group. If both shares are granted, no other transaction moves or
/// empties the group before this one ends, or calls [`give_back_first_reads`]. False, with neither,
/// where another transaction holds one of the locks whole or waits for that. Never waits.
pub fn try_share_first_reads(queue: i64, group: i64) -> bool {
    if !locks::first_reads(queue).try_share() {
        return false;
    }
    let has_both = locks::first_reads_of(group).try_share();
    if !has_both {
        locks::first_reads(queue).give_back_share();
    }
    has_both
}

/// Give back the shares of [`try_share_first_reads`], where the caller has created nothing. A pop
/// that goes on waiting for messages then keeps no seek, purge or deletion waiting.
pub fn give_back_first_reads(queue: i64, group: i64) {
    locks::first_reads(queue).give_back_share();
    locks::first_reads_of(group).give_back_share();
}

/// Share [`locks::first_reads`] and [`locks::first_reads_of`], waiting for a transaction that holds
/// one of them whole.
pub fn share_first_reads(queue: i64, group: i64) {
    locks::first_reads(queue).share();
    locks::first_reads_of(group).share();
}

/// Delete the cursor of a partition, if there is one, with its states, and insert a new one. The
/// caller has locked the old one, and holds a lock under which no other transaction creates one.
pub fn replace(group: i64, partition: &str) -> Result<Located> {
    REMOVE.run(&[arg(group), arg(partition)]);
    insert_if_new(group, partition).ok_or_else(|| Error::conflict(&position(partition)))
}

static REMOVE: Statement = Statement::new(
    "WITH gone AS (DELETE FROM queen_mq.cursor WHERE group_id = $1 AND partition = $2 RETURNING id)
     DELETE FROM queen_mq.progress WHERE cursor_id = ANY (ARRAY(SELECT id FROM gone))",
    &[pg_sys::INT8OID, pg_sys::TEXTOID],
);

static CREATE: Statement = Statement::new(
    "INSERT INTO queen_mq.cursor (group_id, partition)
     SELECT $1, p FROM pg_catalog.unnest($2) AS p
     WHERE NOT EXISTS (SELECT FROM queen_mq.cursor
                       WHERE group_id = $1 AND partition = p COLLATE \"C\")
     ON CONFLICT ON CONSTRAINT cursor_once DO NOTHING",
    &[pg_sys::INT8OID, pg_sys::TEXTARRAYOID],
);

/// Create the cursors that do not exist, waiting for transactions that are creating one of them. In
/// REPEATABLE READ, a cursor that was created since the snapshot is error 40001.
pub fn create(group: i64, partitions: Vec<String>) {
    CREATE.run(&[arg(group), arg(partitions)]);
}

/// Whether another transaction holds [`locks::claims`] of the partition, or waits for it. Retention
/// holds it while it removes messages, and would not see a claim that is inserted now.
pub fn claims_are_locked_out(group: i64, partition: &str) -> bool {
    !locks::claims(group, partition).is_free()
}

/// Take [`locks::claims`] whole: to the end of the transaction no consumer claims messages of the
/// partition, in a group without order. False if another transaction holds the lock, or this one
/// has no spare lock left ([`locks::has_spare`]).
pub fn try_lock_out_claims(group: i64, partition: &str) -> bool {
    locks::claims(group, partition).try_spare()
}

/// Whether there is such a cursor at this moment, whatever the transaction's snapshot says.
fn exists(group: i64, partition: &str) -> Result<bool> {
    let key = [Value::Int(group), Value::Text(partition)];
    ActiveSnapshot::latest_snapshot(|under| {
        Ok(BY_PARTITION.end(&key, ScanEnd::Start, under, |_| ()).is_some())
    })
}

thread_local! {
    /// Partitions by the ids of their cursors, each with the count of changes before it was read.
    /// The row of a cursor is never updated, and no other gets its id, but where the extension is
    /// created anew.
    static PARTITIONS: SessionCache<i64, (u64, String)> = SessionCache::of(1024);
}

/// The partition of the cursor of this id; None if there is no such cursor. One that is gone since
/// may have a partition still: nothing is found there for it.
pub(super) fn partition_of(id: i64, under: &ActiveSnapshot) -> Option<String> {
    let changes = changes::count();
    let known = PARTITIONS.with(|known| {
        known.change(&id, |(before, name)| (*before == changes).then(|| name.clone())).flatten()
    });
    known.or_else(|| {
        let read = |row: &Tuple| row.need::<String>(PARTITION);
        let name = BY_ID.end(&[Value::Int(id)], ScanEnd::Start, under, read)?;
        PARTITIONS.with(|known| known.keep(id, (changes, name.clone())));
        Some(name)
    })
}

/// Group, partition and location of the cursor of this id.
pub(super) fn find(id: u64, under: &ActiveSnapshot) -> Option<(i64, String, RowLocation)> {
    let read = |row: &Tuple| (row.need(GROUP_ID), row.need(PARTITION), row.place());
    BY_ID.end(&[Value::Int(signed(id))], ScanEnd::Start, under, read)
}

/// Id, group and partition of a row.
pub(super) fn name_of(row: &Tuple) -> (u64, i64, String) {
    (unsigned(row.need(ID)), row.need(GROUP_ID), row.need(PARTITION))
}

/// The group of a row.
pub(super) fn group_in(row: &Tuple) -> i64 {
    row.need(GROUP_ID)
}

/// Whether the group has more cursors than this.
pub(super) fn are_more(group: i64, most: usize, under: &ActiveSnapshot) -> bool {
    BY_PARTITION.has_more(&[Value::Int(group)], most, under)
}

/// Lock the row of a cursor `FOR NO KEY UPDATE`.
pub(super) fn lock(place: RowLocation, wait: bool, under: &ActiveSnapshot) -> bool {
    CURSORS.lock(place, wait, under)
}

static OF_GROUP: Statement = Statement::new(
    "SELECT c.id, c.partition, p.revision, p.state FROM queen_mq.cursor c
     LEFT JOIN LATERAL (SELECT revision, state FROM queen_mq.progress
         WHERE cursor_id = c.id ORDER BY revision DESC LIMIT 1) AS p ON true
     WHERE c.group_id = $1 ORDER BY c.id",
    &[pg_sys::INT8OID],
);

/// Every cursor of the group.
pub(super) fn of_group(group: i64, start: &Start, under: &ActiveSnapshot) -> Result<Vec<Located>> {
    let read = |row: SqlRow| {
        let cursor = match row.get::<Vec<u8>>(c"state") {
            Some(bytes) => progress::read_state(&bytes)?,
            None => Cursor::new(start.clone()),
        };
        Ok(Located {
            id: unsigned(row.need(ID)),
            group,
            partition: row.need(PARTITION),
            message: None,
            revision: row.get(c"revision").unwrap_or(0),
            is_own: true,
            cursor,
        })
    };
    OF_GROUP.read(&[arg(group)], under).map(read).collect()
}
