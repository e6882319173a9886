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
use std::ffi::{CStr, CString};

use pgrx::prelude::*;

use super::agenda::Agenda;
use super::transaction::{has_written, in_transaction};
use super::{pause, registry, take_signals};
use crate::broker::housekeeping::{self, Bookmark, QueueTask, Task, TaskPart};
use crate::pg::clock::{self, Moment, SECOND};
use crate::pg::spi::connected;
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

/// The worker's main function. Its argument is the OID of the database.
#[pg_guard]
#[unsafe(no_mangle)]
pub extern "C-unwind" fn queen_mq_worker(database: pg_sys::Datum) {
    let database = pg_sys::Oid::from(database.value() as u32);
    take_signals();
    // SAFETY: a database that is gone ends the process. The worker connects as the superuser of the
    // cluster's creation, because no other role is known before it can read the catalogue. All that
    // it does to the extension's tables it does as their owner (`connected`).
    unsafe {
        pg_sys::BackgroundWorkerInitializeConnectionByOid(database, pg_sys::InvalidOid, 0);
    }
    go_by_own_settings();
    if becomes_worker() {
        serve(database);
    }
    registry::remove(database);
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
    let (context, source) = (pg_sys::GucContext::PGC_SUSET, pg_sys::GucSource::PGC_S_OVERRIDE);
    for (name, value) in SETTINGS {
        // SAFETY: NUL-terminated constants; none of the settings needs a transaction to be checked.
        unsafe { pg_sys::SetConfigOption(name.as_ptr(), value.as_ptr(), context, source) };
    }
}

/// Sweep in rounds, until the database is not to be served any more, or a command wants it for
/// itself.
fn serve(database: pg_sys::Oid) {
    let mut agenda = Agenda::default();
    let mut next = clock::now();
    let mut looked_at = next;
    let mut served_at = next;
    loop {
        if is_wanted_alone(database) {
            return;
        }
        let now = clock::now();
        if now >= next {
            match round(database, &mut agenda) {
                Ok(due) => (next, served_at) = (due, now),
                Err(NotServed) if now - served_at > LINGER => return,
                Err(NotServed) => next = now + LONGEST_PAUSE,
            }
            looked_at = clock::now();
            show("");
        } else if now - looked_at >= TIMERS {
            if agenda.has_changed() {
                let queues = queues().ok().flatten().unwrap_or_default();
                next = next_timer(&queues).map_or(next, |timer| next.min(timer));
            }
            looked_at = now;
        }
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
    if agenda.begin_round() {
        sweep(database, agenda)?;
        if is_wanted_alone(database) {
            return Ok(began);
        }
    }
    let next = began + settings::sweep_interval();
    // A timer that is due even now is one that another transaction has locked.
    let soon = clock::now() + LONGEST_PAUSE;
    let timers = agenda.idle_until(Task::EachQueue(QueueTask::Timers));
    Ok(next.min(if timers <= clock::now() { soon } else { timers }))
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
            break;
        }
    }
    agenda.end_round();
    if has_visited {
        // So that autovacuum learns of what was deleted.
        // SAFETY: outside of a transaction, as it has to be.
        unsafe { pg_sys::pgstat_report_stat(true) };
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
    let deadline = clock::now() + TASK_TIME;
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
    let (state, text) = match task {
        "" => (pg_sys::BackendState::STATE_IDLE, String::new()),
        task => (pg_sys::BackendState::STATE_RUNNING, format!("queen_mq: {task}")),
    };
    if let Ok(text) = CString::new(text) {
        // SAFETY: copies the text.
        unsafe { pg_sys::pgstat_report_activity(state, text.as_ptr()) };
    }
}

fn is_installed() -> bool {
    // SAFETY: a look-up in the catalogue, in a transaction.
    unsafe { pg_sys::get_extension_oid(c"queen_mq".as_ptr(), true) != pg_sys::InvalidOid }
}

/// Whether the settings say that this database is to be served. They may have changed since the
/// launcher looked.
fn is_served() -> bool {
    // SAFETY: a look-up in the catalogue, in a transaction; the name is a copy.
    unsafe {
        let name = pg_sys::get_database_name(pg_sys::MyDatabaseId);
        !name.is_null() && settings::serves(&CStr::from_ptr(name).to_string_lossy())
    }
}

/// Whether a command that drops or copies the database waits for other sessions to leave it. Such a
/// command holds a lock on the database that a new connection would wait for.
fn is_wanted_alone(database: pg_sys::Oid) -> bool {
    let tag = pg_sys::LOCKTAG {
        locktag_field2: pg_sys::DatabaseRelationId.to_u32(),
        locktag_field3: database.to_u32(),
        locktag_type: pg_sys::LockTagType::LOCKTAG_OBJECT as u8,
        locktag_lockmethodid: pg_sys::DEFAULT_LOCKMETHOD as u8,
        ..Default::default()
    };
    let mode = pg_sys::RowExclusiveLock as i32;
    // SAFETY: a session-level lock that is given back at once.
    unsafe {
        let got = pg_sys::LockAcquire(&tag, mode, true, true);
        if got == pg_sys::LockAcquireResult::LOCKACQUIRE_NOT_AVAIL {
            return true;
        }
        pg_sys::LockRelease(&tag, mode, true);
    }
    false
}
