//! `queen_mq.marker`: key/value markers.
//!
//! A write names the version of the row that it was decided on, and finds nothing where the row has
//! another version by then. The module `broker::marker` decides; everything here runs in an SPI
//! connection, and a value lives until that closes unless it is copied.

use std::ops::ControlFlow;

use pgrx::{IntoDatum, pg_sys};
use queen_engine::kv::{Found, Micros, Name};

use crate::pg::clock::{At, Moment};
use crate::pg::columns::{Columns, arg};
use crate::pg::datum::{Jsonb, Numeric};
use crate::pg::key::{Key, Value};
use crate::pg::result_context::ResultContext;
use crate::pg::scan::{ScanEnd, Tuple};
use crate::pg::snapshot::ActiveSnapshot;
use crate::pg::spi::{SqlRow, Statement};
use crate::pg::table::{Index, table};

table! {
    MARKERS = c"marker";
    NS: c"ns" TEXTOID,
    KEY: c"key" TEXTOID,
    VALUE: c"value" JSONBOID,
    VERSION: c"version" INT8OID,
    EXPIRES_AT: c"expires_at" TIMESTAMPTZOID,
    CREATED_AT: c"created_at" TIMESTAMPTZOID,
    UPDATED_AT: c"updated_at" TIMESTAMPTZOID,
}

pub(super) static EXPIRY: Index =
    Index { table: &MARKERS, name: c"marker_expiry", columns: &[EXPIRES_AT] };

/// The first moment, from this one on, at which a marker expires.
pub(super) fn next_expiry(from: Moment, under: &ActiveSnapshot) -> Option<Moment> {
    let keys = [(EXPIRES_AT, Key::Above(Value::Time(from.saturating_sub(1))))];
    let read = |row: &Tuple| ControlFlow::Break(row.need::<At>(EXPIRES_AT).0);
    EXPIRY.scan(&keys, ScanEnd::Start, under, read)
}

static FIND: Statement = Statement::new(
    "SELECT version, expires_at, value FROM queen_mq.marker WHERE ns = $1 AND key = $2",
    &[pg_sys::TEXTOID, pg_sys::TEXTOID],
);

static FIND_NUMBER: Statement = Statement::new(
    "SELECT version, expires_at, value,
            CASE pg_catalog.jsonb_typeof(value) WHEN 'number' THEN value::pg_catalog.numeric END
                AS number
       FROM queen_mq.marker WHERE ns = $1 AND key = $2",
    &[pg_sys::TEXTOID, pg_sys::TEXTOID],
);

static LIVE_VERSION: Statement = Statement::new(
    "SELECT version FROM queen_mq.marker
      WHERE ns = $1 AND key = $2 AND (expires_at IS NULL OR expires_at > $3)",
    &[pg_sys::TEXTOID, pg_sys::TEXTOID, pg_sys::TIMESTAMPTZOID],
);

/// ns, key, value, expires_at, now
static INSERT: Statement = Statement::new(
    "INSERT INTO queen_mq.marker (ns, key, value, version, expires_at, created_at, updated_at)
     VALUES ($1, $2, $3, pg_catalog.nextval('queen_mq.marker_version'), $4, $5, $5)
     ON CONFLICT (ns, key) DO NOTHING
     RETURNING version",
    &[
        pg_sys::TEXTOID,
        pg_sys::TEXTOID,
        pg_sys::JSONBOID,
        pg_sys::TIMESTAMPTZOID,
        pg_sys::TIMESTAMPTZOID,
    ],
);

/// ns, key, version, value, expires_at, now, created_at (NULL keeps)
static REPLACE: Statement = Statement::new(
    "UPDATE queen_mq.marker
        SET value = $4, version = pg_catalog.nextval('queen_mq.marker_version'), expires_at = $5,
            updated_at = $6, created_at = coalesce($7, created_at)
      WHERE ns = $1 AND key = $2 AND version = $3
     RETURNING version",
    &[
        pg_sys::TEXTOID,
        pg_sys::TEXTOID,
        pg_sys::INT8OID,
        pg_sys::JSONBOID,
        pg_sys::TIMESTAMPTZOID,
        pg_sys::TIMESTAMPTZOID,
        pg_sys::TIMESTAMPTZOID,
    ],
);

static REMOVE: Statement = Statement::new(
    "DELETE FROM queen_mq.marker WHERE ns = $1 AND key = $2 AND version = $3 RETURNING 1",
    &[pg_sys::TEXTOID, pg_sys::TEXTOID, pg_sys::INT8OID],
);

static LOCK_SHARED: Statement = Statement::new(
    "SELECT 1 FROM queen_mq.marker WHERE ns = $1 AND key = $2 AND version = $3 FOR SHARE",
    &[pg_sys::TEXTOID, pg_sys::TEXTOID, pg_sys::INT8OID],
);

static LOCK_FOR_WRITE: Statement = Statement::new(
    "SELECT 1 FROM queen_mq.marker WHERE ns = $1 AND key = $2 AND version = $3 FOR NO KEY UPDATE",
    &[pg_sys::TEXTOID, pg_sys::TEXTOID, pg_sys::INT8OID],
);

static GET: Statement = Statement::new(
    "SELECT value, version, expires_at, updated_at FROM queen_mq.marker
      WHERE ns = $1 AND key = $2 AND (expires_at IS NULL OR expires_at > $3)",
    &[pg_sys::TEXTOID, pg_sys::TEXTOID, pg_sys::TIMESTAMPTZOID],
);

static GET_MANY: Statement = Statement::new(
    "SELECT m.value, m.version, m.expires_at, m.updated_at
       FROM pg_catalog.unnest($2) WITH ORDINALITY AS wanted (key, place)
       LEFT JOIN queen_mq.marker AS m
         ON m.ns = $1 AND m.key = wanted.key AND (m.expires_at IS NULL OR m.expires_at > $3)
      ORDER BY wanted.place",
    &[pg_sys::TEXTOID, pg_sys::TEXTARRAYOID, pg_sys::TIMESTAMPTZOID],
);

/// Both ends are bounds of the primary key's scan: what lies outside the prefix is never visited.
static LIST: Statement = Statement::new(
    "SELECT value, version, expires_at, updated_at, key FROM queen_mq.marker
      WHERE ns = $1 AND key >= $2 AND key < $3 AND (expires_at IS NULL OR expires_at > $4)
      ORDER BY key LIMIT $5",
    &[pg_sys::TEXTOID, pg_sys::TEXTOID, pg_sys::TEXTOID, pg_sys::TIMESTAMPTZOID, pg_sys::INT8OID],
);

/// A row of the table, expired or not.
pub struct StoredMarker {
    pub found: Found<Numeric>,
    pub value: Jsonb,
}

/// The row of this name, without its value as a number.
pub fn find(name: Name) -> Option<StoredMarker> {
    let row = FIND.run(&[arg(name.ns()), arg(name.key())]).first()?;
    Some(stored(&row, None))
}

/// The row of this name, with its value as a number if it is one.
pub fn find_number(name: Name) -> Option<StoredMarker> {
    let row = FIND_NUMBER.run(&[arg(name.ns()), arg(name.key())]).first()?;
    Some(stored(&row, row.get(c"number").map(Numeric)))
}

fn stored(row: &SqlRow, number: Option<Numeric>) -> StoredMarker {
    let found = Found { version: row.need(VERSION), expires_at: row.get(EXPIRES_AT), number };
    StoredMarker { found, value: row.need(VALUE) }
}

/// The version of the marker of this name that is live at `now`.
pub fn live_version(name: Name, now: Micros, under: &ActiveSnapshot) -> Option<i64> {
    let rows = LIVE_VERSION.read(&[arg(name.ns()), arg(name.key()), arg(now)], under);
    rows.first().map(|row| row.need(VERSION))
}

/// Insert a row; returns its version, or None if there is one of this name. Waits for a transaction
/// that is inserting one.
pub fn insert(
    name: Name,
    value: Option<Jsonb>,
    expires_at: Option<Micros>,
    now: Micros,
) -> Option<i64> {
    let args = [arg(name.ns()), arg(name.key()), arg(value), arg(expires_at), arg(now)];
    INSERT.run(&args).first().map(|row| row.need(VERSION))
}

/// Overwrite the row that has this version; returns the new version, or None if there is no such
/// row. `created_at`: None keeps the row's. Waits for a transaction that has locked the row.
pub fn replace(
    name: Name,
    version: i64,
    value: Option<Jsonb>,
    expires_at: Option<Micros>,
    now: Micros,
    created_at: Option<Micros>,
) -> Option<i64> {
    let (ns, key) = (arg(name.ns()), arg(name.key()));
    let args = [ns, key, arg(version), arg(value), arg(expires_at), arg(now), arg(created_at)];
    REPLACE.run(&args).first().map(|row| row.need(VERSION))
}

/// Delete the row that has this version; false if there is none. Waits as `replace` does.
pub fn remove(name: Name, version: i64) -> bool {
    REMOVE.run(&[arg(name.ns()), arg(name.key()), arg(version)]).first().is_some()
}

/// Lock the row that has this version FOR SHARE, to the end of the transaction: other transactions
/// may lock it so, too, and those that would write it wait. False if there is none.
pub fn lock_shared(name: Name, version: i64) -> bool {
    LOCK_SHARED.run(&[arg(name.ns()), arg(name.key()), arg(version)]).first().is_some()
}

/// Lock the row that has this version FOR NO KEY UPDATE, as a write does. False if there is none.
pub fn lock_for_write(name: Name, version: i64) -> bool {
    LOCK_FOR_WRITE.run(&[arg(name.ns()), arg(name.key()), arg(version)]).first().is_some()
}

/// A marker that is live.
#[derive(Clone, Copy, Debug)]
pub struct LiveMarker {
    pub value: Jsonb,
    pub version: i64,
    /// None: never.
    pub expires_at: Option<Micros>,
    pub updated_at: Micros,
}

/// The marker of this name that is live at `now`, its value copied to `context`.
pub fn get(name: Name, now: Micros, context: ResultContext) -> Option<LiveMarker> {
    let row = GET.run(&[arg(name.ns()), arg(name.key()), arg(now)]).first()?;
    live(&row, context)
}

/// The markers of these keys that are live at `now`, one answer for each key, in the order of
/// `keys`. All are read under one snapshot; values are copied to `context`.
pub fn get_many(
    ns: &str,
    keys: Vec<&str>,
    now: Micros,
    context: ResultContext,
) -> Vec<Option<LiveMarker>> {
    GET_MANY.run(&[arg(ns), keys.into_datum(), arg(now)]).map(|row| live(&row, context)).collect()
}

/// The markers that are live at `now` from key `lower` to below `upper`, in byte order of their
/// keys; values are copied to `context`.
pub fn list(
    ns: &str,
    (lower, upper): &(String, String),
    max_rows: i64,
    now: Micros,
    context: ResultContext,
) -> Vec<(String, LiveMarker)> {
    let args = [arg(ns), arg(lower.as_str()), arg(upper.as_str()), arg(now), arg(max_rows)];
    LIST.run(&args).filter_map(|row| Some((row.need(KEY), live(&row, context)?))).collect()
}

/// None where no marker has the key: the row is the empty side of an outer join.
fn live(row: &SqlRow, context: ResultContext) -> Option<LiveMarker> {
    let value: Jsonb = row.get(VALUE)?;
    Some(LiveMarker {
        value: value.copied_to(context),
        version: row.need(VERSION),
        expires_at: row.get(EXPIRES_AT),
        updated_at: row.need(UPDATED_AT),
    })
}
