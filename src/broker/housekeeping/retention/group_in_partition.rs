//! How a group stands to the old segments of one partition: whether it has settled them, what to
//! lock before they are deleted, and what the group is told when they are gone.

use queen_engine::cursor::Cursor;
use queen_engine::message::Spans;

use super::ages::Ages;
use super::claims::SegmentClaims;
use super::segment_status::SegmentStatus;
use crate::error::Result;
use crate::pg::snapshot::ActiveSnapshot;
use crate::pg::table::RowLocation;
use crate::store::cursor;
use crate::store::cursor_or_claim::{self, LockAttempt};
use crate::store::group::Group;
use crate::store::located::Located;
use crate::store::progress::{self, Notice};
use crate::store::seen_snapshot;
use crate::store::segment::News;

/// A group in one partition, as of a snapshot.
pub struct GroupInPartition<'a> {
    group: &'a Group,
    ages: &'a Ages<'a>,
    partition: &'a str,
    under: &'a ActiveSnapshot,
    /// The group's cursor, with where its row lies; None where it has none in the partition.
    found: Option<(Located, RowLocation)>,
    /// The state of that cursor; without one, the state in which the group begins a partition.
    cursor: Cursor,
    /// In a group without order.
    claims: Option<SegmentClaims>,
}

impl<'a> GroupInPartition<'a> {
    /// Read what there is to know of these segments.
    pub fn read(
        group: &'a Group,
        ages: &'a Ages<'a>,
        partition: &'a str,
        segments: &[News],
        under: &'a ActiveSnapshot,
    ) -> Result<Self> {
        let found = cursor::status(group.id, &group.start, partition, under)?;
        let cursor = group.state_in(found.as_ref().map(|(located, _)| located));
        let claims = match group.is_ordered(&ages.queue.options) {
            true => None,
            false => Some(SegmentClaims::read(group.id, partition, segments, under)?),
        };
        Ok(Self { group, ages, partition, under, found, cursor, claims })
    }

    /// What the group has done with the segment.
    pub fn status(&self, row: &News) -> SegmentStatus {
        let status = match &self.claims {
            Some(claims) => claims.status(row, &self.cursor, self.ages),
            None => self.status_ordered(row),
        };
        status.unwrap_or_else(|| {
            let is_old = self.cursor.since.is_some_and(|since| row.created_at < since);
            let is_others = row.only_group.is_some_and(|only| only != self.group.id);
            SegmentStatus::Unread { is_for_group: !is_old && !is_others }
        })
    }

    /// None if the group has not read the segment.
    fn status_ordered(&self, row: &News) -> Option<SegmentStatus> {
        let (xid, segment) = (row.segment.xid, row.segment.key.1);
        if !self.cursor.has_read(segment, xid) {
            return None;
        }
        let holds = |spans: &Spans| spans.iter().any(|span| span.segment == segment);
        if self.cursor.leases.iter().any(|lease| holds(&lease.held)) {
            return Some(SegmentStatus::Leased);
        }
        let waiting = self.cursor.waiting.iter().filter(|span| span.segment == segment);
        Some(match waiting.map(|span| i64::from(span.len)).sum() {
            0 => SegmentStatus::Settled,
            waiting => SegmentStatus::Waiting(waiting),
        })
    }

    /// Lock the group's cursor, and in a group without order keep consumers from claims in these
    /// segments. False if another transaction is in the way, or has moved the group on in this
    /// partition since the snapshot. Never waits.
    pub fn try_lock(&self, segments: &[News]) -> Result<bool> {
        let is_locked = match &self.found {
            Some((located, place)) => {
                cursor_or_claim::try_lock(located, *place, self.under)? == LockAttempt::Locked
            }
            // A new cursor is locked, so no consumer begins to read the partition. The caller holds
            // the group's row, as `insert_if_new` demands.
            None => cursor::insert_if_new(self.group.id, self.partition).is_some(),
        };
        match &self.claims {
            Some(claims) if is_locked => {
                claims.try_lock(self.group.id, self.partition, segments, self.under)
            }
            _ => Ok(is_locked),
        }
    }

    /// Let go what the group had not settled of these segments; returns how many messages are to be
    /// taken off what is pending for it. All that [`Self::try_lock`] locks is locked.
    pub fn let_go(&self, segments: &[News]) -> Result<i64> {
        let (mut unread, mut waiting) = (0, 0);
        for row in segments {
            match self.status(row) {
                SegmentStatus::Unread { .. } => unread += row.segment.messages as i64,
                SegmentStatus::Waiting(messages) => waiting += messages,
                SegmentStatus::Settled | SegmentStatus::Leased => (),
            }
        }
        match &self.claims {
            Some(claims) => {
                claims.remove_unsettled(segments)?;
                Ok(unread + waiting)
            }
            None => {
                if unread + waiting > 0 {
                    self.pass_over(segments, waiting);
                }
                Ok(unread)
            }
        }
    }

    /// Write a state of an ordered group's cursor without these segments, of which so many messages
    /// were waiting. It is written even if it equals the one before: a pop whose snapshot still
    /// shows the messages then finds a newer state, and does not deliver them.
    fn pass_over(&self, segments: &[News], waiting: i64) {
        let Some((located, _)) = &self.found else { return };
        let is_gone = |segment| segments.iter().any(|row| row.segment.key.1 == segment);
        let mut cursor = self.cursor.clone();
        cursor.waiting =
            cursor.waiting.iter().filter(|span| !is_gone(span.segment)).collect::<Spans>();
        cursor.failures.retain(|message| !is_gone(message.segment()));
        cursor.settled += waiting;
        let xid = seen_snapshot::assign_xid(self.ages.queue.identity);
        progress::append(located, &cursor, Notice::Ready { xid }, &[]);
    }
}

/// Whether the segment may be deleted, as these groups, which are all of the queue, stand to it.
pub fn may_go(row: &News, groups: &[GroupInPartition<'_>], ages: &Ages<'_>) -> bool {
    let statuses: Vec<SegmentStatus> = groups.iter().map(|group| group.status(row)).collect();
    if statuses.contains(&SegmentStatus::Leased) {
        return false;
    }
    let is_settled =
        !statuses.is_empty() && statuses.iter().copied().all(SegmentStatus::is_settled);
    ages.is_over(row.created_at) || (is_settled && ages.is_over_if_settled(row.created_at))
}
