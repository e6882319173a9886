//! Reading the log from its low end, where segments are deleted. Every reader that may begin there
//! begins at the queue's [`Floor`] instead, and looks by themselves at the transactions that the
//! floor excepts. The floor must hold for the snapshot: [`crate::store::tally::floor`].

use std::collections::BTreeSet;
use std::ops::ControlFlow;

use queen_engine::floor::Floor;
use queen_engine::holes::{Holes, Snapshot};

use super::survey::{News, news, news_upto};
use super::{CREATED_AT, ID, IN_ORDER, N, NEWS, PARTITION, PAYLOADS, QUEUE_ID, XID};
use crate::pg::clock::{At, Moment};
use crate::pg::columns::Columns;
use crate::pg::key::{Key, Value};
use crate::pg::scan::{ScanEnd, Tuple};
use crate::pg::snapshot::ActiveSnapshot;
use crate::store::{signed, unsigned};

/// Between two transactions, neither of which it includes, the log of a queue has no segments but
/// for those of `except`.
#[derive(Clone, Debug)]
pub struct Gap {
    pub after: u64,
    pub below: u64,
    pub except: Holes,
}

/// Up to `limit` segments of the queue after `at`, in the order of (xid, partition, segment).
pub fn news_above(
    queue: i64,
    floor: &Floor,
    at: (u64, &(String, u64)),
    limit: usize,
    under: &ActiveSnapshot,
) -> Vec<News> {
    if at.0 >= floor.xid {
        return news(queue, at.0, at.1, false, limit, under);
    }
    let gap = Gap { after: 0, below: floor.xid, except: floor.except.clone() };
    news_across(queue, &[gap], at, limit, under)
}

/// [`news_above`], without a walk through these gaps, which are in order and do not overlap.
pub fn news_across(
    queue: i64,
    gaps: &[Gap],
    at: (u64, &(String, u64)),
    limit: usize,
    under: &ActiveSnapshot,
) -> Vec<News> {
    let none = (String::new(), 0);
    let (mut xid, mut key) = at;
    let mut found = Vec::new();
    for gap in gaps.iter().filter(|gap| gap.below > at.0) {
        if found.len() < limit && gap.after > 0 && xid <= gap.after {
            found.extend(news_upto(queue, (xid, key), gap.after, limit - found.len(), under));
        }
        for late in each(&gap.except, xid.max(gap.after + 1)) {
            if found.len() < limit {
                let from = if late == xid { key } else { &none };
                found.extend(news(queue, late, from, true, limit - found.len(), under));
            }
            pgrx::check_for_interrupts!();
        }
        (xid, key) = (gap.below, &none);
    }
    if found.len() < limit {
        found.extend(news(queue, xid, key, false, limit - found.len(), under));
    }
    found
}

/// When the first segment of the queue, in the order of transactions, was written.
pub fn oldest(queue: i64, floor: &Floor, under: &ActiveSnapshot) -> Option<Moment> {
    let created_at = |row: &Tuple| row.need::<At>(CREATED_AT).0;
    each(&floor.except, 0)
        .find_map(|xid| first_of(queue, xid, under, created_at))
        .or_else(|| first_from(queue, floor.xid, under, created_at))
}

/// The lowest transaction, from `xid` on, that has pushed to the queue, and not only what is
/// deleted.
pub fn first_pusher(queue: i64, xid: u64, under: &ActiveSnapshot) -> Option<u64> {
    first_from(queue, xid, under, |row| unsigned(row.need(XID)))
}

/// The exceptions of the floor that may still have segments: those that have, and those that had
/// not ended when `snapshot`, which is `under`, was taken.
pub fn still_excepted(
    queue: i64,
    floor: &Floor,
    snapshot: &Snapshot,
    under: &ActiveSnapshot,
) -> Holes {
    let may_have = |xid: &u64| {
        snapshot.holes.contains(*xid)
            || snapshot.is_own(*xid)
            || first_of(queue, *xid, under, |_| ()).is_some()
    };
    let kept = each(&floor.except, 0).filter(may_have).map(|xid| (xid, xid + 1));
    Holes::from_ranges(kept.collect())
}

fn first_of<T>(
    queue: i64,
    xid: u64,
    under: &ActiveSnapshot,
    read: impl FnMut(&Tuple) -> T,
) -> Option<T> {
    NEWS.end(&[Value::Int(queue), Value::Int(signed(xid))], ScanEnd::Start, under, read)
}

fn first_from<T>(
    queue: i64,
    xid: u64,
    under: &ActiveSnapshot,
    read: impl Fn(&Tuple) -> T,
) -> Option<T> {
    let keys =
        [(QUEUE_ID, Key::Is(Value::Int(queue))), (XID, Key::Above(Value::Int(signed(xid) - 1)))];
    NEWS.scan(&keys, ScanEnd::Start, under, |row| ControlFlow::Break(read(row)))
}

/// The transactions of a set, ascending, from this one on.
fn each(set: &Holes, from: u64) -> impl Iterator<Item = u64> {
    set.ranges().iter().flat_map(move |&(low, high)| low.max(from)..high)
}

/// Visit the segments of a partition from this id on, in order, until `visit` breaks off, which it
/// does after `limit` at the latest.
pub(super) fn scan_partition<B>(
    (queue, partition): (i64, &str),
    from: u64,
    floor: &Floor,
    limit: usize,
    under: &ActiveSnapshot,
    mut visit: impl FnMut(&Tuple) -> ControlFlow<B>,
) -> Option<B> {
    let (of_queue, of_partition) = (Value::Int(queue), Value::Text(partition));
    if from <= floor.segment {
        for id in excepted(queue, partition, from, floor, limit, under) {
            let key = [of_queue, of_partition, Value::Int(id)];
            let over = IN_ORDER.end(&key, ScanEnd::Start, under, &mut visit);
            if let Some(ControlFlow::Break(value)) = over {
                return Some(value);
            }
        }
    }
    let after = (signed(from) - 1).max(signed(floor.segment));
    let keys = [
        (QUEUE_ID, Key::Is(of_queue)),
        (PARTITION, Key::Is(of_partition)),
        (ID, Key::Above(Value::Int(after))),
    ];
    IN_ORDER.scan(&keys, ScanEnd::Start, under, visit)
}

/// The segments of the partition from this id on that are below the floor, in order, `limit` at
/// most of each transaction.
fn excepted(
    queue: i64,
    partition: &str,
    from: u64,
    floor: &Floor,
    limit: usize,
    under: &ActiveSnapshot,
) -> Vec<i64> {
    let mut ids = Vec::new();
    for xid in each(&floor.except, 0) {
        let keys = [
            (QUEUE_ID, Key::Is(Value::Int(queue))),
            (XID, Key::Is(Value::Int(signed(xid)))),
            (PARTITION, Key::Is(Value::Text(partition))),
            (ID, Key::Above(Value::Int(signed(from) - 1))),
            (ID, Key::UpTo(Value::Int(signed(floor.segment)))),
        ];
        let enough = ids.len().saturating_add(limit);
        NEWS.scan::<()>(&keys, ScanEnd::Start, under, |row| {
            ids.push(row.need(ID));
            if ids.len() < enough { ControlFlow::Continue(()) } else { ControlFlow::Break(()) }
        });
    }
    ids.sort_unstable();
    ids
}

/// When the first visible segment of the partition from `from` on was written.
pub fn oldest_from(
    of: (i64, &str),
    from: u64,
    floor: &Floor,
    under: &ActiveSnapshot,
) -> Option<Moment> {
    oldest_but(of, from, floor, |_, _| false, under)
}

/// When the first visible segment of the partition from `from` on was written that is not one of
/// `these`, which is asked for a segment's id and the number of its messages.
pub fn oldest_but(
    of: (i64, &str),
    from: u64,
    floor: &Floor,
    these: impl Fn(u64, u16) -> bool,
    under: &ActiveSnapshot,
) -> Option<Moment> {
    scan_partition(of, from, floor, usize::MAX, under, |row| {
        match these(unsigned(row.need(ID)), row.need::<i16>(N) as u16) {
            true => ControlFlow::Continue(()),
            false => ControlFlow::Break(row.need::<At>(CREATED_AT).0),
        }
    })
}

/// A segment without its contents.
pub struct SegmentSummary {
    pub id: u64,
    pub xid: u64,
    pub created_at: Moment,
    pub messages: u64,
    /// The bytes of its payloads, as stored.
    pub bytes: u64,
}

/// Every visible segment of a partition, in order.
pub fn rows(of: (i64, &str), floor: &Floor, under: &ActiveSnapshot) -> Vec<SegmentSummary> {
    let mut rows = Vec::new();
    scan_partition::<()>(of, 0, floor, usize::MAX, under, |row| {
        rows.push(SegmentSummary {
            id: unsigned(row.need(ID)),
            xid: unsigned(row.need(XID)),
            created_at: row.need::<At>(CREATED_AT).0,
            messages: u64::from(row.need::<i16>(N) as u16),
            bytes: row.stored_size(PAYLOADS),
        });
        ControlFlow::Continue(())
    });
    rows
}

/// The partitions of a queue that hold a visible segment, by name. Costs one look-up for each name
/// in the index, and a second one where the first segment of that name is deleted.
pub fn partitions(queue: i64, floor: &Floor, under: &ActiveSnapshot) -> Vec<String> {
    let late = late_partitions(queue, floor, under);
    let mut found: Vec<String> = Vec::new();
    let mut last: Option<String> = None;
    loop {
        let mut keys = vec![(QUEUE_ID, Key::Is(Value::Int(queue)))];
        keys.extend(last.as_deref().map(|last| (PARTITION, Key::Above(Value::Text(last)))));
        // Any segment tells the name: what is deleted is not stepped over one by one.
        let next = IN_ORDER.scan_any(&keys, ScanEnd::Start, |row| {
            ControlFlow::Break((row.need::<String>(PARTITION), row.is_visible(under)))
        });
        let Some((name, is_visible)) = next else { return found };
        let has_segments = is_visible || late.contains(&name) || {
            let first = ControlFlow::Break::<()>;
            let of = (queue, name.as_str());
            let above = Floor { except: Holes::none(), ..floor.clone() };
            scan_partition(of, 0, &above, 1, under, |_| first(())).is_some()
        };
        if has_segments {
            found.push(name.clone());
        }
        last = Some(name);
        pgrx::check_for_interrupts!();
    }
}

/// The partitions in which transactions that the floor excepts have segments.
fn late_partitions(queue: i64, floor: &Floor, under: &ActiveSnapshot) -> BTreeSet<String> {
    let mut found = BTreeSet::new();
    for xid in each(&floor.except, 0) {
        let mut last: Option<String> = None;
        loop {
            let mut keys = vec![
                (QUEUE_ID, Key::Is(Value::Int(queue))),
                (XID, Key::Is(Value::Int(signed(xid)))),
            ];
            keys.extend(last.as_deref().map(|last| (PARTITION, Key::Above(Value::Text(last)))));
            let next = NEWS
                .scan(&keys, ScanEnd::Start, under, |row| ControlFlow::Break(row.need(PARTITION)));
            match next {
                Some(name) => {
                    last = Some(name);
                    found.extend(last.clone());
                }
                None => break,
            }
            pgrx::check_for_interrupts!();
        }
    }
    found
}
