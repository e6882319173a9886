//! Tidying up, in steps. Everything is right without it; it keeps tables small, moves timers on
//! where nobody pops, and deletes messages by their age.

mod expired_leases;
pub mod fold_claims;
mod retention;

use crate::broker::push::delayed;
use crate::error::Result;
use crate::pg::clock;
use crate::pg::datum::random;
use crate::pg::spi::ActiveSnapshot;
use crate::store::queue::{self, Queue};
use crate::store::sweep::{self, PASSES, SweepStep};
use crate::store::{locks, timer};

/// Timers, or leases, dealt with in one step.
const STEP: usize = 500;

/// What a sweep is made of, in the order of urgency.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Task {
    Timers,
    Leases,
    Markers,
    Claims,
    Messages,
    /// A table that is passed page by page.
    Pass(usize),
    Orphans,
}

impl Task {
    pub fn all() -> Vec<Task> {
        let passes = (0..PASSES.len()).map(Task::Pass);
        [Task::Timers, Task::Leases, Task::Markers, Task::Claims, Task::Messages]
            .into_iter()
            .chain(passes)
            .chain([Task::Orphans])
            .collect()
    }

    pub fn name(self) -> &'static str {
        match self {
            Task::Timers => "timers",
            Task::Leases => "leases",
            Task::Markers => "markers",
            Task::Claims => "claims",
            Task::Messages => "messages",
            Task::Pass(place) => PASSES[place].task,
            Task::Orphans => "removed_queues",
        }
    }

    /// Whether it is done queue by queue.
    pub fn is_of_queue(self) -> bool {
        matches!(self, Task::Timers | Task::Leases | Task::Claims | Task::Messages)
    }

    /// One bounded step, over all queues.
    pub fn step(self) -> Result<SweepStep> {
        let now = clock::now();
        match self {
            Task::Markers => Ok(sweep::markers(now)),
            Task::Pass(place) => Ok(PASSES[place].step(now)),
            Task::Orphans => {
                sweep::owner();
                Ok(sweep::orphans())
            }
            Task::Timers | Task::Leases | Task::Claims | Task::Messages => {
                let mut all = SweepStep::default();
                let mut queues = ActiveSnapshot::new_snapshot(queue::all)?;
                // Start at a random queue: one transaction may take a bounded number of locks, and
                // the first queues would always use it up.
                if queues.len() > locks::spare() {
                    let first = random() as usize % queues.len();
                    queues.rotate_left(first);
                }
                for queue in queues {
                    let done = self.step_of(&queue)?;
                    all.removed += done.removed;
                    all.goes_on |= done.goes_on;
                    pgrx::check_for_interrupts!();
                }
                Ok(all)
            }
        }
    }

    /// One bounded step on one queue.
    pub fn step_of(self, queue: &Queue) -> Result<SweepStep> {
        match self {
            Task::Timers => {
                let next = ActiveSnapshot::new_snapshot(|under| Ok(timer::next(queue.id, under)))?;
                let moved = delayed::deliver_due(queue, next, STEP)?;
                Ok(SweepStep { removed: moved as u64, goes_on: moved == STEP })
            }
            Task::Leases => expired_leases::reclaim(queue, clock::now()),
            Task::Claims => fold_claims::step(queue),
            Task::Messages => retention::step(queue),
            _ => Ok(SweepStep::default()),
        }
    }
}
