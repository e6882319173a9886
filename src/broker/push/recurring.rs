//! When messages that recur come. What a schedule means is in [`queen_engine::schedule`]; the time
//! zones are those of PostgreSQL.
//!
//! [`crate::broker::timer`] puts a message that recurs into the table of timers, and
//! [`super::delayed`] delivers each occurrence.

use queen_engine::schedule::{CronTimes, Schedule, Zone, ZoneOffset, is_like_cron};

use crate::error::{ClientNotice, Error, Result, cut};
use crate::pg::clock::{self, DAY, Moment, SECOND};
use crate::pg::time_zone::TimeZone;
use crate::store::timer::{Due, Recurrence};

/// A recurring message does not come less often than this: 100 years of 365 days.
const LONGEST: i64 = 36_500 * DAY;

impl Zone for TimeZone {
    fn offset_at(&self, second: i64) -> ZoneOffset {
        let (ahead, changes_at) = TimeZone::offset_at(*self, second);
        ZoneOffset { ahead, changes_at }
    }
}

/// When a message comes.
pub struct Times {
    recurrence: Recurrence,
    schedule: Schedule,
    zone: TimeZone,
}

impl Times {
    /// From what a user has written. 22023 where one of the two does not read.
    pub fn parse(schedule: &str, time_zone: &str) -> Result<Self> {
        let (schedule_text, time_zone_text) = (schedule.to_owned(), time_zone.to_owned());
        let zone = TimeZone::named(time_zone).ok_or_else(|| unknown_zone(time_zone))?;
        let (schedule, every) = match is_like_cron(schedule) {
            true => (cron(schedule)?, None),
            false => {
                let every = clock::parse_interval(schedule);
                let length = every.and_then(clock::micros);
                (Schedule::Interval(checked_length(schedule, length)?), every)
            }
        };
        let recurrence = Recurrence { schedule: schedule_text, time_zone: time_zone_text, every };
        Ok(Self { recurrence, schedule, zone })
    }

    /// As the table of timers has it.
    fn stored(recurrence: &Recurrence) -> Result<Self> {
        match recurrence.every.and_then(clock::micros).filter(|length| *length > 0) {
            None => Self::parse(&recurrence.schedule, &recurrence.time_zone),
            Some(length) => {
                let name = &recurrence.time_zone;
                let zone = TimeZone::named(name).ok_or_else(|| unknown_zone(name))?;
                let schedule = Schedule::Interval(length);
                Ok(Self { recurrence: recurrence.clone(), schedule, zone })
            }
        }
    }

    pub fn recurrence(&self) -> &Recurrence {
        &self.recurrence
    }

    /// The first moment after `now`. 22023 where there is none.
    pub fn first(&self, now: Moment) -> Result<Moment> {
        self.schedule.first(&self.zone, now).ok_or_else(|| {
            Error::invalid(
                format!("the schedule \"{}\" never comes", self.recurrence.schedule),
                "No day of the calendar is as the schedule has it.",
                "Name a day that there is.",
            )
        })
    }
}

fn cron(text: &str) -> Result<Schedule> {
    match CronTimes::parse(text) {
        Ok(times) => Ok(Schedule::Cron(Box::new(times))),
        Err(why) => Err(Error::invalid(
            format!("the schedule \"{}\" is not a cron expression", cut(text, 255)),
            why,
            "Use five fields (minute, hour, day of the month, month, day of the week), each with \
             *, numbers, lists (1,15), ranges (1-5) and steps (*/10); or @hourly, @daily, \
             @weekly, @monthly or @yearly.",
        )),
    }
}

fn checked_length(text: &str, length: Option<i64>) -> Result<i64> {
    match length {
        Some(length) if (SECOND..=LONGEST).contains(&length) => Ok(length),
        Some(length) => Err(Error::invalid(
            "the interval of the schedule is out of range",
            format!("It is {} seconds.", length as f64 / 1e6),
            "Pass 1 second to 100 years.",
        )),
        None => Err(Error::invalid(
            format!("the schedule \"{}\" does not read", cut(text, 255)),
            "It is neither a cron expression of five fields nor an interval.",
            "Use a cron expression, for instance '30 4 * * *', or an interval, for instance '15 \
             minutes'.",
        )),
    }
}

fn unknown_zone(name: &str) -> Error {
    Error::invalid(
        format!("time zone \"{}\" is not recognized", cut(name, 255)),
        "The setting TimeZone does not take it either.",
        "Use a name of the view pg_timezone_names, for instance 'Europe/Berlin'.",
    )
}

/// What becomes of a message that recurs and is due.
pub struct Upcoming {
    /// The newest moment at which it was to come: it comes for this one.
    pub newest: Moment,
    pub next: Moment,
}

impl Upcoming {
    /// At `now`. `title` names the message, for a warning: where its schedule does not read any
    /// more, or its time zone is not known any more, it comes once, and has no next moment.
    pub fn of(recurrence: &Recurrence, due: &Due, now: Moment, title: impl Fn() -> String) -> Self {
        let occurrence = Times::stored(recurrence)
            .map(|times| times.schedule.occurrence(&times.zone, due.deliver_at, now));
        let why = match occurrence {
            Ok(occurrence) => match occurrence.next {
                Some(next) => return Self { newest: occurrence.newest, next },
                None => "The schedule has no further moment.".to_owned(),
            },
            Err(error) => error.message,
        };
        ClientNotice::new(format!("the recurring message {} does not come again", title()))
            .detail(format!("Its schedule is \"{}\". {why}", recurrence.schedule))
            .hint("Call queen_every for it again.")
            .warn();
        Self { newest: due.deliver_at, next: Moment::MAX }
    }
}

/// The transaction_id of an occurrence.
pub fn transaction_id(key: &str, moment: Moment) -> String {
    format!("{key}@{}", clock::iso_utc(moment))
}
