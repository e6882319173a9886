use proptest::prelude::*;

use super::*;

const MINUTE: i64 = 60;
const HOUR: i64 = 60 * MINUTE;
const DAY: i64 = 24 * HOUR;

/// A clock that is set at the given seconds, ascending, and is that far ahead before the first.
struct Clock(i64, Vec<(i64, i64)>);

impl Zone for Clock {
    fn offset_at(&self, second: i64) -> ZoneOffset {
        let past = self.1.iter().rfind(|(change, _)| *change <= second);
        let next = self.1.iter().find(|(change, _)| *change > second);
        ZoneOffset {
            ahead: past.map_or(self.0, |(_, ahead)| *ahead),
            changes_at: next.map(|(change, _)| *change),
        }
    }
}

fn utc() -> Clock {
    Clock(0, Vec::new())
}

fn at(text: &str) -> i64 {
    let read = NaiveDateTime::parse_from_str(text, "%Y-%m-%d %H:%M:%S").unwrap();
    seconds(read)
}

fn cron(text: &str) -> Schedule {
    Schedule::Cron(Box::new(CronTimes::parse(text).unwrap()))
}

/// The first occurrences after a moment, each computed from the one before.
fn occurrences(schedule: &Schedule, zone: &Clock, from: &str, count: usize) -> Vec<String> {
    let mut now = at(from) * SECOND;
    let mut shown = Vec::new();
    for _ in 0..count {
        now = schedule.first(zone, now).unwrap();
        shown.push(naive(now / SECOND).unwrap().to_string()[5..16].to_owned());
    }
    shown
}

#[test]
fn expressions_name_the_times_that_cron_names() {
    for (text, from, expected) in [
        ("*/20 * * * *", "2026-12-01 23:30:00", ["12-01 23:40", "12-02 00:00", "12-02 00:20"]),
        ("5 8-10 * * *", "2026-12-01 08:05:00", ["12-01 09:05", "12-01 10:05", "12-02 08:05"]),
        ("0 0 1,15 * *", "2026-12-01 00:00:00", ["12-15 00:00", "01-01 00:00", "01-15 00:00"]),
        ("0 9 * * mon-WED", "2026-12-01 12:00:00", ["12-02 09:00", "12-07 09:00", "12-08 09:00"]),
        ("0 9 * * 7", "2026-12-01 12:00:00", ["12-06 09:00", "12-13 09:00", "12-20 09:00"]),
        ("0 9 * * sat-sun", "2026-12-01 12:00:00", ["12-05 09:00", "12-06 09:00", "12-12 09:00"]),
        ("0 0 13 * FRI", "2026-11-10 00:00:00", ["11-13 00:00", "11-20 00:00", "11-27 00:00"]),
        ("0 0 29 feb *", "2026-01-01 00:00:00", ["02-29 00:00", "02-29 00:00", "02-29 00:00"]),
        ("0 0 31 * *", "2026-01-31 00:00:00", ["03-31 00:00", "05-31 00:00", "07-31 00:00"]),
        (
            "10-30/10 0 1 jan *",
            "2026-01-01 00:00:00",
            ["01-01 00:10", "01-01 00:20", "01-01 00:30"],
        ),
        ("@hourly", "2026-12-31 22:59:59", ["12-31 23:00", "01-01 00:00", "01-01 01:00"]),
        ("@daily", "2026-12-30 00:00:00", ["12-31 00:00", "01-01 00:00", "01-02 00:00"]),
        ("@weekly", "2026-12-01 00:00:00", ["12-06 00:00", "12-13 00:00", "12-20 00:00"]),
        ("@monthly", "2026-12-01 00:00:00", ["01-01 00:00", "02-01 00:00", "03-01 00:00"]),
        ("@Yearly", "2026-12-01 00:00:00", ["01-01 00:00", "01-01 00:00", "01-01 00:00"]),
    ] {
        assert!(is_like_cron(text), "{text}");
        assert_eq!(occurrences(&cron(text), &utc(), from, 3), expected, "{text}");
    }
}

#[test]
fn what_cron_does_not_know_is_refused() {
    for text in [
        "",
        "*",
        "* * * *",
        "* * * * * *",
        "60 * * * *",
        "* 24 * * *",
        "* * 0 * *",
        "* * 32 * *",
        "* * * 13 *",
        "* * * * 8",
        "*/0 * * * *",
        "5/10 * * * *",
        "30-10 * * * *",
        "1, * * * *",
        ",, * * * *",
        "* * L * *",
        "* * 15W * *",
        "* * * * 5#2",
        "* * * * 5L",
        "* * ? * *",
        "mon * * * *",
        "* jan * * *",
        "* * * mon *",
        "* * * * jan",
        "* * * * +1",
        "@never",
        "@",
        "@reboot",
        "*/-1 * * * *",
        "1-2-3 * * * *",
        "1//2 * * * *",
        "** * * * *",
        "é * * * *",
        "* * * janfeb *",
        "99999999999999999999 * * * *",
        "-1 * * * *",
        "1.5 * * * *",
        "a b c d e",
    ] {
        let error = CronTimes::parse(text).expect_err(text);
        assert!(error.ends_with('.') && error.len() > 10, "{text}: {error}");
    }
}

#[test]
fn an_interval_does_not_look_like_cron() {
    for text in ["15 minutes", "1 day 02:03:04", "P1D", "@ 1 minute", "1 h 2 m 3", "00:00:05"] {
        assert!(!is_like_cron(text), "{text}");
    }
}

#[test]
fn a_time_that_never_comes_has_no_moment() {
    for text in ["0 0 30 2 *", "0 0 31 4,6,9,11 *"] {
        assert_eq!(cron(text).first(&utc(), at("2026-01-01 00:00:00") * SECOND), None, "{text}");
    }
}

#[test]
fn a_time_that_the_clock_skips_comes_with_the_next_that_it_shows() {
    // At 01:00 UTC the clock is set from 02:00 to 03:00.
    let berlin = Clock(HOUR, vec![(at("2026-03-29 01:00:00"), 2 * HOUR)]);
    let all = |text, count| occurrences(&cron(text), &berlin, "2026-03-28 23:30:00", count);
    assert_eq!(all("30 2 * * *", 3), ["03-29 01:00", "03-30 00:30", "03-31 00:30"]);
    let expected = ["03-28 23:40", "03-29 00:00", "03-29 00:20", "03-29 00:40", "03-29 01:00"];
    assert_eq!(all("*/20 * * * *", 6)[..5], expected);
    assert_eq!(all("*/20 * * * *", 6)[5], "03-29 01:20");
    assert_eq!(all("0 3 * * *", 2), ["03-29 01:00", "03-30 01:00"]);
}

#[test]
fn a_time_that_the_clock_shows_twice_comes_when_it_is_shown_first() {
    // At 01:00 UTC the clock is set from 03:00 to 02:00.
    let berlin = Clock(2 * HOUR, vec![(at("2026-10-25 01:00:00"), HOUR)]);
    let all = |text, from, count| occurrences(&cron(text), &berlin, from, count);
    assert_eq!(all("30 2 * * *", "2026-10-24 20:00:00", 2), ["10-25 00:30", "10-26 01:30"]);
    let expected = ["10-25 00:30", "10-25 02:00", "10-25 02:30"];
    assert_eq!(all("*/30 * * * *", "2026-10-25 00:00:00", 3), expected);
    // Set while the hour is shown for the second time.
    assert_eq!(all("30 2 * * *", "2026-10-25 01:10:00", 1), ["10-26 01:30"]);
}

#[test]
fn what_was_missed_comes_once_for_the_newest_time() {
    let schedule = cron("*/15 * * * *");
    let (due, now) = (at("2026-12-01 10:15:00"), at("2026-12-01 11:07:30"));
    let occurrence = schedule.occurrence(&utc(), due * SECOND, now * SECOND + 5);
    assert_eq!(occurrence.newest, at("2026-12-01 11:00:00") * SECOND);
    assert_eq!(occurrence.next, Some(at("2026-12-01 11:15:00") * SECOND));

    let each = Schedule::Interval(700);
    assert_eq!(each.first(&utc(), 1_000), Some(1_700));
    for (now, newest) in [(1_700, 1_700), (2_399, 1_700), (2_400, 2_400), (1_700_000, 1_699_900)] {
        let occurrence = each.occurrence(&utc(), 1_700, now);
        assert_eq!((occurrence.newest, occurrence.next), (newest, Some(newest + 700)));
    }
    assert_eq!(Schedule::Interval(i64::MAX).first(&utc(), 1), None);
}

/// The moments of a schedule by its definition: the clock is looked at minute by minute, and is
/// set by whole minutes.
fn by_looking(times: &CronTimes, zone: &Clock, from: i64, to: i64) -> Vec<i64> {
    let mut shown = i64::MIN;
    let mut found = Vec::new();
    for second in (from..=to).step_by(60) {
        let local = second + zone.offset_at(second).ahead;
        if local > shown {
            let first_new = if shown == i64::MIN { local } else { shown + MINUTE };
            let hits = |time: i64| times.0.is_time_matching(&naive(time).unwrap()).unwrap();
            if (first_new..=local).step_by(60).any(hits) {
                found.push(second);
            }
            shown = local;
        }
    }
    found
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(60))]

    #[test]
    fn moments_are_those_at_which_a_clock_first_shows_a_local_time(
        ahead in -14 * 4..14 * 4_i64,
        sets in prop::collection::vec((0..2 * 24 * 4_i64, -14 * 4..14 * 4_i64), 0..4),
        minutes in "(\\*|\\*/7|0|30|13,47|5-40/5)",
        hours in "(\\*|\\*/5|2|0|23|1-3)",
    ) {
        let start = at("2026-03-28 00:00:00");
        let mut sets: Vec<(i64, i64)> = sets
            .into_iter()
            .map(|(change, ahead)| (start + change * 15 * MINUTE, ahead * 15 * MINUTE))
            .collect();
        sets.sort();
        sets.dedup_by_key(|(change, _)| *change);
        let clock = Clock(ahead * 15 * MINUTE, sets);
        let times = CronTimes::parse(&format!("{minutes} {hours} * * *")).unwrap();
        // What the clock has shown before counts as well.
        let (before, end) = (start - 2 * DAY, start + 4 * DAY);
        let expected: Vec<i64> =
            by_looking(&times, &clock, before, end).into_iter().filter(|at| *at > start).collect();
        let schedule = Schedule::Cron(Box::new(times));
        let mut found = Vec::new();
        let mut now = start * SECOND;
        while let Some(next) = schedule.first(&clock, now).filter(|next| *next <= end * SECOND) {
            prop_assert!(next > now);
            prop_assert_eq!(schedule.occurrence(&clock, next, next).newest, next);
            prop_assert_eq!(schedule.occurrence(&clock, next, next + SECOND / 2).newest, next);
            found.push(next / SECOND);
            now = next;
        }
        prop_assert_eq!(found, expected);
    }

    #[test]
    fn any_text_is_read_without_panic(text: String, fields in "[0-9*,/a-zA-Z@# -]{0,30}") {
        for text in [text, fields] {
            let _ = (is_like_cron(&text), CronTimes::parse(&text));
        }
    }

    #[test]
    fn any_moment_is_answered(now: i64, due: i64, length in 1..=i64::MAX) {
        for schedule in [cron("*/5 3 * * *"), Schedule::Interval(length)] {
            let _ = (schedule.first(&utc(), now), schedule.occurrence(&utc(), due, now));
        }
    }
}
