//! Arguments that are JSON: parsed into types by serde, and refused with 22023 and serde's own
//! words.

use std::fmt;

use serde::de::{self, Unexpected, Visitor};
use serde::{Deserialize, Deserializer};

use super::args::{Bounds, json_text};
use crate::error::{Error, Result, cut};
use crate::pg::allocator;
use crate::pg::datum::{JsonText, Jsonb};

/// Bytes of a parsed element at most while the list of elements grows, apart from its strings.
const ELEMENT: usize = 1024;
/// Bytes kept of serde's message, which may quote what it has read.
const WORDS: usize = 1024;

/// The text of an argument within its bounds. 53200 if there is not the memory to parse it.
pub fn text(what: &str, value: Jsonb, bounds: &Bounds) -> Result<JsonText> {
    let (text, count) = json_text(what, value, bounds)?;
    // At worst, each string is copied, and quoted in an error once more.
    allocator::ensure(2 * text.len() + count * ELEMENT)?;
    Ok(text)
}

/// Parse the text of the argument `what`. `fields` tells a user which fields its elements have.
/// Where the type says so, strings and values are borrowed from the text.
pub fn parse<'a, T: Deserialize<'a>>(what: &str, text: &'a str, fields: &str) -> Result<T> {
    let parsed = serde_json::from_str(text).map_err(|error| {
        Error::invalid(
            format!("{what} is not of the expected shape"),
            cut(&error.to_string(), WORDS),
            fields,
        )
    });
    allocator::check();
    parsed
}

/// A message id in JSON: a whole number, or its digits as a string, for clients whose numbers have
/// no 64 bits. JSON null is none.
pub fn message_id<'de, D: Deserializer<'de>>(
    input: D,
) -> std::result::Result<Option<i64>, D::Error> {
    input.deserialize_any(MessageIdVisitor)
}

struct MessageIdVisitor;

impl<'de> Visitor<'de> for MessageIdVisitor {
    type Value = Option<i64>;

    fn expecting(&self, to: &mut fmt::Formatter) -> fmt::Result {
        to.write_str("a message id: a whole number, or its digits as a string")
    }

    fn visit_i64<E: de::Error>(self, id: i64) -> std::result::Result<Self::Value, E> {
        Ok(Some(id))
    }

    fn visit_u64<E: de::Error>(self, id: u64) -> std::result::Result<Self::Value, E> {
        i64::try_from(id).map(Some).map_err(|_| E::invalid_value(Unexpected::Unsigned(id), &self))
    }

    fn visit_str<E: de::Error>(self, digits: &str) -> std::result::Result<Self::Value, E> {
        let is_number = !digits.is_empty() && digits.bytes().all(|byte| byte.is_ascii_digit());
        let id = digits.parse().ok().filter(|_| is_number);
        id.map(Some).ok_or_else(|| E::invalid_value(Unexpected::Str(digits), &self))
    }

    fn visit_unit<E: de::Error>(self) -> std::result::Result<Self::Value, E> {
        Ok(None)
    }
}
