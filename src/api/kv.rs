//! `queen_kv_…`: key/value markers, small facts with an expiry, written in the caller's transaction
//! and compared by version. How one is written is in [`crate::broker::marker`].
//!
//! All functions here share the following. A marker is named by a namespace
//! `^[a-z0-9][a-z0-9._-]{0,63}$` and a key of 1 to 512 bytes. Its value is any jsonb up to 65536
//! bytes as stored, JSON null included. The moment of a call is `clock_timestamp()` at its start. A
//! marker that expires at that moment or before does not exist, whether or not a sweep has deleted
//! its row. A ttl counts from that moment, by the calendar of the session's time zone. NULL for an
//! argument with a default means the default; NULL for any other, and any malformed argument, is
//! 22023.
//!
//! The writes return `(applied, value, version, reason)`: applied with the new value and version
//! (the deleted ones of a delete, the present ones of a check), or not applied with a reason and
//! the value and version of the live marker, NULL if there is none. With `required => true`, QN010
//! is raised in place of applied = false. A write waits for a transaction that is writing the
//! marker, and other transactions see it when it has committed. In REPEATABLE READ, a marker that
//! changed after the transaction's snapshot is 40001, never a wrong answer.

// pgrx wants the columns of a result spelled out where they are returned.
#![allow(clippy::type_complexity)]

use pgrx::datum::{Interval, TimestampWithTimeZone};
use pgrx::prelude::*;
use queen_engine::kv::{self, Expect, Micros, Name, Ttl};

use super::args;
use super::call::Call;
use crate::broker::marker::{self, MarkerWrite};
use crate::error::{Result, cut};
use crate::pg::allocator;
use crate::pg::arrays::TextArray;
use crate::pg::clock;
use crate::pg::datum::{Jsonb, Numeric};
use crate::pg::result_context::ResultContext;
use crate::pg::result_rows::TableIterator;
use crate::store::marker::LiveMarker;

extension_sql_file!(
    "../../sql/marker.sql",
    name = "marker",
    requires = [
        "tables",
        queen_kv_get,
        queen_kv_get_many,
        queen_kv_list,
        queen_kv_put,
        queen_kv_put_if_absent,
        queen_kv_delete,
        queen_kv_incr,
        queen_kv_check
    ]
);

/// One marker, by name.
///
/// Returns one row; `found` is false and value, version, expires_at, updated_at are NULL where no
/// live marker has that name. `expires_at` is NULL for a marker that is kept forever.
///
/// Errors: 22023. Reads the statement's snapshot, takes no lock and no transaction id; works on a
/// standby.
#[pg_extern]
fn queen_kv_get(
    call: Call,
    ns: Option<&str>,
    key: Option<&str>,
) -> TableIterator<
    'static,
    (
        name!(found, bool),
        name!(key, String),
        name!(value, Option<Jsonb>),
        name!(version, Option<i64>),
        name!(expires_at, Option<TimestampWithTimeZone>),
        name!(updated_at, Option<TimestampWithTimeZone>),
    ),
> {
    let context = ResultContext::here();
    TableIterator::once(call.answer(|| {
        let name = name(ns, key)?;
        let found = call.read(|| marker::get(name, clock::now(), context))?;
        Ok(marker_row(name.key(), found))
    }))
}

/// Several markers of one namespace, by name.
///
/// Returns the columns of `queen_kv_get`, one row for each element of `keys`, in their order. All
/// are read at one moment. An empty array gives no rows.
///
/// Errors: 22023, also for an array of more than one dimension and for NULL elements. Reads the
/// statement's snapshot, takes no lock and no transaction id; works on a standby.
#[pg_extern]
fn queen_kv_get_many(
    call: Call,
    ns: Option<&str>,
    keys: Option<TextArray>,
) -> TableIterator<
    'static,
    (
        name!(found, bool),
        name!(key, String),
        name!(value, Option<Jsonb>),
        name!(version, Option<i64>),
        name!(expires_at, Option<TimestampWithTimeZone>),
        name!(updated_at, Option<TimestampWithTimeZone>),
    ),
> {
    let context = ResultContext::here();
    TableIterator::new(call.answer(|| {
        let ns = args::required("ns", ns)?;
        kv::check_ns(ns)?;
        let keys = checked_keys(args::required("keys", keys)?)?;
        let names = keys.iter().map(String::as_str).collect();
        let found = call.read(|| marker::get_many(ns, names, clock::now(), context))?;
        Ok(keys.iter().zip(found).map(|(key, found)| marker_row(key, found)).collect::<Vec<_>>())
    }))
}

/// The live markers of a namespace, in byte order of their keys.
///
/// `prefix` is literal text, '' for all; `after` is the last key of the page before, itself not
/// returned again; `max_rows` is 1 to 1000.
///
/// Errors: 22023. Reads the statement's snapshot, takes no lock and no transaction id; works on a
/// standby. Visits only the part of the primary key that has the prefix.
#[pg_extern]
fn queen_kv_list(
    call: Call,
    ns: Option<&str>,
    prefix: default!(Option<&str>, "''"),
    after: default!(Option<&str>, "NULL"),
    max_rows: default!(Option<i32>, "100"),
) -> TableIterator<
    'static,
    (
        name!(key, String),
        name!(value, Jsonb),
        name!(version, i64),
        name!(expires_at, Option<TimestampWithTimeZone>),
        name!(updated_at, Option<TimestampWithTimeZone>),
    ),
> {
    let context = ResultContext::here();
    let markers = call.answer(|| {
        let ns = args::required("ns", ns)?;
        kv::check_ns(ns)?;
        // No key is longer than this, so the rest of the text decides nothing.
        let short = |text| cut(text, 2 * kv::MAX_KEY_BYTES);
        let range = kv::range(short(prefix.unwrap_or("")), after.map(short));
        let max_rows = kv::check_max_rows(max_rows.unwrap_or(100))?;
        call.read(|| marker::list(ns, &range, max_rows, clock::now(), context))
    });
    TableIterator::new(markers.into_iter().map(|(key, marker)| {
        let LiveMarker { value, version, expires_at, updated_at } = marker;
        let expires_at = expires_at.and_then(clock::timestamp);
        (key, value, version, expires_at, clock::timestamp(updated_at))
    }))
}

/// Write a marker, whatever is there, or (with `expect`) only over what is expected.
///
/// `expect`: 0, there must be none; a version, the marker must have exactly this one, and nothing
/// is created. Exactly one of `ttl` (greater than zero) and `forever => true`; it replaces the
/// expiry that was there. Over an expired marker the new one is new, with its own creation time.
///
/// Reasons: `exists` (expect 0), `absent` and `version` (expect a version). Errors: 22023, QN010.
#[allow(clippy::too_many_arguments)]
#[pg_extern]
fn queen_kv_put(
    call: Call,
    ns: Option<&str>,
    key: Option<&str>,
    value: Option<Jsonb>,
    ttl: default!(Option<Interval>, "NULL"),
    forever: default!(Option<bool>, "false"),
    expect: default!(Option<i64>, "NULL"),
    required: default!(Option<bool>, "false"),
) -> TableIterator<
    'static,
    (
        name!(applied, bool),
        name!(value, Option<Jsonb>),
        name!(version, Option<i64>),
        name!(reason, Option<&'static str>),
    ),
> {
    TableIterator::once(write(&call, ns, key, required, |now| {
        let expires_at = expiry(ttl, forever, now)?;
        MarkerWrite::put(args::required("value", value)?, expires_at, Expect::new(expect)?)
    }))
}

/// Write a marker unless there is one: of any number of concurrent calls for one key, one wins.
///
/// The others wait for the winner's transaction and then report `exists` with the winner's value
/// and version; if it rolls back, the next one wins. An expired marker does not count.
///
/// Reasons: `exists`. Errors: 22023, QN010.
#[pg_extern]
fn queen_kv_put_if_absent(
    call: Call,
    ns: Option<&str>,
    key: Option<&str>,
    value: Option<Jsonb>,
    ttl: default!(Option<Interval>, "NULL"),
    forever: default!(Option<bool>, "false"),
    required: default!(Option<bool>, "false"),
) -> TableIterator<
    'static,
    (
        name!(applied, bool),
        name!(value, Option<Jsonb>),
        name!(version, Option<i64>),
        name!(reason, Option<&'static str>),
    ),
> {
    TableIterator::once(write(&call, ns, key, required, |now| {
        let expires_at = expiry(ttl, forever, now)?;
        MarkerWrite::put(args::required("value", value)?, expires_at, Expect::Absent)
    }))
}

/// Delete a marker, or (with `expect`) only the version expected.
///
/// Applied, it returns what it deleted. `expect => 0` is applied, with NULLs, where there is none.
///
/// Reasons: `absent`, `version`, `exists` (expect 0). Errors: 22023, QN010.
#[pg_extern]
fn queen_kv_delete(
    call: Call,
    ns: Option<&str>,
    key: Option<&str>,
    expect: default!(Option<i64>, "NULL"),
    required: default!(Option<bool>, "false"),
) -> TableIterator<
    'static,
    (
        name!(applied, bool),
        name!(value, Option<Jsonb>),
        name!(version, Option<i64>),
        name!(reason, Option<&'static str>),
    ),
> {
    TableIterator::once(write(&call, ns, key, required, |_| {
        Ok(MarkerWrite::delete(Expect::new(expect)?))
    }))
}

/// Add to a marker that is a number; one that is not there counts as zero.
///
/// A sum outside `min` and `max` is refused, not clipped, also on creation. The arithmetic is
/// numeric's, exact. Exactly one of `ttl` and `forever => true` is said, but it counts on creation
/// only: an existing marker keeps its expiry.
///
/// Reasons: `limit`, `type` (the value is not a number). Errors: 22023 (also for NaN, infinite
/// numbers, min > max, and a sum that a marker can't hold), QN010.
#[pg_extern]
#[allow(clippy::too_many_arguments)]
fn queen_kv_incr(
    call: Call,
    ns: Option<&str>,
    key: Option<&str>,
    delta: default!(Option<AnyNumeric>, "1"),
    ttl: default!(Option<Interval>, "NULL"),
    forever: default!(Option<bool>, "false"),
    min: default!(Option<AnyNumeric>, "NULL"),
    max: default!(Option<AnyNumeric>, "NULL"),
    required: default!(Option<bool>, "false"),
) -> TableIterator<
    'static,
    (
        name!(applied, bool),
        name!(value, Option<Jsonb>),
        name!(version, Option<i64>),
        name!(reason, Option<&'static str>),
    ),
> {
    TableIterator::once(write(&call, ns, key, required, |now| {
        let expires_at = expiry(ttl, forever, now)?;
        let delta = Numeric(delta.unwrap_or_else(|| AnyNumeric::from(1)));
        MarkerWrite::incr(delta, min.map(Numeric), max.map(Numeric), expires_at)
    }))
}

/// Assert that a marker has exactly this version, or (expect 0) that there is none.
///
/// Writes nothing. A marker that was found as expected stays so until the transaction ends: other
/// transactions may check it too, but one that would write it waits. So two transactions that check
/// one marker and then both write it wait for each other (40P01 for one of them): write with
/// `expect` instead. Absence is true at the moment of the call; to claim it, use
/// `queen_kv_put_if_absent`.
///
/// Reasons: `exists`, `absent`, `version`. Errors: 22023, QN010.
#[pg_extern]
fn queen_kv_check(
    call: Call,
    ns: Option<&str>,
    key: Option<&str>,
    expect: Option<i64>,
    required: default!(Option<bool>, "false"),
) -> TableIterator<
    'static,
    (
        name!(applied, bool),
        name!(value, Option<Jsonb>),
        name!(version, Option<i64>),
        name!(reason, Option<&'static str>),
    ),
> {
    TableIterator::once(write(&call, ns, key, required, |_| {
        Ok(MarkerWrite::check(Expect::new(Some(args::required("expect", expect)?))?))
    }))
}

/// A row of a write: applied, value, version, reason.
type WriteRow = (bool, Option<Jsonb>, Option<i64>, Option<&'static str>);

/// Everything is checked before anything is read or written.
fn write(
    call: &Call,
    ns: Option<&str>,
    key: Option<&str>,
    required: Option<bool>,
    write: impl FnOnce(Micros) -> Result<MarkerWrite>,
) -> WriteRow {
    let context = ResultContext::here();
    call.answer(|| {
        let now = clock::now();
        let name = name(ns, key)?;
        let write = write(now)?;
        let outcome = call.write_if_needed(|| write.run(name, now, context))?;
        if required == Some(true) && !outcome.applied {
            return Err(outcome.precondition(name));
        }
        let reason = outcome.reason.map(kv::NotApplied::as_str);
        Ok((outcome.applied, outcome.value, outcome.version, reason))
    })
}

/// A row of a look-up: found, key, value, version, expires_at, updated_at.
type MarkerRow = (
    bool,
    String,
    Option<Jsonb>,
    Option<i64>,
    Option<TimestampWithTimeZone>,
    Option<TimestampWithTimeZone>,
);

fn marker_row(key: &str, found: Option<LiveMarker>) -> MarkerRow {
    let key = key.to_owned();
    let Some(marker) = found else { return (false, key, None, None, None, None) };
    let expires_at = marker.expires_at.and_then(clock::timestamp);
    let updated_at = clock::timestamp(marker.updated_at);
    (true, key, Some(marker.value), Some(marker.version), expires_at, updated_at)
}

fn name<'a>(ns: Option<&'a str>, key: Option<&'a str>) -> Result<Name<'a>> {
    Ok(Name::new(args::required("ns", ns)?, args::required("key", key)?)?)
}

/// The keys of an array, each of them a good one.
fn checked_keys(keys: TextArray) -> Result<Vec<String>> {
    let keys = args::elements("keys", keys, &args::KEYS)?;
    allocator::ensure(keys.len() * (kv::MAX_KEY_BYTES + 100))?;
    let keys: Option<Vec<String>> = keys.iter().collect();
    let keys = keys.ok_or_else(|| args::null_element("keys"))?;
    keys.iter().try_for_each(|key| kv::check_key(key))?;
    Ok(keys)
}

/// When a marker that is written now expires; None: never.
fn expiry(ttl: Option<Interval>, forever: Option<bool>, now: Micros) -> Result<Option<Micros>> {
    let ttl = ttl.map(|i| Ttl { months: i.months(), days: i.days(), micros: i.micros() });
    let end = |ttl: Ttl| clock::plus(now, ttl.months, ttl.days, ttl.micros);
    Ok(kv::expiry(ttl, forever.unwrap_or(false), now, end)?)
}
