//! The state of one consumer group in one partition.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::holes::Holes;
use crate::lease::LeaseId;
use crate::message::{MessageId, Spans};

/// Where a cursor that has read nothing yet begins.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Start {
    /// Segments up to this one are skipped, but for those of `holes`.
    pub position: u64,
    /// Transactions that had not committed when the group was registered.
    pub holes: Holes,
}

/// Everything known of a (group, partition). What was handed out is behind `position` at once:
/// expiry, failure and partial settlement put messages into `waiting`, never move the position
/// back, so redelivery, order and late commits are one mechanism.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Cursor {
    /// The last segment that was read in order of id.
    pub position: u64,
    /// Transactions that may still bring segments at or below `position`.
    pub holes: Holes,
    /// A read of late segments that did not come to its end.
    pub drain: Option<Drain>,
    /// Passed by the position, unsettled and in nobody's hands; in delivery order.
    pub waiting: Spans,
    /// Nothing of `waiting` is delivered before this moment.
    pub retry_at: Option<i64>,
    /// `failed` settlements of messages that have had one and are not settled yet.
    pub failures: BTreeMap<MessageId, u32>,
    /// Leases that have not ended. In an ordered group at most one.
    pub leases: Vec<Lease>,
    /// Messages settled so far, in whatever way.
    pub settled: u64,
    /// When messages were last taken.
    pub last_pop_at: i64,
}

/// Late segments are being drained in order of id: those of the cursor's holes that are no longer
/// in `until`, beyond `after`. At its end the cursor's holes become `until`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Drain {
    pub after: u64,
    pub until: Holes,
}

/// Messages in somebody's hands.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Lease {
    pub id: LeaseId,
    pub deadline: i64,
    /// What it was asked for, in microseconds: the default of an extension.
    pub duration: i64,
    /// Not settled yet.
    pub held: Spans,
    /// Completed under this lease.
    pub done: Spans,
    /// Dead-lettered or dropped under this lease.
    pub dead: Spans,
}

/// When a cursor can be popped from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Readiness {
    /// Now, if there is anything to read.
    Now,
    /// Leased, or waiting for a retry, until then.
    At(i64),
}

impl Cursor {
    pub fn new(start: Start) -> Self {
        Self { position: start.position, holes: start.holes, ..Self::default() }
    }

    /// The lease that keeps others out at `now`. Leases given before `void_before` count as
    /// expired: they came with a dump from another cluster.
    pub fn live_lease(&self, now: i64, void_before: i64) -> Option<&Lease> {
        self.leases.iter().find(|lease| lease.is_live(now, void_before))
    }

    pub fn readiness(&self, now: i64, void_before: i64) -> Readiness {
        let leased = self.live_lease(now, void_before).map(|lease| lease.deadline);
        let retry = self.retry_at.filter(|&at| at > now && !self.waiting.is_empty());
        match leased.or(retry) {
            Some(at) => Readiness::At(at),
            None => Readiness::Now,
        }
    }

    /// Whether something is certainly there to be taken, without looking at the log.
    pub fn has_returned(&self) -> bool {
        !self.waiting.is_empty() || !self.leases.is_empty()
    }

    /// The moment at which this cursor becomes of interest by itself: a deadline or a retry.
    pub fn due_at(&self) -> Option<i64> {
        let deadline = self.leases.iter().map(|lease| lease.deadline).min();
        deadline.or(self.retry_at.filter(|_| !self.waiting.is_empty()))
    }
}

impl Lease {
    pub fn is_live(&self, now: i64, void_before: i64) -> bool {
        self.deadline > now && self.id.given_at() >= void_before
    }
}
