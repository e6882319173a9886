//! The launcher: one process of the server, which sees that every database that uses queen_mq is
//! served by a worker. It is connected to no database, takes no lock of ours, and starts workers
//! for the databases on the list of [`registry`].
//!
//! Up to `queen_mq.max_workers` workers run at a time. Where there are not more databases, each has
//! a worker that stays. Where there are more, a database waits for its turn: the launcher looks
//! twice a second which ones need a worker ([`turn`]), starts one in the database that has waited
//! for longest, and asks the worker to leave that has stayed for longest.

use std::collections::HashMap;

use pgrx::bgworkers::DynamicBackgroundWorker;
use pgrx::pg_sys::panic::ErrorReport;
use pgrx::prelude::*;

use super::turn::Seat;
use super::{database, registry, start, turn};
use crate::pg::background::{self, pause, take_signals};
use crate::pg::clock::{self, Moment, SECOND};
use crate::pg::process;
use crate::settings;

/// The launcher starts a worker in every database of the server this often; a worker that does not
/// find the extension ends soon. In between, sessions announce the databases that they use.
const SURVEY: i64 = 600 * SECOND;
/// A worker that ended is not started again before this. After one that could not connect, it takes
/// twice as long each time, up to `LONGEST_RESPITE`.
const RESPITE: i64 = SECOND;
const LONGEST_RESPITE: i64 = 300 * SECOND;
/// A worker that does not leave is terminated this long after it was asked to: code of a user may
/// keep it, in a trigger. So is one that has not got into its database, where it may be waiting for
/// the lock of a command.
const PATIENCE: i64 = 15 * SECOND;
/// While databases wait for their turn, the launcher looks this often which ones need a worker.
const LOOK: i64 = SECOND / 2;
/// Without anything to wait for, it looks this often.
const IDLE: i64 = 60 * SECOND;
/// The server log is told this often that no background worker is free.
const WARNING: i64 = 600 * SECOND;

/// What the launcher remembers of a database.
struct Started {
    worker: Option<DynamicBackgroundWorker>,
    at: Moment,
    /// So many workers, one after the other, could not connect, or did not leave when they were
    /// asked to.
    failures: u32,
}

impl Started {
    fn is_alive(&self) -> bool {
        use pgrx::bgworkers::BackgroundWorkerStatus::NotYetStarted;
        self.worker
            .as_ref()
            .is_some_and(|worker| matches!(worker.pid(), Ok(_) | Err(NotYetStarted)))
    }

    fn not_before(&self) -> Moment {
        self.at + (RESPITE << self.failures.min(16)).min(LONGEST_RESPITE)
    }
}

/// The launcher's main function.
#[pg_guard]
#[unsafe(no_mangle)]
pub extern "C-unwind" fn queen_mq_launcher(_argument: pg_sys::Datum) {
    take_signals();
    background::connect_to_no_database();
    registry::be_launcher();
    let mut launcher = Launcher::default();
    let mut next_survey = Moment::MIN;
    let mut last = clock::now();
    loop {
        let now = clock::now();
        if now < last {
            // The clock was set back.
            launcher.started.values_mut().for_each(|started| started.at = 0);
            turn::note_clock(now);
            (next_survey, launcher.warned_at) = (now, 0);
        }
        last = now;
        if now >= next_survey {
            survey();
            next_survey = now + SURVEY;
        }
        let next = launcher.look(now);
        if pause((next - now).clamp(1_000, IDLE) / 1_000) {
            next_survey = now;
        }
    }
}

/// Put every database of the server on the list that is to be served.
fn survey() {
    for found in database::all() {
        if found.is_served {
            registry::add(found.oid);
        }
        turn::exclude(found.oid, !found.is_served);
    }
}

#[derive(Default)]
struct Launcher {
    started: HashMap<pg_sys::Oid, Started>,
    warned_at: Moment,
}

impl Launcher {
    /// Start the workers that are needed now, and ask others to leave for them. Returns when to
    /// look again.
    fn look(&mut self, now: Moment) -> Moment {
        let seats = turn::seats(now);
        self.note_ends(&seats);
        let is_here = |seat: &Seat| seat.has_worker && !seat.is_by_hand;
        let is_starting = |seat: &Seat| !seat.has_worker && self.is_starting(seat);
        let mut running = seats.iter().filter(|seat| is_here(seat) || is_starting(seat)).count();
        running += self.without_a_seat(&seats);
        let waits = |seat: &&Seat| !seat.has_worker && !self.is_starting(seat) && !seat.is_excluded;
        let mut waiting: Vec<Seat> = seats.iter().filter(waits).copied().collect();
        for seat in &mut waiting {
            let respite = self.started.get(&seat.database).map_or(0, Started::not_before);
            seat.wanted_at = seat.wanted_at.max(respite);
        }
        waiting.sort_by_key(|seat| seat.wanted_at);
        let mut needed: Vec<Seat> =
            waiting.iter().filter(|seat| seat.wanted_at <= now).copied().collect();
        keep_servable(&mut needed);
        let most = settings::max_workers();
        let (mut is_refused, mut unmet) = (false, 0);
        for seat in needed {
            if running < most && !is_refused {
                is_refused = !self.start(seat.database, now);
                running += usize::from(!is_refused);
                unmet += usize::from(is_refused);
            } else {
                unmet += 1;
            }
        }
        turn::note_shortage(is_refused && running == 0);
        let leaving = unmet.min(most) + running.saturating_sub(most);
        let mut again = turn_out_late(&seats, now);
        let there = seats.into_iter().filter(is_here).collect();
        again = again.min(self.ask_to_leave(there, leaving, now));
        if waiting.is_empty() {
            return again.min(now + IDLE);
        }
        // A worker that leaves wakes the launcher. A session that schedules a timer does not.
        let later = waiting.iter().map(|seat| seat.wanted_at).filter(|at| *at > now);
        later.min().unwrap_or(Moment::MAX).min(now + LOOK).min(again)
    }

    /// Whether a worker that is not there yet is on its way, be it that an earlier launcher has
    /// started it.
    fn is_starting(&self, seat: &Seat) -> bool {
        seat.coming_since != 0 || self.started.get(&seat.database).is_some_and(Started::is_alive)
    }

    /// Workers that have given up their seat, since their database does not have the extension,
    /// and that have not ended yet. Each still takes one of the server's background workers.
    fn without_a_seat(&self, seats: &[Seat]) -> usize {
        let has_none =
            |database: &pg_sys::Oid| !seats.iter().any(|seat| seat.database == *database);
        self.started
            .iter()
            .filter(|(database, started)| has_none(database) && started.is_alive())
            .count()
    }

    /// Note which workers have ended, and which of them have never come into their database: it
    /// refuses connections.
    fn note_ends(&mut self, seats: &[Seat]) {
        self.started.retain(|database, started| {
            started.is_alive() || seats.iter().any(|seat| seat.database == *database)
        });
        for seat in seats {
            let Some(started) = self.started.get_mut(&seat.database) else { continue };
            if started.worker.is_some() && !started.is_alive() {
                started.worker = None;
                let has_failed = seat.began_at < started.at;
                started.failures = if has_failed { started.failures + 1 } else { 0 };
            }
        }
    }

    /// Ask so many workers to leave, those first that have been there for longest. Workers that
    /// have been asked already count. Terminate those that do not leave, also those that an
    /// earlier launcher has asked. Returns when to look again whether one has left.
    fn ask_to_leave(&mut self, mut there: Vec<Seat>, count: usize, now: Moment) -> Moment {
        let mut again = Moment::MAX;
        for seat in there.iter().filter(|seat| seat.asked_at != 0) {
            let until = seat.asked_at.saturating_add(PATIENCE);
            if until < now {
                turn::terminate(seat.database);
                turn::ask(seat.database, now);
                let known = self.started.get(&seat.database).map_or(0, |known| known.failures);
                let started = Started { worker: None, at: now, failures: known + 1 };
                self.started.insert(seat.database, started);
            }
            again = again.min(until.max(now) + LOOK);
        }
        let leaving = there.iter().filter(|seat| seat.asked_at != 0).count();
        there.retain(|seat| seat.asked_at == 0);
        there.sort_by_key(|seat| seat.began_at);
        for seat in there.iter().take(count.saturating_sub(leaving)) {
            turn::ask(seat.database, now);
            again = again.min(now + PATIENCE + LOOK);
        }
        again
    }

    /// False if no background worker is free.
    fn start(&mut self, database: pg_sys::Oid, now: Moment) -> bool {
        let Some(worker) = start(database, process::pid(), "") else {
            if now - self.warned_at >= WARNING {
                self.warned_at = now;
                too_few_workers(database);
            }
            return false;
        };
        let failures = self.started.get(&database).map_or(0, |started| started.failures);
        self.started.insert(database, Started { worker: Some(worker), at: now, failures });
        true
    }
}

/// Terminate processes that have not got into their databases in time. Returns when to look again.
fn turn_out_late(seats: &[Seat], now: Moment) -> Moment {
    let mut again = Moment::MAX;
    for seat in seats.iter().filter(|seat| seat.coming_since != 0) {
        let until = seat.coming_since.saturating_add(PATIENCE);
        if until < now {
            turn::turn_out(seat.database);
        }
        again = again.min(until.max(now) + LOOK);
    }
    again
}

/// Keep what can be served at this moment. A database that is gone is taken off the list. One that
/// a command wants for itself waits: a worker would wait for the command's lock.
fn keep_servable(needed: &mut Vec<Seat>) {
    if needed.is_empty() {
        return;
    }
    let all = database::all();
    needed.retain(|seat| match all.iter().find(|found| found.oid == seat.database) {
        None => {
            registry::remove(seat.database);
            false
        }
        Some(found) if !found.is_served => {
            turn::exclude(seat.database, true);
            false
        }
        Some(found) => {
            turn::exclude(found.oid, false);
            !database::is_wanted_alone(found.oid)
        }
    });
}

/// Warn that a database has no worker.
fn too_few_workers(database: pg_sys::Oid) {
    let name = database::all().into_iter().find(|found| found.oid == database);
    let name = name.map_or_else(|| database.to_u32().to_string(), |found| found.name);
    ErrorReport::new(
        PgSqlErrorCode::ERRCODE_CONFIGURATION_LIMIT_EXCEEDED,
        format!("queen_mq: no background worker is free for database \"{name}\""),
        "queen_mq_launcher",
    )
    .set_detail("All background workers of the server, max_worker_processes, are in use.")
    .set_hint(
        "Raise max_worker_processes: queen_mq needs one for its launcher, and one for each worker \
         of queen_mq.max_workers.",
    )
    .report(PgLogLevel::WARNING);
}
