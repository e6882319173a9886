//! Where a consumer group has looked for partitions with something to deliver.
//!
//! A queue may have 100,000 partitions of which ten have news. A search reads what has happened
//! since the last one, and its cost does not depend on the number of partitions. It reads three
//! sources, each in an order of its own:
//!
//! - **segments** of the queue, by the xid of the pushing transaction;
//! - **announcements**, by the xid of the transaction that left a cursor of the group free, so that
//!   a pop may deliver from it, now or after a delay;
//! - **moments** at which a lease of the group is over or a delay ends, by time.
//!
//! The partitions that they name are *open* until a pop has looked at them. A claim, in a group
//! without order, is announced and searched for like a partition.
//!
//! **In the order of xids, transactions are passed while they run.** What such a transaction writes
//! shows only after its commit, behind the place that the search has reached. So each source by xid
//! is a [`Stream`]: the place, and the *holes*, which are the transactions that were passed while
//! they ran. The next search reads what those that have ended in the meantime have left.
//!
//! **A partition is dropped only if the search will hear of it again.** If a committed lease holds
//! it, then its deadline lies ahead among the moments, and a transaction that ends the lease
//! earlier announces it. If another transaction has it locked, it stays open: that transaction may
//! roll back, and would announce nothing.
//!
//! **A state needs no lock.** It says what has been read, which is true whichever transaction wrote
//! it. Each search goes on from the newest state that it sees, and its transaction may write the
//! result as a new row. Where two searches go on from one state, a later search uses the result of
//! one of them, and reads again what the other one has read.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::holes::Snapshot;
use crate::names::Names;

/// How far rows have been passed that are ordered by xid, and by `K` within a transaction.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Stream<K: Ord + Default> {
    /// The xid of the place that was reached: rows up to (xid, key) have been passed, except those
    /// of `holes`.
    pub xid: u64,
    pub key: K,
    /// Transactions that were passed while they ran, each with the key up to which its rows have
    /// been passed since.
    pub holes: BTreeMap<u64, K>,
}

impl<K: Ord + Default + Clone> Stream<K> {
    /// A stream that has passed what `snapshot`, which has this `xmax`, sees of other transactions,
    /// and nothing else.
    pub fn starting_at(snapshot: &Snapshot, xmax: u64) -> Self {
        let mut stream = Self { xid: xmax, ..Self::default() };
        stream.leave_holes(snapshot);
        stream
    }

    /// The holes that had ended when `snapshot` was taken, each with the key from which its rows
    /// are to be read on.
    pub fn finished(&self, snapshot: &Snapshot) -> Vec<(u64, K)> {
        let ended = |xid: &u64| !snapshot.holes.contains(*xid);
        self.holes.iter().filter(|(xid, _)| ended(xid)).map(|(x, k)| (*x, k.clone())).collect()
    }

    /// Pass a row: at the place, or of a hole. Rows of the transaction that reads are not passed,
    /// and the answer is false: it may write more, with keys below those that it has written.
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

    /// Leave the rows of a transaction behind `key` for later, as if it had not ended yet: they may
    /// not be delivered so soon, and those of other transactions behind them may.
    pub fn leave_behind(&mut self, xid: u64, key: K, snapshot: &Snapshot) {
        if !snapshot.is_own(xid) {
            self.holes.entry(xid).or_insert(key);
        }
    }

    /// Whether the row has been passed.
    pub fn has_passed(&self, xid: u64, key: &K) -> bool {
        match self.holes.get(&xid) {
            Some(passed) => key <= passed,
            None => (xid, key) <= (self.xid, &self.key),
        }
    }

    /// All rows of a transaction that has ended were passed: it is no hole any more. The
    /// transaction that reads stays one, since it may write more.
    pub fn finish(&mut self, xid: u64, snapshot: &Snapshot) {
        if !snapshot.is_own(xid) {
            self.holes.remove(&xid);
        }
    }

    /// Make holes of the transactions below the place that `snapshot` does not see. It is called
    /// after the rows that `snapshot` sees have been passed, and before another one is used.
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

/// The bytes in memory of a partition's name, or of a hole, about.
const ENTRY: usize = 100;

/// How far a group has searched, as stored.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Discovery {
    /// Segments, by (xid, (partition, id)).
    pub segments: Stream<(String, u64)>,
    /// Announcements, by (xid, cursor).
    pub announced: Stream<u64>,
    /// The last moment that was passed: (microseconds, cursor).
    pub due: (i64, u64),
    /// Partitions that the search has heard of and that no pop has looked at yet.
    pub open: Names,
    /// The revision up to which older states of the group have been removed.
    pub pruned: i64,
    /// Rows that were passed since a state was last written.
    #[serde(skip)]
    pub passed: usize,
}

impl Discovery {
    /// The bytes that this takes in memory, about.
    pub fn bytes(&self) -> usize {
        ENTRY * (self.open.len() + self.segments.holes.len() + self.announced.holes.len())
    }

    /// For a group that wants only what `snapshot`, which has this `xmax`, does not see.
    pub fn starting_at(snapshot: &Snapshot, xmax: u64) -> Self {
        Self { segments: Stream::starting_at(snapshot, xmax), ..Self::default() }
    }

    /// The highest xid that the state refers to. Holes lie below the place of their stream.
    pub fn reached(&self) -> u64 {
        self.segments.xid.max(self.announced.xid)
    }

    /// Pass a segment. Its partition is open now.
    pub fn pass_segment(&mut self, xid: u64, partition: String, segment: u64, snapshot: &Snapshot) {
        self.open.insert(partition.clone());
        let is_passed = self.segments.pass(xid, (partition, segment), snapshot);
        self.passed += usize::from(is_passed);
    }

    /// Pass an announcement. Its partition is open now; None if the cursor has a later state.
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

    /// Pass a moment that has come. Its partition is open now; None if the cursor has a later
    /// state.
    pub fn pass_moment(&mut self, at: i64, cursor: u64, partition: Option<String>) {
        self.open.extend(partition);
        self.passed += 1;
        self.due = (at, cursor);
    }

    /// From where the moments are to be read at `now`. A place in the future says that the clock
    /// was set back. Leases that were given since may end before that place, so all moments are
    /// read.
    pub fn due_from(&self, now: i64) -> (i64, u64) {
        if self.due.0 > now { Self::default().due } else { self.due }
    }

    /// End a search under `snapshot`.
    pub fn close(&mut self, snapshot: &Snapshot) {
        self.segments.leave_holes(snapshot);
        self.announced.leave_holes(snapshot);
    }

    /// Up to `count` open partitions that are `wanted`. `turn` picks the first of them: consumers
    /// that come at one moment have different turns, so each tries other partitions first.
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
    fn where_the_clock_was_set_back_all_moments_are_read_again() {
        let mut found = Discovery::default();
        found.pass_moment(100, 7, None);
        assert_eq!((found.due_from(100), found.due_from(101)), ((100, 7), (100, 7)));
        assert_eq!(found.due_from(99), (0, 0));
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
