//! `queen_mq.cursor`: who reads where. A row is the identity and the lock of a partition for a
//! group; its state is the newest row of [`super::progress`].

use std::cell::Cell;
use std::ops::ControlFlow;

use pgrx::pg_sys;
use queen_engine::cursor::{Cursor, Start};
use queen_engine::message::MessageId;

pub use super::located::Located;
pub use super::progress::{Notice, append, append_quietly, state_of};
use super::progress::{latest_revision, newest};
use super::unit::Unit;
use super::{claim, decode, locks, signed, unsigned};
use crate::error::{Error, Result};
use crate::pg::scan::{Key, ScanEnd, Tuple, Value};
use crate::pg::sequence;
use crate::pg::spi::{
    ActiveSnapshot, Columns, SqlRow, Statement, arg, one_snapshot_per_transaction,
};
use crate::pg::table::{Index, RowLocation, table};

table! {
    CURSORS = c"cursor";
    ID: c"id" INT8OID,
    GROUP_ID: c"group_id" INT8OID,
    PARTITION: c"partition" TEXTOID,
}

static BY_PARTITION: Index =
    Index { table: &CURSORS, name: c"cursor_once", columns: &[GROUP_ID, PARTITION] };
static BY_ID: Index = Index { table: &CURSORS, name: c"cursor_pkey", columns: &[ID] };

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
    let (revision, is_own, cursor) = newest(id, || Cursor::new(start.clone()), under)?;
    let (id, partition, message) = (unsigned(id), partition.to_owned(), None);
    Ok(Some((Located { id, group, partition, message, revision, is_own, cursor }, place)))
}

/// The name of a cursor, or of a claim, in the search for work ([`Unit`]).
pub(super) fn unit_of(cursor: i64, under: &ActiveSnapshot) -> Option<String> {
    let partition =
        BY_ID.end(&[Value::Int(cursor)], ScanEnd::Start, under, |row| row.need(PARTITION));
    partition.or_else(|| {
        let claim = claim::find(unsigned(cursor), under)?;
        Some(Unit::Claim { partition: &claim.partition, id: claim.id }.to_string())
    })
}

/// What became of an attempt to lock a cursor.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LockAttempt {
    Locked,
    /// Another transaction has locked it.
    HeldByAnother,
    /// It has a newer state than the caller saw. This transaction may have locked it all the same.
    MovedOn,
}

/// Lock the row of a cursor or a claim, unless another transaction has locked it or has written a
/// newer state. Never waits. It looks for a newer state before it locks, so as not to lock what
/// another consumer has popped since the caller's snapshot; and once more after, when no other
/// transaction can write one. In REPEATABLE READ a newer state is error 40001.
pub fn try_lock(at: &Located, place: RowLocation, under: &ActiveSnapshot) -> Result<LockAttempt> {
    match lock_if_newest(at, place, under)? {
        LockAttempt::MovedOn => moved_on(),
        attempt => Ok(attempt),
    }
}

/// [`try_lock`] for a caller that can do without the lock: a newer state is no error, in REPEATABLE
/// READ either.
pub fn lock_if_newest(
    at: &Located,
    place: RowLocation,
    under: &ActiveSnapshot,
) -> Result<LockAttempt> {
    if latest_revision(at.id)? != at.revision {
        return Ok(LockAttempt::MovedOn);
    }
    let is_locked = match at.message {
        None => CURSORS.lock(place, false, under),
        Some(_) => claim::lock(place, false, under),
    };
    if !is_locked {
        return Ok(LockAttempt::HeldByAnother);
    }
    match latest_revision(at.id)? == at.revision {
        true => Ok(LockAttempt::Locked),
        false => Ok(LockAttempt::MovedOn),
    }
}

/// What follows from a state that is newer than the caller's snapshot: in REPEATABLE READ error
/// 40001, for each new look would show the old state again.
pub fn moved_on() -> Result<LockAttempt> {
    match one_snapshot_per_transaction() {
        true => Err(stale()),
        false => Ok(LockAttempt::MovedOn),
    }
}

fn stale() -> Error {
    Error::conflict("The position of this consumer group")
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
        true => Err(stale()),
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
    insert_if_new(group, partition).ok_or_else(stale)
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

/// Whether another transaction holds [`locks::takes`] of the partition, or waits for it. Retention
/// holds it while it removes messages, and would not see a claim that is inserted now.
pub fn claims_are_locked_out(group: i64, partition: &str) -> bool {
    !locks::takes(group, partition).is_free()
}

/// Take [`locks::takes`] whole: to the end of the transaction no consumer claims messages of the
/// partition, in a group without order. False if another transaction holds the lock, or this one
/// has no spare lock left ([`locks::has_spare`]).
pub fn try_lock_out_claims(group: i64, partition: &str) -> bool {
    locks::takes(group, partition).try_spare()
}

/// Whether there is such a cursor at this moment, whatever the transaction's snapshot says.
fn exists(group: i64, partition: &str) -> Result<bool> {
    let key = [Value::Int(group), Value::Text(partition)];
    ActiveSnapshot::latest_snapshot(|under| {
        Ok(BY_PARTITION.end(&key, ScanEnd::Start, under, |_| ()).is_some())
    })
}

static IDS_OF: Statement = Statement::new(
    "SELECT id FROM queen_mq.cursor WHERE group_id = ANY ($1)
     UNION ALL SELECT id FROM queen_mq.claim WHERE group_id = ANY ($1) ORDER BY id",
    &[pg_sys::INT8ARRAYOID],
);

/// The cursors and claims of the groups, ascending.
pub fn ids_of(groups: &[i64], under: &ActiveSnapshot) -> Vec<u64> {
    IDS_OF.read(&[arg(groups.to_vec())], under).map(|row| unsigned(row.need(ID))).collect()
}

static IDS_IN: Statement = Statement::new(
    "SELECT id FROM queen_mq.cursor WHERE group_id = $1 AND partition = $2
     UNION ALL SELECT id FROM queen_mq.claim WHERE group_id = $1 AND partition = $2 ORDER BY id",
    &[pg_sys::INT8OID, pg_sys::TEXTOID],
);

/// The cursor and the claims of a partition, ascending.
pub fn ids_in(group: i64, partition: &str, under: &ActiveSnapshot) -> Vec<u64> {
    IDS_IN.read(&[arg(group), arg(partition)], under).map(|row| unsigned(row.need(ID))).collect()
}

/// A cursor or a claim that this transaction has locked. The caller reads its state after this, in
/// [`locate`].
pub struct LockedCursor {
    pub id: u64,
    pub group: i64,
    pub partition: String,
    claim: Option<(MessageId, Cursor)>,
    /// A claim that is settled was not locked: its last revision, whether that is this
    /// transaction's, and its state.
    last: Option<(i64, bool, Cursor)>,
}

/// Lock the row of a cursor or a claim, waiting for the transaction that has locked it. None if the
/// row is gone. In REPEATABLE READ, one that is younger than the snapshot is error 40001.
pub fn lock_row(id: u64) -> Result<Option<LockedCursor>> {
    ActiveSnapshot::new_snapshot(|under| lock_one(id, false, under))
}

/// Lock cursors and claims in the given order, which is ascending, waiting for the transactions
/// that have locked them. Those that are gone drop out. The caller reads their states after this,
/// under a newer snapshot. Claims of settled messages are not locked, so the caller does not wait
/// for a sweep that is deleting them.
pub fn lock_unsettled(cursors: &[u64]) -> Result<Vec<LockedCursor>> {
    let mut locked = Vec::with_capacity(cursors.len());
    for &id in cursors {
        locked.extend(ActiveSnapshot::new_snapshot(|under| lock_one(id, true, under))?);
    }
    Ok(locked)
}

thread_local! {
    /// Whether what this session locked last was a claim. The next one most likely is of that kind,
    /// so it is looked up first.
    static WAS_CLAIM: Cell<bool> = const { Cell::new(false) };
}

fn lock_one(id: u64, but_settled: bool, under: &ActiveSnapshot) -> Result<Option<LockedCursor>> {
    let read = |row: &Tuple| (row.need(GROUP_ID), row.need(PARTITION), row.place());
    let key = [Value::Int(signed(id))];
    let find_claim = |is_time: bool| if is_time { claim::find(id, under) } else { None };
    let early = find_claim(WAS_CLAIM.get());
    if early.is_none()
        && let Some((group, partition, place)) = BY_ID.end(&key, ScanEnd::Start, under, read)
    {
        WAS_CLAIM.set(false);
        let locked = LockedCursor { id, group, partition, claim: None, last: None };
        return Ok(CURSORS.lock(place, true, under).then_some(locked));
    }
    if let Some(row) = early.or_else(|| find_claim(!WAS_CLAIM.get())) {
        WAS_CLAIM.set(true);
        let (message, first) = (row.message, row.first_state());
        let last = match but_settled {
            true => Some(newest(signed(id), || first.clone(), under)?),
            false => None,
        };
        let last = last.filter(|(_, _, state)| state.open() == 0);
        let claim::ClaimRow { group, partition, place, .. } = row;
        let holds = last.is_some() || claim::lock(place, true, under);
        let locked = LockedCursor { id, group, partition, claim: Some((message, first)), last };
        return Ok(holds.then_some(locked));
    }
    match one_snapshot_per_transaction() && exists_by_id(id)? {
        true => Err(stale()),
        false => Ok(None),
    }
}

/// Whether there is such a cursor or claim at this moment, whatever the transaction's snapshot
/// says.
fn exists_by_id(id: u64) -> Result<bool> {
    let key = [Value::Int(signed(id))];
    ActiveSnapshot::latest_snapshot(|under| {
        let is_cursor = BY_ID.end(&key, ScanEnd::Start, under, |_| ()).is_some();
        Ok(is_cursor || claim::find(id, under).is_some())
    })
}

/// The newest states of what was locked. `start` gives the start of a group, at which a cursor
/// without a state begins. In REPEATABLE READ, a state that is newer than the snapshot is error
/// 40001.
pub fn locate<'a>(
    locked: Vec<LockedCursor>,
    start: impl Fn(i64) -> &'a Start,
    under: &ActiveSnapshot,
) -> Result<Vec<Located>> {
    let mut located = Vec::with_capacity(locked.len());
    for LockedCursor { id, group, partition, claim, last } in locked {
        let (message, first) = claim.unzip();
        // A settled claim: its row was not locked, and may be gone.
        if let Some((revision, is_own, cursor)) = last {
            located.push(Located { id, group, partition, message, revision, is_own, cursor });
            continue;
        }
        let first = || first.unwrap_or_else(|| Cursor::new(start(group).clone()));
        let (revision, is_own, cursor) = newest(signed(id), first, under)?;
        if one_snapshot_per_transaction() && latest_revision(id)? != revision {
            return Err(stale());
        }
        located.push(Located { id, group, partition, message, revision, is_own, cursor });
    }
    Ok(located)
}

static OF_GROUP: Statement = Statement::new(
    "SELECT c.id, c.partition, p.revision, p.state FROM queen_mq.cursor c
     LEFT JOIN LATERAL (SELECT revision, state FROM queen_mq.progress
         WHERE cursor_id = c.id ORDER BY revision DESC LIMIT 1) AS p ON true
     WHERE c.group_id = $1 ORDER BY c.id",
    &[pg_sys::INT8OID],
);

/// Every cursor of the group, and then every claim.
pub fn of_group(group: i64, start: &Start, under: &ActiveSnapshot) -> Result<Vec<Located>> {
    let read = |row: SqlRow| {
        let cursor = match row.get::<Vec<u8>>(c"state") {
            Some(bytes) => decode(&bytes, "the state of a cursor")?,
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
    let mut located: Vec<Located> =
        OF_GROUP.read(&[arg(group)], under).map(read).collect::<Result<_>>()?;
    located.extend(claim::of_group(group, under)?);
    Ok(located)
}
