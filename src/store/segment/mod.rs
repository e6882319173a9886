//! `queen_mq.segment`: the log of messages.
//!
//! A push writes one row for each partition that it names, and more where its messages do not fit
//! into a page. No statement updates its messages. (A group that gets a new id is followed by
//! `only_group` of its replayed dead letters: [`super::replay::hand_over`].)
//!
//! **The push rule.** The pushing transaction first gets its transaction id, then draws the
//! segment's id from a sequence, then writes the row. So a row with a smaller id than a committed
//! one belongs to a transaction that had its transaction id before that commit. A reader of the log
//! relies on this: what may still appear below its position comes from transactions that it knows.

mod ends;
mod log;
mod low_end;
mod recent_pushes;
mod stored;
mod survey;

use pgrx::pg_sys;

pub use self::ends::{LastSegment, last_of, last_segments};
pub use self::log::{Log, LogPage, Pushers, name_of};
pub use self::low_end::{
    Gap, SegmentSummary, first_pusher, news_above, news_across, oldest, oldest_but, oldest_from,
    partitions, rows, still_excepted,
};
pub use self::recent_pushes::register;
pub use self::stored::{Contents, Stored, Unpacked};
pub use self::survey::{News, count_of, has_messages, newest_xid, news, position_before};
use super::{signed, unsigned};
use crate::pg::clock::{At, Moment};
use crate::pg::columns::arg;
use crate::pg::datum::Jsonb;
use crate::pg::insert::Inserting;
use crate::pg::new_array::array;
use crate::pg::scratch::Scratch;
use crate::pg::sequence;
use crate::pg::snapshot::ActiveSnapshot;
use crate::pg::spi::Statement;
use crate::pg::table::{Index, table};

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

/// What is new in a queue, and what a transaction has pushed.
pub(super) static NEWS: Index =
    Index { table: &SEGMENTS, name: c"segment_news", columns: &[QUEUE_ID, XID, PARTITION, ID] };
/// One partition, in order.
pub(super) static IN_ORDER: Index =
    Index { table: &SEGMENTS, name: c"segment_in_order", columns: &[QUEUE_ID, PARTITION, ID] };

static DRAW: Statement = Statement::new(
    "SELECT pg_catalog.nextval('queen_mq.segment_id') FROM pg_catalog.generate_series(1, $1)",
    &[pg_sys::INT4OID],
);

/// Draw `count` segment ids, ascending. By the push rule, the transaction must have its id.
pub fn draw_ids(count: i32) -> Vec<u64> {
    DRAW.run(&[arg(count)]).filter_map(|row| row.only()).map(unsigned).collect()
}

/// A segment to be written. Headers and transaction_ids: None where no message has one.
pub struct NewSegment<'a> {
    pub queue: i64,
    pub partition: &'a str,
    /// Drawn before; None: it is drawn with the insert. By the push rule, the transaction has its
    /// id in either case.
    pub id: Option<u64>,
    pub xid: u64,
    pub created_at: Moment,
    /// One for each message.
    pub payloads: Vec<Option<Jsonb>>,
    pub transaction_ids: Option<Vec<Option<&'a str>>>,
    pub headers: Option<Vec<Option<Jsonb>>>,
    /// The message is for this group alone: a dead letter that was replayed.
    pub only_group: Option<i64>,
}

/// Write one segment, as one statement; returns its id.
pub fn append(segment: NewSegment<'_>) -> u64 {
    let appending = Appending::begin();
    let id = appending.append(segment);
    appending.end();
    id
}

/// Segments that are written as one statement.
pub struct Appending(Inserting);

impl Appending {
    /// Begin the statement: open the table and its indexes, fire its statement triggers.
    pub fn begin() -> Self {
        Self(SEGMENTS.inserting())
    }

    /// Append one to the log; returns its id. The arrays of the row are copies of the messages.
    /// They are freed before the next segment, so a push of any size has one segment in memory
    /// twice.
    pub fn append(&self, segment: NewSegment<'_>) -> u64 {
        recent_pushes::note(segment.queue, segment.partition);
        let id = segment.id.unwrap_or_else(|| unsigned(sequence::draw(c"segment_id")));
        Scratch::new().run(|| {
            self.0.row(&[
                (QUEUE_ID, arg(segment.queue)),
                (ID, arg(signed(id))),
                (XID, arg(signed(segment.xid))),
                (CREATED_AT, arg(At(segment.created_at))),
                (N, arg(segment.payloads.len() as i16)),
                (PARTITION, arg(segment.partition)),
                (PAYLOADS, array(&segment.payloads)),
                (TRANSACTION_IDS, segment.transaction_ids.and_then(|ids| array(&ids))),
                (HEADERS, segment.headers.and_then(|headers| array(&headers))),
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

// A sequence from which no id has been drawn stands at its first value, too.
static LAST_DRAWN: Statement = Statement::new(
    "SELECT last_value - CASE WHEN is_called THEN 0 ELSE 1 END FROM queen_mq.segment_id",
    &[],
);

/// The last segment id that was drawn from the sequence: every push that draws its id later gets a
/// larger one.
pub fn last_drawn_id(under: &ActiveSnapshot) -> u64 {
    LAST_DRAWN.read(&[], under).first().and_then(|row| row.only()).map_or(0, unsigned)
}

static DELETE_ALL: Statement = Statement::new(
    "WITH gone AS (DELETE FROM queen_mq.segment WHERE queue_id = $1 RETURNING n),
          replays AS (DELETE FROM queen_mq.replay WHERE queue_id = $1)
     SELECT coalesce(sum(n), 0)::bigint FROM gone",
    &[pg_sys::INT8OID],
);

/// Delete the log of a queue, with the entries of its replays; returns the number of messages.
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

static DELETE_FREE: Statement = Statement::new(
    "DELETE FROM queen_mq.segment WHERE ctid = ANY (ARRAY(
         SELECT s.ctid FROM unnest($3) AS gone(id) CROSS JOIN LATERAL (
             SELECT ctid FROM queen_mq.segment
             WHERE queue_id = $1 AND partition = $2 AND id = gone.id
             OFFSET 0 FOR UPDATE SKIP LOCKED) AS s))",
    &[pg_sys::INT8OID, pg_sys::TEXTOID, pg_sys::INT8ARRAYOID],
);

/// Delete segments of one partition, but for those that another transaction has locked; returns how
/// many.
pub fn delete_free(queue: i64, partition: &str, ids: &[u64]) -> u64 {
    let ids: Vec<i64> = ids.iter().copied().map(signed).collect();
    DELETE_FREE.run(&[arg(queue), arg(partition), arg(ids)]).affected() as u64
}

/// The queues that have segments, or had some that are still in the index. Costs one look-up for
/// each.
pub fn queues() -> Vec<i64> {
    NEWS.leading_numbers(QUEUE_ID)
}

/// Delete segments of one partition, with the entries of their replays.
pub fn delete(queue: i64, partition: &str, ids: &[u64]) {
    let ids: Vec<i64> = ids.iter().copied().map(signed).collect();
    DELETE.run(&[arg(queue), arg(partition), arg(ids)]);
}
