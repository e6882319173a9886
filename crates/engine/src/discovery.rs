//! Where a consumer group has looked for work.
//!
//! Three sources tell of partitions that may have something to deliver: segments in order of
//! their transaction, announcements (a cursor was left ready or waiting for a retry) in order of
//! theirs, and moments (deadlines, retries) in order of time. What they name is kept in `open`
//! until it has been looked at: popped, found busy, or found empty.
//!
//! A partition that is busy by what has been committed is dropped from `open` without loss: the
//! moment it waits for is still ahead in the third source, and whoever ends the lease earlier
//! announces it. One that is locked stays, since its holder may yet roll back.
//!
//! A state is a fact about the log, not a lock: every transaction derives its own from the newest
//! one it sees and writes it beside the others. Whichever is read next is right; an older one
//! only makes somebody look twice.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::holes::Snapshot;
use crate::names::Names;

/// A place in an order by transaction id, then by `K`, and the transactions passed while they
/// were running, each with how far its rows have been passed since.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Stream<K: Ord + Default> {
    pub xid: u64,
    pub key: K,
    pub holes: BTreeMap<u64, K>,
}

impl<K: Ord + Default + Clone> Stream<K> {
    /// From where everything that `snapshot` does not see is still to come. `xmax` as in
    /// `pg_snapshot`.
    pub fn starting_at(snapshot: &Snapshot, xmax: u64) -> Self {
        let mut stream = Self { xid: xmax, ..Self::default() };
        stream.leave_holes(snapshot);
        stream
    }

    /// Transactions passed while they ran that have ended since: where to read on in each.
    pub fn finished(&self, snapshot: &Snapshot) -> Vec<(u64, K)> {
        let ended = |xid: &u64| !snapshot.holes.contains(*xid);
        self.holes.iter().filter(|(xid, _)| ended(xid)).map(|(x, k)| (*x, k.clone())).collect()
    }

    /// Pass a row: in the main order, or among those of a finished transaction. False for rows of
    /// the looking transaction itself, which are not passed: more of them may come.
    pub fn pass(&mut self, xid: u64, key: K, snapshot: &Snapshot) -> bool {
        if snapshot.is_own(xid) {
            return false;
        }
        match self.holes.get_mut(&xid) {
            Some(passed) => *passed = key,
            None => (self.xid, self.key) = (xid, key),
        }
        true
    }

    /// What comes after `key` in a transaction that has ended is left for later, as if it ran yet.
    pub fn leave_behind(&mut self, xid: u64, key: K, snapshot: &Snapshot) {
        if !snapshot.is_own(xid) {
            self.holes.entry(xid).or_insert(key);
        }
    }

    /// Whether a row was passed.
    pub fn has_passed(&self, xid: u64, key: &K) -> bool {
        match self.holes.get(&xid) {
            Some(passed) => key <= passed,
            None => (xid, key) <= (self.xid, &self.key),
        }
    }

    /// Nothing is left of a finished transaction.
    pub fn finish(&mut self, xid: u64, snapshot: &Snapshot) {
        if !snapshot.is_own(xid) {
            self.holes.remove(&xid);
        }
    }

    /// After passing rows under `snapshot`: what was passed over while it ran is a hole.
    pub fn leave_holes(&mut self, snapshot: &Snapshot) {
        for &(low, high) in snapshot.holes.ranges() {
            for xid in low..high.min(self.xid) {
                self.holes.entry(xid).or_default();
            }
        }
        if let Some(own) = snapshot.own.filter(|&own| own < self.xid) {
            self.holes.entry(own).or_default();
        }
    }
}

/// Bytes of a name, or of a place in a transaction, in a set of them, about.
const ENTRY: usize = 100;

/// The state of a group's search.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Discovery {
    /// By (transaction, partition, segment).
    pub segments: Stream<(String, u64)>,
    /// By (transaction, cursor).
    pub announced: Stream<u64>,
    /// By (moment in microseconds, cursor).
    pub due: (i64, u64),
    /// Partitions heard of and not looked at yet.
    pub open: Names,
    /// Older states of the group have been removed up to this revision.
    pub pruned: i64,
    /// Rows passed since this state was last written.
    #[serde(skip)]
    pub passed: usize,
}

impl Discovery {
    /// The bytes that it takes in memory, about.
    pub fn bytes(&self) -> usize {
        ENTRY * (self.open.len() + self.segments.holes.len() + self.announced.holes.len())
    }

    /// A group that wants only what `snapshot` does not see yet.
    pub fn starting_at(snapshot: &Snapshot, xmax: u64) -> Self {
        Self { segments: Stream::starting_at(snapshot, xmax), ..Self::default() }
    }

    /// The highest transaction id in it. Holes lie below the places.
    pub fn reached(&self) -> u64 {
        self.segments.xid.max(self.announced.xid)
    }

    /// Pass a segment, keeping its partition.
    pub fn pass_segment(&mut self, xid: u64, partition: String, segment: u64, snapshot: &Snapshot) {
        self.open.insert(partition.clone());
        let is_passed = self.segments.pass(xid, (partition, segment), snapshot);
        self.passed += usize::from(is_passed);
    }

    /// Pass an announcement; one that a later revision superseded names nothing.
    pub fn pass_announcement(
        &mut self,
        xid: u64,
        cursor: u64,
        partition: Option<String>,
        snapshot: &Snapshot,
    ) {
        self.open.extend(partition);
        self.passed += usize::from(self.announced.pass(xid, cursor, snapshot));
    }

    /// Pass a moment that has come.
    pub fn pass_moment(&mut self, at: i64, cursor: u64, partition: Option<String>) {
        self.open.extend(partition);
        self.passed += 1;
        self.due = (at, cursor);
    }

    /// After a search under `snapshot`.
    pub fn close(&mut self, snapshot: &Snapshot) {
        self.segments.leave_holes(snapshot);
        self.announced.leave_holes(snapshot);
    }

    /// Up to `count` open partitions that are `wanted`, from a place that `turn` picks, so that
    /// consumers who come at the same time do not all try the same ones.
    pub fn pick(&self, turn: u64, count: usize, wanted: impl Fn(&str) -> bool) -> Vec<String> {
        let left: Vec<&str> = self.open.iter().filter(|name| wanted(name)).collect();
        let from = (turn % left.len().max(1) as u64) as usize;
        left.iter()
            .cycle()
            .skip(from)
            .take(count.min(left.len()))
            .map(|n| (*n).to_owned())
            .collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn snapshot(running: &[u64], xmax: u64, own: Option<u64>) -> Snapshot {
        Snapshot::new(running, xmax, xmax, own)
    }

    #[test]
    fn a_transaction_passed_while_it_ran_is_read_when_it_has_ended() {
        let mut stream = Stream::<u64>::default();
        let first = snapshot(&[5], 10, None);
        stream.pass(7, 1, &first);
        stream.leave_holes(&first);
        assert_eq!(stream.finished(&first), []);
        let second = snapshot(&[], 12, None);
        assert_eq!(stream.finished(&second), [(5, 0)]);
        stream.pass(5, 3, &second);
        assert_eq!((stream.xid, stream.finished(&second)), (7, vec![(5, 3)]));
        stream.finish(5, &second);
        assert_eq!(stream.finished(&second), []);
    }

    #[test]
    fn what_is_left_behind_is_read_later() {
        let mut stream = Stream::<u64>::default();
        let all = snapshot(&[], 10, None);
        stream.pass(5, 1, &all);
        stream.leave_behind(5, 1, &all);
        stream.pass(7, 3, &all);
        assert_eq!((stream.xid, stream.finished(&all)), (7, vec![(5, 1)]));
        assert!(stream.has_passed(5, &1) && !stream.has_passed(5, &2));
        stream.pass(5, 2, &all);
        stream.finish(5, &all);
        assert_eq!((stream.xid, stream.key, stream.finished(&all)), (7, 3, vec![]));
    }

    #[test]
    fn the_looking_transaction_is_never_passed() {
        let mut stream = Stream::<u64>::default();
        let own = snapshot(&[], 10, Some(6));
        stream.pass(6, 1, &own);
        assert_eq!(stream.xid, 0);
        stream.pass(7, 1, &own);
        stream.leave_holes(&own);
        stream.finish(6, &own);
        assert_eq!(stream.finished(&snapshot(&[], 12, None)), [(6, 0)]);
    }

    #[test]
    fn a_new_group_waits_for_what_its_snapshot_does_not_see() {
        let stream = Stream::<u64>::starting_at(&snapshot(&[5, 8], 10, Some(9)), 10);
        assert_eq!(stream.xid, 10);
        // The own transaction may still push: it is looked through again, which is harmless.
        assert_eq!(stream.holes.keys().copied().collect::<Vec<_>>(), [5, 8, 9]);
    }

    #[test]
    fn picking_goes_round_and_names_each_once() {
        let mut found = Discovery::default();
        for name in ["a", "b", "c"] {
            found.pass_moment(1, 1, Some(name.into()));
        }
        assert_eq!(found.pick(7, 2, |_| true), ["b", "c"]);
        assert_eq!(found.pick(2, 9, |_| true), ["c", "a", "b"]);
        assert_eq!(found.pick(2, 9, |name| name != "a"), ["b", "c"]);
        assert!(Discovery::default().pick(1, 5, |_| true).is_empty());
    }
}
