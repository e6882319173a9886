#![allow(clippy::unwrap_used)]

use proptest::prelude::*;

use super::*;

/// 2026 or so.
const NOW: Micros = 830_000_000_000_000;
const HOUR: i64 = 3_600_000_000;

impl Number for i64 {
    fn is_usable(&self) -> bool {
        self.abs() < 1 << 62
    }

    fn plus(&self, other: &Self) -> Self {
        self + other
    }
}

#[test]
fn a_namespace_is_short_lowercase_and_begins_with_a_letter_or_digit() {
    for good in ["a", "9", "billing", "a.b_c-d", "0--", &"x".repeat(64)] {
        assert!(check_ns(good).is_ok(), "{good}");
    }
    for bad in ["", ".a", "-a", "_a", "A", "bIlling", "a b", "a/b", "é", "a\n", &"x".repeat(65)] {
        assert!(check_ns(bad).is_err(), "{bad}");
    }
}

#[test]
fn a_key_is_anything_of_1_to_512_bytes() {
    for good in ["a", "%_\\'; drop\n\t\u{1}", &"k".repeat(512), &"é".repeat(256)] {
        assert!(check_key(good).is_ok(), "{good}");
    }
    for bad in ["", &"k".repeat(513), &"é".repeat(257)] {
        assert!(check_key(bad).is_err(), "{bad}");
    }
}

#[test]
fn an_expectation_is_none_absence_or_a_version() {
    assert_eq!(Expect::new(None), Ok(Expect::Anything));
    assert_eq!(Expect::new(Some(0)), Ok(Expect::Absent));
    assert_eq!(Expect::new(Some(7)), Ok(Expect::Version(7)));
    assert!(Expect::new(Some(-1)).is_err());
    assert!(Expect::new(Some(i64::MIN)).is_err());
}

fn ttl(months: i32, days: i32, micros: i64) -> Option<Ttl> {
    Some(Ttl { months, days, micros })
}

/// `now + interval` with months of 30 days, which must only be asked for what it can answer.
fn add(ttl: Ttl) -> Micros {
    let days = i128::from(ttl.months) * 30 + i128::from(ttl.days);
    i64::try_from(i128::from(NOW) + days * 24 * i128::from(HOUR) + i128::from(ttl.micros)).unwrap()
}

#[test]
fn exactly_one_of_ttl_and_forever_is_said() {
    assert_eq!(expiry(None, true, NOW, add), Ok(None));
    assert_eq!(expiry(ttl(0, 0, HOUR), false, NOW, add), Ok(Some(NOW + HOUR)));
    assert!(expiry(None, false, NOW, add).is_err());
    assert!(expiry(ttl(0, 0, HOUR), true, NOW, add).is_err());
}

#[test]
fn a_ttl_is_greater_than_zero_and_ends_within_timestamptz() {
    for good in [ttl(0, 0, 1), ttl(0, 1, -HOUR), ttl(1, -1, 0), ttl(12 * 290_000, 0, 0)] {
        assert!(expiry(good, false, NOW, add).is_ok(), "{good:?}");
    }
    for bad in [
        ttl(0, 0, 0),
        ttl(0, 0, -1),
        ttl(-1, 0, HOUR),
        ttl(1, -30, 0),
        ttl(12 * 293_000, 0, 0),
        ttl(0, 0, i64::MAX),
        ttl(0, i32::MAX, 0),
        ttl(i32::MAX, 0, 0),
        ttl(i32::MAX, i32::MAX, i64::MAX),
        ttl(i32::MIN, i32::MAX, i64::MAX),
        ttl(i32::MAX, i32::MIN, i64::MIN),
        ttl(i32::MIN, i32::MIN, i64::MIN),
    ] {
        assert!(expiry(bad, false, NOW, add).is_err(), "{bad:?}");
    }
    // A calendar month may be shorter than the 30 days by which intervals are compared.
    assert!(expiry(ttl(1, -29, 0), false, NOW, |_| NOW - 1).is_err());
}

#[test]
fn incr_takes_usable_numbers_and_limits_in_order() {
    assert!(check_incr(&1, None, None).is_ok());
    assert!(check_incr(&1, Some(&3), Some(&3)).is_ok());
    assert!(check_incr(&1, Some(&4), Some(&3)).is_err());
    assert!(check_incr(&i64::MAX, None, None).is_err());
    assert!(check_incr(&1, Some(&i64::MAX), None).is_err());
    assert!(check_incr(&1, None, Some(&i64::MAX)).is_err());
}

fn found(version: i64, expires_at: Option<Micros>, number: Option<i64>) -> Found<i64> {
    Found { version, expires_at, number }
}

#[test]
fn at_equality_a_marker_is_dead() {
    assert!(found(1, None, None).is_live(NOW));
    assert!(found(1, Some(NOW + 1), None).is_live(NOW));
    assert!(!found(1, Some(NOW), None).is_live(NOW));
}

#[test]
fn each_operation_on_each_kind_of_row() {
    use Decision::*;
    let live = found(7, Some(NOW + 1), Some(5));
    let text = found(7, None, None);
    let dead = found(7, Some(NOW), None);
    let put = |expect| Write::Put { expect };
    let delete = |expect| Write::Delete { expect };
    let check = |expect| Write::Check { expect };
    let incr = |delta, min, max| Write::Incr { delta, min, max };
    let (any, no, v7, v8) =
        (Expect::Anything, Expect::Absent, Expect::Version(7), Expect::Version(8));
    type Case<'a> = (Write<i64>, Option<&'a Found<i64>>, Decision<i64>);
    let table: Vec<Case<'_>> = vec![
        (put(any), None, Store(Slot::Empty)),
        (put(any), Some(&dead), Store(Slot::Expired)),
        (put(any), Some(&live), Store(Slot::Live)),
        (put(no), None, Store(Slot::Empty)),
        (put(no), Some(&dead), Store(Slot::Expired)),
        (put(no), Some(&live), Refuse(NotApplied::Exists)),
        (put(v7), None, Refuse(NotApplied::Absent)),
        (put(v7), Some(&dead), Refuse(NotApplied::Absent)),
        (put(v7), Some(&live), Store(Slot::Live)),
        (put(v8), Some(&live), Refuse(NotApplied::Version)),
        (delete(any), None, Refuse(NotApplied::Absent)),
        (delete(any), Some(&dead), Refuse(NotApplied::Absent)),
        (delete(any), Some(&live), Remove),
        (delete(no), None, Agree),
        (delete(no), Some(&dead), Agree),
        (delete(no), Some(&live), Refuse(NotApplied::Exists)),
        (delete(v7), Some(&live), Remove),
        (delete(v7), Some(&dead), Refuse(NotApplied::Absent)),
        (delete(v8), Some(&live), Refuse(NotApplied::Version)),
        (check(any), None, Agree),
        (check(no), None, Agree),
        (check(no), Some(&dead), Agree),
        (check(no), Some(&live), Refuse(NotApplied::Exists)),
        (check(v7), None, Refuse(NotApplied::Absent)),
        (check(v7), Some(&dead), Refuse(NotApplied::Absent)),
        (check(v7), Some(&live), Hold),
        (check(v8), Some(&live), Refuse(NotApplied::Version)),
        (incr(2, None, None), None, Count(Slot::Empty, 2)),
        (incr(2, None, None), Some(&dead), Count(Slot::Expired, 2)),
        (incr(2, None, None), Some(&live), Count(Slot::Live, 7)),
        (incr(2, None, None), Some(&text), Refuse(NotApplied::Type)),
        (incr(2, Some(7), Some(7)), Some(&live), Count(Slot::Live, 7)),
        (incr(2, Some(8), None), Some(&live), Refuse(NotApplied::Limit)),
        (incr(2, None, Some(6)), Some(&live), Refuse(NotApplied::Limit)),
        (incr(2, None, Some(1)), None, Refuse(NotApplied::Limit)),
    ];
    for (write, row, expected) in table {
        assert_eq!(decide(&write, row, NOW).unwrap(), expected, "{write:?} on {row:?}");
    }
}

#[test]
fn a_number_that_cannot_be_added_to_is_an_error() {
    let huge = found(1, None, Some(i64::MAX));
    assert!(decide(&Write::Incr { delta: 1, min: None, max: None }, Some(&huge), NOW).is_err());
}

proptest! {
    /// Ranges hold exactly the keys that begin with the prefix and come after `after`.
    #[test]
    fn a_range_is_the_literal_prefix_and_what_comes_after(
        prefix in key_part(), after in proptest::option::of(key_part()), key in key_part(),
        tail in key_part(),
    ) {
        for key in [key.clone(), format!("{prefix}{tail}"), prefix.clone()] {
            if check_key(&key).is_err() {
                continue;
            }
            let (lower, upper) = range(&prefix, after.as_deref());
            let inside = lower <= key && key < upper;
            let wanted = key.starts_with(&prefix)
                && after.as_ref().is_none_or(|after| key > *after);
            prop_assert_eq!(inside, wanted, "{:?} in {:?}..{:?}", key, lower, upper);
        }
    }
}

/// Text with neighbours in it: wildcards, the ends of the alphabet and of the surrogate gap.
fn key_part() -> impl Strategy<Value = String> {
    let chars = prop_oneof![
        Just('a'),
        Just('b'),
        Just('%'),
        Just('_'),
        Just('\u{1}'),
        Just('\u{7f}'),
        Just('\u{80}'),
        Just('\u{d7ff}'),
        Just('\u{e000}'),
        Just('\u{ffff}'),
        Just('\u{10000}'),
        Just('\u{10fffe}'),
        Just(char::MAX),
        any::<char>().prop_filter("no text holds it", |c| *c != '\0'),
    ];
    proptest::collection::vec(chars, 0..5).prop_map(String::from_iter)
}
