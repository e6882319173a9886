//! Arguments that are JSON: parsed into types by serde, and refused with 22023 and serde's own
//! words.

use serde::Deserialize;

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
