//! A model of a log that remembers everything that happened to it. The cursor is checked against
//! it.

mod step;

use std::collections::{BTreeMap, BTreeSet};

use queen_engine::codec::{decode, encode};
use queen_engine::cursor::{Cursor, Readiness};
use queen_engine::holes::Snapshot;
use queen_engine::lease::LeaseId;
use queen_engine::message::MessageId;
use queen_engine::pop::{FoundSegment, Pop, Read};
use queen_engine::receipt::Receipt;
use queen_engine::settle::{Named, Outcome, Policy, Refusal, Status, settle};

pub use self::step::{Step, any_step};

pub const FOREVER: i64 = i64::MIN;
pub const LEASE: i64 = 1_000;
pub const POLICY: Policy = Policy {
    retry_limit: 2,
    retry_delay: 100,
    retry_backoff: 2.0,
    retry_delay_max: 10_000,
    drop_exhausted: false,
};

#[derive(Clone, Copy, Debug, PartialEq)]
enum Fate {
    Open,
    Committed(usize),
    Aborted,
}

fn text(number: usize) -> String {
    format!("error {number}")
}

/// A pushed segment: when its push began, and how its transaction ended.
struct Segment {
    xid: u64,
    messages: u16,
    pushed: usize,
    fate: Fate,
}

#[derive(Clone, Copy, Debug, Default, PartialEq)]
struct Known {
    deliveries: u32,
    failures: u32,
    /// What was said of its last failure: one of a few texts, by number.
    error: Option<usize>,
    settled: bool,
}

#[derive(Default)]
pub struct World {
    step: usize,
    pub now: i64,
    next_xid: u64,
    highest_done: u64,
    slots: BTreeMap<usize, u64>,
    log: BTreeMap<u64, Segment>,
    pub cursor: Cursor,
    receipts: BTreeMap<LeaseId, Receipt>,
    pub lease: Option<(LeaseId, Vec<MessageId>)>,
    earlier: Option<(LeaseId, Vec<MessageId>)>,
    known: BTreeMap<MessageId, Known>,
    /// What each lease has said of which message, and was accepted.
    said: BTreeMap<(LeaseId, MessageId), Status>,
    leases: u64,
}

impl World {
    pub fn at(now: i64) -> Self {
        Self { now, ..Self::default() }
    }

    fn begin(&mut self, slot: usize) -> u64 {
        if let Some(&xid) = self.slots.get(&slot) {
            return xid;
        }
        self.next_xid += 1;
        self.slots.insert(slot, self.next_xid);
        self.next_xid
    }

    fn push(&mut self, slot: usize, messages: u16) {
        let xid = self.begin(slot);
        let id = self.log.len() as u64 + 1;
        let segment = Segment { xid, messages, pushed: self.step, fate: Fate::Open };
        self.log.insert(id, segment);
    }

    fn end(&mut self, slot: usize, fate: Fate) {
        let Some(xid) = self.slots.remove(&slot) else { return };
        self.highest_done = self.highest_done.max(xid);
        self.log.values_mut().filter(|s| s.xid == xid).for_each(|s| s.fate = fate);
    }

    fn snapshot(&self) -> Snapshot {
        let xmax = self.highest_done + 1;
        let running: Vec<u64> = self.slots.values().copied().filter(|&xid| xid < xmax).collect();
        Snapshot::new(&running, xmax, self.next_xid + 1, None)
    }

    fn read(&self, read: &Read, limit: usize) -> Vec<FoundSegment> {
        let wanted = |id: u64, s: &Segment| match read {
            Read::Beyond { after } => id > *after,
            Read::Late { from, after, upto } => id > *after && id <= *upto && from.contains(s.xid),
        };
        self.log
            .iter()
            .filter(|(id, s)| matches!(s.fate, Fate::Committed(_)) && wanted(**id, s))
            .map(|(&segment, s)| FoundSegment {
                segment,
                messages: s.messages,
                skip: false,
                repeats: None,
            })
            .take(limit)
            .collect()
    }

    pub fn pop(&mut self, wanted: usize, chunk: usize) -> Vec<MessageId> {
        if self.cursor.readiness(self.now, FOREVER) != Readiness::Now {
            return Vec::new();
        }
        let snapshot = self.snapshot();
        let mut pop = Pop::begin(self.cursor.clone(), &snapshot, wanted, None);
        while let Some(read) = pop.next_read() {
            let found = self.read(&read, chunk);
            pop.supply(&read, &found, found.len() < chunk);
        }
        self.leases += 1;
        let id = LeaseId::of_one(1, 0, self.leases);
        let Some(popped) = pop.finish(Some((id, LEASE)), self.now) else { return Vec::new() };
        // As if read back from the database.
        self.cursor = Cursor::from_bytes(&popped.cursor.to_bytes()).expect("a state reads back");
        self.receipts.extend(popped.ended);
        let messages: Vec<MessageId> = popped.taken.messages().collect();
        for span in popped.taken.iter() {
            for message in span.messages() {
                let known = self.known.entry(message).or_default();
                known.deliveries += 1;
                assert!(!known.settled, "{message} was settled and is delivered again");
                assert_eq!(span.deliveries, known.deliveries, "attempt of {message}");
                let failures = &self.cursor.failures;
                assert_eq!(failures.of(message), known.failures, "failures of {message}");
                let error = known.error.map(text);
                assert_eq!(failures.last_error(message), error.as_deref(), "error of {message}");
            }
        }
        self.check_order(&messages);
        self.earlier = self.lease.replace((id, messages.clone()));
        messages
    }

    /// Checks the order of a delivery. Take a delivered message, and another one that had committed
    /// before the push of the first began: the other one is settled, or comes earlier in this
    /// delivery.
    fn check_order(&self, delivered: &[MessageId]) {
        for (place, message) in delivered.iter().enumerate() {
            let pushed = self.log[&message.segment()].pushed;
            for (&id, segment) in &self.log {
                if !matches!(segment.fate, Fate::Committed(at) if at < pushed) {
                    continue;
                }
                for index in 0..segment.messages {
                    let before = MessageId::new(id, index);
                    let settled = self.known.get(&before).is_some_and(|k| k.settled);
                    assert!(
                        settled || delivered[..place].contains(&before),
                        "{before} is unsettled and {message} overtook it"
                    );
                }
            }
            for index in 0..message.index() {
                let before = MessageId::new(message.segment(), index);
                let settled = self.known.get(&before).is_some_and(|k| k.settled);
                assert!(settled || delivered[..place].contains(&before));
            }
        }
    }

    fn settle(&mut self, bits: u8, status: Status, all: bool) {
        let Some((lease, messages)) = self.lease.clone() else { return };
        let each: BTreeMap<MessageId, Status> = messages
            .iter()
            .enumerate()
            .filter(|(i, _)| !all && bits >> (i % 8) & 1 == 1)
            .map(|(_, &message)| (message, status))
            .collect();
        let named = Named { each: each.clone(), rest: all.then_some(status) };
        let live = self.cursor.live_lease(self.now, FOREVER).is_some_and(|l| l.id == lease);
        let verdict = settle(
            &self.cursor,
            lease,
            self.receipts.get(&lease),
            &named,
            &POLICY,
            self.now,
            FOREVER,
        );
        let said = |m: &MessageId| self.said.get(&(lease, *m)).copied();
        let named = messages.iter().copied().filter(|m| all || each.contains_key(m));
        let (repeated, open): (BTreeSet<MessageId>, BTreeSet<MessageId>) =
            named.partition(|m| said(m).is_some());
        // Repeated with another status: what was completed, or what was not.
        let otherwise = |is_completed: bool| {
            let is_other = |before| !is_alike(before, status);
            let is_meant =
                |before| is_other(before) && (before == Status::Completed) == is_completed;
            !all && repeated.iter().filter_map(said).any(is_meant)
        };
        match verdict {
            Ok(mut done) => {
                let error = self.error_of_step().map(text);
                done.keep_errors(|_| error.as_deref());
                assert!(!otherwise(true) && !otherwise(false));
                let nothing_left = open.is_empty() || all && self.gave_back(&lease);
                assert!(live || nothing_left, "a lost lease settled");
                if all {
                    let counts = |before| before == Status::Completed || is_alike(before, status);
                    let already = repeated.iter().filter_map(said).filter(|s| counts(*s)).count();
                    assert_eq!(done.already, already);
                } else {
                    let is_noted = |m: &MessageId| done.outcomes.contains(&(*m, Outcome::Already));
                    assert!(repeated.iter().all(is_noted), "a repetition was applied");
                }
                if live {
                    self.apply(&done.outcomes, &open);
                    self.said.extend(open.iter().map(|m| ((lease, *m), status)));
                }
                assert_eq!(done.dead.len(), dead(&done.outcomes));
                if let Some(cursor) = done.cursor {
                    self.cursor =
                        Cursor::from_bytes(&cursor.to_bytes()).expect("a state reads back");
                }
                if let Some(receipt) = done.receipt {
                    assert!(done.released);
                    let stored = decode(&encode(&receipt)).expect("a receipt reads back");
                    self.receipts.insert(lease, stored);
                }
            }
            Err(Refusal::AlreadySettled { .. }) => assert!(otherwise(true)),
            Err(Refusal::NotInLease { .. }) => {
                assert!(otherwise(false) || self.gave_back(&lease) && !open.is_empty());
            }
            Err(_) => assert!(!live && !open.is_empty(), "a live lease was refused"),
        }
    }

    /// What consumers say of failures in this step.
    fn error_of_step(&self) -> Option<usize> {
        (!self.step.is_multiple_of(4)).then_some(self.step % 5)
    }

    fn gave_back(&self, lease: &LeaseId) -> bool {
        use queen_engine::receipt::Ending::GaveBack;
        self.receipts.get(lease).is_some_and(|r| r.ending == GaveBack)
    }

    fn apply(&mut self, outcomes: &[(MessageId, Outcome)], open: &BTreeSet<MessageId>) {
        let error = self.error_of_step();
        for &(message, outcome) in outcomes {
            let known = self.known.get_mut(&message).expect("was delivered");
            match outcome {
                Outcome::Already => assert!(!open.contains(&message)),
                Outcome::Retry => (),
                Outcome::Failed => {
                    known.failures += 1;
                    known.error = error;
                    assert!(known.failures <= POLICY.retry_limit, "{message} outlived its budget");
                }
                Outcome::Completed | Outcome::DeadLettered | Outcome::Dropped => {
                    known.settled = true;
                }
            }
        }
        for message in open {
            assert!(
                outcomes.iter().any(|(m, _)| m == message),
                "{message} was named and forgotten"
            );
        }
    }

    pub fn run(&mut self, step: &Step) {
        self.step += 1;
        self.now += 1;
        match *step {
            Step::Begin(slot) => drop(self.begin(slot)),
            Step::Push(slot, messages) => self.push(slot, messages),
            Step::Commit(slot) => self.end(slot, Fate::Committed(self.step)),
            Step::Abort(slot) => self.end(slot, Fate::Aborted),
            Step::Pop(wanted, chunk) => drop(self.pop(wanted, chunk)),
            Step::Settle(bits, status) => self.settle(bits, status, false),
            Step::SettleAll(status) => self.settle(0, status, true),
            Step::Wait(time) => self.now += time,
            Step::StaleAck => {
                let Some((lease, messages)) = self.earlier.clone() else { return };
                if self.lease.as_ref().is_some_and(|(l, _)| *l == lease) {
                    return;
                }
                self.stale_ack(lease, &messages);
            }
        }
    }

    /// A lease that another one has followed settles nothing any more. What it has said it may say
    /// again, whatever has become of the message.
    fn stale_ack(&self, lease: LeaseId, messages: &[MessageId]) {
        let receipt = self.receipts.get(&lease);
        let statuses = [
            Status::Completed,
            Status::Failed { delay: Some(7) },
            Status::Retry { delay: 7 },
            Status::DeadLetter,
        ];
        for (&message, status) in messages.iter().flat_map(|m| statuses.map(|s| (m, s))) {
            let said = self.said.get(&(lease, message)).copied();
            let named = Named { each: [(message, status)].into(), rest: None };
            let verdict = settle(&self.cursor, lease, receipt, &named, &POLICY, self.now, FOREVER);
            assert_eq!(verdict.is_ok(), said.is_some_and(|before| is_alike(before, status)));
            match verdict {
                Ok(done) => {
                    assert_eq!(done.outcomes, [(message, Outcome::Already)]);
                    assert!(done.cursor.is_none() && done.dead.is_empty());
                }
                Err(Refusal::Unknown | Refusal::Expired { .. } | Refusal::Superseded { .. }) => {
                    assert_ne!(said, Some(Status::Completed));
                }
                Err(Refusal::NotInLease { .. }) => {
                    assert!(self.gave_back(&lease) || said == Some(Status::DeadLetter));
                }
                Err(Refusal::AlreadySettled { .. }) => assert_eq!(said, Some(Status::Completed)),
            }
        }
    }

    /// End all transactions, then deliver and complete everything.
    pub fn drain(&mut self) {
        for slot in self.slots.keys().copied().collect::<Vec<_>>() {
            self.step += 1;
            self.end(slot, Fate::Committed(self.step));
        }
        for _ in 0..self.log.len() * 10 + 10 {
            self.now += POLICY.retry_delay_max + LEASE + 1;
            if self.pop(3, 2).is_empty() {
                break;
            }
            self.settle(0, Status::Completed, true);
        }
        let mut total = 0;
        for (&id, segment) in &self.log {
            for index in 0..segment.messages {
                let message = MessageId::new(id, index);
                let settled = self.known.get(&message).is_some_and(|k| k.settled);
                match segment.fate {
                    Fate::Committed(_) => assert!(settled, "{message} was lost"),
                    _ => assert!(!self.known.contains_key(&message), "{message} is a phantom"),
                }
                total += u64::from(settled);
            }
        }
        assert_eq!(self.cursor.settled, total as i64);
        assert!(self.cursor.waiting.is_empty() && self.cursor.leases.is_empty());
        assert!(self.cursor.failures.is_empty());
    }
}

/// Whether both statuses are of one kind, whatever their delays.
fn is_alike(one: Status, other: Status) -> bool {
    std::mem::discriminant(&one) == std::mem::discriminant(&other)
}

fn dead(outcomes: &[(MessageId, Outcome)]) -> usize {
    outcomes.iter().filter(|(_, o)| *o == Outcome::DeadLettered).count()
}
