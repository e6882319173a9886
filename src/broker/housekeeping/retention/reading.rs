//! How retention reads the log, in the order of transactions: from the floor on, and not through
//! the gaps that the worker remembers.
//!
//! A message that a group keeps from being settled stays for long. What was deleted behind it lies
//! above the floor. While a transaction holds an old snapshot, every look would walk over that. So
//! the worker remembers between which transactions there was nothing, and which transactions had
//! not ended then: a later look leaps from one to the other, and looks at these by themselves.

use queen_engine::floor::Floor;
use queen_engine::holes::{Holes, Snapshot};

use crate::pg::clock::Moment;
use crate::pg::session_cache::SessionCache;
use crate::pg::snapshot::{ActiveSnapshot, one_snapshot_per_transaction};
use crate::store::queue::Queue;
use crate::store::segment::{Gap, News, news_across};
use crate::store::sweep::Bookmark;

/// A place in the log of a queue: (xid, (partition, segment)).
pub type LogPlace = (u64, (String, u64));

/// Transactions so far apart may have something dead between them.
const FAR: u64 = 64;
/// Gaps that are remembered of a queue: the widest.
const MOST: usize = 128;
/// Number of queues of which the worker remembers gaps.
const REMEMBERED: usize = 4096;

thread_local! {
    /// By queue and creation.
    static GAPS: SessionCache<(i64, Moment), Vec<Gap>> = SessionCache::of(REMEMBERED);
}

/// Reads the log of a queue under one snapshot.
pub struct Reading<'a> {
    pub queue: &'a Queue,
    pub floor: &'a Floor,
    /// What `under` says about transactions.
    pub snapshot: &'a Snapshot,
    pub bookmark: Bookmark,
    pub under: &'a ActiveSnapshot,
}

impl Reading<'_> {
    /// Up to `limit` segments after `at`.
    pub fn news(&self, at: &LogPlace, limit: usize) -> Vec<News> {
        let key = (self.queue.id, self.queue.created_at);
        let remembers = self.bookmark == Bookmark::InMemory && !one_snapshot_per_transaction();
        let known = GAPS.with(|gaps| gaps.take(&key)).filter(|_| remembers).unwrap_or_default();
        let floor = Gap { after: 0, below: self.floor.xid, except: self.floor.except.clone() };
        let above = known.iter().filter(|gap| gap.below > floor.below).cloned();
        let leaps: Vec<Gap> = [floor.clone()].into_iter().chain(above).collect();
        let rows = news_across(self.queue.id, &leaps, (at.0, &at.1), limit, self.under);
        if remembers {
            let gaps = self.gaps_between(at.0, &rows, known);
            GAPS.with(|all| all.keep(key, gaps));
        }
        rows
    }

    /// The gaps among these rows, which are all that there are after the transaction `from`; and
    /// those that were known and lie elsewhere.
    fn gaps_between(&self, from: u64, rows: &[News], known: Vec<Gap>) -> Vec<Gap> {
        let Some(last) = rows.last().map(|row| row.segment.xid) else { return known };
        let elsewhere = |gap: &Gap| gap.below <= from || gap.after >= last;
        let mut gaps: Vec<Gap> = known.into_iter().filter(elsewhere).collect();
        let mut before = from.max(self.floor.xid.saturating_sub(1));
        for xid in rows.iter().map(|row| row.segment.xid) {
            if xid > before.saturating_add(FAR) {
                gaps.push(Gap { after: before, below: xid, except: self.not_shown(before, xid) });
            }
            before = before.max(xid);
        }
        if gaps.len() > MOST {
            gaps.sort_unstable_by_key(|gap| u64::MAX - (gap.below - gap.after));
            gaps.truncate(MOST);
        }
        gaps.sort_unstable_by_key(|gap| gap.after);
        gaps
    }

    /// The transactions between these two that the snapshot does not show.
    fn not_shown(&self, after: u64, below: u64) -> Holes {
        let own = self.snapshot.own.map(|own| (own, own + 1));
        let not_shown = self.snapshot.holes.ranges().iter().copied().chain(own);
        let within = |(low, high): (u64, u64)| (low.max(after + 1), high.min(below));
        Holes::from_ranges(not_shown.map(within).collect())
    }
}
