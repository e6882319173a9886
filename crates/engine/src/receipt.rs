//! What is remembered of a lease that has ended.
//!
//! A consumer whose reply was lost repeats its call, and a consumer that was too slow comes after
//! the end of its lease. The receipt tells the two apart: what this lease has settled counts as
//! settled before, and for the rest the consumer is told how the lease ended. Each cursor of the
//! lease has a receipt of its own. The extension keeps it for at least an hour.

use serde::{Deserialize, Serialize};

use crate::cursor::Lease;
use crate::lease::LeaseId;
use crate::message::{MessageId, Span, Spans};

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

/// A lease that has ended on one cursor, and its receipt. Where it is stored, the bytes of the id
/// stand as they are: a statement looks for them (`PAGED_TABLES` in `src/store/sweep.rs`).
pub type EndedLease = (LeaseId, Receipt);

/// One receipt for all claims on which a lease has ended in the same way, for each lease and each
/// way. In the order of the first of each.
pub fn joined(all: impl IntoIterator<Item = EndedLease>) -> Vec<EndedLease> {
    let mut joined: Vec<EndedLease> = Vec::new();
    for (lease, receipt) in all {
        let kind = |receipt: &Receipt| (receipt.ending, receipt.deadline);
        let alike =
            joined.iter_mut().find(|(of, other)| *of == lease && kind(other) == kind(&receipt));
        match alike {
            None => joined.push((lease, receipt)),
            Some((_, into)) => {
                into.done.extend(receipt.done.iter());
                into.dead.extend(receipt.dead.iter());
                into.open.extend(receipt.open.iter());
            }
        }
    }
    joined
}

impl Receipt {
    /// What it says of one message; None if the lease was never given it.
    pub fn about(&self, message: MessageId) -> Option<Self> {
        let only = |all: &Spans| -> Spans {
            let one = |span: Span| Span { first: message.index(), len: 1, ..span };
            all.find(message).map(one).into_iter().collect()
        };
        let [done, dead, open] = [&self.done, &self.dead, &self.open].map(only);
        let is_in_it = [&done, &dead, &open].into_iter().any(|spans| !spans.is_empty());
        let Self { ending, deadline, .. } = *self;
        is_in_it.then_some(Self { ending, deadline, done, dead, open })
    }

    /// The receipt of a lease that ends now.
    pub fn of(lease: Lease, ending: Ending) -> Self {
        let Lease { deadline, held, done, dead, .. } = lease;
        Self { ending, deadline, done, dead, open: held }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::codec::{decode_each, encode_each};
    use proptest::prelude::*;

    /// The receipt of a claim: of one message, which was completed, or is open.
    fn of_claim(lease: u64, message: i64, is_done: bool) -> EndedLease {
        let one: Spans = [Span::of(MessageId::from_sql(message))].into_iter().collect();
        let (done, open) = if is_done { (one, Spans::new()) } else { (Spans::new(), one) };
        let ending = if is_done { Ending::Settled } else { Ending::GaveBack };
        let receipt = Receipt { ending, deadline: 9, done, dead: Spans::new(), open };
        (LeaseId::of_set(lease, 5), receipt)
    }

    proptest! {
        #[test]
        fn receipts_that_are_joined_say_of_each_message_what_its_own_said(
            claims in prop::collection::btree_map((0..3u64, 0..200i64), any::<bool>(), 0..60),
        ) {
            let of = |((lease, message), is_done): (&(u64, i64), &bool)| {
                of_claim(*lease, *message, *is_done)
            };
            let joined = joined(claims.iter().map(of));
            prop_assert!(joined.len() <= 6);
            for ((lease, message), is_done) in &claims {
                let (own, receipt) = of_claim(*lease, *message, *is_done);
                let of_lease = joined.iter().filter(|(lease, _)| *lease == own);
                let message = MessageId::from_sql(*message);
                let about = of_lease.filter_map(|(_, all)| all.about(message));
                prop_assert_eq!(about.collect::<Vec<_>>(), [receipt]);
            }
        }

        #[test]
        fn what_is_stored_can_be_put_one_behind_the_other(
            first in 0..4usize, second in 0..4usize, damage in 0..200usize,
        ) {
            let all: Vec<EndedLease> =
                (0..first + second).map(|i| of_claim(1, i as i64 * 100, i % 2 == 0)).collect();
            let (front, back) = all.split_at(first);
            let stored = [encode_each(front), encode_each(back)].concat();
            prop_assert_eq!(&decode_each::<EndedLease>(&stored), &Ok(all));
            let cut = stored.len().saturating_sub(damage);
            let _ = decode_each::<EndedLease>(&stored[..cut]);
        }
    }

    #[test]
    fn the_id_of_the_lease_is_stored_as_it_is() {
        let ended = of_claim(7, 28, true);
        assert_eq!(encode_each([&ended])[1..17], ended.0.0);
    }
}
