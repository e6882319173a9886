//! The server's clock, and its types in microseconds.

use std::ffi::CString;

use pgrx::PgTryBuilder;
use pgrx::datum::ToIsoString;
use pgrx::datum::{Interval, TimestampWithTimeZone};
use pgrx::{FromDatum, IntoDatum, pg_sys};

use crate::error::{Error, Result, cut};

/// Microseconds since 2000-01-01 UTC, as PostgreSQL stores a timestamptz.
pub type Moment = i64;

pub const SECOND: i64 = 1_000_000;
pub const HOUR: i64 = 3_600 * SECOND;
pub const DAY: i64 = 24 * HOUR;

/// `clock_timestamp()`.
pub fn now() -> Moment {
    // SAFETY: reads the clock.
    unsafe { pg_sys::GetCurrentTimestamp() }
}

/// `transaction_timestamp()`.
pub fn transaction_start() -> Moment {
    // SAFETY: reads the backend's memory.
    unsafe { pg_sys::GetCurrentTransactionStartTimestamp() }
}

/// A timestamptz as a parameter of a statement.
#[derive(Clone, Copy)]
pub struct At(pub Moment);

impl IntoDatum for At {
    fn into_datum(self) -> Option<pg_sys::Datum> {
        Some(pg_sys::Datum::from(self.0))
    }

    fn type_oid() -> pg_sys::Oid {
        pg_sys::TIMESTAMPTZOID
    }
}

impl FromDatum for At {
    unsafe fn from_polymorphic_datum(
        datum: pg_sys::Datum,
        is_null: bool,
        _: pg_sys::Oid,
    ) -> Option<Self> {
        (!is_null).then(|| At(datum.value() as i64))
    }
}

pub fn timestamp(moment: Moment) -> Option<TimestampWithTimeZone> {
    TimestampWithTimeZone::try_from(moment).ok()
}

pub fn moment(timestamp: TimestampWithTimeZone) -> Moment {
    timestamp.into()
}

/// An interval's length: a day is 24 hours, a month 30 days, as EXTRACT(EPOCH) has it. None if it
/// does not fit, which includes the infinite ones of PostgreSQL 17.
pub fn micros(interval: Interval) -> Option<i64> {
    let days = i64::from(interval.months()) * 30 + i64::from(interval.days());
    let infinite = interval.months() == i32::MAX || interval.months() == i32::MIN;
    (!infinite).then_some(())?;
    days.checked_mul(DAY)?.checked_add(interval.micros())
}

pub fn interval(micros: i64) -> Option<Interval> {
    Interval::new(0, 0, micros).ok()
}

/// An interval in ISO 8601, as PostgreSQL writes one with `IntervalStyle` iso_8601: `P1DT12H`.
pub fn iso_duration(interval: Interval) -> String {
    let (months, days, micros) = (interval.months(), interval.days(), interval.micros());
    let part = |value: i64, unit| if value == 0 { String::new() } else { format!("{value}{unit}") };
    let date = [(months / 12, 'Y'), (months % 12, 'M'), (days, 'D')];
    let date = date.map(|(value, unit)| part(value.into(), unit)).concat();
    let (minutes, rest) = (micros / (60 * SECOND), micros % (60 * SECOND));
    let seconds = match (rest / SECOND, (rest % SECOND).abs()) {
        (0, 0) => String::new(),
        (whole, 0) => format!("{whole}S"),
        (whole, fraction) => {
            let sign = if rest < 0 { "-" } else { "" };
            let fraction = format!("{fraction:06}");
            format!("{sign}{}.{}S", whole.abs(), fraction.trim_end_matches('0'))
        }
    };
    let time = [part(minutes / 60, 'H'), part(minutes % 60, 'M'), seconds].concat();
    match (date.is_empty(), time.is_empty()) {
        (true, true) => "PT0S".to_owned(),
        (_, true) => format!("P{date}"),
        (_, false) => format!("P{date}T{time}"),
    }
}

/// A moment and an interval later, by the calendar of the session's time zone. Beyond what a
/// timestamptz can hold it is an ERROR.
pub fn plus(at: Moment, months: i32, days: i32, micros: i64) -> Moment {
    let mut interval = pg_sys::Interval { time: micros, day: days, month: months };
    let args = [at.into_datum(), Some(pg_sys::Datum::from(&raw mut interval))];
    // SAFETY: the function takes a timestamptz and a pointer to an interval, which lives across
    // the call, and returns a timestamptz.
    let sum = unsafe { pgrx::direct_function_call(pg_sys::timestamptz_pl_interval, &args) };
    // It never returns NULL.
    sum.unwrap_or(at)
}

/// The first moment that a timestamptz can hold; what -infinity is taken for.
pub const EARLIEST: Moment = -211_813_488_000_000_000;

/// From text, as PostgreSQL reads a timestamptz.
pub fn parse(text: &str) -> Result<Moment> {
    // A longer text is no time, and PostgreSQL would quote all of it.
    let text = cut(text, 255);
    let read = || text.parse::<TimestampWithTimeZone>().ok().map(moment);
    let read = PgTryBuilder::new(read).catch_others(|_| None).execute();
    read.ok_or_else(|| {
        Error::invalid(
            format!("\"{text}\" is not a time"),
            "It does not read as a timestamptz.",
            "Use ISO 8601, for instance 2026-12-01T00:00:00Z.",
        )
    })
}

/// From text, as PostgreSQL reads an interval; None where it reads none.
pub fn parse_interval(text: &str) -> Option<Interval> {
    let text = CString::new(text).ok()?;
    let read = || {
        let arguments = [
            Some(pg_sys::Datum::from(text.as_ptr())),
            pg_sys::InvalidOid.into_datum(),
            (-1_i32).into_datum(),
        ];
        // SAFETY: the function takes a C string, which lives across the call, the OID of an
        // element type, which it does not use, and a type modifier. It returns an interval.
        unsafe { pgrx::direct_function_call(pg_sys::interval_in, &arguments) }
    };
    PgTryBuilder::new(read).catch_others(|_| None).execute()
}

/// As in an error's DETAIL: `2026-11-29 12:00:00.5+00`.
pub fn show(moment: Moment) -> String {
    // SAFETY: timestamptz_to_str fills a static buffer of the backend and takes any value.
    unsafe { std::ffi::CStr::from_ptr(pg_sys::timestamptz_to_str(moment)) }
        .to_string_lossy()
        .into_owned()
}

/// As in JSON: ISO 8601 with microseconds, UTC.
pub fn iso(moment: Moment) -> String {
    timestamp(moment)
        .and_then(|at| at.to_iso_string_with_timezone("UTC").ok())
        .unwrap_or_else(|| show(moment))
}

/// ISO 8601 in UTC, with a fraction of a second only where there is one: `2026-12-01T12:00:00Z`.
pub fn iso_utc(moment: Moment) -> String {
    let text = iso(moment);
    text.strip_suffix("+00:00").map_or(text.clone(), |local| format!("{local}Z"))
}
