//! The functions of the contract, with typed arguments and rows.
//!
//! Arguments are passed by name, and NULL stands for the default, as the contract says.

mod marker;
mod pop;
mod push;
mod settle;

use serde_json::{Value, json};

pub use marker::{Applied, marker, put_if_absent};
pub use pop::{Message, Pop};
pub use push::{Item, Push, PushBatch, Pushed};
pub use settle::{Ack, Outcome, Settled, settle};

/// The payload of most tests: a number.
pub fn n(number: i64) -> Value {
    json!({ "n": number })
}

/// The numbers of messages, in the order of their delivery.
pub fn numbers(messages: &[Message]) -> Vec<i64> {
    messages.iter().map(|one| one.payload["n"].as_i64().unwrap_or(i64::MIN)).collect()
}
