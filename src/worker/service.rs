//! What a session can learn of the worker of its database: is the database served, and if not, what
//! is missing?

use std::sync::atomic::Ordering;

use pgrx::pg_sys::panic::ErrorReport;
use pgrx::prelude::*;

use super::registry::{Database, REGISTRY, is_shared};
use crate::pg::clock::{self, Moment, SECOND};
use crate::pg::{latch, process, recovery};

/// How a database is served.
#[derive(Clone, Copy, Debug)]
pub struct Service {
    /// There is a worker for it, at all times or in turn with other databases.
    pub is_served: bool,
    pub shortage: Option<Shortage>,
    /// Since when it needs a worker and has none.
    pub late_since: Option<Moment>,
    /// When a sweep last came to its end.
    pub swept_at: Option<Moment>,
    /// The launcher has looked at the database.
    is_decided: bool,
}

/// Why there is no worker for a database that is to be served.
#[derive(Clone, Copy, Debug)]
pub enum Shortage {
    Launcher,
    Slots,
    List,
}

/// How this session's database is served. None without preload, and on a standby.
pub fn service() -> Option<Service> {
    if !is_shared() || recovery::is_under_way() {
        return None;
    }
    let now = clock::now();
    let registry = REGISTRY.share();
    let entry = registry.find(process::database());
    let visit = entry.map(|entry| &entry.visit);
    let has_worker = visit.is_some_and(|visit| visit.worker != 0);
    let is_excluded = visit.is_some_and(|visit| visit.is_excluded);
    let is_short = registry.short_since.load(Ordering::SeqCst) != 0;
    let shortage = match entry {
        _ if has_worker || is_excluded => None,
        _ if !registry.has_launcher() => Some(Shortage::Launcher),
        None if registry.is_full() => Some(Shortage::List),
        _ => is_short.then_some(Shortage::Slots),
    };
    let was_there = visit.is_some_and(|visit| visit.began_at != 0);
    let wanted_at = |entry: &Database| entry.wanted_at(now, registry.all().len());
    let is_late = |at: &Moment| *at < now && !has_worker && !is_excluded;
    Some(Service {
        is_served: has_worker || was_there && !is_excluded && shortage.is_none(),
        shortage,
        late_since: entry.map(wanted_at).filter(is_late),
        swept_at: entry.map(|entry| entry.swept_at.load(Ordering::SeqCst)).filter(|at| *at != 0),
        is_decided: was_there || is_excluded || is_short || registry.is_full(),
    })
}

/// [`service`], once the launcher has looked at the database, or after a second.
pub fn wait_for_service() -> Option<Service> {
    let until = clock::now() + SECOND;
    loop {
        let service = service()?;
        if service.is_decided || clock::now() >= until {
            return Some(service);
        }
        latch::sleep(10);
    }
}

impl Shortage {
    /// Tell the client.
    pub fn warn(self) {
        let detail = match self {
            Self::Launcher => "The launcher of the background workers is not running.",
            Self::Slots => {
                "All background workers of the server, max_worker_processes, are in use."
            }
            Self::List => "So many databases use queen_mq that the list of them is full.",
        };
        ErrorReport::new(
            PgSqlErrorCode::ERRCODE_CONFIGURATION_LIMIT_EXCEEDED,
            "queen_mq: no background worker is free for this database",
            "queen_mq",
        )
        .set_detail(detail)
        .set_hint(match self {
            Self::List => {
                "Call queen_sweep regularly, or name the databases to serve in \
                           queen_mq.databases."
            }
            _ => {
                "Raise max_worker_processes: queen_mq needs one for its launcher, and one for \
                  each worker of queen_mq.max_workers. Until then, call queen_sweep regularly."
            }
        })
        .report(PgLogLevel::WARNING);
    }
}
