//! The launcher: one process of the server, which sees that every database that uses queen_mq has a
//! worker. It is connected to no database, takes no lock of ours, and starts workers for the
//! databases on the list of [`registry`].

use std::collections::HashMap;
use std::ffi::CStr;

use pgrx::bgworkers::DynamicBackgroundWorker;
use pgrx::pg_sys::panic::ErrorReport;
use pgrx::prelude::*;

use super::{pause, registry, start, take_signals};
use crate::pg::clock::{self, Moment, SECOND};
use crate::settings;

/// The launcher starts a worker in every database of the server this often; a worker that does not
/// find the extension ends soon. In between, sessions announce the databases that they use.
const SURVEY: i64 = 600 * SECOND;
/// A worker that ended is not started again before this.
const RESPITE: i64 = SECOND;

/// By database: its worker, and when that was started.
type Workers = HashMap<u32, (Option<DynamicBackgroundWorker>, Moment)>;

/// The launcher's main function.
#[pg_guard]
#[unsafe(no_mangle)]
pub extern "C-unwind" fn queen_mq_launcher(_argument: pg_sys::Datum) {
    take_signals();
    // SAFETY: to the shared catalogues alone.
    unsafe {
        pg_sys::BackgroundWorkerInitializeConnection(std::ptr::null(), std::ptr::null(), 0);
    }
    registry::be_launcher();
    // SAFETY: a plain global of the process.
    let own = unsafe { pg_sys::MyProcPid };
    let mut workers = Workers::new();
    let mut next_survey = clock::now();
    loop {
        let now = clock::now();
        if now >= next_survey {
            served().into_iter().for_each(|(database, _)| registry::add(database));
            next_survey = now + SURVEY;
        }
        let wanted = wanted(&workers);
        workers.retain(|database, (worker, _)| {
            is_alive(worker.as_ref()) || wanted.contains(&pg_sys::Oid::from(*database))
        });
        let mut is_waiting = false;
        for database in wanted {
            let (worker, started_at) =
                workers.entry(database.to_u32()).or_insert((None, Moment::MIN));
            if is_alive(worker.as_ref()) {
                continue;
            }
            match now.saturating_sub(*started_at) >= RESPITE {
                true => {
                    *worker = start(database, own);
                    if worker.is_none() && *started_at == Moment::MIN {
                        too_few_workers(database);
                    }
                    *started_at = now;
                }
                false => is_waiting = true,
            }
        }
        if pause(if is_waiting { 1_000 } else { 60_000 }) {
            next_survey = now;
        }
    }
}

/// The databases that are to have a worker. A database that is gone, or is not to be served, is
/// taken off the list. The catalogue is read for that only if a database lacks a worker.
fn wanted(workers: &Workers) -> Vec<pg_sys::Oid> {
    let mut wanted = registry::all();
    let has_worker = |database: &pg_sys::Oid| {
        workers.get(&database.to_u32()).is_some_and(|(worker, _)| is_alive(worker.as_ref()))
    };
    if !wanted.iter().all(has_worker) {
        let served = served();
        let is_served = |database: &pg_sys::Oid| served.iter().any(|(oid, _)| oid == database);
        let (kept, gone): (Vec<_>, Vec<_>) = wanted.into_iter().partition(is_served);
        gone.into_iter().for_each(registry::remove);
        wanted = kept;
    }
    wanted
}

/// Warn that a database has no worker.
fn too_few_workers(database: pg_sys::Oid) {
    let name = served().into_iter().find(|(oid, _)| *oid == database);
    let name = name.map_or_else(|| database.to_u32().to_string(), |(_, name)| name);
    ErrorReport::new(
        PgSqlErrorCode::ERRCODE_CONFIGURATION_LIMIT_EXCEEDED,
        format!("queen_mq: no background worker is free for database \"{name}\""),
        "queen_mq_launcher",
    )
    .set_detail("All background workers of the server, max_worker_processes, are in use.")
    .set_hint("Raise max_worker_processes, or name the databases to serve in queen_mq.databases.")
    .report(PgLogLevel::WARNING);
}

fn is_alive(worker: Option<&DynamicBackgroundWorker>) -> bool {
    use pgrx::bgworkers::BackgroundWorkerStatus::NotYetStarted;
    worker.is_some_and(|worker| matches!(worker.pid(), Ok(_) | Err(NotYetStarted)))
}

/// The databases that take connections, and that the settings say are to be served, with their
/// names. The launcher is connected to no database, so it can't use SQL, and reads the catalogue by
/// a scan.
fn served() -> Vec<(pg_sys::Oid, String)> {
    let mut found = Vec::new();
    // SAFETY: pg_database is a shared catalogue, whose rows begin with FormData_pg_database; scan
    // and transaction are ended on the way that returns, and with the process on an ERROR.
    unsafe {
        pg_sys::StartTransactionCommand();
        let lock = pg_sys::AccessShareLock as i32;
        let table = pg_sys::table_open(pg_sys::DatabaseRelationId, lock);
        let scan = pg_sys::table_beginscan_catalog(table, 0, std::ptr::null_mut());
        loop {
            let tuple = pg_sys::heap_getnext(scan, pg_sys::ScanDirection::ForwardScanDirection);
            if tuple.is_null() {
                break;
            }
            let database = &*pg_sys::GETSTRUCT(tuple).cast::<pg_sys::FormData_pg_database>();
            let name = CStr::from_ptr(database.datname.data.as_ptr()).to_string_lossy();
            if database.datallowconn && !database.datistemplate && settings::serves(&name) {
                found.push((database.oid, name.into_owned()));
            }
        }
        pg_sys::heap_endscan(scan);
        pg_sys::table_close(table, lock);
        pg_sys::CommitTransactionCommand();
    }
    found
}
