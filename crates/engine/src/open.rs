//! How a message stands that a group has read and not settled: for those who ask and change
//! nothing.

use crate::cursor::{Cursor, Readiness};
use crate::message::MessageId;

/// A message that is held or waits, as it is at some moment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OpenMessage {
    /// A live lease holds it, up to this moment.
    pub leased_until: Option<i64>,
    /// How often it was delivered; 0 for one that was read with others of its segment.
    pub deliveries: u32,
    /// The moment from which a pop may deliver it, if a later one than that of the pop is known; a
    /// moment that is over means: at once. For a message that was never delivered it says nothing.
    pub ready_at: i64,
}

impl Cursor {
    /// How the message stands at `now`. None if it is neither held nor waits. `void_before` is as
    /// in [`crate::cursor::Lease::is_live`].
    pub fn open_message(
        &self,
        message: MessageId,
        now: i64,
        void_before: i64,
    ) -> Option<OpenMessage> {
        let lease = self.leases.iter().find(|lease| lease.held.find(message).is_some());
        let held = lease.and_then(|lease| lease.held.find(message));
        let span = held.or_else(|| self.waiting.find(message))?;
        let leased_until =
            lease.filter(|lease| lease.is_live(now, void_before)).map(|lease| lease.deadline);
        let since = lease.map(|lease| lease.deadline.min(now)).or(self.retry_at);
        let ready_at = match self.readiness(now, void_before) {
            Readiness::At(at) => at,
            Readiness::Now => since.unwrap_or(self.last_pop_at).min(now),
        };
        Some(OpenMessage { leased_until, deliveries: span.deliveries, ready_at })
    }

    /// The message that is, or was, delivered before all others that are not settled, if it was
    /// delivered at all. In an ordered group the others wait for it.
    pub fn head(&self) -> Option<MessageId> {
        let held = self.leases.iter().find_map(|lease| lease.held.messages().next());
        held.or_else(|| self.came_back().then(|| self.waiting.messages().next()).flatten())
    }

    /// Whether no lease holds anything, and the first message that waits was delivered before.
    pub fn came_back(&self) -> bool {
        let first = self.waiting.iter().next();
        self.leases.is_empty() && first.is_some_and(|span| span.deliveries > 0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cursor::Lease;
    use crate::lease::LeaseId;
    use crate::message::{Span, Spans};

    fn spans(all: &[(u64, u32)]) -> Spans {
        let span =
            |&(segment, deliveries): &(u64, u32)| Span { segment, first: 0, len: 1, deliveries };
        all.iter().map(span).collect()
    }

    fn message(segment: u64) -> MessageId {
        MessageId::new(segment, 0)
    }

    #[test]
    fn a_held_message_is_leased_until_the_deadline_and_comes_back_then() {
        let held = spans(&[(7, 2), (9, 1)]);
        let cursor = Cursor {
            leases: vec![Lease::new(LeaseId::of_set(1, 1), 100, 200, held)],
            waiting: spans(&[(10, 1), (11, 0)]),
            ..Cursor::default()
        };
        let open = |segment, now| cursor.open_message(message(segment), now, 0);
        let live = OpenMessage { leased_until: Some(200), deliveries: 2, ready_at: 200 };
        assert_eq!(open(7, 150), Some(live));
        // The lease of others holds up what waits behind them.
        let behind = OpenMessage { leased_until: None, deliveries: 1, ready_at: 200 };
        assert_eq!(open(10, 150), Some(behind));
        let over = OpenMessage { leased_until: None, deliveries: 2, ready_at: 200 };
        assert_eq!(open(7, 250), Some(over));
        // A lease that came with a dump holds nothing.
        let void = cursor.open_message(message(7), 150, 120);
        assert_eq!(void, Some(OpenMessage { leased_until: None, deliveries: 2, ready_at: 150 }));
        assert_eq!(open(8, 150), None);
        assert_eq!(cursor.head(), Some(message(7)));
    }

    #[test]
    fn what_waits_is_ready_after_its_delay_or_at_once() {
        let mut cursor = Cursor {
            waiting: spans(&[(7, 1), (9, 0)]),
            retry_at: Some(300),
            last_pop_at: 90,
            ..Cursor::default()
        };
        let open = |cursor: &Cursor, now| {
            let open = cursor.open_message(message(7), now, 0).expect("it waits");
            (open.leased_until, open.deliveries, open.ready_at)
        };
        assert_eq!(open(&cursor, 200), (None, 1, 300));
        assert_eq!(open(&cursor, 400), (None, 1, 300));
        cursor.retry_at = None;
        assert_eq!(open(&cursor, 200), (None, 1, 90));
        assert_eq!(cursor.head(), Some(message(7)));
        cursor.waiting = spans(&[(9, 0)]);
        assert_eq!(cursor.head(), None);
        assert_eq!(Cursor::default().head(), None);
    }
}
