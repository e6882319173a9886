//! What the launcher and the workers tell each other, in the entries of [`registry`].
//!
//! A worker can be connected to one database only, for as long as it lives. Where there are more
//! databases than workers, the launcher asks a worker to leave, and starts one in another database.
//! A worker that leaves says what it knows: up to where it has looked, and when there is something
//! to do again. By that, and by what sessions count since, the launcher knows which database needs
//! a worker, and which one has waited for longest.

use std::cell::Cell;
use std::sync::atomic::Ordering;

use pgrx::{pg_guard, pg_sys};

use super::registry::{Database, REGISTRY, is_shared, wake};
use super::visit::{Left, Visit};
use crate::pg::clock::{self, Moment};

/// What the launcher hands to a worker that was started by hand.
pub const BY_HAND: &str = "by hand";

/// A database as the launcher sees it.
#[derive(Clone, Copy)]
pub struct Seat {
    pub database: pg_sys::Oid,
    pub has_worker: bool,
    pub is_by_hand: bool,
    pub is_asked: bool,
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
        is_by_hand: entry.visit.is_by_hand,
        is_asked: entry.visit.is_asked,
        is_excluded: entry.visit.is_excluded && !entry.visit.is_doubted,
        began_at: entry.visit.began_at,
        wanted_at: entry.wanted_at(now, databases),
    };
    registry.all().iter().map(seat).collect()
}

/// Ask the worker of a database to leave.
pub fn ask(database: pg_sys::Oid) {
    change(database, |visit| {
        visit.is_asked = true;
        wake(visit.latch);
    });
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

fn own_database() -> pg_sys::Oid {
    // SAFETY: a plain global of the process.
    unsafe { pg_sys::MyDatabaseId }
}

fn own_pid() -> i32 {
    // SAFETY: a plain global of the process.
    unsafe { pg_sys::MyProcPid }
}

thread_local! {
    static LEAVES_AT_EXIT: Cell<bool> = const { Cell::new(false) };
}

/// This process is the worker of its database, until it ends.
pub fn enter(is_by_hand: bool) {
    if !is_shared() {
        return;
    }
    if !LEAVES_AT_EXIT.replace(true) {
        // SAFETY: called once, as the process ends, while shared memory is still there.
        unsafe { pg_sys::before_shmem_exit(Some(at_exit), pg_sys::Datum::null()) };
    }
    // SAFETY: the address of the latch of this process's PGPROC.
    let latch = unsafe { pg_sys::MyLatch as usize };
    change(own_database(), |visit| {
        (visit.worker, visit.latch, visit.began_at) = (own_pid(), latch, clock::now());
        (visit.is_by_hand, visit.is_asked, visit.has_left) = (is_by_hand, false, false);
    });
}

#[pg_guard]
unsafe extern "C-unwind" fn at_exit(_code: i32, _argument: pg_sys::Datum) {
    change(own_database(), |visit| {
        if visit.worker == own_pid() {
            (visit.worker, visit.latch, visit.is_asked) = (0, 0, false);
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
    read(own_database(), |entry| entry.visit.is_asked).unwrap_or(false)
}

/// This worker is about to leave, and says what it knows.
pub fn leave(left: Left) {
    change(own_database(), |visit| {
        visit.unfinished = if left.goes_on { visit.unfinished + 1 } else { 0 };
        (visit.left, visit.has_left) = (left, true);
    });
}

/// What the last worker of this database has left behind; and how many, one after the other, have
/// left with more to do at once.
pub fn last() -> Option<(Left, u32)> {
    read(own_database(), |entry| (entry.visit.left, entry.visit.unfinished))
}

/// The count of this worker's database; None where it is not on the list.
pub fn changes() -> Option<u64> {
    read(own_database(), |entry| entry.changes.load(Ordering::SeqCst))
}

/// The soonest moment of the timers that were scheduled since the last call of [`take_timer`].
pub fn timer() -> Moment {
    read(own_database(), |entry| entry.timer.load(Ordering::SeqCst)).unwrap_or(Moment::MAX)
}

/// [`timer`], and forget it. To be called before a look at all timers.
pub fn take_timer() -> Moment {
    let take = |entry: &Database| entry.timer.swap(Moment::MAX, Ordering::SeqCst);
    read(own_database(), take).unwrap_or(Moment::MAX)
}

/// Whether a transaction of this database may be prepared.
pub fn may_be_prepared() -> bool {
    read(own_database(), |entry| entry.may_be_prepared.load(Ordering::SeqCst)).unwrap_or(true)
}

/// Note whether one may be, before or after a look.
pub fn set_may_be_prepared(may_be: bool) {
    read(own_database(), |entry| entry.may_be_prepared.store(may_be, Ordering::SeqCst));
}
