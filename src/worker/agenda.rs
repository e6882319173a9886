//! What a worker remembers of its last rounds: which parts of which tasks are to be visited in the
//! next one?
//!
//! A part that has found nothing to do is visited again when a transaction has ended that may have
//! written something ([`completions`]), or when something in it becomes due. Where looking for work
//! takes long and finds none, the worker also rests in between, as long as the look was long.

use std::collections::{HashMap, HashSet};
use std::mem;
use std::rc::Rc;

use crate::broker::housekeeping::{SweepStep, Task, TaskPart};
use crate::pg::clock::{self, Moment, SECOND};
use crate::pg::completions;
use crate::store::queue::Queue;

/// A look that has found nothing is followed by a rest of so many times its own time.
const REST: i64 = 100;
/// The longest rest.
const LONGEST_REST: i64 = 30 * SECOND;

/// A part of a task: the task's name and the queue's id.
type PartName = (&'static str, i64);

/// The memory of a worker.
#[derive(Default)]
pub struct Agenda {
    /// The count of completions before the present round.
    count: u64,
    /// All queues, and the count of completions before they were looked up.
    queues: Rc<Vec<Queue>>,
    queues_of: Option<u64>,
    parts: HashMap<PartName, LastVisits>,
    /// While the count stays as it is, no part is to be visited before this moment.
    idle_until: Moment,
}

/// What is remembered of a part.
#[derive(Default)]
struct LastVisits {
    /// While the part looks everywhere, in one step or in several: the count before the first.
    looking_since: Option<u64>,
    /// When it last had: the count before that.
    looked: Option<u64>,
    /// There is nothing to do before this moment, if the count is still the one of `looked`.
    idle_until: Moment,
    /// When the present visit began.
    visited_at: Moment,
    /// For how long the part has looked and found nothing.
    fruitless: i64,
    rests_until: Moment,
}

impl Agenda {
    /// Begin a round. False if there is nothing to do in it.
    pub fn begin_round(&mut self) -> bool {
        let before = mem::replace(&mut self.count, completions::count());
        self.count != before
            || self.queues_of != Some(self.count)
            || clock::now() >= self.idle_until
    }

    /// After the last visit of a round.
    pub fn end_round(&mut self) {
        let next = |entry: &LastVisits| match entry.looked == Some(self.count) {
            true => entry.idle_until.max(entry.rests_until),
            false => entry.rests_until,
        };
        self.idle_until = self.parts.values().map(next).min().unwrap_or(Moment::MAX);
    }

    /// Whether a transaction has ended since the round began.
    pub fn has_changed(&self) -> bool {
        self.count != completions::count()
    }

    /// The queues as of this round. None: they have to be looked up.
    pub fn queues(&self) -> Option<Rc<Vec<Queue>>> {
        (self.queues_of == Some(self.count)).then(|| self.queues.clone())
    }

    /// These are the queues as of this round.
    pub fn set_queues(&mut self, queues: Vec<Queue>) {
        let ids: HashSet<i64> = queues.iter().map(|queue| queue.id).collect();
        self.parts.retain(|(_, queue), _| *queue == 0 || ids.contains(queue));
        self.queues = Rc::new(queues);
        self.queues_of = Some(self.count);
    }

    /// The queues are to be looked up again in the next round.
    pub fn forget_queues(&mut self) {
        self.queues_of = None;
    }

    pub fn is_to_be_visited(&self, task: Task, part: TaskPart<'_>) -> bool {
        let Some(entry) = self.parts.get(&name_of(task, part)) else { return true };
        let now = clock::now();
        let is_unchanged = entry.looked == Some(self.count);
        now >= entry.rests_until && (now >= entry.idle_until || !is_unchanged)
    }

    /// Before the transaction takes the snapshot of a step.
    pub fn begin_visit(&mut self, task: Task, part: TaskPart<'_>) {
        let entry = self.parts.entry(name_of(task, part)).or_default();
        entry.looking_since.get_or_insert(self.count);
        entry.looked = None;
        entry.idle_until = 0;
        entry.visited_at = clock::now();
    }

    /// After an error in the step, or in the commit that was to follow: nothing is known.
    pub fn fail_visit(&mut self, task: Task, part: TaskPart<'_>) {
        if let Some(entry) = self.parts.get_mut(&name_of(task, part)) {
            *entry = LastVisits::default();
        }
    }

    /// After the step.
    pub fn end_visit(&mut self, task: Task, part: TaskPart<'_>, step: &SweepStep) {
        let Some(entry) = self.parts.get_mut(&name_of(task, part)) else { return };
        if let Some(until) = step.idle_until {
            entry.looked = entry.looking_since.take();
            entry.idle_until = until;
        }
        let now = clock::now();
        match step.removed {
            0 => entry.fruitless += now - entry.visited_at,
            _ => entry.fruitless = 0,
        }
        if !step.goes_on && task.may_rest() {
            let rest = (mem::take(&mut entry.fruitless) * REST).min(LONGEST_REST);
            entry.rests_until = now + rest;
        }
    }

    /// Note of a part without a visit that it has nothing to do as long as nothing changes.
    pub fn pass_by(&mut self, task: Task, part: TaskPart<'_>) {
        self.begin_visit(task, part);
        self.end_visit(task, part, &SweepStep::idle(Moment::MAX));
    }

    /// The first moment at which a part of this task has something to do, as far as is known.
    pub fn idle_until(&self, task: Task) -> Moment {
        let of_task = self.parts.iter().filter(|((name, _), _)| *name == task.name());
        of_task.map(|(_, entry)| entry.idle_until).min().unwrap_or(Moment::MAX)
    }
}

fn name_of(task: Task, part: TaskPart<'_>) -> PartName {
    (task.name(), part.queue())
}
