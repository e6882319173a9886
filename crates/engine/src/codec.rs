//! How a state becomes the bytes that are stored, and is read back.
//!
//! The first byte is the version of the layout. The rest is postcard: the fields of the type in the
//! order in which the code lists them, without names. So the order of the fields of a stored type
//! is part of the layout and never changes under one version.

use serde::Serialize;
use serde::de::DeserializeOwned;

/// The version of the layout. Code that writes another one has to read this one too.
const VERSION: u8 = 1;
/// The version of a value of [`VERSION`] with another value behind it.
const WITH_TAIL: u8 = 2;

/// The bytes are not what [`encode`] writes for this type.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Damaged;

/// The bytes to store for `value`.
pub fn encode<T: Serialize>(value: &T) -> Vec<u8> {
    // This cannot fail: a Vec takes all that is written, and no stored type refuses to be written.
    postcard::to_extend(value, vec![VERSION]).unwrap_or_default()
}

/// The value that was stored as `bytes`.
pub fn decode<T: DeserializeOwned>(bytes: &[u8]) -> Result<T, Damaged> {
    match bytes.split_first() {
        Some((&VERSION, body)) => postcard::from_bytes(body).map_err(|_| Damaged),
        _ => Err(Damaged),
    }
}

/// The bytes to store for `value` with `tail` behind it. Without a tail, those of [`encode`].
pub fn encode_with_tail<T: Serialize, U: Serialize>(value: &T, tail: Option<&U>) -> Vec<u8> {
    let Some(tail) = tail else { return encode(value) };
    // As in `encode`, this cannot fail.
    let bytes = postcard::to_extend(value, vec![WITH_TAIL]).unwrap_or_default();
    postcard::to_extend(tail, bytes).unwrap_or_default()
}

/// What [`encode_with_tail`] has written, or [`encode`].
pub fn decode_with_tail<T, U>(bytes: &[u8]) -> Result<(T, Option<U>), Damaged>
where
    T: DeserializeOwned,
    U: DeserializeOwned,
{
    match bytes.split_first() {
        Some((&WITH_TAIL, body)) => {
            let (value, rest) = postcard::take_from_bytes(body).map_err(|_| Damaged)?;
            let tail = postcard::from_bytes(rest).map_err(|_| Damaged)?;
            Ok((value, Some(tail)))
        }
        _ => Ok((decode(bytes)?, None)),
    }
}

/// The bytes to store for several values, one after the other. The bytes of more values can be put
/// behind these.
pub fn encode_each<'a, T: Serialize + 'a>(values: impl IntoIterator<Item = &'a T>) -> Vec<u8> {
    values.into_iter().fold(Vec::new(), |mut bytes, value| {
        bytes.push(VERSION);
        // As in `encode`, this cannot fail.
        postcard::to_extend(value, bytes).unwrap_or_default()
    })
}

/// The values that were stored as `bytes`.
pub fn decode_each<T: DeserializeOwned>(mut bytes: &[u8]) -> Result<Vec<T>, Damaged> {
    let mut values = Vec::new();
    while let Some((&version, body)) = bytes.split_first() {
        let (value, rest) = postcard::take_from_bytes(body).map_err(|_| Damaged)?;
        if version != VERSION {
            return Err(Damaged);
        }
        values.push(value);
        bytes = rest;
    }
    Ok(values)
}

/// Writes integers in as few bytes as each needs: seven bits a byte, the lowest first. The top bit
/// of a byte says that more follow.
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

/// Reads what [`Writer`] wrote. It answers None where the bytes end too early, or where a number
/// has more bytes than an integer of 64 bits and a flag can need.
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
