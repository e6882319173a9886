//! Deleting messages by their age: `retention`, and `completed_retention` for those that every group
//! has settled.
//!
//! One transaction at a time works on a queue: the one who counts for it. Whole segments go, in the
//! order of their transactions, never one that a lease refers to. What a group had not settled is
//! taken off what is pending for it, under the lock of its cursor.

use std::collections::{BTreeMap, HashMap, HashSet};

use queen_engine::cursor::Cursor;
use queen_engine::holes::Snapshot;
use queen_engine::message::{MessageId, Span, Spans};

use crate::broker::stats::count::{Count, WORTH_WRITING, settle_baseline};
use crate::error::Result;
use crate::pg::clock::{self, Moment};
use crate::pg::spi::ActiveSnapshot;
use crate::pg::table::RowLocation;
use crate::store::claim;
use crate::store::cursor::{self, Located, LockAttempt, Notice};
use crate::store::group::{self, Group};
use crate::store::locks;
use crate::store::queue::Queue;
use crate::store::seen_snapshot;
use crate::store::segment::{self, News, news};
use crate::store::sweep::SweepStep;
use crate::store::{receipt, tally};

/// Segments looked at in one step.
const STEP: usize = 1000;

/// One step on one queue.
pub fn step(queue: &Queue) -> Result<SweepStep> {
    ActiveSnapshot::new_snapshot(|under| {
        let taken = seen_snapshot::describe(under, queue.identity);
        let mut count = Count::take(queue.id, &taken, Some(10 * STEP), under)?;
        let now = clock::now();
        let ages = Ages { queue, now };
        let mut groups = group::of_queue(&queue.name, under)?;
        let oldest = segment::oldest(queue.id, count.tally.floor, under);
        let is_due = oldest.is_some_and(|at| match groups.is_empty() {
            true => ages.is_over(at),
            false => ages.is_due(at),
        });
        let is_new = groups.iter().any(|group| group.baseline.is_none());
        if !(is_due || is_new) || !count.is_complete() {
            let goes_on = !count.is_complete();
            count.keep(if goes_on { 1 } else { WORTH_WRITING })?;
            return Ok(SweepStep { removed: 0, goes_on });
        }
        if !tally::try_lead(queue.id, count.revision())? {
            return Ok(SweepStep::default());
        }
        if !groups.iter().all(group::try_hold) {
            return Ok(SweepStep::default());
        }
        groups.iter_mut().for_each(|group| settle_baseline(&count, group, under));
        let snapshot = &taken.snapshot;
        Retaining { ages, groups, snapshot, under }.run(&mut count)
    })
}

/// Which messages are old enough.
struct Ages<'a> {
    queue: &'a Queue,
    now: Moment,
}

impl Ages<'_> {
    fn is_over(&self, created_at: Moment) -> bool {
        self.queue.options.retention().is_some_and(|age| created_at <= self.now - age)
    }

    fn is_over_if_settled(&self, created_at: Moment) -> bool {
        created_at <= self.now - self.queue.options.completed_retention()
    }

    fn is_due(&self, created_at: Moment) -> bool {
        self.is_over(created_at) || self.is_over_if_settled(created_at)
    }
}

struct Retaining<'a> {
    ages: Ages<'a>,
    groups: Vec<Group>,
    snapshot: &'a Snapshot,
    under: &'a ActiveSnapshot,
}

/// How a segment stands with a group.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Standing {
    Settled,
    /// In somebody's hands, or an expired lease's.
    Leased,
    /// So many of its messages came back.
    Waiting(i64),
    /// Not read; and whether it is for the group.
    Unread {
        is_for_it: bool,
    },
}

/// A group's cursor of the partition at hand, if there is one.
struct Reader<'a> {
    group: &'a Group,
    found: Option<(Located, RowLocation)>,
    cursor: Cursor,
    now: Moment,
    void_before: Moment,
    /// In a group without order: claims of the messages in question, by segment.
    claims: Option<HashMap<u64, Vec<(Located, RowLocation)>>>,
}

impl Retaining<'_> {
    fn run(&self, count: &mut Count) -> Result<SweepStep> {
        let queue = self.ages.queue.id;
        let before = count.tally.clone();
        let (xid, key) = count.tally.swept.clone();
        let rows = news(queue, xid, &key, false, STEP, self.under);
        let mut full = rows.len() == STEP;
        let mut partitions = BTreeMap::<String, Vec<News>>::new();
        let (mut last, most) = (None, self.most_partitions());
        for row in rows.into_iter().take_while(|row| self.ages.is_due(row.created_at)) {
            let partition = &row.segment.key.0;
            if partitions.len() == most && !partitions.contains_key(partition) {
                full = true;
                break;
            }
            last = Some((row.segment.xid, row.segment.key.clone()));
            partitions.entry(partition.clone()).or_default().push(row);
        }
        let mut removed = 0;
        for (partition, rows) in partitions {
            for gone in self.clean(&partition, rows)? {
                removed += gone.segment.messages;
                count.tally.remove(gone.segment.messages, gone.segment.bytes);
            }
            pgrx::check_for_interrupts!();
        }
        // At the end of what is old, from the start again: something may have been settled since.
        let goes_on = full && last.is_some();
        // Nothing is, and nothing will be, below the first that is visible, nor below the oldest
        // transaction that is not.
        let first = segment::first_pusher(queue, count.tally.floor, self.under);
        let oldest = self.snapshot.holes.first_from(0).into_iter().chain(self.snapshot.own);
        let floor = first.into_iter().chain(oldest).min().unwrap_or(self.snapshot.next);
        count.tally.floor = count.tally.floor.max(floor);
        let start = (count.tally.floor, Default::default());
        count.tally.swept = last.filter(|_| goes_on).unwrap_or(start);
        match count.tally == before {
            true => drop(count.keep(WORTH_WRITING)?),
            false => count.write(),
        }
        Ok(SweepStep { removed, goes_on })
    }

    /// How many more partitions this transaction may clean: each takes a lock in a group without
    /// order.
    fn most_partitions(&self) -> usize {
        let is_unordered = |group: &&Group| !group.is_ordered(&self.ages.queue.options);
        match self.groups.iter().filter(is_unordered).count() {
            0 => usize::MAX,
            groups => locks::spare().div_ceil(groups),
        }
    }

    /// Delete what can go of the old segments of one partition; returns them.
    fn clean(&self, partition: &str, rows: Vec<News>) -> Result<Vec<News>> {
        let mut readers = Vec::with_capacity(self.groups.len());
        for group in &self.groups {
            let found = cursor::status(group.id, &group.start, partition, self.under)?;
            let cursor = group.state_in(found.as_ref().map(|(located, _)| located));
            let claims = match group.is_ordered(&self.ages.queue.options) {
                true => None,
                false => Some(self.claims(group, partition, &rows)?),
            };
            let (now, void_before) = (self.ages.now, self.ages.queue.identity.void_before);
            readers.push(Reader { group, found, cursor, now, void_before, claims });
        }
        let gone: Vec<News> = rows.into_iter().filter(|row| self.can_go(row, &readers)).collect();
        if gone.is_empty() {
            return Ok(gone);
        }
        for reader in &readers {
            if !self.hold(reader, &gone)? {
                return Ok(Vec::new());
            }
        }
        for reader in &mut readers {
            self.take_off(reader, &gone);
        }
        let ids: Vec<u64> = gone.iter().map(|row| row.segment.key.1).collect();
        segment::delete(self.ages.queue.id, partition, &ids);
        Ok(gone)
    }

    fn claims(
        &self,
        group: &Group,
        partition: &str,
        rows: &[News],
    ) -> Result<HashMap<u64, Vec<(Located, RowLocation)>>> {
        let mut claims: HashMap<u64, Vec<(Located, RowLocation)>> = HashMap::new();
        for row in claim::visible(group.id, partition, &messages_of(rows), self.under) {
            let segment = row.message.segment();
            claims.entry(segment).or_default().push(row.locate(self.under)?);
        }
        Ok(claims)
    }

    fn can_go(&self, row: &News, readers: &[Reader<'_>]) -> bool {
        let standings: Vec<Standing> = readers.iter().map(|reader| reader.standing(row)).collect();
        if standings.contains(&Standing::Leased) {
            return false;
        }
        let is_done = |standing: &Standing| {
            matches!(standing, Standing::Settled | Standing::Unread { is_for_it: false })
        };
        let is_settled = !readers.is_empty() && standings.iter().all(is_done);
        self.ages.is_over(row.created_at)
            || (is_settled && self.ages.is_over_if_settled(row.created_at))
    }

    /// Keep the group from moving in the partition. False if it is at it.
    fn hold(&self, reader: &Reader<'_>, gone: &[News]) -> Result<bool> {
        let (group, partition) = (reader.group.id, &gone[0].segment.key.0);
        let holds = match &reader.found {
            Some((located, place)) => {
                cursor::try_lock(located, *place, self.under)? == LockAttempt::Locked
            }
            // A new cursor is locked: no consumer reads the partition first. This transaction holds
            // the group's row.
            None => cursor::insert_if_new(group, partition).is_some(),
        };
        let Some(claims) = reader.claims.as_ref().filter(|_| holds) else { return Ok(holds) };
        // Before the look: who takes something after it finds out.
        if !cursor::try_lock_out_claims(group, partition) {
            return Ok(false);
        }
        let seen: usize = gone.iter().map(|row| of(claims, row).len()).sum();
        let segments: HashSet<u64> = gone.iter().map(|row| row.segment.key.1).collect();
        let mut at_hand = claim::at_hand(group, partition, &messages_of(gone));
        at_hand.retain(|message, _| segments.contains(&message.segment()));
        if at_hand.len() != seen || at_hand.values().any(|claim| claim.is_open) {
            return Ok(false);
        }
        for (located, place) in gone.iter().flat_map(|row| of(claims, row)) {
            if located.cursor.open() > 0
                && cursor::try_lock(located, *place, self.under)? != LockAttempt::Locked
            {
                return Ok(false);
            }
        }
        Ok(true)
    }

    /// Account for what the group had not settled.
    fn take_off(&self, reader: &mut Reader<'_>, gone: &[News]) {
        if let Some(claims) = &reader.claims {
            let unsettled: i64 = gone.iter().map(|row| reader.standing(row).unsettled(row)).sum();
            group::write_off(reader.group.id, unsettled);
            let open = gone.iter().flat_map(|row| of(claims, row));
            let open: Vec<&Located> = open
                .map(|(located, _)| located)
                .filter(|located| located.cursor.open() > 0)
                .collect();
            for located in &open {
                for (lease, trace) in located.cursor.revoked() {
                    receipt::insert(located, lease, &trace, self.ages.now);
                }
            }
            claim::delete(&open.iter().map(|located| located.id).collect::<Vec<_>>());
            return;
        }
        let mut unread = 0;
        let mut waiting = 0;
        for row in gone {
            match reader.standing(row) {
                Standing::Unread { .. } => unread += row.segment.messages as i64,
                Standing::Waiting(messages) => waiting += messages,
                Standing::Settled | Standing::Leased => (),
            }
        }
        group::write_off(reader.group.id, unread);
        // Also where nothing changes for the group: a pop that still sees the messages finds a newer
        // state, and leaves them.
        if let (Some((located, _)), true) = (&reader.found, unread + waiting > 0) {
            let is_gone = |segment| gone.iter().any(|row| row.segment.key.1 == segment);
            let mut cursor = reader.cursor.clone();
            cursor.waiting =
                cursor.waiting.iter().filter(|span| !is_gone(span.segment)).collect::<Spans>();
            cursor.failures.retain(|message, _| !is_gone(message.segment()));
            cursor.settled += waiting;
            let xid = seen_snapshot::assign_xid(self.ages.queue.identity);
            cursor::append(located, &cursor, Notice::Ready { xid });
        }
    }
}

/// The claims in a segment.
fn of<'a>(
    claims: &'a HashMap<u64, Vec<(Located, RowLocation)>>,
    row: &News,
) -> &'a [(Located, RowLocation)] {
    claims.get(&row.segment.key.1).map_or(&[], Vec::as_slice)
}

/// All messages of the segments.
fn messages_of(rows: &[News]) -> Spans {
    let whole = |row: &News| Span {
        segment: row.segment.key.1,
        first: 0,
        len: row.segment.messages as u16,
        deliveries: 0,
    };
    rows.iter().map(whole).collect()
}

impl Standing {
    /// Messages that are not settled.
    fn unsettled(self, row: &News) -> i64 {
        match self {
            Standing::Settled | Standing::Leased => 0,
            Standing::Waiting(messages) => messages,
            Standing::Unread { .. } => row.segment.messages as i64,
        }
    }
}

impl Reader<'_> {
    fn standing(&self, row: &News) -> Standing {
        let (xid, segment) = (row.segment.xid, row.segment.key.1);
        if let Some(claims) = &self.claims {
            return self.standing_unordered(row, of(claims, row));
        }
        if !self.cursor.has_read(segment, xid) {
            return self.unread(row);
        }
        let holds = |spans: &Spans| spans.iter().any(|span| span.segment == segment);
        if self.cursor.leases.iter().any(|lease| holds(&lease.held)) {
            return Standing::Leased;
        }
        let waiting = self.cursor.waiting.iter().filter(|span| span.segment == segment);
        match waiting.map(|span| i64::from(span.len)).sum() {
            0 => Standing::Settled,
            waiting => Standing::Waiting(waiting),
        }
    }

    fn standing_unordered(&self, row: &News, claims: &[(Located, RowLocation)]) -> Standing {
        let (xid, segment) = (row.segment.xid, row.segment.key.1);
        let has_read = self.cursor.has_read(segment, xid);
        let is_live = |(located, _): &(Located, RowLocation)| {
            located.cursor.live_lease(self.now, self.void_before).is_some()
        };
        if claims.iter().any(is_live) {
            return Standing::Leased;
        }
        let is_claimed = |message: &MessageId| {
            claims.iter().any(|(located, _)| located.message == Some(*message))
        };
        let left = || {
            let here = self.cursor.waiting.iter().filter(|span| span.segment == segment);
            here.flat_map(Span::messages).filter(|message| !is_claimed(message)).count() as i64
        };
        let open: i64 = claims.iter().map(|(located, _)| located.cursor.open() as i64).sum();
        let unsettled = match has_read {
            true => left() + open,
            false if claims.is_empty() => return self.unread(row),
            false => row.segment.messages as i64 - (claims.len() as i64 - open),
        };
        match unsettled {
            0 => Standing::Settled,
            unsettled => Standing::Waiting(unsettled),
        }
    }

    fn unread(&self, row: &News) -> Standing {
        let is_old = self.cursor.since.is_some_and(|since| row.created_at < since);
        let is_others = row.only_group.is_some_and(|only| only != self.group.id);
        Standing::Unread { is_for_it: !is_old && !is_others }
    }
}
