//! What a group without order has stored of one partition: the cursor, and a claim for each message
//! that is claimed and not yet folded into the cursor.
//!
//! A seek of the partition and a change of ordering ask this, with the cursor and the claims
//! locked.

use std::collections::{HashMap, HashSet};

use queen_engine::cursor::Cursor;
use queen_engine::message::MessageId;

use crate::pg::clock::Moment;
use crate::store::group::Group;
use crate::store::located::Located;
use crate::store::segment::SegmentSummary;

/// The cursor and the claims of a partition, in a group without order.
pub struct UnorderedPartition {
    pub base: Cursor,
    pub claims: Vec<Located>,
}

impl UnorderedPartition {
    /// Sort out what has been locked of one partition.
    pub fn of(group: &Group, located: Vec<Located>) -> Self {
        let (claims, base): (Vec<_>, Vec<_>) =
            located.into_iter().partition(|located| located.message.is_some());
        Self { base: group.state_in(base.first()), claims }
    }

    fn states(&self) -> impl Iterator<Item = &Cursor> {
        self.claims.iter().map(|claim| &claim.cursor).chain([&self.base])
    }

    /// Messages that are counted as settled.
    pub fn settled(&self) -> i64 {
        self.states().map(|cursor| cursor.settled).sum()
    }

    /// When a message was popped last; 0 for never.
    pub fn last_pop_at(&self) -> Moment {
        self.states().map(|cursor| cursor.last_pop_at).max().unwrap_or(0)
    }

    /// Messages of the partition, which holds the segments `rows`, that are not settled.
    pub fn unsettled(&self, rows: &[SegmentSummary]) -> i64 {
        let unread = rows.iter().filter(|row| !self.base.has_read(row.id, row.xid));
        let unread: HashMap<u64, i64> = unread.map(|row| (row.id, row.messages as i64)).collect();
        // A claim is of a message that the cursor has passed, or is ahead of the cursor.
        let is_ahead = |claim: &&Located| {
            claim.message.is_some_and(|message| unread.contains_key(&message.segment()))
        };
        let (ahead, behind): (Vec<&Located>, Vec<&Located>) =
            self.claims.iter().partition(is_ahead);
        let settled_ahead: i64 = ahead.iter().map(|claim| claim.cursor.settled).sum();
        let open_behind: i64 = behind.iter().map(|claim| claim.cursor.open() as i64).sum();
        let claimed: HashSet<MessageId> =
            self.claims.iter().filter_map(|claim| claim.message).collect();
        let left = self.base.waiting.messages().filter(|message| !claimed.contains(message));
        unread.values().sum::<i64>() - settled_ahead + open_behind + left.count() as i64
    }
}
