//! What a consumer knows about a lease it holds: enough to tell what each ack must answer.

use std::collections::BTreeSet;

use chrono::{DateTime, Utc};
use rand::RngExt;
use rand::rngs::StdRng;
use rand::seq::SliceRandom;
use uuid::Uuid;

use super::history::{Uid, Unit};

/// A message in a lease.
#[derive(Clone, Debug)]
pub struct Held {
    pub uid: Uid,
    /// The unit it is held with.
    pub unit: Unit,
    pub message_id: i64,
    pub transaction_id: String,
    pub state: State,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum State {
    Open,
    Completed,
    /// Given back, alone or with the rest of its unit.
    GivenBack,
}

#[derive(Clone, Debug)]
pub struct Lease {
    pub id: Uuid,
    pub expires: DateTime<Utc>,
    /// The lease is meant to run out.
    pub brief: bool,
    pub messages: Vec<Held>,
}

impl Lease {
    /// Indexes of the messages that are not settled.
    pub fn open(&self) -> Vec<usize> {
        self.indexes(State::Open)
    }

    pub fn indexes(&self, state: State) -> Vec<usize> {
        (0..self.messages.len()).filter(|n| self.messages[*n].state == state).collect()
    }

    /// Whether nothing of it is left to settle.
    pub fn is_over(&self) -> bool {
        self.open().is_empty()
    }

    /// Some of the open ones, in random order.
    pub fn some_open(&self, rng: &mut StdRng) -> Vec<usize> {
        let mut open = self.open();
        open.shuffle(rng);
        open.truncate(rng.random_range(1..=open.len().max(1)));
        open
    }

    /// Complete these messages. Returns the units in which no message is open any more.
    pub fn complete(&mut self, which: &[usize]) -> BTreeSet<Unit> {
        for n in which {
            self.messages[*n].state = State::Completed;
        }
        let touched = which.iter().map(|n| self.messages[*n].unit);
        touched.filter(|unit| !self.holds(*unit)).collect()
    }

    /// Give a unit back. Returns how many messages that were.
    pub fn give_back(&mut self, unit: Unit) -> usize {
        let mut count = 0;
        for message in &mut self.messages {
            if message.unit == unit && message.state == State::Open {
                message.state = State::GivenBack;
                count += 1;
            }
        }
        count
    }

    fn holds(&self, unit: Unit) -> bool {
        self.messages.iter().any(|one| one.unit == unit && one.state == State::Open)
    }
}
