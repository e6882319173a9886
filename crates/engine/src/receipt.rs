//! What is remembered of a lease that has ended, so that its holder is answered rightly.

use serde::{Deserialize, Serialize};

use crate::cursor::Lease;
use crate::message::Spans;

/// How a lease ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Ending {
    /// Its last message was settled.
    Settled,
    /// A failure or a retry gave back what was left.
    GaveBack,
    /// Its time was over and somebody came for the messages.
    Expired,
    /// A seek, a purge or an unsubscribe took the messages away.
    Revoked,
}

/// The trace of one ended lease on one cursor.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Receipt {
    pub ending: Ending,
    pub deadline: i64,
    pub done: Spans,
    pub dead: Spans,
    /// What was unsettled at the end.
    pub open: Spans,
}

impl Receipt {
    pub fn of(lease: Lease, ending: Ending) -> Self {
        let Lease { deadline, held, done, dead, .. } = lease;
        Self { ending, deadline, done, dead, open: held }
    }
}
