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
use crate::receipt::{Ending, Receipt, Said};

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
    /// The lease was never given this message, or has given it back or made it a dead letter with
    /// another status. None if it holds nothing.
    NotInLease { message: Option<MessageId> },
    /// The lease has completed the message, and now something else is said of it.
    AlreadySettled { message: MessageId },
}

/// A lease as it stands with one cursor: as the cursor has it, or as its receipt remembers it.
pub(super) struct Standing<'a> {
    cursor: &'a Cursor,
    /// What it holds, or held when it ended.
    pub(super) held: &'a Spans,
    pub(super) done: &'a Spans,
    dead: &'a Spans,
    /// What was said when it gave back messages; None while it holds some.
    said: Option<&'a Said>,
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
            return Ok((Self { cursor, held, done, dead, said: None, over }, Some(found)));
        }
        let Receipt { ending, deadline, done, dead, open, said } =
            receipt.ok_or(Refusal::Unknown)?;
        let over = Some((*ending, *deadline));
        Ok((Self { cursor, held: open, done, dead, said: Some(said), over }, None))
    }

    /// The messages, but for completed ones, of which this status was said.
    pub(super) fn said_so(&self, status: Status) -> impl Iterator<Item = MessageId> {
        let open = self.said.into_iter().flat_map(|_| self.held.messages());
        let all = self.dead.messages().chain(open);
        all.filter(move |message| self.was_said(*message, status))
    }

    /// Whether the status was said of the message, which is not completed.
    fn was_said(&self, message: MessageId, status: Status) -> bool {
        let is_dead = self.dead.find(message).is_some();
        let has_failed = self.said.is_some_and(|said| said.failed.find(message).is_some());
        match status {
            Status::Completed => false,
            // Of a lease that gave back messages and does not say which ones have failed, either
            // may have made the dead letter.
            Status::Failed { .. } => has_failed || is_dead && self.is_reticent(),
            Status::Retry { .. } => {
                self.said.is_some_and(|said| said.retried.find(message).is_some())
            }
            Status::DeadLetter => is_dead && !has_failed,
        }
    }

    /// The lease gave back messages, under a version that did not write down what was said.
    fn is_reticent(&self) -> bool {
        matches!(self.over, Some((Ending::GaveBack, _))) && self.said.is_some_and(Said::is_empty)
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
        if self.was_said(message, status) {
            return Ok(Some(Outcome::Already));
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
