//! The lines of a log.

use serde::{Deserialize, Serialize};

/// When a call was sent, and when its answer had come.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Interval(pub i64, pub i64);

impl Interval {
    pub fn sent(self) -> i64 {
        self.0
    }

    pub fn answered(self) -> i64 {
        self.1
    }

    /// Whether all of it lies before all of the other one.
    pub fn is_before(self, other: Interval) -> bool {
        self.1 < other.0
    }
}

/// The transaction of a call. One session makes its calls, one after the other. What was rolled
/// back to a savepoint counts as a transaction that has rolled back.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Transaction {
    pub id: u64,
    pub committed: bool,
    /// The call that ended it.
    pub end: Interval,
}

/// From where a group reads.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Reads {
    All,
    /// What commits after its registration, which was this call.
    New(Interval),
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Group {
    pub group: String,
    pub reads: Reads,
    pub ordered: bool,
    /// It writes one effect with each message that it completes.
    pub effects: bool,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Push {
    pub key: String,
    pub message: u64,
    /// Messages of one producer are in the order of its calls.
    pub producer: u64,
    pub call: Interval,
    /// The place among the messages of one call.
    pub place: u64,
    pub transaction: Transaction,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Delivery {
    pub group: String,
    pub key: String,
    pub message: u64,
    pub attempt: u64,
    /// None: the pop has settled the message itself.
    pub lease: Option<String>,
    /// When the lease ends, by the server's clock.
    pub expires: Option<i64>,
    /// The call, and its place among the messages of that call.
    pub pop: u64,
    pub place: u64,
    pub call: Interval,
    pub transaction: Transaction,
}

/// What became of a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Outcome {
    Completed,
    DeadLettered,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Settled {
    pub group: String,
    pub message: u64,
    pub outcome: Outcome,
    /// None: the pop has settled the message itself.
    pub lease: Option<String>,
    pub call: Interval,
    pub transaction: Transaction,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Released {
    pub lease: String,
    /// In a group with order: what it held of this key.
    pub key: Option<String>,
    /// In a group without order: this message.
    pub message: Option<u64>,
    pub call: Interval,
    pub transaction: Transaction,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Extended {
    pub lease: String,
    pub expires: i64,
    pub transaction: Transaction,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Sought {
    pub group: String,
    /// None: all keys.
    pub key: Option<String>,
    pub transaction: Transaction,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Effect {
    pub group: String,
    pub message: u64,
}

/// A line of a log.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "event", rename_all = "snake_case")]
pub enum Event {
    Group(Group),
    Push(Push),
    Delivery(Delivery),
    Settled(Settled),
    Released(Released),
    Extended(Extended),
    Sought(Sought),
    Effect(Effect),
}
