//! Time zones, compared with PostgreSQL's own AT TIME ZONE.

use crate::pg::time_zone::TimeZone;

/// Each quarter of an hour at which a clock is not as far ahead of UTC as one before, and how far
/// it is then.
const QUARTERS: &str = "SELECT string_agg(second || ' ' || ahead, ',' ORDER BY second) FROM (
    SELECT second, ahead, lag(ahead) OVER (ORDER BY second) AS before FROM (
        SELECT (extract(epoch FROM t) - 946684800)::bigint AS second,
               extract(epoch FROM (t AT TIME ZONE '%') - (t AT TIME ZONE 'UTC'))::bigint AS ahead
        FROM generate_series('2025-12-31 UTC'::timestamptz, '2040-01-01 UTC', '15 minutes') AS t
    ) AS q) AS with_before WHERE ahead IS DISTINCT FROM before";

#[pgrx::pg_schema]
mod tests {
    use pgrx::prelude::pg_test;

    use super::super::lab::value;
    use super::*;

    /// 2040-01-01 in seconds since 2000.
    const END: i64 = 14_610 * 86_400;

    #[pg_test]
    fn a_clock_is_ahead_and_is_set_as_at_time_zone_says() {
        for name in [
            "UTC",
            "Europe/Berlin",
            "America/New_York",
            "Australia/Lord_Howe",
            "Asia/Kathmandu",
            "Africa/Casablanca",
            "<+03>-3",
            "EST5EDT,M3.2.0,M11.1.0",
        ] {
            let zone = TimeZone::named(name).expect(name);
            let changes = value(&QUARTERS.replace('%', name));
            let mut second = None;
            for change in changes.split(',') {
                let (at, ahead) = change.split_once(' ').expect("two numbers");
                let at: i64 = at.parse().expect("seconds");
                let ahead: i64 = ahead.parse().expect("seconds");
                if let Some(expected) = second {
                    assert_eq!(expected, at, "{name}");
                }
                let (found, mut next) = zone.offset_at(at);
                assert_eq!(found, ahead, "{name} at {at}");
                assert_eq!(zone.offset_at(at + 1).0, ahead, "{name} after {at}");
                // A change that leaves the clock as it is counts for nothing.
                while let Some(change) = next.filter(|change| zone.offset_at(*change).0 == ahead) {
                    next = zone.offset_at(change).1;
                }
                second = next;
            }
            assert!(second.is_none_or(|next| next > END), "{name}: {second:?}");
        }
    }

    #[pg_test]
    fn a_zone_is_known_by_the_names_that_the_setting_takes() {
        for name in ["europe/berlin", "UTC", "utc", "EST", "UTC+3", "<-03>3"] {
            assert!(TimeZone::named(name).is_some(), "{name}");
            value(&format!("SELECT set_config('timezone', '{name}', true)"));
        }
        let long = "x".repeat(300);
        for name in
            ["", "Europe/Atlantis", "CEST", "-7", "+7", "7", "../../etc/passwd", "a\0b", &long]
        {
            assert!(TimeZone::named(name).is_none(), "{name}");
        }
    }
}
