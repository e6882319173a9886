//! What a call says of a lease's messages, item by item, and what it is told.

use std::rc::Rc;

use queen_engine::message::MessageId;
use queen_engine::settle::{Outcome, Status};

/// What a statement of outcome names.
#[derive(Clone, Debug)]
pub enum SettleTarget {
    /// Everything the lease holds that is not settled yet.
    All,
    Message(MessageId),
    /// All messages of the lease that carry it, in one partition.
    Transaction(Rc<str>),
}

/// One statement of outcome: what became of the messages that it names.
#[derive(Clone, Debug)]
pub struct SettleItem {
    pub target: SettleTarget,
    /// Of this partition alone; None: of whichever has them.
    pub partition: Option<Rc<str>>,
    pub status: Status,
    /// The text of the error, shared by all messages of the call.
    pub error: Option<Rc<str>>,
}

/// What became of one named message.
#[derive(Clone, Debug)]
pub struct Settled {
    pub message: MessageId,
    pub partition: Rc<str>,
    /// Empty unless it was asked for.
    pub transaction_id: String,
    pub outcome: Outcome,
    /// The item that named it.
    pub item: usize,
}

/// The result of settling a lease.
#[derive(Debug, Default)]
pub struct Report {
    pub settled: Vec<Settled>,
    /// For each item: messages it found settled before, beyond those in `settled`.
    pub already: Vec<usize>,
    /// Nothing of the lease is left.
    pub released: bool,
}

impl Report {
    /// (settled, already, dead-lettered) of the messages named by the items that `of` picks.
    pub fn counts(&self, of: impl Fn(usize) -> bool) -> (i32, i32, i32) {
        let mut counts = (0, 0, 0);
        for settled in self.settled.iter().filter(|settled| of(settled.item)) {
            match settled.outcome {
                Outcome::Already => counts.1 += 1,
                Outcome::DeadLettered => (counts.0, counts.2) = (counts.0 + 1, counts.2 + 1),
                _ => counts.0 += 1,
            }
        }
        let already: usize =
            self.already.iter().enumerate().filter(|(item, _)| of(*item)).map(|(_, n)| n).sum();
        (counts.0, counts.1 + already as i32, counts.2)
    }
}
