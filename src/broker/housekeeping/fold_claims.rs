//! The task `claims`: fold the claims of groups without order into the cursors of their partitions,
//! so that a partition never has many claims. The cursor moves on over the messages that have been
//! claimed. A claim behind the cursor whose message is settled is counted in the cursor's state,
//! and removed.
//!
//! Three callers fold: the sweep; now and then a pop, in its own transaction ([`fold_in_pop`]); and
//! a change of the group's ordering, which needs the cursor beyond all claims
//! ([`past_all_claims`]). Folding holds the lock of the partition's cursor, and only tries it. A
//! consumer does not take that lock in order to claim: it learns from the claims which messages are
//! claimed, and goes by the cursor only for messages behind it. So no consumer waits for a fold.

use std::cell::Cell;
use std::collections::{HashMap, HashSet};

use queen_engine::cursor::{Cursor, Readiness};
use queen_engine::floor::Floor;
use queen_engine::message::{MessageId, Span, Spans};
use queen_engine::pop::Pop;

use crate::error::Result;
use crate::pg::clock::{self, Moment, SECOND};
use crate::pg::session_cache::SessionCache;
use crate::pg::snapshot::{ActiveSnapshot, one_snapshot_per_transaction};
use crate::store::claim;
use crate::store::cursor;
use crate::store::cursor_or_claim::{self, LockAttempt};
use crate::store::group::{self, Group};
use crate::store::located::Located;
use crate::store::locks;
use crate::store::progress;
use crate::store::queue::Queue;
use crate::store::seen_snapshot::{self, SeenSnapshot};
use crate::store::segment::{Log, LogPage, Stored};
use crate::store::sweep::SweepStep;
use crate::store::tally;

/// Claims, or messages, that are read at a time.
const CHUNK: usize = 1000;
/// A step ends after this long, in microseconds.
const LONGEST_STEP: i64 = SECOND / 20;
/// Runs of messages that the cursor may leave behind because transactions have claimed them, and
/// have not ended. With more the cursor stays where it is: its state would grow too large.
const LEFT_BEHIND: usize = 4096;

/// Number of groups for which a session remembers where its last step ended.
const REMEMBERED: usize = 1024;

thread_local! {
    /// The partition at which the last step of a group ended.
    static ENDED_AT: SessionCache<i64, String> = SessionCache::of(REMEMBERED);
}

/// One step on one queue; counts claims. Age brings nothing to fold: while the tables stay as they
/// are, a step that has come to the end of all groups has nothing to do any more.
pub fn step(queue: &Queue) -> Result<SweepStep> {
    let until = clock::now() + LONGEST_STEP;
    ActiveSnapshot::new_snapshot(|under| {
        let mut all = SweepStep::idle(Moment::MAX);
        for group in group::of_queue(&queue.name, under)? {
            let from = ENDED_AT.with(|ends| ends.take(&group.id)).unwrap_or_default();
            let mut next = claim::next_partition(group.id, &from);
            while let Some(partition) = next {
                match fold(queue, &group, &partition, until, under)? {
                    Some(removed) => all.removed += removed,
                    None => all.idle_until = None,
                }
                next = claim::next_partition(group.id, &partition);
                if clock::now() > until {
                    all.idle_until = None;
                    let goes_on = next.is_some();
                    all.goes_on |= goes_on || all.removed > 0;
                    if goes_on {
                        ENDED_AT.with(|ends| ends.keep(group.id, partition));
                    }
                    break;
                }
                pgrx::check_for_interrupts!();
            }
        }
        Ok(all)
    })
}

/// Fold the claims of one partition, up to the moment `until`; returns how many it has removed.
/// Looks first, and locks the cursor only if there is something to do. Does nothing, and returns
/// None, if another transaction holds the cursor, or has moved it on since the snapshot.
fn fold(
    queue: &Queue,
    group: &Group,
    partition: &str,
    until: Moment,
    under: &ActiveSnapshot,
) -> Result<Option<u64>> {
    let found = cursor::status(group.id, &group.start, partition, under)?;
    let before = group.state_in(found.as_ref().map(|(located, _)| located));
    let floor = tally::floors(queue, clock::now(), under).log;
    let folding = Folding::new((queue, &floor), group, partition, until, under);
    let mut after = folding.move_on(before.clone(), LEFT_BEHIND)?;
    let over = folding.settled_behind(&mut after)?;
    if after == before && over.is_empty() {
        return Ok(Some(0));
    }
    let base = match found {
        Some((located, place)) => match cursor_or_claim::lock_if_newest(&located, place, under)? {
            LockAttempt::Locked => located,
            LockAttempt::HeldByAnother | LockAttempt::MovedOn => return Ok(None),
        },
        // A new cursor takes shares of two locks, and one transaction may sweep many queues.
        None if !locks::has_spare() => return Ok(None),
        None => match cursor::try_create(queue.id, group.id, partition)? {
            Some(new) => new,
            None => return Ok(None),
        },
    };
    write(&base, after, &over, under).map(Some)
}

/// Fold the claims of one partition in the transaction of a pop, up to the moment `until`. Locks
/// the cursor before it looks, so that of many pops only one does the work. Does nothing if another
/// transaction holds the cursor, has moved it on since the snapshot, or moves or empties the group.
///
/// In REPEATABLE READ it moves the cursor on, and removes no claim: a sweep may have removed one
/// since the snapshot, which would be an error.
pub fn fold_in_pop(
    queue: &Queue,
    group: &Group,
    partition: &str,
    until: Moment,
    under: &ActiveSnapshot,
) -> Result<()> {
    let keeps_claims = one_snapshot_per_transaction();
    let (base, before) = match cursor::status(group.id, &group.start, partition, under)? {
        Some((base, place)) => match cursor_or_claim::lock_if_newest(&base, place, under)? {
            LockAttempt::Locked => (base.clone(), base.cursor),
            LockAttempt::HeldByAnother | LockAttempt::MovedOn => return Ok(()),
        },
        None if !cursor::try_share_first_reads(queue.id, group.id) => return Ok(()),
        None => match cursor::insert_if_new(group.id, partition) {
            Some(new) => (new, group.first_state()),
            None => return Ok(()),
        },
    };
    let floor = tally::floors(queue, clock::now(), under).log;
    let folding = Folding::new((queue, &floor), group, partition, until, under);
    let mut after = folding.move_on(before, LEFT_BEHIND)?;
    let mut over = Vec::new();
    match keeps_claims {
        true => after.counted_below = after.counted_below.min(folding.lowest_passed.get()),
        false => over = folding.settled_behind(&mut after)?,
    }
    write(&base, after, &over, under).map(drop)
}

/// Remove the claims `over`, and write the state `after`, with these claims counted, as the one
/// that follows that of `base`. The caller holds the lock of `base`. A claim that another
/// transaction has locked stays, and is not counted. Returns how many claims are removed.
fn write(
    base: &Located,
    mut after: Cursor,
    over: &[Located],
    under: &ActiveSnapshot,
) -> Result<u64> {
    let mut removed = 0;
    for some in over.chunks(CHUNK) {
        let ids: Vec<u64> = some.iter().map(|claim| claim.id).collect();
        let gone: HashSet<u64> = claim::delete(&ids)?.into_iter().collect();
        for claim in some {
            if gone.contains(&claim.id) {
                after.settled += claim.cursor.settled;
                after.last_pop_at = after.last_pop_at.max(claim.cursor.last_pop_at);
            } else if let Some(message) = claim.message {
                after.counted_below = after.counted_below.min(message);
            }
        }
        removed += gone.len() as u64;
    }
    progress::append_quietly(base, &after, under);
    Ok(removed)
}

/// The cursor of a partition, moved on over all claims, whatever it leaves behind: the messages
/// below that have no claim, for one. Writes nothing. The caller has locked the cursor and the
/// claims.
pub fn past_all_claims(
    queue: &Queue,
    group: &Group,
    partition: &str,
    cursor: Cursor,
    under: &ActiveSnapshot,
) -> Result<Cursor> {
    let floor = tally::floors(queue, clock::now(), under).log;
    let of = (queue, &*floor);
    Folding::new(of, group, partition, Moment::MAX, under).move_on(cursor, usize::MAX)
}

/// The folding of one partition.
struct Folding<'a> {
    group: i64,
    partition: &'a str,
    log: Log<'a>,
    taken: SeenSnapshot,
    until: Moment,
    /// Leases given before this moment have expired.
    void_before: Moment,
    /// The lowest message over which the cursor was moved here.
    lowest_passed: Cell<MessageId>,
    under: &'a ActiveSnapshot,
}

impl<'a> Folding<'a> {
    fn new(
        (queue, floor): (&Queue, &'a Floor),
        group: &Group,
        partition: &'a str,
        until: Moment,
        under: &'a ActiveSnapshot,
    ) -> Self {
        let log = Log {
            queue: queue.id,
            partition,
            group: group.id,
            since: group.start.since,
            until: None,
            is_bare: true,
            floor,
        };
        let taken = seen_snapshot::describe(under, queue.identity);
        let void_before = queue.identity.void_before;
        let lowest_passed = Cell::new(MessageId::from_sql(i64::MAX));
        let group = group.id;
        Self { group, partition, log, taken, until, void_before, lowest_passed, under }
    }

    fn has_time(&self) -> bool {
        pgrx::check_for_interrupts!();
        clock::now() <= self.until
    }

    /// The cursor, moved on up to the last message that is claimed, or as far as it leaves at most
    /// `left_behind` runs of messages behind.
    fn move_on(&self, mut cursor: Cursor, left_behind: usize) -> Result<Cursor> {
        let from = cursor.counted_below;
        let last = claim::last(self.group, self.partition, from, self.under);
        let last = last.map_or(cursor.position, |last| last.segment().max(cursor.position));
        if last == 0 {
            return Ok(cursor);
        }
        let log = Log { since: cursor.since, ..self.log };
        let mut left = Spans::new();
        loop {
            let mut pop = Pop::begin(cursor.clone(), &self.taken.snapshot, CHUNK, None);
            self.read_up_to(last, &log, &mut pop);
            let settled = cursor.settled;
            let Some(popped) = pop.finish(None, cursor.last_pop_at) else { break };
            let passed = popped.taken;
            // What a claim has settled is in its own state. A message that was skipped, because it
            // is not for the group, has no claim, so the cursor counts it.
            let skipped = popped.cursor.settled - settled - passed.count() as i64;
            let mut still_left = left.clone();
            still_left.extend(self.left_behind(&passed)?.iter());
            if still_left.iter().count() > left_behind {
                break;
            }
            left = still_left;
            let lowest = passed.messages().min().unwrap_or(self.lowest_passed.get());
            self.lowest_passed.set(self.lowest_passed.get().min(lowest));
            cursor = Cursor { settled: settled + skipped, ..popped.cursor };
            if passed.count() < CHUNK || !self.has_time() {
                break;
            }
        }
        cursor.waiting.prepend(left);
        Ok(cursor)
    }

    /// Those of the messages that are still in the log, and that the cursor may not pass: there is
    /// no visible claim, or [`Self::can_pass`] says no.
    fn left_behind(&self, messages: &Spans) -> Result<Spans> {
        let mut passed = HashSet::new();
        for row in claim::visible(self.group, self.partition, messages, self.under) {
            let message = row.message;
            if self.can_pass(row)? {
                passed.insert(message);
            }
        }
        let (_, left) = messages.partition(|message| passed.contains(&message));
        let there = self.log.segments(&left, self.under);
        let there: HashSet<u64> = there.into_iter().map(|stored| stored.id()).collect();
        let is_there = |span: &Span| there.contains(&span.segment);
        Ok(left.iter().filter(is_there).map(|span| Span { deliveries: 0, ..span }).collect())
    }

    /// Whether the cursor may pass a claimed message, because a search will find the claim when its
    /// message comes back. A search passes the deadline of a lease once. Where the lease expired
    /// before its claim was committed, a search may have passed the deadline without the claim, so
    /// the message stays with the cursor. A claim of this transaction is not committed either.
    fn can_pass(&self, row: claim::ClaimRow) -> Result<bool> {
        if row.is_own {
            return Ok(false);
        }
        if row.terms.is_none_or(|(_, deadline)| deadline > clock::now()) {
            return Ok(true);
        }
        let (located, _) = row.locate(self.under)?;
        let is_ready =
            matches!(located.cursor.readiness(clock::now(), self.void_before), Readiness::Now);
        Ok(!is_ready || located.cursor.open() == 0)
    }

    /// Supply `pop` with what it reads of the log, up to the segment `last`.
    fn read_up_to(&self, last: u64, log: &Log<'_>, pop: &mut Pop<'_>) {
        while let Some(read) = pop.next_read() {
            let limit = pop.missing();
            let LogPage { stored, .. } = log.read(&read, limit, &self.taken, self.under);
            let count = stored.len();
            let found: Vec<_> =
                stored.iter().take_while(|one| one.id() <= last).map(Stored::found).collect();
            let is_end = found.len() < count;
            pop.supply(&read, &found, count < limit && !is_end);
            if is_end {
                pop.stop();
            }
            pgrx::check_for_interrupts!();
        }
    }

    /// The claims of settled messages behind the cursor. Sets the cursor's `counted_below` to the
    /// first message whose claim is left, or where the search has ended.
    fn settled_behind(&self, cursor: &mut Cursor) -> Result<Vec<Located>> {
        let mut from = cursor.counted_below.min(self.lowest_passed.get());
        let mut over = Vec::new();
        let mut left = None;
        loop {
            let rows = claim::of_partition(self.group, self.partition, from, CHUNK, self.under);
            let (is_last, last) = (rows.len() < CHUNK, rows.last().map(|row| row.message));
            let first_left = self.add_settled(rows, cursor, &mut over)?;
            left = left.or(first_left);
            from = last.map_or(from, |last| MessageId::from_sql(last.to_sql() + 1));
            if is_last || !self.has_time() {
                let end = if is_last { MessageId::new(cursor.position + 1, 0) } else { from };
                cursor.counted_below = left.unwrap_or(end);
                return Ok(over);
            }
        }
    }

    /// Sort out which of these claims are settled and behind the cursor: those are added to `over`.
    /// Returns the message of the first of the others.
    fn add_settled(
        &self,
        rows: Vec<claim::ClaimRow>,
        cursor: &Cursor,
        over: &mut Vec<Located>,
    ) -> Result<Option<MessageId>> {
        let spans: Spans = rows.iter().map(|row| Span::of(row.message)).collect();
        let stored = self.log.segments(&spans, self.under);
        let xids: HashMap<u64, u64> =
            stored.into_iter().map(|stored| (stored.id(), stored.xid())).collect();
        let mut left = None;
        for row in rows {
            let message = row.message;
            let xid = xids.get(&message.segment());
            let has_passed = xid.is_none_or(|xid| cursor.has_read(message.segment(), *xid))
                && cursor.waiting.find(message).is_none();
            let located = match has_passed {
                true => Some(row.locate(self.under)?.0).filter(|one| one.cursor.open() == 0),
                false => None,
            };
            match located {
                Some(located) => over.push(located),
                None => left = left.or(Some(message)),
            }
        }
        Ok(left)
    }
}
