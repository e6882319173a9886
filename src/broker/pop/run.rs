//! What a pop gives: the next state, the lease, the messages.

use std::collections::HashMap;
use std::rc::Rc;

use queen_engine::lease::{Handle, LeaseId};
use queen_engine::message::Spans;
use queen_engine::pop::{Pop, Popped};

use crate::broker::pop::search::PartitionResult;
use crate::broker::pop::{Delivery, Taking};
use crate::error::Result;
use crate::pg::datum::random;
use crate::pg::spi::ActiveSnapshot;
use crate::store::cursor::{self, Located, Notice};
use crate::store::queue::DEAD_LETTER;
use crate::store::segment::{Log, Stored};
use crate::store::{dead_letter, lease_set, receipt};

impl Taking<'_> {
    /// Write the next state of a cursor, or of a claim, that is locked, and deliver what it gives.
    pub(super) fn take(
        &mut self,
        located: &Located,
        pop: Pop<'_>,
        segments: &mut HashMap<u64, Stored>,
        log: &Log<'_>,
        under: &ActiveSnapshot,
    ) -> Result<PartitionResult> {
        let lease = self.lease(located.id);
        let Some(popped) = pop.finish(lease, self.now) else { return Ok(PartitionResult::Nothing) };
        self.write(located, &popped);
        self.has_written = true;
        if popped.taken.is_empty() {
            return Ok(PartitionResult::Nothing);
        }
        fetch_missing(segments, &popped.taken, log, under);
        self.covered.push((located.id, located.message));
        self.partitions.insert(located.partition.clone());
        self.deliver(&located.partition, &popped.taken, segments, lease);
        Ok(PartitionResult::Took)
    }

    /// The lease for what is taken from this cursor, or under this claim; None with `auto_ack`.
    pub(super) fn lease(&mut self, cursor: u64) -> Option<(LeaseId, i64)> {
        if self.wanted.auto_ack {
            return None;
        }
        let duration = self.wanted.lease_time.unwrap_or(self.queue.options.lease_time());
        let covers_one = match self.is_ordered() {
            true => self.wanted.partitions == 1,
            false => self.wanted.batch == 1,
        };
        let id = if covers_one {
            LeaseId::new(self.now, Handle::Cursor(cursor), random())
        } else {
            let now = self.now;
            let (_, id) = *self.set.get_or_insert_with(|| {
                let set = lease_set::draw_id();
                (set, LeaseId::new(now, Handle::Set(set), random()))
            });
            id
        };
        Some((id, duration))
    }

    fn write(&self, located: &Located, popped: &Popped) {
        let notice = Notice::of(located, &popped.cursor, self.queue.identity);
        cursor::append(located, &popped.cursor, notice);
        for (lease, trace) in &popped.ended {
            receipt::insert(located, *lease, trace, self.now);
        }
        if self.queue.options.on_exhausted() == DEAD_LETTER {
            for dead in &popped.exhausted {
                let error = format!("delivered {} times, which is max_deliveries", dead.deliveries);
                dead_letter::bury(located.group, &located.partition, *dead, Some(&error), self.now);
            }
        }
    }

    pub(super) fn deliver(
        &mut self,
        partition: &str,
        messages: &Spans,
        segments: &HashMap<u64, Stored>,
        lease: Option<(LeaseId, i64)>,
    ) {
        let partition: Rc<str> = partition.into();
        for span in messages.iter() {
            let Some(stored) = segments.get(&span.segment) else { continue };
            let created_at = stored.created_at();
            let contents = self.results.allocate(|| stored.contents().copied());
            for message in span.messages() {
                self.deliveries.push(Delivery {
                    partition: partition.clone(),
                    message,
                    contents,
                    created_at,
                    attempt: span.deliveries,
                    lease: lease.map(|(id, duration)| (id, self.now.saturating_add(duration))),
                });
            }
        }
    }
}

/// Segments of messages that came back: the log was not read for them.
fn fetch_missing(
    segments: &mut HashMap<u64, Stored>,
    taken: &Spans,
    log: &Log<'_>,
    under: &ActiveSnapshot,
) {
    let missing: Spans =
        taken.iter().filter(|span| !segments.contains_key(&span.segment)).collect();
    if !missing.is_empty() {
        let stored = log.segments(&missing, under);
        segments.extend(stored.into_iter().map(|segment| (segment.id(), segment)));
    }
}
