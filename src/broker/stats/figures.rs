//! What the views and metrics tell. States are the engine's, so SQL alone can't.
//!
//! Everything is counted: by the number of partitions that groups have read, and by what has arrived
//! since anybody last looked, never by the length of the log.

use std::collections::{HashMap, HashSet};

use queen_engine::cursor::Cursor;
use queen_engine::lease::LeaseId;
use queen_engine::message::{MessageId, Spans};

use crate::broker::stats::count::{Count, pending};
use crate::error::Result;
use crate::pg::clock::{self, Moment};
use crate::pg::spi::ActiveSnapshot;
use crate::store::cursor::{self, Located};
use crate::store::group::{self, Group};
use crate::store::queue::{self, Queue};
use crate::store::replay::{self, Replay};
use crate::store::seen_snapshot;
use crate::store::{dead_letter, segment, timer};

/// A group, and what it has to do.
pub struct GroupFigures {
    pub queue: String,
    /// '' is queue mode.
    pub group: String,
    pub pending: i64,
    pub in_flight: i64,
    pub retrying: i64,
    pub dead_letters: i64,
    pub oldest_pending: Option<Moment>,
    pub last_pop_at: Option<Moment>,
}

/// A queue, and what is in it.
pub struct QueueFigures {
    pub queue: String,
    pub depth: i64,
    /// Messages in the log, and what they take as stored.
    pub messages: i64,
    pub bytes: i64,
    /// Messages that have ever arrived.
    pub arrived: i64,
    pub oldest: Option<Moment>,
    pub partitions: i64,
    pub groups: i64,
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

/// What there is in the database: each queue as of one snapshot, dead letters as of a newer one.
#[derive(Default)]
pub struct Figures {
    pub queues: Vec<QueueFigures>,
    pub groups: Vec<GroupFigures>,
    pub leases: Vec<LiveLease>,
}

impl Figures {
    pub fn take(under: &ActiveSnapshot) -> Result<Self> {
        let mut figures = Self::default();
        let mut known = HashSet::new();
        for queue in queue::all(under)? {
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
        let count = Count::take(queue.id, &taken, None, under)?;
        let partitions = segment::partitions(queue.id, under);
        let (count, partitions) = (&count, &partitions[..]);
        let replays = replay::of_queue(queue.id, under);
        let look = Look { queue, count, partitions, replays, now: clock::now(), under };
        let mut depth = None;
        let mut groups = 0;
        for group in group::of_queue_named(&queue.name, under)? {
            let found = look.at(&group, &mut self.leases)?;
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
            oldest: segment::oldest(queue.id, count.tally.floor, under),
            partitions: partitions.len() as i64,
            groups,
            timers: timer::count(queue.id, under),
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

/// A look at the groups of one queue.
struct Look<'a> {
    queue: &'a Queue,
    count: &'a Count,
    partitions: &'a [String],
    replays: Vec<Replay>,
    now: Moment,
    under: &'a ActiveSnapshot,
}

impl Look<'_> {
    fn at(&self, group: &Group, leases: &mut Vec<LiveLease>) -> Result<GroupFigures> {
        let mut figures = GroupFigures::idle(self.queue.name.clone(), group.name.clone());
        let cursors = cursor::of_group(group.id, &group.start, self.under)?;
        let mut read = HashSet::new();
        let own = leases.len();
        for located in &cursors {
            self.add(&mut figures, located, leases);
            read.insert(located.partition.as_str());
        }
        if !group.is_ordered(&self.queue.options) {
            join(leases, own);
            self.add_oldest(&mut figures, group, &cursors);
            read.extend(self.partitions.iter().map(String::as_str));
        }
        figures.pending = pending(self.count, group, &cursors, &self.replays, self.under);
        for partition in self.partitions.iter().filter(|name| !read.contains(name.as_str())) {
            let oldest = self.oldest(partition, group.start.position + 1);
            figures.oldest_pending = earlier(figures.oldest_pending, oldest);
        }
        Ok(figures)
    }

    fn add(&self, figures: &mut GroupFigures, located: &Located, leases: &mut Vec<LiveLease>) {
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
        let held = cursor.leases.iter().filter_map(|lease| first(&lease.held)).min();
        let from = earlier(held, first(&cursor.waiting));
        let from = from.or(located.message.is_none().then_some(cursor.position + 1));
        let oldest = from.and_then(|from| self.oldest(&located.partition, from));
        figures.oldest_pending = earlier(figures.oldest_pending, oldest);
    }

    /// The oldest that is not settled of a group without order, whose cursors do not tell.
    fn add_oldest(&self, figures: &mut GroupFigures, group: &Group, cursors: &[Located]) {
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
        figures.oldest_pending = None;
        let start = group.first_state();
        let none = HashSet::new();
        for partition in self.partitions.iter().map(String::as_str) {
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
            let (queue, from) = (self.queue.id, base.position + 1);
            let ahead = segment::oldest_but(queue, partition, from, is_settled, self.under);
            figures.oldest_pending = earlier(figures.oldest_pending, earlier(behind, ahead));
        }
    }

    fn oldest(&self, partition: &str, from: u64) -> Option<Moment> {
        segment::oldest_from(self.queue.id, partition, from, self.under)
    }
}

/// Make one of the entries, from `own` on, that are of one lease in one partition.
fn join(leases: &mut Vec<LiveLease>, own: usize) {
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

/// Messages that were delivered before, and are in nobody's hands.
fn came_back(cursor: &Cursor) -> i64 {
    let delivered = cursor.waiting.iter().filter(|span| span.deliveries > 0);
    delivered.map(|span| i64::from(span.len)).sum()
}

fn first(spans: &Spans) -> Option<u64> {
    spans.iter().map(|span| span.segment).min()
}

fn earlier<T: Ord>(a: Option<T>, b: Option<T>) -> Option<T> {
    a.into_iter().chain(b).min()
}
