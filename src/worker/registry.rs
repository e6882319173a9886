//! Which databases use queen_mq, and what has happened in each since a worker was there. The list
//! is in shared memory, so it is there only with the library preloaded. Without, nothing here does
//! anything.
//!
//! A session puts its database on the list with its first call. When a transaction has written by
//! this library and has ended, its session counts that in the entry of its database
//! ([`note_end`]). So a worker need not look while the count stays as it is, whatever other
//! transactions write. Three things change tables of ours and are not counted: a prepared
//! transaction that is committed later, statements of an administrator, and logical replication.
//! Of the first the entry has a note; for the others a worker looks now and then all the same.
//!
//! What workers and the launcher tell each other stands in the entry, too ([`super::turn`]). An
//! LWLock guards the list, for a look or a change at a time; nothing under it can fail or wait.

use std::cell::Cell;
use std::sync::atomic::{AtomicBool, AtomicI64, AtomicU64, Ordering};

use pgrx::pg_sys;

use super::visit::Visit;
use crate::pg::clock::{self, Moment, SECOND};
use crate::pg::latch::LatchAddress;
use crate::pg::own_commits::Ended;
use crate::pg::shared::{Shared, plain};
use crate::pg::{catalogue, completions, process};

/// Databases that can be on the list. One that finds it full gets no worker; `queen_sweep` sweeps
/// it.
const CAPACITY: usize = 256;

/// A database in which something was written is visited again this long after the last visit, if no
/// timer is due sooner; and one in which nothing was counted, while other transactions have written
/// somewhere.
const AFTER_CHANGES: i64 = 10 * SECOND;
const IN_ANY_CASE: i64 = 60 * SECOND;
/// With so many databases or more, these times are longer, so that there are not more visits.
const MANY: i64 = 10;

/// An entry of the list.
pub struct Database {
    pub oid: pg_sys::Oid,
    /// Counts the ends of transactions that have written by this library. It begins with a number
    /// that no earlier entry has reached.
    pub(super) changes: AtomicU64,
    /// The soonest moment at which a timer is due, of those that were scheduled since a worker has
    /// last asked.
    pub(super) timer: AtomicI64,
    /// There may be a prepared transaction that has written.
    pub(super) may_be_prepared: AtomicBool,
    /// When a sweep last came to its end; 0: none has.
    pub(super) swept_at: AtomicI64,
    pub(super) visit: Visit,
}

plain!(Database { oid, changes, timer, may_be_prepared, swept_at, visit });

impl Database {
    const fn new(oid: pg_sys::Oid, changes: u64, visit: Visit) -> Self {
        Self {
            oid,
            changes: AtomicU64::new(changes),
            timer: AtomicI64::new(Moment::MAX),
            may_be_prepared: AtomicBool::new(true),
            swept_at: AtomicI64::new(0),
            visit,
        }
    }

    const fn unused() -> Self {
        Self::new(pg_sys::InvalidOid, 0, Visit::NONE)
    }

    /// When the database needs a worker, as far as is known at this moment. There are so many
    /// databases.
    pub(super) fn wanted_at(&self, now: Moment, databases: usize) -> Moment {
        let left = &self.visit.left;
        if left.at > now {
            // The clock was set back: no moment that was noted means anything.
            return now;
        }
        let pause = |pause: i64| pause / MANY * (databases as i64).max(MANY);
        let has_changed = self.changes.load(Ordering::SeqCst) != left.changes
            || self.may_be_prepared.load(Ordering::SeqCst);
        let again = match has_changed {
            true => left.at + pause(AFTER_CHANGES),
            false if completions::count() != left.completions => left.at + pause(IN_ANY_CASE),
            false => Moment::MAX,
        };
        left.due.min(self.timer.load(Ordering::SeqCst)).min(again)
    }
}

/// What shared memory holds; the first `count` databases are in use.
pub struct Registry {
    /// The launcher's latch.
    launcher: LatchAddress,
    count: usize,
    databases: [Database; CAPACITY],
    /// With what the count of the next entry begins.
    next: u64,
    /// Since when the launcher gets no background worker at all; 0: it does.
    pub(super) short_since: AtomicI64,
}

plain!(Registry { launcher, count, databases, next, short_since });

pub(super) static REGISTRY: Shared<Registry> = Shared::new(c"queen_mq", || Registry {
    launcher: LatchAddress::NONE,
    count: 0,
    databases: [const { Database::unused() }; CAPACITY],
    next: 1,
    short_since: AtomicI64::new(0),
});

/// Called in the postmaster, while it preloads the library: have shared memory for the list.
pub fn set_up() {
    REGISTRY.set_up();
}

pub fn is_shared() -> bool {
    REGISTRY.is_there()
}

thread_local! {
    /// The extension's schema, and when this session announced its database.
    static ANNOUNCED: Cell<(pg_sys::Oid, Moment)> =
        const { Cell::new((pg_sys::InvalidOid, Moment::MIN)) };
}

/// A session announces its database again after this: the worker may have ended and taken the
/// database off the list.
const AGAIN: i64 = 2 * SECOND;

/// Let this session's database be served, because the session uses queen_mq. Every call of a
/// function does this, in its transaction; it costs a look-up in the catalogue's cache.
pub fn announce() {
    if !is_shared() {
        return;
    }
    let schema = catalogue::schema(c"queen_mq");
    let now = clock::now();
    let (known, at) = ANNOUNCED.get();
    if known != schema || now.saturating_sub(at) > AGAIN || now < at {
        ANNOUNCED.set((schema, now));
        add(process::database());
    }
}

/// A transaction of this session has written by this library, and has ended. A database that is not
/// on the list is put there: its worker may have looked before the commit that has created the
/// extension. Cannot fail.
pub fn note_end(ended: Ended) {
    if !is_shared() {
        return;
    }
    let database = process::database();
    if !REGISTRY.share().count_end(database, ended) {
        add(database);
    }
}

/// Put a database on the list, and wake the launcher. One that the settings exclude may have
/// another name by now: the launcher looks again.
pub fn add(database: pg_sys::Oid) {
    if REGISTRY.share().find(database).is_some_and(|entry| !entry.visit.is_excluded) {
        return;
    }
    let mut registry = REGISTRY.exclusive();
    if let Some(entry) = registry.find_mut(database) {
        entry.visit.is_doubted = true;
        registry.wake_launcher();
        return;
    }
    if registry.count == CAPACITY {
        return;
    }
    let (place, first) = (registry.count, registry.next);
    registry.databases[place] = Database::new(database, first, Visit::first(clock::now()));
    registry.count += 1;
    registry.next += 1;
    registry.wake_launcher();
}

/// Take a database off the list, until a session announces it again.
pub fn remove(database: pg_sys::Oid) {
    if is_shared() {
        REGISTRY.exclusive().remove(database);
    }
}

/// [`remove`], unless something has changed since the database's count was `seen`: a transaction
/// has committed that has created the extension. False then.
pub fn remove_if_unchanged(database: pg_sys::Oid, seen: Option<u64>) -> bool {
    if !is_shared() {
        return true;
    }
    let mut registry = REGISTRY.exclusive();
    let is_unchanged = |entry: &Database| Some(entry.changes.load(Ordering::SeqCst)) == seen;
    let may_go = registry.find(database).is_none_or(is_unchanged);
    if may_go {
        registry.remove(database);
    }
    may_go
}

/// Make this process the launcher: it is woken when a database is put on the list, and when a
/// worker ends.
pub fn be_launcher() {
    REGISTRY.exclusive().launcher = LatchAddress::own();
}

impl Registry {
    fn place(&self, database: pg_sys::Oid) -> Option<usize> {
        self.all().iter().position(|known| known.oid == database)
    }

    fn remove(&mut self, database: pg_sys::Oid) {
        let Some(place) = self.place(database) else { return };
        let last = self.count - 1;
        let reached = self.databases[place].changes.load(Ordering::Relaxed);
        self.next = self.next.max(reached + 1);
        self.databases.swap(place, last);
        self.databases[last] = Database::unused();
        self.count = last;
    }

    pub(super) fn all(&self) -> &[Database] {
        &self.databases[..self.count]
    }

    pub(super) fn find(&self, database: pg_sys::Oid) -> Option<&Database> {
        self.all().iter().find(|known| known.oid == database)
    }

    pub(super) fn find_mut(&mut self, database: pg_sys::Oid) -> Option<&mut Database> {
        let place = self.place(database)?;
        Some(&mut self.databases[place])
    }

    /// False where the database is not on the list.
    fn count_end(&self, database: pg_sys::Oid, ended: Ended) -> bool {
        let Some(entry) = self.find(database) else { return false };
        match ended {
            Ended::Prepared => entry.may_be_prepared.store(true, Ordering::SeqCst),
            Ended::RolledBack => (),
            Ended::Committed { soonest } => {
                entry.timer.fetch_min(soonest, Ordering::SeqCst);
            }
        }
        // Last: a worker that sees the new count sees the rest as well.
        entry.changes.fetch_add(1, Ordering::SeqCst);
        true
    }

    pub(super) fn is_full(&self) -> bool {
        self.count == CAPACITY
    }

    /// Whether there is a launcher.
    pub(super) fn has_launcher(&self) -> bool {
        self.launcher.is_some()
    }

    pub(super) fn wake_launcher(&self) {
        self.launcher.set();
    }
}
