//! Questions about the log of a queue, or of a partition, that do not read its messages: what has
//! arrived, how much, how old.

use std::ops::ControlFlow;

use pgrx::pg_sys;
use queen_engine::holes::Holes;
use queen_engine::tally::Arrived;

use super::log::leap;
use super::{CREATED_AT, ID, IN_ORDER, N, NEWS, ONLY_GROUP, PARTITION, PAYLOADS, QUEUE_ID, XID};
use crate::pg::clock::{At, Moment};
use crate::pg::columns::{Columns, arg};
use crate::pg::key::{Key, Value};
use crate::pg::scan::{ScanEnd, Tuple};
use crate::pg::snapshot::ActiveSnapshot;
use crate::pg::spi::Statement;
use crate::store::{signed, unsigned};

static FIRST_SINCE: Statement = Statement::new(
    "WITH seen AS (SELECT coalesce(min(id) FILTER (WHERE created_at >= $2) - 1, max(id), 0) AS upto
                   FROM queen_mq.segment WHERE queue_id = $1)
     SELECT seen.upto,
            (SELECT coalesce(sum(n), 0)::bigint FROM queen_mq.segment
             WHERE queue_id = $1 AND id > seen.upto) AS messages
     FROM seen",
    &[pg_sys::INT8OID, pg_sys::TIMESTAMPTZOID],
);

/// The largest id below which every visible segment of the queue is older than `since`, and how
/// many messages are beyond it. Reads the whole log.
pub fn position_before(queue: i64, since: Moment, under: &ActiveSnapshot) -> (u64, i64) {
    FIRST_SINCE
        .read(&[arg(queue), arg(At(since))], under)
        .first()
        .map_or((0, 0), |row| (unsigned(row.need(c"upto")), row.need(c"messages")))
}

static COUNT_OF: Statement = Statement::new(
    "SELECT coalesce(sum(s.n), 0)::bigint FROM unnest($2, $3, $4) AS range(low, high, above)
     CROSS JOIN LATERAL (SELECT n FROM queen_mq.segment
                         WHERE queue_id = $1 AND xid >= range.low AND xid < range.high
                           AND id > range.above) AS s",
    &[pg_sys::INT8OID, pg_sys::INT8ARRAYOID, pg_sys::INT8ARRAYOID, pg_sys::INT8ARRAYOID],
);

/// Visible messages of the queue by the transactions of `ranges`, each from the first up to the
/// second, in segments above the third.
pub fn count_of(queue: i64, ranges: &[(u64, u64, u64)], under: &ActiveSnapshot) -> i64 {
    let column = |of: fn(&(u64, u64, u64)) -> u64| -> Vec<i64> {
        ranges.iter().map(|range| signed(of(range))).collect()
    };
    let args = [arg(queue), arg(column(|r| r.0)), arg(column(|r| r.1)), arg(column(|r| r.2))];
    COUNT_OF.read(&args, under).first().and_then(|row| row.only()).unwrap_or(0)
}

/// When the first visible segment of the partition from `from` on was written.
pub fn oldest_from(
    queue: i64,
    partition: &str,
    from: u64,
    under: &ActiveSnapshot,
) -> Option<Moment> {
    let keys = [
        (QUEUE_ID, Key::Is(Value::Int(queue))),
        (PARTITION, Key::Is(Value::Text(partition))),
        (ID, Key::Above(Value::Int(signed(from) - 1))),
    ];
    IN_ORDER
        .scan(&keys, ScanEnd::Start, under, |row| ControlFlow::Break(row.need::<At>(CREATED_AT).0))
}

/// When the first visible segment of the partition from `from` on was written that is not one of
/// `these`, which is asked for a segment's id and the number of its messages.
pub fn oldest_but(
    queue: i64,
    partition: &str,
    from: u64,
    these: impl Fn(u64, u16) -> bool,
    under: &ActiveSnapshot,
) -> Option<Moment> {
    let keys = [
        (QUEUE_ID, Key::Is(Value::Int(queue))),
        (PARTITION, Key::Is(Value::Text(partition))),
        (ID, Key::Above(Value::Int(signed(from) - 1))),
    ];
    IN_ORDER.scan(&keys, ScanEnd::Start, under, |row| {
        match these(unsigned(row.need(ID)), row.need::<i16>(N) as u16) {
            true => ControlFlow::Continue(()),
            false => ControlFlow::Break(row.need::<At>(CREATED_AT).0),
        }
    })
}

/// The highest transaction id in the index of the queue's log. Its row may be deleted, or not
/// committed: so this is one look-up, however many rows have been deleted at that end.
pub fn newest_xid(queue: i64) -> Option<u64> {
    let keys = [(QUEUE_ID, Key::Is(Value::Int(queue)))];
    NEWS.scan_any(&keys, ScanEnd::End, |row| ControlFlow::Break(unsigned(row.need(XID))))
}

/// Whether the queue has a visible message. Begins at the newest end of the log.
pub fn has_messages(queue: i64, under: &ActiveSnapshot) -> bool {
    let keys = [(QUEUE_ID, Key::Is(Value::Int(queue)))];
    NEWS.scan(&keys, ScanEnd::End, under, |_| ControlFlow::Break(())).is_some()
}

/// When the first segment of the queue, in the order of transactions from `floor` on, was written.
pub fn oldest(queue: i64, floor: u64, under: &ActiveSnapshot) -> Option<Moment> {
    let keys =
        [(QUEUE_ID, Key::Is(Value::Int(queue))), (XID, Key::Above(Value::Int(signed(floor) - 1)))];
    NEWS.scan(&keys, ScanEnd::Start, under, |row| ControlFlow::Break(row.need::<At>(CREATED_AT).0))
}

/// The transaction of the first segment of the queue, not below `floor`.
pub fn first_pusher(queue: i64, floor: u64, under: &ActiveSnapshot) -> Option<u64> {
    leap(queue, floor, &Holes::none(), under).pusher
}

/// The partitions of a queue that hold a visible segment, by name. Costs one look-up for each.
pub fn partitions(queue: i64, under: &ActiveSnapshot) -> Vec<String> {
    let mut found: Vec<String> = Vec::new();
    loop {
        let mut keys = vec![(QUEUE_ID, Key::Is(Value::Int(queue)))];
        keys.extend(found.last().map(|last| (PARTITION, Key::Above(Value::Text(last)))));
        let next = IN_ORDER
            .scan(&keys, ScanEnd::Start, under, |row| ControlFlow::Break(row.need(PARTITION)));
        match next {
            Some(partition) => found.push(partition),
            None => return found,
        }
    }
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
pub fn rows(queue: i64, partition: &str, under: &ActiveSnapshot) -> Vec<SegmentSummary> {
    let mut rows = Vec::new();
    let keys =
        [(QUEUE_ID, Key::Is(Value::Int(queue))), (PARTITION, Key::Is(Value::Text(partition)))];
    IN_ORDER.scan::<()>(&keys, ScanEnd::Start, under, |row| {
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

/// A segment as the search for work meets it.
pub struct News {
    pub segment: Arrived,
    pub created_at: Moment,
    /// The message is for this group alone.
    pub only_group: Option<i64>,
}

/// Up to `limit` segments of the queue after (xid, partition, segment), in that order; with
/// `within`, those of transaction `xid` alone.
pub fn news(
    queue: i64,
    xid: u64,
    key: &(String, u64),
    within: bool,
    limit: usize,
    under: &ActiveSnapshot,
) -> Vec<News> {
    let (queue, xid) = (Value::Int(queue), Value::Int(signed(xid)));
    let (partition, segment) = (Value::Text(&key.0), Value::Int(signed(key.1)));
    let read = |row: &Tuple| News {
        segment: Arrived {
            xid: unsigned(row.need(XID)),
            key: (row.need(PARTITION), unsigned(row.need(ID))),
            messages: u64::from(row.need::<i16>(N) as u16),
            bytes: row.stored_size(PAYLOADS),
        },
        created_at: row.need::<At>(CREATED_AT).0,
        only_group: row.get(ONLY_GROUP),
    };
    match within {
        true => NEWS.after(&[queue, xid], &[partition, segment], None, limit, under, read),
        false => NEWS.after(&[queue], &[xid, partition, segment], None, limit, under, read),
    }
}
