//! The messages of one push for one partition: admitted, cut into segments, numbered, written.

use std::collections::HashMap;

use queen_engine::message::{MessageId, SEGMENT_CAPACITY};

use crate::broker::push::{Message, PushStatus, Pushed};
use crate::error::Result;
use crate::pg::clock;
use crate::store::queue::Queue;
use crate::store::segment::{self, Appending, NewSegment};
use crate::store::{admission, seen_snapshot};
use crate::wait::waiters::{self, Topic};

/// Messages share a segment while its row fits into a page: one that does not is cut into pieces
/// elsewhere, each with its own entry in an index. What is left of a page's 8160 bytes is for the
/// other columns and the arrays' headers.
const SEGMENT_BYTES: usize = 7_500;

/// Push to one partition.
pub fn push_to(queue: &Queue, partition: &str, messages: &[&Message]) -> Result<Vec<Pushed>> {
    waiters::touch(Topic::queue(&queue.name));
    let xid = seen_snapshot::assign_xid(queue.identity);
    let now = clock::now();
    let mut batch = PushBatch::new(messages);
    batch.admit(queue, partition, now);
    let chunks = batch.cut();
    if chunks.is_empty() {
        return Ok(batch.results());
    }
    let appending = Appending::begin();
    for (place, members) in chunks.into_iter().enumerate() {
        let of = |i: &usize| messages[*i];
        let ids = members.iter().map(|i| of(i).transaction_id.as_deref());
        let headers = members.iter().map(|i| of(i).headers);
        let segment = appending.append(NewSegment {
            queue: queue.id,
            partition,
            id: batch.drawn.get(place).copied(),
            xid,
            created_at: now,
            payloads: members.iter().map(|i| of(i).payload).collect(),
            transaction_ids: ids.clone().any(|id| id.is_some()).then(|| ids.collect()),
            headers: headers.clone().any(|h| h.is_some()).then(|| headers.collect()),
            only_group: None,
        });
        batch.number(&members, segment);
        pgrx::check_for_interrupts!();
    }
    appending.end();
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
    /// For each message: the one before it with the same transaction_id.
    twin: Vec<Option<usize>>,
    /// For each message: the original it duplicates.
    original: Vec<Option<i64>>,
    ids: Vec<Option<MessageId>>,
    drawn: Vec<u64>,
}

impl<'a> PushBatch<'a> {
    fn new(messages: &'a [&'a Message]) -> Self {
        let mut first: HashMap<&str, usize> = HashMap::new();
        let twin = messages
            .iter()
            .enumerate()
            .map(|(at, message)| {
                let seen = *first.entry(message.transaction_id.as_deref()?).or_insert(at);
                (seen != at).then_some(seen)
            })
            .collect();
        let none = vec![None; messages.len()];
        Self { messages, twin, original: none, ids: vec![None; messages.len()], drawn: Vec::new() }
    }

    /// Those that will be stored, as far as is known.
    fn stored(&self) -> impl Iterator<Item = usize> + '_ {
        (0..self.messages.len()).filter(|&i| self.twin[i].is_none() && self.original[i].is_none())
    }

    /// Messages that become a segment get their ids.
    fn number(&mut self, members: &[usize], segment: u64) {
        for (&message, index) in members.iter().zip(0..) {
            self.ids[message] = Some(MessageId::new(segment, index));
        }
    }

    /// The same before the segments are written. Ids are drawn once: when duplicates have made the
    /// segments fewer, the last ones stay unused.
    fn number_all(&mut self) {
        let chunks = self.cut();
        if self.drawn.is_empty() {
            self.drawn = segment::draw_ids(chunks.len() as i32);
        }
        for (place, members) in chunks.iter().enumerate() {
            self.number(members, self.drawn[place]);
        }
    }

    fn cut(&self) -> Vec<Vec<usize>> {
        let mut chunks: Vec<Vec<usize>> = Vec::new();
        let mut bytes = 0;
        for at in self.stored() {
            let size = self.messages[at].size();
            match chunks.last_mut() {
                Some(chunk) if chunk.len() < SEGMENT_CAPACITY && bytes + size <= SEGMENT_BYTES => {
                    chunk.push(at);
                    bytes += size;
                }
                _ => {
                    chunks.push(vec![at]);
                    bytes = size;
                }
            }
        }
        chunks
    }

    /// Ask for admission of the transaction_ids; duplicates drop out and the rest is renumbered.
    /// Without a transaction_id there is nothing to ask, and no id is needed yet.
    fn admit(&mut self, queue: &Queue, partition: &str, now: clock::Moment) {
        let window = queue.options.dedup_window();
        if window == 0 {
            return;
        }
        let messages = self.messages;
        let asked: Vec<(usize, &str)> = self
            .stored()
            .filter_map(|at| Some((at, messages[at].transaction_id.as_deref()?)))
            .collect();
        if asked.is_empty() {
            return;
        }
        self.number_all();
        let names: Vec<&str> = asked.iter().map(|(_, id)| *id).collect();
        let numbers = self.numbers(&asked);
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

    fn numbers(&self, of: &[(usize, &str)]) -> Vec<i64> {
        of.iter().filter_map(|(at, _)| self.ids[*at]).map(MessageId::to_sql).collect()
    }

    fn results(&self) -> Vec<Pushed> {
        (0..self.messages.len())
            .map(|at| {
                let first = self.twin[at].unwrap_or(at);
                let own = self.ids[first].unwrap_or(MessageId::new(0, 0));
                let given = self.messages[at].transaction_id.clone();
                let original = self.original[first];
                Pushed {
                    message: Some(original.unwrap_or(own.to_sql())),
                    transaction_id: given.unwrap_or_else(|| own.derived_transaction_id()),
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
