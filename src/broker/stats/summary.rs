//! What the figures need of the state of a cursor or a claim. States are read once and forgotten;
//! their summaries may be kept by a session, for 100,000 partitions and more.

use queen_engine::cursor::Cursor;
use queen_engine::holes::Holes;
use queen_engine::lease::LeaseId;
use queen_engine::message::{MessageId, Spans};

use crate::pg::clock::Moment;
use crate::store::segment::LastSegment;

/// The part of a state that figures come from.
#[derive(Clone, Debug, Default)]
pub struct StateSummary {
    pub settled: i64,
    /// 0: never.
    pub last_pop_at: Moment,
    pub position: u64,
    /// What is held or waits. Of most partitions of a healthy queue there is nothing.
    rest: Option<Box<OpenRest>>,
    /// What may still appear behind the position.
    unseen: Option<Box<Unseen>>,
}

/// Segments up to the position that were not read, if they have appeared since.
#[derive(Clone, Debug)]
struct Unseen {
    /// Of these transactions, with ids above the number.
    of: Vec<(Holes, u64)>,
    /// Messages created before this moment are not for the group.
    since: Option<Moment>,
}

/// What has been read and is not settled.
#[derive(Clone, Debug)]
struct OpenRest {
    /// The lowest segment with such a message.
    first: Option<u64>,
    /// Messages that were delivered before, and wait to be delivered again.
    came_back: i64,
    waiting: Spans,
    leases: Vec<LeaseSummary>,
}

/// A lease that has not ended; its time may be over.
#[derive(Clone, Debug)]
pub struct LeaseSummary {
    pub id: LeaseId,
    pub given_at: Moment,
    pub deadline: Moment,
    pub messages: i64,
    /// Deliveries of the message that was delivered most often.
    pub attempt: i32,
}

impl StateSummary {
    pub fn of(state: Cursor) -> Self {
        Self {
            settled: state.settled,
            last_pop_at: state.last_pop_at,
            position: state.position,
            unseen: Unseen::of(&state).map(Box::new),
            rest: OpenRest::of(state).map(Box::new),
        }
    }

    /// Transactions that may have brought segments behind the position which were not read: those
    /// with ids above the number.
    pub fn unseen(&self) -> impl Iterator<Item = &(Holes, u64)> {
        self.unseen.iter().flat_map(|unseen| &unseen.of)
    }

    /// Of what is unseen, messages created before this moment are not for the group.
    pub fn unseen_since(&self) -> Option<Moment> {
        self.unseen.as_ref().and_then(|unseen| unseen.since)
    }

    /// Whether messages are held or wait.
    pub fn is_open(&self) -> bool {
        self.first_open().is_some()
    }

    /// The lowest segment with a message that is held or waits.
    pub fn first_open(&self) -> Option<u64> {
        self.rest.as_ref().and_then(|rest| rest.first)
    }

    /// Messages that were delivered before, and wait to be delivered again.
    pub fn came_back(&self) -> i64 {
        self.rest.as_ref().map_or(0, |rest| rest.came_back)
    }

    pub fn waiting(&self) -> impl Iterator<Item = MessageId> + '_ {
        self.rest.iter().flat_map(|rest| rest.waiting.messages())
    }

    /// For a group that gets the newest message of a partition alone: how many are pending, if
    /// `last` is the last segment of the partition. One, if there is anything that was not settled;
    /// or what leases hold, if they were given when the group got every message.
    pub fn newest_pending(&self, last: &LastSegment) -> i64 {
        let held = self.leases().iter().map(|lease| lease.messages).sum::<i64>();
        let is_late = || self.unseen().any(|(of, above)| last.id > *above && of.contains(last.xid));
        let is_any_left = last.id > self.position || self.waiting().next().is_some() || is_late();
        held.max(i64::from(is_any_left))
    }

    pub fn leases(&self) -> &[LeaseSummary] {
        self.rest.as_ref().map_or(&[], |rest| &rest.leases)
    }
}

impl Unseen {
    fn of(state: &Cursor) -> Option<Self> {
        let Cursor { holes, drain, since, .. } = state;
        if holes.is_empty() || state.position == 0 {
            return None;
        }
        let of = match drain {
            None => vec![(holes.clone(), 0)],
            // As `Cursor::has_read` has it.
            Some(drain) => {
                let drained = holes.minus(&drain.until);
                vec![(holes.minus(&drained), 0), (drained, drain.after)]
            }
        };
        Some(Self { of, since: *since })
    }
}

impl OpenRest {
    fn of(state: Cursor) -> Option<Self> {
        if state.waiting.is_empty() && state.leases.is_empty() {
            return None;
        }
        let held = state.leases.iter().flat_map(|lease| lease.held.iter());
        let first = held.chain(state.waiting.iter()).map(|span| span.segment).min();
        let back = state.waiting.iter().filter(|span| span.deliveries > 0);
        let came_back = back.map(|span| i64::from(span.len)).sum();
        let leases = state.leases.iter().map(|lease| LeaseSummary {
            id: lease.id,
            given_at: lease.given_at,
            deadline: lease.deadline,
            messages: lease.held.count() as i64,
            attempt: lease.held.max_deliveries() as i32,
        });
        Some(Self { first, came_back, leases: leases.collect(), waiting: state.waiting })
    }
}

impl LeaseSummary {
    /// Whether the lease is in force, as `queen_engine::cursor::Lease::is_live` has it.
    pub fn is_live(&self, now: Moment, void_before: Moment) -> bool {
        self.deadline > now && self.given_at >= void_before
    }
}
