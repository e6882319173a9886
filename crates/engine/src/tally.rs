//! How many messages a queue has taken in, counted once each.
//!
//! What is pending for a group is what has arrived, less what was not for it, less what it has
//! settled. What has arrived is counted along the order of transactions, as a search passes it
//! ([`crate::discovery`]), but by one transaction at a time, each from the state before: a count,
//! unlike a search, must not be derived twice from the same place.

use serde::{Deserialize, Serialize};

use crate::discovery::Stream;
use crate::holes::Snapshot;

/// The count of one queue.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Tally {
    /// By (transaction, partition, segment).
    pub stream: Stream<(String, u64)>,
    /// Messages that have arrived, ever, and what they take as stored.
    pub messages: u64,
    pub bytes: u64,
    /// Of these, what has been removed from the log.
    pub removed_messages: u64,
    pub removed_bytes: u64,
    /// Where the last round of removing what is old came to.
    pub swept: (u64, (String, u64)),
    /// Nothing is left of the log below this transaction.
    pub floor: u64,
}

/// A segment of the log.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Arrived {
    pub xid: u64,
    pub key: (String, u64),
    pub messages: u64,
    pub bytes: u64,
}

impl Tally {
    /// Count a segment. Those of the counting transaction itself are counted by a later one.
    pub fn count(&mut self, segment: Arrived, snapshot: &Snapshot) {
        if self.stream.pass(segment.xid, segment.key, snapshot) {
            self.messages += segment.messages;
            self.bytes += segment.bytes;
        }
    }

    pub fn remove(&mut self, messages: u64, bytes: u64) {
        self.removed_messages += messages;
        self.removed_bytes += bytes;
    }

    /// The highest transaction id in it.
    pub fn reached(&self) -> u64 {
        self.stream.xid.max(self.swept.0).max(self.floor)
    }

    pub fn retained(&self) -> u64 {
        self.messages.saturating_sub(self.removed_messages)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn segment(xid: u64, id: u64) -> Arrived {
        Arrived { xid, key: ("p".into(), id), messages: 3, bytes: 10 }
    }

    #[test]
    fn what_was_passed_while_it_ran_is_counted_when_it_has_ended() {
        let mut tally = Tally::default();
        let first = Snapshot::new(&[5], 10, 10, None);
        tally.count(segment(7, 1), &first);
        tally.stream.leave_holes(&first);
        assert!(tally.stream.has_passed(7, &("p".into(), 1)));
        assert!(!tally.stream.has_passed(5, &("p".into(), 2)));
        assert!(!tally.stream.has_passed(8, &("p".into(), 3)));
        let second = Snapshot::new(&[], 12, 12, None);
        assert_eq!(tally.stream.finished(&second).len(), 1);
        tally.count(segment(5, 2), &second);
        assert!(tally.stream.has_passed(5, &("p".into(), 2)));
        tally.stream.finish(5, &second);
        assert!(tally.stream.has_passed(5, &("p".into(), 2)));
        tally.remove(3, 10);
        assert_eq!((tally.messages, tally.retained(), tally.bytes), (6, 3, 20));
    }

    #[test]
    fn the_counting_transaction_leaves_its_own_to_others() {
        let mut tally = Tally::default();
        let own = Snapshot::new(&[], 10, 10, Some(6));
        tally.count(segment(6, 1), &own);
        assert_eq!((tally.messages, tally.stream.has_passed(6, &("p".into(), 1))), (0, false));
    }
}
