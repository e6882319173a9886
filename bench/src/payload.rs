//! The messages: JSON objects of a given size. All are different, and every run has the same ones.

use std::error::Error;

use bytes::{BufMut, BytesMut};
use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};
use serde::Serialize;
use serde_json::{Value, json};
use tokio_postgres::types::{IsNull, ToSql, Type, accepts, to_sql_checked};

/// How many different payloads there are. A batch is a run of them.
pub const POOL: usize = 1000;

const SMALL_BYTES: usize = 90;
const LARGE_BYTES: usize = 2048;

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub enum Size {
    #[serde(rename = "90 B")]
    Small,
    #[serde(rename = "2 KiB")]
    Large,
}

impl Size {
    pub fn label(self) -> &'static str {
        match self {
            Self::Small => "90 B",
            Self::Large => "2 KiB",
        }
    }

    pub fn bytes(self) -> usize {
        match self {
            Self::Small => SMALL_BYTES,
            Self::Large => LARGE_BYTES,
        }
    }
}

/// A message as JSON text, made once, so that the driver spends its time on the systems and not on
/// JSON.
#[derive(Debug)]
pub struct Payload(Box<str>);

impl Payload {
    pub fn text(&self) -> &str {
        &self.0
    }
}

impl ToSql for Payload {
    fn to_sql(&self, _: &Type, out: &mut BytesMut) -> Result<IsNull, Box<dyn Error + Sync + Send>> {
        const VERSION: u8 = 1;
        out.put_u8(VERSION);
        out.put_slice(self.0.as_bytes());
        Ok(IsNull::No)
    }

    accepts!(JSONB);
    to_sql_checked!();
}

/// Both pools of payloads.
pub struct Payloads {
    small: Vec<Payload>,
    large: Vec<Payload>,
}

impl Payloads {
    pub fn generate() -> Self {
        let mut rng = StdRng::seed_from_u64(16);
        let mut pool = |size: Size| (0..POOL).map(|n| order(n, size.bytes(), &mut rng)).collect();
        Self { small: pool(Size::Small), large: pool(Size::Large) }
    }

    pub fn pool(&self, size: Size) -> &[Payload] {
        match size {
            Size::Small => &self.small,
            Size::Large => &self.large,
        }
    }

    pub fn one(&self, size: Size, n: u64) -> &Payload {
        &self.pool(size)[index(n)]
    }

    /// `count` payloads from the `n`th on. `count` is at most [`POOL`].
    pub fn batch(&self, size: Size, n: u64, count: usize) -> &[Payload] {
        let from = index(n).min(POOL - count);
        &self.pool(size)[from..from + count]
    }
}

fn index(n: u64) -> usize {
    usize::try_from(n % POOL as u64).unwrap_or_default()
}

/// An order whose JSON text has this many bytes. The note is random, so that no system compresses
/// it better than it would compress real messages.
fn order(n: usize, bytes: usize, rng: &mut StdRng) -> Payload {
    let bare = object(n, "");
    let missing = bytes.saturating_sub(bare.to_string().len());
    let note: String = (0..missing).map(|_| char::from(rng.random_range(b'a'..=b'z'))).collect();
    Payload(object(n, &note).to_string().into())
}

fn object(n: usize, note: &str) -> Value {
    json!({ "order": format!("ORD-{n:06}"), "cents": 1000 + n, "note": note })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn payloads_have_the_size_they_are_named_after() {
        let payloads = Payloads::generate();
        for size in [Size::Small, Size::Large] {
            assert!(payloads.pool(size).iter().all(|p| p.text().len() == size.bytes()));
        }
    }

    #[test]
    fn a_batch_is_as_long_as_asked_for() {
        let payloads = Payloads::generate();
        assert_eq!(payloads.batch(Size::Small, 999, 500).len(), 500);
    }
}
