//! Lease ids: how a lease is named, and how its cursor is found from the name.
//!
//! A consumer settles with nothing but the lease id. The id says which cursor or claim it was given
//! for, or which list of several, so no index over leases is needed. It is a UUID of version 8,
//! whose layout RFC 9562 leaves to its maker:
//!
//! | bits | what |
//! |---|---|
//! | 12 | when the lease was given: units of 2^14 ms, about 16 s, from 0 again every 18.6 hours |
//! | 1 | whether the number is that of a cursor or claim, or that of a list |
//! | 49 | the number; they last 178 years at 100,000 a second |
//! | 60 | random, so that an id cannot be guessed |
//!
//! The time comes first, so that the receipts of a cursor are appended to their index, and old ones
//! are found in a range of it. Nothing else depends on it: the moment at which a lease was given is
//! stored beside the id. A lease is known only if its whole id is the stored one.

use std::fmt;

use serde::{Deserialize, Serialize};

/// Bits of the number of a cursor, a claim or a list. Their sequences end at [`LAST_NUMBER`].
pub const NUMBER_BITS: u32 = 49;
/// The highest number that an id can carry.
pub const LAST_NUMBER: u64 = (1 << NUMBER_BITS) - 1;
/// How many bits of an id are random.
pub const RANDOM_BITS: u32 = 60;

/// The random bits that stand behind the number. The other 48 stand behind the time.
const LOW_RANDOM_BITS: u32 = 62 - 1 - NUMBER_BITS;

/// Microseconds in a unit of time.
const UNIT: i64 = 1000 << 14;
/// Units after which the time in the id begins again at 0.
const UNITS: u64 = 1 << 12;

/// The id of a lease: the bytes of its UUID.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct LeaseId(pub [u8; 16]);

/// What a lease was given for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Handle {
    /// One cursor or claim, by its id.
    Cursor(u64),
    /// Several, by the id of the list of them that is stored.
    Set(u64),
}

impl LeaseId {
    /// The id of a lease that is given at `now`. The lower 60 bits of `random` are used.
    pub fn new(now: i64, handle: Handle, random: u64) -> Self {
        let (kind, number) = match handle {
            Handle::Cursor(id) => (0u64, id),
            Handle::Set(id) => (1, id),
        };
        let early = random >> LOW_RANDOM_BITS & ((1 << 48) - 1);
        let high = unit_of(now) << 52 | early >> 12 << 16 | 0x8000 | early & 0xfff;
        let low = 0b10 << 62
            | kind << 61
            | (number & LAST_NUMBER) << LOW_RANDOM_BITS
            | random & ((1 << LOW_RANDOM_BITS) - 1);
        Self::of_halves(high, low)
    }

    /// Ranges of ids, ends included, that hold every id given from `from` on and before the unit of
    /// time that holds `until`. They also hold ids given 18.6 hours earlier, or a multiple of that,
    /// and those of the whole first unit. There are two ranges if the time begins again at 0 in
    /// between.
    pub fn given_between(from: i64, until: i64) -> Vec<(Self, Self)> {
        if until.saturating_sub(from) >= UNIT * UNITS as i64 {
            return vec![(Self([0; 16]), Self([0xff; 16]))];
        }
        let range = |first: u64, end: u64| {
            (first < end).then(|| {
                let last = ((end - 1) << 52) | ((1 << 52) - 1);
                (Self::of_halves(first << 52, 0), Self::of_halves(last, u64::MAX))
            })
        };
        let (first, end) = (unit_of(from), unit_of(until));
        let ranges = match first <= end {
            true => [range(first, end), None],
            false => [range(first, UNITS), range(0, end)],
        };
        ranges.into_iter().flatten().collect()
    }

    /// What the lease was given for. None for a UUID that is no lease id.
    pub fn handle(self) -> Option<Handle> {
        let high = self.half(0);
        let low = self.half(8);
        if high >> 12 & 0xf != 8 || low >> 62 != 0b10 {
            return None;
        }
        let number = low >> LOW_RANDOM_BITS & LAST_NUMBER;
        Some(if low >> 61 & 1 == 0 { Handle::Cursor(number) } else { Handle::Set(number) })
    }

    fn of_halves(high: u64, low: u64) -> Self {
        let mut bytes = [0; 16];
        bytes[..8].copy_from_slice(&high.to_be_bytes());
        bytes[8..].copy_from_slice(&low.to_be_bytes());
        Self(bytes)
    }

    fn half(self, at: usize) -> u64 {
        self.0[at..at + 8].iter().fold(0, |number, &byte| number << 8 | u64::from(byte))
    }
}

/// The unit of time that holds a moment, as it stands in an id.
fn unit_of(moment: i64) -> u64 {
    moment.div_euclid(UNIT) as u64 % UNITS
}

impl fmt::Display for LeaseId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (i, byte) in self.0.iter().enumerate() {
            if matches!(i, 4 | 6 | 8 | 10) {
                f.write_str("-")?;
            }
            write!(f, "{byte:02x}")?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const HOUR: i64 = 3_600_000_000;

    fn handle(set: bool, number: u64) -> Handle {
        if set { Handle::Set(number) } else { Handle::Cursor(number) }
    }

    fn is_among(id: LeaseId, ranges: &[(LeaseId, LeaseId)]) -> bool {
        ranges.iter().any(|(first, last)| (*first..=*last).contains(&id))
    }

    proptest! {
        #[test]
        fn an_id_tells_what_it_covers(
            now in 0..1i64 << 55, number in 0..=LAST_NUMBER, set: bool, random: u64,
        ) {
            let id = LeaseId::new(now, handle(set, number), random);
            prop_assert_eq!(id.handle(), Some(handle(set, number)));
        }

        #[test]
        fn each_of_sixty_random_bits_makes_another_id_of_the_same_handle(
            now in 0..1i64 << 55, number in 0..=LAST_NUMBER, set: bool, random: u64,
        ) {
            let id = |random| LeaseId::new(now, handle(set, number), random);
            let flipped = (0..RANDOM_BITS).map(|bit| id(random ^ 1 << bit));
            let all: std::collections::BTreeSet<LeaseId> = flipped.chain([id(random)]).collect();
            prop_assert_eq!(all.len(), 61);
            prop_assert!(all.iter().all(|id| id.handle() == Some(handle(set, number))));
            prop_assert_eq!(id(random ^ 1 << RANDOM_BITS), id(random));
        }

        #[test]
        fn a_range_of_time_holds_what_was_given_in_it_and_nothing_given_since(
            until in 0..1i64 << 55, back in 0..6 * HOUR, random: u64, number in 0..=LAST_NUMBER,
        ) {
            let ranges = LeaseId::given_between(until - 2 * HOUR, until);
            let given = |at| LeaseId::new(at, Handle::Cursor(number), random);
            let is_in_an_earlier_unit = until.div_euclid(UNIT) > (until - back).div_euclid(UNIT);
            let is_inside = back <= 2 * HOUR && is_in_an_earlier_unit;
            let is_outside = back > 2 * HOUR + UNIT;
            prop_assert!(!is_inside || is_among(given(until - back), &ranges));
            prop_assert!(!is_outside || !is_among(given(until - back), &ranges));
            prop_assert!(!is_among(given(until + back), &ranges));
        }

        #[test]
        fn any_sixteen_bytes_are_read_without_panic(bytes: [u8; 16]) {
            let _ = LeaseId(bytes).handle();
        }
    }

    #[test]
    fn ids_grow_with_time_but_where_it_comes_round() {
        let round = UNIT * UNITS as i64;
        let given = |at| LeaseId::new(at, Handle::Cursor(7), u64::MAX);
        assert!(given(round) < given(round + UNIT));
        assert!(given(round + UNIT) < given(2 * round - 1));
        assert_eq!(given(round), given(2 * round));
        assert_eq!(LeaseId::given_between(round - HOUR, round + HOUR).len(), 2);
        assert_eq!(LeaseId::given_between(round + HOUR, round + 3 * HOUR).len(), 1);
        assert!(is_among(given(0), &LeaseId::given_between(0, round)));
    }

    #[test]
    fn it_is_a_uuid_of_version_8() {
        let text = LeaseId::new(UNIT * 0xabc, Handle::Cursor(1), u64::MAX).to_string();
        assert_eq!(text, "abcfffff-ffff-8fff-8000-000000001fff");
        let last = LeaseId::new(0, Handle::Set(LAST_NUMBER), 0).to_string();
        assert_eq!(last, "00000000-0000-8000-bfff-fffffffff000");
    }

    #[test]
    fn numbers_last_for_a_hundred_years() {
        assert!(LAST_NUMBER as f64 / 100_000.0 / (365.25 * 86_400.0) > 100.0);
    }

    #[test]
    fn a_random_uuid_covers_nothing() {
        assert_eq!(LeaseId([0x4a; 16]).handle(), None);
    }
}
