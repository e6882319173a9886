//! The state of one consumer group in one partition.

use std::collections::{BTreeMap, BTreeSet};

use serde::{Deserialize, Serialize};

use crate::holes::{Holes, Snapshot};
use crate::lease::LeaseId;
use crate::message::{LAST_SEGMENT, MessageId, Span, Spans};
use crate::receipt::{Ending, Receipt};

/// Where a cursor that has read nothing yet begins.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Start {
    /// Segments up to this one are skipped, but for those of `holes`.
    pub position: u64,
    /// Transactions that had not committed when the group was registered.
    pub holes: Holes,
    /// The first transaction that had not begun then.
    pub next: u64,
    /// The transaction that registered the group, if it had begun to write.
    pub own: Option<u64>,
    /// Messages created before this moment are not for the group.
    pub since: Option<i64>,
}

impl Start {
    /// After `position`, as of `snapshot`.
    pub fn after(position: u64, snapshot: &Snapshot) -> Self {
        let Snapshot { holes, next, own } = snapshot.clone();
        Self { position, holes, next, own, since: None }
    }

    /// What was still to come: by ranges of transactions, half-open, each with the segment above
    /// which it counts.
    pub fn unseen(&self) -> Vec<(u64, u64, u64)> {
        let before = self.holes.ranges().iter().filter(|(low, _)| *low < self.next);
        let running = before.map(|&(low, high)| (low, high.min(self.next), 0));
        let own = self.own.map(|own| (own, own + 1, self.position));
        running.chain(own).chain([(self.next, i64::MAX as u64, 0)]).collect()
    }
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
    /// Messages created before this moment are not for the group.
    pub since: Option<i64>,
    /// Messages settled so far, in whatever way; a seek corrects it, and it may become negative.
    pub settled: i64,
    /// When messages were last taken.
    pub last_pop_at: i64,
    /// In a group without order: claims of messages below this one have been counted here, but for
    /// those that the position passes later.
    pub counted_below: MessageId,
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
    pub given_at: i64,
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
        let Start { position, holes, since, .. } = start;
        Self { position, holes, since, ..Self::default() }
    }

    /// Of a single message that has just been taken for the first time: under a lease, with its
    /// deadline, or settled at once.
    pub fn claimed(message: MessageId, now: i64, lease: Option<(LeaseId, i64)>) -> Self {
        let span =
            Span { segment: message.segment(), first: message.index(), len: 1, deliveries: 1 };
        match lease {
            None => Self { settled: 1, last_pop_at: now, ..Self::default() },
            Some((id, deadline)) => Self {
                leases: vec![Lease::new(id, now, deadline, [span].into_iter().collect())],
                last_pop_at: now,
                ..Self::default()
            },
        }
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

    /// Whether this segment of that transaction was read, if it is there and visible.
    pub fn has_read(&self, segment: u64, xid: u64) -> bool {
        let is_late = self.holes.contains(xid)
            && self
                .drain
                .as_ref()
                .is_none_or(|drain| segment > drain.after || drain.until.contains(xid));
        segment <= self.position && !is_late
    }

    /// Where it would stand with `start` as its position: nobody holds anything, nothing is
    /// remembered of failures. And the traces of the leases that this takes away.
    pub fn moved_to(&self, start: Start) -> (Self, Vec<(LeaseId, Receipt)>) {
        let (settled, last_pop_at) = (self.settled, self.last_pop_at);
        (Self { settled, last_pop_at, ..Self::new(start) }, self.revoked())
    }

    /// With nothing in anybody's hands and nothing that came back: the messages are gone.
    pub fn emptied(&self) -> Self {
        Self {
            waiting: Spans::new(),
            retry_at: None,
            failures: BTreeMap::new(),
            leases: Vec::new(),
            ..self.clone()
        }
    }

    /// Of a group that goes on with other cursors: whoever reads on from here finds nothing, whatever may
    /// be pushed or commit.
    pub fn retired(&self) -> Self {
        Self { position: LAST_SEGMENT, holes: Holes::default(), drain: None, ..self.emptied() }
    }

    /// As a cursor that leaves single messages to claims: those that have been delivered, each with
    /// its state. What has never been stays.
    pub fn into_claims(mut self) -> (Self, Vec<(MessageId, Self)>) {
        let failures = std::mem::take(&mut self.failures);
        let retry_at = self.retry_at.take();
        let (back, never): (Vec<Span>, Vec<Span>) =
            self.waiting.iter().partition(|span| span.deliveries > 0);
        self.waiting = never.into_iter().collect();
        let one = |span: Span, message: MessageId| Self {
            waiting: [Span { first: message.index(), len: 1, ..span }].into_iter().collect(),
            retry_at,
            failures: failures.get_key_value(&message).map(|(m, n)| (*m, *n)).into_iter().collect(),
            ..Self::default()
        };
        let claims = back.into_iter().flat_map(|span| {
            span.messages().map(move |message| (message, span)).collect::<Vec<_>>()
        });
        let claims = claims.map(|(message, span)| (message, one(span, message))).collect();
        (self, claims)
    }

    /// The other way round: with what claims of its messages say. Everything that is not settled
    /// waits, in the order of the log, for the last retry.
    pub fn with_claims(mut self, claims: impl IntoIterator<Item = (MessageId, Self)>) -> Self {
        let mut claimed = BTreeSet::new();
        let mut waiting = Vec::new();
        for (message, claim) in claims {
            claimed.insert(message);
            waiting.extend(claim.waiting.iter());
            self.failures.extend(claim.failures);
            self.retry_at = self.retry_at.max(claim.retry_at);
            self.settled += claim.settled;
            self.last_pop_at = self.last_pop_at.max(claim.last_pop_at);
        }
        let (_, never) = self.waiting.partition(|message| claimed.contains(&message));
        waiting.extend(never.iter());
        waiting.sort_unstable_by_key(|span| (span.segment, span.first));
        self.waiting = waiting.into_iter().collect();
        self
    }

    /// The traces of its leases, if they are taken away.
    pub fn revoked(&self) -> Vec<(LeaseId, Receipt)> {
        let trace = |lease: &Lease| (lease.id, Receipt::of(lease.clone(), Ending::Revoked));
        self.leases.iter().map(trace).collect()
    }

    /// Messages that were read, and are neither settled nor to be read again.
    pub fn open(&self) -> usize {
        let held: usize = self.leases.iter().map(|lease| lease.held.count()).sum();
        held + self.waiting.count()
    }

    /// How often the message has failed, while it is not settled.
    pub(crate) fn failures_of(&self, message: MessageId) -> u32 {
        self.failures.get(&message).copied().unwrap_or(0)
    }

    /// Put what expired leases hold back to what is waiting: as the next pop would. The traces of
    /// those leases; empty if nothing has expired.
    pub fn reclaim(&mut self, now: i64, void_before: i64) -> Vec<(LeaseId, Receipt)> {
        self.expire(|lease| !lease.is_live(now, void_before))
    }

    /// End the leases that are over. What they held waits, before what was waiting.
    pub(crate) fn expire(&mut self, is_over: impl Fn(&Lease) -> bool) -> Vec<(LeaseId, Receipt)> {
        let leases = std::mem::take(&mut self.leases);
        let (over, live): (Vec<_>, Vec<_>) = leases.into_iter().partition(is_over);
        self.leases = live;
        let mut ended = Vec::with_capacity(over.len());
        for lease in over.into_iter().rev() {
            self.waiting.prepend(lease.held.clone());
            ended.push((lease.id, Receipt::of(lease, Ending::Expired)));
        }
        ended
    }

    /// The moment at which this cursor becomes of interest by itself: a deadline or a retry.
    pub fn due_at(&self) -> Option<i64> {
        let deadline = self.leases.iter().map(|lease| lease.deadline).min();
        deadline.or(self.retry_at.filter(|_| !self.waiting.is_empty()))
    }
}

impl Lease {
    pub(crate) fn new(id: LeaseId, given_at: i64, deadline: i64, held: Spans) -> Self {
        let duration = deadline.saturating_sub(given_at);
        Self { id, given_at, deadline, duration, held, done: Spans::new(), dead: Spans::new() }
    }

    pub fn is_live(&self, now: i64, void_before: i64) -> bool {
        self.deadline > now && self.given_at >= void_before
    }
}
