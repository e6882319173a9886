//! Fields of a bundle's elements: there, missing, or without a meaning.

use serde::{Deserialize, Deserializer};
use serde_json::value::RawValue;

use crate::api::args;
use crate::error::{Error, Result};

/// Where a user finds the fields.
pub const FIELDS: &str = "See docs/reference/bundle.md for the fields of each operation.";

/// A field that is there, also as JSON null.
pub fn given<'de, D: Deserializer<'de>>(
    input: D,
) -> std::result::Result<Option<&'de RawValue>, D::Error> {
    <&RawValue>::deserialize(input).map(Some)
}

/// The value of a field that the element must have.
pub fn needed<T>(field: &str, value: Option<T>) -> Result<T> {
    value.ok_or_else(|| {
        Error::invalid(format!("{field} is missing"), "The operation needs this field.", FIELDS)
    })
}

/// The error for an operation of a name that does not exist.
pub fn unknown(what: &str, name: &str, hint: &str) -> Error {
    let name = args::quoted(name);
    Error::invalid(format!("unknown {what} \"{name}\""), "There is no such operation.", hint)
}

/// Refuse an element that has one of the fields `others`. `has`: all fields, and whether they are
/// there.
pub fn refuse_fields(what: &str, has: &[(&str, bool)], others: &[&str]) -> Result<()> {
    match has.iter().find(|(name, given)| *given && others.contains(name)) {
        None => Ok(()),
        Some((name, _)) => Err(Error::invalid(
            format!("{what} has no field {name}"),
            "The field would have no effect.",
            FIELDS,
        )),
    }
}
