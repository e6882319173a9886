//! Finding partitions with work for a consumer group, at a cost that does not depend on how many
//! partitions or messages there are, only on what has happened since somebody last looked.
//!
//! The engine's `Discovery` says what there is to remember and why nothing is lost; here its three
//! sources are read, and the state is loaded and kept.

use std::cell::RefCell;
use std::collections::{HashMap, HashSet};

use queen_engine::discovery::Discovery;

use crate::error::Result;
use crate::store::clock::Moment;
use crate::store::discovery::{self, NewsOf};
use crate::store::group::Group;
use crate::store::segment::{self, Leap};
use crate::store::snapshot::Taken;
use crate::store::spi::Under;

/// With fewer open partitions than this, every few pops the sources are read on.
const LOW_WATER: usize = 128;
const EVERY: u64 = 4;
/// Rows read from each source at first; doubled while nothing turns up.
const FIRST_CHUNK: usize = 128;
const LARGEST_CHUNK: usize = 4096;
/// Partitions whose state is fetched at first; doubled while they turn out to have nothing.
const FIRST_LOOK: usize = 2;
const LARGEST_LOOK: usize = 64;
/// A state is written when others would pass this many rows again without it.
const WORTH_WRITING: usize = 32;
/// To look at a partition in vain costs about as much as to pass so many rows.
const IN_VAIN: usize = 8;
/// Groups whose state a session remembers.
const REMEMBERED: usize = 256;

type Remembered = HashMap<(i64, Moment), (i64, Discovery)>;

thread_local! {
    /// What pops that found nothing have passed. They write nothing, so it is kept here, as a
    /// cache: what is in it is true of the database whether or not anybody remembers it. With the
    /// revision it was derived from, by group and registration.
    static MEMORY: RefCell<Remembered> = RefCell::default();
    static TURN: std::cell::Cell<u64> =
        std::cell::Cell::new(u64::from(std::process::id()).wrapping_mul(0x9e37_79b9_7f4a_7c15));
}

/// A search under one snapshot.
pub struct Search<'a> {
    group: &'a Group,
    news: NewsOf,
    taken: &'a Taken,
    under: &'a Under,
    now: Moment,
    base: i64,
    state: Discovery,
    looked_at: HashSet<String>,
    resolved: HashSet<String>,
    in_vain: usize,
    chunk: usize,
    look: usize,
    exhausted: bool,
    turn: u64,
}

impl<'a> Search<'a> {
    /// `newest`: the newest written state and its revision, as of this snapshot or before.
    pub fn open(
        group: &'a Group,
        queue: i64,
        now: Moment,
        taken: &'a Taken,
        under: &'a Under,
        newest: &(i64, Discovery),
    ) -> Self {
        let base = newest.0;
        let remembered = MEMORY
            .with_borrow_mut(|memory| memory.remove(&(group.id, group.registered_at)))
            .filter(|(derived_from, _)| *derived_from == base);
        TURN.set(TURN.get().wrapping_add(1));
        Self {
            group,
            news: NewsOf { queue, start_at: group.start_at },
            taken,
            under,
            now,
            base,
            state: remembered.map_or_else(|| newest.1.clone(), |(_, state)| state),
            looked_at: HashSet::new(),
            resolved: HashSet::new(),
            in_vain: 0,
            chunk: FIRST_CHUNK,
            look: FIRST_LOOK,
            exhausted: false,
            turn: TURN.get().wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 32,
        }
    }

    /// The next partitions to look at; none when there is nothing more to be found.
    pub fn next(&mut self) -> Result<Vec<String>> {
        loop {
            if !self.exhausted && self.is_time_to_look() {
                self.look_further();
            }
            let picked = self.state.pick(self.turn, self.look, &self.looked_at);
            if !picked.is_empty() {
                self.look = LARGEST_LOOK.min(self.look * 2);
                self.looked_at.extend(picked.iter().cloned());
                return Ok(picked);
            }
            if self.exhausted {
                return Ok(Vec::new());
            }
            pgrx::check_for_interrupts!();
        }
    }

    /// When nothing is left to try, and now and then while little is: by one session at a time,
    /// for others would only pass the same rows again.
    fn is_time_to_look(&self) -> bool {
        let left = self.state.open.len().saturating_sub(self.looked_at.len());
        let is_low = left < LOW_WATER && self.turn.is_multiple_of(EVERY);
        left == 0 || (is_low && discovery::try_lead(self.group.id))
    }

    /// Nothing more is to be had from this partition under this snapshot; something was, or it was
    /// looked at in vain.
    pub fn resolve(&mut self, partition: &str, took: bool) {
        self.resolved.insert(partition.to_owned());
        self.in_vain += usize::from(!took);
    }

    /// Read on in each source.
    fn look_further(&mut self) {
        let found = [self.read_segments(), self.read_announcements(), self.read_moments()];
        self.exhausted = found.iter().all(|rows| *rows < self.chunk);
        self.chunk = LARGEST_CHUNK.min(self.chunk * 2);
    }

    /// Segments: of transactions that have ended since they were passed, then in the main order.
    fn read_segments(&mut self) -> usize {
        let Self { state, news, taken, under, chunk, .. } = self;
        let snapshot = &taken.snapshot;
        // Most of them have pushed nothing, being consumers.
        let mut leap = Leap { pusher: None, clear_below: 0 };
        for (xid, key) in state.segments.finished(snapshot) {
            if xid >= leap.clear_below && leap.pusher != Some(xid) {
                leap = segment::leap(news.queue, xid, &snapshot.holes, under);
            }
            if leap.pusher != Some(xid) {
                state.segments.finish(xid, snapshot);
                continue;
            }
            let rows = news.after(xid, &key, true, *chunk, under);
            let all = rows.len() < *chunk;
            for row in rows {
                state.pass_segment(row.xid, row.partition, row.segment, row.messages, snapshot);
            }
            if !all {
                return *chunk;
            }
            state.segments.finish(xid, snapshot);
        }
        let (xid, key) = (state.segments.xid, state.segments.key.clone());
        let rows = news.after(xid, &key, false, *chunk, under);
        let count = rows.len();
        for row in rows {
            state.pass_segment(row.xid, row.partition, row.segment, row.messages, snapshot);
        }
        count
    }

    fn read_announcements(&mut self) -> usize {
        let Self { state, group, taken, under, chunk, .. } = self;
        let snapshot = &taken.snapshot;
        for (xid, cursor) in state.announced.finished(snapshot) {
            let rows = discovery::announced(group.id, xid, cursor, true, *chunk, under);
            let all = rows.len() < *chunk;
            for row in rows {
                state.pass_announcement(row.at, row.cursor, row.partition, snapshot);
            }
            if !all {
                return *chunk;
            }
            state.announced.finish(xid, snapshot);
        }
        let (xid, cursor) = (state.announced.xid, state.announced.key);
        let rows = discovery::announced(group.id, xid, cursor, false, *chunk, under);
        let count = rows.len();
        for row in rows {
            state.pass_announcement(row.at, row.cursor, row.partition, snapshot);
        }
        count
    }

    /// Moments: at their end the state stands at the present, whatever was found. Otherwise the
    /// next one would start among entries that are dead and, beside an old snapshot, still there.
    fn read_moments(&mut self) -> usize {
        let Self { state, group, under, chunk, now, .. } = self;
        let present = (*now, i64::MAX as u64);
        // The clock may have been set back.
        state.due = state.due.min(present);
        let rows = discovery::due(group.id, state.due, *now, *chunk, under);
        let count = rows.len();
        for row in rows {
            state.pass_moment(row.at, row.cursor, row.partition);
        }
        if count < *chunk {
            state.due = present;
        }
        count
    }

    /// Keep what was learned: in the database if this transaction writes anyway and it is worth a
    /// row, in the session's memory if the transaction has written nothing that could be undone.
    pub fn close(mut self, writes: bool) {
        let Self { state, taken, resolved, in_vain, .. } = &mut self;
        let worth_writing = state.passed + *in_vain * IN_VAIN >= WORTH_WRITING;
        if (writes && !worth_writing) || (!writes && taken.snapshot.own.is_some()) {
            return;
        }
        state.open.retain(|partition| !resolved.contains(partition));
        state.close(&taken.snapshot);
        if writes {
            discovery::append(self.group.id, self.base, &mut self.state);
        } else {
            MEMORY.with_borrow_mut(|memory| {
                if memory.len() >= REMEMBERED {
                    memory.clear();
                }
                memory.insert((self.group.id, self.group.registered_at), (self.base, self.state));
            });
        }
    }
}
