//! Moving groups along the log by hand: seek, purge, unsubscribe. Whoever holds a lease there
//! loses it, and is told so (QN002).

use std::collections::{BTreeMap, HashMap, HashSet};

use queen_engine::cursor::{Cursor, Start};
use queen_engine::lease::LeaseId;
use queen_engine::message::MessageId;
use queen_engine::receipt::Receipt;

use crate::broker::group::register::{Beginning, Mode};
use crate::broker::hold::attempt::hold_in_attempts;
use crate::broker::hold::{
    delete_discovery, hold_cursors, hold_group, hold_group_rows, hold_queue_and_cursors,
    hold_queue_and_groups,
};
use crate::broker::housekeeping::fold_claims;
use crate::broker::lookup;
use crate::broker::stats::count::Count;
use crate::error::{Code, Error, Result};
use crate::pg::clock::{self, Moment};
use crate::pg::spi::ActiveSnapshot;
use crate::store::cursor::{self, Located, LockedCursor, Notice};
use crate::store::group::{self, Group};
use crate::store::queue::{Options, Queue};
use crate::store::seen_snapshot::{self, SeenSnapshot};
use crate::store::segment::{self, Row};
use crate::store::{claim, discovery, receipt, replay, tally};
use crate::wait::waiters::{self, Topic};

/// Move the whole group. Returns the number of partitions moved, or None where the group has been
/// moved or removed since it was looked up. The caller has kept the group as it is in all else.
pub fn seek(queue: &Queue, group: &Group, mode: Mode) -> Result<Option<usize>> {
    if !group.is_ordered(&queue.options) {
        return begin_anew(queue, group, mode);
    }
    let held = hold_in_attempts(&queue.name, |attempt| {
        if !hold_group(attempt, queue, group)? {
            return Ok(None);
        }
        // A partition that the group has not read gets a cursor: it is announced, so pops find it.
        let partitions =
            ActiveSnapshot::new_snapshot(|under| Ok(segment::partitions(queue.id, under)))?;
        cursor::create(group.id, partitions);
        hold_cursors(attempt, &[group.id]).map(Some)
    })?;
    let Some(locked) = held else { return Ok(None) };
    ActiveSnapshot::new_snapshot(|under| {
        let last_drawn = segment::last_drawn_id(under);
        let taken = seen_snapshot::describe(under, queue.identity);
        let located = cursor::locate(locked, |_| &group.start, under)?;
        let beginning = Beginning::of(mode, Some(queue.id), last_drawn, &taken, under);
        let settled: i64 = located.iter().map(|located| located.cursor.settled).sum();
        match beginning.messages {
            Some(messages) => group::move_to(group.id, &beginning.start, messages + settled, None),
            None => {
                let removed = tally::newest(queue.id, under)?.1.removed_messages as i64;
                group::move_to(group.id, &beginning.start, 0, Some(removed - settled));
            }
        }
        for located in &located {
            write(queue, located, located.cursor.moved_to(beginning.start.clone()));
        }
        Ok(Some(located.len()))
    })
}

/// Move a group without order: it begins anew, and is another one to whoever has looked before.
fn begin_anew(queue: &Queue, group: &Group, mode: Mode) -> Result<Option<usize>> {
    let held = hold_in_attempts(&queue.name, |attempt| {
        if !hold_group(attempt, queue, group)? {
            return Ok(None);
        }
        delete_discovery(attempt, group)?;
        hold_cursors(attempt, &[group.id]).map(Some)
    })?;
    let Some(locked) = held else { return Ok(None) };
    let located = locate(group, locked)?;
    retire(queue, &located);
    ActiveSnapshot::new_snapshot(|under| {
        let last_drawn = segment::last_drawn_id(under);
        let taken = seen_snapshot::describe(under, queue.identity);
        let mut beginning = Beginning::of(mode, Some(queue.id), last_drawn, &taken, under);
        let removed = tally::newest(queue.id, under)?.1.removed_messages as i64;
        let id = renumber(queue, group);
        match beginning.messages {
            Some(messages) => group::move_to(id, &beginning.start, messages, None),
            None => group::move_to(id, &beginning.start, 0, Some(removed)),
        }
        discovery::append(id, 0, &mut beginning.discovery);
        let mut partitions: HashSet<String> =
            segment::partitions(queue.id, under).into_iter().collect();
        partitions.extend(located.into_iter().map(|located| located.partition));
        Ok(Some(partitions.len()))
    })
}

/// Give the group a new id. No consumer has looked for work under it yet. Pops that wait have registered
/// under the old id, or for pushes to the queue: the commit wakes them.
fn renumber(queue: &Queue, group: &Group) -> i64 {
    let id = group::renumber(group.id);
    replay::hand_over(queue.id, group.id, id);
    waiters::touch(Topic::group(group.id));
    id
}

/// The group's cursors and claims, locked, with their states.
fn locate(group: &Group, locked: Vec<LockedCursor>) -> Result<Vec<Located>> {
    ActiveSnapshot::new_snapshot(|under| cursor::locate(locked, |_| &group.start, under))
}

/// Take all leases away, and see that nobody who has looked before goes on from what he has seen.
fn retire(queue: &Queue, located: &[Located]) {
    for located in located.iter().filter(|one| one.message.is_none() || one.cursor.open() > 0) {
        let revoked = located.cursor.revoked();
        write(queue, located, (located.cursor.retired(), revoked));
    }
}

/// Take all leases away.
fn revoke(queue: Option<&Queue>, located: &[Located]) {
    for located in located.iter().filter(|located| !located.cursor.leases.is_empty()) {
        let revoked = located.cursor.revoked();
        let cursor = Cursor { leases: Vec::new(), ..located.cursor.clone() };
        match queue {
            Some(queue) => write(queue, located, (cursor, revoked)),
            None => trace(located, &revoked, clock::now()),
        }
    }
}

/// Move the group in one partition; returns 0 if there is none of this name, None as [`seek`].
pub fn seek_partition(
    queue: &Queue,
    group: &Group,
    partition: &str,
    mode: Mode,
) -> Result<Option<usize>> {
    let is_there = ActiveSnapshot::new_snapshot(|under| {
        Ok(segment::oldest_from(queue.id, partition, 0, under).is_some()
            || cursor::status(group.id, &group.start, partition, under)?.is_some())
    })?;
    if !is_there {
        return Ok(Some(0));
    }
    if !group.is_ordered(&queue.options) {
        return begin_anew_in(queue, group, partition, mode);
    }
    // Consumers go on in other partitions. A seek of the whole group waits for this share.
    cursor::share_first_reads(queue.id, group.id);
    if !lookup::is_current(queue, group)? {
        return Ok(None);
    }
    let locked = hold_in_attempts(&queue.name, |attempt| {
        let (id, partition) = (group.id, partition.to_owned());
        attempt.lock_rows({
            let partition = partition.clone();
            move || {
                cursor::create(id, vec![partition.clone()]);
                Ok(())
            }
        })?;
        attempt.lock_cursors(&ActiveSnapshot::new_snapshot(|under| {
            Ok(cursor::ids_in(id, &partition, under))
        })?)
    })?;
    ActiveSnapshot::new_snapshot(|under| {
        let last_drawn = segment::last_drawn_id(under);
        let taken = seen_snapshot::describe(under, queue.identity);
        for located in cursor::locate(locked, |_| &group.start, under)? {
            let rows = segment::rows(queue.id, partition, under);
            let start = start_in(&rows, mode, last_drawn, &taken);
            let (mut moved, revoked) = located.cursor.moved_to(start);
            moved.settled += unsettled(&located.cursor, &rows) - unsettled(&moved, &rows);
            write(queue, &located, (moved, revoked));
        }
        Ok(Some(1))
    })
}

/// The same in a group without order: with a new cursor, as nobody is to go on from the old one.
fn begin_anew_in(
    queue: &Queue,
    group: &Group,
    partition: &str,
    mode: Mode,
) -> Result<Option<usize>> {
    let held = hold_in_attempts(&queue.name, |attempt| {
        if !hold_group(attempt, queue, group)? {
            return Ok(None);
        }
        let ids =
            ActiveSnapshot::new_snapshot(|under| Ok(cursor::ids_in(group.id, partition, under)))?;
        attempt.lock_cursors(&ids).map(Some)
    })?;
    let Some(locked) = held else { return Ok(None) };
    let located = locate(group, locked)?;
    ActiveSnapshot::new_snapshot(|under| {
        let last_drawn = segment::last_drawn_id(under);
        let taken = seen_snapshot::describe(under, queue.identity);
        let rows = segment::rows(queue.id, partition, under);
        let start = start_in(&rows, mode, last_drawn, &taken);
        let before = Unordered::of(group, located);
        let mut moved = Cursor::new(start);
        moved.last_pop_at = before.last_pop_at();
        moved.settled = before.settled() + before.unsettled(&rows) - unsettled(&moved, &rows);
        let now = clock::now();
        for claim in &before.claims {
            trace(claim, &claim.cursor.revoked(), now);
        }
        claim::delete(&before.claims.iter().map(|claim| claim.id).collect::<Vec<_>>());
        let new = cursor::replace(group.id, partition)?;
        write(queue, &new, (moved, Vec::new()));
        Ok(Some(1))
    })
}

/// A partition of a group without order.
struct Unordered {
    base: Cursor,
    claims: Vec<Located>,
}

impl Unordered {
    fn of(group: &Group, located: Vec<Located>) -> Self {
        let (claims, base): (Vec<_>, Vec<_>) =
            located.into_iter().partition(|located| located.message.is_some());
        let base = base.into_iter().next().map(|base| base.cursor);
        let base = base.unwrap_or_else(|| Cursor::new(group.start.clone()));
        Self { base, claims }
    }

    fn all(&self) -> impl Iterator<Item = &Cursor> {
        self.claims.iter().map(|claim| &claim.cursor).chain([&self.base])
    }

    fn settled(&self) -> i64 {
        self.all().map(|cursor| cursor.settled).sum()
    }

    fn last_pop_at(&self) -> Moment {
        self.all().map(|cursor| cursor.last_pop_at).max().unwrap_or(0)
    }

    /// Messages of the partition that are not settled.
    fn unsettled(&self, rows: &[Row]) -> i64 {
        let claimed: HashSet<MessageId> =
            self.claims.iter().filter_map(|claim| claim.message).collect();
        let unread = rows.iter().filter(|row| !self.base.has_read(row.id, row.xid));
        let unread: HashMap<u64, i64> = unread.map(|row| (row.id, row.messages as i64)).collect();
        let is_behind = |message: &MessageId| !unread.contains_key(&message.segment());
        let settled = |claim: &&Located| claim.message.is_some_and(|message| !is_behind(&message));
        let open = |claim: &&Located| claim.message.is_some_and(|message| is_behind(&message));
        let left = self.base.waiting.messages().filter(|message| !claimed.contains(message));
        let behind: i64 =
            self.claims.iter().filter(open).map(|claim| claim.cursor.open() as i64).sum();
        let ahead: i64 = self.claims.iter().filter(settled).map(|claim| claim.cursor.settled).sum();
        unread.values().sum::<i64>() - ahead + behind + left.count() as i64
    }
}

/// Give the queue's new ordering to groups that have none of their own.
pub fn reorder(queue: &Queue, before: &Options) -> Result<()> {
    let held = hold_in_attempts(&queue.name, |attempt| {
        let groups = hold_queue_and_groups(attempt, queue)?;
        let changes = |group: &Group| group.is_ordered(&queue.options) != group.is_ordered(before);
        let hold = |group: Group| {
            delete_discovery(attempt, &group)?;
            let locked = hold_cursors(attempt, &[group.id])?;
            Ok((group, locked))
        };
        groups.into_iter().filter(changes).map(hold).collect::<Result<Vec<_>>>()
    })?;
    held.into_iter().try_for_each(|(group, locked)| reorder_one(queue, &group, locked))
}

/// Make an ordered group one without order, or the other way round: what is not settled stays so,
/// with what is known of its deliveries and failures. Refused while somebody holds a lease.
fn reorder_one(queue: &Queue, group: &Group, locked: Vec<LockedCursor>) -> Result<()> {
    let mut located = locate(group, locked)?;
    let now = clock::now();
    let void_before = queue.identity.void_before;
    if located.iter().any(|located| located.cursor.live_lease(now, void_before).is_some()) {
        return Err(leases_are_live(queue));
    }
    retire(queue, &located);
    for located in &mut located {
        located.cursor.reclaim(now, void_before);
    }
    let mut partitions: BTreeMap<String, Vec<Located>> = BTreeMap::new();
    for located in located {
        partitions.entry(located.partition.clone()).or_default().push(located);
    }
    ActiveSnapshot::new_snapshot(|under| {
        let mut states = Vec::with_capacity(partitions.len());
        for (partition, located) in partitions {
            let Unordered { base, claims } = Unordered::of(group, located);
            let state = match group.is_ordered(&queue.options) {
                true => {
                    let state = |claim: Located| Some((claim.message?, claim.cursor));
                    let claims = claims.into_iter().filter_map(state);
                    let base = fold_claims::all_passed(queue, group, &partition, base, under)?;
                    (base.with_claims(claims), Vec::new())
                }
                false => base.into_claims(),
            };
            states.push((partition, state));
        }
        let id = renumber(queue, group);
        for (partition, (base, claims)) in states {
            let new = cursor::replace(id, &partition)?;
            write(queue, &new, (base, Vec::new()));
            for (message, state) in claims {
                let claim = Located::claim(claim::draw_id(), id, &partition, message);
                claim::try_insert(claim.id, id, &partition, message, now, None);
                write(queue, &claim, (state, Vec::new()));
            }
        }
        Ok(())
    })
}

fn leases_are_live(queue: &Queue) -> Error {
    let what =
        format!("ordering of queue \"{}\" can't be changed while leases are live", queue.name);
    Error::new(Code::ObjectNotInPrerequisiteState, what)
        .detail("Somebody holds messages of one of its groups.")
        .hint("Stop the consumers, and try again when queen_leases shows none.")
}

/// Where a cursor begins in a partition that holds `rows`.
fn start_in(rows: &[Row], mode: Mode, last_drawn: u64, taken: &SeenSnapshot) -> Start {
    match mode {
        Mode::All => Start::default(),
        Mode::New => Start::after(last_drawn, &taken.snapshot),
        Mode::From(at) => {
            let first = rows.iter().filter(|row| row.created_at >= at).map(|row| row.id).min();
            let position = first.map_or(last_drawn, |first| first - 1);
            Start { since: Some(at), ..Start::after(position, &taken.snapshot) }
        }
    }
}

/// Messages of a partition that are not settled: read and open, or not read yet.
fn unsettled(cursor: &Cursor, rows: &[Row]) -> i64 {
    let unread = rows.iter().filter(|row| !cursor.has_read(row.id, row.xid));
    unread.map(|row| row.messages as i64).sum::<i64>() + cursor.open() as i64
}

/// Remove the group. Whoever holds a lease of it has lost it.
pub fn unsubscribe(queue: Option<&Queue>, group: &Group) -> Result<()> {
    let locked = hold_in_attempts(queue.map_or("", |queue| &queue.name), |attempt| {
        hold_group_rows(attempt, vec![group.id])?;
        delete_discovery(attempt, group)?;
        hold_cursors(attempt, &[group.id])
    })?;
    revoke(queue, &locate(group, locked)?);
    group::forget(group.id);
    Ok(())
}

/// Remove every visible message of the queue; returns how many.
pub fn purge(queue: &Queue) -> Result<i64> {
    let (groups, locked) =
        hold_in_attempts(&queue.name, |attempt| hold_queue_and_cursors(attempt, queue))?;
    ActiveSnapshot::new_snapshot(|under| {
        let taken = seen_snapshot::describe(under, queue.identity);
        let mut count = Count::take(queue.id, &taken, None, under)?;
        count.need_newest()?;
        let starts: HashMap<i64, &Start> = groups.iter().map(|g| (g.id, &g.start)).collect();
        let located = cursor::locate(locked, |group| starts[&group], under)?;
        for group in &groups {
            let settled: i64 = located
                .iter()
                .filter(|located| located.group == group.id && located.message.is_none())
                .map(|located| located.cursor.settled)
                .sum();
            // Nothing is pending any more; what this transaction has pushed will never be counted.
            group::set_baseline(group.id, count.tally.messages as i64 - settled);
        }
        let mut claims = Vec::new();
        for located in &located {
            let revoked = located.cursor.revoked();
            match located.message {
                None => write(queue, located, (located.cursor.emptied(), revoked)),
                Some(_) => {
                    trace(located, &revoked, clock::now());
                    claims.push(located.id);
                }
            }
        }
        claim::delete(&claims);
        let removed = segment::delete_all(queue.id);
        count.remove_all();
        count.write();
        Ok(removed)
    })
}

fn write(queue: &Queue, located: &Located, (cursor, revoked): (Cursor, Vec<(LeaseId, Receipt)>)) {
    let xid = seen_snapshot::assign_xid(queue.identity);
    cursor::append(located, &cursor, Notice::Ready { xid });
    trace(located, &revoked, clock::now());
}

fn trace(located: &Located, revoked: &[(LeaseId, Receipt)], now: Moment) {
    for (lease, receipt) in revoked {
        receipt::insert(located, *lease, receipt, now);
    }
}
