//! Looking through a partition, in a group without order, for messages that can be taken.

use queen_engine::message::{MessageId, Spans};
use queen_engine::pop::{Pop, Read};

use super::claim::{Candidate, Outcome, has_forgotten};
use super::front::Front;
use crate::broker::pop::Taking;
use crate::broker::pop::context::read_log;
use crate::broker::pop::search::PartitionResult;
use crate::broker::pop::unordered::Claimed;
use crate::error::Result;
use crate::pg::clock::{self, Moment};
use crate::pg::spi::ActiveSnapshot;
use crate::store::claim;
use crate::store::cursor;
use crate::store::group::Group;
use crate::store::seen_snapshot::SeenSnapshot;
use crate::store::segment::{Log, LogPage, Stored};

/// Messages looked at first, beyond those that are wanted; doubled while all are taken.
const FIRST_LOOK: usize = 3;
const LARGEST_LOOK: usize = 4096;
/// Segments looked at ahead, beyond those that are wanted: others come for the same.
const SPARE: usize = 4;

/// What a look through a partition found.
pub struct Sifted {
    /// In nobody's hands, and never were.
    free: Vec<MessageId>,
    /// The same, beyond what was looked through.
    ahead: Vec<MessageId>,
    /// Their first lease has ended, and they can be taken again: with the claim.
    pub ended: Vec<(MessageId, u64)>,
    /// To be looked at again: claimed by transactions that have not ended, or left.
    pub open: Vec<MessageId>,
    /// Some is in the hands of others, who may give it back.
    pub has_rivals: bool,
    /// What is not to be delivered yet: its first segment, and its transaction.
    held_back: Option<(u64, u64)>,
    /// The log has nothing more.
    is_all: bool,
    pub front: Front,
}

impl Taking<'_> {
    /// Look through a partition, from the front on, for `wanted` messages to take.
    pub(super) fn sift(
        &self,
        partition: &str,
        wanted: usize,
        taken: &SeenSnapshot,
        under: &ActiveSnapshot,
    ) -> Result<Sifted> {
        let stored = cursor::status(self.group.id, &self.group.start, partition, under)?;
        let stored = stored.map(|(located, _)| located);
        let bare = self.log(partition, None).bare();
        let mut sifted = Sifted {
            free: Vec::new(),
            ahead: Vec::new(),
            ended: Vec::new(),
            open: Vec::new(),
            has_rivals: false,
            held_back: None,
            is_all: false,
            front: Front::of(self.group, &bare, stored.as_ref(), under),
        };
        let log = Log { since: sifted.front.cursor.since, ..bare };
        let mut look = wanted.saturating_add(FIRST_LOOK).min(LARGEST_LOOK);
        while sifted.found() < wanted && !sifted.is_all {
            let mut pop = Pop::begin(sifted.front.cursor.clone(), &taken.snapshot, look, None);
            let (segments, held_back) = read_log(&mut pop, &log, taken, under);
            sifted.held_back = held_back;
            let Some(popped) = pop.finish(None, self.now) else {
                sifted.is_all = true;
                break;
            };
            sifted.is_all = popped.taken.count() < look;
            sifted.front.cursor = popped.cursor;
            // The stored cursor may know of late ones that the front has not come across.
            let (_, left) = popped.taken.partition(|message| {
                segments.get(&message.segment()).zip(stored.as_ref()).is_some_and(
                    |(segment, stored)| has_forgotten(&stored.cursor, message, segment),
                )
            });
            self.sort_out(partition, &left, &mut sifted, taken, under)?;
            if sifted.found() < wanted && !sifted.is_all {
                self.look_ahead(partition, wanted, &mut sifted, taken, under);
            }
            look = LARGEST_LOOK.min(look * 2);
            pgrx::check_for_interrupts!();
        }
        Ok(sifted)
    }

    /// Where everything has been taken by others, most likely they have come far: look for what is free
    /// beyond the last that anybody has taken. What is in between is for those who fold.
    fn look_ahead(
        &self,
        partition: &str,
        wanted: usize,
        sifted: &mut Sifted,
        taken: &SeenSnapshot,
        under: &ActiveSnapshot,
    ) {
        let wanted = wanted - sifted.found();
        let from = MessageId::new(sifted.front.cursor.position + 1, 0);
        let since = sifted.front.cursor.since;
        sifted.ahead = self.beyond_all(partition, from, since, wanted, taken, under);
    }

    /// Messages beyond the last, not below `from`, that anybody has taken: as many as are wanted and some
    /// more, or as there are. None where nobody has taken any.
    pub(super) fn beyond_all(
        &self,
        partition: &str,
        from: MessageId,
        since: Option<Moment>,
        wanted: usize,
        taken: &SeenSnapshot,
        under: &ActiveSnapshot,
    ) -> Vec<MessageId> {
        let Some(last) = claim::last_at_hand(self.group.id, partition, from) else {
            return Vec::new();
        };
        let log = self.log(partition, since).bare();
        let read = Read::Beyond { after: last.segment() - 1 };
        let limit = wanted.saturating_add(SPARE).min(LARGEST_LOOK);
        let LogPage { stored, .. } = log.read(&read, limit, &taken.snapshot.holes, under);
        let found = stored.iter().map(Stored::found).filter(|found| !found.skip);
        let messages = found.flat_map(|found| {
            (0..found.messages).map(move |index| MessageId::new(found.segment, index))
        });
        messages.filter(|message| *message > last).take(limit).collect()
    }

    /// Which of the messages can be taken.
    fn sort_out(
        &self,
        partition: &str,
        messages: &Spans,
        sifted: &mut Sifted,
        taken: &SeenSnapshot,
        under: &ActiveSnapshot,
    ) -> Result<()> {
        let claims = claim::at_hand(self.group.id, partition, messages);
        // After the look: a lease that ends later than this has been there for all to see before its
        // end comes, and is found by that.
        let now = clock::now();
        for message in messages.messages() {
            let Some(found) = claims.get(&message) else {
                sifted.free.push(message);
                continue;
            };
            if found.is_own {
                sifted.front.own.push(message);
                continue;
            }
            if found.is_open {
                sifted.has_rivals = true;
                sifted.open.push(message);
                continue;
            }
            if !found.has_ended(now, self.queue.identity.void_before) {
                continue;
            }
            match self.claimed(found.id, taken, under)? {
                Claimed::Busy => (),
                Claimed::Unseen => {
                    sifted.has_rivals = true;
                    sifted.open.push(message);
                }
                Claimed::Returned(_) => sifted.ended.push((message, found.id)),
            }
        }
        Ok(())
    }
}

impl Sifted {
    /// What nobody has.
    pub fn candidates(&mut self) -> Vec<Candidate> {
        let free = self.free.drain(..).map(|message| Candidate { message, is_passed: true });
        let ahead = self.ahead.drain(..).map(|message| Candidate { message, is_passed: false });
        free.chain(ahead).collect()
    }

    /// Whether there is something, and all of it beyond what anybody has taken.
    pub fn is_ahead(&self) -> bool {
        self.free.is_empty() && self.ended.is_empty() && !self.ahead.is_empty()
    }

    /// Remember how far the look came.
    pub fn keep(self, group: &Group, partition: &str, was_ahead: bool) {
        let mut left = self.free;
        left.extend(self.open);
        left.extend(self.ended.into_iter().map(|(message, _)| message));
        self.front.keep(group, partition, left, was_ahead);
    }

    pub fn found(&self) -> usize {
        self.free.len() + self.ahead.len() + self.ended.len()
    }

    /// What to tell the search, with what became of the candidates.
    pub fn tried(&self, took_any: bool, outcome: &Outcome) -> PartitionResult {
        let is_left = !self.is_all || outcome.is_free_left || self.found() > 0;
        let has_rivals = self.has_rivals || outcome.has_rivals;
        match (took_any, self.held_back) {
            (false, _) if outcome.is_stale => PartitionResult::MovedOn,
            (true, None) if !is_left && !has_rivals && !outcome.is_stale => PartitionResult::Took,
            (true, _) => PartitionResult::TookSome,
            (false, _) if is_left || has_rivals => PartitionResult::Locked,
            (false, Some((segment, xid))) => PartitionResult::TooYoung(segment, xid),
            (false, None) => PartitionResult::Nothing,
        }
    }
}
