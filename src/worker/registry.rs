//! Which databases use queen_mq, for the launcher to serve. The list, and the launcher's latch, are
//! in shared memory, so they are there only with the library preloaded. Without, nothing here does
//! anything. An LWLock guards both, for a look or a change at a time.

use std::cell::Cell;
use std::sync::atomic::{AtomicBool, Ordering};

use pgrx::lwlock::PgLwLock;
use pgrx::prelude::*;
use pgrx::shmem::PGRXSharedMemory;
use pgrx::{pg_shmem_init, pg_sys};

use crate::pg::clock::{self, Moment, SECOND};

/// Databases that can be on the list. One that finds it full gets no worker; `queen_sweep` sweeps
/// it.
const CAPACITY: usize = 256;

/// What shared memory holds; the first `count` databases are in use.
#[derive(Clone, Copy)]
pub struct Registry {
    /// The launcher's latch, 0 while there is none.
    launcher: usize,
    count: usize,
    databases: [pg_sys::Oid; CAPACITY],
}

// SAFETY: plain values; the latch lies in shared memory at one address for all processes.
unsafe impl PGRXSharedMemory for Registry {}

// SAFETY: no other lock of the server has this name.
static REGISTRY: PgLwLock<Registry> = unsafe { PgLwLock::new(c"queen_mq") };
/// Set in the postmaster, and so in all its children.
static IS_SHARED: AtomicBool = AtomicBool::new(false);

const EMPTY: Registry =
    Registry { launcher: 0, count: 0, databases: [pg_sys::InvalidOid; CAPACITY] };

/// Called in the postmaster, while it preloads the library: have shared memory for the list.
pub fn set_up() {
    pg_shmem_init!(REGISTRY = EMPTY);
    IS_SHARED.store(true, Ordering::Relaxed);
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
    if !IS_SHARED.load(Ordering::Relaxed) {
        return;
    }
    // SAFETY: a look-up in the catalogue, and plain globals of the backend.
    let (schema, database) =
        unsafe { (pg_sys::get_namespace_oid(c"queen_mq".as_ptr(), true), pg_sys::MyDatabaseId) };
    let now = clock::now();
    let (known, at) = ANNOUNCED.get();
    if known != schema || now.saturating_sub(at) > AGAIN {
        ANNOUNCED.set((schema, now));
        add(database);
    }
}

/// Put a database on the list, and wake the launcher.
pub fn add(database: pg_sys::Oid) {
    if REGISTRY.share().has(database) {
        return;
    }
    let mut registry = REGISTRY.exclusive();
    if registry.has(database) || registry.count == CAPACITY {
        return;
    }
    let count = registry.count;
    registry.databases[count] = database;
    registry.count += 1;
    let latch = registry.launcher as *mut pg_sys::Latch;
    if !latch.is_null() {
        // SAFETY: a latch of a PGPROC, which stays where it is for as long as the server runs.
        unsafe { pg_sys::SetLatch(latch) };
    }
}

/// Take a database off the list, until a session announces it again.
pub fn remove(database: pg_sys::Oid) {
    if !IS_SHARED.load(Ordering::Relaxed) {
        return;
    }
    let mut registry = REGISTRY.exclusive();
    let count = registry.count;
    if let Some(place) = registry.databases[..count].iter().position(|known| *known == database) {
        registry.databases[place] = registry.databases[count - 1];
        registry.count -= 1;
    }
}

/// The databases on the list.
pub fn all() -> Vec<pg_sys::Oid> {
    let registry = REGISTRY.share();
    registry.databases[..registry.count].to_vec()
}

/// Make this process the launcher: it is woken when a database is put on the list.
pub fn be_launcher() {
    // SAFETY: the process's own latch, which is the one of its PGPROC.
    REGISTRY.exclusive().launcher = unsafe { pg_sys::MyLatch } as usize;
}

impl Registry {
    fn has(&self, database: pg_sys::Oid) -> bool {
        self.databases[..self.count].contains(&database)
    }
}
