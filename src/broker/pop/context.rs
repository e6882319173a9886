//! What a pop knows before it tries a partition, and how it reads the log.

use std::collections::HashMap;

use queen_engine::pop::Pop;

use crate::broker::pop::Taking;
use crate::pg::clock::Moment;
use crate::pg::spi::ActiveSnapshot;
use crate::store::seen_snapshot::SeenSnapshot;
use crate::store::segment::{Log, LogPage, Stored};

/// What a pop wants.
pub struct Wanted<'a> {
    /// Messages, over all partitions.
    pub batch: usize,
    /// From this partition alone.
    pub partition: Option<&'a str>,
    /// From up to so many.
    pub partitions: usize,
    /// Held for so long; None: as the queue has it.
    pub lease_time: Option<i64>,
    /// Settled at once, without a lease.
    pub auto_ack: bool,
}

impl Taking<'_> {
    pub(super) fn log<'p>(&self, partition: &'p str, since: Option<Moment>) -> Log<'p> {
        let delay = self.queue.options.delay();
        Log {
            queue: self.queue.id,
            partition,
            group: self.group.id,
            since,
            until: (delay > 0).then(|| self.now.saturating_sub(delay)),
            is_bare: false,
        }
    }
}

/// Segments read at first, when nothing is known of how full they are.
const FIRST_SEGMENTS: usize = 8;

/// Read the log until the pop has what it wants, or all there is. And the first segment that is not
/// to be delivered yet, with its transaction, if the reading ended there.
pub(super) fn read_log(
    pop: &mut Pop<'_>,
    log: &Log<'_>,
    taken: &SeenSnapshot,
    under: &ActiveSnapshot,
) -> (HashMap<u64, Stored>, Option<(u64, u64)>) {
    let mut first_held_back = None;
    let mut segments = HashMap::new();
    let mut limit = FIRST_SEGMENTS;
    while let Some(read) = pop.next_read() {
        let limit_now = limit.min(pop.missing());
        let LogPage { stored, held_back } =
            log.read(&read, limit_now, &taken.snapshot.holes, under);
        let found: Vec<_> = stored.iter().map(Stored::found).collect();
        pop.supply(&read, &found, held_back.is_none() && stored.len() < limit_now);
        if held_back.is_some() {
            first_held_back = held_back;
            pop.stop();
        }
        segments.extend(stored.into_iter().map(|segment| (segment.id(), segment)));
        limit *= 4;
        pgrx::check_for_interrupts!();
    }
    (segments, first_held_back)
}
