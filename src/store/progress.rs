//! `queen_mq.progress`: the states of cursors and claims.
//!
//! A state is never updated. The transaction that holds the lock of a cursor, or of a claim, writes
//! the next revision, and the newest revision counts.

use std::ops::ControlFlow;

use queen_engine::codec::encode_each;
use queen_engine::cursor::Cursor;
use queen_engine::receipt::EndedLease;

use super::identity::Identity;
use super::located::Located;
use super::receipt::{ClaimReceipts, StoredReceipts};
use super::{aging, damaged, newest, receipt, seen_snapshot, signed, unsigned};
use crate::error::Result;
use crate::pg::clock::{self, At, Moment};
use crate::pg::columns::{Arg, Columns, arg};
use crate::pg::key::{Key, Value};
use crate::pg::scan::{ScanEnd, Tuple};
use crate::pg::snapshot::ActiveSnapshot;
use crate::pg::table::{Column, Index, table};
use crate::wait::waiters::{self, PartitionHash, Topic};

table! {
    PROGRESS = c"progress";
    CURSOR_ID: c"cursor_id" INT8OID,
    REVISION: c"revision" INT8OID,
    GROUP_ID: c"group_id" INT8OID,
    DUE_AT: c"due_at" TIMESTAMPTZOID,
    ANNOUNCED_XID: c"announced_xid" INT8OID,
    STATE: c"state" BYTEAOID,
    ENDED_AT: c"ended_at" TIMESTAMPTZOID,
    RECEIPTS: c"receipts" BYTEAOID,
}

pub(super) static REVISIONS: Index =
    Index { table: &PROGRESS, name: c"progress_newest", columns: &[CURSOR_ID, REVISION] };
pub(super) static ANNOUNCED: Index = Index {
    table: &PROGRESS,
    name: c"progress_announced",
    columns: &[GROUP_ID, ANNOUNCED_XID, CURSOR_ID],
};
pub(super) static DUE: Index =
    Index { table: &PROGRESS, name: c"progress_due", columns: &[GROUP_ID, DUE_AT, CURSOR_ID] };

/// The newest state of the cursor or claim of this id. None if there is none, or it is gone.
pub fn state_of(id: u64, under: &ActiveSnapshot) -> Result<Option<Cursor>> {
    let (revision, _, cursor) = newest(signed(id), Cursor::default, under)?;
    Ok((revision > 0).then_some(cursor))
}

/// The newest revision of a cursor or a claim, whether the current transaction has written it, and
/// the state. Without any: revision 0 and the state `first`.
pub(super) fn newest(
    id: i64,
    first: impl FnOnce() -> Cursor,
    under: &ActiveSnapshot,
) -> Result<(i64, bool, Cursor)> {
    let read = |row: &Tuple| (need_revision(row), row.is_own(), state_in(row));
    match newest::newest(&REVISIONS, id, under, read) {
        Some((revision, is_own, cursor)) => Ok((revision, is_own, cursor?)),
        None => Ok((0, false, first())),
    }
}

fn need_revision(row: &Tuple) -> i64 {
    row.need(REVISION)
}

/// Group, cursor and revision of a row.
pub(super) fn name_of(row: &Tuple) -> (i64, u64, i64) {
    (row.need(GROUP_ID), unsigned(row.need(CURSOR_ID)), need_revision(row))
}

/// The state in a row.
pub(super) fn state_in(row: &Tuple) -> Result<Cursor> {
    read_state(&row.need::<Vec<u8>>(STATE))
}

/// The state of a cursor or a claim, as it was stored.
pub(super) fn read_state(bytes: &[u8]) -> Result<Cursor> {
    Cursor::from_bytes(bytes).map_err(|_| damaged(&PROGRESS, "the state of a cursor"))
}

/// The newest revision at this moment, also in REPEATABLE READ; 0 if there is none.
pub(super) fn latest_revision(cursor: u64) -> Result<i64> {
    ActiveSnapshot::latest_snapshot(|under| {
        Ok(newest::newest(&REVISIONS, signed(cursor), under, need_revision).unwrap_or(0))
    })
}

/// Whether the snapshot shows no newer revision than this one. Good enough for a hint; a
/// transaction that writes asks [`latest_revision`] under the lock.
pub(super) fn is_newest(cursor: i64, revision: i64, under: &ActiveSnapshot) -> bool {
    !newest::is_any_above(&REVISIONS, cursor, revision, under)
}

/// How consumers that search for work learn of a new state.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Notice {
    /// Not at all before the deadline of its lease; for a claim that is settled, never.
    Leased,
    /// By an announcement under this transaction id: messages are ready, or wait for a retry. A
    /// retry is announced as well, since its moment may pass before the transaction commits.
    Ready { xid: u64 },
}

impl Notice {
    /// What to announce of `state`, which follows `at`.
    ///
    /// A leased state is announced as well, where `at` is this transaction's own: it supersedes an
    /// announcement of this transaction. Its deadline may pass before the commit, and other
    /// consumers have searched beyond that moment by then.
    pub fn of(at: &Located, state: &Cursor, identity: Identity) -> Self {
        let is_over = at.message.is_some() && state.open() == 0;
        match !is_over && (state.leases.is_empty() || at.is_own) {
            true => Self::Ready { xid: seen_snapshot::assign_xid(identity) },
            false => Self::Leased,
        }
    }
}

/// Write `state` as the revision after that of `at`, which is the newest, with the receipts of the
/// leases that it ends. The caller holds the lock of the cursor or claim. The commit wakes
/// consumers that wait for the group, if the state is announced.
pub fn append(at: &Located, state: &Cursor, notice: Notice, ended: &[EndedLease]) {
    let announced = match notice {
        Notice::Leased => None,
        Notice::Ready { xid } => {
            waiters::touch(Topic::group(at.group), PartitionHash::of(&at.partition));
            arg(signed(xid))
        }
    };
    insert_state(at, state, announced, ended);
}

/// The moment of a state of a cursor that is leased by no consumer, and whose first message was
/// delivered before and can be popped at once. No search for work reads moments so far back. They
/// are there for those who ask which partitions are held up ([`held_up`]).
const BACK: Moment = Moment::MIN;

fn insert_state(at: &Located, state: &Cursor, announced: Arg, ended: &[EndedLease]) {
    let ended_at = (!ended.is_empty()).then(clock::now);
    let due =
        state.due_at().or_else(|| (at.message.is_none() && state.came_back()).then_some(BACK));
    PROGRESS.insert(&[
        (CURSOR_ID, arg(signed(at.id))),
        (REVISION, arg(at.revision + 1)),
        (GROUP_ID, arg(at.group)),
        (DUE_AT, due.and_then(|moment| arg(At(moment)))),
        (ANNOUNCED_XID, announced),
        (STATE, arg(state.to_bytes())),
        (ENDED_AT, ended_at.and_then(|at| arg(At(at)))),
        (RECEIPTS, ended_at.and_then(|_| arg(encode_each(ended)))),
    ]);
    if let Some(moment) = ended_at {
        aging::note_state(signed(at.id), at.revision + 1, moment);
    }
    prune(at, at.revision + 1);
}

/// [`append`] for a state that gives consumers nothing new. The announcement of the state before is
/// repeated, for consumers whose search has not come to it yet.
pub fn append_quietly(at: &Located, state: &Cursor, under: &ActiveSnapshot) {
    let announced = |row: &Tuple| row.get::<i64>(ANNOUNCED_XID);
    let announced = REVISIONS.end(&[Value::Int(signed(at.id))], ScanEnd::End, under, announced);
    insert_state(at, state, announced.flatten().and_then(arg), &[]);
}

/// How many superseded revisions are deleted at a time, and how many are left.
const PRUNED: i64 = 64;

/// Every 64th revision deletes the 64 before the last 64, and moves their receipts to a block of
/// [`receipt`]. The lower bound keeps the scan away from the end of the index where rows die. Rows
/// that a sweep is deleting are skipped; it deletes none with receipts that are still needed.
fn prune(at: &Located, revision: i64) {
    if revision % PRUNED != 0 || revision == PRUNED {
        return;
    }
    let until = revision - PRUNED;
    ActiveSnapshot::fresh(|under| {
        let keys = between(at.id, until - PRUNED, until);
        let all = |row: &Tuple| ControlFlow::Continue(Some(receipts_in(row)));
        let gone = REVISIONS.delete(&keys, under, all);
        receipt::keep(at, until, gone.into_iter().flatten(), under);
    });
}

/// The revisions of a cursor or claim above `after`, up to `last`.
fn between<'a>(cursor: u64, after: i64, last: i64) -> [(Column, Key<'a>); 3] {
    [
        (CURSOR_ID, Key::Is(Value::Int(signed(cursor)))),
        (REVISION, Key::Above(Value::Int(after))),
        (REVISION, Key::UpTo(Value::Int(last))),
    ]
}

fn receipts_in(row: &Tuple) -> Option<StoredReceipts> {
    let (ended_at, body) = row.get::<At>(ENDED_AT).zip(row.get(RECEIPTS))?;
    Some(StoredReceipts { ended_at: ended_at.0, body })
}

/// The receipts that have not been moved yet: those in the newest states of a cursor or claim.
pub(super) fn newest_receipts(at: &Located, under: &ActiveSnapshot) -> Vec<Vec<u8>> {
    let keys = between(at.id, at.revision - 2 * PRUNED, at.revision);
    let mut found = Vec::new();
    REVISIONS.scan::<()>(&keys, ScanEnd::End, under, |row| {
        found.extend(receipts_in(row).map(|receipts| receipts.body));
        ControlFlow::Continue(())
    });
    found
}

/// Delete all states of claims that have just been deleted, and keep the receipts in them. States
/// that a sweep is deleting are skipped. `claims`: id, group and partition.
pub(super) fn delete_of_claims(
    claims: &[(u64, i64, String)],
    under: &ActiveSnapshot,
) -> Result<()> {
    let mut kept = Vec::new();
    let deleting = PROGRESS.deleting();
    for (claim, group, partition) in claims {
        let keys = [(CURSOR_ID, Key::Is(Value::Int(signed(*claim))))];
        let gone = deleting.by_index(&REVISIONS, &keys, under, |row| {
            ControlFlow::Continue(Some((need_revision(row), receipts_in(row))))
        });
        kept.extend(gone.into_iter().filter_map(|(revision, receipts)| {
            let (claim, group) = (*claim, *group);
            Some(ClaimReceipts { claim, group, partition, revision, receipts: receipts? })
        }));
    }
    deleting.end();
    receipt::keep_of_claims(kept)
}

/// Announcements to the group after (xid, cursor), in order; or, `within`, those of that
/// transaction. Each with its cursor and revision, which may be superseded.
pub(super) fn announced(
    group: i64,
    xid: u64,
    cursor: u64,
    within: bool,
    limit: usize,
    under: &ActiveSnapshot,
) -> Vec<(u64, i64, i64)> {
    let (group, xid) = (Value::Int(group), Value::Int(signed(xid)));
    let cursor = Value::Int(signed(cursor));
    let read =
        |row: &Tuple| (unsigned(row.need(ANNOUNCED_XID)), row.need(CURSOR_ID), row.need(REVISION));
    match within {
        true => ANNOUNCED.after(&[group, xid], &[cursor], None, limit, under, read),
        false => ANNOUNCED.after(&[group], &[xid, cursor], None, limit, under, read),
    }
}

/// The groups of which [`due`] may say something. Costs one look-up for each.
pub(super) fn groups_with_moments() -> Vec<i64> {
    DUE.leading_numbers(GROUP_ID)
}

/// Moments at which a cursor of the group becomes due, after (moment, cursor) and up to `bound`, in
/// order. Each with its cursor and revision, which may be superseded.
pub(super) fn due(
    group: i64,
    after: (Moment, i64),
    bound: Option<Moment>,
    limit: usize,
    under: &ActiveSnapshot,
) -> Vec<(Moment, i64, i64)> {
    let after = [Value::Time(after.0), Value::Int(after.1)];
    let read = |row: &Tuple| (row.need::<At>(DUE_AT).0, row.need(CURSOR_ID), row.need(REVISION));
    DUE.after(&[Value::Int(group)], &after, bound.map(Value::Time), limit, under, read)
}

/// Cursors of an ordered group, after the id `after`, in whose states messages have come back that
/// can be popped at once: ascending. The state may have been superseded.
pub(super) fn held_up(group: i64, after: i64, limit: usize, under: &ActiveSnapshot) -> Vec<i64> {
    let prefix = [Value::Int(group), Value::Time(BACK)];
    let read = |row: &Tuple| row.need(CURSOR_ID);
    DUE.after(&prefix, &[Value::Int(after)], None, limit, under, read)
}

/// The moments of the group after `now` that are visible, among the next `most` entries of the
/// index, in order; and where these end, if there may be more.
pub(super) fn upcoming(
    group: i64,
    now: Moment,
    most: usize,
    under: &ActiveSnapshot,
) -> (Vec<(Moment, i64, i64)>, Option<Moment>) {
    let read = |row: &Tuple| (row.need::<At>(DUE_AT).0, row.need(CURSOR_ID), row.need(REVISION));
    DUE.visible_of_next((GROUP_ID, group), (DUE_AT, now), most, under, read)
}
