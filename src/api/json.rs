//! JSON arguments: typed by serde, refused with 22023 and serde's own words.

use serde::de::DeserializeOwned;

use crate::error::{Error, Result};

pub fn parse<T: DeserializeOwned>(what: &str, text: &str) -> Result<T> {
    serde_json::from_str(text).map_err(|error| {
        Error::invalid(
            format!("{what} is not of the expected shape"),
            error.to_string(),
            "See the reference for its fields; unknown ones are refused.",
        )
    })
}
