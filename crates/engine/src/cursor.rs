//! What a consumer group has read of a partition, and what became of it: the *cursor*.
//!
//! Each message of the partition is in one of four states for the group:
//!
//! - **unread**: its segment lies beyond the position, or its transaction is in the holes;
//! - **held** by a lease;
//! - **waiting**: it has been read, no lease holds it, and it is not settled;
//! - **settled**: completed, dead-lettered, dropped, or not meant for the group.
//!
//! A pop moves the position behind the messages that it reads, and from then on a lease holds them.
//! If the lease expires, or its holder reports a failure, those that are not settled wait, before
//! all others that wait. The next pop delivers them before it reads on. So the position never goes
//! back, and redelivery, the order of messages and late commits need no mechanism of their own.
//!
//! The leases of a cursor are a list. In an ordered group it has at most one entry: while a lease
//! lives, no other consumer gets messages of the partition, which might depend on those held. In a
//! group without order each message that was delivered has a *claim*, which is a cursor of this one
//! message, until it is settled and a sweep has counted it. The cursor of the partition then has no
//! lease. It says which messages have been passed, and what waits there are messages without a
//! claim.
//!
//! A state is derived from the one before and stored beside it, under the lock of the cursor (or of
//! the claim). This lock is held to the end of the transaction.

use std::collections::BTreeSet;

use serde::{Deserialize, Serialize};

use crate::codec::{self, Damaged};
use crate::failures::{Failures, SaidOfFailures};
use crate::holes::{Holes, Snapshot};
use crate::lease::LeaseId;
use crate::message::{LAST_SEGMENT, MessageId, Span, Spans};
use crate::receipt::{Ending, Receipt};

/// Where a cursor that has read nothing yet begins. A group has one, for partitions that it has not
/// read.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Start {
    /// Segments up to this one are not for the group, except those of `holes`.
    pub position: u64,
    /// Transactions that had not committed when the group was registered.
    pub holes: Holes,
    /// The next xid that was to be assigned then.
    pub next: u64,
    /// The xid of the transaction that registered the group, if it had one.
    pub own: Option<u64>,
    /// Messages created before this moment are not for the group.
    pub since: Option<i64>,
}

impl Start {
    /// Segments up to `position` that `snapshot` sees are not for the group. All that commits later
    /// is.
    pub fn after(position: u64, snapshot: &Snapshot) -> Self {
        let Snapshot { holes, next, own } = snapshot.clone();
        Self { position, holes, next, own, since: None }
    }

    /// The segments that were still to come, as (low, high, above): those of the transactions from
    /// `low` up to and without `high`, with ids higher than `above`.
    pub fn unseen(&self) -> Vec<(u64, u64, u64)> {
        let before = self.holes.ranges().iter().filter(|(low, _)| *low < self.next);
        let running = before.map(|&(low, high)| (low, high.min(self.next), 0));
        let own = self.own.map(|own| (own, own + 1, self.position));
        running.chain(own).chain([(self.next, i64::MAX as u64, 0)]).collect()
    }
}

/// The state of a group in a partition, or of a claim, as stored.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Cursor {
    /// The last segment that was read in the order of ids.
    pub position: u64,
    /// Transactions that may still bring segments up to `position`.
    pub holes: Holes,
    /// How far late segments have been read, if not to their end.
    pub drain: Option<Drain>,
    /// Messages that were read, are not settled and held by no lease, in the order of delivery.
    pub waiting: Spans,
    /// Nothing of `waiting` is delivered before this moment: the delay after a failure. It holds up
    /// the whole cursor, since messages behind the failed one must not overtake it.
    pub retry_at: Option<i64>,
    /// How often each message was reported as failed, and what was said last. Messages that are
    /// settled are not in it.
    pub failures: Failures,
    /// Leases that have not ended. Their time may be over: a lease ends when a pop, a sweep or a
    /// settlement writes so.
    pub leases: Vec<Lease>,
    /// Messages created before this moment are not for the group.
    pub since: Option<i64>,
    /// Messages settled so far, in any way. A seek changes it by what it skips or brings back, and
    /// it may become negative.
    pub settled: i64,
    /// When messages were last delivered.
    pub last_pop_at: i64,
    /// In a group without order: claims below this message are part of `settled` and were removed,
    /// except those of late segments that were not passed yet.
    ///
    /// In an ordered group, if pops take the newest message alone ([`crate::pop::Pop::latest`]):
    /// messages below this one are older than one that was delivered, or lies in the log. They are
    /// settled unseen, also those that commit late.
    pub counted_below: MessageId,
}

/// How far late segments have been read, where a pop wanted fewer messages than there were.
///
/// Late segments are those up to the position whose transactions are in the cursor's holes and not
/// in `until`, the holes of the snapshot under which reading them began. They are read in the order
/// of ids, and have been up to `after`. After the last one the cursor's holes become `until`, and
/// not before: segments between `after` and the position would be lost. `until` stays as it is over
/// several pops: a transaction that commits in the meantime may have brought segments up to
/// `after`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Drain {
    pub after: u64,
    pub until: Holes,
}

/// Messages that a consumer holds until a deadline, and what it has settled of them.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Lease {
    pub id: LeaseId,
    pub given_at: i64,
    pub deadline: i64,
    /// For how long it was given, in microseconds. An extension is as long, unless told otherwise.
    pub duration: i64,
    /// Messages that are not settled yet.
    pub held: Spans,
    /// Messages that were completed under this lease.
    pub done: Spans,
    /// Messages that were dead-lettered or dropped under this lease.
    pub dead: Spans,
}

/// When a pop may deliver from a cursor.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Readiness {
    /// Now, if there is anything to deliver.
    Now,
    /// Not before this moment: the deadline of a lease, or the end of the delay after a failure.
    At(i64),
}

impl Cursor {
    /// A cursor that has read nothing yet.
    pub fn new(start: Start) -> Self {
        let Start { position, holes, since, .. } = start;
        Self { position, holes, since, ..Self::default() }
    }

    /// The bytes to store. What was said of failures is behind the rest, so a state without is as
    /// it was before there was such a thing.
    pub fn to_bytes(&self) -> Vec<u8> {
        codec::encode_with_tail(self, self.failures.said())
    }

    /// The state that was stored as `bytes`.
    pub fn from_bytes(bytes: &[u8]) -> Result<Self, Damaged> {
        let (mut cursor, said) = codec::decode_with_tail::<Self, SaidOfFailures>(bytes)?;
        cursor.failures.set_said(said.unwrap_or_default());
        Ok(cursor)
    }

    /// The claim of a message that is delivered for the first time at `now`: under this lease up to
    /// its deadline, or settled at once.
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

    /// The lease under which messages are held at `now`, if there is one ([`Lease::is_live`]).
    pub fn live_lease(&self, now: i64, void_before: i64) -> Option<&Lease> {
        self.leases.iter().find(|lease| lease.is_live(now, void_before))
    }

    /// When a pop may deliver from here. A cursor with a live lease has no delay: the pop that gave
    /// the lease ended it.
    pub fn readiness(&self, now: i64, void_before: i64) -> Readiness {
        let leased = self.live_lease(now, void_before).map(|lease| lease.deadline);
        let retry = self.retry_at.filter(|&at| at > now && !self.waiting.is_empty());
        match leased.or(retry) {
            Some(at) => Readiness::At(at),
            None => Readiness::Now,
        }
    }

    /// Whether a segment of the transaction `xid` has been read, provided that it is in the log.
    /// The segments of a drain count as read up to where the drain has come.
    pub fn has_read(&self, segment: u64, xid: u64) -> bool {
        let is_late = self.holes.contains(xid)
            && self
                .drain
                .as_ref()
                .is_none_or(|drain| segment > drain.after || drain.until.contains(xid));
        segment <= self.position && !is_late
    }

    /// This cursor after a seek to `start`: no lease holds anything, and failures are forgotten.
    /// And the receipts of the leases that this ends.
    pub fn moved_to(&self, start: Start) -> (Self, Vec<(LeaseId, Receipt)>) {
        let (settled, last_pop_at) = (self.settled, self.last_pop_at);
        (Self { settled, last_pop_at, ..Self::new(start) }, self.revoked())
    }

    /// This cursor after a purge: the messages that leases held and those that waited are gone.
    pub fn emptied(&self) -> Self {
        Self {
            waiting: Spans::new(),
            retry_at: None,
            failures: Failures::default(),
            leases: Vec::new(),
            ..self.clone()
        }
    }

    /// The last state of a cursor whose group goes on with a new cursor. A consumer that has looked
    /// this one up before, and reads on from it, finds nothing, whatever is pushed or commits.
    pub fn retired(&self) -> Self {
        Self { position: LAST_SEGMENT, holes: Holes::default(), drain: None, ..self.emptied() }
    }

    /// The cursor and the claims with which a group goes on when it gives up its order. Each
    /// message that waits and was delivered before gets a claim, with its failures and the delay.
    /// Messages that were never delivered wait at the cursor. The caller has ended all leases.
    pub fn into_claims(mut self) -> (Self, Vec<(MessageId, Self)>) {
        let failures = std::mem::take(&mut self.failures);
        let retry_at = self.retry_at.take();
        self.counted_below = MessageId::default();
        let (back, never): (Vec<Span>, Vec<Span>) =
            self.waiting.iter().partition(|span| span.deliveries > 0);
        self.waiting = never.into_iter().collect();
        let one = |span: Span, message: MessageId| Self {
            waiting: [Span { first: message.index(), len: 1, ..span }].into_iter().collect(),
            retry_at,
            failures: failures.only(message),
            ..Self::default()
        };
        let claims = back.into_iter().flat_map(|span| {
            span.messages().map(move |message| (message, span)).collect::<Vec<_>>()
        });
        let claims = claims.map(|(message, span)| (message, one(span, message))).collect();
        (self, claims)
    }

    /// The cursor with which a group goes on when it takes up an order, from this cursor and the
    /// claims of its messages. All that is not settled waits in the order of the log, until the
    /// latest of the moments up to which claims were delayed. The cursor has passed all claims, and
    /// the caller has ended all leases.
    pub fn with_claims(mut self, claims: impl IntoIterator<Item = (MessageId, Self)>) -> Self {
        let mut claimed = BTreeSet::new();
        let mut waiting = Vec::new();
        for (message, claim) in claims {
            claimed.insert(message);
            waiting.extend(claim.waiting.iter());
            self.failures.add(claim.failures);
            self.retry_at = self.retry_at.max(claim.retry_at);
            self.settled += claim.settled;
            self.last_pop_at = self.last_pop_at.max(claim.last_pop_at);
        }
        self.counted_below = MessageId::default();
        let (_, never) = self.waiting.partition(|message| claimed.contains(&message));
        waiting.extend(never.iter());
        waiting.sort_unstable_by_key(|span| (span.segment, span.first));
        self.waiting = waiting.into_iter().collect();
        self
    }

    /// The receipts of its leases, for when messages are taken away from their holders.
    pub fn revoked(&self) -> Vec<(LeaseId, Receipt)> {
        let receipt = |lease: &Lease| (lease.id, Receipt::of(lease.clone(), Ending::Revoked));
        self.leases.iter().map(receipt).collect()
    }

    /// How many messages are held or wait.
    pub fn open(&self) -> usize {
        let held: usize = self.leases.iter().map(|lease| lease.held.count()).sum();
        held + self.waiting.count()
    }

    /// End the leases that are not live at `now`, as the next pop would; returns their receipts.
    pub fn reclaim(&mut self, now: i64, void_before: i64) -> Vec<(LeaseId, Receipt)> {
        self.expire(|lease| !lease.is_live(now, void_before))
    }

    /// End the leases that are over; returns their receipts. What they held was delivered before
    /// all that waits, so it goes before that.
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

    /// The moment from which there is something to deliver although nothing is pushed or settled: a
    /// deadline, or the end of the delay after a failure.
    pub fn due_at(&self) -> Option<i64> {
        let deadline = self.leases.iter().map(|lease| lease.deadline).min();
        deadline.or(self.retry_at.filter(|_| !self.waiting.is_empty()))
    }
}

impl Lease {
    /// A lease that holds these messages, none of which is settled.
    pub(crate) fn new(id: LeaseId, given_at: i64, deadline: i64, held: Spans) -> Self {
        let duration = deadline.saturating_sub(given_at);
        Self { id, given_at, deadline, duration, held, done: Spans::new(), dead: Spans::new() }
    }

    /// Whether the lease is in force at `now`: it is up to, and not at, its deadline. A lease that
    /// was given before `void_before` is not: it came with a dump from another cluster, whose
    /// consumers do not work for this one.
    pub fn is_live(&self, now: i64, void_before: i64) -> bool {
        self.deadline > now && self.given_at >= void_before
    }
}
