//! What a partition of a group without order consists of.

use std::collections::{HashMap, HashSet};

use queen_engine::cursor::Cursor;
use queen_engine::message::MessageId;

use crate::pg::clock::Moment;
use crate::store::cursor::Located;
use crate::store::group::Group;
use crate::store::segment::Row;

/// A partition of a group without order.
pub struct Unordered {
    pub base: Cursor,
    pub claims: Vec<Located>,
}

impl Unordered {
    pub fn of(group: &Group, located: Vec<Located>) -> Self {
        let (claims, base): (Vec<_>, Vec<_>) =
            located.into_iter().partition(|located| located.message.is_some());
        let base = base.into_iter().next().map(|base| base.cursor);
        let base = base.unwrap_or_else(|| Cursor::new(group.start.clone()));
        Self { base, claims }
    }

    fn all(&self) -> impl Iterator<Item = &Cursor> {
        self.claims.iter().map(|claim| &claim.cursor).chain([&self.base])
    }

    pub fn settled(&self) -> i64 {
        self.all().map(|cursor| cursor.settled).sum()
    }

    pub fn last_pop_at(&self) -> Moment {
        self.all().map(|cursor| cursor.last_pop_at).max().unwrap_or(0)
    }

    /// Messages of the partition that are not settled.
    pub fn unsettled(&self, rows: &[Row]) -> i64 {
        let claimed: HashSet<MessageId> =
            self.claims.iter().filter_map(|claim| claim.message).collect();
        let unread = rows.iter().filter(|row| !self.base.has_read(row.id, row.xid));
        let unread: HashMap<u64, i64> = unread.map(|row| (row.id, row.messages as i64)).collect();
        let is_behind = |message: &MessageId| !unread.contains_key(&message.segment());
        let settled = |claim: &&Located| claim.message.is_some_and(|message| !is_behind(&message));
        let open = |claim: &&Located| claim.message.is_some_and(|message| is_behind(&message));
        let left = self.base.waiting.messages().filter(|message| !claimed.contains(message));
        let behind: i64 =
            self.claims.iter().filter(open).map(|claim| claim.cursor.open() as i64).sum();
        let ahead: i64 = self.claims.iter().filter(settled).map(|claim| claim.cursor.settled).sum();
        unread.values().sum::<i64>() - ahead + behind + left.count() as i64
    }
}
