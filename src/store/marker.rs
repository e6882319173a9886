//! The table `queen_mq.marker`: every statement on it, and how a write is carried out.
//!
//! A write is decided on the row as it was just read, and written on condition that the row is
//! still that one. Versions are unique, so "still that one" is one comparison:
//!
//! - nothing was there: INSERT .. ON CONFLICT DO NOTHING. It waits for whoever is inserting the
//!   same key, and inserts if that one rolls back.
//! - version v was there: UPDATE or DELETE .. WHERE version = v. It waits for whoever is changing
//!   the row, and looks at the version again when that one has committed.
//!
//! If the condition fails, the row is read and the case decided anew, as often as it takes: a
//! loser always answers with a row it has read after it lost. In READ COMMITTED a second round
//! finds the row locked by the first, so a hot key costs two rounds and not one per competitor.
//! In REPEATABLE READ PostgreSQL raises 40001 by itself wherever a condition would fail; what is
//! answered without a write is compared with the newest state (see `confirm`).
//!
//! A refused write takes no lock, no version and no transaction id, unless it lost a race.

use pgrx::{IntoDatum, check_for_interrupts, pg_sys};
use queen_engine::kv::{
    self, Decision, Expect, Found, Invalid, Micros, Name, NotApplied, Slot, Write,
};

use crate::error::{Code, Error, Result};
use crate::pg::datum::{Jsonb, Numeric, ResultContext};
use crate::pg::relation;
use crate::pg::spi::{self, ActiveSnapshot, Columns, SqlRow, Statement, arg};
use crate::pg::table::table;

table! {
    MARKERS = c"marker";
    VERSION: c"version" INT8OID,
    EXPIRES_AT: c"expires_at" TIMESTAMPTZOID,
    CREATED_AT: c"created_at" TIMESTAMPTZOID,
    UPDATED_AT: c"updated_at" TIMESTAMPTZOID,
    NS: c"ns" TEXTOID,
    KEY: c"key" TEXTOID,
    VALUE: c"value" JSONBOID,
}

static FIND: Statement = Statement::new(
    "SELECT version, expires_at, value FROM queen_mq.marker WHERE ns = $1 AND key = $2",
    &[pg_sys::TEXTOID, pg_sys::TEXTOID],
);

static FIND_NUMBER: Statement = Statement::new(
    "SELECT version, expires_at, value,
            CASE pg_catalog.jsonb_typeof(value) WHEN 'number' THEN value::pg_catalog.numeric END
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

/// FOR SHARE, so that any number of checkers pass side by side and every writer waits for them.
static HOLD: Statement = Statement::new(
    "SELECT 1 FROM queen_mq.marker WHERE ns = $1 AND key = $2 AND version = $3 FOR SHARE",
    &[pg_sys::TEXTOID, pg_sys::TEXTOID, pg_sys::INT8OID],
);

/// As a writer locks it: for who is going to be one.
static HOLD_TO_WRITE: Statement = Statement::new(
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

/// A write on one marker: the rule, and what to store where the rule says so.
pub struct KvOp {
    rule: Write<Numeric>,
    value: Option<Jsonb>,
    expires_at: Option<Micros>,
    to_write: bool,
}

impl KvOp {
    /// With `Expect::Absent`: put_if_absent.
    pub fn put(value: Jsonb, expires_at: Option<Micros>, expect: Expect) -> Result<Self> {
        kv::check_value(value.size())?;
        Ok(Self { rule: Write::Put { expect }, value: Some(value), expires_at, to_write: false })
    }

    pub fn delete(expect: Expect) -> Self {
        Self { rule: Write::Delete { expect }, value: None, expires_at: None, to_write: false }
    }

    /// The expiry counts on creation only.
    pub fn incr(
        delta: Numeric,
        min: Option<Numeric>,
        max: Option<Numeric>,
        expires_at: Option<Micros>,
    ) -> Result<Self> {
        kv::check_incr(&delta, min.as_ref(), max.as_ref())?;
        Ok(Self { rule: Write::Incr { delta, min, max }, value: None, expires_at, to_write: false })
    }

    /// Writes nothing. A marker found present stays as it is until the transaction ends; absence
    /// can't be held, and is true at the moment of the call.
    pub fn check(expect: Expect) -> Self {
        Self { rule: Write::Check { expect }, value: None, expires_at: None, to_write: false }
    }

    /// A check after which the same transaction writes the marker. Two that share the lock and then
    /// both want to write would wait for each other, so this one is not shared.
    pub fn hold_to_write(&mut self) {
        self.to_write = true;
    }
}

/// What a write came to: applied, or (with a reason) not. The value and version are the new ones
/// of a put or incr, those deleted or checked, or the winner's.
#[derive(Clone, Copy, Debug)]
pub struct KvOutcome {
    pub applied: bool,
    pub value: Option<Jsonb>,
    pub version: Option<i64>,
    pub reason: Option<NotApplied>,
}

/// A live marker.
#[derive(Clone, Copy, Debug)]
pub struct LiveMarker {
    pub value: Jsonb,
    pub version: i64,
    pub expires_at: Option<Micros>,
    pub updated_at: Micros,
}

/// After so many, a write is not just losing races.
const MANY_ATTEMPTS: u32 = 100;

/// Carry out one write, inside an SPI connection. A lost precondition is an outcome, not an error.
/// The outcome's value lives in `context`.
///
/// Locks at most the one row, until the transaction ends: several writes in one transaction go in
/// the order of [`Name`], or they deadlock with somebody else's.
pub fn apply(name: Name, op: &KvOp, now: Micros, context: ResultContext) -> Result<KvOutcome> {
    let mut attempts = 0;
    loop {
        check_for_interrupts!();
        attempts += 1;
        if attempts > MANY_ATTEMPTS {
            relation::refuse_suppression(&MARKERS);
        }
        let row = find(name, op);
        let decision = kv::decide(&op.rule, row.as_ref().map(|row| &row.found), now)
            .map_err(|invalid| refused(name, invalid))?;
        if let Some(outcome) = carry_out(name, op, decision, row, now)? {
            let value = outcome.value.map(|value| value.copied_to(context));
            return Ok(KvOutcome { value, ..outcome });
        }
    }
}

/// A row as it was read, with the value that the rules don't look at.
struct Read {
    found: Found<Numeric>,
    value: Jsonb,
}

fn find(name: Name, op: &KvOp) -> Option<Read> {
    let counts = matches!(op.rule, Write::Incr { .. });
    let statement = if counts { &FIND_NUMBER } else { &FIND };
    let row = statement.run(&[arg(name.ns()), arg(name.key())]).first()?;
    let number = if counts { row.get(4).map(Numeric) } else { None };
    let found = Found { version: row.need(1), expires_at: row.get(2), number };
    Some(Read { found, value: row.need(3) })
}

/// None: the row is no longer the one that was decided on.
fn carry_out(
    name: Name,
    op: &KvOp,
    decision: Decision<Numeric>,
    row: Option<Read>,
    now: Micros,
) -> Result<Option<KvOutcome>> {
    let version = row.as_ref().map(|row| row.found.version);
    let live = row.filter(|row| row.found.is_live(now));
    let live_version = live.as_ref().map(|row| row.found.version);
    let as_found = |reason: Option<NotApplied>| KvOutcome {
        applied: reason.is_none(),
        value: live.as_ref().map(|row| row.value),
        version: live_version,
        reason,
    };
    Ok(match decision {
        Decision::Refuse(reason) => {
            confirm(name, live_version, now)?;
            Some(as_found(Some(reason)))
        }
        Decision::Agree => {
            confirm(name, None, now)?;
            Some(as_found(None))
        }
        Decision::Hold => hold(name, op, version, now)?.then(|| as_found(None)),
        Decision::Remove => {
            let gone = REMOVE.run(&[arg(name.ns()), arg(name.key()), arg(version)]).first();
            gone.is_some().then(|| as_found(None))
        }
        Decision::Store(place) => store(name, place, version, op.value, op.expires_at, now),
        Decision::Count(place, sum) => {
            let value = sum.to_jsonb()?;
            kv::check_value(value.size()).map_err(|invalid| refused(name, invalid))?;
            let expires_at = live.as_ref().map_or(op.expires_at, |row| row.found.expires_at);
            store(name, place, version, Some(value), expires_at, now)
        }
    })
}

fn store(
    name: Name,
    place: Slot,
    over: Option<i64>,
    value: Option<Jsonb>,
    expires_at: Option<Micros>,
    now: Micros,
) -> Option<KvOutcome> {
    let (ns, key) = (arg(name.ns()), arg(name.key()));
    let written = match place {
        Slot::Empty => INSERT.run(&[ns, key, arg(value), arg(expires_at), arg(now)]),
        Slot::Expired | Slot::Live => {
            let born = (place == Slot::Expired).then_some(now);
            let args = [ns, key, arg(over), arg(value), arg(expires_at), arg(now), arg(born)];
            REPLACE.run(&args)
        }
    };
    let version = written.first()?.need(1);
    Some(KvOutcome { applied: true, value, version: Some(version), reason: None })
}

/// Keep the row from being changed until the transaction ends; false when it already was.
fn hold(name: Name, op: &KvOp, version: Option<i64>, now: Micros) -> Result<bool> {
    // SAFETY: a plain global of the backend.
    if unsafe { pg_sys::XactReadOnly } {
        // It could not lock the row, and has no effects that the lock would guard.
        confirm(name, version, now)?;
        return Ok(true);
    }
    let statement = if op.to_write { &HOLD_TO_WRITE } else { &HOLD };
    Ok(statement.run(&[arg(name.ns()), arg(name.key()), arg(version)]).first().is_some())
}

/// An answer without a write stands on what was read. In READ COMMITTED that is the newest state.
/// A transaction with one snapshot may be answering from long ago, and a writer in its place would
/// have been stopped: so is this.
fn confirm(name: Name, seen: Option<i64>, now: Micros) -> Result<()> {
    if !spi::one_snapshot_per_transaction() {
        return Ok(());
    }
    let newest: Option<i64> = ActiveSnapshot::latest_snapshot(|latest| {
        let rows = LIVE_VERSION.read(&[arg(name.ns()), arg(name.key()), arg(now)], latest);
        Ok(rows.first().map(|row| row.need(1)))
    })?;
    if newest == seen {
        return Ok(());
    }
    Err(Error::conflict(&format!("Marker {}", title(name))))
}

fn title(name: Name) -> String {
    format!("\"{}\" in namespace \"{}\"", name.key(), name.ns())
}

/// An argument that this marker can't take.
fn refused(name: Name, invalid: Invalid) -> Error {
    let message = format!("marker {}: {}", title(name), invalid.message);
    Error::invalid(message, invalid.detail, invalid.hint)
}

impl KvOutcome {
    /// QN010 for a required write that was not applied.
    pub fn precondition(&self, name: Name) -> Error {
        let reason = self.reason.map_or("", NotApplied::as_str);
        let (ns, key) = (name.ns(), name.key());
        let quoted = |text: &str| serde_json::Value::from(text).to_string();
        let detail = format!(
            r#"{{"ns": {}, "key": {}, "reason": {}, "version": {}, "value": {}}}"#,
            quoted(ns),
            quoted(key),
            quoted(reason),
            self.version.map_or_else(|| "null".to_owned(), |version| version.to_string()),
            self.value.map_or_else(|| "null".to_owned(), |value| value.to_text().to_owned()),
        );
        Error::new(
            Code::KvPrecondition,
            format!("precondition failed for marker {}: {reason}", title(name)),
        )
        .detail(detail)
        .hint("The detail shows the marker that is there. Without required, the same comes back as a row and the transaction goes on.")
    }
}

/// Read one marker, inside an SPI connection. The value lives in `context`.
pub fn get(name: Name, now: Micros, context: ResultContext) -> Option<LiveMarker> {
    let row = GET.run(&[arg(name.ns()), arg(name.key()), arg(now)]).first()?;
    held(&row, context)
}

/// Read markers under one snapshot, inside an SPI connection: an answer per key, in their order.
pub fn get_many(
    ns: &str,
    keys: Vec<&str>,
    now: Micros,
    context: ResultContext,
) -> Vec<Option<LiveMarker>> {
    GET_MANY.run(&[arg(ns), keys.into_datum(), arg(now)]).map(|row| held(&row, context)).collect()
}

/// The live markers of a range of keys, in byte order, inside an SPI connection.
pub fn list(
    ns: &str,
    (lower, upper): &(String, String),
    max_rows: i64,
    now: Micros,
    context: ResultContext,
) -> Vec<(String, LiveMarker)> {
    let args = [arg(ns), arg(lower.as_str()), arg(upper.as_str()), arg(now), arg(max_rows)];
    LIST.run(&args).filter_map(|row| Some((row.need(5), held(&row, context)?))).collect()
}

/// None where the row is the empty side of an outer join.
fn held(row: &SqlRow, context: ResultContext) -> Option<LiveMarker> {
    let value: Jsonb = row.get(1)?;
    Some(LiveMarker {
        value: value.copied_to(context),
        version: row.need(2),
        expires_at: row.get(3),
        updated_at: row.need(4),
    })
}

impl From<Invalid> for Error {
    fn from(invalid: Invalid) -> Self {
        Error::invalid(invalid.message, invalid.detail, invalid.hint)
    }
}
