//! Which partitions may have work for a group. A search costs as much as what has happened since
//! the group last searched, however many partitions and messages there are.
//!
//! The engine's [`Discovery`] says what a group remembers of its searches, and why no message is
//! lost. Here a pop reads the three sources, each from where the group's state stands: new segments
//! of the queue, announcements of cursors and claims, and moments (ends of leases, retries) that
//! have come. A pop that writes anyway stores the new state; one that found nothing keeps it in the
//! session.
//!
//! All reads are under the pop's snapshot. The one lock is [`crate::store::locks::discovery`] of
//! the group, tried by a session that reads on early, while there are still partitions left to try.

use std::collections::HashSet;

use queen_engine::discovery::Discovery;
use queen_engine::tally::Arrived;

use super::context::PopContext;
use crate::error::Result;
use crate::pg::clock::{self, Moment};
use crate::pg::session_cache::SessionCache;
use crate::pg::snapshot::one_snapshot_per_transaction;
use crate::store::discovery;
use crate::store::segment::{News, Pushers, news, news_above};

/// With fewer open partitions than this, one in this many searches reads the sources on.
const LOW_WATER: usize = 128;
const EVERY: u64 = 4;
/// With so many partitions open that were not tried, a group has a backlog.
const BACKLOG: usize = LOW_WATER / 2;
/// Rows read from each source first; then twice as many each time, while nothing turns up.
const FIRST_CHUNK: usize = 128;
const LARGEST_CHUNK: usize = 4096;
/// Partitions handed out first; then twice as many each time, while they have nothing.
const FIRST_PICK: usize = 2;
const LARGEST_PICK: usize = 64;
/// A new state is stored if other sessions would otherwise pass this many rows again.
const WORTH_WRITING: usize = 32;
/// To try a partition in vain costs about as much as to pass this many rows.
const IN_VAIN: usize = 8;
/// Groups whose state a session remembers.
const REMEMBERED: usize = 256;

thread_local! {
    /// What pops that found nothing have passed: a cache, true of the database with or without it.
    /// By group and registration; with the revision of the stored state that it was derived from.
    static PASSED: SessionCache<(i64, Moment), (i64, Discovery)> = SessionCache::of(REMEMBERED);
    /// Differs from session to session, so that sessions pick different partitions first.
    static TURN: std::cell::Cell<u64> =
        std::cell::Cell::new(u64::from(std::process::id()).wrapping_mul(GOLDEN));
}

/// 2^64 divided by the golden ratio: multiples of it are spread evenly.
const GOLDEN: u64 = 0x9e37_79b9_7f4a_7c15;

/// What a try of one partition, or of one claim, came to.
pub enum PartitionResult {
    /// Messages were popped, and the search would find no more there. From a peek: there are some.
    Popped,
    /// Messages were popped, and there may be more.
    PoppedSome,
    /// Leased, waiting for a retry, or read to the end.
    Nothing,
    /// Nothing but messages that are not to be delivered yet, from this segment and transaction on.
    TooYoung(u64, u64),
    /// Another transaction has it locked, or is creating it.
    Locked,
    /// Another transaction has written its next state after the pop's snapshot.
    MovedOn,
}

impl PartitionResult {
    /// Whether messages were popped; from a peek: whether there are some.
    pub fn has_messages(&self) -> bool {
        matches!(self, Self::Popped | Self::PoppedSome)
    }
}

/// A search under one snapshot.
pub struct Search<'a> {
    context: &'a PopContext<'a>,
    /// The revision of the stored state that this one is derived from.
    base: i64,
    state: Discovery,
    /// How far this search has read the sources. The state stays behind rows that the searching
    /// transaction has written itself.
    segments_at: (u64, (String, u64)),
    announced_at: (u64, u64),
    tried: HashSet<String>,
    resolved: HashSet<String>,
    in_vain: usize,
    chunk: usize,
    pick: usize,
    /// The sources have nothing more under this snapshot.
    exhausted: bool,
    turn: u64,
}

impl<'a> Search<'a> {
    /// Begin where the group's stored state stands, or where this session has come from there.
    pub fn open(context: &'a PopContext<'a>) -> Self {
        let PopContext { group, discovery: (base, stored), .. } = context;
        let remembered = PASSED
            .with(|passed| passed.take(&(group.id, group.registered_at)))
            .filter(|(derived_from, _)| derived_from == base);
        TURN.set(TURN.get().wrapping_add(1));
        let mut state = remembered.map_or_else(|| stored.clone(), |(_, state)| state);
        let due = state.due_from(context.now);
        if due != state.due {
            // Others are to know that soon: a lease that they give may end before the place that
            // was reached, and that place may lie in the past when they look.
            state.due = due;
            state.passed += WORTH_WRITING;
        }
        Self {
            context,
            base: *base,
            segments_at: (state.segments.xid, state.segments.key.clone()),
            announced_at: (state.announced.xid, state.announced.key),
            state,
            tried: HashSet::new(),
            resolved: HashSet::new(),
            in_vain: 0,
            chunk: FIRST_CHUNK,
            pick: FIRST_PICK,
            exhausted: false,
            turn: TURN.get().wrapping_mul(GOLDEN) >> 32,
        }
    }

    /// The next names to try, of those that are `wanted`; none when no more can be found.
    /// `has_enough`: the sources are read on once at most.
    pub fn next(&mut self, has_enough: bool, wanted: impl Fn(&str) -> bool) -> Result<Vec<String>> {
        loop {
            if !self.exhausted && !has_enough && self.is_time_to_read_on() {
                self.read_on();
            }
            let is_left = |name: &str| !self.tried.contains(name) && wanted(name);
            let picked = self.state.pick(self.turn, self.pick, is_left);
            if !picked.is_empty() {
                self.pick = LARGEST_PICK.min(self.pick * 2);
                return Ok(picked);
            }
            if self.exhausted || (has_enough && self.chunk > FIRST_CHUNK) {
                return Ok(Vec::new());
            }
            self.read_on();
            pgrx::check_for_interrupts!();
        }
    }

    /// When nothing is left to try, and sometimes when little is left. In the second case one
    /// session at a time reads on: others would only pass the same rows again.
    fn is_time_to_read_on(&self) -> bool {
        let left = self.state.open.len().saturating_sub(self.tried.len());
        let is_low = left < LOW_WATER && self.turn.is_multiple_of(EVERY);
        left == 0 || (is_low && discovery::try_lead(self.context.group.id))
    }

    /// A try came to this. A name that needs no other try leaves the state: something was popped,
    /// or there was nothing. One that another transaction has locked stays, because that
    /// transaction may roll back. One with nothing but messages that are too young stays if the
    /// search has passed their segments: it would not meet them again.
    pub fn resolve(&mut self, name: &str, result: &PartitionResult) {
        self.tried.insert(name.to_owned());
        match result {
            PartitionResult::Popped => (),
            PartitionResult::Nothing => self.in_vain += 1,
            PartitionResult::TooYoung(segment, xid) => {
                self.in_vain += 1;
                let key = (name.to_owned(), *segment);
                if self.state.segments.has_passed(*xid, &key) {
                    return;
                }
            }
            PartitionResult::PoppedSome | PartitionResult::Locked | PartitionResult::MovedOn => {
                return;
            }
        }
        self.resolved.insert(name.to_owned());
    }

    /// A name that the search has found and that was not tried.
    pub fn untried(&self) -> Option<&str> {
        self.state.open.iter().find(|name| !self.tried.contains(*name))
    }

    /// Whether the group has a backlog: more partitions with work than its consumers try at a time.
    pub fn is_far_behind(&self) -> bool {
        self.state.open.len() >= self.tried.len() + BACKLOG
    }

    /// The pop has tried this name without the search. That came to `result`.
    pub fn skip(&mut self, name: String, result: &PartitionResult) {
        self.resolve(&name, result);
    }

    /// Read the next rows of each source.
    fn read_on(&mut self) {
        let segments = self.read_segments();
        let announced = self.read_announcements();
        self.exhausted = segments < self.chunk && announced < self.chunk;
        // Only when no announcements are left: the state that followed an announced one may have a
        // moment, which a read here would pass, and so hide the announcement.
        if announced < self.chunk {
            self.exhausted &= self.read_moments() < self.chunk;
        }
        self.chunk = LARGEST_CHUNK.min(self.chunk * 2);
    }

    /// Segments of transactions that have ended since they were passed, then segments in order.
    /// Returns how many it read, or a whole chunk where there may be more.
    fn read_segments(&mut self) -> usize {
        match self.read_late_segments() {
            true => self.read_new_segments(),
            false => self.chunk,
        }
    }

    /// Segments of transactions that were running when the search passed them. False: there may be
    /// more.
    fn read_late_segments(&mut self) -> bool {
        let Self { state, context, chunk, .. } = self;
        let PopContext { queue, seen, under, .. } = context;
        let snapshot = &seen.snapshot;
        // Most of these transactions have pushed nothing: they were consumers.
        let mut pushers = Pushers::of(queue.id, seen);
        for (xid, mut key) in state.segments.finished(snapshot) {
            if !pushers.has(xid) {
                state.segments.finish(xid, snapshot);
                continue;
            }
            loop {
                let rows = news(queue.id, xid, &key, true, *chunk, under);
                let (all, count) = (rows.len() < *chunk, rows.len());
                let is_ready = |row: &News| is_old_enough(context, row);
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
                    // The state never passes rows of the searching transaction, so the next search
                    // would read the first of them again: this one reads them to the end.
                    (false, false) if snapshot.own == Some(xid) => (),
                    (false, false) => return false,
                }
            }
        }
        true
    }

    /// Segments in the order of their transactions. Returns how many, or 0 where these are all.
    fn read_new_segments(&mut self) -> usize {
        let Self { state, context, chunk, segments_at: at, .. } = self;
        let PopContext { queue, seen, floor, under, .. } = context;
        let snapshot = &seen.snapshot;
        let rows = news_above(queue.id, floor, (at.0, &at.1), *chunk, under);
        let is_full = rows.len() == *chunk;
        // What a long transaction pushed at its end is younger than what others pushed after its
        // beginning. It is left for later, as if the transaction still ran, and holds nothing up.
        let ready = rows.iter().rposition(|row| is_old_enough(context, row));
        let ready = ready.map_or(0, |last| last + 1);
        let mut left = None;
        for row in rows.into_iter().take(ready) {
            let is_young = !is_old_enough(context, &row);
            let News { segment: Arrived { xid, key, .. }, .. } = row;
            if is_young && left != Some(xid) {
                let passed = if at.0 == xid { at.1.clone() } else { Default::default() };
                state.segments.leave_behind(xid, passed, snapshot);
                left = Some(xid);
            }
            *at = (xid, key.clone());
            if left != Some(xid) {
                state.pass_segment(xid, key.0, key.1, snapshot);
            }
        }
        if is_full { ready } else { 0 }
    }

    /// Announcements of transactions that have ended since they were passed, then in order. Returns
    /// how many it read, or a whole chunk where there may be more.
    fn read_announcements(&mut self) -> usize {
        let Self { state, context, chunk, .. } = self;
        let PopContext { group, seen, under, .. } = context;
        let snapshot = &seen.snapshot;
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

    /// Moments up to the present. At their end the state stands at the present, whatever was found.
    /// Otherwise the next search would begin among index entries of deleted rows, which stay there
    /// as long as another transaction has an old snapshot.
    fn read_moments(&mut self) -> usize {
        let Self { state, context, chunk, .. } = self;
        let PopContext { group, now, under, .. } = **context;
        let present = (now, i64::MAX as u64);
        let rows = discovery::due(group.id, state.due, now, *chunk, under);
        let count = rows.len();
        for row in rows {
            state.pass_moment(row.at, row.cursor, row.unit);
        }
        if count < *chunk {
            state.due = present;
        }
        // A lease that has ended by now may have been given after an old snapshot, which does not
        // show it.
        if one_snapshot_per_transaction() {
            state.due = state.due.min((clock::transaction_start(), 0));
        }
        count
    }

    /// Keep what was learned: in the database if the pop `writes` anyway and it is worth a row; in
    /// the session if the transaction has written nothing, which could be rolled back.
    pub fn close(mut self, writes: bool) {
        let Self { state, context, resolved, in_vain, .. } = &mut self;
        let PopContext { group, seen, .. } = context;
        let worth_writing = state.passed + *in_vain * IN_VAIN >= WORTH_WRITING;
        if (writes && !worth_writing) || (!writes && seen.snapshot.own.is_some()) {
            return;
        }
        state.open.retain(|partition| !resolved.contains(partition));
        state.close(&seen.snapshot);
        if writes {
            discovery::append(group.id, self.base, &mut self.state);
        } else {
            let key = (group.id, group.registered_at);
            let bytes = self.state.bytes();
            PASSED.with(|passed| passed.keep_heavy(key, (self.base, self.state), bytes));
        }
    }
}

/// Whether a segment may be delivered: a queue may have a delay. The state does not pass segments
/// that are too young.
fn is_old_enough(context: &PopContext<'_>, row: &News) -> bool {
    let delay = context.queue.options.delay();
    row.created_at.saturating_add(delay) <= context.now
}
