//! What is pushed, and what becomes of it.

use std::rc::Rc;

use queen_engine::message::{DERIVED_MAX, MessageId};

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
    pub transaction_id: Option<Rc<str>>,
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
    /// None: derived from the message's id.
    pub given_id: Option<Rc<str>>,
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
    pub const COUNT: usize = 3;

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
    pub fn scheduled(transaction_id: Rc<str>) -> Self {
        let (given_id, status) = (Some(transaction_id), PushStatus::Scheduled);
        Self { message: None, given_id, status, was_stored_before: false }
    }

    /// Not stored. `message`: the id of the original, if that is in the log.
    pub fn duplicate_of(message: Option<i64>, transaction_id: Rc<str>) -> Self {
        let (given_id, status) = (Some(transaction_id), PushStatus::Duplicate);
        Self { message, given_id, status, was_stored_before: true }
    }

    /// Its transaction_id; `room` is for one that is derived.
    pub fn transaction_id<'a>(&'a self, room: &'a mut [u8; DERIVED_MAX]) -> &'a str {
        match &self.given_id {
            Some(given) => given,
            None => MessageId::from_sql(self.message.unwrap_or(0)).derived_in(room),
        }
    }
}
