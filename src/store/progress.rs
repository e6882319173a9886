//! `queen_mq.progress`: the states of cursors and claims.
//!
//! A state is never updated. The transaction that holds the lock of a cursor, or of a claim, writes
//! the next revision, and the newest revision counts.

use pgrx::pg_sys;
use queen_engine::codec::encode;
use queen_engine::cursor::Cursor;

use super::identity::Identity;
use super::located::Located;
use super::{decode, newest, receipt, seen_snapshot, signed, unsigned};
use crate::error::Result;
use crate::pg::clock::{self, At, Moment};
use crate::pg::columns::{Arg, Columns, arg};
use crate::pg::key::Value;
use crate::pg::scan::{ScanEnd, Tuple};
use crate::pg::snapshot::ActiveSnapshot;
use crate::pg::spi::Statement;
use crate::pg::table::{Index, table};
use crate::wait::waiters::{self, PartitionHash, Topic};

table! {
    PROGRESS = c"progress";
    CURSOR_ID: c"cursor_id" INT8OID,
    REVISION: c"revision" INT8OID,
    GROUP_ID: c"group_id" INT8OID,
    DUE_AT: c"due_at" TIMESTAMPTZOID,
    ANNOUNCED_XID: c"announced_xid" INT8OID,
    STATE: c"state" BYTEAOID,
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
    let read = |row: &Tuple| {
        let state = decode(&row.need::<Vec<u8>>(STATE), &PROGRESS, "the state of a cursor");
        (need_revision(row), row.is_own(), state)
    };
    match newest::newest(&REVISIONS, id, under, read) {
        Some((revision, is_own, cursor)) => Ok((revision, is_own, cursor?)),
        None => Ok((0, false, first())),
    }
}

fn need_revision(row: &Tuple) -> i64 {
    row.need(REVISION)
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

/// Write `state` as the revision after that of `at`, which is the newest. The caller holds the lock
/// of the cursor or claim. The commit wakes consumers that wait for the group, if the state is
/// announced.
pub fn append(at: &Located, state: &Cursor, notice: Notice) {
    let announced = match notice {
        Notice::Leased => None,
        Notice::Ready { xid } => {
            waiters::touch(Topic::group(at.group), PartitionHash::of(&at.partition));
            arg(signed(xid))
        }
    };
    insert_state(at, state, announced);
}

fn insert_state(at: &Located, state: &Cursor, announced: Arg) {
    let due: Arg = state.due_at().and_then(|moment| arg(At(moment)));
    PROGRESS.insert(&[
        (CURSOR_ID, arg(signed(at.id))),
        (REVISION, arg(at.revision + 1)),
        (GROUP_ID, arg(at.group)),
        (DUE_AT, due),
        (ANNOUNCED_XID, announced),
        (STATE, arg(encode(state))),
    ]);
    prune(at.id, at.revision + 1);
}

/// [`append`] for a state that gives consumers nothing new. The announcement of the state before is
/// repeated, for consumers whose search has not come to it yet.
pub fn append_quietly(at: &Located, state: &Cursor, under: &ActiveSnapshot) {
    let announced = |row: &Tuple| row.get::<i64>(ANNOUNCED_XID);
    let announced = REVISIONS.end(&[Value::Int(signed(at.id))], ScanEnd::End, under, announced);
    insert_state(at, state, announced.flatten().and_then(arg));
}

/// How many superseded revisions are deleted at a time, and how many are left.
const PRUNED: i64 = 64;

static PRUNE: Statement = Statement::new(
    "DELETE FROM queen_mq.progress WHERE ctid = ANY (ARRAY(
         SELECT ctid FROM queen_mq.progress
         WHERE cursor_id = $1 AND revision > $2 AND revision <= $3 FOR UPDATE SKIP LOCKED))",
    &[pg_sys::INT8OID, pg_sys::INT8OID, pg_sys::INT8OID],
);

/// Every 64th revision deletes the 64 before the last 64, and old receipts. The lower bound keeps
/// the scan away from the end of the index where rows die. Rows that a sweep is deleting are
/// skipped.
fn prune(cursor: u64, revision: i64) {
    if revision % PRUNED == 0 && revision > PRUNED {
        PRUNE.run(&[arg(signed(cursor)), arg(revision - 2 * PRUNED), arg(revision - PRUNED)]);
        receipt::prune(cursor, clock::now());
    }
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
