//! The worker of one database: when it sweeps, in which transactions, and when it ends. What a
//! sweep does is [`crate::broker::housekeeping`]'s.
//!
//! Between rounds the worker holds no snapshot and no lock but its own, [`locks::try_be_worker`],
//! by which there is one worker in a database. It watches for three things: the next round, the
//! next timer, and a command that wants the database for itself.
//!
//! A round visits what the [`Agenda`] says. Where no transaction has changed anything since the
//! last round, and nothing has become due, that is nothing, and the round has no transaction. A
//! transaction visits one queue after the other as long as it has written nothing, so that what it
//! has locked or written is of one queue.

use std::collections::HashSet;
use std::ffi::CStr;

use pgrx::bgworkers::BackgroundWorker;
use pgrx::prelude::*;

use super::agenda::Agenda;
use super::database::{is_installed, is_served, is_wanted_alone};
use super::transaction::in_transaction;
use super::{registry, turn};
use crate::broker::housekeeping::{self, Bookmark, QueueTask, Task, TaskPart};
use crate::error::Result;
use crate::pg::background::{self, pause, take_signals};
use crate::pg::clock::{self, Moment, SECOND};
use crate::pg::spi::connected;
use crate::pg::transaction::has_id as has_written;
use crate::pg::{guc, prepared};
use crate::settings;
use crate::store::locks;
use crate::store::queue::Queue;

/// The worker looks this often whether a command wants to drop or copy its database.
const LONGEST_PAUSE: i64 = SECOND / 2;
/// While the next round is further off, the worker looks this often for the next timer, which may
/// have been scheduled in the meantime.
const TIMERS: i64 = SECOND;
/// A task has this much time in one round. The rest is left to the next round.
const TASK_TIME: i64 = SECOND / 4;
/// Where the launcher needs the worker elsewhere.
const HASTY_TASK_TIME: i64 = SECOND / 20;
/// A transaction that has written nothing ends after this: its snapshot keeps vacuum from rows.
const LONGEST_TRANSACTION: i64 = SECOND / 20;
/// So many queues are visited one by one; of more, the worker finds out first where there can be
/// work.
const FEW: usize = 10;
/// Settings of the worker, whatever ALTER DATABASE or ALTER ROLE … SET gives other sessions. A
/// statement of the worker waits for a lock no longer than `lock_timeout`, and leaves what is
/// locked to the next round.
const SETTINGS: &[(&CStr, &CStr)] = &[
    (c"lock_timeout", c"100ms"),
    (c"statement_timeout", c"0"),
    (c"idle_in_transaction_session_timeout", c"0"),
    #[cfg(any(feature = "pg17", feature = "pg18"))]
    (c"transaction_timeout", c"0"),
    (c"default_transaction_isolation", c"read committed"),
    (c"default_transaction_read_only", c"off"),
    (c"default_transaction_deferrable", c"off"),
    (c"session_replication_role", c"origin"),
    (c"row_security", c"on"),
    (c"search_path", c"pg_catalog, pg_temp"),
    (c"role", c"none"),
];

/// The database has nothing to sweep: the extension is not in it, or the settings say that it is
/// not to be served.
struct NotServed;

/// The worker of such a database ends after this. It does not end at once, because a transaction
/// that creates the extension, and uses it, is seen only when it has committed.
const LINGER: i64 = 5 * SECOND;

/// A worker that the launcher asks to leave does one round first. Where a step has more to do at
/// once, it stays for up to this time; and twice as long after a worker that has left so, up to
/// [`LONGEST_STAY`].
const STAY: i64 = SECOND;
const LONGEST_STAY: i64 = 8 * SECOND;

/// The worker's main function. Its argument is the OID of the database.
#[pg_guard]
#[unsafe(no_mangle)]
pub extern "C-unwind" fn queen_mq_worker(database: pg_sys::Datum) {
    let database = pg_sys::Oid::from(database.value() as u32);
    take_signals();
    let is_by_hand = BackgroundWorker::get_extra() == turn::BY_HAND;
    if !is_by_hand {
        turn::come(database);
    }
    // A database that is gone ends the process. The worker connects as the superuser of the
    // cluster's creation, because no other role is known before it can read the catalogue. All that
    // it does to the extension's tables it does as their owner (`connected`).
    background::connect_to(database);
    go_by_own_settings();
    if becomes_worker() {
        turn::enter(is_by_hand);
        serve(database);
    }
}

/// Take the lock of the worker of this database, for as long as the process lasts. False if there
/// is a worker. Tries three times, because a session that asks whether there is a worker
/// ([`locks::has_worker`]) holds the lock for a moment.
fn becomes_worker() -> bool {
    for _ in 0..3 {
        if in_transaction("start", || Ok(locks::try_be_worker())) == Some(true) {
            return true;
        }
        pause(100);
    }
    false
}

fn go_by_own_settings() {
    // None of them needs a transaction to be checked.
    for (name, value) in SETTINGS {
        guc::override_with(name, value);
    }
}

/// Sweep in rounds, until the database is not to be served any more, a command wants it for itself,
/// or the launcher needs the worker elsewhere.
fn serve(database: pg_sys::Oid) {
    let mut agenda = Agenda::default();
    let began = clock::now();
    let mut stay = STAY;
    if let Some((left, unfinished)) = turn::last() {
        agenda.resume(&left);
        stay = (STAY << unfinished.min(8)).min(LONGEST_STAY);
    }
    let (mut next, mut looked_at, mut served_at) = (began, began, began);
    let (mut last, mut is_served) = (began, true);
    loop {
        if is_wanted_alone(database) {
            return turn::leave(agenda.left());
        }
        let now = clock::now();
        // The clock was set back.
        if now < last {
            (next, looked_at, served_at) = (now, now, now);
        }
        last = now;
        if now >= next.min(turn::timer()) {
            match round(database, &mut agenda) {
                Ok(due) => {
                    (next, served_at, is_served) = (due, now, true);
                    turn::note_sweep(clock::now());
                }
                Err(NotServed) => (next, is_served) = (now + LONGEST_PAUSE, false),
            }
            looked_at = clock::now();
            show("");
            if !is_served && (turn::is_asked() || now - served_at > LINGER) {
                if registry::remove_if_unchanged(database, agenda.seen()) {
                    return;
                }
                next = looked_at;
            } else if turn::is_asked() {
                if !agenda.goes_on() || !(0..stay).contains(&(looked_at - began)) {
                    return turn::leave(agenda.left());
                }
                next = looked_at;
            }
        } else if turn::is_asked() {
            if is_served {
                return turn::leave(agenda.left());
            }
            // The extension may have come since the last round.
            next = now;
        } else if !agenda.is_told() && now - looked_at >= TIMERS {
            if agenda.has_changed() {
                let queues = queues().ok().flatten().unwrap_or_default();
                next = next_timer(&queues).map_or(next, |timer| next.min(timer));
            }
            looked_at = now;
        }
        let next = next.min(turn::timer());
        if pause((next - clock::now()).clamp(1_000, LONGEST_PAUSE) / 1_000) {
            // The configuration may say that the database is not to be served.
            agenda.forget_queues();
        }
    }
}

/// Every queue. None where looking them up is an error, which is in the log then.
fn queues() -> std::result::Result<Option<Vec<Queue>>, NotServed> {
    let queues = in_transaction("start", || match is_installed() && is_served() {
        true => connected(housekeeping::queues).map(Some),
        false => Ok(None),
    });
    match queues {
        Some(None) => Err(NotServed),
        Some(Some(queues)) => Ok(Some(queues)),
        None => Ok(None),
    }
}

/// One round: every task, for each queue that is to be visited one step, or as many as it has work
/// for and its time allows. Returns when to come again.
fn round(database: pg_sys::Oid, agenda: &mut Agenda) -> std::result::Result<Moment, NotServed> {
    let began = clock::now();
    agenda.look_for_prepared(|| in_transaction("start", any_prepared).flatten());
    if agenda.begin_round() {
        sweep(database, agenda)?;
        if is_wanted_alone(database) {
            return Ok(began);
        }
    } else if agenda.has_changed() && is_still_served() == Some(false) {
        agenda.forget_queues();
        return Ok(began);
    }
    let next = began + settings::sweep_interval();
    // A timer that is due even now is one that another transaction has locked.
    let soon = clock::now() + LONGEST_PAUSE;
    let timers = agenda.idle_until(Task::EachQueue(QueueTask::Timers));
    Ok(next.min(if timers <= clock::now() { soon } else { timers }))
}

/// Whether a transaction of this database is prepared. None without the extension.
fn any_prepared() -> Result<Option<bool>> {
    if is_installed() { connected(prepared::any).map(Some) } else { Ok(None) }
}

/// Reads no table: the catalogue says whether the extension is there, and PostgreSQL tells of its
/// changes.
fn is_still_served() -> Option<bool> {
    in_transaction("start", || Ok(is_installed() && is_served()))
}

/// Visit what is to be visited.
fn sweep(database: pg_sys::Oid, agenda: &mut Agenda) -> std::result::Result<(), NotServed> {
    if agenda.queues().is_none()
        && let Some(queues) = queues()?
    {
        agenda.set_queues(queues);
    }
    let queues = agenda.queues().unwrap_or_default();
    let mut has_visited = false;
    for task in Task::all() {
        let mut parts = task.parts(&queues);
        parts.retain(|part| agenda.is_to_be_visited(task, *part));
        if parts.len() > FEW {
            pass_by_others(task, &mut parts, agenda);
        }
        if parts.is_empty() {
            continue;
        }
        has_visited = true;
        show(task.name());
        visit(task, &parts, agenda, database);
        if is_wanted_alone(database) {
            return Ok(());
        }
    }
    agenda.end_round();
    if has_visited {
        // So that autovacuum learns of what was deleted.
        background::report_statistics();
    }
    Ok(())
}

/// Take the parts off the list in which the task has nothing to do, by one look at all of them.
fn pass_by_others(task: Task, parts: &mut Vec<TaskPart<'_>>, agenda: &mut Agenda) {
    let queues = in_transaction(task.name(), || connected(|| Ok(task.queues_at_issue()))).flatten();
    let Some(queues) = queues.map(HashSet::<i64>::from_iter) else { return };
    parts.retain(|part| {
        let is_at_issue = queues.contains(&part.queue());
        if !is_at_issue {
            agenda.pass_by(task, *part);
        }
        is_at_issue
    });
}

/// Visit these parts of a task. Each has one step, however late it is.
fn visit(task: Task, parts: &[TaskPart<'_>], agenda: &mut Agenda, database: pg_sys::Oid) {
    let time = if turn::is_asked() { HASTY_TASK_TIME } else { TASK_TIME };
    let deadline = clock::now() + time;
    let mut at = 0;
    while at < parts.len() {
        let mut last = at;
        let visited = in_transaction(task.name(), || {
            connected(|| {
                let end = clock::now() + LONGEST_TRANSACTION;
                while let Some(part) = parts.get(at) {
                    last = at;
                    agenda.begin_visit(task, *part);
                    let step = part.step(Bookmark::InMemory)?;
                    agenda.end_visit(task, *part, &step);
                    if has_written() {
                        agenda.note_write();
                    }
                    let stays = step.goes_on && clock::now() < deadline;
                    at += usize::from(!stays);
                    if step.goes_on || has_written() || clock::now() > end {
                        break;
                    }
                    pgrx::check_for_interrupts!();
                }
                Ok(())
            })
        });
        // The part in which there was an error has its turn again in the next round.
        if visited.is_none() {
            if let Some(part) = parts.get(last) {
                agenda.fail_visit(task, *part);
            }
            at = last + 1;
        }
        if is_wanted_alone(database) {
            return;
        }
        pgrx::check_for_interrupts!();
    }
}

fn next_timer(queues: &[Queue]) -> Option<Moment> {
    in_transaction("timers", || connected(|| housekeeping::next_timer(queues))).flatten()
}

/// Let pg_stat_activity show this task; idle where it is empty.
fn show(task: &str) {
    match task {
        "" => background::show_activity(""),
        task => background::show_activity(&format!("queen_mq: {task}")),
    }
}
