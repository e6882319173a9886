//! How often the messages of a cursor have failed, and what consumers said of it.
//!
//! The counts are part of the stored state. What was said is stored behind it, if there is any: a
//! state without failures takes no byte for it. Messages of a batch mostly fail for one reason, so
//! each text is kept once, with the messages that it was said of. A state is written anew with each
//! pop and settlement, so few texts are kept: the latest.

use std::collections::{BTreeMap, BTreeSet};

use serde::{Deserialize, Serialize};

use crate::message::{MessageId, Span, Spans};

/// The most bytes that are kept of a text.
const LONGEST: usize = 1024;
/// The most texts that are kept for one cursor.
const MOST: usize = 8;

/// The failures of messages that are not settled.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Failures {
    counts: BTreeMap<MessageId, u32>,
    #[serde(skip)]
    said: SaidOfFailures,
}

/// What was said of the last failures of messages; the latest text is the last.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct SaidOfFailures(Vec<SharedText>);

/// A text, and the messages whose last failure it was said of.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
struct SharedText {
    text: String,
    of: Spans,
}

impl Failures {
    pub fn is_empty(&self) -> bool {
        self.counts.is_empty()
    }

    /// How often the message has failed.
    pub fn of(&self, message: MessageId) -> u32 {
        self.counts.get(&message).copied().unwrap_or(0)
    }

    /// What was said of its last failure, if that is kept.
    pub fn last_error(&self, message: MessageId) -> Option<&str> {
        let shared = self.said.0.iter().find(|shared| shared.of.find(message).is_some());
        shared.map(|shared| shared.text.as_str())
    }

    /// The message has failed once more.
    pub fn charge(&mut self, message: MessageId) {
        *self.counts.entry(message).or_default() += 1;
    }

    /// Keep what was said of the last failures of these messages: up to 1 KiB of each text. None:
    /// nothing was said. Where there are too many texts, the last ones are kept.
    pub fn say(&mut self, of: &[(MessageId, Option<&str>)]) {
        if !(of.is_empty() || self.said.0.is_empty()) {
            let anew: BTreeSet<MessageId> = of.iter().map(|(message, _)| *message).collect();
            self.said.retain(|message| !anew.contains(message));
        }
        for (message, text) in of {
            if let Some(text) = text {
                self.said.add(*message, cut(text, LONGEST));
            }
        }
        self.said.join_runs();
    }

    /// Forget the messages for which `is_kept` does not hold.
    pub fn retain(&mut self, is_kept: impl Fn(&MessageId) -> bool) {
        self.counts.retain(|message, _| is_kept(message));
        self.said.retain(is_kept);
    }

    /// Forget the message; returns how often it has failed.
    pub fn remove(&mut self, message: MessageId) -> u32 {
        self.said.forget(message);
        self.counts.remove(&message).unwrap_or(0)
    }

    /// Those of this message.
    pub fn only(&self, message: MessageId) -> Self {
        let mut only = Self::default();
        if let Some(count) = self.counts.get(&message) {
            only.counts.insert(message, *count);
        }
        if let Some(text) = self.last_error(message) {
            only.said.add(message, text);
        }
        only
    }

    /// Add those of other messages.
    pub fn add(&mut self, others: Self) {
        for SharedText { text, of } in others.said.0 {
            of.messages().for_each(|message| self.said.add(message, &text));
        }
        self.counts.extend(others.counts);
    }

    /// What was said, to be stored; None if nothing was.
    pub fn said(&self) -> Option<&SaidOfFailures> {
        Some(&self.said).filter(|said| !said.0.is_empty())
    }

    /// What was said, as stored.
    pub fn set_said(&mut self, said: SaidOfFailures) {
        self.said = said;
    }
}

impl SaidOfFailures {
    /// Add a message of which nothing is kept.
    fn add(&mut self, message: MessageId, text: &str) {
        let known = self.0.iter().position(|shared| shared.text == text);
        let mut shared = match known {
            Some(place) => self.0.remove(place),
            None => SharedText { text: text.to_owned(), of: Spans::new() },
        };
        shared.of.push(Span::of(message));
        self.0.push(shared);
        let surplus = self.0.len().saturating_sub(MOST);
        self.0.drain(..surplus);
    }

    /// Bring the messages of each text in order, so that neighbours are one run.
    fn join_runs(&mut self) {
        for shared in &mut self.0 {
            let mut messages: Vec<MessageId> = shared.of.messages().collect();
            messages.sort_unstable();
            shared.of = messages.into_iter().map(Span::of).collect();
        }
    }

    fn forget(&mut self, message: MessageId) {
        if self.0.iter().any(|shared| shared.of.find(message).is_some()) {
            self.retain(|known| *known != message);
        }
    }

    fn retain(&mut self, is_kept: impl Fn(&MessageId) -> bool) {
        for shared in &mut self.0 {
            if shared.of.messages().any(|message| !is_kept(&message)) {
                (shared.of, _) = shared.of.partition(|message| is_kept(&message));
            }
        }
        self.0.retain(|shared| !shared.of.is_empty());
    }
}

/// The beginning of `text`: at most so many bytes, and no part of a character.
fn cut(text: &str, most: usize) -> &str {
    let end = (0..=most.min(text.len())).rev().find(|&end| text.is_char_boundary(end));
    &text[..end.unwrap_or(0)]
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::codec::encode;
    use crate::cursor::Cursor;
    use proptest::prelude::*;

    fn message(id: i64) -> MessageId {
        MessageId::from_sql(id)
    }

    fn failed(failures: &mut Failures, id: i64, text: Option<&str>) {
        failures.charge(message(id));
        failures.say(&[(message(id), text)]);
    }

    proptest! {
        #[test]
        fn each_message_keeps_what_was_said_last_and_a_state_reads_back(
            steps in prop::collection::vec(
                (0..30i64, prop::option::of(0..6u8), any::<bool>()), 0..60),
        ) {
            let mut cursor = Cursor::default();
            let mut known: BTreeMap<i64, (u32, Option<String>)> = BTreeMap::new();
            for (id, text, is_settled) in steps {
                if is_settled {
                    let count = known.remove(&id).map_or(0, |(count, _)| count);
                    prop_assert_eq!(cursor.failures.remove(message(id)), count);
                    continue;
                }
                let text = text.map(|text| format!("error {text}"));
                failed(&mut cursor.failures, id, text.as_deref());
                let of = known.entry(id).or_default();
                (of.0, of.1) = (of.0 + 1, text);
                cursor = Cursor::from_bytes(&cursor.to_bytes()).expect("a state reads back");
            }
            for id in 0..30 {
                let (count, text) = known.get(&id).cloned().unwrap_or_default();
                prop_assert_eq!(cursor.failures.of(message(id)), count);
                prop_assert_eq!(cursor.failures.last_error(message(id)), text.as_deref());
            }
            let any_said = known.values().any(|(_, text)| text.is_some());
            prop_assert_eq!(cursor.failures.said().is_some(), any_said);
        }

        #[test]
        fn damaged_bytes_are_refused_or_read_never_a_panic(
            bytes in prop::collection::vec(any::<u8>(), 0..80),
        ) {
            let _ = Cursor::from_bytes(&bytes);
            let _ = Cursor::from_bytes(&[&[2], &bytes[..]].concat());
        }
    }

    #[test]
    fn a_state_without_a_text_is_stored_as_before() {
        let mut cursor = Cursor::default();
        cursor.failures.charge(message(5));
        // Version, position, holes, no drain, nothing waits, no retry; then one message, once; no
        // lease, no time, none settled, never popped, nothing counted.
        assert_eq!(cursor.to_bytes(), [1, 0, 0, 0, 0, 0, 1, 5, 1, 0, 0, 0, 0, 0]);
        assert_eq!(cursor.to_bytes(), encode(&cursor));
        assert_eq!(Cursor::from_bytes(&cursor.to_bytes()), Ok(cursor));
    }

    #[test]
    fn a_text_is_cut_between_characters() {
        let mut failures = Failures::default();
        let text = format!("{}ü and more", "x".repeat(1023));
        failed(&mut failures, 1, Some(&text));
        assert_eq!(failures.last_error(message(1)), Some("x".repeat(1023).as_str()));
        let text = "€".repeat(342);
        failed(&mut failures, 1, Some(&text));
        assert_eq!(failures.last_error(message(1)), Some("€".repeat(341).as_str()));
    }

    #[test]
    fn of_many_texts_the_latest_are_kept_and_one_text_is_kept_once() {
        let mut failures = Failures::default();
        for id in 0..20 {
            failed(&mut failures, id, Some(&format!("error {id}")));
        }
        let kept: Vec<i64> =
            (0..20).filter(|id| failures.last_error(message(*id)).is_some()).collect();
        assert_eq!(kept, (12..20).collect::<Vec<_>>());
        assert_eq!((0..20).map(|id| failures.of(message(id))).sum::<u32>(), 20);
        let text = "x".repeat(1000);
        for id in 0..10_000 {
            failed(&mut failures, id, Some(&text));
        }
        assert!(encode(&failures.said).len() < 20_000, "{}", encode(&failures.said).len());
        assert_eq!(failures.last_error(message(9_999)), Some(text.as_str()));
    }

    #[test]
    fn one_message_takes_its_failures_along() {
        let mut failures = Failures::default();
        failed(&mut failures, 1, Some("no network"));
        failed(&mut failures, 2, None);
        let mut others = failures.only(message(1));
        assert_eq!((others.of(message(1)), others.of(message(2))), (1, 0));
        others.add(failures.only(message(2)));
        assert_eq!(others, failures);
        others.retain(|known| *known == message(2));
        assert_eq!((others.of(message(1)), others.last_error(message(1))), (0, None));
    }

    #[test]
    fn a_batch_that_failed_for_one_reason_is_kept_as_runs() {
        let mut failures = Failures::default();
        let messages: Vec<MessageId> = (0..20).rev().map(|id| MessageId::new(7, id)).collect();
        let said: Vec<_> = messages.iter().map(|message| (*message, Some("no"))).collect();
        failures.say(&said);
        assert_eq!(failures.said.0[0].of.iter().count(), 1);
        assert_eq!(failures.said.0[0].of.count(), 20);
    }
}
