//! Which number names a message, and how a list of messages is kept.
//!
//! Messages have no rows of their own: a segment, which is one row, holds several. So the id of a
//! message is computed from the id of its segment and its index there. Lists of messages (held by a
//! lease, waiting, settled) name runs of neighbours, and take about a byte a run as stored.

use std::fmt;

use serde::de::Error as _;
use serde::{Deserialize, Deserializer, Serialize, Serializer};

use crate::codec::{Reader, Writer};

/// The most messages that a segment holds.
///
/// The ids of messages stay below 2^53, up to which the numbers of JSON are exact. With 28 messages
/// in a segment, 2^53 is reached after 101 years of 100,000 segments a second; with twice as many,
/// after half that time.
pub const SEGMENT_CAPACITY: usize = 28;

const CAPACITY: u64 = SEGMENT_CAPACITY as u64;

const PREFIX: &[u8] = b"msg-";

/// Bytes of the longest `transaction_id` that is derived from an id: the prefix and 20 digits.
pub const DERIVED_MAX: usize = PREFIX.len() + 20;

/// The highest id that a segment can have.
pub const LAST_SEGMENT: u64 = (1 << 53) / CAPACITY - 1;

/// The id of a message: the id of its segment times [`SEGMENT_CAPACITY`], plus its index there.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize,
)]
pub struct MessageId(u64);

impl MessageId {
    /// The message at `index` of a segment.
    pub fn new(segment: u64, index: u16) -> Self {
        Self(segment.wrapping_mul(CAPACITY).wrapping_add(u64::from(index)))
    }

    /// The message that a user names. Every integer is accepted: no lease holds a message whose id
    /// was never given out, so settling it is refused there.
    pub fn from_sql(id: i64) -> Self {
        Self(id as u64)
    }

    /// The number that users are given.
    pub fn to_sql(self) -> i64 {
        self.0 as i64
    }

    /// The message whose derived `transaction_id` this is.
    pub fn named_by(transaction_id: &str) -> Option<Self> {
        let digits = transaction_id.strip_prefix("msg-")?;
        let id = Self(digits.parse().ok()?);
        (id.derived_transaction_id() == transaction_id).then_some(id)
    }

    /// The id of its segment.
    pub fn segment(self) -> u64 {
        self.0 / CAPACITY
    }

    /// Its index in its segment.
    pub fn index(self) -> u16 {
        (self.0 % CAPACITY) as u16
    }

    /// The `transaction_id` that is shown for a message that was pushed without one.
    pub fn derived_transaction_id(self) -> String {
        self.derived_in(&mut [0; DERIVED_MAX]).to_owned()
    }

    /// That `transaction_id`, written into `room`: rows of a result need no text of their own.
    pub fn derived_in(self, room: &mut [u8; DERIVED_MAX]) -> &str {
        let (mut at, mut rest) = (DERIVED_MAX, self.0);
        loop {
            at -= 1;
            room[at] = b'0' + (rest % 10) as u8;
            rest /= 10;
            if rest == 0 {
                break;
            }
        }
        at -= PREFIX.len();
        room[at..at + PREFIX.len()].copy_from_slice(PREFIX);
        std::str::from_utf8(&room[at..]).unwrap_or_default()
    }
}

impl fmt::Display for MessageId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// Neighbouring messages of a segment that the group has been given equally often.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Span {
    pub segment: u64,
    /// The index of the first one.
    pub first: u16,
    /// How many there are.
    pub len: u16,
    /// How often each was delivered to this group so far.
    pub deliveries: u32,
}

impl Span {
    /// One message that has not been delivered yet.
    pub fn of(message: MessageId) -> Self {
        Self { segment: message.segment(), first: message.index(), len: 1, deliveries: 0 }
    }

    /// Its messages, in order.
    pub fn messages(self) -> impl Iterator<Item = MessageId> {
        (self.first..self.first + self.len).map(move |i| MessageId::new(self.segment, i))
    }

    /// Whether the message is one of these.
    pub fn holds(&self, id: MessageId) -> bool {
        self.segment == id.segment() && (self.first..self.first + self.len).contains(&id.index())
    }
}

/// A list of messages, in the order in which they are delivered.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Spans(Vec<Span>);

impl Spans {
    /// The empty list.
    pub fn new() -> Self {
        Self::default()
    }

    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// How many messages there are.
    pub fn count(&self) -> usize {
        self.0.iter().map(|s| usize::from(s.len)).sum()
    }

    /// The runs, in order.
    pub fn iter(&self) -> impl Iterator<Item = Span> + '_ {
        self.0.iter().copied()
    }

    /// The messages, in order.
    pub fn messages(&self) -> impl Iterator<Item = MessageId> + '_ {
        self.iter().flat_map(Span::messages)
    }

    /// The run that the message is in.
    pub fn find(&self, id: MessageId) -> Option<Span> {
        self.0.iter().find(|s| s.holds(id)).copied()
    }

    /// Append a run. It joins the last one if the two are neighbours, delivered equally often.
    pub fn push(&mut self, span: Span) {
        if span.len == 0 {
            return;
        }
        if let Some(last) = self.0.last_mut()
            && last.segment == span.segment
            && last.first + last.len == span.first
            && last.deliveries == span.deliveries
        {
            last.len += span.len;
            return;
        }
        self.0.push(span);
    }

    /// Put `front` before all others.
    pub fn prepend(&mut self, front: Spans) {
        let back = std::mem::replace(self, front);
        self.extend(back.0);
    }

    /// Take up to `count` messages away from the front.
    pub fn take_front(&mut self, count: usize) -> Spans {
        let mut taken = Spans::new();
        let mut left = count;
        let mut rest = Spans::new();
        for span in std::mem::take(&mut self.0) {
            let len = left.min(usize::from(span.len)) as u16;
            taken.push(Span { len, ..span });
            rest.push(Span { first: span.first + len, len: span.len - len, ..span });
            left -= usize::from(len);
        }
        *self = rest;
        taken
    }

    /// The messages for which `picked` holds, and the others; each list in order.
    pub fn partition(&self, mut picked: impl FnMut(MessageId) -> bool) -> (Spans, Spans) {
        let (mut yes, mut no) = (Spans::new(), Spans::new());
        for span in self.iter() {
            for id in span.messages() {
                let one = Span { first: id.index(), len: 1, ..span };
                if picked(id) { yes.push(one) } else { no.push(one) }
            }
        }
        (yes, no)
    }

    /// These messages after one more delivery of each.
    pub fn delivered(mut self) -> Self {
        self.0.iter_mut().for_each(|s| s.deliveries += 1);
        self
    }

    /// How often the message with the most deliveries was delivered; 0 for the empty list.
    pub fn max_deliveries(&self) -> u32 {
        self.0.iter().map(|s| s.deliveries).max().unwrap_or(0)
    }
}

impl Extend<Span> for Spans {
    fn extend<I: IntoIterator<Item = Span>>(&mut self, spans: I) {
        spans.into_iter().for_each(|span| self.push(span));
    }
}

impl FromIterator<Span> for Spans {
    fn from_iter<I: IntoIterator<Item = Span>>(spans: I) -> Self {
        let mut all = Spans::new();
        all.extend(spans);
        all
    }
}

// A run is stored as a number: the signed distance from the segment before, and a low bit that says
// whether index, length and deliveries are as before. If they are not, they follow. Single messages
// of segments that follow each other take one byte each in this way.
impl Serialize for Spans {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut out = Writer::default();
        let mut before = Span { segment: 0, first: 0, len: 1, deliveries: 1 };
        for span in self.iter() {
            let same = Span { segment: before.segment, ..span } == before;
            let step = span.segment.wrapping_sub(before.segment) as i64;
            let zigzag = (step.wrapping_shl(1) ^ (step >> 63)) as u64;
            out.unsigned(u128::from(zigzag) << 1 | u128::from(same));
            if !same {
                out.unsigned(span.first.into());
                out.unsigned(span.len.into());
                out.unsigned(span.deliveries.into());
            }
            before = span;
        }
        serializer.serialize_bytes(&out.finish())
    }
}

impl<'de> Deserialize<'de> for Spans {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let bytes = <&[u8]>::deserialize(deserializer)?;
        decode_spans(bytes).ok_or_else(|| D::Error::custom("damaged list of messages"))
    }
}

fn decode_spans(bytes: &[u8]) -> Option<Spans> {
    let mut input = Reader::new(bytes);
    let mut spans = Spans::new();
    let mut before = Span { segment: 0, first: 0, len: 1, deliveries: 1 };
    while !input.is_empty() {
        let token = input.unsigned()?;
        let zigzag = u64::try_from(token >> 1).ok()?;
        let step = (zigzag >> 1) as i64 ^ -((zigzag & 1) as i64);
        before.segment = before.segment.wrapping_add(step as u64);
        if token & 1 == 0 {
            before.first = u16::try_from(input.unsigned()?).ok()?;
            before.len = u16::try_from(input.unsigned()?).ok()?;
            before.deliveries = u32::try_from(input.unsigned()?).ok()?;
        }
        let end = usize::from(before.first) + usize::from(before.len);
        if before.len == 0 || end > SEGMENT_CAPACITY {
            return None;
        }
        // Not by `push`, which could join two runs: what is read equals what was written.
        spans.0.push(before);
    }
    Some(spans)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::codec::{decode, encode};
    use proptest::prelude::*;

    pub fn any_span() -> impl Strategy<Value = Span> {
        (0..=LAST_SEGMENT, 0..28u16, 1..28u16, 0..5u32).prop_map(|(segment, first, len, d)| Span {
            segment,
            first,
            len: len.min(28 - first),
            deliveries: d,
        })
    }

    proptest! {
        #[test]
        fn a_list_reads_back_as_written(spans in prop::collection::vec(any_span(), 0..40)) {
            let spans: Spans = spans.into_iter().collect();
            prop_assert_eq!(decode::<Spans>(&encode(&spans)).unwrap(), spans);
        }

        #[test]
        fn taking_from_the_front_keeps_order_and_loses_nothing(
            spans in prop::collection::vec(any_span(), 0..10), count in 0..2000usize,
        ) {
            let mut rest: Spans = spans.into_iter().collect();
            let before: Vec<_> = rest.messages().collect();
            let taken = rest.take_front(count);
            prop_assert_eq!(taken.count(), count.min(before.len()));
            prop_assert_eq!(taken.messages().chain(rest.messages()).collect::<Vec<_>>(), before);
        }

        #[test]
        fn any_integer_is_read_as_an_id_without_panic(id: i64) {
            let read = MessageId::from_sql(id);
            prop_assert_eq!(MessageId::new(read.segment(), read.index()).to_sql(), id);
        }

        #[test]
        fn damaged_bytes_are_refused_or_read_never_a_panic(
            bytes in prop::collection::vec(any::<u8>(), 0..64),
        ) {
            let _ = decode_spans(&bytes);
        }
    }

    #[test]
    fn an_id_is_its_segment_and_index() {
        let id = MessageId::new(12_345, 27);
        assert_eq!((id.segment(), id.index()), (12_345, 27));
        assert_eq!(id.to_sql(), 12_345 * 28 + 27);
        assert_eq!(id.derived_transaction_id(), "msg-345687");
        assert_eq!(MessageId::from_sql(0).derived_transaction_id(), "msg-0");
        let longest = MessageId::from_sql(-1).derived_transaction_id();
        assert_eq!((longest.as_str(), longest.len()), ("msg-18446744073709551615", DERIVED_MAX));
    }

    #[test]
    fn a_derived_name_names_its_message_and_no_other_name_does() {
        for id in [0, 27, 28, 345_687, i64::MAX, -1].map(MessageId::from_sql) {
            assert_eq!(MessageId::named_by(&id.derived_transaction_id()), Some(id));
        }
        for other in
            ["msg-", "msg-01", "msg-+1", "msg-1 ", "Msg-1", "1", "msg-18446744073709551616"]
        {
            assert_eq!(MessageId::named_by(other), None, "{other}");
        }
    }

    #[test]
    fn the_last_id_is_below_what_json_numbers_hold_and_no_segment_is_left_above() {
        let last = MessageId::new(LAST_SEGMENT, 27);
        assert_eq!((last.segment(), last.index()), (LAST_SEGMENT, 27));
        assert!(last.to_sql() < 1 << 53 && last.to_sql() + 28 >= 1 << 53);
        assert_eq!(MessageId::from_sql(last.to_sql()), last);
    }

    #[test]
    fn segments_last_for_a_hundred_years() {
        assert!(LAST_SEGMENT as f64 / 100_000.0 / (365.25 * 86_400.0) > 100.0);
    }

    #[test]
    fn a_hundred_single_message_segments_take_about_a_byte_each() {
        let spans: Spans = (0..100)
            .map(|i| Span { segment: 5_000_000 + 2 * i, first: 0, len: 1, deliveries: 1 })
            .collect();
        assert!(encode(&spans).len() < 110, "{}", encode(&spans).len());
    }
}
