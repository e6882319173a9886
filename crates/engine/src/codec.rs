//! How state is written into a bytea: a version byte, then postcard.

use serde::Serialize;
use serde::de::DeserializeOwned;

/// The first byte of everything stored. A later layout takes another number and reads this one.
const VERSION: u8 = 1;

/// Stored bytes that do not read back.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Damaged;

pub fn encode<T: Serialize>(value: &T) -> Vec<u8> {
    // Writing into a Vec can't fail, and none of the types refuses to be serialized.
    postcard::to_extend(value, vec![VERSION]).unwrap_or_default()
}

pub fn decode<T: DeserializeOwned>(bytes: &[u8]) -> Result<T, Damaged> {
    match bytes.split_first() {
        Some((&VERSION, body)) => postcard::from_bytes(body).map_err(|_| Damaged),
        _ => Err(Damaged),
    }
}

/// Appends integers in groups of seven bits.
#[derive(Default)]
pub(crate) struct Writer(Vec<u8>);

impl Writer {
    pub fn unsigned(&mut self, mut value: u128) {
        while value >= 0x80 {
            self.0.push(value as u8 | 0x80);
            value >>= 7;
        }
        self.0.push(value as u8);
    }

    pub fn bytes(&mut self, bytes: &[u8]) {
        self.0.extend_from_slice(bytes);
    }

    pub fn finish(self) -> Vec<u8> {
        self.0
    }
}

/// Reads what [`Writer`] wrote; None where the bytes end early or a number is too long.
pub(crate) struct Reader<'a>(&'a [u8]);

impl<'a> Reader<'a> {
    pub fn new(bytes: &'a [u8]) -> Self {
        Self(bytes)
    }

    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    pub fn bytes(&mut self, count: usize) -> Option<&'a [u8]> {
        let (bytes, rest) = self.0.split_at_checked(count)?;
        self.0 = rest;
        Some(bytes)
    }

    pub fn unsigned(&mut self) -> Option<u128> {
        let mut value = 0u128;
        for shift in (0..=63).step_by(7) {
            let (&byte, rest) = self.0.split_first()?;
            self.0 = rest;
            value |= u128::from(byte & 0x7f) << shift;
            if byte & 0x80 == 0 {
                return Some(value);
            }
        }
        None
    }
}
