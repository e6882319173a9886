//! When did the oldest message of a partition arrive that a group has not settled?

use std::collections::HashSet;

use queen_engine::floor::Floor;
use queen_engine::message::MessageId;

use super::summary::StateSummary;
use crate::pg::clock::Moment;
use crate::pg::snapshot::ActiveSnapshot;
use crate::store::segment;

/// A partition, for an ordered group: the cursor tells how far the group has come.
pub struct OrderedLog<'a> {
    /// The queue, and the floor of its log.
    pub log: (i64, &'a Floor),
    pub partition: &'a str,
    /// The last segment of the partition; 0: it has none.
    pub last: u64,
    pub cursor: &'a StateSummary,
}

impl OrderedLog<'_> {
    pub fn oldest(&self, under: &ActiveSnapshot) -> Option<Moment> {
        let from = self.cursor.first_open().unwrap_or(self.cursor.position + 1);
        match from <= self.last {
            true => segment::oldest_from((self.log.0, self.partition), from, self.log.1, under),
            false => None,
        }
    }
}

/// A partition, for a group without order. Which messages the group has settled, the claims tell;
/// the cursor tells it only of what is behind the cursor.
pub struct UnorderedLog<'a> {
    log: (i64, &'a Floor),
    partition: &'a str,
    last: u64,
    cursor: &'a StateSummary,
    settled: HashSet<MessageId>,
    /// The first segment with a claim that is not settled.
    claimed: Option<u64>,
}

impl<'a> UnorderedLog<'a> {
    /// `claims`: the messages that have one, and whether they are not settled.
    pub fn new(
        log: (i64, &'a Floor),
        partition: &'a str,
        last: u64,
        cursor: &'a StateSummary,
        claims: impl Iterator<Item = (MessageId, bool)>,
    ) -> Self {
        let (mut settled, mut claimed) = (HashSet::new(), None::<u64>);
        for (message, is_open) in claims {
            match is_open {
                true => claimed = earlier(claimed, Some(message.segment())),
                false => {
                    settled.insert(message);
                }
            }
        }
        Self { log, partition, last, cursor, settled, claimed }
    }

    pub fn oldest(&self, under: &ActiveSnapshot) -> Option<Moment> {
        let left = self.cursor.waiting().filter(|one| !self.settled.contains(one));
        let left = left.map(MessageId::segment).min();
        let behind = earlier(left, self.claimed).filter(|from| *from <= self.last);
        let (of, floor) = ((self.log.0, self.partition), self.log.1);
        let behind = behind.and_then(|from| segment::oldest_from(of, from, floor, under));
        let is_settled = |segment, messages: u16| {
            (0..messages).all(|index| self.settled.contains(&MessageId::new(segment, index)))
        };
        let from = self.cursor.position + 1;
        let ahead = match from <= self.last {
            true => segment::oldest_but(of, from, floor, is_settled, under),
            false => None,
        };
        earlier(behind, ahead)
    }
}

/// The lower of two, where there are any.
fn earlier<T: Ord>(a: Option<T>, b: Option<T>) -> Option<T> {
    a.into_iter().chain(b).min()
}
