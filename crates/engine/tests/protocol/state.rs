//! A state of the model: the log, the database, the workers, and what is left of the bounds.

use std::cmp::Reverse;

use queen_engine::lease::LeaseId;
use queen_engine::message::MessageId;

use super::bounds::{Bounds, Trouble};
use super::database::{Database, Row};
use super::log::{Log, PushingTransaction, Seen, Stage};
use super::promise::Promise;

/// It is always this moment. When time goes on, all moments that are ahead come nearer: so states
/// that differ by their time alone are one.
pub const NOW: i64 = 0;

/// The length of a lease, in microseconds. Time goes on by as much.
pub const TICK: i64 = 1_000;

/// What a worker says of messages of its lease.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Verdict {
    Completed,
    Failed,
    Retry,
    Dead,
}

/// A settlement: of these messages, or of all that the lease holds.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Call {
    pub messages: Vec<MessageId>,
    pub is_rest: bool,
    pub verdict: Verdict,
}

/// A pop that has looked and has not written.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Look {
    pub partition: u8,
    pub wanted: usize,
    /// In a group without order: the message to be had.
    pub claim: Option<MessageId>,
    /// The state of the cursor, or of the claim, that it has seen. None: there was no claim.
    pub seen: Option<Row>,
    /// The generation of the partition's cursor.
    pub generation: u8,
    pub snapshot: Seen,
    /// When it began.
    pub began: i64,
    /// What it has seen has changed since.
    pub is_outdated: bool,
}

/// The lease that a worker has, or thinks to have.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Holding {
    pub lease: LeaseId,
    pub partition: u8,
    pub claim: Option<MessageId>,
    /// The messages of which it has said nothing yet.
    pub open: Vec<MessageId>,
}

/// What a worker is doing.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Worker {
    Idle,
    Looking(Look),
    Holding(Holding),
    /// The reply to this call was lost. It will be repeated.
    Repeating(Holding, Call),
}

impl Worker {
    pub fn lease(&self) -> Option<LeaseId> {
        match self {
            Self::Holding(holding) | Self::Repeating(holding, _) => Some(holding.lease),
            Self::Idle | Self::Looking(_) => None,
        }
    }
}

/// See [`State::measured`].
pub type Measure = (Reverse<u8>, [i64; 4], u8, u8);

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct State {
    pub log: Log,
    pub database: Database,
    /// Sorted: workers have no names, so states that differ by names alone are one.
    pub workers: Vec<Worker>,
    pub expiries_left: u8,
    pub troubles_left: u8,
    /// The database before each of the newest commits that have not waited for the disk, the
    /// oldest first. Kept only while the server may still crash.
    pub unflushed: Vec<Database>,
    pub broken: Option<Promise>,
    /// What [`Self::measured`] says of it.
    pub measure: Measure,
}

impl State {
    pub fn new(bounds: &Bounds) -> Self {
        Self {
            log: Log::empty(),
            database: Database::new(bounds.partitions),
            workers: vec![Worker::Idle; bounds.workers],
            expiries_left: bounds.expiries,
            troubles_left: bounds.troubles,
            unflushed: Vec::new(),
            broken: None,
            measure: (Reverse(bounds.troubles), [0, i64::MIN, 0, 0], 0, 0),
        }
    }

    /// The promise is broken, if it does not hold. The first one counts.
    pub fn demand(&mut self, promise: Promise, holds: bool) {
        if !holds && self.broken.is_none() {
            self.broken = Some(promise);
        }
    }

    pub fn keeps(&self, promise: Promise) -> bool {
        self.broken != Some(promise)
    }

    pub fn may(&self, bounds: &Bounds, trouble: Trouble) -> bool {
        self.troubles_left > 0 && bounds.kinds.contains(&trouble)
    }

    /// A commit that waits for the disk: all before it is kept as well.
    pub fn flush(&mut self) {
        self.unflushed.clear();
    }

    /// Bring the state into the form that it shares with all that differ from it in nothing that
    /// matters.
    pub fn tidy(&mut self, bounds: &Bounds) {
        for at in 0..self.workers.len() {
            if let Worker::Looking(look) = &self.workers[at] {
                let is_outdated = !self.is_current(look);
                if let Worker::Looking(look) = &mut self.workers[at] {
                    look.is_outdated = is_outdated;
                }
            }
        }
        self.workers.sort_unstable();
        self.database.tidy();
        if !self.may(bounds, Trouble::Crash) {
            self.unflushed.clear();
        }
        let leases: Vec<LeaseId> = self.workers.iter().filter_map(Worker::lease).collect();
        for database in self.unflushed.iter_mut().chain([&mut self.database]) {
            database.forget_receipts(|lease| leases.contains(&lease));
        }
        let may_come_back = self.may(bounds, Trouble::SeekStart);
        let settled = |push: &PushingTransaction| {
            push.messages().all(|message| self.database.fact(message).is_settled)
        };
        let done: Vec<bool> = self.log.pushes.iter().map(settled).collect();
        let pushes = self.log.pushes.clone();
        for push in &mut self.log.pushes {
            // Order matters within a partition, and to what is not settled.
            let matters = |at: usize| {
                let other = &pushes[at];
                other.partition == push.partition
                    && (may_come_back || !done[at] || other.stage != Stage::Committed)
            };
            let after = (0..pushes.len()).filter(|at| push.after >> at & 1 == 1 && matters(*at));
            push.after = after.map(|at| 1 << at).sum();
        }
    }

    /// Time goes on.
    pub fn age(&mut self, by: i64) {
        self.database.age(by);
        self.unflushed.iter_mut().for_each(|database| database.age(by));
        for worker in &mut self.workers {
            if let Worker::Looking(look) = worker {
                look.began -= by;
            }
        }
    }

    /// A lease id that nothing knows. Ids are random and mean nothing, so a state has the lowest
    /// ones that are free.
    pub fn free_lease(&self, number: u64) -> LeaseId {
        let databases = self.unflushed.iter().chain([&self.database]);
        let stored = databases.flat_map(Database::leases);
        let used: Vec<LeaseId> =
            stored.chain(self.workers.iter().filter_map(Worker::lease)).collect();
        let all = (0..).map(|random| LeaseId::of_one(number, 1, random));
        all.into_iter().find(|lease| !used.contains(lease)).expect("there are many")
    }

    /// What each step makes larger: so no run comes to a state twice, and each run ends. In this
    /// order: troubles that are over; deliveries and settlements; how far cursors are, and claims
    /// that were folded; how little time is left to what is due; leases that have been ended after
    /// their time; pushes; what workers do.
    pub fn measured(&self, ordered: bool) -> Measure {
        let facts = self.database.facts.iter().map(|(_, fact)| match fact.is_settled {
            true => 1_000,
            false => fact.deliveries,
        });
        let delivered: u32 = facts.sum();
        let (mut folded, mut left, mut expired) = (0, 0, 0);
        for (at, partition) in self.database.partitions.iter().enumerate() {
            let (cursor, claims) = (partition.cursor.cursor(), partition.claims.len() as i64);
            let pushes = self.log.committed_in(at as u8);
            let read = pushes.filter(|push| cursor.has_read(push.segment, push.xid)).count();
            if !ordered {
                folded += 1_000 * read as i64 - 10 * cursor.waiting.count() as i64 - claims;
            }
            for row in partition.rows() {
                let cursor = row.cursor();
                left += cursor.due_at().map_or(0, |due| due - NOW);
                let over = cursor.leases.iter().filter(|lease| lease.deadline <= NOW);
                expired += over.count() as i64;
            }
        }
        let stage = |stage| match stage {
            Stage::Begun => 1,
            Stage::Pushed => 2,
            Stage::Committed | Stage::Aborted => 3,
        };
        let log: u8 = self.log.pushes.iter().map(|push| stage(push.stage)).sum();
        let workers: u8 = self.workers.iter().map(|worker| self.rank(worker)).sum();
        let upkeep = [i64::from(delivered), folded, -left, -expired];
        (Reverse(self.troubles_left), upkeep, log, workers)
    }

    /// How far a worker is, if nothing else changes: it ends what it holds, and looks again; or it
    /// gives up a look that came to nothing, since a commit was faster.
    fn rank(&self, worker: &Worker) -> u8 {
        match worker {
            Worker::Holding(_) | Worker::Repeating(..) => 0,
            Worker::Looking(look) if !self.is_current(look) => 0,
            Worker::Idle => 1,
            Worker::Looking(_) => 2,
        }
    }

    /// Whether what a pop has looked at is as it was.
    pub fn is_current(&self, look: &Look) -> bool {
        let partition = self.database.partition(look.partition);
        let newest = match look.claim {
            None => Some(&partition.cursor),
            Some(message) => partition.claim(message),
        };
        let is_free =
            |message: MessageId| look.seen.is_some() || !self.is_settled(look.partition, message);
        !look.is_outdated
            && partition.generation == look.generation
            && newest == look.seen.as_ref()
            && look.claim.is_none_or(is_free)
    }

    /// Whether the partition's cursor says that a message is settled.
    pub fn is_settled(&self, partition: u8, message: MessageId) -> bool {
        let cursor = self.database.partition(partition).cursor.cursor();
        let push = self.log.committed_with(message);
        push.is_none_or(|push| cursor.has_read(push.segment, push.xid))
            && cursor.waiting.find(message).is_none()
    }
}
