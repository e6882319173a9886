//! Times and intervals, compared with PostgreSQL's own functions.

use crate::pg::clock::{
    At, DAY, EARLIEST, HOUR, SECOND, interval, iso, iso_duration, micros, moment, now, parse,
    parse_interval, plus, show, timestamp, transaction_start,
};

/// Times of each kind, as they are written.
const TIMES: [&str; 6] = [
    "2000-01-01 00:00:00+00",
    "1999-12-31 23:59:59.999999+00",
    "2026-11-29 12:00:00.5+01",
    "4714-11-24 00:00:00+00 BC",
    "294276-12-31 23:59:59.999999+00",
    "0001-06-30 12:00:00+00",
];

#[pgrx::pg_schema]
mod tests {
    use pgrx::datum::Interval;
    use pgrx::prelude::{Spi, pg_test};

    use super::super::backend::caught;
    use super::super::lab::{run, value};
    use super::*;

    #[pg_test]
    fn the_clock_and_the_start_of_the_transaction_are_those_of_postgres() {
        let read = |sql: &str| Spi::get_one::<At>(sql).expect("a time").expect("a time").0;
        let before = read("SELECT clock_timestamp()");
        let between = now();
        assert!((before..=read("SELECT clock_timestamp()")).contains(&between));
        assert_eq!(transaction_start(), read("SELECT transaction_timestamp()"));
        assert_eq!(read("SELECT '-infinity'::timestamptz + interval '0'"), i64::MIN);
    }

    #[pg_test]
    fn a_time_is_read_and_shown_as_in_sql() {
        for zone in ["UTC", "America/New_York"] {
            run(&format!("SET LOCAL timezone = '{zone}'"));
            for text in TIMES {
                let read = parse(text).expect("a time");
                let time = format!("'{text}'::timestamptz");
                let since_2000 = format!("({time} - '2000-01-01 00:00:00+00'::timestamptz)");
                let micros = format!("SELECT (extract(epoch FROM {since_2000}) * 1000000)::bigint");
                assert_eq!(read.to_string(), value(&micros), "{text}");
                assert_eq!(show(read), value(&format!("SELECT {time}")));
                assert_eq!(timestamp(read).map(moment), Some(read));
            }
        }
        assert_eq!(parse(TIMES[3]).ok(), Some(EARLIEST));
        assert!(timestamp(EARLIEST - 1).is_none());
    }

    #[pg_test]
    fn a_duration_in_json_is_as_postgres_writes_it_in_iso_8601() {
        for text in [
            "0",
            "1 s",
            "0.000001 s",
            "-0.5 s",
            "-61.25 s",
            "90 min",
            "36 h",
            "1 day",
            "1 day -1 h",
            "-1 day -0.5 s",
            "1 year 2 mons 3 days 04:05:06.7",
            "-13 mons",
            "100 years",
            "1 mon -1 day",
            "2562047788 h",
        ] {
            let read = parse_interval(text).expect("an interval");
            run("SET LOCAL IntervalStyle = iso_8601");
            let expected = value(&format!("SELECT '{text}'::interval"));
            run("SET LOCAL IntervalStyle = sql_standard");
            assert_eq!(iso_duration(read), expected, "{text}");
        }
    }

    #[pg_test]
    fn a_time_in_json_has_microseconds_and_is_in_utc() {
        run("SET LOCAL timezone = 'America/New_York'");
        for (text, expected) in [
            ("2026-11-29 12:00:00.5+01", "2026-11-29T11:00:00.500000+00:00"),
            ("2000-01-01 00:00:00+00", "2000-01-01T00:00:00.000000+00:00"),
        ] {
            let shown = iso(parse(text).expect("a time"));
            let as_moment = parse(&shown).expect("a time");
            assert_eq!(as_moment, parse(expected).expect("a time"), "{shown}");
            assert!(shown.starts_with(&expected[..19]), "{shown}");
        }
    }

    /// A day may have 23 hours, and a month 28 days.
    #[pg_test]
    fn an_interval_later_is_counted_by_the_calendar_of_the_session() {
        run("SET LOCAL timezone = 'America/New_York'");
        for (time, months, days, micros) in [
            ("2026-01-31 12:00:00", 1, 0, 0),
            ("2026-03-07 12:00:00", 0, 1, 5),
            ("2026-11-01 00:30:00", -12, -1, -1),
        ] {
            let sum = format!(
                "SELECT timestamptz '{time}' + make_interval(months => {months}, days => {days})
                     + {micros} * interval '1 microsecond'"
            );
            assert_eq!(show(plus(parse(time).expect("a time"), months, days, micros)), value(&sum));
        }
        let beyond = || assert_eq!(plus(i64::MAX - 1, 0, 1_000_000, 0), 0);
        assert_eq!(caught(beyond), "timestamp out of range");
    }

    #[pg_test]
    fn what_is_no_time_is_refused() {
        let long = "9".repeat(10_000);
        for text in ["", "soon", "2026-13-01", "294277-01-01", &long] {
            let error = parse(text).expect_err("no time");
            assert_eq!(error.code.sqlstate(), b"22023");
            assert!(error.message.ends_with("is not a time") && error.message.len() < 300);
        }
        // The session goes on.
        assert_eq!(value("SELECT 1"), "1");
    }

    #[pg_test]
    fn an_interval_is_as_long_as_extract_says() {
        for text in ["1 second", "-1 day 2 hours", "1 month", "2 years 3 days", "0.000001 second"] {
            let of_sql: Interval =
                Spi::get_one(&format!("SELECT interval '{text}'")).expect("one").expect("one");
            let seconds = format!("extract(epoch FROM interval '{text}')");
            // A year counts as 365.25 days there, and as twelve months here.
            let years = format!("extract(year FROM interval '{text}') * 5.25 * 86400");
            let expected = value(&format!("SELECT (({seconds} - {years}) * 1000000)::bigint"));
            assert_eq!(micros(of_sql).map(|micros| micros.to_string()), Some(expected), "{text}");
        }
        assert_eq!((SECOND, HOUR, DAY), (1_000_000, 3_600_000_000, 86_400_000_000));
        let longest = Interval::new(0, i32::MAX, i64::MAX).expect("an interval");
        assert_eq!(micros(longest), None);
        assert_eq!(interval(-5).and_then(micros), Some(-5));
    }
}
