//! For each rule a log that breaks it, and one that is as near to it as can be and breaks none.

#![allow(clippy::expect_used, clippy::unwrap_used, clippy::panic)]

use queen_history::{
    Delivery, Effect, Event, Extended, Group, Interval, Outcome, Push, Reads, Released, Rule,
    Settled, Sought, Transaction, check, read, write,
};

const SLACK: i64 = 5;
/// Leases last so long.
const LEASE: i64 = 1_000;

/// A log in the making: each call takes from `at` to `at + 2`, and is a transaction of its own that
/// ends then.
struct Tale {
    events: Vec<Event>,
    calls: u64,
}

impl Tale {
    fn new() -> Self {
        Self { events: vec![group(Reads::All, true)], calls: 0 }
    }

    fn transaction(&mut self, at: i64) -> Transaction {
        self.calls += 1;
        Transaction { id: self.calls, committed: true, end: Interval(at, at + 2) }
    }

    fn pushed(&mut self, message: u64, producer: u64, at: i64) -> &mut Self {
        let transaction = self.transaction(at);
        let (key, call) = ("k".to_owned(), Interval(at, at + 2));
        let push = Push { key, message, producer, call, place: 0, transaction };
        self.events.push(Event::Push(push));
        self
    }

    /// A pop of these messages, under the lease of this name.
    fn popped(&mut self, lease: &str, at: i64, messages: &[u64]) -> &mut Self {
        let transaction = self.transaction(at);
        for (place, message) in messages.iter().enumerate() {
            let is_it =
                |event: &&Event| matches!(event, Event::Delivery(one) if one.message == *message);
            let attempt = self.events.iter().filter(is_it).count() as u64 + 1;
            self.events.push(Event::Delivery(Delivery {
                group: "g".to_owned(),
                key: "k".to_owned(),
                message: *message,
                attempt,
                lease: Some(lease.to_owned()),
                expires: Some(at + LEASE),
                pop: transaction.id,
                place: place as u64,
                call: Interval(at, at + 2),
                transaction,
            }));
        }
        self
    }

    fn acked(&mut self, lease: &str, at: i64, messages: &[u64]) -> &mut Self {
        let transaction = self.transaction(at);
        for message in messages {
            self.events.push(Event::Settled(Settled {
                group: "g".to_owned(),
                message: *message,
                outcome: Outcome::Completed,
                lease: Some(lease.to_owned()),
                call: Interval(at, at + 2),
                transaction,
            }));
        }
        self
    }

    fn gave_back(&mut self, lease: &str, at: i64) -> &mut Self {
        let transaction = self.transaction(at);
        let (lease, key) = (lease.to_owned(), Some("k".to_owned()));
        let call = Interval(at, at + 2);
        self.events.push(Event::Released(Released {
            lease,
            key,
            message: None,
            call,
            transaction,
        }));
        self
    }

    fn sought(&mut self, at: i64) -> &mut Self {
        let transaction = self.transaction(at);
        let (group, key) = ("g".to_owned(), None);
        self.events.push(Event::Sought(Sought { group, key, transaction }));
        self
    }

    fn effect(&mut self, message: u64) -> &mut Self {
        self.events.push(Event::Effect(Effect { group: "g".to_owned(), message }));
        self
    }

    /// The transaction of the last call, in all events of it.
    fn last_transaction(&mut self, change: impl Fn(&mut Transaction)) -> &mut Self {
        let last = self.calls;
        for event in &mut self.events {
            let transaction = match event {
                Event::Push(one) => &mut one.transaction,
                Event::Delivery(one) => &mut one.transaction,
                Event::Settled(one) => &mut one.transaction,
                Event::Released(one) => &mut one.transaction,
                Event::Extended(one) => &mut one.transaction,
                Event::Sought(one) => &mut one.transaction,
                Event::Group(_) | Event::Effect(_) => continue,
            };
            if transaction.id == last {
                change(transaction);
            }
        }
        self
    }

    /// The rules that are broken: the log is written and read first.
    fn broken(&self) -> Vec<Rule> {
        let log = write(&self.events).expect("a log is written");
        let events = read(&log).expect("a log reads back");
        assert_eq!(events, self.events);
        let mut rules: Vec<Rule> =
            check(&events, SLACK).into_iter().map(|fault| fault.rule).collect();
        rules.dedup();
        rules
    }
}

fn group(reads: Reads, ordered: bool) -> Event {
    Event::Group(Group { group: "g".to_owned(), reads, ordered, effects: false })
}

/// Two messages, one after the other, in a pop each.
fn good() -> Tale {
    let mut tale = Tale::new();
    tale.pushed(1, 7, 10).pushed(2, 8, 20);
    tale.popped("a", 30, &[1]).acked("a", 40, &[1]).popped("b", 50, &[2]).acked("b", 60, &[2]);
    tale
}

#[test]
fn a_good_log_is_accepted() {
    assert_eq!(good().broken(), []);
    let mut all = Tale::new();
    all.pushed(1, 7, 10).pushed(2, 7, 20).pushed(3, 7, 30).popped("a", 40, &[1, 2, 3]);
    all.acked("a", 50, &[1]).gave_back("a", 60).popped("b", 70, &[2, 3]).acked("b", 80, &[2, 3]);
    assert_eq!(all.broken(), []);
}

#[test]
fn an_acknowledged_message_that_is_lost_is_refused() {
    let mut tale = good();
    tale.pushed(3, 7, 70);
    assert_eq!(tale.broken(), [Rule::NothingLost]);
    tale.popped("c", 80, &[3]);
    assert_eq!(tale.broken(), [Rule::NothingLost]);
    tale.acked("c", 90, &[3]);
    assert_eq!(tale.broken(), []);
    // What was rolled back is no loss.
    tale.pushed(4, 7, 100).last_transaction(|one| one.committed = false);
    assert_eq!(tale.broken(), []);
}

#[test]
fn a_message_that_was_never_committed_is_refused() {
    let mut tale = good();
    tale.popped("c", 70, &[3]);
    assert_eq!(tale.broken(), [Rule::NothingMadeUp]);
    tale.pushed(3, 7, 65).last_transaction(|one| one.committed = false);
    assert_eq!(tale.broken(), [Rule::NothingMadeUp]);
    // Delivered before its COMMIT was sent.
    let mut tale = good();
    tale.pushed(3, 7, 65).last_transaction(|one| one.end = Interval(80, 82));
    tale.popped("c", 70, &[3]).acked("c", 90, &[3]);
    assert_eq!(tale.broken(), [Rule::NothingMadeUp]);
    // While the COMMIT was on its way, it may be.
    let mut tale = good();
    tale.pushed(3, 7, 65).last_transaction(|one| one.end = Interval(67, 82));
    tale.popped("c", 70, &[3]).acked("c", 90, &[3]);
    assert_eq!(tale.broken(), []);
}

#[test]
fn an_old_message_for_a_group_of_new_ones_is_refused() {
    let mut tale = good();
    tale.events[0] = group(Reads::New(Interval(13, 15)), true);
    assert_eq!(tale.broken(), [Rule::OnlyNew]);
    tale.events[0] = group(Reads::New(Interval(11, 15)), true);
    assert_eq!(tale.broken(), []);
}

#[test]
fn a_message_that_overtakes_is_refused() {
    let mut tale = Tale::new();
    tale.pushed(1, 7, 10).pushed(2, 8, 20).popped("a", 30, &[2]).acked("a", 40, &[2]);
    tale.popped("b", 50, &[1]).acked("b", 60, &[1]);
    assert_eq!(tale.broken(), [Rule::Order]);
    // Overlapping pushes have no order.
    let mut tale = Tale::new();
    tale.pushed(1, 7, 10).pushed(2, 8, 11).popped("a", 30, &[2]).acked("a", 40, &[2]);
    tale.popped("b", 50, &[1]).acked("b", 60, &[1]);
    assert_eq!(tale.broken(), []);
    // In one pop, the place counts.
    let mut tale = Tale::new();
    tale.pushed(1, 7, 10).pushed(2, 8, 20).popped("a", 30, &[2, 1]).acked("a", 40, &[1, 2]);
    assert_eq!(tale.broken(), [Rule::Order]);
}

#[test]
fn what_one_producer_has_pushed_keeps_its_order_also_in_one_transaction() {
    let tale = |order: &[u64]| {
        let mut tale = Tale::new();
        tale.pushed(1, 7, 10).last_transaction(|one| one.end = Interval(20, 25));
        tale.pushed(2, 7, 15).last_transaction(|one| one.end = Interval(20, 25));
        tale.popped("a", 30, order).acked("a", 40, &[1, 2]);
        tale.broken()
    };
    assert_eq!(tale(&[1, 2]), []);
    assert_eq!(tale(&[2, 1]), [Rule::Order]);
}

#[test]
fn a_second_holder_is_refused() {
    let tale = |at: i64| {
        let mut tale = Tale::new();
        tale.pushed(1, 7, 10).popped("a", 30, &[1]).popped("b", at, &[1]).acked("b", at + 5, &[1]);
        tale.broken()
    };
    assert_eq!(tale(100), [Rule::OneHolder]);
    assert_eq!(tale(30 + LEASE - SLACK - 3), [Rule::OneHolder]);
    assert_eq!(tale(30 + LEASE - SLACK - 2), []);
    // In an ordered group another message of the key is as good.
    let mut tale = Tale::new();
    tale.pushed(1, 7, 10).pushed(2, 8, 11).popped("a", 30, &[1]).popped("b", 40, &[2]);
    tale.acked("a", 50, &[1]).acked("b", 60, &[2]);
    assert_eq!(tale.broken(), [Rule::OneHolder]);
    tale.events[0] = group(Reads::All, false);
    assert_eq!(tale.broken(), []);
}

#[test]
fn a_lease_that_was_given_back_or_settled_makes_room() {
    let mut tale = Tale::new();
    tale.pushed(1, 7, 10).popped("a", 30, &[1]).gave_back("a", 40);
    tale.popped("b", 50, &[1]).acked("b", 60, &[1]);
    assert_eq!(tale.broken(), []);
    let mut tale = Tale::new();
    tale.pushed(1, 7, 10).popped("a", 30, &[1]);
    tale.gave_back("a", 40).last_transaction(|one| one.committed = false);
    tale.popped("b", 50, &[1]).acked("b", 60, &[1]);
    assert_eq!(tale.broken(), [Rule::OneHolder]);
    // One of two messages is settled: the lease goes on.
    let mut tale = Tale::new();
    tale.pushed(1, 7, 10).pushed(2, 7, 20).popped("a", 30, &[1, 2]).acked("a", 40, &[1]);
    tale.popped("b", 50, &[2]).acked("b", 60, &[2]);
    assert_eq!(tale.broken(), [Rule::OneHolder]);
    // A pop that was rolled back holds nothing any more.
    let mut tale = Tale::new();
    tale.pushed(1, 7, 10).popped("a", 30, &[1]).last_transaction(|one| one.committed = false);
    tale.popped("b", 50, &[1]).acked("b", 60, &[1]);
    assert_eq!(tale.broken(), []);
}

#[test]
fn a_transaction_that_settles_and_pops_again_sees_what_it_has_done() {
    let tale = |acks_first: bool| {
        let mut tale = Tale::new();
        tale.pushed(1, 7, 10).pushed(2, 7, 20).popped("a", 30, &[1]);
        if acks_first {
            tale.acked("a", 40, &[1]);
        }
        tale.popped("b", 50, &[2]);
        // Both calls are of one transaction, which is rolled back.
        let together = Transaction { id: 99, committed: false, end: Interval(60, 62) };
        for event in &mut tale.events {
            match event {
                Event::Settled(one) => one.transaction = together,
                Event::Delivery(one) if one.message == 2 => one.transaction = together,
                _ => (),
            }
        }
        tale.acked("a", 70, &[1]).popped("c", 80, &[2]).acked("c", 90, &[2]);
        tale.broken()
    };
    assert_eq!(tale(true), []);
    assert_eq!(tale(false), [Rule::OneHolder, Rule::Order]);
}

#[test]
fn a_message_that_returns_after_its_ack_is_refused() {
    let mut tale = good();
    tale.popped("c", 70, &[1]);
    assert_eq!(tale.broken(), [Rule::NoReturn]);
    // A seek brings it back.
    let mut tale = good();
    tale.sought(65).popped("c", 70, &[1]).acked("c", 80, &[1]);
    assert_eq!(tale.broken(), []);
    // The ack was rolled back.
    let mut tale = Tale::new();
    tale.pushed(1, 7, 10).popped("a", 30, &[1]);
    tale.acked("a", 40, &[1]).last_transaction(|one| one.committed = false);
    tale.popped("b", 40 + LEASE, &[1]).acked("b", 50 + LEASE, &[1]);
    assert_eq!(tale.broken(), []);
}

#[test]
fn a_message_that_is_settled_twice_is_refused() {
    let mut tale = good();
    tale.acked("b", 70, &[2]);
    assert_eq!(tale.broken(), [Rule::SettledOnce]);
}

#[test]
fn a_settlement_by_a_lease_that_had_ended_is_refused() {
    let tale = |at: i64| {
        let mut tale = Tale::new();
        tale.pushed(1, 7, 10).popped("a", 30, &[1]).acked("a", at, &[1]);
        tale
    };
    assert_eq!(tale(30 + LEASE + SLACK).broken(), []);
    assert_eq!(tale(30 + LEASE + SLACK + 1).broken(), [Rule::Fence]);
    let mut extended = tale(30 + LEASE + SLACK + 1);
    let transaction = extended.transaction(500);
    let (lease, expires) = ("a".to_owned(), 500 + LEASE);
    extended.events.push(Event::Extended(Extended { lease, expires, transaction }));
    assert_eq!(extended.broken(), []);
    // A lease that was given another message.
    let mut tale = Tale::new();
    tale.pushed(1, 7, 10).pushed(2, 8, 11).popped("a", 30, &[1]).acked("a", 40, &[1, 2]);
    assert_eq!(tale.broken(), [Rule::Fence]);
}

#[test]
fn an_attempt_that_is_not_higher_is_refused() {
    let tale = |attempt: u64| {
        let mut tale = Tale::new();
        tale.pushed(1, 7, 10).popped("a", 30, &[1]).gave_back("a", 40).popped("b", 50, &[1]);
        if let Some(Event::Delivery(one)) = tale.events.last_mut() {
            one.attempt = attempt;
        }
        tale.acked("b", 60, &[1]);
        tale.broken()
    };
    assert_eq!(tale(1), [Rule::Attempts]);
    assert_eq!(tale(2), []);
    // Some deliveries may be missing in the log: their clients lost the connection.
    assert_eq!(tale(4), []);
}

#[test]
fn an_effect_that_is_there_twice_or_without_an_ack_is_refused() {
    let mut tale = good();
    tale.effect(1).effect(2);
    assert_eq!(tale.broken(), []);
    tale.effect(2);
    assert_eq!(tale.broken(), [Rule::EffectOnce]);
    let mut tale = good();
    tale.effect(3);
    assert_eq!(tale.broken(), [Rule::EffectOnce]);
}

#[test]
fn an_ack_without_its_effect_is_refused() {
    let mut tale = good();
    tale.effect(1);
    if let Some(Event::Group(group)) = tale.events.first_mut() {
        group.effects = true;
    }
    assert_eq!(tale.broken(), [Rule::EffectThere]);
    tale.effect(2);
    assert_eq!(tale.broken(), []);
}

#[test]
fn a_log_with_a_part_missing_is_refused() {
    let mut tale = good();
    tale.events.remove(0);
    assert_eq!(tale.broken(), [Rule::Complete]);
    let mut tale = good();
    let twice = tale.events.iter().find(|event| matches!(event, Event::Delivery(_)));
    tale.events.extend(twice.cloned());
    assert!(tale.broken().contains(&Rule::Complete));
}

#[test]
fn a_line_that_is_no_event_is_refused() {
    let mut log = write(&good().events).expect("a log is written");
    log.push_str("{\"event\":\"rumour\"}\n");
    assert_eq!(read(&log).expect_err("is no event").0, good().events.len() + 1);
    assert!(read("{").is_err());
    assert_eq!(read("\n\n"), Ok(Vec::new()));
}
