//! When a message that recurs comes: at the times of a cron expression, or at even intervals.
//!
//! A cron expression names *local times*: what a clock on the wall shows. [`croner`] says which
//! they are; it knows no time zone here. A [`Zone`] tells what a clock there shows, and one rule
//! makes a moment of a local time:
//!
//! > An occurrence comes at the first moment at which the clock shows its local time or a later
//! > one.
//!
//! So a local time that the clock skips comes with the next one that it shows, and one that the
//! clock shows twice comes when it is shown first, and not again.
//!
//! Moments are in microseconds, and local times in seconds, both since 2000-01-01 00:00.

use std::fmt::Display;

use chrono::{DateTime, NaiveDateTime};
use croner::Cron;
use croner::parser::{CronParser, Seconds, Year};

const SECOND: i64 = 1_000_000;

/// 2000-01-01 in seconds since 1970-01-01.
const EPOCH: i64 = 946_684_800;

/// The clock of a time zone.
pub trait Zone {
    /// How it runs at this second, counted in UTC from 2000-01-01 00:00.
    fn offset_at(&self, second: i64) -> ZoneOffset;
}

/// How far a clock is ahead of UTC, in seconds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ZoneOffset {
    pub ahead: i64,
    /// The next second at which the clock is set. None: never.
    pub changes_at: Option<i64>,
}

/// Longer than a clock is ever ahead of UTC or behind, and than it is ever set back. PostgreSQL
/// accepts clocks that are up to seven days ahead or behind.
const FARTHEST: i64 = 15 * 86_400;

/// Set the clock of `zone` on, from one change to the next.
fn next_change(offset: ZoneOffset, second: i64) -> Option<i64> {
    offset.changes_at.filter(|change| *change > second)
}

/// The first moment, in seconds, at which the clock shows this local time or a later one.
fn first_shown(zone: &impl Zone, local: i64) -> i64 {
    let mut second = local.saturating_sub(FARTHEST);
    loop {
        let offset = zone.offset_at(second);
        let shown = second.max(local.saturating_sub(offset.ahead));
        match next_change(offset, second) {
            Some(change) if shown >= change => second = change,
            _ => return shown,
        }
    }
}

/// The first local time that the clock has not shown up to this second, nor passed.
fn first_ahead(zone: &impl Zone, now: i64) -> i64 {
    let mut second = now.saturating_sub(FARTHEST);
    let mut ahead = i64::MIN;
    loop {
        let offset = zone.offset_at(second);
        let end = next_change(offset, second).filter(|change| *change <= now);
        let end_of_view = end.unwrap_or(now.saturating_add(1));
        ahead = ahead.max(end_of_view.saturating_add(offset.ahead));
        match end {
            Some(change) => second = change,
            None => return ahead,
        }
    }
}

/// A schedule.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Schedule {
    Cron(Box<CronTimes>),
    /// Microseconds from one occurrence to the next; above 0.
    Interval(i64),
}

/// What has become due.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Occurrence {
    /// The newest moment that is not in the future.
    pub newest: i64,
    /// The first one in the future. None: there is none.
    pub next: Option<i64>,
}

impl Schedule {
    /// The first occurrence after `now`, which is when the schedule is set. None: there is none.
    pub fn first(&self, zone: &impl Zone, now: i64) -> Option<i64> {
        match self {
            Schedule::Cron(times) => times.after(zone, now),
            Schedule::Interval(length) => now.checked_add(*length),
        }
    }

    /// For an occurrence that was expected at `due`, which `now` has reached.
    pub fn occurrence(&self, zone: &impl Zone, due: i64, now: i64) -> Occurrence {
        match self {
            // The zone's rules may have changed since `due` was computed.
            Schedule::Cron(times) => Occurrence {
                newest: times.until(zone, now).unwrap_or(due).max(due).min(now),
                next: times.after(zone, now),
            },
            Schedule::Interval(length) => {
                let passed = now.saturating_sub(due).max(0) / (*length).max(1);
                let newest = due.saturating_add(passed.saturating_mul(*length));
                Occurrence { newest, next: newest.checked_add(*length) }
            }
        }
    }
}

/// The local times of a cron expression.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CronTimes(Cron);

const MONTHS: [&str; 12] =
    ["JAN", "FEB", "MAR", "APR", "MAY", "JUN", "JUL", "AUG", "SEP", "OCT", "NOV", "DEC"];
const WEEKDAYS: [&str; 7] = ["SUN", "MON", "TUE", "WED", "THU", "FRI", "SAT"];
/// The fields of a cron expression, each with the names that stand for numbers in it.
const FIELDS: [(&str, &[&str]); 5] = [
    ("minute", &[]),
    ("hour", &[]),
    ("day of the month", &[]),
    ("month", &MONTHS),
    ("day of the week", &WEEKDAYS),
];
const NICKNAMES: [&str; 6] = ["@hourly", "@daily", "@weekly", "@monthly", "@yearly", "@annually"];

/// Whether a text is meant to be a cron expression: it begins with `@` and a letter, or has five
/// fields that begin as those of an expression do.
pub fn is_like_cron(text: &str) -> bool {
    if let Some(nickname) = text.trim().strip_prefix('@') {
        return nickname.starts_with(|first: char| first.is_ascii_alphabetic());
    }
    let begins_well = |field: &str| {
        let number = field.split(['-', '/', ',']).next().unwrap_or_default();
        let is_name = MONTHS.iter().chain(&WEEKDAYS).any(|name| name.eq_ignore_ascii_case(number));
        is_name || field.starts_with('*') || number.bytes().all(|byte| byte.is_ascii_digit())
    };
    text.split_whitespace().count() == FIELDS.len() && text.split_whitespace().all(begins_well)
}

impl CronTimes {
    /// From an expression of five fields, or a nickname such as `@daily`. The error says what is
    /// wrong with it.
    pub fn parse(text: &str) -> Result<Self, String> {
        let text = text.trim();
        if text.starts_with('@') {
            if !NICKNAMES.iter().any(|name| name.eq_ignore_ascii_case(text)) {
                return Err("There is no such name.".into());
            }
        } else {
            let count = text.split_whitespace().count();
            if count != FIELDS.len() {
                return Err(format!("It has {count} fields."));
            }
            // croner accepts more: letters for the last day or the nearest weekday, names in any
            // field, an empty list.
            for (field, (what, names)) in text.split_whitespace().zip(FIELDS) {
                if !field.split(',').all(|item| is_item(item, names)) {
                    return Err(format!("The field for the {what} does not read."));
                }
            }
        }
        let parser =
            CronParser::builder().seconds(Seconds::Disallowed).year(Year::Disallowed).build();
        match parser.parse(text) {
            Ok(cron) => Ok(Self(cron)),
            Err(error) => Err(fault(parser, text).unwrap_or_else(|| sentence(&error))),
        }
    }

    /// The first occurrence after a moment. None: there is none.
    fn after(&self, zone: &impl Zone, now: i64) -> Option<i64> {
        let from = naive(first_ahead(zone, now.div_euclid(SECOND)))?;
        let local = self.0.find_next_occurrence(&from, true).ok()?;
        first_shown(zone, seconds(local)).checked_mul(SECOND)
    }

    /// The newest occurrence up to a moment. None: there is none.
    fn until(&self, zone: &impl Zone, now: i64) -> Option<i64> {
        let before = naive(first_ahead(zone, now.div_euclid(SECOND)))?;
        let local = self.0.find_previous_occurrence(&before, false).ok()?;
        first_shown(zone, seconds(local)).checked_mul(SECOND)
    }
}

/// Whether an item of a list reads as `*`, a value, or a range, each maybe with a step.
fn is_item(item: &str, names: &[&str]) -> bool {
    let is_number = |text: &str| {
        (1..=4).contains(&text.len()) && text.bytes().all(|byte| byte.is_ascii_digit())
    };
    let is_value =
        |text: &str| is_number(text) || names.iter().any(|name| name.eq_ignore_ascii_case(text));
    let (range, step) = match item.split_once('/') {
        Some((range, step)) => (range, Some(step)),
        None => (item, None),
    };
    let is_range = match range.split_once('-') {
        Some((first, last)) => is_value(first) && is_value(last),
        None => range == "*" || (is_value(range) && step.is_none()),
    };
    is_range && step.is_none_or(is_number)
}

/// What the parser says is wrong in the first field that it refuses by itself.
fn fault(parser: CronParser, text: &str) -> Option<String> {
    text.split_whitespace().zip(FIELDS).enumerate().find_map(|(at, (field, (what, _)))| {
        let mut alone = ["*"; FIELDS.len()];
        alone[at] = field;
        let error = parser.parse(&alone.join(" ")).err()?;
        Some(format!("In the field for the {what}: {}", sentence(&error)))
    })
}

/// What the parser says is wrong, as a sentence.
fn sentence(error: &impl Display) -> String {
    let text = error.to_string();
    let text = text.strip_prefix("Component error: ").unwrap_or(&text).trim_end_matches('.');
    format!("{text}.")
}

fn naive(seconds: i64) -> Option<NaiveDateTime> {
    DateTime::from_timestamp(seconds.checked_add(EPOCH)?, 0).map(|at| at.naive_utc())
}

fn seconds(local: NaiveDateTime) -> i64 {
    local.and_utc().timestamp() - EPOCH
}

#[cfg(test)]
mod tests;
