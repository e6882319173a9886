//! How a group stands to the old segments of one partition.

use std::collections::HashMap;

use queen_engine::cursor::Cursor;
use queen_engine::message::{MessageId, Span, Spans};

use crate::pg::clock::Moment;
use crate::pg::table::RowLocation;
use crate::store::cursor::Located;
use crate::store::group::Group;
use crate::store::segment::News;

/// How a segment stands with a group.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Standing {
    Settled,
    /// In somebody's hands, or an expired lease's.
    Leased,
    /// So many of its messages came back.
    Waiting(i64),
    /// Not read; and whether it is for the group.
    Unread {
        is_for_it: bool,
    },
}

/// A group's cursor of the partition at hand, if there is one.
pub struct Reader<'a> {
    pub group: &'a Group,
    pub found: Option<(Located, RowLocation)>,
    pub cursor: Cursor,
    pub now: Moment,
    pub void_before: Moment,
    /// In a group without order: claims of the messages in question, by segment.
    pub claims: Option<HashMap<u64, Vec<(Located, RowLocation)>>>,
}

/// The claims in a segment.
pub fn of<'a>(
    claims: &'a HashMap<u64, Vec<(Located, RowLocation)>>,
    row: &News,
) -> &'a [(Located, RowLocation)] {
    claims.get(&row.segment.key.1).map_or(&[], Vec::as_slice)
}

/// All messages of the segments.
pub fn messages_of(rows: &[News]) -> Spans {
    let whole = |row: &News| Span {
        segment: row.segment.key.1,
        first: 0,
        len: row.segment.messages as u16,
        deliveries: 0,
    };
    rows.iter().map(whole).collect()
}

impl Standing {
    /// Messages that are not settled.
    pub fn unsettled(self, row: &News) -> i64 {
        match self {
            Standing::Settled | Standing::Leased => 0,
            Standing::Waiting(messages) => messages,
            Standing::Unread { .. } => row.segment.messages as i64,
        }
    }
}

impl Reader<'_> {
    pub fn standing(&self, row: &News) -> Standing {
        let (xid, segment) = (row.segment.xid, row.segment.key.1);
        if let Some(claims) = &self.claims {
            return self.standing_unordered(row, of(claims, row));
        }
        if !self.cursor.has_read(segment, xid) {
            return self.unread(row);
        }
        let holds = |spans: &Spans| spans.iter().any(|span| span.segment == segment);
        if self.cursor.leases.iter().any(|lease| holds(&lease.held)) {
            return Standing::Leased;
        }
        let waiting = self.cursor.waiting.iter().filter(|span| span.segment == segment);
        match waiting.map(|span| i64::from(span.len)).sum() {
            0 => Standing::Settled,
            waiting => Standing::Waiting(waiting),
        }
    }

    fn standing_unordered(&self, row: &News, claims: &[(Located, RowLocation)]) -> Standing {
        let (xid, segment) = (row.segment.xid, row.segment.key.1);
        let has_read = self.cursor.has_read(segment, xid);
        let is_live = |(located, _): &(Located, RowLocation)| {
            located.cursor.live_lease(self.now, self.void_before).is_some()
        };
        if claims.iter().any(is_live) {
            return Standing::Leased;
        }
        let is_claimed = |message: &MessageId| {
            claims.iter().any(|(located, _)| located.message == Some(*message))
        };
        let left = || {
            let here = self.cursor.waiting.iter().filter(|span| span.segment == segment);
            here.flat_map(Span::messages).filter(|message| !is_claimed(message)).count() as i64
        };
        let open: i64 = claims.iter().map(|(located, _)| located.cursor.open() as i64).sum();
        let unsettled = match has_read {
            true => left() + open,
            false if claims.is_empty() => return self.unread(row),
            false => row.segment.messages as i64 - (claims.len() as i64 - open),
        };
        match unsettled {
            0 => Standing::Settled,
            unsettled => Standing::Waiting(unsettled),
        }
    }

    fn unread(&self, row: &News) -> Standing {
        let is_old = self.cursor.since.is_some_and(|since| row.created_at < since);
        let is_others = row.only_group.is_some_and(|only| only != self.group.id);
        Standing::Unread { is_for_it: !is_old && !is_others }
    }
}
