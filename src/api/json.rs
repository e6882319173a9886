//! JSON arguments: typed by serde, refused with 22023 and serde's own words.

use serde::Deserialize;

use super::args::{Bounds, json_text};
use crate::error::{Error, Result, cut};
use crate::pg::allocator;
use crate::pg::datum::{JsonText, Jsonb};

/// Bytes of a parsed element at most, apart from the text of its strings, while their list grows.
const ELEMENT: usize = 1024;
/// Bytes kept of serde's message, which may quote what it has read.
const WORDS: usize = 1024;

/// The text of an argument within its bounds, when there is the memory to parse it.
pub fn text(what: &str, value: Jsonb, bounds: &Bounds) -> Result<JsonText> {
    let (text, count) = json_text(what, value, bounds)?;
    // Strings are copied at most, and quoted in an error once more.
    allocator::ensure(2 * text.len() + count * ELEMENT)?;
    Ok(text)
}

/// Strings, and values that are passed on, are borrowed from the text where the type says so.
pub fn parse<'a, T: Deserialize<'a>>(what: &str, text: &'a str) -> Result<T> {
    let parsed = serde_json::from_str(text).map_err(|error| {
        Error::invalid(
            format!("{what} is not of the expected shape"),
            cut(&error.to_string(), WORDS),
            "See the reference for its fields; unknown ones are refused.",
        )
    });
    allocator::check();
    parsed
}
