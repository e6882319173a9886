//! Reading one partition of the log: in order beyond a position, and what transactions that
//! committed late have left below it.

use std::ops::ControlFlow;

use queen_engine::floor::Floor;
use queen_engine::holes::Holes;
use queen_engine::message::{MessageId, Spans};
use queen_engine::pop::Read;

use super::low_end::scan_partition;
use super::recent_pushes::may_have_pushed;
use super::stored::{Contents, Stored};
use super::{
    CREATED_AT, HEADERS, ID, IN_ORDER, N, NEWS, ONLY_GROUP, PARTITION, PAYLOADS, QUEUE_ID,
    TRANSACTION_IDS, XID,
};
use crate::pg::clock::{At, Moment};
use crate::pg::columns::Columns;
use crate::pg::key::{Key, Value};
use crate::pg::scan::{ScanEnd, StoredValue, Tuple};
use crate::pg::snapshot::ActiveSnapshot;
use crate::pg::table::Column;
use crate::store::seen_snapshot::SeenSnapshot;
use crate::store::{signed, unsigned};

/// A partition of a queue, for a reader.
#[derive(Clone, Copy)]
pub struct Log<'a> {
    pub queue: i64,
    pub partition: &'a str,
    /// The group that reads; 0 where that makes no difference.
    pub group: i64,
    /// Messages created before this moment are not for the reader.
    pub since: Option<Moment>,
    /// Messages created after this moment are not to be delivered yet.
    pub until: Option<Moment>,
    /// Segments are read without their contents.
    pub is_bare: bool,
    /// Up to where the queue's log is empty.
    pub floor: &'a Floor,
}

/// What a read found.
pub struct LogPage {
    pub stored: Vec<Stored>,
    /// There is more that is not to be delivered yet: the first such segment and its transaction.
    pub held_back: Option<(u64, u64)>,
}

/// A read of late segments: what [`Read::Late`] says, and what the snapshot shows.
struct Late<'a> {
    from: &'a Holes,
    seen: &'a SeenSnapshot,
    after: u64,
    upto: u64,
}

impl Log<'_> {
    /// Carry out a read of the engine, `limit` segments at most. `seen`: what `under` says about
    /// transactions.
    pub fn read(
        &self,
        read: &Read,
        limit: usize,
        seen: &SeenSnapshot,
        under: &ActiveSnapshot,
    ) -> LogPage {
        let mut stored = match read {
            Read::Beyond { after } => self.beyond(*after, limit, under),
            Read::Late { from, after, upto } => {
                let late = Late { from, seen, after: *after, upto: *upto };
                self.segments_of(&self.late(&late, limit, under), under)
            }
        };
        let young = |segment: &Stored| self.until.is_some_and(|until| segment.created_at > until);
        let ready = stored.iter().position(young).unwrap_or(stored.len());
        let held_back = stored.get(ready).map(|segment| (segment.id, segment.xid));
        stored.truncate(ready);
        LogPage { stored, held_back }
    }

    fn beyond(&self, after: u64, limit: usize, under: &ActiveSnapshot) -> Vec<Stored> {
        let mut rows = Vec::new();
        let of = (self.queue, self.partition);
        scan_partition::<()>(of, after + 1, self.floor, limit, under, |row| {
            rows.push(self.stored(row));
            if rows.len() < limit { ControlFlow::Continue(()) } else { ControlFlow::Break(()) }
        });
        rows
    }

    fn stored(&self, row: &Tuple) -> Stored {
        let created_at = row.need::<At>(CREATED_AT).0;
        let is_old = self.since.is_some_and(|since| created_at < since);
        let only_group = row.get::<i64>(ONLY_GROUP);
        let is_others = only_group.is_some_and(|only| only != self.group);
        Stored {
            id: unsigned(row.need(ID)),
            xid: unsigned(row.need(XID)),
            messages: row.need::<i16>(N) as u16,
            created_at,
            skip: is_old || is_others,
            is_replay: only_group.is_some(),
            contents: Contents {
                payloads: self.hold(row, PAYLOADS),
                transaction_ids: self.hold(row, TRANSACTION_IDS),
                headers: self.hold(row, HEADERS),
            },
        }
    }

    fn hold(&self, row: &Tuple, column: Column) -> StoredValue {
        if self.is_bare { StoredValue::nothing() } else { StoredValue::of(row, column) }
    }

    /// This log, read without the contents of messages.
    pub fn bare(self) -> Self {
        Self { is_bare: true, ..self }
    }

    /// The newest message up to this segment that is for every group: replays do not count. Nothing
    /// below the floor is looked at.
    pub fn newest_upto(&self, segment: u64, under: &ActiveSnapshot) -> Option<MessageId> {
        let keys = [
            (QUEUE_ID, Key::Is(Value::Int(self.queue))),
            (PARTITION, Key::Is(Value::Text(self.partition))),
            (ID, Key::Above(Value::Int(signed(self.floor.segment)))),
            (ID, Key::UpTo(Value::Int(signed(segment)))),
        ];
        IN_ORDER.scan(&keys, ScanEnd::End, under, |row| match row.get::<i64>(ONLY_GROUP) {
            Some(_) => ControlFlow::Continue(()),
            None => {
                let last = (row.need::<i16>(N) as u16).saturating_sub(1);
                ControlFlow::Break(MessageId::new(unsigned(row.need(ID)), last))
            }
        })
    }

    /// The ids of late segments, in order. Most transactions of `from` are those of consumers and
    /// have pushed nothing, or elsewhere. Where shared memory does not say so, the scan leaps from
    /// one that may have pushed to the next. Of an open bulk load it steps over no rows.
    fn late(&self, late: &Late<'_>, limit: usize, under: &ActiveSnapshot) -> Vec<i64> {
        let Late { from, seen, .. } = late;
        let running = &seen.snapshot.holes;
        let mut ids = Vec::new();
        let mut next = from.first_from(0);
        let mut questions = MOST_QUESTIONS;
        while let Some(hole) = next {
            pgrx::check_for_interrupts!();
            if questions > 0 {
                questions -= 1;
                let has_ended = !running.contains(hole);
                let own_xid = seen.own_xid(hole);
                if !(has_ended && may_have_pushed(own_xid, self.queue, Some(self.partition))) {
                    next = from.first_from(hole + 1);
                    continue;
                }
            }
            let leap = leap(self.queue, hole);
            next = from.first_from(leap.clear_below);
            if let Some(xid) = leap.pusher {
                if next == Some(xid) && !running.contains(xid) {
                    self.late_of(xid, late, limit, under, &mut ids);
                }
                next = from.first_from(xid + 1);
            }
        }
        ids.sort_unstable();
        ids.truncate(limit);
        ids
    }

    /// Add the late segments of one transaction to `ids`.
    fn late_of(
        &self,
        xid: u64,
        late: &Late<'_>,
        limit: usize,
        under: &ActiveSnapshot,
        ids: &mut Vec<i64>,
    ) {
        let keys = [
            (QUEUE_ID, Key::Is(Value::Int(self.queue))),
            (XID, Key::Is(Value::Int(signed(xid)))),
            (PARTITION, Key::Is(Value::Text(self.partition))),
            (ID, Key::Above(Value::Int(signed(late.after)))),
            (ID, Key::UpTo(Value::Int(signed(late.upto)))),
        ];
        let enough = ids.len() + limit;
        NEWS.scan::<()>(&keys, ScanEnd::Start, under, |row| {
            ids.push(row.need(ID));
            if ids.len() < enough { ControlFlow::Continue(()) } else { ControlFlow::Break(()) }
        });
    }

    /// The segments that `spans` refers to, as far as they are visible.
    pub fn segments(&self, spans: &Spans, under: &ActiveSnapshot) -> Vec<Stored> {
        let mut ids: Vec<i64> = spans.iter().map(|span| signed(span.segment)).collect();
        ids.dedup();
        self.segments_of(&ids, under)
    }

    fn segments_of(&self, ids: &[i64], under: &ActiveSnapshot) -> Vec<Stored> {
        let find = |id: &i64| {
            let key = [Value::Int(self.queue), Value::Text(self.partition), Value::Int(*id)];
            IN_ORDER.end(&key, ScanEnd::Start, under, |row| self.stored(row))
        };
        ids.iter().filter_map(find).collect()
    }
}

/// The transaction_id of a message, given or derived, if the message is in the log of this
/// partition. Its payload is not read.
pub fn name_of(
    queue: i64,
    partition: &str,
    message: MessageId,
    under: &ActiveSnapshot,
) -> Option<String> {
    let id = signed(message.segment());
    let key = [Value::Int(queue), Value::Text(partition), Value::Int(id)];
    let read = |row: &Tuple| {
        let names = StoredValue::of(row, TRANSACTION_IDS);
        let (payloads, headers) = (StoredValue::nothing(), StoredValue::nothing());
        let is_in_it = message.index() < row.need::<i16>(N) as u16;
        is_in_it.then_some(Contents { payloads, transaction_ids: names, headers })
    };
    let contents = IN_ORDER.end(&key, ScanEnd::Start, under, read).flatten()?;
    Some(contents.names().of(message))
}

/// A read of late segments asks shared memory about so many transactions at most, one by one. The
/// holes of a new group may be all ids from one on.
const MOST_QUESTIONS: usize = 4096;

/// What one look for transactions that may have pushed has found.
struct Leap {
    /// The transaction id of the first.
    pusher: Option<u64>,
    /// From where the look began up to this id, and without it, no segment of the queue is of any
    /// transaction. It is the pusher; without one there is no bound.
    clear_below: u64,
}

/// Look for the first transaction, not below `xid`, that has pushed to the queue. What it pushed
/// may be deleted, or not committed: so this is one look-up, whatever has been deleted there.
fn leap(queue: i64, xid: u64) -> Leap {
    let keys =
        [(QUEUE_ID, Key::Is(Value::Int(queue))), (XID, Key::Above(Value::Int(signed(xid) - 1)))];
    let read = |row: &Tuple| ControlFlow::Break(unsigned(row.need(XID)));
    let pusher = NEWS.scan_any(&keys, ScanEnd::Start, read);
    Leap { pusher, clear_below: pusher.unwrap_or(u64::MAX) }
}

/// Which transactions may have pushed to a queue, asked in ascending order: for readers that come
/// back to transactions which were running when they passed them. Most of these have pushed
/// nothing, being consumers, and one look answers for all up to the next that has.
pub struct Pushers<'a> {
    queue: i64,
    seen: &'a SeenSnapshot,
    last: Leap,
}

impl<'a> Pushers<'a> {
    pub fn of(queue: i64, seen: &'a SeenSnapshot) -> Self {
        Self { queue, seen, last: Leap { pusher: None, clear_below: 0 } }
    }

    /// Whether a transaction may have pushed. It has ended, and is not below the one asked about
    /// before. What it pushed may be deleted.
    pub fn has(&mut self, xid: u64) -> bool {
        if !may_have_pushed(self.seen.own_xid(xid), self.queue, None) {
            return false;
        }
        if xid >= self.last.clear_below && self.last.pusher != Some(xid) {
            self.last = leap(self.queue, xid);
        }
        self.last.pusher == Some(xid)
    }
}
