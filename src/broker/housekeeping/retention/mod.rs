//! The task `messages`: delete messages by their age. `retention` goes for all of them,
//! `completed_retention` for those that every group has settled.
//!
//! Whole segments go, in the order of their transactions, and never one that a lease refers to.
//! What a group had not settled is taken off what is pending for it.
//!
//! One transaction at a time works on a queue: the one that holds its lock `tally`, under which
//! arrivals and removals are counted. It also holds the rows of all groups, and, in each partition
//! that it deletes from, every group's cursor. It tries these locks and waits for none: where
//! another transaction is in the way, the messages stay until a later step.
//!
//! The worker takes no lock before it has seen a message that may go ([`look`]).

mod ages;
mod claims;
mod group_in_partition;
mod look;
mod reading;
mod segment_status;

use std::collections::BTreeMap;

use self::ages::Ages;
use self::group_in_partition::{GroupInPartition, may_go};
use self::look::{Look, Looking, STEP};
use self::reading::{LogPlace, Reading};
use crate::broker::stats::count::{ArrivalCount, SEGMENTS_WORTH_A_WRITE, set_missing_baseline};
use crate::broker::stats::floor;
use crate::error::Result;
use crate::pg::clock::{self, Moment};
use crate::pg::snapshot::ActiveSnapshot;
use crate::store::group::{self, Group};
use crate::store::queue::Queue;
use crate::store::segment::{self, News};
use crate::store::sweep::{Bookmark, SweepStep};
use crate::store::{locks, seen_snapshot, tally};

/// One step on one queue; counts messages.
pub fn step(queue: &Queue, bookmark: Bookmark) -> Result<SweepStep> {
    ActiveSnapshot::new_snapshot(|under| {
        let taken = seen_snapshot::describe(under, queue.identity);
        let mut count = ArrivalCount::as_of(queue.id, &taken, Some(10 * STEP), under)?;
        let now = clock::now();
        let ages = Ages { queue, now };
        let groups = group::of_queue(&queue.name, under)?;
        let due_at =
            segment::oldest(queue.id, &count.tally.floor, under).map_or(Moment::MAX, |at| {
                match groups.is_empty() {
                    true => ages.over_at(at),
                    false => ages.due_at(at),
                }
            });
        let is_new = groups.iter().any(|group| group.baseline.is_none());
        if !(due_at <= now || is_new) || !count.is_complete() {
            let goes_on = !count.is_complete();
            write_count(queue, &count, if goes_on { 1 } else { SEGMENTS_WORTH_A_WRITE })?;
            let idle_until = (!goes_on).then_some(due_at);
            return Ok(SweepStep { removed: 0, goes_on, idle_until });
        }
        let floor = count.tally.floor.clone();
        let snapshot = &taken.snapshot;
        let log = Reading { queue, floor: &floor, snapshot, bookmark, under };
        let mut retention = Retention { ages, groups, log, under };
        let from = match bookmark {
            Bookmark::InTable => count.tally.swept.clone(),
            // The baseline of a new group is written in any case.
            Bookmark::InMemory if is_new => count.tally.swept.clone(),
            Bookmark::InMemory => match retention.looking().look()? {
                Look::MayGo(place) => place,
                Look::Nothing(step) => {
                    write_count(queue, &count, SEGMENTS_WORTH_A_WRITE)?;
                    return Ok(step);
                }
            },
        };
        if !tally::try_lead(queue.id, count.revision())?
            || !retention.groups.iter().all(group::try_hold)
        {
            return Ok(SweepStep::default());
        }
        let groups = &mut retention.groups;
        groups.iter_mut().for_each(|group| set_missing_baseline(&count, group, under));
        retention.run(from, &mut count)
    })
}

/// Write the count if it has so many segments that the written one has not, and with it how far
/// segment ids have come.
fn write_count(queue: &Queue, count: &ArrivalCount, segments: usize) -> Result<()> {
    match count.write_if_worth(segments)? {
        true => floor::note_waterline(queue),
        false => Ok(()),
    }
}

/// One step, which holds the lock `tally` of the queue and the rows of its groups.
struct Retention<'a> {
    ages: Ages<'a>,
    groups: Vec<Group>,
    log: Reading<'a>,
    under: &'a ActiveSnapshot,
}

impl Retention<'_> {
    fn looking(&self) -> Looking<'_> {
        let Self { ages, groups, log, under } = self;
        Looking { ages, groups, log, under }
    }

    /// Delete what may go of the segments after `from`.
    fn run(&self, from: LogPlace, count: &mut ArrivalCount) -> Result<SweepStep> {
        let Reading { queue, bookmark, .. } = self.log;
        let before = count.tally.clone();
        let rows = self.log.news(&from, STEP);
        let mut is_full = rows.len() == STEP;
        let mut partitions = BTreeMap::<String, Vec<News>>::new();
        let (mut last, most) = (None, self.most_partitions());
        for row in rows.into_iter().take_while(|row| self.ages.is_due(row.created_at)) {
            let partition = &row.segment.key.0;
            if partitions.len() == most && !partitions.contains_key(partition) {
                is_full = true;
                break;
            }
            last = Some((row.segment.xid, row.segment.key.clone()));
            partitions.entry(partition.clone()).or_default().push(row);
        }
        let mut removed = 0;
        let mut lost = vec![0; self.groups.len()];
        for (partition, rows) in partitions {
            for gone in self.clean(&partition, rows, &mut lost)? {
                removed += gone.segment.messages;
                count.tally.remove(gone.segment.messages, gone.segment.bytes);
            }
            pgrx::check_for_interrupts!();
        }
        // Once a step: each is a new version of a row that every session looks up.
        for (group, lost) in self.groups.iter().zip(lost) {
            group::write_off(group.id, lost);
        }
        let goes_on = is_full && last.is_some();
        let goes_on_after = last.filter(|_| goes_on);
        if bookmark == Bookmark::InMemory {
            look::go_on_after(queue.id, goes_on_after.clone());
        }
        if removed > 0 {
            count.tally.floor = floor::raise(queue, &before.floor)?;
        }
        if removed > 0 || bookmark == Bookmark::InTable {
            // From the end of what is old back to the start: groups may have settled something
            // since.
            count.tally.swept = goes_on_after.unwrap_or_default();
        }
        match count.tally == before {
            true => write_count(queue, count, SEGMENTS_WORTH_A_WRITE)?,
            false => {
                count.write();
                if count.has_unwritten(SEGMENTS_WORTH_A_WRITE) {
                    floor::note_waterline(queue)?;
                }
            }
        }
        Ok(SweepStep { removed, goes_on, idle_until: None })
    }

    /// How many partitions this transaction may still clean. A group without order takes a lock for
    /// each, which it can do without.
    fn most_partitions(&self) -> usize {
        let is_unordered = |group: &&Group| !group.is_ordered(&self.ages.queue.options);
        match self.groups.iter().filter(is_unordered).count() {
            0 => usize::MAX,
            groups => locks::spare().div_ceil(groups),
        }
    }

    /// Delete those of the old segments of one partition that may go; returns them. Adds to `lost`
    /// what is to be taken off what is pending for each group.
    fn clean(&self, partition: &str, rows: Vec<News>, lost: &mut [i64]) -> Result<Vec<News>> {
        let read = |group| GroupInPartition::read(group, &self.ages, partition, &rows, self.under);
        let groups = self.groups.iter().map(read).collect::<Result<Vec<_>>>()?;
        let gone: Vec<News> =
            rows.into_iter().filter(|row| may_go(row, &groups, &self.ages)).collect();
        if gone.is_empty() {
            return Ok(gone);
        }
        for group in &groups {
            if !group.try_lock(&gone)? {
                return Ok(Vec::new());
            }
        }
        for (group, lost) in groups.iter().zip(lost) {
            *lost += group.let_go(&gone)?;
        }
        let ids: Vec<u64> = gone.iter().map(|row| row.segment.key.1).collect();
        segment::delete(self.ages.queue.id, partition, &ids);
        Ok(gone)
    }
}
