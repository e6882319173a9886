//! `queen_mq.discovery`: how far each group has looked for work; and the hints that cursors and
//! claims leave for that search. (What is new in the log is in [`super::segment`].)

use pgrx::pg_sys;
use queen_engine::codec::encode;
use queen_engine::discovery::Discovery;

use super::{claim, cursor_or_claim, decode, locks, newest, progress, signed, unsigned};
use crate::error::Result;
use crate::pg::clock::Moment;
use crate::pg::columns::{Columns, arg};
use crate::pg::scan::Tuple;
use crate::pg::snapshot::{ActiveSnapshot, one_snapshot_per_transaction};
use crate::pg::spi::Statement;
use crate::pg::table::{Index, table};

table! {
    DISCOVERIES = c"discovery";
    GROUP_ID: c"group_id" INT8OID,
    REVISION: c"revision" INT8OID,
    STATE: c"state" BYTEAOID,
}

pub(super) static STATES: Index =
    Index { table: &DISCOVERIES, name: c"discovery_newest", columns: &[GROUP_ID, REVISION] };

/// The newest state of the group's search and its revision; None if the group has never searched.
pub fn newest(group: i64, under: &ActiveSnapshot) -> Result<Option<(i64, Discovery)>> {
    let read = |row: &Tuple| (row.need::<i64>(REVISION), read(row.need(STATE)));
    match newest::newest(&STATES, group, under, read) {
        None => Ok(None),
        Some((revision, state)) => Ok(Some((revision, state?))),
    }
}

fn read(bytes: Vec<u8>) -> Result<Discovery> {
    decode(&bytes, &DISCOVERIES, "the discovery state of a consumer group")
}

static APPEND: Statement = Statement::new(
    "INSERT INTO queen_mq.discovery (group_id, revision, state)
     VALUES ($1, pg_catalog.nextval('queen_mq.discovery_revision'), $2) RETURNING revision",
    &[pg_sys::INT8OID, pg_sys::BYTEAOID],
);
// Rows that another transaction is deleting are skipped. With the array PostgreSQL picks the rows
// once; without it, anew for each row that it looks at.
static PRUNE: Statement = Statement::new(
    "DELETE FROM queen_mq.discovery WHERE ctid = ANY (ARRAY(
         SELECT ctid FROM queen_mq.discovery
         WHERE group_id = $1 AND revision >= $2 AND revision < $3
         ORDER BY revision LIMIT 64 FOR UPDATE SKIP LOCKED))",
    &[pg_sys::INT8OID, pg_sys::INT8OID, pg_sys::INT8OID],
);

/// Write `state`, which follows the state of revision `base`, and delete the states before `base`.
/// The search for them begins at `state.pruned`, a low-water mark: below it the index holds only
/// dead rows. Returns the revision written. Needs no lock: of two searches that follow one state,
/// the result of one is not used.
pub fn append(group: i64, base: i64, state: &mut Discovery) -> i64 {
    let from = state.pruned;
    state.pruned = base;
    let written = APPEND.run(&[arg(group), arg(encode(state))]).first();
    // In REPEATABLE READ, a row that another transaction has deleted meanwhile would be an error. A
    // later call deletes these rows.
    if !one_snapshot_per_transaction() {
        PRUNE.run(&[arg(group), arg(from), arg(base)]);
    }
    written.map_or(base, |row| row.need(REVISION))
}

/// Take [`locks::discovery`], under which one transaction at a time reads on for the group. False
/// if another transaction holds it, or this one has no spare lock left. Never waits.
pub fn try_lead(group: i64) -> bool {
    locks::discovery(group).try_spare()
}

static DELETE: Statement =
    Statement::new("DELETE FROM queen_mq.discovery WHERE group_id = $1", &[pg_sys::INT8OID]);

/// Delete the states of the group's search, so that it begins anew.
pub fn delete(group: i64) {
    DELETE.run(&[arg(group)]);
}

static ALL: Statement = Statement::new("SELECT state FROM queen_mq.discovery", &[]);

/// The highest transaction id that a search of any group has reached.
pub fn highest_xid() -> Result<u64> {
    let mut highest = 0;
    for row in ALL.run(&[]) {
        highest = highest.max(read(row.need(STATE))?.reached());
    }
    Ok(highest)
}

/// A hint that a cursor or a claim may be ready: an announcement (`at` is a transaction id), or a
/// moment. `unit` is None if a later revision has superseded the state that gave the hint. The
/// transaction that wrote the later revision gave a hint of its own.
pub struct Hint<T> {
    pub at: T,
    pub cursor: u64,
    pub unit: Option<String>,
}

impl<T> Hint<T> {
    /// From a row of the index: what it is ordered by, cursor, revision.
    fn new((at, cursor, revision): (T, i64, i64), under: &ActiveSnapshot) -> Self {
        let names = progress::is_newest(cursor, revision, under);
        let unit = if names { cursor_or_claim::unit_of(cursor, under) } else { None };
        Hint { at, cursor: unsigned(cursor), unit }
    }
}

/// Announcements to the group after (xid, cursor), in that order; with `within`, those of
/// transaction `xid` alone.
pub fn announced(
    group: i64,
    xid: u64,
    cursor: u64,
    within: bool,
    limit: usize,
    under: &ActiveSnapshot,
) -> Vec<Hint<u64>> {
    let rows = progress::announced(group, xid, cursor, within, limit, under);
    rows.into_iter().map(|row| Hint::new(row, under)).collect()
}

/// The group's next moment after `now`. Its state may have been superseded.
pub fn next_due(group: i64, now: Moment, under: &ActiveSnapshot) -> Option<Moment> {
    let rows = moments(group, (now, i64::MAX), None, LOOKED_AT, under);
    let last = rows.last().map(|(at, ..)| *at);
    let count = rows.len();
    let stands =
        |(_, cursor, revision): &(Moment, i64, i64)| progress::is_newest(*cursor, *revision, under);
    let found = rows.into_iter().find(stands).map(|(at, ..)| at);
    found.or(last.filter(|_| count == LOOKED_AT))
}

/// The groups that have moments, or had some; a group may come twice. Costs one look-up for each.
pub fn groups_with_moments() -> Vec<i64> {
    [progress::groups_with_moments(), claim::groups_with_leases()].concat()
}

/// How many superseded moments [`next_due`] passes at most.
const LOOKED_AT: usize = 32;

/// Moments of the group after (moment, cursor) that are not later than `now`, in order.
pub fn due(
    group: i64,
    from: (Moment, u64),
    now: Moment,
    limit: usize,
    under: &ActiveSnapshot,
) -> Vec<Hint<Moment>> {
    moments(group, (from.0, signed(from.1)), Some(now), limit, under)
        .into_iter()
        .map(|row| Hint::new(row, under))
        .collect()
}

/// Moments after (moment, cursor) and up to `bound`, each with its revision: those of states, and
/// the ends of the first leases of claims (revision 0).
fn moments(
    group: i64,
    after: (Moment, i64),
    bound: Option<Moment>,
    limit: usize,
    under: &ActiveSnapshot,
) -> Vec<(Moment, i64, i64)> {
    let mut rows = progress::due(group, after, bound, limit, under);
    let first = claim::due(group, after, bound, limit, under);
    if !first.is_empty() {
        rows.extend(first.into_iter().map(|(at, claim)| (at, claim, 0)));
        rows.sort_unstable();
        rows.truncate(limit);
    }
    rows
}
