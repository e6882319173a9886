//! How many messages have arrived in a queue, and how many are pending for its groups.
//!
//! The log is not counted anew each time. `queen_mq.tally` holds a count up to a place in the log,
//! and a caller counts on from there in memory. The lock `tally` of the queue (`store::locks`)
//! makes one transaction the one that writes the next count; the others count without writing. A
//! count takes no other lock. Callers are the views and metrics, `max_depth`, purge and retention.

use std::collections::HashMap;
use std::collections::hash_map::Entry;

use queen_engine::cursor::Cursor;
use queen_engine::tally::{Arrived, Tally};

use super::summary::StateSummary;
use crate::error::Result;
use crate::pg::snapshot::ActiveSnapshot;
use crate::store::group::{self, Group};
use crate::store::located::Located;
use crate::store::queue::Queue;
use crate::store::replay::{self, Replay};
use crate::store::seen_snapshot::{self, SeenSnapshot};
use crate::store::segment::{self, LastSegment, News, Pushers, news};
use crate::store::{cursor, cursor_or_claim, tally};

/// Segments read at a time.
const CHUNK: usize = 4096;

/// How many messages have arrived in a queue, as of a snapshot.
pub struct ArrivalCount {
    queue: i64,
    /// The revision of the written count that this one goes on from.
    revision: i64,
    pub tally: Tally,
    /// Messages, and their bytes, that this transaction has pushed. They are visible to it, and a
    /// later transaction writes them into the tally.
    own_messages: u64,
    own_bytes: u64,
    /// Segments that are counted here, and not in the written count.
    unwritten: usize,
    is_complete: bool,
}

/// A count is written when it has this many segments that the written one has not. Every later
/// count would read those segments again.
pub const SEGMENTS_WORTH_A_WRITE: usize = 256;

impl ArrivalCount {
    /// Count on from the written count, up to `limit` segments (None: all there are). `taken`
    /// describes `under`.
    pub fn as_of(
        queue: i64,
        taken: &SeenSnapshot,
        limit: Option<usize>,
        under: &ActiveSnapshot,
    ) -> Result<Self> {
        let mut count = Self::written(queue, under)?;
        count.go_on(taken, limit, &mut |_| (), under);
        Ok(count)
    }

    /// The written count.
    pub fn written(queue: i64, under: &ActiveSnapshot) -> Result<Self> {
        let (revision, tally) = tally::newest(queue, under)?;
        Ok(Self {
            queue,
            revision,
            tally,
            own_messages: 0,
            own_bytes: 0,
            unwritten: 0,
            is_complete: false,
        })
    }

    /// Count on, up to `limit` segments that the written count has not, and show each to `visit`.
    /// `taken` describes `under`, which shows all that was counted so far.
    pub fn go_on(
        &mut self,
        taken: &SeenSnapshot,
        limit: Option<usize>,
        visit: &mut dyn FnMut(&News),
        under: &ActiveSnapshot,
    ) {
        (self.own_messages, self.own_bytes, self.is_complete) = (0, 0, false);
        self.count_late(taken, visit, under);
        let stream = &self.tally.stream;
        let mut at = (stream.xid, stream.key.clone());
        while limit.is_none_or(|limit| self.unwritten < limit) {
            let rows = news(self.queue, at.0, &at.1, false, CHUNK, under);
            let is_last = rows.len() < CHUNK;
            for row in rows {
                at = (row.segment.xid, row.segment.key.clone());
                visit(&row);
                self.add(row.segment, taken);
            }
            if is_last {
                self.is_complete = true;
                break;
            }
            pgrx::check_for_interrupts!();
        }
        self.tally.stream.leave_holes(&taken.snapshot);
    }

    /// Count the segments of transactions that were running when the count came to their place, and
    /// have ended since.
    fn count_late(
        &mut self,
        taken: &SeenSnapshot,
        visit: &mut dyn FnMut(&News),
        under: &ActiveSnapshot,
    ) {
        let snapshot = &taken.snapshot;
        let mut pushers = Pushers::of(self.queue, taken);
        for (xid, mut key) in self.tally.stream.finished(snapshot) {
            while pushers.has(xid) {
                let rows = news(self.queue, xid, &key, true, CHUNK, under);
                let is_last = rows.len() < CHUNK;
                for row in rows {
                    key = row.segment.key.clone();
                    visit(&row);
                    self.add(row.segment, taken);
                }
                if is_last {
                    break;
                }
                pgrx::check_for_interrupts!();
            }
            self.tally.stream.finish(xid, snapshot);
        }
    }

    fn add(&mut self, segment: Arrived, taken: &SeenSnapshot) {
        if taken.snapshot.own == Some(segment.xid) {
            self.own_messages += segment.messages;
            self.own_bytes += segment.bytes;
        } else {
            self.unwritten += 1;
        }
        self.tally.count(segment, &taken.snapshot);
    }

    /// Whether every visible segment is counted.
    pub fn is_complete(&self) -> bool {
        self.is_complete
    }

    /// The revision of the written count that this one goes on from.
    pub fn revision(&self) -> i64 {
        self.revision
    }

    /// Messages that have ever arrived and are visible.
    pub fn arrived(&self) -> i64 {
        (self.tally.messages + self.own_messages) as i64
    }

    /// Messages in the log.
    pub fn retained(&self) -> i64 {
        (self.tally.retained() + self.own_messages) as i64
    }

    /// The bytes of their payloads, as stored.
    pub fn bytes(&self) -> i64 {
        (self.tally.bytes.saturating_sub(self.tally.removed_bytes) + self.own_bytes) as i64
    }

    /// Account for a purge: all that was counted has been removed from the log.
    pub fn remove_all(&mut self) {
        self.tally.removed_messages = self.tally.messages;
        self.tally.removed_bytes = self.tally.bytes;
    }

    /// Error 40001 if another transaction has written a newer count since the snapshot, which can
    /// be so in REPEATABLE READ. `name`: the queue's.
    pub fn need_newest(&self, name: &str) -> Result<()> {
        tally::need_newest(self.queue, name, self.revision)
    }

    /// Whether it has at least so many segments that the written count has not.
    pub fn has_unwritten(&self, segments: usize) -> bool {
        self.unwritten >= segments
    }

    /// Write the count. The caller holds the lock `tally` of the queue.
    pub fn write(&self) {
        tally::append(self.queue, self.revision, &self.tally);
    }

    /// Write the count if it has at least so many segments that the written one has not. Does
    /// nothing where another transaction has written a newer count, or holds the lock `tally`.
    /// Whether it has written it.
    pub fn write_if_worth(&self, segments: usize) -> Result<bool> {
        let writes = self.has_unwritten(segments) && tally::try_lead(self.queue, self.revision)?;
        if writes {
            self.write();
        }
        Ok(writes)
    }
}

/// Messages that are not settled for the group. `settled`: those that its cursors and claims have
/// settled; `replays` are the replays of the queue. Not for a group that gets the newest message of
/// each partition alone ([`StateSummary::newest_pending`]).
pub fn pending(
    count: &ArrivalCount,
    group: &Group,
    settled: i64,
    replays: &[Replay],
    under: &ActiveSnapshot,
) -> Result<i64> {
    let ahead = replays_ahead(group, replays, under)?;
    Ok((arrived_for(count, group, under) - settled - ahead).max(0))
}

/// Replays for other groups that the group has not come to. They have arrived; the group's cursor
/// settles one in passing, and until then it is not to be counted as pending.
fn replays_ahead(group: &Group, replays: &[Replay], under: &ActiveSnapshot) -> Result<i64> {
    let mut states: HashMap<&str, Cursor> = HashMap::new();
    let mut ahead = 0;
    for replay in replays.iter().filter(|replay| replay.group != group.id) {
        let state = match states.entry(&replay.partition) {
            Entry::Occupied(known) => known.into_mut(),
            Entry::Vacant(entry) => {
                let found = cursor::status(group.id, &group.start, &replay.partition, under)?;
                entry.insert(group.state_in(found.as_ref().map(|(located, _)| located)))
            }
        };
        ahead += i64::from(!state.has_read(replay.segment, replay.xid));
    }
    Ok(ahead)
}

/// Messages that have ever arrived for the group, be they settled or not.
fn arrived_for(count: &ArrivalCount, group: &Group, under: &ActiveSnapshot) -> i64 {
    match group.baseline {
        Some(baseline) => count.arrived() - baseline,
        None => group.initial + segment::count_of(count.queue, &group.start.unseen(), under),
    }
}

/// Set the baseline of a group that has none: the messages that have arrived in the queue, and not
/// for the group. The caller holds the group's row.
pub fn set_missing_baseline(count: &ArrivalCount, group: &mut Group, under: &ActiveSnapshot) {
    if group.baseline.is_none() {
        let baseline = count.arrived() - arrived_for(count, group, under);
        group.baseline = Some(baseline);
        group::set_baseline(group.id, baseline);
    }
}

/// Messages that wait for the slowest group; all that are in the log where there is no group.
/// Writes the count that this needs, where that is worth it.
pub fn measure_depth(queue: &Queue, under: &ActiveSnapshot) -> Result<i64> {
    let taken = seen_snapshot::describe(under, queue.identity);
    let count = ArrivalCount::as_of(queue.id, &taken, None, under)?;
    count.write_if_worth(SEGMENTS_WORTH_A_WRITE)?;
    depth(queue, &count, under)
}

/// Messages that wait for the slowest group; all that are in the log where there is no group.
fn depth(queue: &Queue, count: &ArrivalCount, under: &ActiveSnapshot) -> Result<i64> {
    let replays = replay::of_queue(queue.id, under);
    let last = queue.options.is_latest().then(|| segment::last_segments(queue.id, under));
    let mut deepest = None;
    for group in group::of_queue(&queue.name, under)? {
        let cursors = cursor_or_claim::of_group(group.id, &group.start, under)?;
        if let Some(last) = last.as_ref().filter(|_| group.is_ordered(&queue.options)) {
            deepest = deepest.max(Some(newest_pending(&group, cursors, last)));
            continue;
        }
        let settled = cursors.iter().map(|located| located.cursor.settled).sum();
        deepest = deepest.max(Some(pending(count, &group, settled, &replays, under)?));
    }
    Ok(deepest.unwrap_or(count.retained()).max(0))
}

/// [`pending`] for a group that gets the newest message of each partition alone. `last`: the last
/// segment of each partition.
fn newest_pending(group: &Group, cursors: Vec<Located>, last: &[(String, LastSegment)]) -> i64 {
    let first = StateSummary::of(group.first_state());
    let state = |located: Located| (located.partition, StateSummary::of(located.cursor));
    let states: HashMap<String, StateSummary> = cursors.into_iter().map(state).collect();
    let of = |(partition, last): &(String, LastSegment)| {
        states.get(partition).unwrap_or(&first).newest_pending(last)
    };
    last.iter().map(of).sum()
}
