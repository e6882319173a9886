//! What a worker remembers of its last rounds: which parts of which tasks are to be visited in the
//! next one?
//!
//! A part that has found nothing to do is visited again when something may have changed, or when
//! something in it becomes due. Where looking for work takes long and finds none, the worker also
//! rests in between, as long as the look was long.
//!
//! Two counts tell of changes. Sessions count the ends of transactions that have written by this
//! library, each in its database ([`turn::changes`]). PostgreSQL counts all that had a transaction
//! id, in all databases ([`completions`]). By the first alone the worker knows what others have
//! changed, but for what is written without this library: therefore it also goes by the second, but
//! not more often than each [`POLL`]. Without preload, and while a transaction is prepared that may
//! be ours, it goes by the second in each round.

use std::collections::{HashMap, HashSet};
use std::mem;
use std::rc::Rc;

use super::turn;
use super::visit::Left;
use crate::broker::housekeeping::{SweepStep, Task, TaskPart};
use crate::pg::clock::{self, Moment, SECOND};
use crate::pg::completions;
use crate::store::queue::Queue;
use crate::store::sweep;

/// Where nothing has been counted for this database, and other transactions have written somewhere,
/// the worker looks again after this.
const POLL: i64 = 10 * SECOND;

/// A look that has found nothing is followed by a rest of so many times its own time.
const REST: i64 = 100;
/// The longest rest.
const LONGEST_REST: i64 = 30 * SECOND;
/// A worker that leaves, and could do nothing of what was due, is followed by another one after
/// this.
const FRUITLESS: i64 = 5 * SECOND;

/// A part of a task: the task's name and the queue's id.
type PartName = (&'static str, i64);

/// The memory of a worker.
#[derive(Default)]
pub struct Agenda {
    /// Counts the rounds before which something may have changed.
    count: u64,
    /// The counts before the last of these rounds, and when it began.
    counts: Counts,
    changed_at: Moment,
    /// A transaction is prepared that may be ours.
    is_prepared: bool,
    /// All queues, and the number of the round in which they were looked up.
    queues: Rc<Vec<Queue>>,
    queues_of: Option<u64>,
    parts: HashMap<PartName, LastVisits>,
    /// As long as nothing changes, no part is to be visited before this moment.
    idle_until: Moment,
    /// When the present round began, or the last one.
    began_at: Moment,
    is_in_round: bool,
    has_written: bool,
}

/// What tells of changes.
#[derive(Clone, Copy, Default, PartialEq, Eq)]
struct Counts {
    /// None where sessions can't count.
    changes: Option<u64>,
    completions: u64,
}

impl Counts {
    /// To be read before the snapshot of the look that they are for.
    fn read() -> Self {
        Self { changes: turn::changes(), completions: completions::count() }
    }
}

/// What is remembered of a part.
#[derive(Default)]
struct LastVisits {
    /// While the part looks everywhere, in one step or in several: the round of the first.
    looking_since: Option<u64>,
    /// When it last had: the round in which that began.
    looked: Option<u64>,
    /// There is nothing to do before this moment, if nothing has changed since `looked`.
    idle_until: Moment,
    /// When the present visit began.
    visited_at: Moment,
    /// The last step has not come to its end.
    goes_on: bool,
    /// For how long the part has looked and found nothing.
    fruitless: i64,
    rests_until: Moment,
}

impl Agenda {
    /// Begin a round. False if there is nothing to do in it.
    pub fn begin_round(&mut self) -> bool {
        let now = clock::now();
        // The clock was set back: no moment that was noted means anything.
        let is_back = now < self.began_at;
        if is_back {
            self.parts.clear();
        }
        self.began_at = now;
        let is_scheduled = turn::take_timer() != Moment::MAX;
        let counts = Counts::read();
        let is_changed = is_back || is_scheduled || self.is_changed(counts, now);
        if is_changed {
            (self.counts, self.changed_at) = (counts, now);
            self.count += 1;
        }
        self.is_in_round =
            is_changed || self.queues_of != Some(self.count) || now >= self.idle_until;
        self.is_in_round
    }

    fn is_changed(&self, counts: Counts, now: Moment) -> bool {
        let polls = !self.is_told() || now - self.changed_at >= POLL;
        counts.changes != self.counts.changes
            || polls && counts.completions != self.counts.completions
    }

    /// Whether each change of this database is counted by the session that makes it.
    pub fn is_told(&self) -> bool {
        !self.is_prepared && self.counts.changes.is_some()
    }

    /// Look whether a transaction of this database is prepared, where one may be: `is_any` asks
    /// PostgreSQL, and knows nothing where that fails. To be called before a round.
    pub fn look_for_prepared(&mut self, is_any: impl FnOnce() -> Option<bool>) {
        if !turn::may_be_prepared() {
            self.is_prepared = false;
        } else if completions::count() != self.counts.completions || self.count == 0 {
            // Forgotten before the look: one that is prepared after it is noted again.
            turn::set_may_be_prepared(false);
            // One that was prepared, and is not any more, has changed something.
            self.is_prepared = true;
            if is_any() != Some(false) {
                turn::set_may_be_prepared(true);
            }
        }
    }

    /// After the last visit of a round.
    pub fn end_round(&mut self) {
        let next = |entry: &LastVisits| match entry.looked == Some(self.count) {
            true => entry.idle_until.max(entry.rests_until),
            false => entry.rests_until,
        };
        self.idle_until = self.parts.values().map(next).min().unwrap_or(Moment::MAX);
        self.is_in_round = false;
    }

    /// Whether transactions have ended since the round began, in whatever database.
    pub fn has_changed(&self) -> bool {
        self.counts.completions != completions::count()
    }

    /// Whether a step has more to do at once.
    pub fn goes_on(&self) -> bool {
        self.parts.values().any(|entry| entry.goes_on)
    }

    /// A transaction has ended that has written.
    pub fn note_write(&mut self) {
        self.has_written = true;
    }

    /// The count of the database before the last look.
    pub fn seen(&self) -> Option<u64> {
        self.counts.changes
    }

    /// What the launcher has to know when the worker leaves.
    pub fn left(&self) -> Left {
        let (at, counts) = (clock::now(), self.counts);
        let is_unknown = self.is_in_round || self.queues_of != Some(self.count);
        let due = if is_unknown { at } else { self.idle_until };
        // What could not be done at this moment, another transaction holds.
        let is_fruitless = due <= at && !self.has_written;
        Left {
            at,
            changes: counts.changes.unwrap_or_default(),
            completions: counts.completions,
            due: if is_fruitless { at + FRUITLESS } else { due },
            goes_on: self.goes_on(),
            passes: sweep::passes(),
        }
    }

    /// Go on where the last worker of the database has left.
    pub fn resume(&mut self, left: &Left) {
        sweep::resume(&left.passes);
        for (table, pass) in sweep::PAGED_TABLES.iter().zip(&left.passes) {
            // What was looked at before the first round of this worker may have changed since.
            let looking_since = (pass.page > 0).then_some(0);
            self.parts.insert((table.task, 0), LastVisits { looking_since, ..Default::default() });
        }
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
        entry.goes_on = step.goes_on;
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
