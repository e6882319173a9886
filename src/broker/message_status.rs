//! What became of one message, for each group: `queen_message_status`.
//!
//! All is looked up by keys, under the snapshot of the statement that asks, so it costs as much
//! with any backlog: a few look-ups for the transaction_id, a few for each group. Locks nothing.
//!
//! Which message is meant? Of several that carry the transaction_id the newest that is for the
//! group. These are known: the one that the dedup window remembers; the one whose id the
//! transaction_id is derived from; those that are dead letters; those that were replayed for one
//! group alone, as long as they are in the log; and one that has yet to enter the log.

use std::collections::{BTreeSet, HashSet};

use queen_engine::floor::Floor;
use queen_engine::message::{MessageId, Span, Spans};
use queen_engine::rights::Privilege;

use crate::broker::{lookup, rights};
use crate::error::Result;
use crate::pg::clock::{self, Moment};
use crate::pg::snapshot::ActiveSnapshot;
use crate::store::dead_letter::{self, Buried};
use crate::store::group::{self, Group, QUEUE_MODE};
use crate::store::queue::Queue;
use crate::store::segment::{Log, Stored, name_of};
use crate::store::{admission, claim, cursor, replay, timer};

/// Where a message stands for a group.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MessageState {
    /// It enters the log later.
    Scheduled,
    /// It was never delivered.
    Pending,
    /// A live lease holds it.
    Leased,
    /// It was delivered before, and is to be delivered again.
    Retrying,
    /// It is settled, and no dead letter of it is there.
    Completed,
    DeadLetter,
}

impl MessageState {
    pub fn name(self) -> &'static str {
        match self {
            Self::Scheduled => "scheduled",
            Self::Pending => "pending",
            Self::Leased => "leased",
            Self::Retrying => "retrying",
            Self::Completed => "completed",
            Self::DeadLetter => "dead_letter",
        }
    }
}

/// What is known of a message and a group.
pub struct MessageStatus {
    /// '' is queue mode, or no group at all.
    pub group: String,
    /// None: it is not in the log yet.
    pub message: Option<MessageId>,
    pub state: MessageState,
    /// How often it was delivered to the group; None where that is forgotten.
    pub deliveries: Option<u32>,
    pub lease_expires_at: Option<Moment>,
    /// When it enters the log, or can be delivered.
    pub due_at: Option<Moment>,
    /// What its last failure said, or its dead letter says.
    pub error: Option<String>,
}

/// The status of the message of this transaction_id for each group that it is for. Error 42501 for
/// a caller that may not pop from the queue.
pub fn of(
    queue: &str,
    partition: &str,
    transaction_id: &str,
    under: &ActiveSnapshot,
) -> Result<Vec<MessageStatus>> {
    rights::require(Privilege::Pop, queue)?;
    let Some(queue) = lookup::find_queue(queue, under)? else { return Ok(Vec::new()) };
    let groups = group::of_queue_named(&queue.name, under)?;
    let inquiry = Inquiry { queue: &queue, partition, transaction_id, now: clock::now(), under };
    let remembered = admission::find(queue.id, partition, transaction_id, under);
    let window = queue.options.dedup_window();
    let is_duplicate = |at: Moment| at > inquiry.now.saturating_sub(window);
    let stands = remembered.as_ref().is_some_and(|it| it.message.is_some() && is_duplicate(it.at));
    if !stands && let Some(due) = timer::moment_of(queue.id, partition, transaction_id, under) {
        return Ok(scheduled(&groups, due));
    }
    let letters = dead_letter::named(&queue.name, partition, transaction_id, under);
    let replayed = replay::named(queue.id, partition, transaction_id, under);
    let mut messages: BTreeSet<MessageId> = letters.iter().map(|letter| letter.message).collect();
    messages.extend(remembered.and_then(|it| it.message));
    messages.extend(inquiry.derived());
    messages.extend(replayed.into_iter().map(|segment| MessageId::new(segment, 0)));
    let mut all = Vec::new();
    for group in &groups {
        all.extend(inquiry.for_group(group, &messages, &letters)?);
    }
    if groups.is_empty() {
        all.extend(messages.iter().rev().find_map(|message| inquiry.without_group(*message)));
    }
    all.extend(of_removed_groups(&groups, letters));
    Ok(all)
}

/// A message that enters the log later, for each group; or, if there is none, as such.
fn scheduled(groups: &[Group], due: Moment) -> Vec<MessageStatus> {
    let is_for = |group: &&Group| group.start.since.is_none_or(|since| since <= due);
    let names = groups.iter().filter(is_for).map(|group| group.name.clone());
    let no_group = groups.is_empty().then(|| QUEUE_MODE.to_owned());
    names
        .chain(no_group)
        .map(|group| MessageStatus {
            due_at: Some(due),
            ..MessageStatus::of(group, None, MessageState::Scheduled, Some(0))
        })
        .collect()
}

/// Dead letters of groups that are not there any more, each group's newest.
fn of_removed_groups(groups: &[Group], letters: Vec<Buried>) -> Vec<MessageStatus> {
    let mut seen: HashSet<String> = groups.iter().map(|group| group.name.clone()).collect();
    letters
        .into_iter()
        .filter(|letter| seen.insert(letter.group.clone()))
        .map(|letter| MessageStatus::buried(&letter))
        .collect()
}

impl MessageStatus {
    fn of(
        group: String,
        message: Option<MessageId>,
        state: MessageState,
        deliveries: Option<u32>,
    ) -> Self {
        let (lease_expires_at, due_at, error) = (None, None, None);
        Self { group, message, state, deliveries, lease_expires_at, due_at, error }
    }

    fn buried(letter: &Buried) -> Self {
        let Buried { group, message, error, deliveries } = letter;
        let state = MessageState::DeadLetter;
        Self {
            error: error.clone(),
            ..Self::of(group.clone(), Some(*message), state, Some(*deliveries))
        }
    }
}

/// A question about a transaction_id.
struct Inquiry<'a> {
    queue: &'a Queue,
    partition: &'a str,
    transaction_id: &'a str,
    now: Moment,
    under: &'a ActiveSnapshot,
}

impl Inquiry<'_> {
    /// The message whose id the transaction_id is derived from, if it is in the log.
    fn derived(&self) -> Option<MessageId> {
        let message = MessageId::named_by(self.transaction_id)?;
        let name = name_of(self.queue.id, self.partition, message, self.under)?;
        (name == self.transaction_id).then_some(message)
    }

    /// The segment of a message, if it is in the log. `since`: messages created before are not for
    /// the group.
    fn segment(&self, message: MessageId, group: i64, since: Option<Moment>) -> Option<Stored> {
        let (queue, partition, floor) = (self.queue.id, self.partition, &Floor::default());
        let log = Log { queue, partition, group, since, until: None, is_bare: true, floor };
        log.segments(&one(message), self.under).pop()
    }

    /// When a message that was never delivered can be, if the queue's delay is not over.
    fn ripe_at(&self, segment: &Stored) -> Option<Moment> {
        let ripe = segment.created_at().saturating_add(self.queue.options.delay());
        (ripe > self.now).then_some(ripe)
    }

    /// The status for a group: of the newest of the messages of which something is known.
    fn for_group(
        &self,
        group: &Group,
        messages: &BTreeSet<MessageId>,
        letters: &[Buried],
    ) -> Result<Option<MessageStatus>> {
        for message in messages.iter().rev() {
            let of_message =
                |letter: &&Buried| letter.group == group.name && letter.message == *message;
            let letter = letters.iter().find(of_message);
            let known = self.in_log(group, *message, letter)?;
            if let Some(status) = known.or_else(|| letter.map(MessageStatus::buried)) {
                return Ok(Some(status));
            }
            pgrx::check_for_interrupts!();
        }
        Ok(None)
    }

    /// The status of a message that is in the log. None if it is not, or not for the group.
    fn in_log(
        &self,
        group: &Group,
        message: MessageId,
        letter: Option<&Buried>,
    ) -> Result<Option<MessageStatus>> {
        let Self { queue, partition, now, under, .. } = *self;
        let found = cursor::status(group.id, &group.start, partition, under)?;
        let cursor = group.state_in(found.as_ref().map(|(located, _)| located));
        let segment = self.segment(message, group.id, cursor.since);
        let Some(segment) = segment.filter(|segment| !segment.found().skip) else {
            return Ok(None);
        };
        let status = |state, deliveries| {
            MessageStatus::of(group.name.clone(), Some(message), state, deliveries)
        };
        let claim = match group.is_ordered(&queue.options) {
            true => None,
            false => claim::visible(group.id, partition, &one(message), under).pop(),
        };
        let claim = claim.map(|row| row.locate(under)).transpose()?.map(|(claim, _)| claim.cursor);
        let state = claim.as_ref().unwrap_or(&cursor);
        if let Some(open) = state.open_message(message, now, queue.identity.void_before) {
            let known = status(MessageState::Retrying, Some(open.deliveries));
            let error = state.failures.last_error(message).map(str::to_owned);
            return Ok(Some(match open.leased_until {
                Some(until) => MessageStatus {
                    state: MessageState::Leased,
                    lease_expires_at: Some(until),
                    error,
                    ..known
                },
                None if open.deliveries == 0 => {
                    MessageStatus { state: MessageState::Pending, ..known }
                }
                None => MessageStatus { due_at: Some(open.ready_at), error, ..known },
            }));
        }
        let (id, xid) = (segment.id(), segment.xid());
        if claim.is_none() && !cursor.has_read(id, xid) {
            let due_at = self.ripe_at(&segment);
            return Ok(Some(MessageStatus { due_at, ..status(MessageState::Pending, Some(0)) }));
        }
        if let Some(letter) = letter {
            return Ok(Some(MessageStatus::buried(letter)));
        }
        // What the group has passed, it has settled, unless it began behind that.
        let began_behind = claim.is_none() && group.first_state().has_read(id, xid);
        Ok((!began_behind).then(|| status(MessageState::Completed, None)))
    }

    /// The status of a message in a queue without groups. None if it is not in the log, or was
    /// replayed for a group that is gone.
    fn without_group(&self, message: MessageId) -> Option<MessageStatus> {
        let segment = self.segment(message, 0, None).filter(|segment| !segment.found().skip)?;
        let group = QUEUE_MODE.to_owned();
        Some(MessageStatus {
            due_at: self.ripe_at(&segment),
            ..MessageStatus::of(group, Some(message), MessageState::Pending, Some(0))
        })
    }
}

fn one(message: MessageId) -> Spans {
    [Span::of(message)].into_iter().collect()
}
