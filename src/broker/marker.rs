//! How a marker is written: put, deleted, incremented, checked; and how it is read.
//!
//! Called by `api::kv` and by [`crate::broker::bundle`], inside an SPI connection. The engine
//! decides on the row as it was just read; then the row is written on condition that it is still
//! that one. No two writes share a version, so the condition is one comparison:
//!
//! - There was no row: INSERT .. ON CONFLICT DO NOTHING. It waits for a transaction that is
//!   inserting this name, and inserts if that one rolls back.
//! - There was version v: UPDATE or DELETE .. WHERE version = v. It waits for a transaction that is
//!   changing the row, and looks at the version again when that one has committed.
//!
//! If the condition fails, the row is read and decided on anew, as often as it takes. So a write
//! that loses a race always answers with a row that it has read after it lost. In READ COMMITTED
//! the first round has locked the row, so a name that many write costs two rounds, not one for each
//! competitor. In REPEATABLE READ, PostgreSQL raises 40001 by itself wherever the condition would
//! fail; an answer without a write is compared with the newest state (see `confirm`).
//!
//! **Locks.** A write that is applied locks one row, to the end of the transaction. A refused one
//! locks nothing, draws no version and takes no transaction id, unless it lost a race. A
//! transaction that writes several markers goes in the order of [`Name`], or it may deadlock with
//! another one.

use pgrx::check_for_interrupts;
use queen_engine::kv::{self, Decision, Expect, Invalid, Micros, Name, NotApplied, Slot, Write};
use queen_engine::rights::Privilege;

use crate::broker::rights;
use crate::error::{Code, Error, Result};
use crate::pg::datum::{Jsonb, Numeric};
use crate::pg::relation;
use crate::pg::result_context::ResultContext;
use crate::pg::snapshot::{ActiveSnapshot, one_snapshot_per_transaction};
use crate::pg::transaction;
use crate::store::marker::{self, LiveMarker, MARKERS, StoredMarker};

/// A write on one marker: the rule, and what to store where the rule says so.
pub struct MarkerWrite {
    rule: Write<Numeric>,
    value: Option<Jsonb>,
    expires_at: Option<Micros>,
    locks_for_write: bool,
}

impl MarkerWrite {
    fn of(rule: Write<Numeric>, value: Option<Jsonb>, expires_at: Option<Micros>) -> Self {
        Self { rule, value, expires_at, locks_for_write: false }
    }

    /// Store a value. With `Expect::Absent`: unless there is a marker.
    pub fn put(value: Jsonb, expires_at: Option<Micros>, expect: Expect) -> Result<Self> {
        kv::check_value(value.size())?;
        Ok(Self::of(Write::Put { expect }, Some(value), expires_at))
    }

    /// Delete the marker.
    pub fn delete(expect: Expect) -> Self {
        Self::of(Write::Delete { expect }, None, None)
    }

    /// Add to a number. The expiry is that of a marker which the increment creates.
    pub fn incr(
        delta: Numeric,
        min: Option<Numeric>,
        max: Option<Numeric>,
        expires_at: Option<Micros>,
    ) -> Result<Self> {
        kv::check_incr(&delta, min.as_ref(), max.as_ref())?;
        Ok(Self::of(Write::Incr { delta, min, max }, None, expires_at))
    }

    /// Write nothing. A marker that is found as expected is locked FOR SHARE, so it stays so until
    /// the transaction ends. Absence can't be locked: it is true at the moment of the call.
    pub fn check(expect: Expect) -> Self {
        Self::of(Write::Check { expect }, None, None)
    }

    /// Whether it is none but a check.
    pub fn is_check(&self) -> bool {
        matches!(self.rule, Write::Check { .. })
    }

    /// Make a check lock the marker as a write does, for a transaction that writes it afterwards.
    /// Two transactions that shared the lock, and then both wrote, would wait for each other.
    pub fn lock_for_write(&mut self) {
        self.locks_for_write = true;
    }

    /// Carry it out, for a caller that may write in the namespace (42501). A refusal is an outcome,
    /// not an error; its value is copied to `context`.
    pub fn run(&self, name: Name, now: Micros, context: ResultContext) -> Result<MarkerOutcome> {
        rights::require(Privilege::Write, name.ns())?;
        let mut attempts = 0;
        loop {
            check_for_interrupts!();
            attempts += 1;
            if attempts > MANY_ATTEMPTS {
                relation::refuse_suppression(&MARKERS);
            }
            let row = match self.rule {
                Write::Incr { .. } => marker::find_number(name),
                _ => marker::find(name),
            };
            let decision = kv::decide(&self.rule, row.as_ref().map(|row| &row.found), now)
                .map_err(|invalid| refused(name, invalid))?;
            if let Some(outcome) = self.carry_out(name, decision, row, now)? {
                let value = outcome.value.map(|value| value.copied_to(context));
                return Ok(MarkerOutcome { value, ..outcome });
            }
        }
    }

    /// None: the row is no longer the one that was decided on.
    fn carry_out(
        &self,
        name: Name,
        decision: Decision<Numeric>,
        row: Option<StoredMarker>,
        now: Micros,
    ) -> Result<Option<MarkerOutcome>> {
        let version = row.as_ref().map(|row| row.found.version);
        let live = row.filter(|row| row.found.is_live(now));
        let live_version = live.as_ref().map(|row| row.found.version);
        let as_found = |reason: Option<NotApplied>| MarkerOutcome {
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
            Decision::Hold => self.lock(name, version, now)?.then(|| as_found(None)),
            Decision::Remove => {
                let is_removed = version.is_some_and(|version| marker::remove(name, version));
                is_removed.then(|| as_found(None))
            }
            Decision::Store(slot) => store(name, slot, version, self.value, self.expires_at, now),
            Decision::Count(slot, sum) => {
                let value = sum.to_jsonb()?;
                kv::check_value(value.size()).map_err(|invalid| refused(name, invalid))?;
                let expires_at = live.as_ref().map_or(self.expires_at, |row| row.found.expires_at);
                store(name, slot, version, Some(value), expires_at, now)
            }
        })
    }

    /// Lock the row, so that it stays as it is until the transaction ends. False: it is another one
    /// already.
    fn lock(&self, name: Name, version: Option<i64>, now: Micros) -> Result<bool> {
        if transaction::is_read_only() {
            // The transaction can't lock rows, and has no effects that the lock would guard.
            confirm(name, version, now)?;
            return Ok(true);
        }
        Ok(version.is_some_and(|version| match self.locks_for_write {
            true => marker::lock_for_write(name, version),
            false => marker::lock_shared(name, version),
        }))
    }
}

/// After so many rounds the write may not be losing races: a trigger may suppress its row.
const MANY_ATTEMPTS: u32 = 100;

/// Store a value where there was no row, or over the row of version `over`.
fn store(
    name: Name,
    slot: Slot,
    over: Option<i64>,
    value: Option<Jsonb>,
    expires_at: Option<Micros>,
    now: Micros,
) -> Option<MarkerOutcome> {
    let version = match over {
        None => marker::insert(name, value, expires_at, now)?,
        Some(over) => {
            // Over an expired marker the new one is new, with its own creation time.
            let created_at = (slot == Slot::Expired).then_some(now);
            marker::replace(name, over, value, expires_at, now, created_at)?
        }
    };
    Some(MarkerOutcome { applied: true, value, version: Some(version), reason: None })
}

/// An answer without a write stands on what was read. In READ COMMITTED that is the newest state. A
/// transaction with one snapshot may have read an old one. A write would be stopped with 40001 in
/// its place; so is this, if the newest live version is not the one `seen`.
fn confirm(name: Name, seen: Option<i64>, now: Micros) -> Result<()> {
    if !one_snapshot_per_transaction() {
        return Ok(());
    }
    let newest =
        ActiveSnapshot::latest_snapshot(|under| Ok(marker::live_version(name, now, under)))?;
    if newest == seen {
        return Ok(());
    }
    Err(Error::conflict(&format!("Marker {}", title(name))))
}

/// What a write came to: applied, or (with a reason) refused. The value and version are the new
/// ones of a put or an increment, those deleted or checked, or those of the live marker that
/// refused it.
#[derive(Clone, Copy, Debug)]
pub struct MarkerOutcome {
    pub applied: bool,
    pub value: Option<Jsonb>,
    pub version: Option<i64>,
    pub reason: Option<NotApplied>,
}

impl MarkerOutcome {
    /// QN010, for a required write that was refused.
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
        .hint(
            "The DETAIL shows the marker as it is. Without required, the function returns this as \
             a row, and the transaction goes on.",
        )
    }
}

fn title(name: Name) -> String {
    format!("\"{}\" in namespace \"{}\"", name.key(), name.ns())
}

/// 22023: an argument that this marker can't take.
fn refused(name: Name, invalid: Invalid) -> Error {
    let message = format!("marker {}: {}", title(name), invalid.message);
    Error::invalid(message, invalid.detail, invalid.hint)
}

impl From<Invalid> for Error {
    fn from(invalid: Invalid) -> Self {
        Error::invalid(invalid.message, invalid.detail, invalid.hint)
    }
}

/// One marker, for a caller that may read in its namespace (42501).
pub fn get(name: Name, now: Micros, context: ResultContext) -> Result<Option<LiveMarker>> {
    rights::require(Privilege::Read, name.ns())?;
    Ok(marker::get(name, now, context))
}

/// Several markers of a namespace, in the order of the keys, for a caller that may read there.
pub fn get_many(
    ns: &str,
    keys: Vec<&str>,
    now: Micros,
    context: ResultContext,
) -> Result<Vec<Option<LiveMarker>>> {
    rights::require(Privilege::Read, ns)?;
    Ok(marker::get_many(ns, keys, now, context))
}

/// The markers of a range of keys, up to `max_rows`, for a caller that may read in the namespace.
pub fn list(
    ns: &str,
    range: &(String, String),
    max_rows: i64,
    now: Micros,
    context: ResultContext,
) -> Result<Vec<(String, LiveMarker)>> {
    rights::require(Privilege::Read, ns)?;
    Ok(marker::list(ns, range, max_rows, now, context))
}
