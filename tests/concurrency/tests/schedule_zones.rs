//! The times of cron expressions in time zones whose clocks are set, beside those that another
//! library with its own data of time zones gives.

use std::collections::BTreeMap;

use anyhow::{Context, Result, ensure};
use chrono::{DateTime, Datelike, NaiveDateTime, TimeDelta, TimeZone, Timelike, Utc, Weekday};
use chrono_tz::Tz;
use queen_engine::schedule::{CronTimes, Schedule, Zone, ZoneOffset};
use queen_tests::{Session, TestDb};

const ZONES: [Tz; 3] = [Tz::Europe__Berlin, Tz::America__New_York, Tz::Australia__Lord_Howe];
/// All clocks here are set by, and at, whole quarters of an hour.
const QUARTER: TimeDelta = TimeDelta::minutes(15);
/// Seconds from 1970 to 2000, from where the engine counts.
const EPOCH: i64 = 946_684_800;

fn year(year: i32) -> Result<DateTime<Utc>> {
    Utc.with_ymd_and_hms(year, 1, 1, 0, 0, 0).single().context("a year begins once")
}

/// Each quarter of an hour of local time, with the moment at which a clock first shows it or a
/// later one. The clock is looked at quarter by quarter, and goes by the data of chrono-tz.
fn first_shown(
    zone: Tz,
    from: DateTime<Utc>,
    to: DateTime<Utc>,
) -> BTreeMap<NaiveDateTime, DateTime<Utc>> {
    let mut moments = BTreeMap::new();
    let mut shown = from.with_timezone(&zone).naive_local() - QUARTER;
    let mut moment = from;
    while moment <= to {
        let local = moment.with_timezone(&zone).naive_local();
        while shown < local {
            shown += QUARTER;
            moments.insert(shown, moment);
        }
        moment += QUARTER;
    }
    moments
}

/// What PostgreSQL says of a zone, read by SQL: each change of the offset, in seconds.
struct AsPostgresSays(Vec<(i64, i64)>);

impl AsPostgresSays {
    async fn read(session: &Session, zone: Tz) -> Result<Self> {
        let sql = "SELECT second, ahead FROM (
                SELECT second, ahead, lag(ahead) OVER (ORDER BY second) AS before FROM (
                    SELECT extract(epoch FROM t)::bigint AS second,
                           extract(epoch FROM (t AT TIME ZONE $1) - (t AT TIME ZONE 'UTC'))::bigint
                               AS ahead
                    FROM generate_series('2025-11-01 UTC'::timestamptz, '2028-03-01 UTC',
                                         '15 minutes') AS t) AS all_quarters) AS with_before
            WHERE ahead IS DISTINCT FROM before ORDER BY second";
        let rows = session.rows(sql, &[&zone.name()]).await?;
        Ok(Self(rows.iter().map(|row| (row.get::<_, i64>(0) - EPOCH, row.get(1))).collect()))
    }
}

impl Zone for AsPostgresSays {
    fn offset_at(&self, second: i64) -> ZoneOffset {
        let past = self.0.iter().rfind(|(change, _)| *change <= second);
        let next = self.0.iter().find(|(change, _)| *change > second);
        let ahead = past.or(self.0.first()).map_or(0, |(_, ahead)| *ahead);
        ZoneOffset { ahead, changes_at: next.map(|(change, _)| *change) }
    }
}

/// A cron expression, and whether it names a local time.
type Named = (&'static str, fn(NaiveDateTime) -> bool);

const EXPRESSIONS: [Named; 8] = [
    ("*/15 * * * *", |_| true),
    ("30 2 * * *", |t| (t.hour(), t.minute()) == (2, 30)),
    ("0 2 * * *", |t| (t.hour(), t.minute()) == (2, 0)),
    ("0,30 1-3 * * *", |t| t.minute() % 30 == 0 && (1..=3).contains(&t.hour())),
    ("45 1 * * SUN", |t| t.weekday() == Weekday::Sun && (t.hour(), t.minute()) == (1, 45)),
    ("15 2 * mar,4,10-11 0", |t| {
        let is_month = matches!(t.month(), 3 | 4 | 10 | 11);
        t.weekday() == Weekday::Sun && is_month && (t.hour(), t.minute()) == (2, 15)
    }),
    ("@monthly", |t| t.day() == 1 && (t.hour(), t.minute()) == (0, 0)),
    ("30 1 1 * mon", |t| {
        let is_day = t.day() == 1 || t.weekday() == Weekday::Mon;
        is_day && (t.hour(), t.minute()) == (1, 30)
    }),
];

#[tokio::test(flavor = "multi_thread")]
async fn the_times_of_two_years_are_those_of_another_library() -> Result<()> {
    let db = TestDb::fresh().await?;
    let session = db.session().await?;
    let (from, to) = (year(2026)?, year(2028)?);
    for zone in ZONES {
        let clock = AsPostgresSays::read(&session, zone).await?;
        let changes = clock.0.iter().filter(|(change, _)| *change > from.timestamp() - EPOCH);
        assert_eq!(changes.count(), 4, "{zone}");
        let moments = first_shown(zone, from - TimeDelta::days(2), to);
        for (text, names) in EXPRESSIONS {
            let all = moments.iter().filter(|(local, _)| names(**local)).map(|(_, at)| *at);
            let mut expected: Vec<DateTime<Utc>> = all.filter(|at| *at > from).collect();
            expected.dedup();
            let times = CronTimes::parse(text).map_err(anyhow::Error::msg)?;
            let schedule = Schedule::Cron(Box::new(times));
            let mut found = Vec::new();
            let mut now = (from.timestamp() - EPOCH) * 1_000_000;
            while let Some(next) = schedule.first(&clock, now) {
                let next_at = DateTime::from_timestamp_micros(next + EPOCH * 1_000_000).unwrap();
                if next_at > to {
                    break;
                }
                assert_eq!(schedule.occurrence(&clock, next, next).newest, next);
                found.push(next_at);
                now = next;
            }
            ensure!(found.len() > 20, "{text}: {found:?}");
            if found != expected {
                let at = found.iter().zip(&expected).position(|(one, other)| one != other);
                let at = at.unwrap_or(found.len().min(expected.len()));
                panic!("{zone}, {text}: {:?}, not {:?}", found.get(at), expected.get(at));
            }
        }
    }
    Ok(())
}

/// `queen_every` itself, for each quarter of an hour of the days on which a clock is set within a
/// year from now, and of the days before and after.
#[tokio::test(flavor = "multi_thread")]
async fn queen_every_knows_the_days_on_which_clocks_are_set() -> Result<()> {
    let db = TestDb::fresh().await?;
    let session = db.session().await?;
    for zone in ZONES {
        let now = session.now().await?;
        let quarter = DateTime::from_timestamp(now.timestamp() / 900 * 900, 0).unwrap();
        let end = quarter + TimeDelta::days(364);
        let moments = first_shown(zone, quarter, end);
        let ahead = |at: DateTime<Utc>| at.with_timezone(&zone).naive_local() - at.naive_utc();
        let around = |at: &DateTime<Utc>| {
            let hours = TimeDelta::hours(30);
            ahead(*at - hours) != ahead(*at + hours)
        };
        let wanted: Vec<(String, DateTime<Utc>)> = moments
            .iter()
            .filter(|(_, at)| around(at) && **at > now + TimeDelta::hours(1))
            .map(|(local, at)| (local.format("%-M %-H %-d %-m *").to_string(), *at))
            .collect();
        ensure!(wanted.len() >= 2 * 59 * 4, "{zone}: {}", wanted.len());
        let (texts, expected): (Vec<String>, Vec<DateTime<Utc>>) = wanted.into_iter().unzip();
        let sql = "SELECT e.next_at FROM unnest($1::text[]) WITH ORDINALITY AS s (text, number),
                   LATERAL queen_every('q', s.number::text, s.text, '1', time_zone => $2) AS e
                   ORDER BY s.number";
        let rows = session.rows(sql, &[&texts, &zone.name()]).await?;
        let found = rows.iter().map(|row| row.get::<_, DateTime<Utc>>(0));
        for ((text, expected), found) in texts.iter().zip(expected).zip(found) {
            assert_eq!(found, expected, "{zone}, {text}");
        }
    }
    Ok(())
}
