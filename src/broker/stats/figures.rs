//! The figures of queues, groups and leases that the views `queen_queues`, `queen_groups` and
//! `queen_leases` and the metrics show. SQL alone can't read the states of cursors, which the
//! engine encodes.
//!
//! The cost goes by the number of partitions that groups have read, and by what has arrived since
//! the last written count; it does not go by the length of the log. Figures are read under one
//! snapshot, and take no lock.

use std::collections::{HashMap, HashSet};

use queen_engine::cursor::Cursor;
use queen_engine::lease::LeaseId;
use queen_engine::message::{MessageId, Spans};

use crate::broker::lookup;
use crate::broker::stats::count::{ArrivalCount, pending};
use crate::error::Result;
use crate::pg::clock::{self, Moment};
use crate::pg::snapshot::ActiveSnapshot;
use crate::store::cursor_or_claim;
use crate::store::group::{self, Group};
use crate::store::located::Located;
use crate::store::queue::Queue;
use crate::store::replay::{self, Replay};
use crate::store::seen_snapshot;
use crate::store::{dead_letter, segment, timer};

/// The figures of a group: numbers of messages, and moments.
pub struct GroupFigures {
    pub queue: String,
    /// '' is queue mode.
    pub group: String,
    /// Not settled.
    pub pending: i64,
    /// In live leases.
    pub in_flight: i64,
    /// Delivered before, and waiting to be delivered again.
    pub retrying: i64,
    pub dead_letters: i64,
    /// When the oldest message that is not settled arrived.
    pub oldest_pending: Option<Moment>,
    pub last_pop_at: Option<Moment>,
}

/// The figures of a queue.
pub struct QueueFigures {
    pub queue: String,
    /// Messages that wait for the slowest group.
    pub depth: i64,
    /// Messages in the log, and the bytes of their payloads, as stored.
    pub messages: i64,
    pub bytes: i64,
    /// Messages that have ever arrived.
    pub arrived: i64,
    /// When the oldest message in the log arrived.
    pub oldest: Option<Moment>,
    /// Partitions with messages in the log.
    pub partitions: i64,
    pub groups: i64,
    /// Messages that enter the log later.
    pub timers: i64,
}

/// A live lease on one partition.
pub struct LiveLease {
    pub queue: String,
    pub group: String,
    pub partition: String,
    pub lease: LeaseId,
    pub expires_at: Moment,
    pub messages: i64,
    pub attempt: i32,
}

/// The figures of the database: dead letters as of a newer snapshot than all else.
#[derive(Default)]
pub struct Figures {
    pub queues: Vec<QueueFigures>,
    pub groups: Vec<GroupFigures>,
    pub leases: Vec<LiveLease>,
}

impl Figures {
    /// Read and count them all.
    pub fn take(under: &ActiveSnapshot) -> Result<Self> {
        let mut figures = Self::default();
        let mut known = HashSet::new();
        for queue in lookup::all_queues(under)? {
            figures.add_queue(&queue, under)?;
            known.insert(queue.name);
        }
        // Groups whose queue does not exist yet.
        for (queue, group) in group::all(under)? {
            if !known.contains(&queue) {
                figures.groups.push(GroupFigures::idle(queue, group.name));
            }
        }
        figures.groups.sort_by(|a, b| (&a.queue, &a.group).cmp(&(&b.queue, &b.group)));
        Ok(figures)
    }

    fn add_queue(&mut self, queue: &Queue, under: &ActiveSnapshot) -> Result<()> {
        let taken = seen_snapshot::describe(under, queue.identity);
        let count = ArrivalCount::as_of(queue.id, &taken, None, under)?;
        let partitions = segment::partitions(queue.id, &count.tally.floor, under);
        let (count, partitions) = (&count, &partitions[..]);
        let replays = replay::of_queue(queue.id, under);
        let counter = GroupCounter { queue, count, partitions, replays, now: clock::now(), under };
        let mut depth = None;
        let mut groups = 0;
        for group in group::of_queue_named(&queue.name, under)? {
            let found = counter.figures(&group, &mut self.leases)?;
            depth = depth.max(Some(found.pending));
            groups += 1;
            self.groups.push(found);
        }
        self.queues.push(QueueFigures {
            queue: queue.name.clone(),
            depth: depth.unwrap_or(count.retained()).max(0),
            messages: count.retained(),
            bytes: count.bytes(),
            arrived: count.arrived(),
            oldest: segment::oldest(queue.id, &count.tally.floor, under),
            partitions: partitions.len() as i64,
            groups,
            timers: timer::count(queue.id, count.tally.timers.from(&taken.snapshot), under),
        });
        Ok(())
    }
}

impl GroupFigures {
    fn idle(queue: String, group: String) -> Self {
        Self {
            dead_letters: dead_letter::count(&queue, &group),
            queue,
            group,
            pending: 0,
            in_flight: 0,
            retrying: 0,
            oldest_pending: None,
            last_pop_at: None,
        }
    }
}

/// Counts for the groups of one queue.
struct GroupCounter<'a> {
    queue: &'a Queue,
    count: &'a ArrivalCount,
    partitions: &'a [String],
    replays: Vec<Replay>,
    now: Moment,
    under: &'a ActiveSnapshot,
}

impl GroupCounter<'_> {
    /// The figures of one group; adds its live leases to `leases`.
    fn figures(&self, group: &Group, leases: &mut Vec<LiveLease>) -> Result<GroupFigures> {
        let mut figures = GroupFigures::idle(self.queue.name.clone(), group.name.clone());
        let cursors = cursor_or_claim::of_group(group.id, &group.start, self.under)?;
        let own = leases.len();
        for located in &cursors {
            self.add_state(&mut figures, located, leases);
        }
        figures.pending = pending(self.count, group, &cursors, &self.replays, self.under);
        figures.oldest_pending = match group.is_ordered(&self.queue.options) {
            true => self.oldest_pending(group, &cursors),
            false => {
                join_claims(leases, own);
                self.oldest_pending_unordered(group, &cursors)
            }
        };
        Ok(figures)
    }

    /// Add what the state of a cursor or a claim says.
    fn add_state(
        &self,
        figures: &mut GroupFigures,
        located: &Located,
        leases: &mut Vec<LiveLease>,
    ) {
        let cursor = &located.cursor;
        let void_before = self.queue.identity.void_before;
        for lease in &cursor.leases {
            let messages = lease.held.count() as i64;
            if !lease.is_live(self.now, void_before) {
                figures.retrying += messages;
                continue;
            }
            figures.in_flight += messages;
            leases.push(LiveLease {
                queue: figures.queue.clone(),
                group: figures.group.clone(),
                partition: located.partition.clone(),
                lease: lease.id,
                expires_at: lease.deadline,
                messages,
                attempt: lease.held.max_deliveries() as i32,
            });
        }
        figures.retrying += came_back(cursor);
        if cursor.last_pop_at > 0 {
            figures.last_pop_at = figures.last_pop_at.max(Some(cursor.last_pop_at));
        }
    }

    /// When the oldest message arrived that an ordered group has not settled. A cursor tells how
    /// far the group has come in its partition; the other partitions are unread from the group's
    /// start.
    fn oldest_pending(&self, group: &Group, cursors: &[Located]) -> Option<Moment> {
        let in_read = cursors.iter().filter_map(|located| {
            let cursor = &located.cursor;
            let held = cursor.leases.iter().filter_map(|lease| first(&lease.held)).min();
            let from = earlier(held, first(&cursor.waiting)).unwrap_or(cursor.position + 1);
            self.oldest(&located.partition, from)
        });
        let read: HashSet<&str> =
            cursors.iter().map(|located| located.partition.as_str()).collect();
        let unread = self.partitions.iter().filter(|name| !read.contains(name.as_str()));
        let in_unread = unread.filter_map(|name| self.oldest(name, group.start.position + 1));
        in_read.chain(in_unread).min()
    }

    /// When the oldest message arrived that a group without order has not settled. Which messages
    /// it has settled, the claims tell; the cursor of a partition tells it only of what is behind
    /// the cursor.
    fn oldest_pending_unordered(&self, group: &Group, cursors: &[Located]) -> Option<Moment> {
        let mut settled: HashMap<&str, HashSet<MessageId>> = HashMap::new();
        for claim in cursors.iter().filter(|claim| claim.cursor.open() == 0) {
            let of = settled.entry(claim.partition.as_str()).or_default();
            of.extend(claim.message);
        }
        let bases: HashMap<&str, &Cursor> = cursors
            .iter()
            .filter(|located| located.message.is_none())
            .map(|base| (base.partition.as_str(), &base.cursor))
            .collect();
        let start = group.first_state();
        let none = HashSet::new();
        let in_partition = |partition: &str| {
            let base = bases.get(partition).copied().unwrap_or(&start);
            let settled = settled.get(partition).unwrap_or(&none);
            let left = base.waiting.messages().filter(|message| !settled.contains(message));
            let left = left.map(MessageId::segment).min();
            let claims = cursors.iter().filter(|claim| {
                claim.message.is_some() && claim.partition == partition && claim.cursor.open() > 0
            });
            let claimed = claims.filter_map(|claim| claim.message).map(MessageId::segment).min();
            let behind = earlier(left, claimed).and_then(|from| self.oldest(partition, from));
            let is_settled = |segment, messages: u16| {
                (0..messages).all(|index| settled.contains(&MessageId::new(segment, index)))
            };
            let (of, from) = ((self.queue.id, partition), base.position + 1);
            let floor = &self.count.tally.floor;
            let ahead = segment::oldest_but(of, from, floor, is_settled, self.under);
            earlier(behind, ahead)
        };
        self.partitions.iter().filter_map(|partition| in_partition(partition)).min()
    }

    /// When the first segment of the partition, from this one on, was pushed.
    fn oldest(&self, partition: &str, from: u64) -> Option<Moment> {
        let floor = &self.count.tally.floor;
        segment::oldest_from((self.queue.id, partition), from, floor, self.under)
    }
}

/// Make one entry of those, from `own` on, that are claims of one lease in one partition.
fn join_claims(leases: &mut Vec<LiveLease>, own: usize) {
    let mut single = leases.split_off(own);
    single.sort_by(|a, b| (&a.partition, a.lease).cmp(&(&b.partition, b.lease)));
    for next in single {
        match leases.get_mut(own..).and_then(<[_]>::last_mut) {
            Some(last) if last.partition == next.partition && last.lease == next.lease => {
                last.messages += next.messages;
                last.attempt = last.attempt.max(next.attempt);
                last.expires_at = last.expires_at.min(next.expires_at);
            }
            _ => leases.push(next),
        }
    }
}

/// Messages that were delivered before, and wait to be delivered again.
fn came_back(cursor: &Cursor) -> i64 {
    let delivered = cursor.waiting.iter().filter(|span| span.deliveries > 0);
    delivered.map(|span| i64::from(span.len)).sum()
}

/// The lowest segment among these.
fn first(spans: &Spans) -> Option<u64> {
    spans.iter().map(|span| span.segment).min()
}

/// The lower of two, where there are any.
fn earlier<T: Ord>(a: Option<T>, b: Option<T>) -> Option<T> {
    a.into_iter().chain(b).min()
}
