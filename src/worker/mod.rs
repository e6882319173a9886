//! The background processes. A worker sweeps one database: it does what `queen_sweep` does, in
//! short transactions of its own ([`sweeper`]). With the library preloaded, a launcher sees that a
//! few workers serve all databases that use queen_mq, in turn ([`launcher`], [`registry`],
//! [`turn`]). Without, `queen_worker_start` starts the worker of its database.

mod agenda;
mod database;
mod launcher;
mod registry;
mod service;
mod sweeper;
mod transaction;
mod turn;
mod visit;

use std::time::Duration;

use pgrx::bgworkers::{BackgroundWorkerBuilder, BgWorkerStartTime, DynamicBackgroundWorker};
use pgrx::prelude::*;

pub use registry::{announce, note_end};
pub use service::{service, wait_for_service};
pub use turn::note_sweep;

use crate::pg::{binary_upgrade, process};
use crate::store::locks;

/// Called by `_PG_init`. In the postmaster it sets up shared memory and the launcher. A server that
/// pg_upgrade has started gets no launcher, because a worker must not write there.
pub fn register() {
    if !process::is_preloading() {
        return;
    }
    registry::set_up();
    if binary_upgrade::is_under_way() {
        return;
    }
    BackgroundWorkerBuilder::new("queen_mq launcher")
        .set_type("queen_mq launcher")
        .set_library("queen_mq")
        .set_function("queen_mq_launcher")
        .enable_spi_access()
        // A standby can't write; its launcher starts when it is promoted.
        .set_start_time(BgWorkerStartTime::RecoveryFinished)
        .set_restart_time(Some(Duration::from_secs(5)))
        .load();
}

/// Start the worker of a database. None if the server has no slot for a background worker left.
/// `notify`: the process that is signalled when the worker starts, and when it ends. `how`: what
/// the worker is told.
fn start(database: pg_sys::Oid, notify: i32, how: &str) -> Option<DynamicBackgroundWorker> {
    BackgroundWorkerBuilder::new("queen_mq worker")
        .set_type("queen_mq worker")
        .set_extra(how)
        .set_library("queen_mq")
        .set_function("queen_mq_worker")
        .enable_spi_access()
        .set_argument(Some(database.into()))
        .set_start_time(BgWorkerStartTime::RecoveryFinished)
        .set_restart_time(None)
        .set_notify_pid(notify)
        .load_dynamic()
        .ok()
}

/// Start a worker for this database, which runs until [`sweeper`] says that it ends. Returns
/// whether it was started: false where one is running, or no background worker can be had.
pub fn start_here() -> bool {
    !locks::has_worker()
        && start(process::database(), process::pid(), turn::BY_HAND)
            .is_some_and(|worker| worker.wait_for_startup().is_ok())
}
