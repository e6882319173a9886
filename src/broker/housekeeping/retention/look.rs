//! What the worker does before retention locks anything: it looks whether any message may go.
//!
//! A group that is gone for good keeps the queue from deleting what only settled messages may be:
//! then there may be hundreds of thousands of old segments, and none may go. The worker looks
//! through them in several steps. Up to where it has looked stands in its memory, and nothing is
//! written. Meanwhile, and for a while after that, it looks at the head of the log in each step.

use std::collections::BTreeMap;

use super::ages::Ages;
use super::group_in_partition::{GroupInPartition, may_go};
use super::reading::{LogPlace, Reading};
use crate::error::Result;
use crate::pg::clock::{self, Moment, SECOND};
use crate::pg::session_cache::SessionCache;
use crate::pg::snapshot::ActiveSnapshot;
use crate::store::group::Group;
use crate::store::segment::News;
use crate::store::sweep::SweepStep;

/// Segments that are looked at at a time.
pub const STEP: usize = 1000;
/// A step looks for this long, in microseconds.
const LONGEST_LOOK: i64 = SECOND / 20;
/// After a look through everything that has found nothing, the worker rests for so many times the
/// time that it took, and looks at the head of the log alone.
const REST: i64 = 100;
/// The longest rest.
const LONGEST_REST: i64 = 30 * SECOND;
/// So many segments are the head of the log. A group that comes back settles them first.
const HEAD: usize = 100;
/// Number of queues for which the worker remembers how far it has looked.
const REMEMBERED: usize = 4096;

thread_local! {
    static LOOKED: SessionCache<i64, LastLook> = SessionCache::of(REMEMBERED);
}

/// How far the worker has looked through a queue.
struct LastLook {
    /// None: to the end of what is old, or not at all.
    upto: Option<LogPlace>,
    /// The soonest moment at which a segment up to there may go, settled or not.
    soonest: Moment,
    /// The time that the look has taken so far, in microseconds.
    spent: i64,
    rests_until: Moment,
}

impl Default for LastLook {
    fn default() -> Self {
        Self { upto: None, soonest: Moment::MAX, spent: 0, rests_until: 0 }
    }
}

/// Note that a step has deleted what may go up to this place; None: up to the end of what is old.
pub fn go_on_after(queue: i64, place: Option<LogPlace>) {
    let last = LOOKED.with(|looked| looked.take(&queue)).unwrap_or_default();
    if place.is_some() {
        LOOKED.with(|looked| looked.keep(queue, LastLook { upto: place, ..last }));
    }
}

/// What a look has found.
pub enum Look {
    /// After this place there is a segment that may go.
    MayGo(LogPlace),
    Nothing(SweepStep),
}

/// Where a look has ended.
enum End {
    /// Before segments of which one may go.
    MayGo(LogPlace),
    /// Its time is over.
    TimeIsOver(LogPlace),
    /// No segment after it is old.
    Log,
}

/// A look through the log of a queue.
pub struct Looking<'a> {
    pub ages: &'a Ages<'a>,
    /// All groups of the queue.
    pub groups: &'a [Group],
    pub log: &'a Reading<'a>,
    pub under: &'a ActiveSnapshot,
}

impl Looking<'_> {
    /// Look for a segment that may go, from where the last look has ended, or else from the log's
    /// floor on. Takes no lock.
    pub fn look(&self) -> Result<Look> {
        let (queue, now) = (self.ages.queue.id, self.ages.now);
        let start = LogPlace::default();
        let mut looked = LOOKED.with(|looked| looked.take(&queue)).unwrap_or_default();
        // A rest that is longer than any was noted before the clock was set back.
        let rests = (1..=LONGEST_REST).contains(&(looked.rests_until - now));
        if rests || looked.spent > 0 {
            let head = self.look_through(start.clone(), HEAD, now, &mut Moment::MAX.clone())?;
            let may_go = matches!(head, End::MayGo(_));
            if may_go || rests {
                let last = if may_go { LastLook::default() } else { looked };
                LOOKED.with(|all| all.keep(queue, last));
                let nothing = Look::Nothing(SweepStep::default());
                return Ok(if may_go { Look::MayGo(start) } else { nothing });
            }
        }
        let from = looked.upto.take().unwrap_or(start);
        let end = self.look_through(from, STEP, now + LONGEST_LOOK, &mut looked.soonest)?;
        looked.spent += clock::now() - now;
        let (look, looked) = match end {
            End::MayGo(place) => {
                let upto = Some(place.clone());
                (Look::MayGo(place), LastLook { upto, spent: 0, ..looked })
            }
            End::TimeIsOver(place) => {
                let step = SweepStep { goes_on: true, ..SweepStep::default() };
                (Look::Nothing(step), LastLook { upto: Some(place), ..looked })
            }
            End::Log => {
                let rests_until = now + (looked.spent * REST).min(LONGEST_REST);
                let step = SweepStep::idle(looked.soonest);
                (Look::Nothing(step), LastLook { rests_until, ..LastLook::default() })
            }
        };
        LOOKED.with(|all| all.keep(queue, looked));
        Ok(look)
    }

    /// Look at the segments after `at`, `most` at a time, until a moment that may be over. Lowers
    /// `soonest` to the first moment at which one of them may go, settled or not.
    fn look_through(
        &self,
        mut at: LogPlace,
        most: usize,
        until: Moment,
        soonest: &mut Moment,
    ) -> Result<End> {
        loop {
            let rows = self.log.news(&at, most);
            let is_old = |row: &&News| self.ages.is_due(row.created_at);
            let old = rows.iter().take_while(is_old).count();
            if let Some(young) = rows.get(old) {
                *soonest = (*soonest).min(self.ages.due_at(young.created_at));
            }
            let Some(last) = rows[..old].last() else { return Ok(End::Log) };
            let next = (last.segment.xid, last.segment.key.clone());
            let over = rows[..old].iter().map(|row| self.ages.over_at(row.created_at));
            *soonest = over.filter(|at| *at > self.ages.now).fold(*soonest, Moment::min);
            if self.has_one_that_may_go(rows.into_iter().take(old))? {
                return Ok(End::MayGo(at));
            }
            at = next;
            if old < most {
                return Ok(End::Log);
            }
            if clock::now() > until {
                return Ok(End::TimeIsOver(at));
            }
            pgrx::check_for_interrupts!();
        }
    }

    fn has_one_that_may_go(&self, rows: impl Iterator<Item = News>) -> Result<bool> {
        let mut partitions = BTreeMap::<String, Vec<News>>::new();
        for row in rows {
            partitions.entry(row.segment.key.0.clone()).or_default().push(row);
        }
        for (partition, rows) in partitions {
            let read =
                |group| GroupInPartition::read(group, self.ages, &partition, &rows, self.under);
            let groups = self.groups.iter().map(read).collect::<Result<Vec<_>>>()?;
            if rows.iter().any(|row| may_go(row, &groups, self.ages)) {
                return Ok(true);
            }
            pgrx::check_for_interrupts!();
        }
        Ok(false)
    }
}
