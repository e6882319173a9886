//! The worker of one database.

use std::ffi::{CStr, CString};
use std::panic::AssertUnwindSafe;

use pgrx::PgTryBuilder;
use pgrx::pg_sys::panic::CaughtError;
use pgrx::prelude::*;

use super::{pause, registry, take_signals};
use crate::broker::housekeeping::Task;
use crate::error::Result;
use crate::pg::clock::{self, Moment, SECOND};
use crate::pg::error_context;
use crate::pg::raise::OrRaise;
use crate::pg::spi::{ActiveSnapshot, connected};
use crate::pg::sqlstate;
use crate::settings;
use crate::store::locks;
use crate::store::queue::{self, Queue};
use crate::store::timer;

/// It looks this often whether somebody wants to drop its database.
const LONGEST_PAUSE: i64 = SECOND / 2;
/// Where a round is further off, timers are looked for this often: they may have been scheduled since.
const TIMERS: i64 = SECOND;
/// One task of one round; the rest is done in the next.
const ROUND: i64 = SECOND / 4;
/// Settings of the worker, whatever ALTER DATABASE or ALTER ROLE … SET gives other sessions. Its
/// statements wait for a lock no longer than `lock_timeout`, and leave what is locked to the next
/// round.
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

/// Nothing is to be done here: the extension is not in this database, or it is not to be served.
struct Unwanted;

/// It stays for as long as this then: a transaction that creates the extension, and uses it at once,
/// is seen only when it has committed.
const LINGER: i64 = 5 * SECOND;

/// The worker's main function. Its argument is the database.
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

/// Whether this process is the worker of its database from here on. Where another process only asks
/// whether there is a worker, it has the lock for a moment.
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

fn serve(database: pg_sys::Oid) {
    let mut next = clock::now();
    let mut looked_at = next;
    let mut wanted_at = next;
    loop {
        if is_wanted_alone(database) {
            return;
        }
        let now = clock::now();
        if now >= next {
            match round(database) {
                Ok(due) => (next, wanted_at) = (due, now),
                Err(Unwanted) if now - wanted_at > LINGER => return,
                Err(Unwanted) => next = now + LONGEST_PAUSE,
            }
            looked_at = clock::now();
            show("");
        } else if now - looked_at >= TIMERS {
            let queues = queues().unwrap_or_default();
            next = next_timer(&queues).map_or(next, |timer| next.min(timer));
            looked_at = now;
        }
        pause((next - clock::now()).clamp(1_000, LONGEST_PAUSE) / 1_000);
    }
}

/// The queues, unless something is wrong with them.
fn queues() -> std::result::Result<Vec<Queue>, Unwanted> {
    let queues = in_transaction("start", || match is_installed() && is_served() {
        true => connected(|| ActiveSnapshot::new_snapshot(queue::all)).map(Some),
        false => Ok(None),
    });
    match queues {
        Some(None) => Err(Unwanted),
        Some(Some(queues)) => Ok(queues),
        None => Ok(Vec::new()),
    }
}

/// Every task once, or as often as there is more to do within its time. When to come again: at once
/// if somebody wants the database for themselves.
fn round(database: pg_sys::Oid) -> std::result::Result<Moment, Unwanted> {
    let began = clock::now();
    let queues = queues()?;
    for task in Task::all() {
        show(task.name());
        let deadline = clock::now() + ROUND;
        // Each queue has one step, however late it is.
        let works: Vec<Option<&Queue>> = match task.is_of_queue() {
            true => queues.iter().map(Some).collect(),
            false => vec![None],
        };
        for queue in works {
            let step = || queue.map_or_else(|| task.step(), |queue| task.step_of(queue));
            while in_transaction(task.name(), || connected(step)).is_some_and(|done| done.goes_on)
                && clock::now() < deadline
                && !is_wanted_alone(database)
            {
                pgrx::check_for_interrupts!();
            }
            if is_wanted_alone(database) {
                return Ok(began);
            }
        }
    }
    // So that autovacuum learns of what was deleted.
    // SAFETY: outside of a transaction, as it has to be.
    unsafe { pg_sys::pgstat_report_stat(true) };
    let next = began + settings::sweep_interval();
    // One that is due now is in somebody's hands.
    let soon = clock::now() + LONGEST_PAUSE;
    Ok(next_timer(&queues).map_or(next, |timer| match timer <= clock::now() {
        true => next.min(soon),
        false => next.min(timer),
    }))
}

fn next_timer(queues: &[Queue]) -> Option<Moment> {
    let next =
        |under: &ActiveSnapshot| Ok(queues.iter().filter_map(|q| timer::next(q.id, under)).min());
    in_transaction("timers", || connected(|| ActiveSnapshot::new_snapshot(next))).flatten()
}

/// Run `body` in a transaction of its own. What goes wrong in it is a WARNING, and the worker goes
/// on with the rest.
fn in_transaction<T>(what: &str, body: impl FnOnce() -> Result<T>) -> Option<T> {
    // SAFETY: a transaction is begun where none is, and ended on both ways out.
    unsafe {
        pg_sys::SetCurrentStatementStartTimestamp();
        pg_sys::StartTransactionCommand();
        pg_sys::PushActiveSnapshot(pg_sys::GetTransactionSnapshot());
        let commit = PgTryBuilder::new(AssertUnwindSafe(|| {
            let value = body().or_raise();
            pg_sys::PopActiveSnapshot();
            pg_sys::CommitTransactionCommand();
            Some(value)
        }))
        .catch_others(|error| {
            sqlstate::forget();
            tell(what, &error);
            None
        });
        let committed = error_context::restored(|| commit.execute());
        if committed.is_none() {
            pg_sys::AbortCurrentTransaction();
        }
        committed
    }
}

fn tell(what: &str, error: &CaughtError) {
    let (CaughtError::PostgresError(report)
    | CaughtError::ErrorReport(report)
    | CaughtError::RustPanic { ereport: report, .. }) = error;
    match report.sql_error_code() {
        // Somebody is at it: the next round will do it.
        PgSqlErrorCode::ERRCODE_LOCK_NOT_AVAILABLE
        | PgSqlErrorCode::ERRCODE_T_R_SERIALIZATION_FAILURE
        | PgSqlErrorCode::ERRCODE_T_R_DEADLOCK_DETECTED => (),
        // The extension is being dropped, which the next round sees.
        PgSqlErrorCode::ERRCODE_UNDEFINED_TABLE
        | PgSqlErrorCode::ERRCODE_UNDEFINED_OBJECT
        | PgSqlErrorCode::ERRCODE_INVALID_SCHEMA_NAME => {
            log!("queen_mq worker, {what}: {}", report.message());
        }
        _ => warning!("queen_mq worker, {what}: {}", report.message()),
    }
}

/// What pg_stat_activity shows.
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

/// The setting may have changed since the launcher looked.
fn is_served() -> bool {
    // SAFETY: a look-up in the catalogue, in a transaction; the name is a copy.
    unsafe {
        let name = pg_sys::get_database_name(pg_sys::MyDatabaseId);
        !name.is_null() && settings::serves(&CStr::from_ptr(name).to_string_lossy())
    }
}

/// Whether somebody is dropping or copying the database, and waits for it to be left: they hold a
/// lock on it that a connection would wait for.
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
