//! Which messages a pop delivers from a cursor, and the cursor after it.
//!
//! A pop reads the log under one snapshot, in this order:
//!
//! 1. what **waits**: messages that came back, and the rest of a segment that was read in part;
//! 2. **late segments**: those up to the position whose transactions are holes of the cursor and
//!    are seen by now, in the order of ids;
//! 3. segments **beyond the position**, in the order of ids.
//!
//! The new position is the last segment read, and the new holes are those of this snapshot. The
//! snapshot has to be the one under which the segments were read. Under a later one, a transaction
//! that committed in between would be no hole, though its segments were not read.
//!
//! If there are more late segments than wanted, the holes of the snapshot cannot be taken over yet.
//! The cursor then keeps both sets and remembers how far it came ([`Drain`]), and the next pops
//! read on. So a transaction that commits late may bring any number of segments.
//!
//! The caller fetches segments: it asks for [`Pop::next_read`], reads a part of the log, and gives
//! it to [`Pop::supply`], until there is nothing to read. It then locks the cursor, makes sure that
//! the cursor's state is still the one with which the pop began, and stores the new one. If nothing
//! was found, it writes nothing.
//!
//! **Latest.** A pop may want nothing but the newest message of the partition ([`Pop::latest`]). It
//! reads to the end of the log, keeps the newest message that it meets, and counts all others,
//! which are settled with the pop. The order is that of message ids; only a dead letter that was
//! replayed counts as old as the message that it repeats. What commits late may be older than a
//! message that was delivered before. It is settled, too, and never delivered: [`Pop::choose`]
//! compares.

use crate::cursor::{Cursor, Drain, Lease};
use crate::holes::{Holes, Snapshot};
use crate::lease::LeaseId;
use crate::message::{MessageId, Span, Spans};
use crate::receipt::Receipt;
use crate::settle::DeadLetter;

/// A segment that was read from the log.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FoundSegment {
    /// Its id.
    pub segment: u64,
    /// How many messages it holds.
    pub messages: u16,
    /// It is not for this group: its messages are passed, and count as settled.
    pub skip: bool,
    /// The message that it repeats, if it is a replayed dead letter and that is known.
    pub repeats: Option<MessageId>,
}

/// What a pop that wants the newest message alone has met.
#[derive(Debug, Default)]
struct MetMessages {
    /// The newest message, and how old it counts: its own id, or that of the message it repeats.
    newest: Option<(MessageId, Span)>,
    /// How many messages, the newest included.
    count: usize,
    /// Some of them came back. A message that was read with one may have been settled since, and be
    /// newer.
    came_back: bool,
}

impl MetMessages {
    /// Meet messages of one segment: those of `span`.
    fn meet(&mut self, span: Span, repeats: Option<MessageId>) {
        let Some(last) = span.messages().last() else { return };
        self.count += usize::from(span.len);
        let age = repeats.unwrap_or(last);
        let span = Span { first: last.index(), len: 1, ..span };
        let is_newer = |&(known, other): &(MessageId, Span)| {
            (known, other.segment, other.first) < (age, span.segment, span.first)
        };
        if self.newest.as_ref().is_none_or(is_newer) {
            self.newest = Some((age, span));
        }
    }
}

/// What to read next: in the order of ids, under the snapshot of the pop.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Read {
    /// Segments of the transactions in `from` with ids above `after`, up to `upto`.
    Late { from: Holes, after: u64, upto: u64 },
    /// Segments with ids above `after`.
    Beyond { after: u64 },
}

/// A pop from one cursor that is under way.
#[derive(Debug)]
pub struct Pop<'a> {
    /// The next state, as far as it is known.
    cursor: Cursor,
    snapshot: &'a Snapshot,
    /// How many messages to deliver at most.
    wanted: usize,
    /// Messages to deliver.
    taken: Spans,
    /// Leases that were over, and have ended by this pop.
    ended: Vec<(LeaseId, Receipt)>,
    /// Messages that were delivered as often as the queue allows, and are not delivered again.
    exhausted: Spans,
    /// How many messages were passed: they are not for the group, or a newer one is wanted.
    passed: usize,
    /// How many of them a newer message was taken for.
    superseded: usize,
    /// If the newest message alone is wanted: what was met so far.
    met: Option<MetMessages>,
    /// There is nothing more to read.
    is_at_end: bool,
}

/// What a pop has found, to be written by the caller.
#[derive(Debug, PartialEq, Eq)]
pub struct Popped {
    /// The next state of the cursor.
    pub cursor: Cursor,
    /// The messages to deliver, this delivery counted.
    pub taken: Spans,
    /// The receipts of leases that had expired, and have ended by this pop.
    pub ended: Vec<(LeaseId, Receipt)>,
    /// Messages that were delivered as often as the queue allows. They count as settled; the caller
    /// makes dead letters of them, or drops them.
    pub exhausted: Vec<DeadLetter>,
    /// How many messages were settled for a newer one.
    pub superseded: usize,
}

impl<'a> Pop<'a> {
    /// Begin a pop of at most `wanted` messages, none of which is delivered more often than
    /// `max_deliveries`. The cursor is ready ([`crate::cursor::Readiness::Now`]), so its leases are
    /// all expired.
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
        let (passed, superseded, met, is_at_end) = (0, 0, None, false);
        Self {
            cursor,
            snapshot,
            wanted,
            taken,
            ended,
            exhausted,
            passed,
            superseded,
            met,
            is_at_end,
        }
    }

    /// Begin a pop of the newest message alone. `repeats` tells of a segment with a message that
    /// came back which message it repeats, as [`FoundSegment::repeats`]. The caller ends the
    /// reading with [`Self::choose`].
    pub fn latest(
        cursor: Cursor,
        snapshot: &'a Snapshot,
        max_deliveries: Option<u32>,
        repeats: impl Fn(u64) -> Option<MessageId>,
    ) -> Self {
        let mut pop = Self::begin(cursor, snapshot, usize::MAX, max_deliveries);
        let mut met = MetMessages { came_back: !pop.taken.is_empty(), ..MetMessages::default() };
        for span in std::mem::take(&mut pop.taken).iter() {
            met.meet(span, repeats(span.segment));
        }
        Self { met: Some(met), ..pop }
    }

    /// Whether the newest message alone is wanted.
    pub fn is_for_newest(&self) -> bool {
        self.met.is_some()
    }

    /// Up to which segment [`Self::choose`] has to know the newest message of the log, as far as it
    /// is visible and repeats no other. None if the pop knows enough.
    pub fn compares_upto(&self) -> Option<u64> {
        let met = self.met.as_ref()?;
        let (age, _) = met.newest?;
        let position = self.cursor.position;
        (met.came_back || age.segment() < position).then_some(position)
    }

    /// End the reading of a pop of the newest message alone: take that, unless a newer one was
    /// delivered before, or lies in the log. `in_log`: what [`Self::compares_upto`] has asked for.
    /// All others are settled.
    pub fn choose(&mut self, in_log: Option<MessageId>) {
        let Some(MetMessages { newest, count, .. }) = self.met.take() else { return };
        let cursor = &mut self.cursor;
        cursor.counted_below = cursor.counted_below.max(in_log.unwrap_or_default());
        let mut older = count;
        if let Some((age, span)) = newest.filter(|(age, _)| *age >= cursor.counted_below) {
            cursor.counted_below = age;
            self.taken.push(span);
            older -= 1;
        }
        let (taken, exhausted) = (&self.taken, &self.exhausted);
        let stays = |id: MessageId| taken.find(id).is_some() || exhausted.find(id).is_some();
        cursor.failures.retain(|id| stays(*id));
        cursor.settled += older as i64;
        self.passed += older;
        self.superseded += older;
        self.is_at_end = true;
    }

    /// Whether there is something to write: messages to deliver, exhausted ones, or passed ones.
    pub fn found_any(&self) -> bool {
        self.delivers_any() || !self.exhausted.is_empty() || self.passed > 0
    }

    /// Whether there are messages to deliver.
    pub fn delivers_any(&self) -> bool {
        !self.taken.is_empty()
    }

    /// The moment before which messages are not for the group.
    pub fn since(&self) -> Option<i64> {
        self.cursor.since
    }

    /// Read no further: the next segment may not be delivered yet.
    pub fn stop(&mut self) {
        self.is_at_end = true;
    }

    /// How many messages are still wanted.
    pub fn missing(&self) -> usize {
        self.wanted - self.taken.count()
    }

    /// What to read next. None if the pop has all that it wants, or all there is.
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

    /// The holes that the cursor has once its late segments have been read: those of this snapshot,
    /// or of the snapshot under which an earlier pop began to read them.
    fn holes_when_drained(&self) -> &Holes {
        self.cursor.drain.as_ref().map_or(&self.snapshot.holes, |drain| &drain.until)
    }

    /// The answer to `read`: `found` are the first segments of what was asked for, in the order of
    /// ids, or all of them if the answer is `complete`. What is beyond the wanted number is not
    /// passed.
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
            self.passed += usize::from(found.messages);
            return;
        }
        let len = self.missing().min(usize::from(found.messages)) as u16;
        let whole = Span { segment: found.segment, first: 0, len, deliveries: 0 };
        if let Some(met) = &mut self.met {
            met.meet(whole, found.repeats);
            return;
        }
        self.taken.push(whole);
        self.cursor.waiting.push(Span { first: len, len: found.messages - len, ..whole });
    }

    /// The result, if there is something to write. `lease` holds the messages for as many
    /// microseconds from `now`; without a lease they are settled at once.
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
                self.cursor.failures.retain(|id| !settled(id));
            }
        }
        self.cursor.last_pop_at = now;
        let superseded = self.superseded;
        Some(Popped { cursor: self.cursor, taken, ended: self.ended, exhausted, superseded })
    }

    /// Settle the exhausted messages.
    fn exhaust(&mut self) -> Vec<DeadLetter> {
        let cursor = &mut self.cursor;
        cursor.settled += self.exhausted.count() as i64;
        let dead = self.exhausted.iter().flat_map(|span| {
            span.messages().map(move |message| (message, span.deliveries)).collect::<Vec<_>>()
        });
        dead.map(|(message, deliveries)| {
            let failures = cursor.failures.remove(message);
            DeadLetter { message, failures, deliveries }
        })
        .collect()
    }
}
