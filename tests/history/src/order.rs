//! Order: what must come before a message is settled when the message comes.

use std::collections::{BTreeMap, HashMap, HashSet};

use crate::check::{Fault, Rule, View};
use crate::event::{Delivery, Push};

/// A settlement that never was.
const NEVER: i64 = i64::MAX;

/// The committed pushes of a key, in the order in which their COMMITs were answered, each with the
/// latest settlement of all up to it.
struct Answered<'a>(Vec<(&'a Push, i64)>);

impl<'a> View<'a> {
    pub(crate) fn check_order(&self, found: &mut Vec<Fault>) {
        let before = self.pushed_right_before();
        let keys = self.by_key();
        let mut place: HashMap<(u64, u64), u64> = HashMap::new();
        for one in &self.deliveries {
            place.entry((one.pop, one.message)).or_insert(one.place);
        }
        let mut told = HashSet::new();
        for one in &self.deliveries {
            let Some(push) = self.log.pushes.get(&one.message) else { continue };
            let mut overtaken: Vec<&Push> = before.get(&one.message).into_iter().copied().collect();
            if let Some(Answered(all)) = keys.get(&push.key[..]) {
                let until =
                    all.partition_point(|(other, _)| other.transaction.end.is_before(push.call));
                // Up to here all were settled by then.
                let from = all.partition_point(|(_, latest)| *latest < one.call.answered());
                overtaken.extend(all[from.min(until)..until].iter().map(|(other, _)| other));
            }
            for other in overtaken {
                let stands_before =
                    place.get(&(one.pop, other.message)).is_some_and(|place| *place < one.place);
                let is_settled = self.settled_from(other) < one.call.answered()
                    || self.is_settled_within(one, other.message);
                if !stands_before && !is_settled && told.insert(other.message) {
                    let text = format!("{one:?} of {push:?} came before {other:?} was settled");
                    self.report(found, Rule::Order, text);
                }
            }
        }
    }

    /// For each message the one that its producer has pushed right before under that key.
    fn pushed_right_before(&self) -> HashMap<u64, &'a Push> {
        let mut by_producer: BTreeMap<(&str, u64), Vec<&Push>> = BTreeMap::new();
        for push in self.log.pushes.values().filter(|push| push.transaction.committed) {
            by_producer.entry((&push.key, push.producer)).or_default().push(push);
        }
        let mut before = HashMap::new();
        for mut pushes in by_producer.into_values() {
            pushes.sort_by_key(|push| (push.call, push.place));
            before.extend(pushes.windows(2).map(|pair| (pair[1].message, pair[0])));
        }
        before
    }

    fn by_key(&self) -> HashMap<&'a str, Answered<'a>> {
        let mut keys: HashMap<&str, Vec<&Push>> = HashMap::new();
        for push in self.log.pushes.values().filter(|push| push.transaction.committed) {
            keys.entry(&push.key).or_default().push(push);
        }
        let answered = |(key, mut pushes): (&'a str, Vec<&'a Push>)| {
            pushes.sort_by_key(|push| push.transaction.end.answered());
            let mut latest = i64::MIN;
            let with_latest = pushes.into_iter().map(|push| {
                latest = latest.max(self.settled_from(push));
                (push, latest)
            });
            (key, Answered(with_latest.collect()))
        };
        keys.into_iter().map(answered).collect()
    }

    /// From which moment on a message may count as settled. From the beginning, if the group need
    /// not get it and did not get it.
    fn settled_from(&self, push: &Push) -> i64 {
        let ends = self.settlements(push.message).map(|one| one.transaction.end.sent());
        let is_optional =
            || self.wants(push) != Some(true) && !self.first_seen.contains_key(&push.message);
        ends.min().unwrap_or_else(|| if is_optional() { i64::MIN } else { NEVER })
    }

    /// Whether the transaction of a delivery had itself settled a message before.
    fn is_settled_within(&self, delivery: &Delivery, message: u64) -> bool {
        let mut all = self.settled.get(&message).into_iter().flatten();
        all.any(|one| {
            one.transaction.id == delivery.transaction.id && one.call.sent() < delivery.call.sent()
        })
    }
}
