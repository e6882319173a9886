//! Judges a history: what the contract promises about deliveries and settlements.
//!
//! A message A must come before B in their stream when
//! - one producer pushed A before B, or
//! - A's transaction had committed (its answer was there) before B's push was sent, or
//! - a row lock of the application put A before B.
//!
//! Whenever B is delivered, each such A has to be settled already: completed by a transaction
//! whose COMMIT had been sent when the pop returned, or by an ack earlier in the pop's own
//! transaction, or it has to stand before B in the same pop.

mod leases;

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};
use std::fmt;

use uuid::Uuid;

use super::history::{
    Completion, Delivery, GroupId, History, PushRecord, Release, Stamp, StreamId, Tx, TxId, Uid,
    Unit,
};
use super::prefix::Prefix;

/// The stamp of an event that never happened.
const NEVER: Stamp = Stamp::MAX;

/// What can be wrong in a history.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Fault {
    /// The push was committed, and the message never completed.
    Lost,
    /// Two committed acks completed the message.
    CompletedTwice,
    /// Delivered although its push was rolled back or never made.
    Phantom,
    /// Delivered before its transaction committed.
    Uncommitted,
    /// Delivered to a group that registered after the push had committed.
    BeforeRegistration,
    /// Delivered before a message that must come first had been delivered at all.
    Inversion,
    /// Delivered while a message that must come first was delivered but not settled.
    Overtook,
    /// Delivered after it had been completed.
    Resurrected,
    /// Delivered while another lease held its stream.
    Shared,
    /// Delivered twice in the rows of one pop.
    Repeated,
    /// The values of delivery_attempt are not 1, 2, 3, …
    Attempt,
    /// Delivered with another message_id, or in another stream, than it was pushed with.
    Identity,
}

/// One fault, with its details.
#[derive(Clone, Debug)]
pub struct Violation {
    pub fault: Fault,
    pub text: String,
}

impl fmt::Display for Violation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?}: {}", self.fault, self.text)
    }
}

/// Find everything that is wrong in a history.
pub fn check(history: &History) -> Vec<Violation> {
    let facts = Facts::of(history);
    let mut found = Vec::new();
    for group in 0..history.groups.len() {
        let view = View::of(&facts, group as GroupId);
        view.check_settled_once(&mut found);
        view.check_messages(&mut found);
        view.check_attempts(&mut found);
        view.check_resurrected(&mut found);
        if !history.unordered {
            view.check_order(&mut found);
        }
        view.check_leases(&mut found);
    }
    found
}

/// What does not depend on the group.
struct Facts<'a> {
    history: &'a History,
    txs: HashMap<TxId, Tx>,
    pushes: HashMap<Uid, &'a PushRecord>,
    /// Committed pushes by stream, in the order of their transactions' answers.
    by_done: BTreeMap<StreamId, Vec<(Stamp, Uid)>>,
    /// The messages that must come right before a message: the last one of its producer and the
    /// last one under its row lock.
    before: HashMap<Uid, Vec<Uid>>,
}

impl<'a> Facts<'a> {
    fn of(history: &'a History) -> Self {
        let txs: HashMap<TxId, Tx> = history.txs.iter().map(|tx| (tx.id, *tx)).collect();
        let pushes = history.pushes.iter().map(|push| (push.uid, push)).collect();
        let mut facts =
            Self { history, txs, pushes, by_done: BTreeMap::new(), before: HashMap::new() };
        let mut by_producer: BTreeMap<(StreamId, u32), Vec<Uid>> = BTreeMap::new();
        let mut by_lock: BTreeMap<(StreamId, u32), Vec<(i64, Uid)>> = BTreeMap::new();
        for push in &history.pushes {
            let Some(tx) = facts.committed(push.tx).filter(|_| !push.undone) else { continue };
            facts.by_done.entry(push.stream).or_default().push((tx.done, push.uid));
            by_producer.entry((push.stream, push.producer)).or_default().push(push.uid);
            if let Some((row, place)) = push.locked {
                by_lock.entry((push.stream, row)).or_default().push((place, push.uid));
            }
        }
        for list in facts.by_done.values_mut() {
            list.sort_unstable();
        }
        let mut chain = |uids: Vec<Uid>| {
            for pair in uids.windows(2) {
                facts.before.entry(pair[1]).or_default().push(pair[0]);
            }
        };
        for mut uids in by_producer.into_values() {
            uids.sort_unstable();
            chain(uids);
        }
        for mut places in by_lock.into_values() {
            places.sort_unstable();
            chain(places.into_iter().map(|(_, uid)| uid).collect());
        }
        facts
    }

    fn committed(&self, tx: TxId) -> Option<Tx> {
        self.txs.get(&tx).copied().filter(|tx| tx.committed)
    }

    /// The push of a message, if it took effect.
    fn effective(&self, uid: Uid) -> Option<(&'a PushRecord, Tx)> {
        let push = *self.pushes.get(&uid)?;
        let tx = self.committed(push.tx)?;
        (!push.undone).then_some((push, tx))
    }
}

/// What one group received and settled.
struct View<'a> {
    facts: &'a Facts<'a>,
    name: &'a str,
    registered: Option<(Stamp, Stamp)>,
    deliveries: Vec<&'a Delivery>,
    completions: HashMap<Uid, Vec<&'a Completion>>,
    releases: HashMap<(Uuid, Unit), Vec<&'a Release>>,
    /// For every message that was delivered, the answer of the first pop that returned it.
    first_seen: HashMap<Uid, Stamp>,
    /// The place of a message in a pop.
    place: HashMap<(u32, Uid), u32>,
}

impl<'a> View<'a> {
    fn of(facts: &'a Facts<'a>, group: GroupId) -> Self {
        let history = facts.history;
        let about = &history.groups[group as usize];
        let mut view = Self {
            facts,
            name: &about.name,
            registered: about.registered,
            deliveries: history.deliveries.iter().filter(|one| one.group == group).collect(),
            completions: HashMap::new(),
            releases: HashMap::new(),
            first_seen: HashMap::new(),
            place: HashMap::new(),
        };
        view.deliveries.sort_unstable_by_key(|delivery| (delivery.returned, delivery.at));
        for one in history.completions.iter().filter(|one| one.group == group) {
            view.completions.entry(one.uid).or_default().push(one);
        }
        for one in &history.releases {
            view.releases.entry((one.lease, one.unit)).or_default().push(one);
        }
        for delivery in &view.deliveries {
            view.first_seen.entry(delivery.uid).or_insert(delivery.returned);
            view.place.entry((delivery.pop, delivery.uid)).or_insert(delivery.at);
        }
        view
    }

    fn report(&self, found: &mut Vec<Violation>, fault: Fault, text: String) {
        found.push(Violation { fault, text: format!("group {}: {text}", self.name) });
    }

    /// Whether this group must get the message. None: it may get it or not.
    fn wants(&self, tx: &Tx) -> Option<bool> {
        match self.registered {
            None => Some(true),
            Some((_, after)) if tx.sent > after => Some(true),
            Some((before, _)) if tx.done < before => Some(false),
            Some(_) => None,
        }
    }

    /// The committed transactions that completed a message.
    fn completed(&self, uid: Uid) -> impl Iterator<Item = Tx> {
        let completions = self.completions.get(&uid).into_iter().flatten();
        completions
            .filter(|one| one.undone.is_none())
            .filter_map(|one| self.facts.committed(one.tx))
    }

    /// The stamp before the COMMIT that completed a message was sent. 0 if the group need not get
    /// the message and did not get it.
    fn settled(&self, uid: Uid) -> Stamp {
        let earliest = self.completed(uid).map(|tx| tx.sent);
        let optional = || {
            let wanted = self.facts.effective(uid).and_then(|(_, tx)| self.wants(&tx));
            wanted != Some(true) && !self.first_seen.contains_key(&uid)
        };
        earliest.min().unwrap_or_else(|| if optional() { 0 } else { NEVER })
    }

    /// No message is lost, and none is completed twice.
    fn check_settled_once(&self, found: &mut Vec<Violation>) {
        for push in &self.facts.history.pushes {
            let Some((_, tx)) = self.facts.effective(push.uid) else { continue };
            let count = self.completed(push.uid).count();
            if count > 1 {
                self.report(
                    found,
                    Fault::CompletedTwice,
                    format!("message {} was completed {count} times", push.uid),
                );
            }
            let delivered = self.first_seen.contains_key(&push.uid);
            if count == 0 && (self.wants(&tx) == Some(true) || delivered) {
                let how = if delivered { "delivered, never completed" } else { "never delivered" };
                self.report(found, Fault::Lost, format!("message {push:?} was {how}"));
            }
        }
    }

    /// Every message that is delivered was pushed, was committed, and is as it was pushed.
    fn check_messages(&self, found: &mut Vec<Violation>) {
        let mut seen = HashSet::new();
        for delivery in &self.deliveries {
            if !seen.insert((delivery.pop, delivery.uid)) {
                self.report(found, Fault::Repeated, format!("twice in one pop: {delivery:?}"));
            }
            let Some((push, tx)) = self.facts.effective(delivery.uid) else {
                self.report(found, Fault::Phantom, format!("never committed: {delivery:?}"));
                continue;
            };
            if delivery.returned < tx.sent {
                let text = format!("{delivery:?} came before {tx:?} was to commit");
                self.report(found, Fault::Uncommitted, text);
            }
            if self.wants(&tx) == Some(false) {
                self.report(found, Fault::BeforeRegistration, format!("{delivery:?} of {tx:?}"));
            }
            if push.message_id != delivery.message_id || push.stream != delivery.stream {
                self.report(found, Fault::Identity, format!("{push:?} came as {delivery:?}"));
            }
        }
    }

    /// Each committed delivery raises the message's delivery_attempt by one.
    fn check_attempts(&self, found: &mut Vec<Violation>) {
        let mut attempts: BTreeMap<Uid, Vec<i32>> = BTreeMap::new();
        for delivery in &self.deliveries {
            if delivery.undone.is_none() && self.facts.committed(delivery.tx).is_some() {
                attempts.entry(delivery.uid).or_default().push(delivery.attempt);
            }
        }
        for (uid, mut list) in attempts {
            list.sort_unstable();
            let right = if self.facts.history.gaps {
                list[0] >= 1 && list.windows(2).all(|pair| pair[0] < pair[1])
            } else {
                list.iter().copied().eq(1..=list.len() as i32)
            };
            if !right {
                let text = format!("the attempts of message {uid} were {list:?}");
                self.report(found, Fault::Attempt, text);
            }
        }
    }

    /// A message that is completed is not delivered again.
    fn check_resurrected(&self, found: &mut Vec<Violation>) {
        for delivery in &self.deliveries {
            for one in self.completions.get(&delivery.uid).into_iter().flatten() {
                let own = one.tx == delivery.tx
                    && one.began < delivery.began
                    && one.undone.is_none_or(|stamp| stamp > delivery.returned);
                let committed = self.facts.committed(one.tx).filter(|_| one.undone.is_none());
                if own || committed.is_some_and(|tx| tx.done < delivery.began) {
                    let text = format!("{delivery:?} came after {one:?} in {committed:?}");
                    self.report(found, Fault::Resurrected, text);
                }
            }
        }
    }

    /// Everything that must come before a delivery is settled when it comes. A message that was
    /// overtaken is reported once, however many overtook it.
    fn check_order(&self, found: &mut Vec<Violation>) {
        let mut streams: HashMap<StreamId, Prefix> = HashMap::new();
        let mut named = HashSet::new();
        for delivery in &self.deliveries {
            let Some((push, _)) = self.facts.effective(delivery.uid) else { continue };
            let mut overtaken = BTreeSet::new();
            let mut look_at = |earlier: Uid| {
                if !self.settled_for(delivery, earlier) && named.insert(earlier) {
                    overtaken.insert(earlier);
                }
            };
            self.facts.before.get(&delivery.uid).into_iter().flatten().for_each(|n| look_at(*n));
            if let Some(list) = self.facts.by_done.get(&push.stream) {
                let prefix = streams.entry(push.stream).or_insert_with(|| {
                    Prefix::of(list.iter().map(|(_, uid)| self.settled(*uid)).collect())
                });
                let until = list.partition_point(|(done, _)| *done < push.began);
                prefix.at_least(delivery.returned, until, |index| look_at(list[index].1));
            }
            for earlier in overtaken {
                let known = self.first_seen.get(&earlier).is_some_and(|at| *at < delivery.began);
                let fault = if known { Fault::Overtook } else { Fault::Inversion };
                let first = self.facts.pushes.get(&earlier);
                let text = format!("{delivery:?} of {push:?} came before {first:?} was settled");
                self.report(found, fault, text);
            }
        }
    }

    /// Whether an earlier message was settled, or had a lower place in the same pop, when a
    /// delivery came.
    fn settled_for(&self, delivery: &Delivery, earlier: Uid) -> bool {
        let place = self.place.get(&(delivery.pop, earlier));
        self.settled(earlier) < delivery.returned
            || self.completed_in(delivery.tx, earlier, delivery.returned)
            || place.is_some_and(|place| *place < delivery.at)
    }

    /// Whether a transaction, which may still roll back, had completed a message by then.
    fn completed_in(&self, tx: TxId, uid: Uid, by: Stamp) -> bool {
        self.completions
            .get(&uid)
            .into_iter()
            .flatten()
            .any(|one| one.tx == tx && one.began < by && one.undone.is_none_or(|stamp| stamp > by))
    }

    fn unit(&self, delivery: &Delivery) -> Unit {
        self.facts.history.unit(delivery.stream, delivery.uid)
    }
}

#[cfg(test)]
mod tests;
