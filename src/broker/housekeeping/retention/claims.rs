//! What the claims of a group without order say of the old segments of one partition.
//!
//! The cursor of such a partition tells only of what is behind it. Ahead of it, and of what it has
//! left behind, the claims alone tell which messages are leased or settled.

use std::collections::{HashMap, HashSet};

use queen_engine::cursor::Cursor;
use queen_engine::message::{MessageId, Span, Spans};

use super::ages::Ages;
use super::segment_status::SegmentStatus;
use crate::broker::group::revoke::delete_claims;
use crate::error::Result;
use crate::pg::snapshot::ActiveSnapshot;
use crate::pg::table::RowLocation;
use crate::store::claim;
use crate::store::cursor;
use crate::store::cursor_or_claim::{self, LockAttempt};
use crate::store::located::Located;
use crate::store::segment::News;

/// The visible claims of messages of the segments in question, by segment.
pub struct SegmentClaims(HashMap<u64, Vec<(Located, RowLocation)>>);

impl SegmentClaims {
    pub fn read(
        group: i64,
        partition: &str,
        segments: &[News],
        under: &ActiveSnapshot,
    ) -> Result<Self> {
        let mut claims: HashMap<u64, Vec<(Located, RowLocation)>> = HashMap::new();
        for row in claim::visible(group, partition, &messages_of(segments), under) {
            let segment = row.message.segment();
            claims.entry(segment).or_default().push(row.locate(under)?);
        }
        Ok(Self(claims))
    }

    fn of(&self, segment: &News) -> &[(Located, RowLocation)] {
        self.0.get(&segment.segment.key.1).map_or(&[], Vec::as_slice)
    }

    /// What has become of the segment's messages; None if the group has not come to any of them.
    /// `cursor`: the group's of the partition.
    pub fn status(&self, row: &News, cursor: &Cursor, ages: &Ages<'_>) -> Option<SegmentStatus> {
        let (claims, segment) = (self.of(row), row.segment.key.1);
        let void_before = ages.queue.identity.void_before;
        let is_live = |(located, _): &(Located, RowLocation)| {
            located.cursor.live_lease(ages.now, void_before).is_some()
        };
        if claims.iter().any(is_live) {
            return Some(SegmentStatus::Leased);
        }
        let is_claimed = |message: &MessageId| {
            claims.iter().any(|(located, _)| located.message == Some(*message))
        };
        let left_behind = || {
            let here = cursor.waiting.iter().filter(|span| span.segment == segment);
            here.flat_map(Span::messages).filter(|message| !is_claimed(message)).count() as i64
        };
        let open: i64 = claims.iter().map(|(located, _)| located.cursor.open() as i64).sum();
        let unsettled = match cursor.has_read(segment, row.segment.xid) {
            true => left_behind() + open,
            false if claims.is_empty() => return None,
            false => row.segment.messages as i64 - (claims.len() as i64 - open),
        };
        Some(match unsettled {
            0 => SegmentStatus::Settled,
            unsettled => SegmentStatus::Waiting(unsettled),
        })
    }

    /// Keep consumers of the group from claims in these segments, to the end of the transaction.
    /// False if another transaction has claimed there since the snapshot, holds the lock of a
    /// claim, or has moved one on. Takes the lock `claims` of the partition, and locks the claims
    /// that are not settled.
    pub fn try_lock(
        &self,
        group: i64,
        partition: &str,
        segments: &[News],
        under: &ActiveSnapshot,
    ) -> Result<bool> {
        // The lock before the look: a consumer that inserts a claim asks for the lock after that,
        // so either this look finds the claim, or the consumer finds the lock taken.
        if !cursor::try_lock_out_claims(group, partition) {
            return Ok(false);
        }
        let seen: usize = segments.iter().map(|row| self.of(row).len()).sum();
        let ids: HashSet<u64> = segments.iter().map(|row| row.segment.key.1).collect();
        let mut at_hand = claim::at_hand(group, partition, &messages_of(segments));
        at_hand.retain(|message, _| ids.contains(&message.segment()));
        if at_hand.len() != seen || at_hand.values().any(|claim| claim.is_open) {
            return Ok(false);
        }
        for (located, place) in segments.iter().flat_map(|row| self.of(row)) {
            if located.cursor.open() > 0
                && cursor_or_claim::try_lock(located, *place, under)? != LockAttempt::Locked
            {
                return Ok(false);
            }
        }
        Ok(true)
    }

    /// Remove the claims of messages that were not settled, and leave receipts of their leases. The
    /// claims are locked.
    pub fn remove_unsettled(&self, segments: &[News]) -> Result<()> {
        let claims = segments.iter().flat_map(|row| self.of(row)).map(|(located, _)| located);
        delete_claims(claims.filter(|claim| claim.cursor.open() > 0))
    }
}

/// All messages of the segments.
fn messages_of(segments: &[News]) -> Spans {
    let whole = |row: &News| Span {
        segment: row.segment.key.1,
        first: 0,
        len: row.segment.messages as u16,
        deliveries: 0,
    };
    segments.iter().map(whole).collect()
}
