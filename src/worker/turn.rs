//! What the launcher and the workers tell each other, in the entries of [`registry`].
//!
//! A worker can be connected to one database only, for as long as it lives. Where there are more
//! databases than workers, the launcher asks a worker to leave, and starts one in another database.
//! A worker that leaves says what it knows: up to where it has looked, and when there is something
//! to do again. By that, and by what sessions count since, the launcher knows which database needs
//! a worker, and which one has waited for longest.

use std::cell::Cell;
use std::sync::atomic::Ordering;

use pgrx::pg_sys;

use super::registry::{Database, REGISTRY, is_shared};
use super::visit::{Left, Visit};
use crate::pg::clock::{self, Moment};
use crate::pg::latch::LatchAddress;
use crate::pg::process;

/// What the launcher hands to a worker that was started by hand.
pub const BY_HAND: &str = "by hand";

/// A database as the launcher sees it.
#[derive(Clone, Copy)]
pub struct Seat {
    pub database: pg_sys::Oid,
    pub has_worker: bool,
    /// Since when a process that is to be the worker has not got into the database; 0: none is.
    pub coming_since: Moment,
    pub is_by_hand: bool,
    /// When its worker was asked to leave; 0: it was not.
    pub asked_at: Moment,
    pub is_excluded: bool,
    pub began_at: Moment,
    pub wanted_at: Moment,
}

/// All databases on the list.
pub fn seats(now: Moment) -> Vec<Seat> {
    let registry = REGISTRY.share();
    let databases = registry.all().len();
    let seat = |entry: &Database| Seat {
        database: entry.oid,
        has_worker: entry.visit.worker != 0,
        coming_since: if entry.visit.coming == 0 { 0 } else { entry.visit.coming_since },
        is_by_hand: entry.visit.is_by_hand,
        asked_at: entry.visit.asked_at,
        is_excluded: entry.visit.is_excluded && !entry.visit.is_doubted,
        began_at: entry.visit.began_at,
        wanted_at: entry.wanted_at(now, databases),
    };
    registry.all().iter().map(seat).collect()
}

/// Ask the worker of a database to leave, at this moment.
pub fn ask(database: pg_sys::Oid, now: Moment) {
    change(database, |visit| {
        visit.asked_at = now;
        visit.latch.set();
    });
}

/// Terminate the worker of a database. It is alive: a process takes itself off the list before it
/// ends, which needs the lock of the list.
pub fn terminate(database: pg_sys::Oid) {
    change(database, |visit| process::terminate(visit.worker));
}

/// [`terminate`] the process that is to be the worker of a database.
pub fn turn_out(database: pg_sys::Oid) {
    change(database, |visit| process::terminate(visit.coming));
}

/// The clock was set back: what began later than now has begun now.
pub fn note_clock(now: Moment) {
    for seat in seats(now) {
        change(seat.database, |visit| {
            visit.asked_at = visit.asked_at.min(now);
            visit.coming_since = visit.coming_since.min(now);
        });
    }
}

/// Note whether the settings exclude a database.
pub fn exclude(database: pg_sys::Oid, is_excluded: bool) {
    change(database, |visit| (visit.is_excluded, visit.is_doubted) = (is_excluded, false));
}

/// Note that there is no background worker for any database, or that there is one.
pub fn note_shortage(is_short: bool) {
    let registry = REGISTRY.share();
    let since = registry.short_since.load(Ordering::SeqCst);
    match is_short {
        true if since == 0 => registry.short_since.store(clock::now(), Ordering::SeqCst),
        true => (),
        false => registry.short_since.store(0, Ordering::SeqCst),
    }
}

fn change(database: pg_sys::Oid, body: impl FnOnce(&mut Visit)) {
    if is_shared()
        && let Some(entry) = REGISTRY.exclusive().find_mut(database)
    {
        body(&mut entry.visit);
    }
}

fn read<T>(database: pg_sys::Oid, body: impl FnOnce(&Database) -> T) -> Option<T> {
    match is_shared() {
        true => REGISTRY.share().find(database).map(body),
        false => None,
    }
}

thread_local! {
    /// The database of whose entry this process takes itself off when it ends.
    static LEAVES_AT_EXIT: Cell<Option<pg_sys::Oid>> = const { Cell::new(None) };
}

/// The process is on the list from now on, and takes itself off when it ends.
fn leave_at_exit(database: pg_sys::Oid) {
    if LEAVES_AT_EXIT.replace(Some(database)).is_none() {
        process::before_exit(at_exit);
    }
}

/// This process was started by the launcher, and is about to connect to the database. It may have
/// to wait for a lock there.
pub fn come(database: pg_sys::Oid) {
    if is_shared() {
        leave_at_exit(database);
        change(database, |visit| {
            (visit.coming, visit.coming_since) = (process::pid(), clock::now());
        });
        // It looks again when this process is late.
        REGISTRY.share().wake_launcher();
    }
}

/// This process is the worker of its database, until it ends.
pub fn enter(is_by_hand: bool) {
    if !is_shared() {
        return;
    }
    leave_at_exit(process::database());
    let latch = LatchAddress::own();
    change(process::database(), |visit| {
        visit.forget_coming(process::pid());
        (visit.worker, visit.latch, visit.began_at) = (process::pid(), latch, clock::now());
        (visit.is_by_hand, visit.asked_at, visit.has_left) = (is_by_hand, 0, false);
    });
}

fn at_exit() {
    let Some(database) = LEAVES_AT_EXIT.get() else { return };
    change(database, |visit| {
        visit.forget_coming(process::pid());
        if visit.worker == process::pid() {
            (visit.worker, visit.latch, visit.asked_at) = (0, LatchAddress::NONE, 0);
            if !visit.has_left {
                // It was ended in the middle of its work: the next one is wanted at once.
                visit.left.due = 0;
            }
        }
    });
    REGISTRY.share().wake_launcher();
}

/// Whether the launcher asks this worker to leave.
pub fn is_asked() -> bool {
    read(process::database(), |entry| entry.visit.asked_at != 0).unwrap_or(false)
}

/// This worker is about to leave, and says what it knows.
pub fn leave(left: Left) {
    change(process::database(), |visit| {
        visit.unfinished = if left.goes_on { visit.unfinished + 1 } else { 0 };
        (visit.left, visit.has_left) = (left, true);
    });
}

/// What the last worker of this database has left behind; and how many, one after the other, have
/// left with more to do at once.
pub fn last() -> Option<(Left, u32)> {
    read(process::database(), |entry| (entry.visit.left, entry.visit.unfinished))
}

/// The count of this worker's database; None where it is not on the list.
pub fn changes() -> Option<u64> {
    read(process::database(), |entry| entry.changes.load(Ordering::SeqCst))
}

/// The soonest moment of the timers that were scheduled since the last call of [`take_timer`].
pub fn timer() -> Moment {
    read(process::database(), |entry| entry.timer.load(Ordering::SeqCst)).unwrap_or(Moment::MAX)
}

/// [`timer`], and forget it. To be called before a look at all timers.
pub fn take_timer() -> Moment {
    let take = |entry: &Database| entry.timer.swap(Moment::MAX, Ordering::SeqCst);
    read(process::database(), take).unwrap_or(Moment::MAX)
}

/// A sweep of this database has come to its end.
pub fn note_sweep(now: Moment) {
    read(process::database(), |entry| entry.swept_at.store(now, Ordering::SeqCst));
}

/// Whether a transaction of this database may be prepared.
pub fn may_be_prepared() -> bool {
    read(process::database(), |entry| entry.may_be_prepared.load(Ordering::SeqCst)).unwrap_or(true)
}

/// Note whether one may be, before or after a look.
pub fn set_may_be_prepared(may_be: bool) {
    read(process::database(), |entry| entry.may_be_prepared.store(may_be, Ordering::SeqCst));
}
