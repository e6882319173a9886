//! The tables of schema `queen_mq`: one file for each, with its columns, its statements and its
//! direct reads and writes. And all locks that are no rows ([`locks`]). Nothing here decides.

pub mod admission;
pub mod aging;
pub mod binding;
pub mod claim;
pub mod cursor;
pub mod cursor_or_claim;
pub mod dead_letter;
pub mod discovery;
pub mod grants;
pub mod group;
pub mod group_options;
pub mod group_pages;
pub mod group_removal;
pub mod held_up;
pub mod identity;
pub mod lease_set;
pub mod located;
pub mod locks;
pub mod long_walk;
pub mod marker;
mod newest;
mod numeric;
mod options;
mod pass;
pub mod progress;
pub mod queue;
pub mod receipt;
pub mod replay;
pub mod schema;
pub mod seen_snapshot;
pub mod segment;
pub mod shown;
pub mod sweep;
pub mod tally;
#[cfg(any(test, feature = "pg_test"))]
#[allow(clippy::expect_used)]
mod tests;
pub mod timer;
pub mod unit;
pub mod waterline;

use queen_engine::codec;
use serde::de::DeserializeOwned;

use crate::error::{Error, Result};
use crate::pg::catalogue;
use crate::pg::table::Table;

/// Read a state that the engine has written, and that lies in `table`.
fn decode<T: DeserializeOwned>(bytes: &[u8], table: &Table, what: &str) -> Result<T> {
    codec::decode(bytes).map_err(|_| damaged(table, what))
}

/// Read what the engine has written with `encode_each`, and lies in `table`.
fn decode_each<T: DeserializeOwned>(bytes: &[u8], table: &Table, what: &str) -> Result<Vec<T>> {
    codec::decode_each(bytes).map_err(|_| damaged(table, what))
}

fn damaged(table: &Table, what: &str) -> Error {
    let table = catalogue::full_name(table.name);
    Error::corrupt_in(&table, format!("{what} does not read back"))
}

/// An id as Rust counts it. It is stored as bigint, and never negative.
fn unsigned(value: i64) -> u64 {
    value as u64
}

/// An id as it is stored.
fn signed(value: u64) -> i64 {
    value as i64
}
