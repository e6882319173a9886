//! The rules, and what is wrong in a log.

use std::collections::{BTreeMap, HashMap};
use std::fmt;

use crate::event::{
    Delivery, Event, Extended, Group, Interval, Push, Reads, Released, Settled, Sought, Transaction,
};

/// A rule that a log can break.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Rule {
    /// Each message that was committed, and is for a group, was settled by it.
    NothingLost,
    /// What is delivered was pushed under that key, and the COMMIT of its push had been sent.
    NothingMadeUp,
    /// A group that reads what is new gets nothing that had been committed before.
    OnlyNew,
    /// What must come before a delivered message is settled, or stands before it in the pop. First
    /// come messages that the same producer has pushed before, and those whose COMMIT was answered
    /// before the push was sent.
    Order,
    /// A key, or without order a message, has one holder at a time.
    OneHolder,
    /// A message whose settlement had been committed is not delivered any more, unless the group
    /// was moved.
    NoReturn,
    /// A message is settled once, unless the group was moved.
    SettledOnce,
    /// A lease settles what it was given, before it ends.
    Fence,
    /// With each further delivery of a message its attempt is higher.
    Attempts,
    /// A message has one effect at most, and only if it was completed.
    EffectOnce,
    /// A message that was completed has its effect.
    EffectThere,
    /// The log is one: each group, message, lease and pop that it names is in it.
    Complete,
}

/// A rule that is broken, and by what.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Fault {
    pub rule: Rule,
    pub text: String,
}

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?}: {}", self.rule, self.text)
    }
}

/// Find everything that is wrong. `slack`: how far the clock of the server may be from that of the
/// clients, in microseconds.
pub fn check(events: &[Event], slack: i64) -> Vec<Fault> {
    let log = Log::of(events, slack);
    let mut found = Vec::new();
    log.check_names(&mut found);
    for group in log.groups.values() {
        let view = View::of(&log, group);
        view.check_lost(&mut found);
        view.check_deliveries(&mut found);
        view.check_attempts(&mut found);
        view.check_effects(&mut found);
        view.check_fence(&mut found);
        view.check_holders(&mut found);
        if group.ordered {
            view.check_order(&mut found);
        }
    }
    found
}

/// The log, sorted by what it is about.
pub(crate) struct Log<'a> {
    pub(crate) slack: i64,
    pub(crate) groups: BTreeMap<&'a str, &'a Group>,
    pub(crate) pushes: BTreeMap<u64, &'a Push>,
    deliveries: Vec<&'a Delivery>,
    settled: Vec<&'a Settled>,
    pub(crate) released: HashMap<&'a str, Vec<&'a Released>>,
    pub(crate) extended: HashMap<&'a str, Vec<&'a Extended>>,
    sought: Vec<&'a Sought>,
    effects: Vec<(&'a str, u64)>,
}

impl<'a> Log<'a> {
    fn of(events: &'a [Event], slack: i64) -> Self {
        let mut log = Self {
            slack,
            groups: BTreeMap::new(),
            pushes: BTreeMap::new(),
            deliveries: Vec::new(),
            settled: Vec::new(),
            released: HashMap::new(),
            extended: HashMap::new(),
            sought: Vec::new(),
            effects: Vec::new(),
        };
        for event in events {
            match event {
                Event::Group(one) => drop(log.groups.insert(&one.group, one)),
                Event::Push(one) => drop(log.pushes.insert(one.message, one)),
                Event::Delivery(one) => log.deliveries.push(one),
                Event::Settled(one) => log.settled.push(one),
                Event::Released(one) => log.released.entry(&one.lease).or_default().push(one),
                Event::Extended(one) => log.extended.entry(&one.lease).or_default().push(one),
                Event::Sought(one) => log.sought.push(one),
                Event::Effect(one) => log.effects.push((&one.group, one.message)),
            }
        }
        log.deliveries.sort_by_key(|one| (one.call.answered(), one.pop, one.place));
        log
    }

    fn check_names(&self, found: &mut Vec<Fault>) {
        let deliveries = self.deliveries.iter().map(|one| &one.group[..]);
        let settled = self.settled.iter().map(|one| &one.group[..]);
        let effects = self.effects.iter().map(|(group, _)| *group);
        for group in deliveries.chain(settled).chain(effects) {
            if !self.groups.contains_key(group) {
                fault(found, Rule::Complete, format!("the log says nothing of group {group}"));
            }
        }
        let mut rows: Vec<(u64, u64)> =
            self.deliveries.iter().map(|one| (one.pop, one.place)).collect();
        rows.sort_unstable();
        for pair in rows.windows(2).filter(|pair| pair[0] == pair[1]) {
            let (pop, place) = pair[0];
            fault(found, Rule::Complete, format!("pop {pop} has two messages at place {place}"));
        }
    }
}

pub(crate) fn fault(found: &mut Vec<Fault>, rule: Rule, text: String) {
    found.push(Fault { rule, text });
}

/// What one group has seen.
pub(crate) struct View<'a> {
    pub(crate) log: &'a Log<'a>,
    pub(crate) group: &'a Group,
    /// In the order of their answers.
    pub(crate) deliveries: Vec<&'a Delivery>,
    pub(crate) settled: HashMap<u64, Vec<&'a Settled>>,
    pub(crate) first_seen: HashMap<u64, Interval>,
    sought: Vec<&'a Sought>,
}

impl<'a> View<'a> {
    fn of(log: &'a Log<'a>, group: &'a Group) -> Self {
        let name = &group.group;
        let deliveries: Vec<_> =
            log.deliveries.iter().copied().filter(|one| one.group == *name).collect();
        let mut settled: HashMap<u64, Vec<&Settled>> = HashMap::new();
        for one in log.settled.iter().filter(|one| one.group == *name) {
            settled.entry(one.message).or_default().push(one);
        }
        let mut first_seen = HashMap::new();
        for one in &deliveries {
            first_seen.entry(one.message).or_insert(one.call);
        }
        let sought = log.sought.iter().copied().filter(|one| one.group == *name).collect();
        Self { log, group, deliveries, settled, first_seen, sought }
    }

    pub(crate) fn report(&self, found: &mut Vec<Fault>, rule: Rule, text: String) {
        fault(found, rule, format!("group {}: {text}", self.group.group));
    }

    /// Whether the group must get a message. None: it may get it or not.
    pub(crate) fn wants(&self, push: &Push) -> Option<bool> {
        match self.group.reads {
            _ if self.moves(&push.key).next().is_some() => None,
            Reads::All => Some(true),
            Reads::New(call) if push.transaction.end.sent() > call.answered() => Some(true),
            Reads::New(call) if push.transaction.end.is_before(call) => Some(false),
            Reads::New(_) => None,
        }
    }

    /// The transactions that have moved the group in a key.
    pub(crate) fn moves(&self, key: &str) -> impl Iterator<Item = Transaction> {
        let of_key = move |one: &&&Sought| one.key.as_deref().is_none_or(|of| of == key);
        self.sought.iter().filter(of_key).map(|one| one.transaction).filter(|one| one.committed)
    }

    /// The committed settlements of a message.
    pub(crate) fn settlements(&self, message: u64) -> impl Iterator<Item = &'a Settled> {
        let all = self.settled.get(&message).into_iter().flatten().copied();
        all.filter(|one| one.transaction.committed)
    }

    /// Whether the group may have been moved after this.
    fn may_have_moved(&self, key: &str, since: Interval) -> bool {
        self.moves(key).any(|one| one.end.answered() >= since.sent())
    }

    fn check_lost(&self, found: &mut Vec<Fault>) {
        for push in self.log.pushes.values().filter(|push| push.transaction.committed) {
            let all: Vec<_> = self.settlements(push.message).collect();
            let is_delivered = self.first_seen.contains_key(&push.message);
            let may_be_missing = self.moves(&push.key).next().is_some();
            let must = self.wants(push) == Some(true) || is_delivered && !may_be_missing;
            if all.is_empty() && must {
                let how = if is_delivered { "delivered, not settled" } else { "not delivered" };
                self.report(found, Rule::NothingLost, format!("{push:?} was {how}"));
            }
            if all.len() > 1 && !may_be_missing {
                let text = format!("message {} was settled twice: {all:?}", push.message);
                self.report(found, Rule::SettledOnce, text);
            }
        }
    }

    fn check_deliveries(&self, found: &mut Vec<Fault>) {
        for delivery in &self.deliveries {
            let push = self.log.pushes.get(&delivery.message);
            let push = push.filter(|push| push.transaction.committed);
            let Some(push) = push.filter(|push| push.key == delivery.key) else {
                let text = format!("no committed push explains {delivery:?}");
                self.report(found, Rule::NothingMadeUp, text);
                continue;
            };
            if delivery.call.is_before(push.transaction.end) {
                let text = format!("{delivery:?} came before the end of {push:?}");
                self.report(found, Rule::NothingMadeUp, text);
            }
            if self.wants(push) == Some(false) {
                self.report(found, Rule::OnlyNew, format!("{delivery:?} of {push:?}"));
            }
            for settled in self.settled.get(&delivery.message).into_iter().flatten() {
                let end = settled.transaction.end;
                let own = settled.transaction.id == delivery.transaction.id
                    && settled.call.sent() < delivery.call.sent()
                    && delivery.call.answered() < end.sent();
                let is_over = settled.transaction.committed && end.is_before(delivery.call);
                if (own || is_over) && !self.may_have_moved(&delivery.key, end) {
                    let text = format!("{delivery:?} came after {settled:?}");
                    self.report(found, Rule::NoReturn, text);
                }
            }
        }
    }

    fn check_attempts(&self, found: &mut Vec<Fault>) {
        let mut last: HashMap<u64, &Delivery> = HashMap::new();
        for delivery in self.deliveries.iter().filter(|one| one.transaction.committed) {
            let before = last.insert(delivery.message, delivery);
            let Some(before) = before else { continue };
            let is_higher = before.attempt < delivery.attempt;
            let is_later = before.transaction.end.is_before(delivery.call);
            if is_later && !is_higher && !self.may_have_moved(&delivery.key, before.call) {
                let text = format!("{delivery:?} came after {before:?}");
                self.report(found, Rule::Attempts, text);
            }
        }
    }

    fn check_effects(&self, found: &mut Vec<Fault>) {
        let mut effects: BTreeMap<u64, usize> = BTreeMap::new();
        for (_, message) in self.log.effects.iter().filter(|(of, _)| *of == self.group.group) {
            *effects.entry(*message).or_default() += 1;
        }
        for (message, count) in &effects {
            let completed = self.settlements(*message).count();
            if *count > 1 || completed == 0 {
                let text = format!("message {message}: {count} effects, {completed} settlements");
                self.report(found, Rule::EffectOnce, text);
            }
        }
        if !self.group.effects {
            return;
        }
        for message in self.settled.keys() {
            let mut all = self.settlements(*message);
            let is_completed = all.any(|one| one.outcome == crate::Outcome::Completed);
            if is_completed && !effects.contains_key(message) {
                let text = format!("message {message} was completed without its effect");
                self.report(found, Rule::EffectThere, text);
            }
        }
    }
}
