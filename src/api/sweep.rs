//! `queen_sweep`, `queen_worker_start`: sweep, from any scheduler or by a background worker.

use pgrx::prelude::*;

use super::args;
use super::call::Call;
use crate::broker::housekeeping::Task;
use crate::broker::rights;
use crate::error::Result;
use crate::pg::binary_upgrade::refuse_under_binary_upgrade;
use crate::pg::clock;
use crate::pg::own_commits;
use crate::pg::result_rows::TableIterator;
use crate::worker;

/// Do what the background worker does, for up to `max_ms` (1 to 60,000) milliseconds: move due
/// timers into the log, put back what expired leases hold, delete expired markers, messages by
/// their age, old transaction_ids and receipts, superseded states. Returns what each task removed
/// or moved. Everything works without it; tables grow.
///
/// Errors: 22023; 42501 unless the caller is the owner of the extension, a member of that role or a
/// superuser; 40001 in REPEATABLE READ.
///
/// Transaction: takes effect when the caller commits, so commit at once. What another transaction
/// has locked is left for the next time; several sweeps may run side by side.
#[pg_extern]
fn queen_sweep(
    call: Call,
    max_ms: default!(Option<i32>, "1000"),
) -> TableIterator<'static, (name!(task, &'static str), name!(removed, i64))> {
    TableIterator::new(call.answer(|| {
        let max = args::within("max_ms", max_ms.unwrap_or(1000), 1, 60_000)?;
        call.write(|| rights::require_owner("queen_sweep"))?;
        sweep(&call, clock::now() + i64::from(max) * 1000)
    }))
}

/// Start a background worker for this database, until the server is restarted: what
/// `shared_preload_libraries` would start by itself. Returns false if one is running already, or if
/// the server has no background worker to give (`max_worker_processes`).
///
/// Errors: 42501 as `queen_sweep`; 55000 in a server that pg_upgrade has started.
///
/// Transaction: takes effect at once, whatever becomes of the transaction.
#[pg_extern]
fn queen_worker_start(call: Call) -> bool {
    call.answer(|| {
        call.need_writable()?;
        call.read(|| rights::require_owner("queen_worker_start"))?;
        Ok(worker::start_here())
    })
}

/// A function that lives beside the tables: the script of CREATE EXTENSION calls it.
#[pg_schema]
pub mod queen_mq {
    use super::*;

    /// Announce this database to the launcher, and send a WARNING if the server has no background
    /// worker for it. Waits for the launcher's answer, for up to a second. Returns whether there is
    /// a worker for the database, at all times or in turn with others; false without preload, which
    /// is no reason for a WARNING.
    ///
    /// Errors: 25006; 55000 in a server that pg_upgrade has started.
    ///
    /// Transaction: takes effect at once, whatever becomes of the transaction.
    #[pg_extern(requires = ["tables"])]
    fn has_worker(call: Call) -> bool {
        call.answer(|| {
            call.need_writable()?;
            refuse_under_binary_upgrade()?;
            worker::announce();
            // The commit announces the database again: until then a worker finds nothing in it.
            own_commits::note_write();
            let service = worker::wait_for_service();
            if let Some(shortage) = service.and_then(|service| service.shortage) {
                shortage.warn();
            }
            Ok(service.is_some_and(|service| service.is_served))
        })
    }
}

/// Run each task, step by step, until it has nothing left or the deadline has passed.
fn sweep(call: &Call, deadline: clock::Moment) -> Result<Vec<(&'static str, i64)>> {
    let mut removed: Vec<(&'static str, i64)> = Vec::new();
    for task in Task::all() {
        let mut count = 0;
        while clock::now() < deadline {
            // Each step has an SPI connection of its own, which frees the memory of the step.
            let step = call.write(|| task.step())?;
            count += step.removed as i64;
            if !step.goes_on {
                break;
            }
            pgrx::check_for_interrupts!();
        }
        removed.push((task.name(), count));
    }
    let now = clock::now();
    if now < deadline {
        worker::note_sweep(now);
    }
    Ok(removed)
}
