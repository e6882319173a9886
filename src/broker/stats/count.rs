//! Counting what has arrived in a queue, and what is pending for its groups.

use queen_engine::tally::{Arrived, Tally};

use crate::error::Result;
use crate::pg::spi::ActiveSnapshot;
use crate::store::cursor::{self, Located};
use crate::store::group::{self, Group};
use crate::store::queue::Queue;
use crate::store::replay::{self, Replay};
use crate::store::seen_snapshot::{self, SeenSnapshot};
use crate::store::segment::{self, Leap, news};
use crate::store::tally;

/// Segments read at a time.
const CHUNK: usize = 4096;

/// What has arrived in a queue, as of a snapshot.
pub struct Count {
    queue: i64,
    revision: i64,
    pub tally: Tally,
    /// What this transaction has pushed itself: seen by it, and counted by a later one.
    own: u64,
    own_bytes: u64,
    /// Segments counted that no written tally has.
    passed: usize,
    is_complete: bool,
}

impl Count {
    /// Count on from the newest tally, up to `limit` segments (None: all there are).
    pub fn take(
        queue: i64,
        taken: &SeenSnapshot,
        limit: Option<usize>,
        under: &ActiveSnapshot,
    ) -> Result<Self> {
        let (revision, tally) = tally::newest(queue, under)?;
        let (own, own_bytes, passed, is_complete) = (0, 0, 0, false);
        let mut count = Self { queue, revision, tally, own, own_bytes, passed, is_complete };
        count.finish_late(taken, under);
        let stream = &count.tally.stream;
        let mut at = (stream.xid, stream.key.clone());
        while limit.is_none_or(|limit| count.passed < limit) {
            let rows = news(queue, at.0, &at.1, false, CHUNK, under);
            let is_last = rows.len() < CHUNK;
            for row in rows {
                at = (row.segment.xid, row.segment.key.clone());
                count.add(row.segment, taken);
            }
            if is_last {
                count.is_complete = true;
                break;
            }
            pgrx::check_for_interrupts!();
        }
        count.tally.stream.leave_holes(&taken.snapshot);
        Ok(count)
    }

    /// What transactions have left that were passed while they ran, and have ended.
    fn finish_late(&mut self, taken: &SeenSnapshot, under: &ActiveSnapshot) {
        let snapshot = &taken.snapshot;
        let mut leap = Leap { pusher: None, clear_below: 0 };
        for (xid, mut key) in self.tally.stream.finished(snapshot) {
            if xid >= leap.clear_below && leap.pusher != Some(xid) {
                leap = segment::leap(self.queue, xid, &snapshot.holes, under);
            }
            while leap.pusher == Some(xid) {
                let rows = news(self.queue, xid, &key, true, CHUNK, under);
                let is_last = rows.len() < CHUNK;
                for row in rows {
                    key = row.segment.key.clone();
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
            self.own += segment.messages;
            self.own_bytes += segment.bytes;
        } else {
            self.passed += 1;
        }
        self.tally.count(segment, &taken.snapshot);
    }

    /// Whether nothing visible was left uncounted.
    pub fn is_complete(&self) -> bool {
        self.is_complete
    }

    /// The written count that this goes on from.
    pub fn revision(&self) -> i64 {
        self.revision
    }

    /// Messages that have ever arrived and are visible.
    pub fn arrived(&self) -> i64 {
        (self.tally.messages + self.own) as i64
    }

    /// Messages in the log.
    pub fn retained(&self) -> i64 {
        (self.tally.retained() + self.own) as i64
    }

    /// What they take as stored.
    pub fn bytes(&self) -> i64 {
        (self.tally.bytes.saturating_sub(self.tally.removed_bytes) + self.own_bytes) as i64
    }

    /// All that was counted is gone from the log.
    pub fn remove_all(&mut self) {
        self.tally.removed_messages = self.tally.messages;
        self.tally.removed_bytes = self.tally.bytes;
    }

    /// In REPEATABLE READ somebody may have counted on since the snapshot: an error then.
    pub fn need_newest(&self) -> Result<()> {
        tally::need_newest(self.queue, self.revision)
    }

    /// Write the count, as the one who leads.
    pub fn write(&self) {
        tally::append(self.queue, self.revision, &self.tally);
    }

    /// Write the count if others would count much again without it, and nobody else is at it.
    pub fn keep(&self, worth: usize) -> Result<bool> {
        let keeps = self.passed >= worth && tally::try_lead(self.queue, self.revision)?;
        if keeps {
            self.write();
        }
        Ok(keeps)
    }
}

/// Messages that are not settled for the group, which has these cursors.
pub fn pending(
    count: &Count,
    group: &Group,
    cursors: &[Located],
    replays: &[Replay],
    under: &ActiveSnapshot,
) -> i64 {
    let settled: i64 = cursors.iter().map(|located| located.cursor.settled).sum();
    // Those that are not for it have arrived too, and count as settled once it has passed them.
    let start = group.first_state();
    let is_ahead = |replay: &&Replay| {
        let is_its =
            |located: &&Located| located.message.is_none() && located.partition == replay.partition;
        let cursor = cursors.iter().find(is_its);
        let cursor = cursor.map_or(&start, |located| &located.cursor);
        replay.group != group.id && !cursor.has_read(replay.segment, replay.xid)
    };
    let of_others = replays.iter().filter(is_ahead).count() as i64;
    (due_to(count, group, under) - settled - of_others).max(0)
}

/// Messages that are, or were, for the group.
pub fn due_to(count: &Count, group: &Group, under: &ActiveSnapshot) -> i64 {
    match group.baseline {
        Some(baseline) => count.arrived() - baseline,
        None => group.initial + segment::count_of(count.queue, &group.start.unseen(), under),
    }
}

/// Count what is not for the group, if that has not been done.
pub fn settle_baseline(count: &Count, group: &mut Group, under: &ActiveSnapshot) {
    if group.baseline.is_none() {
        let baseline = count.arrived() - due_to(count, group, under);
        group.baseline = Some(baseline);
        group::set_baseline(group.id, baseline);
    }
}

/// Messages that wait for the slowest group; all that are retained where there is no group.
pub fn depth(queue: &Queue, count: &Count, under: &ActiveSnapshot) -> Result<i64> {
    let replays = replay::of_queue(queue.id, under);
    let mut deepest = None;
    for group in group::of_queue(&queue.name, under)? {
        let cursors = cursor::of_group(group.id, &group.start, under)?;
        deepest = deepest.max(Some(pending(count, &group, &cursors, &replays, under)));
    }
    Ok(deepest.unwrap_or(count.retained()).max(0))
}

/// The same; and what has been counted for it is kept, if it is much.
pub fn depth_and_keep(queue: &Queue, under: &ActiveSnapshot) -> Result<i64> {
    let taken = seen_snapshot::describe(under, queue.identity);
    let count = Count::take(queue.id, &taken, None, under)?;
    count.keep(WORTH_WRITING)?;
    depth(queue, &count, under)
}

/// A count is written when others would pass this many segments again without it.
pub const WORTH_WRITING: usize = 256;
