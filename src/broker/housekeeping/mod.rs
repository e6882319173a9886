//! What a sweep is made of: its tasks, their order, and the steps in which they are done.
//!
//! `queen_sweep` does all of them in its caller's transaction, and the worker of a database does
//! them in transactions of its own. No answer of another function depends on a sweep. A sweep keeps
//! tables small, moves due timers into the log of a queue that no consumer pops from, puts back
//! what expired leases hold, and deletes messages by their age.
//!
//! A step ends soon, and says whether there is more to do at once. It waits for no lock: what
//! another transaction has locked is left for a later step. So any number of sweeps may run side by
//! side.
//!
//! A step of the worker looks before it locks or writes, so a transaction in which there was
//! nothing to do has no transaction id. It also says until when it need not look again while no
//! table changes.

mod expired_leases;
pub mod fold_claims;
mod removed_queues;
mod retention;
mod timers;

use crate::broker::lookup;
use crate::error::Result;
use crate::pg::clock::{self, Moment};
use crate::pg::random::random;
use crate::pg::snapshot::ActiveSnapshot;
use crate::store::queue::Queue;
use crate::store::sweep::{self, PAGED_TABLES, PagedTable};
pub use crate::store::sweep::{Bookmark, SweepStep};
use crate::store::{claim, discovery, grants, group, locks, timer};

/// A task of a sweep.
#[derive(Clone, Copy)]
pub enum Task {
    EachQueue(QueueTask),
    Table(TableTask),
}

/// A task that is done queue by queue.
#[derive(Clone, Copy)]
pub enum QueueTask {
    Timers,
    Leases,
    Claims,
    Messages,
}

/// A task that deletes rows of one table, whatever queue they are of.
#[derive(Clone, Copy)]
pub enum TableTask {
    Markers,
    Paged(&'static PagedTable),
    RemovedQueues,
}

/// What the worker does of a task in one transaction.
#[derive(Clone, Copy)]
pub enum TaskPart<'a> {
    Queue(QueueTask, &'a Queue),
    Table(TableTask),
}

impl Task {
    /// Every task, the most urgent one first.
    pub fn all() -> Vec<Task> {
        let first = [
            Task::EachQueue(QueueTask::Timers),
            Task::EachQueue(QueueTask::Leases),
            Task::Table(TableTask::Markers),
            Task::EachQueue(QueueTask::Claims),
            Task::EachQueue(QueueTask::Messages),
        ];
        let paged = PAGED_TABLES.iter().map(|table| Task::Table(TableTask::Paged(table)));
        first.into_iter().chain(paged).chain([Task::Table(TableTask::RemovedQueues)]).collect()
    }

    /// The name under which `queen_sweep` reports the task.
    pub fn name(self) -> &'static str {
        match self {
            Task::EachQueue(QueueTask::Timers) => "timers",
            Task::EachQueue(QueueTask::Leases) => "leases",
            Task::EachQueue(QueueTask::Claims) => "claims",
            Task::EachQueue(QueueTask::Messages) => "messages",
            Task::Table(TableTask::Markers) => "markers",
            Task::Table(TableTask::Paged(table)) => table.task,
            Task::Table(TableTask::RemovedQueues) => "removed_queues",
        }
    }

    /// The ids of the queues outside of which the task has nothing to do. None if all have to be
    /// looked at one by one.
    pub fn queues_at_issue(self) -> Option<Vec<i64>> {
        match self {
            Task::EachQueue(QueueTask::Timers) => Some(timer::queues()),
            Task::EachQueue(QueueTask::Leases) => {
                Some(group::queues_of(discovery::groups_with_moments()))
            }
            Task::EachQueue(QueueTask::Claims) => Some(group::queues_of(claim::groups())),
            Task::EachQueue(QueueTask::Messages) | Task::Table(_) => None,
        }
    }

    /// Whether the worker may leave the task for up to half a minute where it takes long and finds
    /// nothing: no answer of a call, and no delivery, comes later for it.
    pub fn may_rest(self) -> bool {
        !matches!(
            self,
            Task::EachQueue(QueueTask::Timers | QueueTask::Leases)
                | Task::Table(TableTask::Markers)
        )
    }

    /// One step of the task, over all queues, in the transaction of a call of `queen_sweep`.
    pub fn step(self) -> Result<SweepStep> {
        let queues = match self {
            Task::EachQueue(_) => queues_from_anywhere()?,
            Task::Table(_) => Vec::new(),
        };
        let mut all = SweepStep::default();
        for part in self.parts(&queues) {
            let done = part.step(Bookmark::InTable)?;
            all.removed += done.removed;
            all.goes_on |= done.goes_on;
            pgrx::check_for_interrupts!();
        }
        Ok(all)
    }

    /// The parts into which the task falls: one for each of these queues, or a single one.
    pub fn parts(self, queues: &[Queue]) -> Vec<TaskPart<'_>> {
        match self {
            Task::EachQueue(task) => {
                queues.iter().map(|queue| TaskPart::Queue(task, queue)).collect()
            }
            Task::Table(task) => vec![TaskPart::Table(task)],
        }
    }
}

impl TaskPart<'_> {
    /// One step of this part.
    pub fn step(self, bookmark: Bookmark) -> Result<SweepStep> {
        match self {
            TaskPart::Queue(task, queue) => task.step(queue, bookmark),
            TaskPart::Table(task) => task.step(bookmark),
        }
    }

    /// The id of the part's queue; 0 for a task that has a single part.
    pub fn queue(self) -> i64 {
        match self {
            TaskPart::Queue(_, queue) => queue.id,
            TaskPart::Table(_) => 0,
        }
    }
}

impl QueueTask {
    fn step(self, queue: &Queue, bookmark: Bookmark) -> Result<SweepStep> {
        match self {
            QueueTask::Timers => timers::step(queue),
            QueueTask::Leases => expired_leases::step(queue, clock::now(), bookmark),
            QueueTask::Claims => fold_claims::step(queue),
            QueueTask::Messages => retention::step(queue, bookmark),
        }
    }
}

impl TableTask {
    fn step(self, bookmark: Bookmark) -> Result<SweepStep> {
        let now = clock::now();
        match self {
            TableTask::Markers => {
                ActiveSnapshot::new_snapshot(|under| Ok(sweep::markers(now, bookmark, under)))
            }
            TableTask::Paged(table) => Ok(table.step(now, bookmark)),
            TableTask::RemovedQueues => {
                sweep::owner();
                grants::follow_roles();
                removed_queues::step()
            }
        }
    }
}

/// Every queue there is.
pub fn queues() -> Result<Vec<Queue>> {
    ActiveSnapshot::new_snapshot(lookup::all_queues)
}

/// Every queue there is. Where they are more than the locks that the transaction may still take
/// without need, the first one is a random one: otherwise the queues whose names come first would
/// use up the locks in each sweep.
fn queues_from_anywhere() -> Result<Vec<Queue>> {
    let mut queues = queues()?;
    if queues.len() > locks::spare() {
        let first = random() as usize % queues.len();
        queues.rotate_left(first);
    }
    Ok(queues)
}

/// The moment of the next timer of these queues, which may be over.
pub fn next_timer(queues: &[Queue]) -> Result<Option<Moment>> {
    ActiveSnapshot::new_snapshot(|under| {
        Ok(queues.iter().filter_map(|queue| lookup::next_timer(queue, under)).min())
    })
}
