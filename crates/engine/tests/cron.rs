//! Random cron expressions, whose times are also found by trying each minute.

use std::collections::BTreeSet;

use proptest::prelude::*;
use queen_engine::schedule::{CronTimes, Schedule, Zone, ZoneOffset};

struct Utc;

impl Zone for Utc {
    fn offset_at(&self, _: i64) -> ZoneOffset {
        ZoneOffset { ahead: 0, changes_at: None }
    }
}

/// An item of a list: first, last, step; as text, and the values it stands for.
fn item(low: i64, high: i64) -> impl Strategy<Value = (String, Vec<i64>)> {
    let value = low..=high;
    prop_oneof![
        value.clone().prop_map(|value| (value.to_string(), vec![value])),
        (value.clone(), value, 1..9_i64).prop_map(|(one, other, step)| {
            let (first, last) = (one.min(other), one.max(other));
            let text = match step {
                1 => format!("{first}-{last}"),
                _ => format!("{first}-{last}/{step}"),
            };
            (text, (first..=last).step_by(step as usize).collect())
        }),
        (2..9_i64).prop_map(move |step| {
            (format!("*/{step}"), (low..=high).step_by(step as usize).collect())
        }),
    ]
}

/// A field: as text, and the values it stands for. None: all, as `*`.
fn field(low: i64, high: i64) -> impl Strategy<Value = (String, Option<BTreeSet<i64>>)> {
    let list = prop::collection::vec(item(low, high), 1..4).prop_map(|items| {
        let texts: Vec<String> = items.iter().map(|(text, _)| text.clone()).collect();
        (texts.join(","), Some(items.into_iter().flat_map(|(_, values)| values).collect()))
    });
    prop_oneof![1 => Just(("*".to_owned(), None)), 2 => list]
}

/// Year, month and day of a day since 2000-01-01, by counting.
fn date(mut day: i64) -> (i64, i64, i64) {
    let (mut year, mut month) = (2000, 1);
    loop {
        let is_leap = year % 4 == 0 && (year % 100 != 0 || year % 400 == 0);
        let length = match month {
            2 => 28 + i64::from(is_leap),
            4 | 6 | 9 | 11 => 30,
            _ => 31,
        };
        if day < length {
            return (year, month, day + 1);
        }
        day -= length;
        month += 1;
        if month > 12 {
            (year, month) = (year + 1, 1);
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(200))]

    #[test]
    fn times_are_those_that_the_fields_say(
        minutes in field(0, 59),
        hours in field(0, 23),
        days in field(1, 31),
        months in field(1, 12),
        weekdays in field(0, 7),
        start in 9_000..10_000_i64,
    ) {
        let text =
            format!("{} {} {} {} {}", minutes.0, hours.0, days.0, months.0, weekdays.0);
        let has = |values: &Option<BTreeSet<i64>>, value: i64| {
            values.as_ref().is_none_or(|values| values.contains(&value))
        };
        // 2000-01-01 was a Saturday. Where both days are restricted, either will do.
        let has_day = |day: i64| {
            let (_, month, in_month) = date(day);
            let weekday = (day + 6) % 7;
            let is_weekday = has(&weekdays.1, weekday) || (weekday == 0 && has(&weekdays.1, 7));
            let is_in_month = has(&days.1, in_month);
            let is_day = match (&days.1, &weekdays.1) {
                (Some(_), Some(_)) => is_in_month || is_weekday,
                _ => is_in_month && is_weekday,
            };
            has(&months.1, month) && is_day
        };
        let mut expected = Vec::new();
        'days: for day in (start..start + 800).filter(|day| has_day(*day)) {
            for minute in 0..1440 {
                if has(&hours.1, minute / 60) && has(&minutes.1, minute % 60) {
                    expected.push((day * 1440 + minute) * 60_000_000);
                    if expected.len() == 30 {
                        break 'days;
                    }
                }
            }
        }
        let schedule = Schedule::Cron(Box::new(CronTimes::parse(&text).unwrap()));
        let mut now = start * 86_400_000_000 - 1;
        for moment in expected {
            prop_assert_eq!(schedule.first(&Utc, now), Some(moment), "{}", text);
            now = moment;
        }
    }
}
