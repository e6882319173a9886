//! Finding partitions with work for a consumer group, at a cost that does not depend on how many
//! partitions or messages there are, only on what has happened since somebody last looked.
//!
//! The engine's `Discovery` says what there is to remember and why nothing is lost; here its three
//! sources are read, and the state is loaded and kept.

use std::collections::HashSet;

use queen_engine::discovery::Discovery;
use queen_engine::tally::Arrived;

use crate::broker::pop::PartitionResult;
use crate::error::Result;
use crate::pg::clock::{self, Moment};
use crate::pg::session_cache::SessionCache;
use crate::pg::spi::{ActiveSnapshot, one_snapshot_per_transaction};
use crate::store::discovery;
use crate::store::group::Group;
use crate::store::queue::Queue;
use crate::store::seen_snapshot::SeenSnapshot;
use crate::store::segment::{News, Pushers, news};

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

thread_local! {
    /// What pops that found nothing have passed. They write nothing, so it is kept here, as a
    /// cache: what is in it is true of the database whether or not anybody remembers it. With the
    /// revision it was derived from, by group and registration.
    static MEMORY: SessionCache<(i64, Moment), (i64, Discovery)> = SessionCache::of(REMEMBERED);
    static TURN: std::cell::Cell<u64> =
        std::cell::Cell::new(u64::from(std::process::id()).wrapping_mul(0x9e37_79b9_7f4a_7c15));
}

/// A search under one snapshot.
pub struct Search<'a> {
    group: &'a Group,
    queue: i64,
    /// Messages are not delivered before they are this old.
    delay: i64,
    taken: &'a SeenSnapshot,
    under: &'a ActiveSnapshot,
    now: Moment,
    base: i64,
    state: Discovery,
    /// How far the sources were read here. The state does not pass what the looking transaction has
    /// written itself.
    segments_at: (u64, (String, u64)),
    announced_at: (u64, u64),
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
        queue: &Queue,
        now: Moment,
        taken: &'a SeenSnapshot,
        under: &'a ActiveSnapshot,
        newest: &(i64, Discovery),
    ) -> Self {
        let base = newest.0;
        let remembered = MEMORY
            .with(|memory| memory.take(&(group.id, group.registered_at)))
            .filter(|(derived_from, _)| *derived_from == base);
        TURN.set(TURN.get().wrapping_add(1));
        let state = remembered.map_or_else(|| newest.1.clone(), |(_, state)| state);
        Self {
            group,
            queue: queue.id,
            delay: queue.options.delay(),
            taken,
            under,
            now,
            base,
            segments_at: (state.segments.xid, state.segments.key.clone()),
            announced_at: (state.announced.xid, state.announced.key),
            state,
            looked_at: HashSet::new(),
            resolved: HashSet::new(),
            in_vain: 0,
            chunk: FIRST_CHUNK,
            look: FIRST_LOOK,
            exhausted: false,
            turn: TURN.get().wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 32,
        }
    }

    /// The next partitions to look at, of those that are `wanted`; none when there is nothing more to
    /// be found. `has_some`: not worth reading on for more than once.
    pub fn next(&mut self, has_some: bool, wanted: impl Fn(&str) -> bool) -> Result<Vec<String>> {
        loop {
            if !self.exhausted && !has_some && self.is_time_to_look() {
                self.look_further();
            }
            let is_left = |name: &str| !self.looked_at.contains(name) && wanted(name);
            let picked = self.state.pick(self.turn, self.look, is_left);
            if !picked.is_empty() {
                self.look = LARGEST_LOOK.min(self.look * 2);
                self.looked_at.extend(picked.iter().cloned());
                return Ok(picked);
            }
            if self.exhausted || (has_some && self.chunk > FIRST_CHUNK) {
                return Ok(Vec::new());
            }
            self.look_further();
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

    /// Something was taken from this partition, or it was looked at in vain. One that somebody has
    /// locked stays, for they may roll back; and one with nothing but what is too young, unless
    /// that will be met again.
    pub fn resolve(&mut self, partition: &str, tried: &PartitionResult) {
        match tried {
            PartitionResult::Took => (),
            PartitionResult::Nothing => self.in_vain += 1,
            PartitionResult::TooYoung(segment, xid) => {
                self.in_vain += 1;
                let key = (partition.to_owned(), *segment);
                if self.state.segments.has_passed(*xid, &key) {
                    return;
                }
            }
            PartitionResult::TookSome | PartitionResult::Locked | PartitionResult::MovedOn => {
                return;
            }
        }
        self.resolved.insert(partition.to_owned());
    }

    /// Read on in each source.
    fn look_further(&mut self) {
        let segments = self.read_segments();
        let announced = self.read_announcements();
        self.exhausted = segments < self.chunk && announced < self.chunk;
        // Not while announcements are left: what followed one may have a moment that is passed
        // here, and hide it.
        if announced < self.chunk {
            self.exhausted &= self.read_moments() < self.chunk;
        }
        self.chunk = LARGEST_CHUNK.min(self.chunk * 2);
    }

    /// Segments: of transactions that have ended since they were passed, then in the main order.
    fn read_segments(&mut self) -> usize {
        let Self { state, queue, taken, under, chunk, now, delay, .. } = self;
        let snapshot = &taken.snapshot;
        // With a delay, what is too young is not passed.
        let is_ready = |row: &News| row.created_at.saturating_add(*delay) <= *now;
        // Most of them have pushed nothing, being consumers.
        let mut pushers = Pushers::of(*queue, &snapshot.holes, under);
        for (xid, mut key) in state.segments.finished(snapshot) {
            if !pushers.has(xid) {
                state.segments.finish(xid, snapshot);
                continue;
            }
            loop {
                let rows = news(*queue, xid, &key, true, *chunk, under);
                let (all, count) = (rows.len() < *chunk, rows.len());
                let ready: Vec<News> = rows.into_iter().take_while(is_ready).collect();
                let held_back = ready.len() < count;
                for News { segment, .. } in ready {
                    key = segment.key.clone();
                    state.pass_segment(segment.xid, segment.key.0, segment.key.1, snapshot);
                }
                match (held_back, all) {
                    (true, _) => break,
                    (false, true) => {
                        state.segments.finish(xid, snapshot);
                        break;
                    }
                    // The own transaction's are passed by nobody, so there is no coming back.
                    (false, false) if snapshot.own == Some(xid) => (),
                    (false, false) => return *chunk,
                }
            }
        }
        let at = &mut self.segments_at;
        let rows = news(*queue, at.0, &at.1, false, *chunk, under);
        let full = rows.len() == *chunk;
        // What a long transaction pushed at its end is younger than what others pushed after its
        // beginning: it is left behind, and holds nothing up.
        let ready = rows.iter().rposition(is_ready).map_or(0, |last| last + 1);
        let mut left = None;
        for row in rows.into_iter().take(ready) {
            let young = !is_ready(&row);
            let News { segment: Arrived { xid, key, .. }, .. } = row;
            if young && left != Some(xid) {
                let passed = if at.0 == xid { at.1.clone() } else { Default::default() };
                state.segments.leave_behind(xid, passed, snapshot);
                left = Some(xid);
            }
            *at = (xid, key.clone());
            if left != Some(xid) {
                state.pass_segment(xid, key.0, key.1, snapshot);
            }
        }
        if full { ready } else { 0 }
    }

    fn read_announcements(&mut self) -> usize {
        let Self { state, group, taken, under, chunk, .. } = self;
        let snapshot = &taken.snapshot;
        for (xid, mut cursor) in state.announced.finished(snapshot) {
            loop {
                let rows = discovery::announced(group.id, xid, cursor, true, *chunk, under);
                let all = rows.len() < *chunk;
                for row in rows {
                    cursor = row.cursor;
                    state.pass_announcement(row.at, row.cursor, row.unit, snapshot);
                }
                match all {
                    true => break,
                    false if snapshot.own == Some(xid) => (),
                    false => return *chunk,
                }
            }
            state.announced.finish(xid, snapshot);
        }
        let (xid, cursor) = self.announced_at;
        let rows = discovery::announced(group.id, xid, cursor, false, *chunk, under);
        let count = rows.len();
        for row in rows {
            self.announced_at = (row.at, row.cursor);
            state.pass_announcement(row.at, row.cursor, row.unit, snapshot);
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
            state.pass_moment(row.at, row.cursor, row.unit);
        }
        if count < *chunk {
            state.due = present;
        }
        // What ends after an old snapshot was taken may have begun since, unseen.
        if one_snapshot_per_transaction() {
            state.due = state.due.min((clock::transaction_start(), 0));
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
            let key = (self.group.id, self.group.registered_at);
            let bytes = self.state.bytes();
            MEMORY.with(|memory| memory.keep_heavy(key, (self.base, self.state), bytes));
        }
    }
}
