//! What is pushed, and what becomes of it.

use std::rc::Rc;

use crate::pg::datum::Jsonb;

/// A queue and a partition, by their names.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Destination {
    pub queue: Rc<str>,
    pub partition: Rc<str>,
}

/// A message to be pushed, its parts checked.
#[derive(Clone, Debug)]
pub struct Message {
    pub to: Destination,
    pub payload: Jsonb,
    /// None: derived from the message's id.
    pub transaction_id: Option<String>,
    pub headers: Option<Jsonb>,
    /// It comes from the table of timers, and its transaction_id was admitted when it was put
    /// there.
    pub was_admitted: bool,
}

/// What became of a pushed message.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Pushed {
    /// The id of the message, or of the original that it duplicates. None: it is not in the log
    /// yet.
    pub message: Option<i64>,
    pub transaction_id: String,
    pub status: PushStatus,
    /// It duplicates a message that an earlier call pushed.
    pub was_stored_before: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PushStatus {
    /// In the log.
    Queued,
    /// Not stored: its transaction_id has been pushed before.
    Duplicate,
    /// In the table of timers.
    Scheduled,
}

impl PushStatus {
    /// What a user is told.
    pub fn name(self) -> &'static str {
        match self {
            PushStatus::Queued => "queued",
            PushStatus::Duplicate => "duplicate",
            PushStatus::Scheduled => "scheduled",
        }
    }
}

impl Pushed {
    /// In the table of timers.
    pub fn scheduled(transaction_id: String) -> Self {
        let status = PushStatus::Scheduled;
        Self { message: None, transaction_id, status, was_stored_before: false }
    }

    /// Not stored. `message`: the id of the original, if that is in the log.
    pub fn duplicate_of(message: Option<i64>, transaction_id: String) -> Self {
        let status = PushStatus::Duplicate;
        Self { message, transaction_id, status, was_stored_before: true }
    }
}
