//! What is remembered of a lease that has ended.
//!
//! A consumer whose reply was lost repeats its call, and a consumer that was too slow comes after
//! the end of its lease. The receipt tells the two apart: what this lease has settled counts as
//! settled before, and for the rest the consumer is told how the lease ended. Each cursor of the
//! lease has a receipt of its own. The extension keeps it for at least an hour.
//!
//! **As stored**, a receipt is the way in which the lease ended, and what follows from that. Only
//! one with failures or retries says of which messages. Versions up to 0.1.0 have not written
//! these: such a receipt says [`Ending::GaveBack`], and names no message that came back.

use serde::{Deserialize, Deserializer, Serialize, Serializer};

use crate::cursor::Lease;
use crate::lease::LeaseId;
use crate::message::{MessageId, Span, Spans};

/// How a lease ended. As stored, each has the number of its place.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
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
#[derive(Clone, Debug, PartialEq, Eq)]
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
    /// What its holder said when it gave back messages; nothing if the lease ended otherwise.
    pub said: Said,
}

/// Messages for which the holder of a lease reported a failure or asked for a retry. That ended the
/// lease, so these are of one call.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Said {
    /// Messages that failed, be they open or, because they were exhausted, dead.
    pub failed: Spans,
    /// Messages to be delivered again, all of them open.
    pub retried: Spans,
}

impl Said {
    /// Nothing was said, or a version up to 0.1.0 has not written it down.
    pub fn is_empty(&self) -> bool {
        self.failed.is_empty() && self.retried.is_empty()
    }
}

/// The number, as stored, of a lease that gave back messages, and with them what was said.
const GAVE_BACK_AS_SAID: u32 = 4;

impl Serialize for Receipt {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let Self { ending, deadline, done, dead, open, said } = self;
        match said.is_empty() {
            true => (ending, deadline, done, dead, open).serialize(serializer),
            false => (GAVE_BACK_AS_SAID, deadline, done, dead, open, said).serialize(serializer),
        }
    }
}

impl<'de> Deserialize<'de> for Receipt {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        /// Deadline, done, dead, open.
        type Rest = (i64, Spans, Spans, Spans);
        /// In the order of their numbers.
        #[derive(Deserialize)]
        enum Layout {
            Settled(Rest),
            GaveBack(Rest),
            Expired(Rest),
            Revoked(Rest),
            GaveBackAsSaid(Rest, Said),
        }
        let (ending, rest, said) = match Layout::deserialize(deserializer)? {
            Layout::Settled(rest) => (Ending::Settled, rest, Said::default()),
            Layout::GaveBack(rest) => (Ending::GaveBack, rest, Said::default()),
            Layout::Expired(rest) => (Ending::Expired, rest, Said::default()),
            Layout::Revoked(rest) => (Ending::Revoked, rest, Said::default()),
            Layout::GaveBackAsSaid(rest, said) => (Ending::GaveBack, rest, said),
        };
        let (deadline, done, dead, open) = rest;
        Ok(Self { ending, deadline, done, dead, open, said })
    }
}

/// A lease that has ended on one cursor, and its receipt. Where it is stored, the bytes of the id
/// stand as they are: a statement looks for them (`PAGED_TABLES` in `src/store/sweep.rs`).
pub type EndedLease = (LeaseId, Receipt);

/// One receipt for all claims on which a lease has ended in the same way, for each lease and each
/// way. In the order of the first of each.
pub fn joined(all: impl IntoIterator<Item = EndedLease>) -> Vec<EndedLease> {
    let mut joined: Vec<EndedLease> = Vec::new();
    for (lease, receipt) in all {
        let kind = |one: &Receipt| (one.ending, one.deadline, one.said.is_empty());
        let alike =
            joined.iter_mut().find(|(of, other)| *of == lease && kind(other) == kind(&receipt));
        match alike {
            None => joined.push((lease, receipt)),
            Some((_, into)) => {
                into.done.extend(receipt.done.iter());
                into.dead.extend(receipt.dead.iter());
                into.open.extend(receipt.open.iter());
                into.said.failed.extend(receipt.said.failed.iter());
                into.said.retried.extend(receipt.said.retried.iter());
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
        let [failed, retried] = [&self.said.failed, &self.said.retried].map(only);
        let Self { ending, deadline, .. } = *self;
        let said = Said { failed, retried };
        is_in_it.then_some(Self { ending, deadline, done, dead, open, said })
    }

    /// The receipt of a lease that ends now.
    pub fn of(lease: Lease, ending: Ending) -> Self {
        let Lease { deadline, held, done, dead, .. } = lease;
        Self { ending, deadline, done, dead, open: held, said: Said::default() }
    }

    /// The receipt of a lease whose holder gives back what is left, by what it says.
    pub fn gave_back(lease: Lease, said: Said) -> Self {
        Self { said, ..Self::of(lease, Ending::GaveBack) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::codec::{decode, decode_each, encode, encode_each};
    use proptest::prelude::*;

    fn one(message: i64) -> Spans {
        [Span::of(MessageId::from_sql(message))].into_iter().collect()
    }

    /// The receipt of a claim, which has one message: completed, failed, exhausted by a failure, to
    /// be delivered again, dead, or expired.
    fn of_claim(lease: u64, message: i64, what: usize) -> EndedLease {
        let (mut done, mut dead, mut open, mut said) = Default::default();
        let ending = [
            Ending::Settled,
            Ending::GaveBack,
            Ending::GaveBack,
            Ending::GaveBack,
            Ending::Settled,
            Ending::Expired,
        ][what];
        match what {
            0 => done = one(message),
            1 | 3 | 5 => open = one(message),
            _ => dead = one(message),
        }
        match what {
            1 | 2 => said = Said { failed: one(message), ..said },
            3 => said = Said { retried: one(message), ..said },
            _ => (),
        }
        (LeaseId::of_set(lease, 5), Receipt { ending, deadline: 9, done, dead, open, said })
    }

    proptest! {
        #[test]
        fn receipts_that_are_joined_say_of_each_message_what_its_own_said(
            claims in prop::collection::btree_map((0..3u64, 0..200i64), 0..6usize, 0..60),
        ) {
            let of = |((lease, message), what): (&(u64, i64), &usize)| {
                of_claim(*lease, *message, *what)
            };
            let joined = joined(claims.iter().map(of));
            prop_assert!(joined.len() <= 9);
            let joined: Vec<EndedLease> = decode_each(&encode_each(&joined)).unwrap();
            for ((lease, message), what) in &claims {
                let (own, receipt) = of_claim(*lease, *message, *what);
                let of_lease = joined.iter().filter(|(lease, _)| *lease == own);
                let message = MessageId::from_sql(*message);
                let about = of_lease.filter_map(|(_, all)| all.about(message));
                prop_assert_eq!(about.collect::<Vec<_>>(), [receipt]);
            }
        }

        #[test]
        fn what_is_stored_can_be_put_one_behind_the_other(
            first in 0..7usize, second in 0..7usize, damage in 0..300usize,
        ) {
            let all: Vec<EndedLease> =
                (0..first + second).map(|i| of_claim(1, i as i64 * 100, i % 6)).collect();
            let (front, back) = all.split_at(first);
            let stored = [encode_each(front), encode_each(back)].concat();
            prop_assert_eq!(&decode_each::<EndedLease>(&stored), &Ok(all));
            let cut = stored.len().saturating_sub(damage);
            let _ = decode_each::<EndedLease>(&stored[..cut]);
        }
    }

    #[test]
    fn the_id_of_the_lease_is_stored_as_it_is() {
        let ended = of_claim(7, 28, 0);
        assert_eq!(encode_each([&ended])[1..17], ended.0.0);
    }

    /// As version 0.1.0 wrote it.
    #[derive(Serialize)]
    struct Old {
        ending: Ending,
        deadline: i64,
        done: Spans,
        dead: Spans,
        open: Spans,
    }

    #[test]
    fn what_0_1_0_wrote_is_read_and_a_lease_without_failures_takes_no_byte_more() {
        for ending in [Ending::Settled, Ending::GaveBack, Ending::Expired, Ending::Revoked] {
            let (deadline, done, dead, open) = (-5, one(3), one(60), one(800));
            let (said, old) = (Said::default(), (done.clone(), dead.clone(), open.clone()));
            let stored = encode(&Old { ending, deadline, done, dead, open });
            let (done, dead, open) = old;
            let receipt = Receipt { ending, deadline, done, dead, open, said };
            assert_eq!(decode::<Receipt>(&stored).as_ref(), Ok(&receipt));
            assert_eq!(encode(&receipt), stored);
        }
    }
}
