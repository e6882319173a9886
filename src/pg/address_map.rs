//! Maps by an address, an OID or another number of ours, which are looked up many times in a call.

use std::collections::HashMap;
use std::hash::{BuildHasherDefault, Hasher};

pub type AddressMap<K, V> = HashMap<K, V, BuildHasherDefault<Spread>>;

/// Spreads numbers by one multiplication; no user can choose them so that they collide.
#[derive(Default)]
pub struct Spread(u64);

/// 2^64 divided by the golden ratio, which is odd.
const FACTOR: u64 = 0x9e37_79b9_7f4a_7c15;

impl Hasher for Spread {
    fn finish(&self) -> u64 {
        self.0 ^ self.0 >> 32
    }

    fn write(&mut self, bytes: &[u8]) {
        bytes.iter().for_each(|byte| self.write_u64(u64::from(*byte)));
    }

    fn write_u32(&mut self, number: u32) {
        self.write_u64(u64::from(number));
    }

    fn write_usize(&mut self, number: usize) {
        self.write_u64(number as u64);
    }

    fn write_u64(&mut self, number: u64) {
        self.0 = (self.0 ^ number).wrapping_mul(FACTOR);
    }
}
