//! What cursors and claims have in common: both are locked, by location or by id, before a new
//! state is written; both are listed by group; both are found by the search for work. They share
//! the numbers of one sequence, so an id names one of either.

use std::cell::Cell;

use pgrx::pg_sys;
use queen_engine::cursor::{Cursor, Start};
use queen_engine::lease::LeaseId;
use queen_engine::message::MessageId;
use queen_engine::receipt::Receipt;

use super::lease_set::Covered;
use super::located::Located;
use super::unit::Unit;
use super::{claim, cursor, progress, receipt, signed, unsigned};
use crate::error::{Error, Result};
use crate::pg::columns::{Columns, arg};
use crate::pg::snapshot::{ActiveSnapshot, one_snapshot_per_transaction};
use crate::pg::spi::Statement;
use crate::pg::table::RowLocation;

/// What became of an attempt to lock a cursor.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LockAttempt {
    Locked,
    /// Another transaction has locked it.
    HeldByAnother,
    /// It has a newer state than the caller saw. This transaction may have locked it all the same.
    MovedOn,
}

/// [`lock_if_newest`] for a caller that acts upon the state that it has read, such as a pop: in
/// REPEATABLE READ a newer state is error 40001.
pub fn try_lock(at: &Located, place: RowLocation, under: &ActiveSnapshot) -> Result<LockAttempt> {
    match lock_if_newest(at, place, under)? {
        LockAttempt::MovedOn => moved_on(|| cursor::position(&at.partition)),
        attempt => Ok(attempt),
    }
}

/// Lock the row of a cursor or a claim, unless another transaction has locked it or has written a
/// newer state than the caller saw. Never waits. It looks for a newer state before it locks, so as
/// not to lock what another consumer has popped since the caller's snapshot; and once more after,
/// when no other transaction can write one.
///
/// A newer state is no error, in REPEATABLE READ either: this is for a caller that can leave the
/// work to a later one, such as a fold.
pub fn lock_if_newest(
    at: &Located,
    place: RowLocation,
    under: &ActiveSnapshot,
) -> Result<LockAttempt> {
    if progress::latest_revision(at.id)? != at.revision {
        return Ok(LockAttempt::MovedOn);
    }
    let is_locked = match at.message {
        None => cursor::lock(place, false, under),
        Some(_) => claim::lock(place, false, under),
    };
    if !is_locked {
        return Ok(LockAttempt::HeldByAnother);
    }
    match progress::latest_revision(at.id)? == at.revision {
        true => Ok(LockAttempt::Locked),
        false => Ok(LockAttempt::MovedOn),
    }
}

/// What follows from a state that is newer than the caller's snapshot: in REPEATABLE READ error
/// 40001, for each new look would show the old state again. `changed` says to the user what has
/// changed.
pub fn moved_on(changed: impl FnOnce() -> String) -> Result<LockAttempt> {
    match one_snapshot_per_transaction() {
        true => Err(Error::conflict(&changed())),
        false => Ok(LockAttempt::MovedOn),
    }
}

/// A cursor or a claim that this transaction has locked, or, by [`lock_unsettled`], a claim of a
/// settled message, which it has not. The caller has its state read after this, by [`locate`].
pub struct LockedCursor {
    pub id: u64,
    pub group: i64,
    pub partition: String,
    /// Of a claim: its message, and the state that its own row tells.
    claim: Option<(MessageId, Cursor)>,
    /// Of a claim that is settled and so was not locked: its last revision, whether that is this
    /// transaction's, and that state.
    settled: Option<(i64, bool, Cursor)>,
}

/// Lock the row of a cursor or a claim, waiting for the transaction that has locked it. None if the
/// row is gone. In REPEATABLE READ, one that is younger than the snapshot is error 40001.
pub fn lock_row(id: u64) -> Result<Option<LockedCursor>> {
    ActiveSnapshot::new_snapshot(|under| match find(id, under)? {
        Some(row) => row.lock(false, under),
        None => Ok(None),
    })
}

/// What [`lock_unsettled`] is to do with a row.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RowVerdict {
    Lock,
    /// Look again, since rows may have changed.
    LookAgain,
    /// Leave it out, as if there were no such row.
    PassBy,
}

/// Lock cursors and claims in the given order, which is ascending, waiting for the transactions
/// that have locked them. Those that are gone drop out. The caller reads their states after this,
/// under a newer snapshot. Claims of settled messages are not locked, so the caller does not wait
/// for a sweep that is deleting them.
///
/// `judge` is asked before a row is locked or waited for, with its id and its group. It may wait,
/// and change rows. Where it passes by, the answer is that for an id which is not there, in
/// REPEATABLE READ as well.
pub fn lock_unsettled(
    cursors: &[u64],
    mut judge: impl FnMut(u64, i64) -> Result<RowVerdict>,
) -> Result<Vec<LockedCursor>> {
    let mut locked = Vec::with_capacity(cursors.len());
    for &id in cursors {
        // None: the row may have changed since it was found.
        let mut try_lock = || {
            ActiveSnapshot::new_snapshot(|under| {
                let row = find_seen(id, under);
                let group = match &row {
                    Some(row) => Some(row.group()),
                    None => younger_group(id)?,
                };
                let Some(group) = group else { return Ok(Some(None)) };
                match (judge(id, group)?, row) {
                    (RowVerdict::PassBy, _) => Ok(Some(None)),
                    (RowVerdict::LookAgain, _) => Ok(None),
                    (RowVerdict::Lock, Some(row)) => row.lock(true, under).map(Some),
                    (RowVerdict::Lock, None) => Err(position_moved()),
                }
            })
        };
        let mut row = try_lock()?;
        while row.is_none() {
            row = try_lock()?;
        }
        locked.extend(row.flatten());
    }
    Ok(locked)
}

/// Whether a lease was given on the cursor or the claim of this id, as far as is committed at this
/// moment, and its receipt is not gone. Takes no lock.
pub fn knows(id: u64, lease: LeaseId) -> Result<bool> {
    ActiveSnapshot::latest_snapshot(|under| {
        let Some(row) = find_seen(id, under) else { return Ok(false) };
        let at = row.locate(under)?;
        let is_live = at.cursor.leases.iter().any(|live| live.id == lease);
        Ok(is_live || receipt_of(&at, lease, None, under)?.is_some())
    })
}

thread_local! {
    /// Whether what this session locked last was a claim. The next one most likely is of that kind,
    /// so it is looked up first.
    static WAS_CLAIM: Cell<bool> = const { Cell::new(false) };
}

/// A cursor or a claim that was found by its id, to be locked.
enum FoundRow {
    Cursor { id: u64, group: i64, partition: String, place: RowLocation },
    Claim(claim::ClaimRow),
}

/// The cursor or claim of this id. In REPEATABLE READ, one that is younger than the snapshot is
/// error 40001.
fn find(id: u64, under: &ActiveSnapshot) -> Result<Option<FoundRow>> {
    match find_seen(id, under) {
        Some(row) => Ok(Some(row)),
        None => younger_group(id)?.map_or(Ok(None), |_| Err(position_moved())),
    }
}

/// The cursor or claim of this id, if the snapshot shows it.
fn find_seen(id: u64, under: &ActiveSnapshot) -> Option<FoundRow> {
    let claims_come_first = WAS_CLAIM.get();
    let early = if claims_come_first { claim::find(id, under) } else { None };
    if early.is_none()
        && let Some((group, partition, place)) = cursor::find(id, under)
    {
        WAS_CLAIM.set(false);
        return Some(FoundRow::Cursor { id, group, partition, place });
    }
    let late = || if claims_come_first { None } else { claim::find(id, under) };
    let row = early.or_else(late)?;
    WAS_CLAIM.set(true);
    Some(FoundRow::Claim(row))
}

/// In REPEATABLE READ: the group of a cursor or claim that the transaction's snapshot does not
/// show, and that is there at this moment.
fn younger_group(id: u64) -> Result<Option<i64>> {
    if !one_snapshot_per_transaction() {
        return Ok(None);
    }
    ActiveSnapshot::latest_snapshot(|under| {
        let of_cursor = cursor::find(id, under).map(|(group, ..)| group);
        Ok(of_cursor.or_else(|| claim::find(id, under).map(|row| row.group)))
    })
}

fn position_moved() -> Error {
    Error::conflict("The position of a consumer group")
}

impl FoundRow {
    fn group(&self) -> i64 {
        match self {
            FoundRow::Cursor { group, .. } => *group,
            FoundRow::Claim(row) => row.group,
        }
    }

    /// With its newest state; that of a cursor without one is empty.
    fn locate(self, under: &ActiveSnapshot) -> Result<Located> {
        let (id, group, partition) = match self {
            FoundRow::Cursor { id, group, partition, .. } => (id, group, partition),
            FoundRow::Claim(row) => return Ok(row.locate(under)?.0),
        };
        let (revision, is_own, cursor) = progress::newest(signed(id), Cursor::default, under)?;
        Ok(Located { id, group, partition, message: None, revision, is_own, cursor })
    }

    /// Lock it, waiting for the transaction that has locked it. None if the row is gone.
    /// `but_settled`: a claim of a settled message is not locked.
    fn lock(self, but_settled: bool, under: &ActiveSnapshot) -> Result<Option<LockedCursor>> {
        let row = match self {
            FoundRow::Cursor { id, group, partition, place } => {
                let locked = LockedCursor { id, group, partition, claim: None, settled: None };
                return Ok(cursor::lock(place, true, under).then_some(locked));
            }
            FoundRow::Claim(row) => row,
        };
        let (message, first_state) = (row.message, row.first_state());
        let newest = match but_settled {
            true => Some(progress::newest(signed(row.id), || first_state.clone(), under)?),
            false => None,
        };
        let settled = newest.filter(|(_, _, state)| state.open() == 0);
        let claim::ClaimRow { id, group, partition, place, .. } = row;
        let is_there = settled.is_some() || claim::lock(place, true, under);
        let claim = Some((message, first_state));
        Ok(is_there.then_some(LockedCursor { id, group, partition, claim, settled }))
    }
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
    for LockedCursor { id, group, partition, claim, settled } in locked {
        let (message, first_state) = claim.unzip();
        // A settled claim: its row was not locked, and may be gone.
        if let Some((revision, is_own, cursor)) = settled {
            located.push(Located { id, group, partition, message, revision, is_own, cursor });
            continue;
        }
        let first_state = || first_state.unwrap_or_else(|| Cursor::new(start(group).clone()));
        let (revision, is_own, cursor) = progress::newest(signed(id), first_state, under)?;
        if one_snapshot_per_transaction() && progress::latest_revision(id)? != revision {
            return Err(Error::conflict(&cursor::position(&partition)));
        }
        located.push(Located { id, group, partition, message, revision, is_own, cursor });
    }
    Ok(located)
}

/// The receipt of a lease on this cursor or claim, which has its newest state. `given_by`: as in
/// [`Covered`].
pub fn receipt_of(
    at: &Located,
    lease: LeaseId,
    given_by: Option<i64>,
    under: &ActiveSnapshot,
) -> Result<Option<Receipt>> {
    for body in progress::newest_receipts(at, under) {
        if let Some(found) = receipt::read_one(&body, lease)? {
            return Ok(Some(found));
        }
    }
    if let Some(found) = receipt::find_in_blocks(at, lease, given_by, under)? {
        return Ok(Some(found));
    }
    // A claim of a settled message is not locked: a fold may have deleted it meanwhile.
    let Some(message) = at.message else { return Ok(None) };
    let covered = Covered { id: at.id, message: Some(message), given_by };
    let found = receipt::find_of_gone(lease, &[covered])?.pop();
    Ok(found.map(|(_, receipt)| receipt))
}

static IDS_OF: Statement = Statement::new(
    "SELECT id FROM queen_mq.cursor WHERE group_id = ANY ($1)
     UNION ALL SELECT id FROM queen_mq.claim WHERE group_id = ANY ($1) ORDER BY id",
    &[pg_sys::INT8ARRAYOID],
);

/// The cursors and claims of the groups, ascending.
pub fn ids_of(groups: &[i64], under: &ActiveSnapshot) -> Vec<u64> {
    IDS_OF.read(&[arg(groups.to_vec())], under).map(|row| unsigned(row.need(c"id"))).collect()
}

static IDS_IN: Statement = Statement::new(
    "SELECT id FROM queen_mq.cursor WHERE group_id = $1 AND partition = $2
     UNION ALL SELECT id FROM queen_mq.claim WHERE group_id = $1 AND partition = $2 ORDER BY id",
    &[pg_sys::INT8OID, pg_sys::TEXTOID],
);

/// The cursor and the claims of a partition, ascending.
pub fn ids_in(group: i64, partition: &str, under: &ActiveSnapshot) -> Vec<u64> {
    IDS_IN.read(&[arg(group), arg(partition)], under).map(|row| unsigned(row.need(c"id"))).collect()
}

/// Every cursor of the group, and then every claim.
pub fn of_group(group: i64, start: &Start, under: &ActiveSnapshot) -> Result<Vec<Located>> {
    let mut located = cursor::of_group(group, start, under)?;
    located.extend(claim::of_group(group, under)?);
    Ok(located)
}

/// Whether the group has more cursors than this, or more claims.
pub fn are_more(group: i64, most: usize, under: &ActiveSnapshot) -> bool {
    cursor::are_more(group, most, under) || claim::are_more(group, most, under)
}

/// The newest revision and the state of a cursor or a claim; None where it has none.
pub fn newest_state(id: u64, under: &ActiveSnapshot) -> Result<Option<(i64, Cursor)>> {
    let (revision, _, state) = progress::newest(signed(id), Cursor::default, under)?;
    Ok((revision > 0).then_some((revision, state)))
}

/// The name of a cursor, or of a claim, in the search for work ([`Unit`]).
pub(super) fn unit_of(id: i64, under: &ActiveSnapshot) -> Option<String> {
    cursor::partition_of(id, under).or_else(|| {
        let claim = claim::find(unsigned(id), under)?;
        Some(Unit::Claim { partition: &claim.partition, id: claim.id }.to_string())
    })
}
