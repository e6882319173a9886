//! Pops of the newest message alone, against a log that remembers everything: transactions overlap,
//! commit late and roll back, leases run out, messages fail, and dead letters are replayed.

#![allow(clippy::expect_used, clippy::unwrap_used, clippy::panic)]

use std::collections::{BTreeMap, BTreeSet};

use proptest::prelude::*;
use queen_engine::codec::{decode, encode};
use queen_engine::cursor::{Cursor, Readiness, Start};
use queen_engine::holes::Snapshot;
use queen_engine::lease::LeaseId;
use queen_engine::message::MessageId;
use queen_engine::pop::{FoundSegment, Pop, Popped, Read};
use queen_engine::settle::{Named, Outcome, Policy, Status, settle};

const FOREVER: i64 = i64::MIN;
const LEASE: i64 = 1_000;
const POLICY: Policy = Policy {
    retry_limit: 1,
    retry_delay: 0,
    retry_backoff: 1.0,
    retry_delay_max: 0,
    drop_exhausted: false,
};

struct Segment {
    xid: u64,
    messages: u16,
    is_visible: bool,
    /// A replayed dead letter.
    repeats: Option<MessageId>,
}

#[derive(Default)]
struct World {
    now: i64,
    next_xid: u64,
    highest_done: u64,
    /// Transactions that run.
    slots: BTreeMap<usize, u64>,
    log: BTreeMap<u64, Segment>,
    cursor: Cursor,
    lease: Option<LeaseId>,
    /// How old the newest message was that was delivered.
    delivered: Option<MessageId>,
    deliveries: BTreeMap<MessageId, u32>,
    dead: BTreeSet<MessageId>,
    leases: u64,
}

impl World {
    fn begin(&mut self, slot: usize) -> u64 {
        let next = self.next_xid + 1;
        let xid = *self.slots.entry(slot).or_insert(next);
        self.next_xid = self.next_xid.max(xid);
        xid
    }

    fn push(&mut self, slot: usize, messages: u16, repeats: Option<MessageId>) {
        let xid = self.begin(slot);
        let segment = Segment { xid, messages, is_visible: false, repeats };
        self.log.insert(self.log.len() as u64 + 1, segment);
    }

    fn end(&mut self, slot: usize, commits: bool) {
        let Some(xid) = self.slots.remove(&slot) else { return };
        self.highest_done = self.highest_done.max(xid);
        for segment in self.log.values_mut().filter(|segment| segment.xid == xid) {
            segment.is_visible = commits;
        }
    }

    fn snapshot(&self) -> Snapshot {
        let xmax = self.highest_done + 1;
        let running: Vec<u64> = self.slots.values().copied().filter(|xid| *xid < xmax).collect();
        Snapshot::new(&running, xmax, self.next_xid + 1, None)
    }

    /// The group begins here, as one that is registered as `new`.
    fn subscribe(&mut self) {
        self.cursor = Cursor::new(Start::after(self.log.len() as u64, &self.snapshot()));
    }

    fn read(&self, read: &Read, limit: usize) -> Vec<FoundSegment> {
        let wanted = |id: u64, xid: u64| match read {
            Read::Beyond { after } => id > *after,
            Read::Late { from, after, upto } => id > *after && id <= *upto && from.contains(xid),
        };
        let found = self.log.iter().filter(|(id, one)| one.is_visible && wanted(**id, one.xid));
        let found = found.map(|(&segment, one)| FoundSegment {
            segment,
            messages: one.messages,
            skip: false,
            repeats: one.repeats,
        });
        found.take(limit).collect()
    }

    /// The newest visible message up to a segment that repeats no other.
    fn newest_upto(&self, upto: u64) -> Option<MessageId> {
        let of = |(id, one): (&u64, &Segment)| MessageId::new(*id, one.messages - 1);
        let is_one = |one: &Segment| one.is_visible && one.repeats.is_none();
        self.log.range(..=upto).rfind(|(_, one)| is_one(one)).map(of)
    }

    fn age_of(&self, message: MessageId) -> MessageId {
        self.log[&message.segment()].repeats.unwrap_or(message)
    }

    fn pop_state(&mut self, chunk: usize) -> Option<Popped> {
        let snapshot = self.snapshot();
        let repeats = |segment| self.log[&segment].repeats;
        let mut pop = Pop::latest(self.cursor.clone(), &snapshot, None, repeats);
        while let Some(read) = pop.next_read() {
            let found = self.read(&read, chunk);
            pop.supply(&read, &found, found.len() < chunk);
        }
        pop.choose(pop.compares_upto().and_then(|upto| self.newest_upto(upto)));
        self.leases += 1;
        pop.finish(Some((LeaseId::of_one(1, 0, self.leases), LEASE)), self.now)
    }

    /// Pop, and check what comes.
    fn pop(&mut self, chunk: usize) -> Option<MessageId> {
        if self.cursor.readiness(self.now, FOREVER) != Readiness::Now {
            return None;
        }
        let popped = self.pop_state(chunk)?;
        self.cursor = decode(&encode(&popped.cursor)).expect("a state reads back");
        assert!(self.cursor.waiting.is_empty(), "older messages are left");
        let taken: Vec<MessageId> = popped.taken.messages().collect();
        assert!(taken.len() <= 1);
        let message = *taken.first()?;
        let age = self.age_of(message);
        assert!(self.delivered.is_none_or(|before| before <= age), "{message} is older");
        assert!(age >= self.newest_upto(u64::MAX).expect("is there"), "{message} is not newest");
        self.delivered = Some(age);
        let count = self.deliveries.entry(message).or_default();
        *count += 1;
        assert_eq!(popped.taken.max_deliveries(), *count);
        self.lease = Some(LeaseId::of_one(1, 0, self.leases));
        Some(message)
    }

    fn settle(&mut self, status: Status) {
        let Some(lease) = self.lease else { return };
        let named = Named { rest: Some(status), ..Named::default() };
        let Ok(done) = settle(&self.cursor, lease, None, &named, &POLICY, self.now, FOREVER) else {
            return;
        };
        for (message, outcome) in done.outcomes {
            if outcome == Outcome::DeadLettered {
                self.dead.insert(message);
            }
        }
        self.cursor = done.cursor.unwrap_or_else(|| self.cursor.clone());
    }

    fn replay(&mut self) {
        let Some(letter) = self.dead.pop_first() else { return };
        self.push(100, 1, Some(self.age_of(letter)));
        self.end(100, true);
    }

    fn run(&mut self, step: &Step) {
        self.now += 1;
        match *step {
            Step::Begin(slot) => drop(self.begin(slot)),
            Step::Push(slot, messages) => self.push(slot, messages, None),
            Step::End(slot, commits) => self.end(slot, commits),
            Step::Pop(chunk) => drop(self.pop(chunk)),
            Step::Settle(status) => self.settle(status),
            Step::Expire => self.now += LEASE,
            Step::Replay => self.replay(),
        }
    }

    /// When all transactions have ended, one pop is enough, and the newest message was delivered.
    fn finish(&mut self, is_new: bool) {
        self.slots.keys().copied().collect::<Vec<_>>().into_iter().for_each(|slot| {
            self.end(slot, true);
        });
        self.now += LEASE;
        self.pop(3);
        self.settle(Status::Completed);
        assert_eq!(self.pop(3), None);
        let visible = self.log.values().filter(|segment| segment.is_visible);
        let total: i64 = visible.map(|segment| i64::from(segment.messages)).sum();
        if !is_new {
            assert_eq!(self.cursor.settled, total);
            assert_eq!(self.delivered, self.newest_upto(u64::MAX));
        }
        assert_eq!(self.cursor.open(), 0);
        assert!(self.cursor.failures.is_empty());
    }
}

#[derive(Clone, Debug)]
enum Step {
    Begin(usize),
    Push(usize, u16),
    End(usize, bool),
    /// Read so many segments at a time.
    Pop(usize),
    Settle(Status),
    Expire,
    Replay,
}

fn any_step() -> impl Strategy<Value = Step> {
    let status = prop_oneof![
        3 => Just(Status::Completed),
        2 => Just(Status::Failed { delay: None }),
        1 => Just(Status::DeadLetter),
    ];
    prop_oneof![
        3 => (0..5usize).prop_map(Step::Begin),
        6 => (0..5usize, 1..4u16).prop_map(|(slot, count)| Step::Push(slot, count)),
        5 => (0..5usize, prop::bool::weighted(0.8)).prop_map(|(slot, ok)| Step::End(slot, ok)),
        6 => (1..4usize).prop_map(Step::Pop),
        4 => status.prop_map(Step::Settle),
        1 => Just(Step::Expire),
        1 => Just(Step::Replay),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 1_000, ..ProptestConfig::default() })]

    #[test]
    fn the_newest_is_delivered_and_never_an_older_one_after_it(
        before in prop::collection::vec(any_step(), 0..20),
        is_new in any::<bool>(),
        steps in prop::collection::vec(any_step(), 1..80),
    ) {
        let mut world = World::default();
        if is_new {
            before.iter().for_each(|step| world.run(step));
            // What the group before this one has done is of no account.
            let World { slots, log, next_xid, highest_done, now, .. } = world;
            world = World { slots, log, next_xid, highest_done, now, ..World::default() };
            world.subscribe();
        }
        steps.iter().for_each(|step| world.run(step));
        world.finish(is_new);
    }
}

/// A world with one message for each of these slots, in this order, none of them committed.
fn pushed(slots: &[usize]) -> World {
    let mut world = World::default();
    slots.iter().for_each(|slot| world.push(*slot, 1, None));
    world
}

#[test]
fn what_commits_late_and_is_older_is_settled_unseen() {
    let mut world = pushed(&[0, 1]);
    world.end(1, true);
    assert_eq!(world.pop(8), Some(MessageId::new(2, 0)));
    world.settle(Status::Completed);
    world.end(0, true);
    let popped = world.pop_state(8).expect("the late one is passed");
    assert_eq!((popped.taken.count(), popped.cursor.settled), (0, 2));
}

#[test]
fn what_commits_late_is_delivered_where_it_is_the_newest() {
    // A group that was registered while both ran, and has another place to begin than zero.
    let mut world = pushed(&[0, 1]);
    world.subscribe();
    world.end(0, true);
    assert_eq!(world.pop(8), Some(MessageId::new(1, 0)));
    world.settle(Status::Completed);
    world.end(1, true);
    assert_eq!(world.pop(8), Some(MessageId::new(2, 0)));
}

#[test]
fn a_failed_message_gives_way_to_a_newer_one_and_its_failures_are_forgotten() {
    let mut world = pushed(&[0]);
    world.end(0, true);
    world.pop(8);
    world.settle(Status::Failed { delay: None });
    assert_eq!(world.cursor.failures.of(MessageId::new(1, 0)), 1);
    world.push(1, 2, None);
    world.end(1, true);
    assert_eq!(world.pop(8), Some(MessageId::new(2, 1)));
    assert!(world.cursor.failures.is_empty());
    assert_eq!(world.cursor.settled, 2);
    // Without a newer one it comes back, until it is exhausted.
    world.settle(Status::Failed { delay: None });
    assert_eq!(world.pop(8), Some(MessageId::new(2, 1)));
    world.settle(Status::Failed { delay: None });
    assert_eq!((world.pop(8), world.dead.len()), (None, 1));
}

#[test]
fn a_replayed_dead_letter_is_as_old_as_what_it_repeats() {
    let mut world = pushed(&[0, 1]);
    world.end(1, true);
    world.pop(8);
    world.settle(Status::DeadLetter);
    world.replay();
    assert_eq!(world.pop(8), Some(MessageId::new(3, 0)));
    world.settle(Status::DeadLetter);
    // Meanwhile an older one commits, and a newer one.
    world.end(0, true);
    world.replay();
    world.push(2, 1, None);
    world.end(2, true);
    world.replay();
    assert_eq!(world.pop(8), Some(MessageId::new(5, 0)));
    world.settle(Status::Completed);
    assert_eq!(world.pop(8), None);
}

#[test]
fn messages_that_a_lease_of_several_gave_back_make_way_for_the_newest_that_was_settled() {
    let snapshot = Snapshot::new(&[], 100, 100, None);
    let segment = FoundSegment { segment: 1, messages: 3, skip: false, repeats: None };
    let mut pop = Pop::begin(Cursor::default(), &snapshot, 3, None);
    let read = pop.next_read().unwrap();
    pop.supply(&read, &[segment], true);
    let lease = LeaseId::of_one(1, 0, 1);
    let cursor = pop.finish(Some((lease, LEASE)), 0).unwrap().cursor;
    let each = [(MessageId::new(1, 0), Status::Failed { delay: None })];
    let newest = (MessageId::new(1, 2), Status::Completed);
    let named = Named { each: each.into_iter().chain([newest]).collect(), rest: None };
    let done = settle(&cursor, lease, None, &named, &POLICY, 0, FOREVER).unwrap();
    let mut pop = Pop::latest(done.cursor.unwrap(), &snapshot, None, |_| None);
    while let Some(read) = pop.next_read() {
        pop.supply(&read, &[], true);
    }
    assert_eq!(pop.compares_upto(), Some(1));
    pop.choose(Some(MessageId::new(1, 2)));
    assert!(!pop.delivers_any());
    assert_eq!(pop.finish(None, 1).unwrap().cursor.settled, 3);
}
