//! What a pop knows before it tries a partition: what the call asks for, of which queue and group,
//! and the one snapshot under which everything is read. Also how the log is read under that
//! snapshot. Takes no lock, writes nothing.

use std::collections::HashMap;
use std::rc::Rc;

use queen_engine::cursor::{Cursor, Readiness};
use queen_engine::discovery::Discovery;
use queen_engine::floor::Floor;
use queen_engine::pop::{FoundSegment, Pop};

use crate::pg::clock::Moment;
use crate::pg::snapshot::ActiveSnapshot;
use crate::store::group::Group;
use crate::store::queue::Queue;
use crate::store::replay;
use crate::store::seen_snapshot::{self, SeenSnapshot};
use crate::store::segment::{Log, LogPage, Stored};
use crate::store::tally;

/// How much a call wants, and on which terms.
pub struct PopLimits<'a> {
    /// Messages at most, over all partitions.
    pub batch: usize,
    /// From this partition alone.
    pub partition: Option<&'a str>,
    /// From this many partitions at most.
    pub partitions: usize,
    /// The length of the lease in microseconds; None: the queue's.
    pub lease_time: Option<i64>,
    /// The messages are settled at once, and there is no lease.
    pub auto_ack: bool,
}

impl PopLimits<'_> {
    /// One message, wherever it is.
    pub const ONE: PopLimits<'static> =
        PopLimits { batch: 1, partition: None, partitions: 1, lease_time: None, auto_ack: false };
}

/// What stays as it is for one pop under one snapshot.
pub struct PopContext<'a> {
    pub limits: &'a PopLimits<'a>,
    pub queue: &'a Queue,
    pub group: &'a Group,
    /// The newest state of the group's search, with its revision: as of this snapshot or before.
    pub discovery: &'a (i64, Discovery),
    /// When the pop began. A lease that ends later holds for this pop to its end.
    pub now: Moment,
    /// What `under` says about transactions.
    pub seen: SeenSnapshot,
    /// Up to where the queue's log is empty.
    pub floor: Rc<Floor>,
    pub under: &'a ActiveSnapshot,
}

/// Segments that a pop has read.
pub struct ReadSegments {
    pub by_id: HashMap<u64, Stored>,
    /// The first segment that is not to be delivered yet and its transaction, if the reading ended
    /// there.
    pub held_back: Option<(u64, u64)>,
}

impl<'a> PopContext<'a> {
    pub fn new(
        limits: &'a PopLimits<'a>,
        queue: &'a Queue,
        group: &'a Group,
        discovery: &'a (i64, Discovery),
        now: Moment,
        under: &'a ActiveSnapshot,
    ) -> Self {
        let seen = seen_snapshot::describe(under, queue.identity);
        let floor = tally::floors(queue, now, under).log;
        Self { limits, queue, group, discovery, now, seen, floor, under }
    }

    /// Whether a cursor, or a claim, can be popped from; or when that can be.
    pub fn readiness(&self, cursor: &Cursor) -> Readiness {
        cursor.readiness(self.now, self.queue.identity.void_before)
    }

    /// The log of a partition, up to messages that are old enough to be delivered. `since`:
    /// messages created before this moment are not for the group.
    pub fn log<'p>(&'p self, partition: &'p str, since: Option<Moment>) -> Log<'p> {
        let delay = self.queue.options.delay();
        Log {
            queue: self.queue.id,
            partition,
            group: self.group.id,
            since,
            until: (delay > 0).then(|| self.now.saturating_sub(delay)),
            is_bare: false,
            floor: &self.floor,
        }
    }

    /// Begin to pop from the cursor of an ordered group: as the queue's option `delivery` says, up
    /// to `wanted` messages, or the newest one alone.
    pub fn begin(&self, cursor: Cursor, wanted: usize) -> Pop<'_> {
        let (options, snapshot) = (&self.queue.options, &self.seen.snapshot);
        match options.is_latest() {
            false => Pop::begin(cursor, snapshot, wanted, options.max_deliveries()),
            true => Pop::latest(cursor, snapshot, options.max_deliveries(), |segment| {
                replay::repeated_by(self.queue.id, segment, self.under)
            }),
        }
    }

    /// Read the log until `pop` has what it wants, or all there is. Of a pop that wants the newest
    /// message alone, the contents are not kept.
    pub fn read_log(&self, pop: &mut Pop<'_>, log: &Log<'_>) -> ReadSegments {
        if pop.is_for_newest() {
            let read = self.read_pages(pop, &log.bare(), |_| ());
            pop.choose(pop.compares_upto().and_then(|upto| log.newest_upto(upto, self.under)));
            return read;
        }
        let mut by_id = HashMap::new();
        let keep = |page: Vec<Stored>| {
            by_id.extend(page.into_iter().map(|segment| (segment.id(), segment)));
        };
        let read = self.read_pages(pop, log, keep);
        ReadSegments { by_id, ..read }
    }

    fn read_pages(
        &self,
        pop: &mut Pop<'_>,
        log: &Log<'_>,
        mut keep: impl FnMut(Vec<Stored>),
    ) -> ReadSegments {
        let mut read = ReadSegments { by_id: HashMap::new(), held_back: None };
        let mut limit = FIRST_SEGMENTS;
        while let Some(next) = pop.next_read() {
            let limit_now = limit.min(pop.missing());
            let LogPage { stored, held_back } = log.read(&next, limit_now, &self.seen, self.under);
            let found: Vec<_> = stored.iter().map(|segment| self.found(segment, pop)).collect();
            pop.supply(&next, &found, held_back.is_none() && stored.len() < limit_now);
            if held_back.is_some() {
                read.held_back = held_back;
                pop.stop();
            }
            keep(stored);
            limit = MOST_SEGMENTS.min(limit * 4);
            pgrx::check_for_interrupts!();
        }
        read
    }

    /// What the pop has to know of a segment.
    fn found(&self, segment: &Stored, pop: &Pop<'_>) -> FoundSegment {
        let found = segment.found();
        match segment.is_replay() && pop.is_for_newest() {
            false => found,
            true => {
                let repeats = replay::repeated_by(self.queue.id, segment.id(), self.under);
                FoundSegment { repeats, ..found }
            }
        }
    }
}

/// Segments read first, while the pop does not know how many messages each has; then four times as
/// many each time.
const FIRST_SEGMENTS: usize = 8;
/// Segments read at a time at most: more than a batch has messages.
const MOST_SEGMENTS: usize = 16_384;
