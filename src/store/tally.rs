//! `queen_mq.tally`: how many messages have arrived in a queue, and how many have been removed.
//!
//! A count is never updated: the transaction that holds the lock `tally` of the queue writes the
//! next revision. What is counted, and when, is `broker::stats::count`'s.

use std::rc::Rc;

use pgrx::pg_sys;
use queen_engine::codec::encode;
use queen_engine::floor::{Floor, TimerFloor};
use queen_engine::tally::Tally;

use super::queue::Queue;
use super::{decode, locks, seen_snapshot};
use crate::error::{Error, Result};
use crate::pg::changes;
use crate::pg::clock::{Moment, SECOND};
use crate::pg::columns::{Columns, arg};
use crate::pg::key::Value;
use crate::pg::scan::{ScanEnd, Tuple};
use crate::pg::session_cache::SessionCache;
use crate::pg::snapshot::{ActiveSnapshot, one_snapshot_per_transaction};
use crate::pg::spi::Statement;
use crate::pg::table::{Index, table};

table! {
    TALLIES = c"tally";
    QUEUE_ID: c"queue_id" INT8OID,
    REVISION: c"revision" INT8OID,
    STATE: c"state" BYTEAOID,
}

pub(super) static NEWEST: Index =
    Index { table: &TALLIES, name: c"tally_newest", columns: &[QUEUE_ID, REVISION] };

/// The newest count of a queue, with its revision; revision 0 and an empty count where there is
/// none.
pub fn newest(queue: i64, under: &ActiveSnapshot) -> Result<(i64, Tally)> {
    let read = |row: &Tuple| {
        let state = decode(&row.need::<Vec<u8>>(STATE), &TALLIES, "the count of a queue")?;
        Ok((row.need(REVISION), state))
    };
    NEWEST
        .end(&[Value::Int(queue)], ScanEnd::End, under, read)
        .unwrap_or_else(|| Ok(Default::default()))
}

/// Queues whose floor a session remembers.
const REMEMBERED: usize = 1024;
/// A floor is believed for so long. What has died since it was read is stepped over.
const BELIEVED: i64 = SECOND;

/// The floors of a queue as a session remembers them.
struct KnownFloors {
    floors: Floors,
    read_at: Moment,
    /// Changes that the session had heard of before.
    changes: u64,
}

thread_local! {
    static FLOORS: SessionCache<(i64, Moment), KnownFloors> = SessionCache::of(REMEMBERED);
}

/// Below what a queue has nothing.
#[derive(Clone, Default)]
pub struct Floors {
    /// In its log.
    pub log: Rc<Floor>,
    /// Of timers.
    pub timers: Rc<TimerFloor>,
}

/// The floors of the queue, which hold for what `under` shows: read under this snapshot, or, a
/// moment ago, under an earlier one of this session. A floor that is too low costs time alone, so a
/// count that does not read back gives the lowest ones.
pub fn floors(queue: &Queue, now: Moment, under: &ActiveSnapshot) -> Floors {
    let read = |row: &Tuple| {
        let tally: Result<Tally> = decode(&row.need::<Vec<u8>>(STATE), &TALLIES, "a count");
        let Tally { floor, timers, .. } = tally.unwrap_or_default();
        (Floors { log: Rc::new(floor), timers: Rc::new(timers) }, row.is_own())
    };
    let key = (queue.id, queue.created_at);
    let heard = changes::count();
    // In REPEATABLE READ the snapshot may be older than what the session remembers.
    if !one_snapshot_per_transaction() {
        let known = FLOORS.with(|all| {
            all.change(&key, |known| {
                let age = now - known.read_at;
                let is_good = known.changes == heard && (0..BELIEVED).contains(&age);
                is_good.then(|| known.floors.clone())
            })
        });
        if let Some(floors) = known.flatten() {
            return floors;
        }
    }
    let found = NEWEST.end(&[Value::Int(queue.id)], ScanEnd::End, under, read);
    let (floors, is_own) = found.unwrap_or_default();
    // What this transaction has written may be rolled back.
    if !is_own && !one_snapshot_per_transaction() {
        let known = KnownFloors { floors: floors.clone(), read_at: now, changes: heard };
        FLOORS.with(|all| all.keep(key, known));
    }
    floors
}

/// From which moment on `under` may show timers of the queue.
pub fn timers_from(queue: &Queue, now: Moment, under: &ActiveSnapshot) -> Moment {
    let floor = floors(queue, now, under).timers;
    match floor.except.is_empty() {
        true => floor.at,
        false => floor.from(&seen_snapshot::describe(under, queue.identity).snapshot),
    }
}

/// Take the lock `tally` of the queue, which makes this transaction the one that counts, to its
/// end. False if another transaction holds it, or has written a count after `revision`; or if this
/// transaction has no spare lock left (`locks::has_spare`).
pub fn try_lead(queue: i64, revision: i64) -> Result<bool> {
    Ok(locks::tally(queue).try_spare() && is_newest(queue, revision)?)
}

fn is_newest(queue: i64, revision: i64) -> Result<bool> {
    ActiveSnapshot::latest_snapshot(|under| Ok(newest(queue, under)?.0 == revision))
}

/// Whether the count says that no message has been removed that `under` still shows.
pub fn is_as_seen(queue: i64, under: &ActiveSnapshot) -> Result<bool> {
    let removed = |under: &ActiveSnapshot| Ok(newest(queue, under)?.1.removed_messages);
    Ok(removed(under)? == ActiveSnapshot::latest_snapshot(removed)?)
}

/// Error 40001 if another transaction has written a count of the queue, which is called `name`,
/// after `revision`.
pub fn need_newest(queue: i64, name: &str, revision: i64) -> Result<()> {
    match is_newest(queue, revision)? {
        true => Ok(()),
        false => Err(Error::conflict(&format!("The message count of queue \"{name}\""))),
    }
}

static PRUNE: Statement = Statement::new(
    "DELETE FROM queen_mq.tally WHERE queue_id = $1 AND revision = $2",
    &[pg_sys::INT8OID, pg_sys::INT8OID],
);

/// Write the count that follows `revision`, and delete that one. The caller holds the lock `tally`.
pub fn append(queue: i64, revision: i64, tally: &Tally) {
    TALLIES.insert(&[
        (QUEUE_ID, arg(queue)),
        (REVISION, arg(revision + 1)),
        (STATE, arg(encode(tally))),
    ]);
    // A transaction in REPEATABLE READ leaves the old one: its snapshot shows that one, and it may
    // still look at it.
    if !one_snapshot_per_transaction() {
        PRUNE.run(&[arg(queue), arg(revision)]);
    }
}

static ALL: Statement = Statement::new("SELECT state FROM queen_mq.tally", &[]);

/// The highest transaction id that any count refers to.
pub fn highest_xid() -> Result<u64> {
    let mut highest = 0;
    for row in ALL.run(&[]) {
        let state: Tally = decode(&row.need::<Vec<u8>>(STATE), &TALLIES, "the count of a queue")?;
        highest = highest.max(state.reached());
    }
    Ok(highest)
}
