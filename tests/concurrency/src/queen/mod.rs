//! The functions of the contract, with typed arguments and rows.
//!
//! Arguments are passed by name, and NULL stands for the default, as the contract says.

mod marker;
mod pop;
mod push;
mod settle;
mod watch;

use anyhow::{Context, Result};
use serde_json::{Value, json};

pub use marker::{Applied, marker, put_if_absent};
pub use pop::{Message, Pop};
pub use push::{Item, Push, PushBatch, Pushed};
pub use settle::{Ack, Outcome, Settled, counts, settle};
pub use watch::{dead_letters, figures_of};

/// The payload of most tests: a number.
pub fn n(number: i64) -> Value {
    json!({ "n": number })
}

/// The numbers of messages, in the order of their delivery.
pub fn numbers(messages: &[Message]) -> Vec<i64> {
    messages.iter().map(|one| one.payload["n"].as_i64().unwrap_or(i64::MIN)).collect()
}

/// The numbers of messages in ascending order, for tests that do not depend on the order.
pub fn sorted(messages: &[Message]) -> Vec<i64> {
    let mut numbers = numbers(messages);
    numbers.sort_unstable();
    numbers
}

/// The message with this number.
pub fn find(messages: &[Message], number: i64) -> Result<&Message> {
    let found = messages.iter().find(|one| one.payload == n(number));
    found.with_context(|| format!("no message {number} in {messages:?}"))
}
