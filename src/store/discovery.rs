//! `queen_mq.discovery`: how far each group has looked for work; and the hints that cursors and
//! claims leave for that search. (What is new in the log is in [`super::segment`].)

use std::ops::ControlFlow;

use pgrx::pg_sys;
use queen_engine::codec::encode;
use queen_engine::discovery::Discovery;

use super::{claim, cursor_or_claim, decode, locks, newest, progress, signed, unsigned};
use crate::error::Result;
use crate::pg::clock::{Moment, SECOND};
use crate::pg::columns::{Columns, arg};
use crate::pg::key::{Key, Value};
use crate::pg::scan::Tuple;
use crate::pg::sequence;
use crate::pg::session_cache::SessionCache;
use crate::pg::snapshot::ActiveSnapshot;
use crate::pg::spi::Statement;
use crate::pg::table::{Index, table};
use crate::pg::usage;

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

/// How many states are deleted at a time.
const PRUNED: i32 = 64;

/// Write `state`, which follows the state of revision `base`, and delete the states before `base`,
/// but for those that another transaction is deleting. The search for them begins at
/// `state.pruned`, a low-water mark: below it the index holds only dead rows. Returns the revision
/// written. Needs no lock: of two searches that follow one state, the result of one is not used.
pub fn append(group: i64, base: i64, state: &mut Discovery) -> i64 {
    let from = state.pruned;
    state.pruned = base;
    let revision = sequence::draw(c"discovery_revision");
    let state = arg(encode(state));
    DISCOVERIES.insert(&[(GROUP_ID, arg(group)), (REVISION, arg(revision)), (STATE, state)]);
    let keys = [
        (GROUP_ID, Key::Is(Value::Int(group))),
        (REVISION, Key::Above(Value::Int(from - 1))),
        (REVISION, Key::UpTo(Value::Int(base - 1))),
    ];
    let mut left = PRUNED;
    ActiveSnapshot::fresh(|under| {
        STATES.delete(&keys, under, |_| {
            left -= 1;
            if left >= 0 { ControlFlow::Continue(Some(())) } else { ControlFlow::Break(()) }
        })
    });
    revision
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
///
/// The moments ahead are those of leases given of late, and most of them are over: their states are
/// deleted, and stay in the index while another transaction has an old snapshot. A session that has
/// met many of them looks at a bounded number for a while ([`next_due_nearby`]).
pub fn next_due(group: i64, now: Moment, under: &ActiveSnapshot) -> Option<Moment> {
    let met_many = CROWDED.with(|crowded| crowded.change(&group, |until| now < *until));
    if met_many == Some(true) {
        return next_due_nearby(group, now, under);
    }
    let before = usage::buffers();
    let next = next_due_of_all(group, now, under);
    if usage::buffers() - before > LONG_WALK {
        CROWDED.with(|crowded| crowded.keep(group, now + CROWDED_FOR));
    }
    next
}

/// Buffers that a look for the next moment takes where it meets many of deleted states.
const LONG_WALK: i64 = 64;
/// For how long a session expects many after that, in microseconds.
const CROWDED_FOR: i64 = 60 * SECOND;
/// How many index entries [`next_due_nearby`] looks at.
const NEARBY: usize = 256;
/// Without a moment among these, it says that one may come after this time, in microseconds.
const SOON: i64 = SECOND / 10;

thread_local! {
    /// By group, until when.
    static CROWDED: SessionCache<i64, Moment> = SessionCache::of(1024);
}

/// As [`next_due`], by the next entries of the indexes alone, also those of deleted states. May be
/// too early.
fn next_due_nearby(group: i64, now: Moment, under: &ActiveSnapshot) -> Option<Moment> {
    let (states, states_end) = progress::upcoming(group, now, NEARBY, under);
    let (claims, claims_end) = claim::upcoming(group, now, NEARBY, under);
    let claims = claims.into_iter().map(|(at, claim)| (at, claim, 0));
    let mut rows: Vec<(Moment, i64, i64)> = states.into_iter().chain(claims).collect();
    rows.sort_unstable();
    let stands =
        |(_, cursor, revision): &(Moment, i64, i64)| progress::is_newest(*cursor, *revision, under);
    let found = rows.into_iter().find(stands).map(|(at, ..)| at);
    let end = states_end.into_iter().chain(claims_end).min().map(|at| at.max(now + SOON));
    found.into_iter().chain(end).min()
}

fn next_due_of_all(group: i64, now: Moment, under: &ActiveSnapshot) -> Option<Moment> {
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
