//! What the views are made of that SQL alone can't tell: states are the engine's.

use pgrx::datum::{Interval, TimestampWithTimeZone};
use pgrx::prelude::*;
use queen_engine::cursor::Cursor;
use queen_engine::discovery::Discovery;
use queen_engine::message::Spans;

use crate::error::{OrRaise, Result};
use crate::rows::TableIterator;
use crate::store::clock::{self, Moment};
use crate::store::cursor::{self, Located};
use crate::store::discovery::{self, NewsOf};
use crate::store::group::{self, Group, QUEUE_MODE};
use crate::store::identity::{self, Identity};
use crate::store::segment::Log;
use crate::store::snapshot::{self, Taken};
use crate::store::spi::{Under, connected};
use crate::store::{dead_letter, queue};

/// The state of one group.
#[derive(Default)]
struct Figures {
    pending: u64,
    in_flight: u64,
    retrying: u64,
    dead_letters: u64,
    oldest_pending: Option<Moment>,
    last_pop_at: Option<Moment>,
}

/// Functions that live beside the tables: the views call them.
#[pg_schema]
pub mod queen_mq {
    use super::*;

    /// Behind the view queen_groups: one row for each group. Costs by the number of partitions the
    /// groups have read and what has arrived since anybody last looked, not by the length of the log.
    #[allow(clippy::type_complexity)]
    #[pg_extern(security_definer, requires = ["tables"])]
    #[search_path(pg_catalog, pg_temp)]
    fn group_figures() -> TableIterator<
        'static,
        (
            name!(queue, String),
            name!(consumer_group, Option<String>),
            name!(pending, i64),
            name!(in_flight, i64),
            name!(retrying, i64),
            name!(dead_letters, i64),
            name!(oldest_pending_age, Option<Interval>),
            name!(last_pop_at, Option<TimestampWithTimeZone>),
        ),
    > {
        let now = clock::now();
        let rows = connected(|| {
            let identity = identity::current()?;
            Under::new_snapshot(|under| {
                let taken = snapshot::describe(under, identity);
                let groups = group::all(under)?;
                let look = Look { identity, now, taken: &taken, under };
                groups
                    .into_iter()
                    .map(|(queue, name, group)| Ok((look.at(&queue, &name, &group)?, queue, name)))
                    .collect::<Result<Vec<_>>>()
            })
        })
        .or_raise();
        TableIterator::new(rows.into_iter().map(move |(figures, queue, name)| {
            (
                queue,
                (name != QUEUE_MODE).then_some(name),
                figures.pending as i64,
                figures.in_flight as i64,
                figures.retrying as i64,
                figures.dead_letters as i64,
                figures.oldest_pending.and_then(|at| clock::interval((now - at).max(0))),
                figures.last_pop_at.and_then(clock::timestamp),
            )
        }))
    }
}

/// A look at groups under one snapshot.
struct Look<'a> {
    identity: Identity,
    now: Moment,
    taken: &'a Taken,
    under: &'a Under,
}

impl Look<'_> {
    fn at(&self, queue: &str, name: &str, group: &Group) -> Result<Figures> {
        let mut figures =
            Figures { dead_letters: dead_letter::count(queue, name), ..Figures::default() };
        let Some(queue) = queue::find(queue, self.under)? else { return Ok(figures) };
        let (_, found) = discovery::newest(group.id, self.under)?.unwrap_or_default();
        let mut left = Left { log: NewsOf { queue: queue.id, start_at: group.start_at }, found };
        let discovered = left.count(self.taken, self.under);
        let cursors = cursor::of_group(group.id, &group.start, self.under)?;
        let mut settled = 0;
        for located in &cursors {
            settled += located.cursor.settled;
            self.add(&mut figures, queue.id, group, located);
            left.found.open.remove(&located.partition);
        }
        figures.pending = discovered.saturating_sub(settled);
        // Partitions that were heard of and never read.
        for partition in left.found.open.iter() {
            let log = Log { queue: queue.id, partition, start_at: group.start_at };
            let oldest = log.oldest_from(group.start.position + 1, self.under);
            figures.oldest_pending = earlier(figures.oldest_pending, oldest);
        }
        Ok(figures)
    }

    fn add(&self, figures: &mut Figures, queue: i64, group: &Group, located: &Located) {
        let cursor = &located.cursor;
        let live = cursor.live_lease(self.now, self.identity.void_before);
        figures.in_flight += live.map_or(0, |lease| lease.held.count() as u64);
        figures.retrying += retrying(cursor, live.is_none());
        if cursor.last_pop_at > 0 {
            figures.last_pop_at = figures.last_pop_at.max(Some(cursor.last_pop_at));
        }
        let log = Log { queue, partition: &located.partition, start_at: group.start_at };
        let held = cursor.leases.iter().filter_map(|lease| first(&lease.held)).min();
        let from = held.or(first(&cursor.waiting)).unwrap_or(cursor.position + 1);
        figures.oldest_pending = earlier(figures.oldest_pending, log.oldest_from(from, self.under));
    }
}

/// Messages that came back: delivered before, and in nobody's hands.
fn retrying(cursor: &Cursor, lease_is_over: bool) -> u64 {
    let waiting = cursor.waiting.iter().filter(|span| span.deliveries > 0);
    let waiting: u64 = waiting.map(|span| u64::from(span.len)).sum();
    let expired = cursor.leases.iter().filter(|_| lease_is_over);
    waiting + expired.map(|lease| lease.held.count() as u64).sum::<u64>()
}

fn first(spans: &Spans) -> Option<u64> {
    spans.iter().map(|span| span.segment).min()
}

fn earlier(a: Option<Moment>, b: Option<Moment>) -> Option<Moment> {
    a.into_iter().chain(b).min()
}

/// What a group's search has not passed yet.
struct Left {
    log: NewsOf,
    found: Discovery,
}

/// Segments counted at a time.
const CHUNK: usize = 4096;

impl Left {
    /// Messages visible to the group, settled or not: those it has discovered, and the rest.
    fn count(&mut self, taken: &Taken, under: &Under) -> u64 {
        let snapshot = &taken.snapshot;
        let mut total = self.found.discovered;
        let mut places: Vec<(u64, (String, u64), bool)> =
            self.found.segments.finished(snapshot).into_iter().map(|(x, k)| (x, k, true)).collect();
        places.push((self.found.segments.xid, self.found.segments.key.clone(), false));
        for (mut xid, mut key, within) in places {
            loop {
                let rows = self.log.after(xid, &key, within, CHUNK, under);
                let count = rows.len();
                for row in rows {
                    total += row.messages;
                    self.found.open.insert(row.partition.clone());
                    (xid, key) = (row.xid, (row.partition, row.segment));
                }
                if count < CHUNK {
                    break;
                }
                pgrx::check_for_interrupts!();
            }
        }
        total
    }
}
