//! How many messages a queue has taken in, each counted once.
//!
//! The messages that are pending for a group are those that have arrived, less those that were not
//! for it, less those that it has settled. To know this without looking through the log, the queue
//! keeps a count of what has arrived. A transaction counts on from the newest stored count, along
//! the order of xids, by the rules of a search for work ([`crate::discovery`]).
//!
//! One rule is stricter. Two searches may go on from one stored state: the result that no later
//! search uses has cost work, and nothing else. A count also says what was removed from the log,
//! which is found nowhere else. So a transaction writes a count only while it holds a lock of the
//! queue, and only if the count it began with is still the newest.

use serde::{Deserialize, Serialize};

use crate::discovery::Stream;
use crate::floor::{Floor, TimerFloor};
use crate::holes::Snapshot;

/// The count of one queue, as stored.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Tally {
    /// What has been counted: rows by (xid, partition, segment).
    pub stream: Stream<(String, u64)>,
    /// Messages that were counted, and the bytes that they took as stored.
    pub messages: u64,
    pub bytes: u64,
    /// The part of them that has been removed from the log since.
    pub removed_messages: u64,
    pub removed_bytes: u64,
    /// How often the queue or a partition has been purged: that removes messages of any age.
    pub purges: u64,
    /// Up to which row the last step of retention came: (xid, (partition, segment)).
    pub swept: (u64, (String, u64)),
    /// Up to where the log is empty.
    pub floor: Floor,
    /// From when on the queue may have timers.
    pub timers: TimerFloor,
}

/// A segment that has arrived in the log.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Arrived {
    pub xid: u64,
    /// Its partition and its id.
    pub key: (String, u64),
    pub messages: u64,
    pub bytes: u64,
}

impl Tally {
    /// Count a segment, unless the counting transaction pushed it itself: [`Stream::pass`] says
    /// why. A later transaction counts that one.
    pub fn count(&mut self, segment: Arrived, snapshot: &Snapshot) {
        if self.stream.pass(segment.xid, segment.key, snapshot) {
            self.messages += segment.messages;
            self.bytes += segment.bytes;
        }
    }

    /// Note that counted messages were removed from the log.
    pub fn remove(&mut self, messages: u64, bytes: u64) {
        self.removed_messages += messages;
        self.removed_bytes += bytes;
    }

    /// The highest xid that the count refers to.
    pub fn reached(&self) -> u64 {
        self.stream.xid.max(self.swept.0).max(self.floor.xid)
    }

    /// Counted messages that are still in the log.
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
