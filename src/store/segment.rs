//! `queen_mq.segment`: the log.

use pgrx::{FromDatum, pg_sys};
use queen_engine::holes::Holes;
use queen_engine::message::{MessageId, Spans};
use queen_engine::pop::{Found, Read};

use super::clock::{At, Moment};
use super::spi::{Arg, Row, Statement, Under, arg};
use super::{signed, unsigned};
use crate::datum::{Jsonb, JsonbArray, TextArray};
use crate::error::{Error, Result};

static DRAW: Statement = Statement::new(
    "SELECT pg_catalog.nextval('queen_mq.segment_id') FROM pg_catalog.generate_series(1, $1)",
    &[pg_sys::INT4OID],
);
static APPEND: Statement = Statement::new(
    "INSERT INTO queen_mq.segment
         (queue_id, id, xid, created_at, n, partition, payloads, transaction_ids, headers)
     VALUES ($1, coalesce($2, pg_catalog.nextval('queen_mq.segment_id')), $3, $4,
             cardinality($6)::smallint, $5, $6, $7, $8)
     RETURNING id",
    &[
        pg_sys::INT8OID,
        pg_sys::INT8OID,
        pg_sys::INT8OID,
        pg_sys::TIMESTAMPTZOID,
        pg_sys::TEXTOID,
        pg_sys::JSONBARRAYOID,
        pg_sys::TEXTARRAYOID,
        pg_sys::JSONBARRAYOID,
    ],
);

/// Draw `count` segment ids, ascending. The transaction must have its xid.
pub fn draw_ids(count: i32) -> Vec<u64> {
    DRAW.run(&[arg(count)]).map(|row| unsigned(row.need(1))).collect()
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
}

/// Write a segment; returns its id.
pub fn append(segment: NewSegment<'_>) -> Result<u64> {
    let written = APPEND.run(&[
        arg(segment.queue),
        segment.id.and_then(|id| arg(signed(id))),
        arg(signed(segment.xid)),
        arg(At(segment.created_at)),
        arg(segment.partition),
        arg(segment.payloads),
        segment.transaction_ids.and_then(arg),
        segment.headers.and_then(arg),
    ]);
    let row = written.first().ok_or_else(|| Error::corrupt("a segment was not written"))?;
    Ok(unsigned(row.need(1)))
}

// The two reads of a pop return the arrays as they lie in the table: nothing is unpacked before
// it is known to be wanted.
macro_rules! late {
    ($holes:literal, $xid:literal, $types:expr) => {
        Statement::new(
            concat!(
                "SELECT s.id, s.n, s.created_at, s.payloads, s.transaction_ids, s.headers FROM ",
                $holes,
                " CROSS JOIN LATERAL (
                     SELECT * FROM queen_mq.segment
                     WHERE queue_id = $1 AND ",
                $xid,
                " AND partition = $2 AND id > $3 AND id <= $4
                       AND ($6 IS NULL OR created_at >= $6)
                     ORDER BY id LIMIT $5) AS s
                 ORDER BY s.id LIMIT $5"
            ),
            $types,
        )
    };
}
// By transaction, so that it takes one descent of the index for each.
static LATE: Statement = late!(
    "unnest($7) AS hole(xid)",
    "xid = hole.xid",
    &[
        pg_sys::INT8OID,
        pg_sys::TEXTOID,
        pg_sys::INT8OID,
        pg_sys::INT8OID,
        pg_sys::INT8OID,
        pg_sys::TIMESTAMPTZOID,
        pg_sys::INT8ARRAYOID,
    ]
);
// When they are too many to be listed: after a pop in REPEATABLE READ with an old snapshot.
static LATE_IN_RANGES: Statement = late!(
    "unnest($7, $8) AS hole(low, high)",
    "xid >= hole.low AND xid < hole.high",
    &[
        pg_sys::INT8OID,
        pg_sys::TEXTOID,
        pg_sys::INT8OID,
        pg_sys::INT8OID,
        pg_sys::INT8OID,
        pg_sys::TIMESTAMPTZOID,
        pg_sys::INT8ARRAYOID,
        pg_sys::INT8ARRAYOID,
    ]
);
const LISTED: u64 = 4096;
static BEYOND: Statement = Statement::new(
    "SELECT id, n, created_at, payloads, transaction_ids, headers FROM queen_mq.segment
     WHERE queue_id = $1 AND partition = $2 AND id > $3 AND ($5 IS NULL OR created_at >= $5)
     ORDER BY id LIMIT $4",
    &[pg_sys::INT8OID, pg_sys::TEXTOID, pg_sys::INT8OID, pg_sys::INT8OID, pg_sys::TIMESTAMPTZOID],
);
static NAMED: Statement = Statement::new(
    "SELECT id, n, created_at, payloads, transaction_ids, headers FROM queen_mq.segment
     WHERE queue_id = $1 AND partition = $2 AND id = ANY ($3)",
    &[pg_sys::INT8OID, pg_sys::TEXTOID, pg_sys::INT8ARRAYOID],
);

/// A segment read from the log, its contents still packed.
#[derive(Clone, Copy)]
pub struct Stored {
    row: Row,
}

impl Stored {
    pub fn id(&self) -> u64 {
        unsigned(self.row.need(1))
    }

    pub fn found(&self) -> Found {
        Found { segment: self.id(), messages: self.row.need::<i16>(2) as u16 }
    }

    pub fn created_at(&self) -> Moment {
        self.row.need::<At>(3).0
    }

    /// Its messages, unpacked into the memory context that is current.
    pub fn unpack(&self) -> Unpacked {
        Unpacked {
            payloads: self.row.get(4).and_then(JsonbArray::elements).unwrap_or_default(),
            transaction_ids: self.row.get(5).and_then(TextArray::elements).unwrap_or_default(),
            headers: self.row.get(6).and_then(JsonbArray::elements).unwrap_or_default(),
        }
    }
}

/// The contents of a segment. Values live as long as the memory context they were unpacked in.
pub struct Unpacked {
    payloads: Vec<Arg>,
    transaction_ids: Vec<Arg>,
    headers: Vec<Arg>,
}

impl Unpacked {
    pub fn payload(&self, index: u16) -> Result<Jsonb> {
        let payload = self.payloads.get(usize::from(index)).copied().flatten();
        payload.map(Jsonb::new).ok_or_else(|| Error::corrupt("a segment is shorter than its count"))
    }

    pub fn transaction_id(&self, message: MessageId) -> String {
        let given = self.transaction_ids.get(usize::from(message.index())).copied().flatten();
        // SAFETY: an element of a text array.
        given
            .and_then(|datum| unsafe { String::from_datum(datum, false) })
            .unwrap_or_else(|| message.derived_transaction_id())
    }

    pub fn headers(&self, index: u16) -> Option<Jsonb> {
        self.headers.get(usize::from(index)).copied().flatten().map(Jsonb::new)
    }
}

/// A partition of a queue, for readers. `start_at`: older segments do not exist for the reader.
#[derive(Clone, Copy)]
pub struct Log<'a> {
    pub queue: i64,
    pub partition: &'a str,
    pub start_at: Option<Moment>,
}

impl Log<'_> {
    /// Carry out a pop's read, `limit` segments at most.
    pub fn read(&self, read: &Read, limit: usize, under: &Under) -> Vec<Stored> {
        let start_at = self.start_at.and_then(|at| arg(At(at)));
        let rows = match read {
            Read::Beyond { after } => BEYOND.read(
                &[
                    arg(self.queue),
                    arg(self.partition),
                    arg(signed(*after)),
                    arg(limit as i64),
                    start_at,
                ],
                under,
            ),
            Read::Late { from, after, upto } => {
                let mut args = vec![
                    arg(self.queue),
                    arg(self.partition),
                    arg(signed(*after)),
                    arg(signed(*upto)),
                    arg(limit as i64),
                    start_at,
                ];
                match from.listed(LISTED) {
                    Some(xids) => {
                        args.push(arg(xids.into_iter().map(signed).collect::<Vec<i64>>()));
                        LATE.read(&args, under)
                    }
                    None => {
                        args.extend(bounds(from));
                        LATE_IN_RANGES.read(&args, under)
                    }
                }
            }
        };
        rows.map(|row| Stored { row }).collect()
    }

    /// The segments of `spans`.
    pub fn segments(&self, spans: &Spans, under: &Under) -> Vec<Stored> {
        let mut ids: Vec<i64> = spans.iter().map(|span| signed(span.segment)).collect();
        ids.dedup();
        let rows = NAMED.read(&[arg(self.queue), arg(self.partition), arg(ids)], under);
        rows.map(|row| Stored { row }).collect()
    }
}

fn bounds(holes: &Holes) -> [Arg; 2] {
    let (low, high): (Vec<i64>, Vec<i64>) =
        holes.ranges().iter().map(|&(low, high)| (signed(low), signed(high))).unzip();
    [arg(low), arg(high)]
}

// A sequence that nobody has drawn from stands at its first value, too.
static LAST_DRAWN: Statement = Statement::new(
    "SELECT last_value - CASE WHEN is_called THEN 0 ELSE 1 END FROM queen_mq.segment_id",
    &[],
);

/// A segment id that no later push will fall below.
pub fn last_drawn_id(under: &Under) -> u64 {
    LAST_DRAWN.read(&[], under).first().map_or(0, |row| unsigned(row.need::<i64>(1)))
}

static FIRST_SINCE: Statement = Statement::new(
    "SELECT coalesce(min(id) FILTER (WHERE created_at >= $2) - 1, max(id), 0),
            coalesce(bool_or(created_at >= $2), false)
     FROM queen_mq.segment WHERE queue_id = $1",
    &[pg_sys::INT8OID, pg_sys::TIMESTAMPTZOID],
);

/// The largest id below which every visible segment of the queue is older than `since`, and
/// whether there is one that is not older.
pub fn position_before(queue: i64, since: Moment, under: &Under) -> (u64, bool) {
    FIRST_SINCE
        .read(&[arg(queue), arg(At(since))], under)
        .first()
        .map_or((0, false), |row| (unsigned(row.need::<i64>(1)), row.need(2)))
}

static OLDEST: Statement = Statement::new(
    "SELECT created_at FROM queen_mq.segment
     WHERE queue_id = $1 AND partition = $2 AND id >= $3 AND ($4 IS NULL OR created_at >= $4)
     ORDER BY id LIMIT 1",
    &[pg_sys::INT8OID, pg_sys::TEXTOID, pg_sys::INT8OID, pg_sys::TIMESTAMPTZOID],
);

impl Log<'_> {
    /// When the first visible segment with `from <= id` was written.
    pub fn oldest_from(&self, from: u64, under: &Under) -> Option<Moment> {
        let start_at = self.start_at.and_then(|at| arg(At(at)));
        let args = [arg(self.queue), arg(self.partition), arg(signed(from)), start_at];
        OLDEST.read(&args, under).first().map(|row| row.need::<At>(1).0)
    }
}
