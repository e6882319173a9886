//! When did the oldest message of a partition arrive that a group has not settled?

use std::collections::HashSet;

use queen_engine::floor::Floor;
use queen_engine::message::MessageId;
use queen_engine::pop::{FoundSegment, Read};

use super::summary::StateSummary;
use crate::pg::clock::Moment;
use crate::pg::snapshot::ActiveSnapshot;
use crate::store::seen_snapshot::SeenSnapshot;
use crate::store::segment::{self, Log};

/// Late segments that are read at a time.
const CHUNK: usize = 64;

/// The log of a queue, for a group that reads it.
#[derive(Clone, Copy)]
pub struct GroupLog<'a> {
    pub queue: i64,
    pub group: i64,
    pub floor: &'a Floor,
    /// What the snapshot says about transactions.
    pub seen: &'a SeenSnapshot,
}

/// A partition of it, and how far the group has come there.
#[derive(Clone, Copy)]
pub struct PartitionLog<'a> {
    pub of: GroupLog<'a>,
    pub partition: &'a str,
    /// The last segment of the partition; 0: it has none.
    pub last: u64,
    pub cursor: &'a StateSummary,
}

impl PartitionLog<'_> {
    /// For an ordered group: the cursor tells how far the group has come.
    pub fn oldest_in_order(&self, under: &ActiveSnapshot) -> Option<Moment> {
        let from = self.cursor.first_open().unwrap_or(self.cursor.position + 1);
        let ahead = match from <= self.last {
            true => segment::oldest_from(self.key(), from, self.of.floor, under),
            false => None,
        };
        earlier(self.late(|_, _| false, under), ahead)
    }

    /// For a group without order. Which messages the group has settled, the claims tell; the cursor
    /// tells it only of what is behind the cursor. `claims`: the messages that have one, and
    /// whether they are not settled.
    pub fn oldest_without_order(
        &self,
        claims: impl Iterator<Item = (MessageId, bool)>,
        under: &ActiveSnapshot,
    ) -> Option<Moment> {
        let (mut settled, mut claimed) = (HashSet::new(), None::<u64>);
        for (message, is_open) in claims {
            match is_open {
                true => claimed = earlier(claimed, Some(message.segment())),
                false => {
                    settled.insert(message);
                }
            }
        }
        let left = self.cursor.waiting().filter(|one| !settled.contains(one));
        let left = left.map(MessageId::segment).min();
        let behind = earlier(left, claimed).filter(|from| *from <= self.last);
        let (of, floor) = (self.key(), self.of.floor);
        let behind = behind.and_then(|from| segment::oldest_from(of, from, floor, under));
        let is_settled = |segment, messages: u16| {
            (0..messages).all(|index| settled.contains(&MessageId::new(segment, index)))
        };
        let from = self.cursor.position + 1;
        let ahead = match from <= self.last {
            true => segment::oldest_but(of, from, floor, is_settled, under),
            false => None,
        };
        earlier(earlier(behind, ahead), self.late(is_settled, under))
    }

    fn key(&self) -> (i64, &str) {
        (self.of.queue, self.partition)
    }

    /// When the first segment was written that has appeared behind the position since, and is not
    /// settled. `is_settled` is asked for a segment's id and the number of its messages.
    fn late(
        &self,
        is_settled: impl Fn(u64, u16) -> bool,
        under: &ActiveSnapshot,
    ) -> Option<Moment> {
        let GroupLog { queue, group, floor, seen } = self.of;
        let (partition, since) = (self.partition, self.cursor.unseen_since());
        let log = Log { queue, partition, group, since, until: None, is_bare: true, floor };
        let mut first = None;
        for (from, after) in self.cursor.unseen() {
            let (mut after, upto) = (*after, self.cursor.position.min(self.last));
            while after < upto {
                pgrx::check_for_interrupts!();
                let read = Read::Late { from: from.clone(), after, upto };
                let found = log.read(&read, CHUNK, seen, under).stored;
                let is_open = |FoundSegment { segment, messages, skip, .. }| {
                    !skip && !is_settled(segment, messages)
                };
                let open = found.iter().find(|one| is_open(one.found()));
                first = earlier(first, open.map(|one| one.created_at()));
                match found.last() {
                    Some(last) if open.is_none() && found.len() == CHUNK => after = last.id(),
                    _ => break,
                }
            }
        }
        first
    }
}

/// The lower of two, where there are any.
fn earlier<T: Ord>(a: Option<T>, b: Option<T>) -> Option<T> {
    a.into_iter().chain(b).min()
}
