//! Lease ids: UUIDs of version 7 that name the cursor they were given for.
//!
//! 48 bits of Unix milliseconds make the ids of a cursor grow with time, so that receipts are
//! appended and not scattered over an index. 38 bits name what is held, 35 are random. The id is
//! compared whole with the stored one: it fences, it does not authorise.

use std::fmt;

use serde::{Deserialize, Serialize};

/// Milliseconds from the Unix epoch to PostgreSQL's, 2000-01-01.
const EPOCH_OFFSET_MS: i64 = 946_684_800_000;

const HANDLE_BITS: u32 = 38;

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct LeaseId(pub [u8; 16]);

/// What a lease covers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Handle {
    /// One cursor.
    Cursor(u64),
    /// Several: the id of a stored list of cursors.
    Set(u64),
}

impl LeaseId {
    /// `now` in microseconds since 2000-01-01; 35 bits of `random` are used.
    pub fn new(now: i64, handle: Handle, random: u64) -> Self {
        let (kind, number) = match handle {
            Handle::Cursor(id) => (0u64, id),
            Handle::Set(id) => (1, id),
        };
        let millis = (now.div_euclid(1000) + EPOCH_OFFSET_MS) as u64 & ((1 << 48) - 1);
        let high = millis << 16 | 0x7000 | (random >> 23 & 0xfff);
        let low = 0b10 << 62
            | kind << 61
            | (number & ((1 << HANDLE_BITS) - 1)) << 23
            | random & ((1 << 23) - 1);
        let mut bytes = [0; 16];
        bytes[..8].copy_from_slice(&high.to_be_bytes());
        bytes[8..].copy_from_slice(&low.to_be_bytes());
        Self(bytes)
    }

    /// Not above any lease given at `moment` or later.
    pub fn earliest(moment: i64) -> Self {
        let mut floor = Self::new(moment, Handle::Cursor(0), 0);
        floor.0[6..].fill(0);
        floor
    }

    /// What it covers; None for a UUID that was never made here.
    pub fn handle(self) -> Option<Handle> {
        let high = self.half(0);
        let low = self.half(8);
        if high >> 12 & 0xf != 7 || low >> 62 != 0b10 {
            return None;
        }
        let number = low >> 23 & ((1 << HANDLE_BITS) - 1);
        Some(if low >> 61 & 1 == 0 { Handle::Cursor(number) } else { Handle::Set(number) })
    }

    /// When it was given, in microseconds since 2000-01-01, cut to the millisecond.
    pub fn given_at(self) -> i64 {
        ((self.half(0) >> 16) as i64 - EPOCH_OFFSET_MS) * 1000
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

    proptest! {
        #[test]
        fn an_id_tells_what_it_covers_and_when(
            now in 0..1i64 << 55, number in 0..1u64 << 38, set: bool, random: u64,
        ) {
            let handle = if set { Handle::Set(number) } else { Handle::Cursor(number) };
            let id = LeaseId::new(now, handle, random);
            prop_assert_eq!(id.handle(), Some(handle));
            prop_assert_eq!(id.given_at(), now.div_euclid(1000) * 1000);
            prop_assert!(LeaseId::earliest(now) <= id && id < LeaseId::earliest(now + 1_000));
        }

        #[test]
        fn any_sixteen_bytes_are_read_without_panic(bytes: [u8; 16]) {
            let _ = (LeaseId(bytes).handle(), LeaseId(bytes).given_at());
        }
    }

    #[test]
    fn it_is_a_uuid_of_version_7() {
        let text = LeaseId::new(0, Handle::Cursor(1), u64::MAX).to_string();
        assert_eq!(text, "00dc6acf-ac00-7fff-8000-0000 00ffffff".replace(' ', ""));
    }

    #[test]
    fn a_random_uuid_covers_nothing() {
        assert_eq!(LeaseId([0x4a; 16]).handle(), None);
    }
}
