//! Lease ids: how a lease is named, and how its cursor is found from the name.
//!
//! A consumer settles with nothing but the lease id. The id says which cursor or claim it was given
//! for, or which list of several, so no index over leases is needed. It is a UUID of version 8,
//! whose layout RFC 9562 leaves to its maker:
//!
//! | bits | what |
//! |---|---|
//! | 20 | the lower bits of the revision that gave the lease, for a list 0 |
//! | 1 | whether the number is that of a cursor or claim, or that of a list |
//! | 49 | the number; they last 178 years at 100,000 a second |
//! | 52 | random, so that an id cannot be guessed |
//!
//! The revision says where the receipt of the lease is looked for (`store::receipt`): behind it. A
//! cursor that goes through 2,000 revisions a second comes to the same bits again every 9 minutes;
//! the look-up then tries each of those revisions. A lease is known only if its whole id is the
//! stored one.

use std::fmt;

use serde::{Deserialize, Serialize};

/// Bits of the number of a cursor, a claim or a list. Their sequences end at [`LAST_NUMBER`].
pub const NUMBER_BITS: u32 = 49;
/// The highest number that an id can carry.
pub const LAST_NUMBER: u64 = (1 << NUMBER_BITS) - 1;
/// How many bits of an id are random.
pub const RANDOM_BITS: u32 = 52;
/// How many bits of a revision an id carries.
pub const REVISION_BITS: u32 = 20;

/// The random bits that stand behind the number. The other 40 stand behind the revision.
const LOW_RANDOM_BITS: u32 = 62 - 1 - NUMBER_BITS;

/// Revisions after which their bits in the id begin again at 0.
const REVISIONS: i64 = 1 << REVISION_BITS;

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
    /// The id of a lease on a cursor, or a claim, that this revision of its state gives. The lower
    /// 52 bits of `random` are used.
    pub fn of_one(id: u64, revision: i64, random: u64) -> Self {
        Self::new(0, id, revision.rem_euclid(REVISIONS) as u64, random)
    }

    /// The id of a lease on what a list says.
    pub fn of_set(id: u64, random: u64) -> Self {
        Self::new(1, id, 0, random)
    }

    fn new(kind: u64, number: u64, revision: u64, random: u64) -> Self {
        let early = random >> LOW_RANDOM_BITS & ((1 << 40) - 1);
        let high = revision << 44 | early >> 12 << 16 | 0x8000 | early & 0xfff;
        let low = 0b10 << 62
            | kind << 61
            | (number & LAST_NUMBER) << LOW_RANDOM_BITS
            | random & ((1 << LOW_RANDOM_BITS) - 1);
        Self::of_halves(high, low)
    }

    /// The revisions up to `newest` that may have given this lease on one cursor or claim, the
    /// latest first.
    pub fn given_by(self, newest: i64) -> impl Iterator<Item = i64> {
        let bits = (self.half(0) >> 44) as i64;
        let latest = newest.saturating_sub((newest.wrapping_sub(bits)).rem_euclid(REVISIONS));
        (0..).map_while(move |n| {
            let revision = latest.checked_sub(REVISIONS.checked_mul(n)?)?;
            (revision >= 0).then_some(revision)
        })
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

    fn id(set: bool, number: u64, revision: i64, random: u64) -> LeaseId {
        match set {
            true => LeaseId::of_set(number, random),
            false => LeaseId::of_one(number, revision, random),
        }
    }

    fn handle(set: bool, number: u64) -> Option<Handle> {
        Some(if set { Handle::Set(number) } else { Handle::Cursor(number) })
    }

    proptest! {
        #[test]
        fn an_id_tells_what_it_covers(
            revision in 0..1i64 << 55, number in 0..=LAST_NUMBER, set: bool, random: u64,
        ) {
            prop_assert_eq!(id(set, number, revision, random).handle(), handle(set, number));
        }

        #[test]
        fn each_of_fifty_two_random_bits_makes_another_id_of_the_same_handle(
            revision in 0..1i64 << 55, number in 0..=LAST_NUMBER, set: bool, random: u64,
        ) {
            let id = |random| id(set, number, revision, random);
            let flipped = (0..RANDOM_BITS).map(|bit| id(random ^ 1 << bit));
            let all: std::collections::BTreeSet<LeaseId> = flipped.chain([id(random)]).collect();
            prop_assert_eq!(all.len(), 53);
            prop_assert!(all.iter().all(|id| id.handle() == handle(set, number)));
            let names_it = |id: &LeaseId| id.given_by(revision).next() == Some(revision);
            prop_assert!(set || all.iter().all(names_it));
            prop_assert_eq!(id(random ^ 1 << RANDOM_BITS), id(random));
        }

        #[test]
        fn the_revision_that_gave_a_lease_is_among_those_that_its_id_names(
            given in 0..1i64 << 30, since in 0..1i64 << 24, number in 0..=LAST_NUMBER, random: u64,
        ) {
            let newest = given + since;
            let named: Vec<i64> = LeaseId::of_one(number, given, random).given_by(newest).collect();
            prop_assert!(named.contains(&given));
            prop_assert!(named.iter().all(|revision| (0..=newest).contains(revision)));
            // A lookup tries one for each 2^20 revisions since.
            let tried = named.iter().take_while(|revision| **revision > given).count() as i64;
            prop_assert_eq!(tried, since >> 20);
            prop_assert!(named.is_sorted_by(|later, earlier| later > earlier));
        }

        #[test]
        fn any_sixteen_bytes_are_read_without_panic(bytes: [u8; 16], newest: i64) {
            let _ = LeaseId(bytes).handle();
            let newest = newest.saturating_add(1 << 21);
            let _ = LeaseId(bytes).given_by(newest).take(3).count();
        }
    }

    #[test]
    fn it_is_a_uuid_of_version_8() {
        let text = LeaseId::of_one(1, 0x7_0000_0000 + 0xabcde, u64::MAX).to_string();
        assert_eq!(text, "abcdefff-ffff-8fff-8000-000000001fff");
        let last = LeaseId::of_set(LAST_NUMBER, 0).to_string();
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
