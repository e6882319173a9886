//! What is remembered of a lease that has ended.
//!
//! A consumer whose reply was lost repeats its call, and a consumer that was too slow comes after
//! the end of its lease. The receipt tells the two apart: what this lease has settled counts as
//! settled before, and for the rest the consumer is told how the lease ended. Each cursor of the
//! lease has a receipt of its own. The extension keeps it for at least an hour.

use serde::{Deserialize, Serialize};

use crate::cursor::Lease;
use crate::message::Spans;

/// How a lease ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Ending {
    /// Its last message was settled.
    Settled,
    /// Its holder reported a failure or asked for a retry, which gave back what was left.
    GaveBack,
    /// Its time was over, and a pop or a sweep put what was left back among what waits.
    Expired,
    /// A seek, a purge, an unsubscription, retention or a change of the ordering took the messages
    /// away.
    Revoked,
}

/// What is remembered of one lease on one cursor.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Receipt {
    pub ending: Ending,
    /// When its time was, or would have been, over.
    pub deadline: i64,
    /// Messages that were completed under it.
    pub done: Spans,
    /// Messages that were dead-lettered or dropped under it.
    pub dead: Spans,
    /// Messages that it still held when it ended.
    pub open: Spans,
}

impl Receipt {
    /// The receipt of a lease that ends now.
    pub fn of(lease: Lease, ending: Ending) -> Self {
        let Lease { deadline, held, done, dead, .. } = lease;
        Self { ending, deadline, done, dead, open: held }
    }
}
