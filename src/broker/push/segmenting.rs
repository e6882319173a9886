//! How the messages of one call for one partition become segments: which of them are duplicates,
//! how the others are cut into segments, which ids they get.
//!
//! The verb push calls this, and so does the delivery of due timers. It follows the push rule of
//! [`crate::broker::push`]. A transaction_id that the queue's dedup window remembers has a row in
//! the table `admission`, which the pushing transaction locks to its end. Another transaction that
//! pushes this transaction_id waits for that end. A message that was pushed with a delay has had
//! its row since then, and gets its message id here.

use std::collections::HashMap;

use queen_engine::message::{MessageId, SEGMENT_CAPACITY};

use crate::broker::push::message::{Message, PushStatus, Pushed};
use crate::broker::push::notify;
use crate::error::Result;
use crate::pg::clock;
use crate::store::admission::Original;
use crate::store::queue::Queue;
use crate::store::segment::{self, Appending, NewSegment};
use crate::store::{admission, seen_snapshot};
use crate::wait::waiters;

/// Messages share a segment while its row fits into a page. PostgreSQL cuts a larger row into
/// pieces and stores them elsewhere, each with an entry in an index. What is left of a page's 8160
/// bytes is for the other columns and the arrays' headers.
const SEGMENT_BYTES: usize = 7_500;

/// Push to one partition, in the order of `messages`; returns what became of each. Waits for a
/// transaction that is pushing one of their transaction_ids.
pub fn push_to_partition(
    queue: &Queue,
    partition: &str,
    messages: &[&Message],
) -> Result<Vec<Pushed>> {
    waiters::touch_pushed(&queue.name, partition);
    let xid = seen_snapshot::assign_xid(queue.identity);
    let now = clock::now();
    let mut batch = PushBatch::new(messages);
    batch.admit(queue, partition, now);
    let segments = batch.cut();
    if segments.is_empty() {
        return Ok(batch.results());
    }
    let appending = Appending::begin();
    for (place, members) in segments.into_iter().enumerate() {
        let of = |i: &usize| messages[*i];
        let ids = members.iter().map(|i| of(i).transaction_id.as_deref());
        let headers = members.iter().map(|i| of(i).headers);
        let segment = appending.append(NewSegment {
            queue: queue.id,
            partition,
            id: batch.drawn.get(place).copied(),
            xid,
            created_at: now,
            payloads: members.iter().map(|i| Some(of(i).payload)).collect(),
            transaction_ids: ids.clone().any(|id| id.is_some()).then(|| ids.collect()),
            headers: headers.clone().any(|h| h.is_some()).then(|| headers.collect()),
            only_group: None,
        });
        batch.number(&members, segment);
        pgrx::check_for_interrupts!();
    }
    appending.end();
    batch.complete_admissions(queue, partition);
    notify::announce(queue);
    Ok(batch.results())
}

impl Message {
    /// Bytes it takes in a segment.
    fn size(&self) -> usize {
        // Elements of an array are aligned to 4 bytes; a text has a header of that size.
        let aligned = |bytes: usize| bytes.next_multiple_of(4);
        let id = self.transaction_id.as_ref().map_or(0, |id| aligned(4 + id.len()));
        let headers = self.headers.map_or(0, |headers| aligned(headers.size()));
        aligned(self.payload.size()) + id + headers
    }
}

/// The messages of a call for one partition, on their way to be segments.
struct PushBatch<'a> {
    messages: &'a [&'a Message],
    /// For each message: the first one of the call with its transaction_id, if that is another.
    twin: Vec<Option<usize>>,
    /// For each message: the one of an earlier call that it duplicates.
    original: Vec<Option<Original>>,
    /// For each message: its id, once it has one.
    ids: Vec<Option<MessageId>>,
    /// Ids of segments that were drawn before the segments are written.
    drawn: Vec<u64>,
}

impl<'a> PushBatch<'a> {
    fn new(messages: &'a [&'a Message]) -> Self {
        let mut first: HashMap<&str, usize> = HashMap::new();
        let twin = messages
            .iter()
            .enumerate()
            .map(|(at, message)| {
                if message.was_admitted {
                    return None;
                }
                let seen = *first.entry(message.transaction_id.as_deref()?).or_insert(at);
                (seen != at).then_some(seen)
            })
            .collect();
        let none = vec![None; messages.len()];
        Self { messages, twin, original: none, ids: vec![None; messages.len()], drawn: Vec::new() }
    }

    /// Places of the messages that will be stored: duplicates drop out as they become known.
    fn stored(&self) -> impl Iterator<Item = usize> + '_ {
        (0..self.messages.len()).filter(|&i| self.twin[i].is_none() && self.original[i].is_none())
    }

    /// Give messages the ids that they have as members of a segment.
    fn number(&mut self, members: &[usize], segment: u64) {
        for (&message, index) in members.iter().zip(0..) {
            self.ids[message] = Some(MessageId::new(segment, index));
        }
    }

    /// Give all messages their ids, before any segment is written. Segment ids are drawn at the
    /// first call alone: when duplicates have made the segments fewer, the last ones stay unused.
    fn number_all(&mut self) {
        let segments = self.cut();
        if self.drawn.is_empty() {
            self.drawn = segment::draw_ids(segments.len() as i32);
        }
        for (place, members) in segments.iter().enumerate() {
            self.number(members, self.drawn[place]);
        }
    }

    /// The messages that will be stored, by segments.
    fn cut(&self) -> Vec<Vec<usize>> {
        let mut segments: Vec<Vec<usize>> = Vec::new();
        let mut bytes = 0;
        for at in self.stored() {
            let size = self.messages[at].size();
            match segments.last_mut() {
                Some(last) if last.len() < SEGMENT_CAPACITY && bytes + size <= SEGMENT_BYTES => {
                    last.push(at);
                    bytes += size;
                }
                _ => {
                    segments.push(vec![at]);
                    bytes = size;
                }
            }
        }
        segments
    }

    /// Find duplicates of earlier calls, and remember the other transaction_ids with their
    /// messages.
    ///
    /// A message that is remembered needs its id at once, so all get theirs here. If duplicates
    /// drop out, the ids of the others change, and what is remembered follows. Without a
    /// transaction_id there is nothing to ask: ids are drawn when the segments are written.
    fn admit(&mut self, queue: &Queue, partition: &str, now: clock::Moment) {
        let window = queue.options.dedup_window();
        if window == 0 {
            return;
        }
        let messages = self.messages;
        let asked: Vec<(usize, &str)> = self
            .stored()
            .filter(|&at| !messages[at].was_admitted)
            .filter_map(|at| Some((at, messages[at].transaction_id.as_deref()?)))
            .collect();
        if asked.is_empty() {
            return;
        }
        self.number_all();
        let names: Vec<&str> = asked.iter().map(|(_, id)| *id).collect();
        let numbers = self.numbers(&asked);
        let numbers: Vec<Option<i64>> = numbers.into_iter().map(Some).collect();
        let originals = admission::admit(queue.id, partition, &names, &numbers, now, window);
        if originals.is_empty() {
            return;
        }
        for (at, id) in &asked {
            self.original[*at] = originals.get(*id).copied();
        }
        self.number_all();
        let admitted: Vec<(usize, &str)> =
            asked.into_iter().filter(|(_, id)| !originals.contains_key(*id)).collect();
        let names: Vec<&str> = admitted.iter().map(|(_, id)| *id).collect();
        admission::renumber(queue.id, partition, &names, &self.numbers(&admitted));
    }

    /// Write the ids of messages whose transaction_ids were admitted without one.
    fn complete_admissions(&self, queue: &Queue, partition: &str) {
        let was_admitted = |at: usize| {
            let message = self.messages[at];
            let id = message.transaction_id.as_deref().filter(|_| message.was_admitted);
            id.map(|id| (at, id))
        };
        let admitted: Vec<(usize, &str)> = self.stored().filter_map(was_admitted).collect();
        if !admitted.is_empty() {
            let names: Vec<&str> = admitted.iter().map(|(_, id)| *id).collect();
            admission::complete(queue.id, partition, &names, &self.numbers(&admitted));
        }
    }

    /// The message ids, as SQL has them.
    fn numbers(&self, of: &[(usize, &str)]) -> Vec<i64> {
        of.iter().filter_map(|(at, _)| self.ids[*at]).map(MessageId::to_sql).collect()
    }

    /// What became of each message. A duplicate within the call has the id of its twin.
    fn results(&self) -> Vec<Pushed> {
        (0..self.messages.len())
            .map(|at| {
                let first = self.twin[at].unwrap_or(at);
                let own = self.ids[first].unwrap_or(MessageId::new(0, 0));
                let original = self.original[first];
                Pushed {
                    message: original.unwrap_or(Some(own.to_sql())),
                    // A message without one duplicates no other, so its own id tells it.
                    given_id: self.messages[at].transaction_id.clone(),
                    status: match first != at || original.is_some() {
                        true => PushStatus::Duplicate,
                        false => PushStatus::Queued,
                    },
                    was_stored_before: original.is_some(),
                }
            })
            .collect()
    }
}
