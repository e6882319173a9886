//! The figures of queues, groups and leases that the views `queen_queues`, `queen_groups` and
//! `queen_leases` and the metrics show. SQL alone can't read the states of cursors, which the
//! engine encodes.
//!
//! Figures are those of the snapshot of the statement that asks, judged by the clock at the call.
//! They take no lock. What they cost is said in [`super::memory`], which keeps what a session has
//! found out.

use std::collections::HashSet;
use std::rc::Rc;

use queen_engine::lease::LeaseId;
use queen_engine::rights::{Privilege, Rights};

use super::memory::{self, GroupSums, StatsMemory};
use crate::broker::lookup;
use crate::error::Result;
use crate::pg::clock::{self, Moment};
use crate::pg::snapshot::ActiveSnapshot;
use crate::store::group::{self, Group};
use crate::store::queue::{Options, Queue};
use crate::store::{dead_letter, seen_snapshot, timer};

/// The figures of a group: numbers of messages, and moments.
pub struct GroupFigures {
    pub id: i64,
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
    /// Those in effect for the group.
    pub options: Options,
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
    pub options: Options,
}

/// Of a queue, messages that should have entered the log.
pub struct OverdueTimers {
    pub queue: String,
    pub count: i64,
}

/// A live lease on one partition.
pub struct LiveLease {
    pub partition: Rc<str>,
    pub lease: LeaseId,
    pub expires_at: Moment,
    pub messages: i64,
    pub attempt: i32,
}

/// The figures of the database.
#[derive(Default)]
pub struct Figures {
    pub queues: Vec<QueueFigures>,
    pub groups: Vec<GroupFigures>,
    pub overdue: Vec<OverdueTimers>,
}

impl Figures {
    /// Those of all queues that `rights` let a role see, and of their groups.
    pub fn take(rights: &Rights, under: &ActiveSnapshot) -> Result<Self> {
        let is_seen = |queue: &str| rights.allow(Privilege::Monitor, queue);
        memory::look(under, |memory| {
            let mut figures = Self::default();
            let mut known = HashSet::new();
            for queue in lookup::all_queues(under)? {
                if !is_seen(&queue.name) {
                    continue;
                }
                for group in group::of_queue_named(&queue.name, under)? {
                    figures.groups.push(of_group(memory, &queue, &group, under)?);
                }
                figures.queues.push(of_queue(memory, &queue, under)?);
                figures.overdue.push(overdue(memory, &queue, under)?);
                known.insert(queue.name);
            }
            // Groups whose queue does not exist yet.
            for (queue, group) in group::all(under)? {
                if is_seen(&queue) && !known.contains(&queue) {
                    figures.groups.push(GroupFigures::idle(queue, group, under));
                }
            }
            figures.groups.sort_by(|a, b| (&a.queue, &a.group).cmp(&(&b.queue, &b.group)));
            Ok(figures)
        })
    }
}

/// The figures of the queue of this name, if there is one.
pub fn queue_named(name: &str, under: &ActiveSnapshot) -> Result<Option<QueueFigures>> {
    let Some(queue) = lookup::find_queue(name, under)? else { return Ok(None) };
    memory::look(under, |memory| of_queue(memory, &queue, under)).map(Some)
}

/// The figures of the group of this queue and name, if it is registered.
pub fn group_named(
    queue: &str,
    name: &str,
    under: &ActiveSnapshot,
) -> Result<Option<GroupFigures>> {
    let Some(group) = group::find(queue, name, under)? else { return Ok(None) };
    let figures = match lookup::find_queue(queue, under)? {
        Some(queue) => memory::look(under, |memory| of_group(memory, &queue, &group, under))?,
        None => GroupFigures::idle(queue.to_owned(), group, under),
    };
    Ok(Some(figures))
}

/// The live leases of the group of this queue and name.
pub fn leases_of(queue: &str, name: &str, under: &ActiveSnapshot) -> Result<Vec<LiveLease>> {
    let found = lookup::find_queue(queue, under)?.zip(group::find(queue, name, under)?);
    let Some((queue, group)) = found else { return Ok(Vec::new()) };
    let sums = memory::look(under, |memory| memory.sums(&queue, &group, under))?;
    Ok(live_leases(&queue, &sums))
}

fn of_queue(
    memory: &mut StatsMemory,
    queue: &Queue,
    under: &ActiveSnapshot,
) -> Result<QueueFigures> {
    let (mut depth, mut groups) = (None, 0);
    for group in group::of_queue_named(&queue.name, under)? {
        depth = depth.max(Some(memory.sums(queue, &group, under)?.pending));
        groups += 1;
    }
    let log = memory.log(queue, under)?;
    Ok(QueueFigures {
        queue: queue.name.clone(),
        depth: depth.unwrap_or(log.count.retained()).max(0),
        messages: log.count.retained(),
        bytes: log.count.bytes(),
        arrived: log.count.arrived(),
        oldest: log.oldest,
        partitions: log.last.len() as i64,
        groups,
        timers: log.timers,
        options: queue.options.clone(),
    })
}

/// What is due is known only at this moment, so it is counted at each call; where there are no
/// timers, by none.
fn overdue(
    memory: &mut StatsMemory,
    queue: &Queue,
    under: &ActiveSnapshot,
) -> Result<OverdueTimers> {
    let log = memory.log(queue, under)?;
    let count = if log.timers == 0 {
        0
    } else {
        let seen = seen_snapshot::describe(under, queue.identity);
        let from = log.count.tally.timers.from(&seen.snapshot);
        timer::count(queue.id, from, clock::now(), under)
    };
    Ok(OverdueTimers { queue: queue.name.clone(), count })
}

fn of_group(
    memory: &mut StatsMemory,
    queue: &Queue,
    group: &Group,
    under: &ActiveSnapshot,
) -> Result<GroupFigures> {
    let sums = memory.sums(queue, group, under)?;
    let (now, void_before) = (clock::now(), queue.identity.void_before);
    let (mut in_flight, mut retrying) = (0, sums.units.came_back);
    for (_, lease) in &sums.units.leases {
        match lease.is_live(now, void_before) {
            true => in_flight += lease.messages,
            false => retrying += lease.messages,
        }
    }
    Ok(GroupFigures {
        id: group.id,
        queue: queue.name.clone(),
        group: group.name.clone(),
        pending: sums.pending,
        in_flight,
        retrying,
        dead_letters: sums.dead_letters,
        oldest_pending: sums.units.oldest_pending,
        last_pop_at: sums.units.last_pop_at,
        options: queue.options.clone().with(&group.own),
    })
}

impl GroupFigures {
    fn idle(queue: String, group: Group, under: &ActiveSnapshot) -> Self {
        Self {
            id: group.id,
            dead_letters: dead_letter::count(&queue, &group.name, under),
            queue,
            group: group.name,
            pending: 0,
            in_flight: 0,
            retrying: 0,
            oldest_pending: None,
            last_pop_at: None,
            options: Options::default().with(&group.own),
        }
    }
}

/// One entry for each lease and partition: in a group without order, a lease has a claim for each
/// message.
fn live_leases(queue: &Queue, sums: &GroupSums) -> Vec<LiveLease> {
    let (now, void_before) = (clock::now(), queue.identity.void_before);
    let mut leases: Vec<LiveLease> = Vec::new();
    let live = sums.units.leases.iter().filter(|(_, lease)| lease.is_live(now, void_before));
    for (partition, lease) in live {
        match leases.last_mut() {
            Some(last) if last.partition == *partition && last.lease == lease.id => {
                last.messages += lease.messages;
                last.attempt = last.attempt.max(lease.attempt);
                last.expires_at = last.expires_at.min(lease.deadline);
            }
            _ => leases.push(LiveLease {
                partition: Rc::clone(partition),
                lease: lease.id,
                expires_at: lease.deadline,
                messages: lease.messages,
                attempt: lease.attempt,
            }),
        }
    }
    leases
}
