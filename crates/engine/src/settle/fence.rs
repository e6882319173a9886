//! Whether a message may be settled under a lease: the *fence*.
//!
//! A consumer that is too slow must not settle what another consumer may have got. So a message is
//! settled only while the lease holds it and is live. After that, settling it is refused, and the
//! refusal tells the consumer what has happened.
//!
//! What a lease has said of a message stands. To say it again is no error and changes nothing,
//! since the reply to the first call may have been lost. To say something else is refused. For that
//! the lease, and after its end its receipt, keep what was settled under it.

use super::{Outcome, Status};
use crate::cursor::{Cursor, Lease};
use crate::lease::LeaseId;
use crate::message::{MessageId, Spans};
use crate::receipt::{Ending, Receipt};

/// Why a settlement is refused. If several reasons apply, the first in this order is told.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Refusal {
    /// Another lease holds the message or has settled it, or it was taken away. `holder` is of the
    /// lease that holds it now, if one does: the deadline, and how often it was delivered.
    Superseded { holder: Option<(i64, u32)> },
    /// The time of the lease is over, and the message is to be delivered again.
    Expired { deadline: i64, deliveries: u32 },
    /// There is neither such a lease nor a receipt of it.
    Unknown,
    /// The lease was never given this message, or has given it back. None if it holds nothing.
    NotInLease { message: Option<MessageId> },
    /// The lease has settled the message with another status.
    AlreadySettled { message: MessageId },
}

/// A lease as it stands with one cursor: as the cursor has it, or as its receipt remembers it.
pub(super) struct Standing<'a> {
    cursor: &'a Cursor,
    /// What it holds, or held when it ended.
    pub(super) held: &'a Spans,
    pub(super) done: &'a Spans,
    dead: &'a Spans,
    /// How it ended, and its deadline. None while it is live.
    pub(super) over: Option<(Ending, i64)>,
}

impl<'a> Standing<'a> {
    /// How the lease stands, and the lease itself if the cursor has it. The time of a lease that
    /// the cursor has may be over: it then stands as an expired one.
    pub(super) fn of(
        cursor: &'a Cursor,
        lease: LeaseId,
        receipt: Option<&'a Receipt>,
        now: i64,
        void_before: i64,
    ) -> Result<(Self, Option<&'a Lease>), Refusal> {
        if let Some(found) = cursor.leases.iter().find(|l| l.id == lease) {
            let live = found.is_live(now, void_before);
            let over = (!live).then_some((Ending::Expired, found.deadline));
            let Lease { held, done, dead, .. } = found;
            return Ok((Self { cursor, held, done, dead, over }, Some(found)));
        }
        let Receipt { ending, deadline, done, dead, open } = receipt.ok_or(Refusal::Unknown)?;
        Ok((Self { cursor, held: open, done, dead, over: Some((*ending, *deadline)) }, None))
    }

    /// Whether `message` may be settled with `status`. None if it may; an outcome if it was settled
    /// so before, and nothing is to be done.
    pub(super) fn judge(
        &self,
        message: MessageId,
        status: Status,
    ) -> Result<Option<Outcome>, Refusal> {
        if self.done.find(message).is_some() {
            return match status {
                Status::Completed => Ok(Some(Outcome::Already)),
                _ => Err(Refusal::AlreadySettled { message }),
            };
        }
        if self.dead.find(message).is_some() {
            return match status {
                // Either may have made the dead letter.
                Status::DeadLetter | Status::Failed { .. } => Ok(Some(Outcome::Already)),
                _ => Err(Refusal::AlreadySettled { message }),
            };
        }
        let Some(span) = self.held.find(message) else {
            return Err(Refusal::NotInLease { message: Some(message) });
        };
        match self.over {
            None => Ok(None),
            Some(over) => Err(self.lost(message, span.deliveries, over)),
        }
    }

    /// Why a message that the lease held and did not settle cannot be settled after its end.
    pub(super) fn lost(&self, message: MessageId, deliveries: u32, over: (Ending, i64)) -> Refusal {
        let (ending, deadline) = over;
        // If it waits, or the cursor still has the lease, no other consumer holds it or has settled
        // it. After a seek, a message that waits was read anew, and this lease has no part in that.
        let still_here = ending != Ending::Revoked
            && (self.cursor.waiting.find(message).is_some()
                || self.cursor.leases.iter().any(|l| std::ptr::eq(&l.held, self.held)));
        match ending {
            _ if !still_here => Refusal::Superseded { holder: self.holder(message) },
            Ending::GaveBack => Refusal::NotInLease { message: Some(message) },
            _ => Refusal::Expired { deadline, deliveries },
        }
    }

    /// Deadline and deliveries of the message under the lease that holds it now.
    fn holder(&self, message: MessageId) -> Option<(i64, u32)> {
        let holds = |l: &Lease| l.held.find(message).map(|s| (l.deadline, s.deliveries));
        self.cursor.leases.iter().find_map(holds)
    }
}
