//! Checks that leases exclude each other.

use std::collections::{HashMap, HashSet};

use super::{Delivery, Fault, NEVER, Release, Unit, View, Violation};

/// How long after the end of a lease, in microseconds, the checker stops looking at it.
const FORGET: i64 = 10_000_000;

/// How exactly the end of a lease is known, in microseconds.
const SLACK: i64 = 2_000;

impl<'a> View<'a> {
    /// At most one lease holds a stream or, in a group without order, a message.
    pub(super) fn check_leases(&self, found: &mut Vec<Violation>) {
        let mut held: HashMap<Unit, Vec<&Delivery>> = HashMap::new();
        let mut seen = HashSet::new();
        for delivery in &self.deliveries {
            // One row is enough for all messages of the unit in this pop.
            let unit = self.unit(delivery);
            if !seen.insert((delivery.pop, unit)) {
                continue;
            }
            let holders = held.entry(unit).or_default();
            holders.retain(|holder| {
                let forgotten = delivery.clock.is_some_and(|now| now >= holder.expires + FORGET)
                    && !self.locked(holder, delivery);
                !forgotten && !self.over(holder, delivery)
            });
            for holder in holders.iter() {
                if holder.returned < delivery.began
                    && !self.over_in_transaction(holder, delivery)
                    && (self.locked(holder, delivery)
                        || delivery.clock.is_some_and(|now| now + SLACK < holder.expires))
                {
                    let text = format!("{delivery:?} came while {holder:?} was in force");
                    self.report(found, Fault::Shared, text);
                }
            }
            holders.push(delivery);
        }
    }

    /// Whether the transaction of `holder` had not begun to end when `later` came. Then it held a
    /// lock, whatever the time was.
    fn locked(&self, holder: &Delivery, later: &Delivery) -> bool {
        let ending = self.facts.txs.get(&holder.tx).map_or(NEVER, |tx| tx.sent);
        holder.tx != later.tx && ending >= later.returned
    }

    /// Whether `holder` was rolled back or released, as all other transactions see it, at the
    /// earliest when `later` came.
    fn over(&self, holder: &Delivery, later: &Delivery) -> bool {
        let rolled_back = self
            .facts
            .txs
            .get(&holder.tx)
            .is_some_and(|tx| !tx.committed && tx.sent < later.returned);
        rolled_back
            || holder.undone.is_some_and(|stamp| stamp < later.returned)
            || self.releases_of(holder).any(|one| {
                let committed = self.facts.committed(one.tx).filter(|_| one.undone.is_none());
                committed.is_some_and(|tx| tx.sent < later.returned)
            })
    }

    /// Whether the transaction of `later` itself had released `holder`.
    fn over_in_transaction(&self, holder: &Delivery, later: &Delivery) -> bool {
        self.releases_of(holder).any(|one| {
            one.tx == later.tx
                && one.began < later.returned
                && one.undone.is_none_or(|stamp| stamp > later.returned)
        })
    }

    fn releases_of(&self, holder: &Delivery) -> impl Iterator<Item = &'a Release> {
        self.releases.get(&(holder.lease, self.unit(holder))).into_iter().flatten().copied()
    }
}
