//! What a broker does that keeps all rules is accepted, whatever its clients do and however long
//! their calls take.

#![allow(clippy::expect_used, clippy::unwrap_used, clippy::panic)]

use std::collections::BTreeMap;

use proptest::prelude::*;
use queen_history::{
    Delivery, Effect, Event, Group, Interval, Outcome, Push, Reads, Released, Settled, Sought,
    Transaction, check,
};

const LEASE: i64 = 500;

/// A step of a client, and how long its call is on its way there and back.
#[derive(Clone, Debug)]
enum Step {
    Push { key: u8, commits: bool },
    Pop { key: u8, wanted: usize, commits: bool },
    Ack { lease: usize, count: usize, commits: bool },
    GiveBack { lease: usize },
    Seek { key: u8 },
    Wait { time: i64 },
}

fn any_step() -> impl Strategy<Value = (Step, i64, i64)> {
    let commits = prop::bool::weighted(0.85);
    let step = prop_oneof![
        5 => (0..2u8, commits).prop_map(|(key, commits)| Step::Push { key, commits }),
        5 => (0..2u8, 1..4usize, commits)
            .prop_map(|(key, wanted, commits)| Step::Pop { key, wanted, commits }),
        5 => (0..3usize, 1..4usize, commits)
            .prop_map(|(lease, count, commits)| Step::Ack { lease, count, commits }),
        1 => (0..3usize).prop_map(|lease| Step::GiveBack { lease }),
        1 => (0..2u8).prop_map(|key| Step::Seek { key }),
        2 => (0..LEASE).prop_map(|time| Step::Wait { time }),
    ];
    (step, 0..300i64, 0..300i64)
}

struct Lease {
    name: String,
    key: u8,
    open: Vec<u64>,
    expires: i64,
}

/// A broker with one group, one step at a time. What each step does, it does at one moment.
#[derive(Default)]
struct Broker {
    now: i64,
    calls: u64,
    messages: u64,
    ordered: bool,
    /// By key: messages that are not settled, in their order, and those that are.
    queues: BTreeMap<u8, Vec<u64>>,
    settled: BTreeMap<u8, Vec<u64>>,
    leases: Vec<Lease>,
    attempts: BTreeMap<u64, u64>,
    events: Vec<Event>,
}

impl Broker {
    /// A call that is at the broker now.
    fn call(&mut self, committed: bool, before: i64, after: i64) -> (Interval, Transaction) {
        self.calls += 1;
        let call = Interval(self.now - before, self.now + after);
        (call, Transaction { id: self.calls, committed, end: call })
    }

    fn step(&mut self, step: &Step, before: i64, after: i64) {
        self.now += 1;
        let now = self.now;
        self.leases.retain(|lease| lease.expires > now && !lease.open.is_empty());
        match *step {
            Step::Wait { time } => self.now += time,
            Step::Push { key, commits } => {
                let (call, transaction) = self.call(commits, before, after);
                self.messages += 1;
                let message = self.messages;
                if commits {
                    self.queues.entry(key).or_default().push(message);
                }
                // Each push has a producer of its own: two calls of one would not overlap.
                let (key, producer) = (key.to_string(), message);
                let push = Push { key, message, producer, call, place: 0, transaction };
                self.events.push(Event::Push(push));
            }
            Step::Pop { key, wanted, commits } => self.pop(key, wanted, commits, before, after),
            Step::Ack { lease, count, commits } => {
                if lease < self.leases.len() {
                    self.ack(lease, count, commits, before, after);
                }
            }
            Step::GiveBack { lease } => {
                if lease < self.leases.len() {
                    let (call, transaction) = self.call(true, before, after);
                    let Lease { name, key, open, .. } = self.leases.remove(lease);
                    let message = open.first().copied().filter(|_| !self.ordered);
                    let key = self.ordered.then(|| key.to_string());
                    let lease = name;
                    let released = Released { lease, key, message, call, transaction };
                    self.events.push(Event::Released(released));
                }
            }
            Step::Seek { key } => {
                let (_, transaction) = self.call(true, before, after);
                let back = self.settled.remove(&key).unwrap_or_default();
                let queue = self.queues.entry(key).or_default();
                queue.extend(back);
                queue.sort_unstable();
                self.leases.retain(|lease| lease.key != key);
                let (group, key) = ("g".to_owned(), Some(key.to_string()));
                self.events.push(Event::Sought(Sought { group, key, transaction }));
            }
        }
    }

    fn pop(&mut self, key: u8, wanted: usize, commits: bool, before: i64, after: i64) {
        let held: Vec<u64> = self.leases.iter().flat_map(|one| one.open.clone()).collect();
        if self.ordered && self.leases.iter().any(|lease| lease.key == key) {
            return;
        }
        let wanted = if self.ordered { wanted } else { 1 };
        let free = self.queues.get(&key).into_iter().flatten().copied();
        let taken: Vec<u64> = free.filter(|message| !held.contains(message)).take(wanted).collect();
        if taken.is_empty() {
            return;
        }
        let (call, transaction) = self.call(commits, before, after);
        let (pop, expires) = (transaction.id, self.now + LEASE);
        let name = format!("lease {pop}");
        for (place, message) in taken.iter().enumerate() {
            let attempt = self.attempts.get(message).copied().unwrap_or(0) + 1;
            if commits {
                self.attempts.insert(*message, attempt);
            }
            self.events.push(Event::Delivery(Delivery {
                group: "g".to_owned(),
                key: key.to_string(),
                message: *message,
                attempt,
                lease: Some(name.clone()),
                expires: Some(expires),
                pop,
                place: place as u64,
                call,
                transaction,
            }));
        }
        if commits {
            self.leases.push(Lease { name, key, open: taken, expires });
        }
    }

    fn ack(&mut self, at: usize, count: usize, commits: bool, before: i64, after: i64) {
        let (call, transaction) = self.call(commits, before, after);
        let lease = &mut self.leases[at];
        let (name, key) = (lease.name.clone(), lease.key);
        let acked: Vec<u64> = lease.open.iter().copied().take(count).collect();
        if commits {
            lease.open.retain(|message| !acked.contains(message));
            self.queues.entry(key).or_default().retain(|message| !acked.contains(message));
            self.settled.entry(key).or_default().extend(&acked);
        }
        for message in acked {
            self.events.push(Event::Settled(Settled {
                group: "g".to_owned(),
                message,
                outcome: Outcome::Completed,
                lease: Some(name.clone()),
                call,
                transaction,
            }));
        }
    }

    /// Settle everything, so that nothing counts as lost.
    fn drain(&mut self) {
        for _ in 0..self.messages * 2 + 4 {
            self.step(&Step::Wait { time: LEASE }, 0, 0);
            for key in 0..2 {
                self.step(&Step::Pop { key, wanted: 10, commits: true }, 0, 0);
                self.step(&Step::Ack { lease: 0, count: 10, commits: true }, 0, 0);
            }
        }
        assert!(self.queues.values().all(Vec::is_empty));
    }

    /// Write the effect of each completed message, if no seek made it come twice.
    fn note_effects(&mut self) {
        let mut effects = BTreeMap::new();
        for event in &self.events {
            if let Event::Settled(one) = event
                && one.transaction.committed
            {
                effects.insert(one.message, Effect { group: "g".to_owned(), message: one.message });
            }
        }
        self.events.extend(effects.into_values().map(Event::Effect));
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 100, ..ProptestConfig::default() })]

    #[test]
    fn a_correct_broker_is_accepted(
        ordered: bool,
        steps in prop::collection::vec(any_step(), 1..120),
    ) {
        let mut broker = Broker { ordered, now: 10_000, ..Broker::default() };
        let about = Group { group: "g".to_owned(), reads: Reads::All, ordered, effects: true };
        broker.events.push(Event::Group(about));
        for (step, before, after) in &steps {
            broker.step(step, *before, *after);
        }
        broker.drain();
        broker.note_effects();
        let faults = check(&broker.events, 0);
        prop_assert!(faults.is_empty(), "{}", faults[0]);
    }

    /// As long as no seek explains it, a message that a broker forgets is missed, and so is one
    /// that it makes up.
    #[test]
    fn a_broker_that_forgets_or_makes_up_is_refused(
        steps in prop::collection::vec(any_step(), 20..80), victim: prop::sample::Index,
    ) {
        let mut broker = Broker { ordered: true, now: 10_000, ..Broker::default() };
        let (group, reads) = ("g".to_owned(), Reads::All);
        let about = Group { group, reads, ordered: true, effects: false };
        broker.events.push(Event::Group(about));
        for (step, before, after) in &steps {
            if !matches!(step, Step::Seek { .. }) {
                broker.step(step, *before, *after);
            }
        }
        broker.drain();
        let of_message = |event: &Event| match event {
            Event::Delivery(one) => Some(one.message),
            Event::Settled(one) => Some(one.message),
            _ => None,
        };
        let all: Vec<u64> = broker.events.iter().filter_map(of_message).collect();
        prop_assume!(!all.is_empty());
        let victim = *victim.get(&all);
        let forgets: Vec<Event> =
            broker.events.iter().filter(|e| of_message(e) != Some(victim)).cloned().collect();
        prop_assert!(!check(&forgets, 0).is_empty());
        let is_push = |e: &Event| matches!(e, Event::Push(one) if one.message == victim);
        let makes_up: Vec<Event> = broker.events.iter().filter(|e| !is_push(e)).cloned().collect();
        prop_assert!(!check(&makes_up, 0).is_empty());
    }
}
