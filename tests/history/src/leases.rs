//! Leases: one holder at a time, and no settlement without being the holder.

use std::collections::{HashMap, HashSet};

use crate::check::{Fault, Rule, View};
use crate::event::{Delivery, Released, Settled};

/// What is held as a whole: a key, or in a group without order a message.
type Unit<'a> = (&'a str, Option<u64>);

impl<'a> View<'a> {
    fn unit(&self, delivery: &'a Delivery) -> Unit<'a> {
        (&delivery.key, (!self.group.ordered).then_some(delivery.message))
    }

    /// A pop that was sent after another one was answered, and was answered before the lease of
    /// that one can have ended, cannot get the same unit.
    pub(crate) fn check_holders(&self, found: &mut Vec<Fault>) {
        let mut messages: HashMap<(&str, Unit<'_>), Vec<u64>> = HashMap::new();
        for one in &self.deliveries {
            let Some(lease) = one.lease.as_deref() else { continue };
            messages.entry((lease, self.unit(one))).or_default().push(one.message);
        }
        let mut held: HashMap<Unit<'_>, Vec<(&Delivery, i64)>> = HashMap::new();
        let mut seen = HashSet::new();
        for one in &self.deliveries {
            let unit = self.unit(one);
            if !seen.insert((one.pop, unit)) {
                continue;
            }
            let holders = held.entry(unit).or_default();
            // Pops come in the order of their answers: what is over by now is over for good.
            holders.retain(|(_, until)| *until > one.call.answered());
            for (holder, _) in holders.iter() {
                let is_later = holder.call.is_before(one.call);
                if is_later && !self.is_over_within(holder, one) {
                    let text = format!("{one:?} came while {holder:?} was in force");
                    self.report(found, Rule::OneHolder, text);
                }
            }
            let of = one.lease.as_deref().map(|lease| (lease, unit));
            let all = of.and_then(|of| messages.get(&of)).map_or(&[][..], Vec::as_slice);
            holders.push((one, self.held_until(one, all)));
        }
    }

    /// The earliest moment at which the lease of a delivery can have ended.
    fn held_until(&self, delivery: &Delivery, all: &[u64]) -> i64 {
        let transaction = delivery.transaction;
        if !transaction.committed {
            return transaction.end.sent();
        }
        let Some((lease, expires)) = delivery.lease.as_ref().zip(delivery.expires) else {
            return transaction.end.sent();
        };
        let released = self.releases(lease, delivery).map(|one| one.transaction);
        let released = released.filter(|one| one.committed).map(|one| one.end.sent());
        let settled = all.iter().map(|message| {
            let by_it = self.settlements(*message).filter(|one| one.lease.as_ref() == Some(lease));
            by_it.map(|one| one.transaction.end.sent()).min().unwrap_or(i64::MAX)
        });
        let settled = settled.max().unwrap_or(i64::MAX);
        let by_clock = expires - self.log.slack;
        let moved = self.moves(&delivery.key).map(|one| one.end);
        let moved =
            moved.filter(|end| end.answered() >= delivery.call.sent()).map(|end| end.sent());
        released.chain(moved).chain([settled, by_clock]).min().unwrap_or(by_clock)
    }

    fn releases(&self, lease: &str, delivery: &Delivery) -> impl Iterator<Item = &'a Released> {
        let (key, message) = (delivery.key.clone(), delivery.message);
        let ordered = self.group.ordered;
        let all = self.log.released.get(lease).into_iter().flatten().copied();
        all.filter(move |one| match ordered {
            true => one.key.as_deref().is_none_or(|of| of == key),
            false => one.message.is_none_or(|of| of == message),
        })
    }

    /// Whether the transaction of `later` has itself ended what `holder` holds. Its calls follow
    /// each other.
    fn is_over_within(&self, holder: &Delivery, later: &Delivery) -> bool {
        let id = later.transaction.id;
        let lease = holder.lease.as_deref().unwrap_or_default();
        let mut released = self.releases(lease, holder);
        let is_own = |settled: &&&Settled| {
            settled.transaction.id == id && settled.call.sent() < later.call.sent()
        };
        let own = self.settled.values().flatten().filter(is_own);
        released.any(|one| one.transaction.id == id && one.call.sent() < later.call.sent())
            || own.into_iter().any(|one| one.lease.as_deref() == Some(lease))
    }

    /// A settlement that was committed is of a message that its lease was given, and was sent
    /// before the end of the lease.
    pub(crate) fn check_fence(&self, found: &mut Vec<Fault>) {
        let mut given: HashMap<(&str, u64), i64> = HashMap::new();
        for one in self.deliveries.iter().filter(|one| one.lease.is_some()) {
            let lease = one.lease.as_deref().unwrap_or_default();
            let extended = self.log.extended.get(lease).into_iter().flatten();
            let extended = extended.map(|one| one.expires).max();
            let expires = one.expires.max(extended).unwrap_or(i64::MAX);
            given.insert((lease, one.message), expires);
        }
        for one in self.settled.values().flatten().filter(|one| one.transaction.committed) {
            let Some(lease) = one.lease.as_deref() else { continue };
            match given.get(&(lease, one.message)) {
                None => {
                    let text = format!("{one:?} under a lease that was not given the message");
                    self.report(found, Rule::Fence, text);
                }
                Some(expires) if one.call.sent() > expires + self.log.slack => {
                    let text = format!("{one:?} under a lease that had ended at {expires}");
                    self.report(found, Rule::Fence, text);
                }
                Some(_) => (),
            }
        }
    }
}
