//! Taking messages from a cursor.
//!
//! Everything is read under one snapshot. First what came back (`waiting`), then late segments:
//! at or below the position, of transactions that were holes and are visible now, in order of id;
//! then the segments beyond the position. The new cursor is the last segment read and the holes
//! of the snapshot. If there are more late segments than wanted, the snapshot can't be adopted
//! yet: the cursor keeps both sets of holes and drains by id.

use crate::cursor::{Cursor, Drain, Lease};
use crate::holes::{Holes, Snapshot};
use crate::lease::LeaseId;
use crate::message::{Span, Spans};
use crate::receipt::Receipt;
use crate::settle::DeadLetter;

/// A segment found in the log.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FoundSegment {
    pub segment: u64,
    pub messages: u16,
    /// Not for this group: passed, and counted as settled.
    pub skip: bool,
}

/// What to read next, in order of id, under the pop's snapshot.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Read {
    /// Segments of `from` with `after < id <= upto`.
    Late { from: Holes, after: u64, upto: u64 },
    /// Segments with `after < id`.
    Beyond { after: u64 },
}

/// A pop on one cursor in progress.
#[derive(Debug)]
pub struct Pop<'a> {
    cursor: Cursor,
    snapshot: &'a Snapshot,
    wanted: usize,
    taken: Spans,
    ended: Vec<(LeaseId, Receipt)>,
    /// Messages that were delivered as often as the queue allows.
    exhausted: Spans,
    skipped: u64,
    /// The log has nothing more for this cursor.
    is_at_end: bool,
}

/// The result of a pop that took something.
#[derive(Debug, PartialEq, Eq)]
pub struct Popped {
    pub cursor: Cursor,
    pub taken: Spans,
    /// Expired leases whose messages were taken.
    pub ended: Vec<(LeaseId, Receipt)>,
    /// Messages that were delivered as often as the queue allows: settled, to be buried or dropped.
    pub exhausted: Vec<DeadLetter>,
}

impl<'a> Pop<'a> {
    /// Begin on a cursor that is ready at the moment, wanting at most `wanted` messages, none of
    /// which is delivered more often than `max_deliveries`.
    pub fn begin(
        mut cursor: Cursor,
        snapshot: &'a Snapshot,
        wanted: usize,
        max_deliveries: Option<u32>,
    ) -> Self {
        let ended = cursor.expire(|_| true);
        cursor.retry_at = None;
        let is_exhausted = |span: &Span| max_deliveries.is_some_and(|max| span.deliveries >= max);
        let (exhausted, waiting) = cursor.waiting.iter().partition(is_exhausted);
        cursor.waiting = waiting;
        let taken = cursor.waiting.take_front(wanted);
        Self { cursor, snapshot, wanted, taken, ended, exhausted, skipped: 0, is_at_end: false }
    }

    /// Whether there is something to take, or to be passed for good.
    pub fn found_any(&self) -> bool {
        !self.taken.is_empty() || !self.exhausted.is_empty() || self.skipped > 0
    }

    /// Messages created before this moment are not for the group.
    pub fn since(&self) -> Option<i64> {
        self.cursor.since
    }

    /// Read no further: what comes next is not to be delivered yet.
    pub fn stop(&mut self) {
        self.is_at_end = true;
    }

    /// How many messages are still wanted.
    pub fn missing(&self) -> usize {
        self.wanted - self.taken.count()
    }

    /// What to read next; None when the pop has what it wants, or all there is.
    pub fn next_read(&mut self) -> Option<Read> {
        if self.is_at_end || self.missing() == 0 {
            return None;
        }
        loop {
            let from = self.cursor.holes.minus(self.holes_when_drained());
            if !from.is_empty() && self.cursor.position > 0 {
                let after = self.cursor.drain.as_ref().map_or(0, |drain| drain.after);
                return Some(Read::Late { from, after, upto: self.cursor.position });
            }
            match self.cursor.drain.take() {
                Some(drain) => self.cursor.holes = drain.until,
                None => {
                    self.cursor.holes = self.snapshot.holes.clone();
                    return Some(Read::Beyond { after: self.cursor.position });
                }
            }
        }
    }

    /// The holes that the cursor has once its late segments have been read: as of this snapshot, or
    /// of the one under which an earlier pop began to read them.
    fn holes_when_drained(&self) -> &Holes {
        self.cursor.drain.as_ref().map_or(&self.snapshot.holes, |drain| &drain.until)
    }

    /// The answer to `read`: segments in order of id. `complete`: there are no more.
    pub fn supply(&mut self, read: &Read, found: &[FoundSegment], complete: bool) {
        let mut last = None;
        for segment in found {
            if self.missing() == 0 {
                break;
            }
            last = Some(segment.segment);
            self.add(*segment);
        }
        let all = complete && last == found.last().map(|segment| segment.segment);
        match read {
            Read::Beyond { .. } => {
                self.cursor.position = last.unwrap_or(self.cursor.position);
                self.is_at_end = all;
            }
            Read::Late { after, .. } => {
                let until = self.holes_when_drained().clone();
                if all {
                    (self.cursor.holes, self.cursor.drain) = (until, None);
                } else {
                    self.cursor.drain = Some(Drain { after: last.unwrap_or(*after), until });
                }
            }
        }
    }

    fn add(&mut self, found: FoundSegment) {
        if found.skip {
            self.cursor.settled += i64::from(found.messages);
            self.skipped += u64::from(found.messages);
            return;
        }
        let len = self.missing().min(usize::from(found.messages)) as u16;
        let whole = Span { segment: found.segment, first: 0, len, deliveries: 0 };
        self.taken.push(whole);
        self.cursor.waiting.push(Span { first: len, len: found.messages - len, ..whole });
    }

    /// The end, if anything was found: what was taken is in the hands of `lease` until `now + duration`, or, without a
    /// lease, settled. None if there was nothing to take: then nothing is to be written.
    pub fn finish(mut self, lease: Option<(LeaseId, i64)>, now: i64) -> Option<Popped> {
        if !self.found_any() {
            return None;
        }
        let exhausted = self.exhaust();
        let taken = self.taken.delivered();
        match lease {
            _ if taken.is_empty() => (),
            Some((id, duration)) => {
                let deadline = now.saturating_add(duration);
                self.cursor.leases.push(Lease::new(id, now, deadline, taken.clone()));
            }
            None => {
                self.cursor.settled += taken.count() as i64;
                let settled = |id: &_| taken.find(*id).is_some();
                self.cursor.failures.retain(|id, _| !settled(id));
            }
        }
        self.cursor.last_pop_at = now;
        Some(Popped { cursor: self.cursor, taken, ended: self.ended, exhausted })
    }

    /// Settle what was delivered too often.
    fn exhaust(&mut self) -> Vec<DeadLetter> {
        let cursor = &mut self.cursor;
        cursor.settled += self.exhausted.count() as i64;
        let dead = self.exhausted.iter().flat_map(|span| {
            span.messages().map(move |message| (message, span.deliveries)).collect::<Vec<_>>()
        });
        dead.map(|(message, deliveries)| {
            let failures = cursor.failures.remove(&message).unwrap_or(0);
            DeadLetter { message, failures, deliveries }
        })
        .collect()
    }
}
