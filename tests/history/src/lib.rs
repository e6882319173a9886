//! Checks a history: what the clients of a queue have seen, written down by themselves. It knows
//! nothing of the broker, and uses none of its code.
//!
//! **The log** has one JSON object a line, in any order ([`Event`] has the fields). `event` says
//! what it is:
//!
//! | `event` | what |
//! |---|---|
//! | `group` | a consumer group: from where it reads, whether it has order, and writes effects |
//! | `push` | a message that was pushed |
//! | `delivery` | a message as a pop returned it |
//! | `settled` | a message that an accepted call completed or made a dead letter of |
//! | `released` | a lease that gave back what it held of a key |
//! | `extended` | a lease that was extended |
//! | `sought` | a group that was moved |
//! | `effect` | an effect of a message, as found at the end |
//!
//! A *key* is that within which order holds: a partition of a queue. Times are microseconds of the
//! client's wall clock. A call is the interval from before it was sent until after its answer. What
//! it does, it does at some moment in between. Each call belongs to a transaction, which says
//! whether it committed, and in which interval. The end of a lease is a moment of the server's
//! clock, and compared with a slack.
//!
//! **The rules** are those of [`Rule`]. A rule is broken only if no order of the moments inside of
//! the intervals explains the log. So a slow client makes no false alarm.

mod check;
mod event;
mod leases;
mod order;

pub use self::check::{Fault, Rule, check};
pub use self::event::{
    Delivery, Effect, Event, Extended, Group, Interval, Outcome, Push, Reads, Released, Settled,
    Sought, Transaction,
};

/// Read a log. Err: the number of a line that is no event, and why.
pub fn read(log: &str) -> Result<Vec<Event>, (usize, String)> {
    let lines = log.lines().enumerate().filter(|(_, line)| !line.trim().is_empty());
    lines
        .map(|(at, line)| serde_json::from_str(line).map_err(|error| (at + 1, error.to_string())))
        .collect()
}

/// Write a log.
pub fn write(events: &[Event]) -> Result<String, serde_json::Error> {
    let mut log = String::new();
    for event in events {
        log.push_str(&serde_json::to_string(event)?);
        log.push('\n');
    }
    Ok(log)
}
