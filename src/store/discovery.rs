//! `queen_mq.discovery`, and the three indexes that tell where there may be work.

use pgrx::pg_sys;
use queen_engine::codec::encode;
use queen_engine::discovery::Discovery;

use super::clock::{At, Moment};
use super::spi::{Statement, Under, arg, one_snapshot_per_transaction};
use super::{decode, signed, unsigned};
use crate::error::Result;

static NEWEST: Statement = Statement::new(
    "SELECT revision, state FROM queen_mq.discovery WHERE group_id = $1
     ORDER BY revision DESC LIMIT 1",
    &[pg_sys::INT8OID],
);

/// The newest state and its revision; None when the group was registered and never searched.
pub fn newest(group: i64, under: &Under) -> Result<Option<(i64, Discovery)>> {
    match NEWEST.read(&[arg(group)], under).first() {
        None => Ok(None),
        Some(row) => Ok(Some((row.need(1), read(row.need(2))?))),
    }
}

pub(super) fn read(bytes: Vec<u8>) -> Result<Discovery> {
    decode(&bytes, "the discovery state of a consumer group")
}

static APPEND: Statement = Statement::new(
    "INSERT INTO queen_mq.discovery (group_id, revision, state)
     VALUES ($1, pg_catalog.nextval('queen_mq.discovery_revision'), $2) RETURNING revision",
    &[pg_sys::INT8OID, pg_sys::BYTEAOID],
);
// Rows another transaction is deleting are skipped. The array is there so that the rows are
// picked once and not for each row looked at.
static PRUNE: Statement = Statement::new(
    "DELETE FROM queen_mq.discovery WHERE ctid = ANY (ARRAY(
         SELECT ctid FROM queen_mq.discovery
         WHERE group_id = $1 AND revision >= $2 AND revision < $3
         ORDER BY revision LIMIT 64 FOR UPDATE SKIP LOCKED))",
    &[pg_sys::INT8OID, pg_sys::INT8OID, pg_sys::INT8OID],
);

/// Write `state`, derived from the one of revision `base`, and remove what `base` superseded.
/// `state.pruned` is a low-water mark that keeps this away from the end where rows die. Returns
/// the revision written.
pub fn append(group: i64, base: i64, state: &mut Discovery) -> i64 {
    let from = state.pruned;
    state.pruned = base;
    let written = APPEND.run(&[arg(group), arg(encode(state))]).first();
    // In REPEATABLE READ a row that went in the meantime would be an error; the next one prunes.
    if !one_snapshot_per_transaction() {
        PRUNE.run(&[arg(group), arg(from), arg(base)]);
    }
    written.map_or(base, |row| row.need(1))
}

static ALL: Statement = Statement::new("SELECT state FROM queen_mq.discovery", &[]);

/// The highest transaction id that any state stands at.
pub fn highest_xid() -> Result<u64> {
    let mut highest = 0;
    for row in ALL.run(&[]) {
        let state = read(row.need(1))?;
        highest = highest.max(state.segments.xid).max(state.announced.xid);
    }
    Ok(highest)
}

/// A segment that tells of its partition.
pub struct News {
    pub xid: u64,
    pub partition: String,
    pub segment: u64,
    pub messages: u64,
}

// Messages from before the group's start_at do not count. Only groups that have one pay for the
// look into the heap that this takes; for the others the index has everything.
macro_rules! news {
    ($count:literal, $which:literal, $types:expr) => {
        Statement::new(
            concat!(
                "SELECT xid, partition, id, ",
                $count,
                " FROM queen_mq.segment WHERE queue_id = $1 AND ",
                $which,
                " ORDER BY xid, partition, id LIMIT $5"
            ),
            $types,
        )
    };
}
const KEY: &[pg_sys::Oid] =
    &[pg_sys::INT8OID, pg_sys::INT8OID, pg_sys::TEXTOID, pg_sys::INT8OID, pg_sys::INT8OID];
const KEY_SINCE: &[pg_sys::Oid] = &[
    pg_sys::INT8OID,
    pg_sys::INT8OID,
    pg_sys::TEXTOID,
    pg_sys::INT8OID,
    pg_sys::INT8OID,
    pg_sys::TIMESTAMPTZOID,
];
static NEWS: Statement = news!("n", "(xid, partition, id) > ($2, $3, $4)", KEY);
static NEWS_OF: Statement = news!("n", "xid = $2 AND (partition, id) > ($3, $4)", KEY);
static NEWS_SINCE: Statement = news!(
    "CASE WHEN created_at >= $6 THEN n ELSE 0::smallint END",
    "(xid, partition, id) > ($2, $3, $4)",
    KEY_SINCE
);
static NEWS_OF_SINCE: Statement = news!(
    "CASE WHEN created_at >= $6 THEN n ELSE 0::smallint END",
    "xid = $2 AND (partition, id) > ($3, $4)",
    KEY_SINCE
);

/// Which segments to look at for news.
pub struct NewsOf {
    pub queue: i64,
    pub start_at: Option<Moment>,
}

impl NewsOf {
    /// Segments of the queue after (xid, key), in order; or, `within`, those of that transaction.
    pub fn after(
        &self,
        xid: u64,
        key: &(String, u64),
        within: bool,
        limit: usize,
        under: &Under,
    ) -> Vec<News> {
        let mut args = vec![
            arg(self.queue),
            arg(signed(xid)),
            arg(key.0.as_str()),
            arg(signed(key.1)),
            arg(limit as i64),
        ];
        let statement = match (within, self.start_at) {
            (false, None) => &NEWS,
            (true, None) => &NEWS_OF,
            (false, Some(_)) => &NEWS_SINCE,
            (true, Some(_)) => &NEWS_OF_SINCE,
        };
        args.extend(self.start_at.map(|at| arg(At(at))));
        statement
            .read(&args, under)
            .map(|row| News {
                xid: unsigned(row.need(1)),
                partition: row.need(2),
                segment: unsigned(row.need(3)),
                messages: u64::from(row.need::<i16>(4) as u16),
            })
            .collect()
    }
}

/// An announcement or a moment. The partition is there if it concerns the cursor's newest state.
pub struct Hint<T> {
    pub at: T,
    pub cursor: u64,
    pub partition: Option<String>,
}

// A row that a later revision superseded says nothing: whoever wrote that one said what there is.
macro_rules! if_newest {
    () => {
        "CASE WHEN NOT EXISTS (SELECT FROM queen_mq.progress n
                               WHERE n.cursor_id = h.cursor_id AND n.revision > h.revision)
              THEN (SELECT c.partition FROM queen_mq.cursor c WHERE c.id = h.cursor_id) END"
    };
}

static ANNOUNCED: Statement = Statement::new(
    concat!(
        "SELECT h.announced_xid, h.cursor_id, ",
        if_newest!(),
        " FROM (SELECT announced_xid, cursor_id, revision FROM queen_mq.progress
               WHERE group_id = $1 AND announced_xid IS NOT NULL
                 AND (announced_xid, cursor_id) > ($2, $3)
               ORDER BY announced_xid, cursor_id LIMIT $4) AS h"
    ),
    &[pg_sys::INT8OID, pg_sys::INT8OID, pg_sys::INT8OID, pg_sys::INT8OID],
);
static ANNOUNCED_BY: Statement = Statement::new(
    concat!(
        "SELECT h.announced_xid, h.cursor_id, ",
        if_newest!(),
        " FROM (SELECT announced_xid, cursor_id, revision FROM queen_mq.progress
               WHERE group_id = $1 AND announced_xid = $2 AND cursor_id > $3
               ORDER BY announced_xid, cursor_id LIMIT $4) AS h"
    ),
    &[pg_sys::INT8OID, pg_sys::INT8OID, pg_sys::INT8OID, pg_sys::INT8OID],
);

/// Announcements to the group after (xid, cursor), in order; or, `within`, those of that
/// transaction.
pub fn announced(
    group: i64,
    xid: u64,
    cursor: u64,
    within: bool,
    limit: usize,
    under: &Under,
) -> Vec<Hint<u64>> {
    let statement = if within { &ANNOUNCED_BY } else { &ANNOUNCED };
    statement
        .read(&[arg(group), arg(signed(xid)), arg(signed(cursor)), arg(limit as i64)], under)
        .map(|row| Hint {
            at: unsigned(row.need(1)),
            cursor: unsigned(row.need(2)),
            partition: row.get(3),
        })
        .collect()
}

static DUE: Statement = Statement::new(
    concat!(
        "SELECT h.due_at, h.cursor_id, ",
        if_newest!(),
        " FROM (SELECT due_at, cursor_id, revision FROM queen_mq.progress
               WHERE group_id = $1 AND due_at IS NOT NULL
                 AND (due_at, cursor_id) > ($2, $3) AND due_at <= $4
               ORDER BY due_at, cursor_id LIMIT $5) AS h"
    ),
    &[
        pg_sys::INT8OID,
        pg_sys::TIMESTAMPTZOID,
        pg_sys::INT8OID,
        pg_sys::TIMESTAMPTZOID,
        pg_sys::INT8OID,
    ],
);

/// Moments of the group after `from` that have come by `now`, in order.
pub fn due(
    group: i64,
    from: (Moment, u64),
    now: Moment,
    limit: usize,
    under: &Under,
) -> Vec<Hint<Moment>> {
    DUE.read(
        &[arg(group), arg(At(from.0)), arg(signed(from.1)), arg(At(now)), arg(limit as i64)],
        under,
    )
    .map(|row| Hint {
        at: row.need::<At>(1).0,
        cursor: unsigned(row.need(2)),
        partition: row.get(3),
    })
    .collect()
}
