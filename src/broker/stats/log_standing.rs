//! What a session knows of the log of a queue: how many messages have arrived, and what the last
//! segment of each partition is.

use std::collections::HashMap;
use std::rc::Rc;

use super::count::ArrivalCount;
use crate::error::Result;
use crate::pg::clock::{self, Moment, SECOND};
use crate::pg::snapshot::ActiveSnapshot;
use crate::store::queue::{self, Queue};
use crate::store::replay::{self, Replay};
use crate::store::seen_snapshot;
use crate::store::segment::{LastSegment, News};
use crate::store::{segment, timer};

/// By how much the clock may have been put back unnoticed.
const CLOCK_CORRECTION: i64 = 3600 * SECOND;

/// The log of a queue, as of a snapshot.
pub struct LogStanding {
    xid_offset: u64,
    /// Of the queue's row, which has the ages at which messages are deleted.
    version: Option<(u64, u32)>,
    pub count: ArrivalCount,
    /// The last segment of each partition that has any.
    pub last: HashMap<Rc<str>, LastSegment>,
    pub replays: Vec<Replay>,
    /// When the oldest message in the log arrived.
    pub oldest: Option<Moment>,
    /// Messages that enter the log later.
    pub timers: i64,
}

/// What has become of a log since the last reading.
pub enum LogChange {
    /// These partitions have got something. Of what was there, nothing was removed that was created
    /// after the moment; None: nothing at all.
    Some(Vec<Rc<str>>, Option<Moment>),
    /// It was read anew.
    ReadAnew,
}

/// What the written count says of removals.
enum Removal {
    Nothing,
    /// Of segments that were created up to this moment.
    UpTo(Moment),
    /// Of any.
    Any,
}

impl LogStanding {
    pub fn read(queue: &Queue, under: &ActiveSnapshot) -> Result<Self> {
        let taken = seen_snapshot::describe(under, queue.identity);
        let last = segment::last_segments(queue.id, under);
        let mut log = Self {
            xid_offset: queue.identity.xid_offset,
            version: queue::version(&queue.name, under),
            count: ArrivalCount::as_of(queue.id, &taken, None, under)?,
            last: last.into_iter().map(|(partition, last)| (Rc::from(partition), last)).collect(),
            replays: Vec::new(),
            oldest: None,
            timers: 0,
        };
        log.read_the_rest(queue, under);
        Ok(log)
    }

    /// Read what has happened since the last reading, which was under a snapshot that shows no
    /// more. A segment is found by its transaction, as by a search for work.
    pub fn bring_forward(&mut self, queue: &Queue, under: &ActiveSnapshot) -> Result<LogChange> {
        let written = ArrivalCount::written(queue.id, under)?;
        let removal = self.removal(queue, &written, under);
        if matches!(removal, Removal::Any) {
            *self = Self::read(queue, under)?;
            return Ok(LogChange::ReadAnew);
        }
        let tally = &mut self.count.tally;
        tally.floor = written.tally.floor.clone();
        tally.timers = written.tally.timers.clone();
        let arrived = self.read_on(queue, under);
        let Removal::UpTo(upto) = removal else {
            self.read_the_rest(queue, under);
            return Ok(LogChange::Some(arrived, None));
        };
        self.last.retain(|partition, last| {
            if last.created_at > upto {
                return true;
            }
            segment::last_of(queue.id, partition, under).is_some_and(|now| {
                *last = now;
                true
            })
        });
        // What came and was removed again in between, the written count alone has counted.
        let taken = seen_snapshot::describe(under, queue.identity);
        self.count = ArrivalCount::as_of(queue.id, &taken, None, under)?;
        self.read_the_rest(queue, under);
        Ok(LogChange::Some(arrived, Some(upto)))
    }

    /// What may have been removed since the last reading. Retention goes by age: by the options, if
    /// they are what they were. A purge removes messages of any age, and is counted.
    fn removal(&self, queue: &Queue, written: &ArrivalCount, under: &ActiveSnapshot) -> Removal {
        let (before, now) = (&self.count.tally, &written.tally);
        let is_as_before = self.xid_offset == queue.identity.xid_offset
            && self.version == queue::version(&queue.name, under);
        if !is_as_before || before.purges != now.purges {
            return Removal::Any;
        }
        if before.removed_messages == now.removed_messages
            && before.removed_bytes == now.removed_bytes
        {
            return Removal::Nothing;
        }
        let settled = queue.options.completed_retention();
        let age = queue.options.retention().map_or(settled, |age| age.min(settled));
        Removal::UpTo(clock::now().saturating_sub(age).saturating_add(CLOCK_CORRECTION))
    }

    /// Read the segments that have arrived; returns their partitions.
    fn read_on(&mut self, queue: &Queue, under: &ActiveSnapshot) -> Vec<Rc<str>> {
        let taken = seen_snapshot::describe(under, queue.identity);
        let (mut arrived, last) = (Vec::new(), &mut self.last);
        let mut visit = |news: &News| {
            let (name, id) = (news.segment.key.0.as_str(), news.segment.key.1);
            let known = last.get_key_value(name).map(|(name, _)| Rc::clone(name));
            let name = known.unwrap_or_else(|| Rc::from(name));
            let new = LastSegment { id, xid: news.segment.xid, created_at: news.created_at };
            let last = last.entry(Rc::clone(&name)).or_insert(new);
            if last.id < id {
                *last = new;
            }
            arrived.push(name);
        };
        self.count.go_on(&taken, None, &mut visit, under);
        arrived
    }

    fn read_the_rest(&mut self, queue: &Queue, under: &ActiveSnapshot) {
        self.replays = replay::of_queue(queue.id, under);
        let (tally, seen) = (&self.count.tally, seen_snapshot::describe(under, queue.identity));
        self.oldest = segment::oldest(queue.id, &tally.floor, under);
        let from = tally.timers.from(&seen.snapshot);
        self.timers = timer::count(queue.id, from, Moment::MAX, under);
    }
}
