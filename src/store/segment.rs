//! `queen_mq.segment`: the log.

use std::ops::ControlFlow;

use pgrx::{FromDatum, pg_sys};
use queen_engine::holes::Holes;
use queen_engine::message::{MessageId, Spans};
use queen_engine::pop::{FoundSegment, Read};
use queen_engine::tally::Arrived;

use super::{signed, unsigned};
use crate::error::{Error, Result};
use crate::pg::clock::{At, Moment};
use crate::pg::datum::{Array, Elements, Jsonb, JsonbArray, TextArray};
use crate::pg::insert::Inserting;
use crate::pg::scan::{Key, ScanEnd, StoredValue, Tuple, Value};
use crate::pg::scratch::Scratch;
use crate::pg::sequence;
use crate::pg::spi::{ActiveSnapshot, Columns, Statement, arg};
use crate::pg::table::{Column, Index, table};

table! {
    SEGMENTS = c"segment";
    QUEUE_ID: c"queue_id" INT8OID,
    ID: c"id" INT8OID,
    XID: c"xid" INT8OID,
    CREATED_AT: c"created_at" TIMESTAMPTZOID,
    N: c"n" INT2OID,
    PARTITION: c"partition" TEXTOID,
    PAYLOADS: c"payloads" JSONBARRAYOID,
    TRANSACTION_IDS: c"transaction_ids" TEXTARRAYOID,
    HEADERS: c"headers" JSONBARRAYOID,
    ONLY_GROUP: c"only_group" INT8OID,
}

static DRAW: Statement = Statement::new(
    "SELECT pg_catalog.nextval('queen_mq.segment_id') FROM pg_catalog.generate_series(1, $1)",
    &[pg_sys::INT4OID],
);

/// Draw `count` segment ids, ascending. The transaction must have its xid.
pub fn draw_ids(count: i32) -> Vec<u64> {
    DRAW.run(&[arg(count)]).filter_map(|row| row.only()).map(unsigned).collect()
}

/// A segment to be written. Headers and transaction_ids: None where no message has one.
pub struct NewSegment<'a> {
    pub queue: i64,
    pub partition: &'a str,
    /// Drawn before, or with the insert. Either way the transaction has its xid.
    pub id: Option<u64>,
    pub xid: u64,
    pub created_at: Moment,
    pub payloads: Vec<Jsonb>,
    pub transaction_ids: Option<Vec<Option<&'a str>>>,
    pub headers: Option<Vec<Option<Jsonb>>>,
    /// For this group alone.
    pub only_group: Option<i64>,
}

/// Write a segment; returns its id. The arrays are copies, freed again before the next segment: a
/// push of any size has one segment in memory twice.
pub fn append(segment: NewSegment<'_>) -> u64 {
    let appending = Appending::begin();
    let id = appending.append(segment);
    appending.end();
    id
}

/// Segments that are written as one statement.
pub struct Appending(Inserting);

impl Appending {
    pub fn begin() -> Self {
        Self(SEGMENTS.inserting())
    }

    /// Append one to the log; returns its id.
    pub fn append(&self, segment: NewSegment<'_>) -> u64 {
        let id = segment.id.unwrap_or_else(|| unsigned(sequence::draw(c"segment_id")));
        Scratch::new().run(|| {
            self.0.row(&[
                (QUEUE_ID, arg(segment.queue)),
                (ID, arg(signed(id))),
                (XID, arg(signed(segment.xid))),
                (CREATED_AT, arg(At(segment.created_at))),
                (N, arg(segment.payloads.len() as i16)),
                (PARTITION, arg(segment.partition)),
                (PAYLOADS, arg(segment.payloads)),
                (TRANSACTION_IDS, segment.transaction_ids.and_then(arg)),
                (HEADERS, segment.headers.and_then(arg)),
                (ONLY_GROUP, segment.only_group.and_then(arg)),
            ]);
        });
        id
    }

    /// End the statement, after the last segment.
    pub fn end(self) {
        self.0.end();
    }
}

static NEWS: Index =
    Index { table: &SEGMENTS, name: c"segment_news", columns: &[QUEUE_ID, XID, PARTITION, ID] };
static IN_ORDER: Index =
    Index { table: &SEGMENTS, name: c"segment_in_order", columns: &[QUEUE_ID, PARTITION, ID] };

/// A segment read from the log, its contents still packed: as they lie in the table.
#[derive(Clone, Copy)]
pub struct Stored {
    id: u64,
    xid: u64,
    messages: u16,
    created_at: Moment,
    /// Not for the reader.
    skip: bool,
    contents: Contents,
}

impl Stored {
    pub fn id(&self) -> u64 {
        self.id
    }

    pub fn xid(&self) -> u64 {
        self.xid
    }

    pub fn found(&self) -> FoundSegment {
        FoundSegment { segment: self.id, messages: self.messages, skip: self.skip }
    }

    pub fn created_at(&self) -> Moment {
        self.created_at
    }

    pub fn contents(&self) -> Contents {
        self.contents
    }
}

/// The messages of a segment as they lie in the table. Values that do not fit into a page lie
/// elsewhere, and this says where. So it takes a page at most, in the memory context it was read or
/// copied into.
///
/// A caller may unpack it as long as it holds a snapshot that was taken no later than the one it
/// was read with. A large value can be read whatever has become of its row. Only vacuum removes it,
/// once the transaction that deleted the row has ended before every snapshot in use. The row was
/// visible when it was read, so a transaction that deletes it had not ended then, nor when an
/// earlier snapshot was taken. The caller of an SQL function holds such a snapshot until the
/// function returns, in every isolation level, in PL/pgSQL and in read-only functions alike: no
/// value can be read without one. Meanwhile no statement rewrites or truncates the table: its lock
/// is held to the end of the transaction.
#[derive(Clone, Copy)]
pub struct Contents {
    payloads: StoredValue,
    transaction_ids: StoredValue,
    headers: StoredValue,
}

impl Contents {
    /// A copy in the current memory context.
    pub fn copied(self) -> Self {
        Self {
            payloads: self.payloads.copied(),
            transaction_ids: self.transaction_ids.copied(),
            headers: self.headers.copied(),
        }
    }

    /// Its messages, unpacked into the memory context that is current.
    pub fn unpack(self) -> Unpacked {
        let headers = self.headers.get().map(JsonbArray::elements);
        Unpacked {
            payloads: self.payloads.get().map_or_else(Elements::none, JsonbArray::elements),
            headers: headers.unwrap_or_else(Elements::none),
            names: self.names(),
        }
    }

    /// Unpack the transaction_ids alone, as long as `unpack` may be called.
    pub fn names(self) -> Names {
        Names(self.transaction_ids.get().map_or_else(Elements::none, TextArray::elements))
    }
}

/// The transaction_ids of a segment. They live as long as the memory context they were unpacked in.
pub struct Names(Elements);

impl Names {
    pub fn of(&self, message: MessageId) -> String {
        let given = self.0.get(usize::from(message.index()));
        // SAFETY: an element of a text array.
        given
            .and_then(|datum| unsafe { String::from_datum(datum, false) })
            .unwrap_or_else(|| message.derived_transaction_id())
    }
}

/// The contents of a segment. Values live as long as the memory context they were unpacked in.
pub struct Unpacked {
    payloads: Elements,
    headers: Elements,
    pub names: Names,
}

impl Unpacked {
    pub fn payload(&self, index: u16) -> Result<Jsonb> {
        let payload = self.payloads.get(usize::from(index));
        payload.map(Jsonb::new).ok_or_else(|| Error::corrupt("a segment is shorter than its count"))
    }

    pub fn headers(&self, index: u16) -> Option<Jsonb> {
        self.headers.get(usize::from(index)).map(Jsonb::new)
    }
}

/// A partition of a queue, for a reader.
#[derive(Clone, Copy)]
pub struct Log<'a> {
    pub queue: i64,
    pub partition: &'a str,
    /// Who reads; 0 where it does not matter.
    pub group: i64,
    /// Messages created before this moment are not for the reader.
    pub since: Option<Moment>,
    /// Messages created after this moment are not to be delivered yet.
    pub until: Option<Moment>,
    /// Without their contents.
    pub is_bare: bool,
}

/// What a read found.
pub struct LogPage {
    pub stored: Vec<Stored>,
    /// There is more, which is not to be delivered yet: its first segment and its transaction.
    pub held_back: Option<(u64, u64)>,
}

/// A read of late segments: as `Read::Late`, and the transactions that are still not visible.
struct Late<'a> {
    from: &'a Holes,
    running: &'a Holes,
    after: u64,
    upto: u64,
}

impl Log<'_> {
    /// Carry out a pop's read, `limit` segments at most. `running`: transactions not visible.
    pub fn read(
        &self,
        read: &Read,
        limit: usize,
        running: &Holes,
        under: &ActiveSnapshot,
    ) -> LogPage {
        let mut stored = match read {
            Read::Beyond { after } => self.beyond(*after, limit, under),
            Read::Late { from, after, upto } => {
                let late = Late { from, running, after: *after, upto: *upto };
                self.segments_of(&self.late(&late, limit, under), under)
            }
        };
        let young = |segment: &Stored| self.until.is_some_and(|until| segment.created_at > until);
        let ready = stored.iter().position(young).unwrap_or(stored.len());
        let held_back = stored.get(ready).map(|segment| (segment.id, segment.xid));
        stored.truncate(ready);
        LogPage { stored, held_back }
    }

    fn beyond(&self, after: u64, limit: usize, under: &ActiveSnapshot) -> Vec<Stored> {
        let mut rows = Vec::new();
        let keys = [
            (QUEUE_ID, Key::Is(Value::Int(self.queue))),
            (PARTITION, Key::Is(Value::Text(self.partition))),
            (ID, Key::Above(Value::Int(signed(after)))),
        ];
        IN_ORDER.scan::<()>(&keys, ScanEnd::Start, under, |row| {
            rows.push(self.stored(row));
            if rows.len() < limit { ControlFlow::Continue(()) } else { ControlFlow::Break(()) }
        });
        rows
    }

    fn stored(&self, row: &Tuple) -> Stored {
        let created_at = row.need::<At>(CREATED_AT).0;
        let is_old = self.since.is_some_and(|since| created_at < since);
        let is_others = row.get::<i64>(ONLY_GROUP).is_some_and(|only| only != self.group);
        Stored {
            id: unsigned(row.need(ID)),
            xid: unsigned(row.need(XID)),
            messages: row.need::<i16>(N) as u16,
            created_at,
            skip: is_old || is_others,
            contents: Contents {
                payloads: self.hold(row, PAYLOADS),
                transaction_ids: self.hold(row, TRANSACTION_IDS),
                headers: self.hold(row, HEADERS),
            },
        }
    }

    fn hold(&self, row: &Tuple, column: Column) -> StoredValue {
        if self.is_bare { StoredValue::nothing() } else { StoredValue::of(row, column) }
    }

    /// The same, read without the contents of messages.
    pub fn bare(self) -> Self {
        Self { is_bare: true, ..self }
    }

    /// The ids of late segments, in order. Most transactions of `from` have pushed nothing, being
    /// consumers: from one that has pushed the scan leaps to the next.
    fn late(&self, late: &Late<'_>, limit: usize, under: &ActiveSnapshot) -> Vec<i64> {
        let Late { from, running, .. } = late;
        let mut ids = Vec::new();
        let mut next = from.first_from(0);
        while let Some(hole) = next {
            let leap = leap(self.queue, hole, running, under);
            next = from.first_from(leap.clear_below);
            if let Some(xid) = leap.pusher {
                if next == Some(xid) {
                    self.late_of(xid, late, limit, under, &mut ids);
                }
                next = from.first_from(xid + 1);
            }
            pgrx::check_for_interrupts!();
        }
        ids.sort_unstable();
        ids.truncate(limit);
        ids
    }

    fn late_of(
        &self,
        xid: u64,
        late: &Late<'_>,
        limit: usize,
        under: &ActiveSnapshot,
        ids: &mut Vec<i64>,
    ) {
        let keys = [
            (QUEUE_ID, Key::Is(Value::Int(self.queue))),
            (XID, Key::Is(Value::Int(signed(xid)))),
            (PARTITION, Key::Is(Value::Text(self.partition))),
            (ID, Key::Above(Value::Int(signed(late.after)))),
            (ID, Key::UpTo(Value::Int(signed(late.upto)))),
        ];
        let enough = ids.len() + limit;
        NEWS.scan::<()>(&keys, ScanEnd::Start, under, |row| {
            ids.push(row.need(ID));
            if ids.len() < enough { ControlFlow::Continue(()) } else { ControlFlow::Break(()) }
        });
    }

    /// The segments of `spans`.
    pub fn segments(&self, spans: &Spans, under: &ActiveSnapshot) -> Vec<Stored> {
        let mut ids: Vec<i64> = spans.iter().map(|span| signed(span.segment)).collect();
        ids.dedup();
        self.segments_of(&ids, under)
    }

    fn segments_of(&self, ids: &[i64], under: &ActiveSnapshot) -> Vec<Stored> {
        let find = |id: &i64| {
            let key = [Value::Int(self.queue), Value::Text(self.partition), Value::Int(*id)];
            IN_ORDER.end(&key, ScanEnd::Start, under, |row| self.stored(row))
        };
        ids.iter().filter_map(find).collect()
    }
}

/// How far one look for pushers came.
pub struct Leap {
    pub pusher: Option<u64>,
    /// Nobody else has pushed from where the look began to here.
    pub clear_below: u64,
}

/// Look for the first transaction, not below `xid`, that has pushed to the queue. The look ends at
/// the next of `running`, not to step over all that a bulk load has written so far.
pub fn leap(queue: i64, xid: u64, running: &Holes, under: &ActiveSnapshot) -> Leap {
    let end = running.first_from(xid);
    let mut keys = vec![
        (QUEUE_ID, Key::Is(Value::Int(queue))),
        (XID, Key::Above(Value::Int(signed(xid) - 1))),
    ];
    keys.extend(end.map(|end| (XID, Key::UpTo(Value::Int(signed(end) - 1)))));
    let read = |row: &Tuple| ControlFlow::Break(unsigned(row.need(XID)));
    let pusher = NEWS.scan(&keys, ScanEnd::Start, under, read);
    Leap { pusher, clear_below: pusher.or(end).unwrap_or(u64::MAX) }
}

// A sequence that nobody has drawn from stands at its first value, too.
static LAST_DRAWN: Statement = Statement::new(
    "SELECT last_value - CASE WHEN is_called THEN 0 ELSE 1 END FROM queen_mq.segment_id",
    &[],
);

/// A segment id that no later push will fall below.
pub fn last_drawn_id(under: &ActiveSnapshot) -> u64 {
    LAST_DRAWN.read(&[], under).first().and_then(|row| row.only()).map_or(0, unsigned)
}

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

/// The same of the first that is not, by its id and the number of its messages, one of `these`.
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

/// The highest transaction id in the index of the queue's log, be its row deleted or not committed.
/// So this is one look-up, however many rows have been deleted at that end.
pub fn newest_xid(queue: i64) -> Option<u64> {
    let keys = [(QUEUE_ID, Key::Is(Value::Int(queue)))];
    NEWS.scan_any(&keys, ScanEnd::End, |row| ControlFlow::Break(unsigned(row.need(XID))))
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

/// The partitions of a queue, one look-up each.
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

static DELETE_ALL: Statement = Statement::new(
    "WITH gone AS (DELETE FROM queen_mq.segment WHERE queue_id = $1 RETURNING n),
          replays AS (DELETE FROM queen_mq.replay WHERE queue_id = $1)
     SELECT coalesce(sum(n), 0)::bigint FROM gone",
    &[pg_sys::INT8OID],
);

/// Remove the log of a queue; returns the number of messages.
pub fn delete_all(queue: i64) -> i64 {
    DELETE_ALL.run(&[arg(queue)]).first().and_then(|row| row.only()).unwrap_or(0)
}

static DELETE: Statement = Statement::new(
    "WITH replays AS (DELETE FROM queen_mq.replay WHERE ctid = ANY (ARRAY(
         SELECT r.ctid FROM unnest($3) AS gone(id) CROSS JOIN LATERAL (
             SELECT ctid FROM queen_mq.replay
             WHERE queue_id = $1 AND segment_id = gone.id OFFSET 0) AS r)))
     DELETE FROM queen_mq.segment WHERE ctid = ANY (ARRAY(
         SELECT s.ctid FROM unnest($3) AS gone(id) CROSS JOIN LATERAL (
             SELECT ctid FROM queen_mq.segment
             WHERE queue_id = $1 AND partition = $2 AND id = gone.id OFFSET 0) AS s))",
    &[pg_sys::INT8OID, pg_sys::TEXTOID, pg_sys::INT8ARRAYOID],
);

/// Remove segments of one partition.
pub fn delete(queue: i64, partition: &str, ids: &[u64]) {
    let ids: Vec<i64> = ids.iter().copied().map(signed).collect();
    DELETE.run(&[arg(queue), arg(partition), arg(ids)]);
}

/// A segment without its contents.
pub struct Row {
    pub id: u64,
    pub xid: u64,
    pub created_at: Moment,
    pub messages: u64,
}

/// Every visible segment of a partition, in order.
pub fn rows(queue: i64, partition: &str, under: &ActiveSnapshot) -> Vec<Row> {
    let mut rows = Vec::new();
    let keys =
        [(QUEUE_ID, Key::Is(Value::Int(queue))), (PARTITION, Key::Is(Value::Text(partition)))];
    IN_ORDER.scan::<()>(&keys, ScanEnd::Start, under, |row| {
        rows.push(Row {
            id: unsigned(row.need(ID)),
            xid: unsigned(row.need(XID)),
            created_at: row.need::<At>(CREATED_AT).0,
            messages: u64::from(row.need::<i16>(N) as u16),
        });
        ControlFlow::Continue(())
    });
    rows
}

/// A segment that tells of its partition.
pub struct News {
    pub segment: Arrived,
    pub created_at: Moment,
    /// For this group alone.
    pub only_group: Option<i64>,
}

/// Segments of the queue after (xid, key), in order; or, `within`, those of that transaction.
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
