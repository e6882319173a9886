//! A scan of a partition, in a group without order, for messages that the pop can have. It begins
//! at the session's front and reads the log and the claims. It takes no lock, so what it finds may
//! be claimed by another consumer a moment later: [`super::claim`] finds that out.

use queen_engine::message::{MessageId, Spans};
use queen_engine::pop::{Pop, Read};

use super::claim::{Candidate, ClaimOutcome, ClaimState, has_settled, read_claim};
use super::front::Front;
use crate::broker::pop::context::{PopContext, ReadSegments};
use crate::broker::pop::search::PartitionResult;
use crate::error::Result;
use crate::pg::clock::{self, Moment};
use crate::store::claim;
use crate::store::cursor;
use crate::store::group::Group;
use crate::store::segment::{Log, LogPage, Stored};

/// Messages read first, beyond those that are wanted; twice as many each time all are claimed.
const FIRST_SPARE: usize = 3;
const LARGEST_READ: usize = 4096;
/// Segments read ahead, beyond those that are wanted: other consumers come for them as well.
const SPARE_AHEAD: usize = 4;

/// What a scan of a partition found.
pub struct PartitionScan {
    /// Never claimed, and passed by the front.
    free: Vec<MessageId>,
    /// Never claimed, beyond all claims and beyond the front.
    ahead: Vec<MessageId>,
    /// Messages whose first lease has ended and that can be popped again, each with its claim.
    pub returned: Vec<(MessageId, u64)>,
    /// To be scanned again: they are claimed by transactions that have not ended, or left free.
    pub open: Vec<MessageId>,
    /// Other transactions hold some of the messages, and may give them back.
    pub has_rivals: bool,
    /// The first segment that is not to be delivered yet, and its transaction.
    held_back: Option<(u64, u64)>,
    /// The log has nothing more.
    is_all: bool,
    pub front: Front,
}

impl PartitionScan {
    /// Scan a partition, from the front on, until `wanted` messages are found.
    pub fn run(context: &PopContext<'_>, partition: &str, wanted: usize) -> Result<Self> {
        let PopContext { group, under, .. } = *context;
        let stored = cursor::status(group.id, &group.start, partition, under)?;
        let stored = stored.map(|(located, _)| located);
        let bare = context.log(partition, None).bare();
        let mut scan = Self::at(Front::of(group, &bare, stored.as_ref(), under));
        let log = Log { since: scan.front.cursor.since, ..bare };
        let mut limit = wanted.saturating_add(FIRST_SPARE).min(LARGEST_READ);
        while scan.found() < wanted && !scan.is_all {
            let cursor = scan.front.cursor.clone();
            let mut pop = Pop::begin(cursor, &context.seen.snapshot, limit, None);
            let ReadSegments { by_id, held_back } = context.read_log(&mut pop, &log);
            scan.held_back = held_back;
            let Some(popped) = pop.finish(None, context.now) else {
                scan.is_all = true;
                break;
            };
            scan.is_all = popped.taken.count() < limit;
            scan.front.cursor = popped.cursor;
            // The stored cursor may know of late messages that the front has not met.
            let (_, unsettled) = popped.taken.partition(|message| {
                by_id
                    .get(&message.segment())
                    .zip(stored.as_ref())
                    .is_some_and(|(segment, stored)| has_settled(&stored.cursor, message, segment))
            });
            scan.sort_out(context, partition, &unsettled)?;
            if scan.found() < wanted && !scan.is_all {
                scan.look_ahead(context, partition, wanted);
            }
            limit = LARGEST_READ.min(limit * 2);
            pgrx::check_for_interrupts!();
        }
        Ok(scan)
    }

    fn at(front: Front) -> Self {
        Self {
            free: Vec::new(),
            ahead: Vec::new(),
            returned: Vec::new(),
            open: Vec::new(),
            has_rivals: false,
            held_back: None,
            is_all: false,
            front,
        }
    }

    /// Read the claims of messages that the front has just passed, and sort the messages by what
    /// the pop may do with them.
    fn sort_out(
        &mut self,
        context: &PopContext<'_>,
        partition: &str,
        messages: &Spans,
    ) -> Result<()> {
        let claims = claim::at_hand(context.group.id, partition, messages);
        // Drawn after the read of the claims. A claim whose lease ends later than this is committed
        // before its lease ends, so the search finds it at that moment.
        let now = clock::now();
        for message in messages.messages() {
            let Some(claim) = claims.get(&message) else {
                self.free.push(message);
                continue;
            };
            if claim.is_own {
                self.front.own.push(message);
                continue;
            }
            if claim.is_open {
                self.has_rivals = true;
                self.open.push(message);
                continue;
            }
            if !claim.has_ended(now, context.queue.identity.void_before) {
                continue;
            }
            match read_claim(context, claim.id)? {
                ClaimState::Busy => (),
                ClaimState::Unseen => {
                    self.has_rivals = true;
                    self.open.push(message);
                }
                ClaimState::Returned(_) => self.returned.push((message, claim.id)),
            }
        }
        Ok(())
    }

    /// Where other consumers have claimed all that was read, most likely they have come far: look
    /// for free messages beyond the last claim. The claims in between are folded by the sweep.
    fn look_ahead(&mut self, context: &PopContext<'_>, partition: &str, wanted: usize) {
        let wanted = wanted - self.found();
        let from = MessageId::new(self.front.cursor.position + 1, 0);
        let since = self.front.cursor.since;
        self.ahead = messages_beyond_claims(context, partition, from, since, wanted);
    }

    /// The messages that are free, for [`super::claim::claim_free`].
    pub fn candidates(&mut self) -> Vec<Candidate> {
        let free = self.free.drain(..).map(|message| Candidate { message, is_passed: true });
        let ahead = self.ahead.drain(..).map(|message| Candidate { message, is_passed: false });
        free.chain(ahead).collect()
    }

    /// Whether the scan found messages beyond all claims, and no others.
    pub fn is_ahead(&self) -> bool {
        self.free.is_empty() && self.returned.is_empty() && !self.ahead.is_empty()
    }

    /// How many messages the scan found that the pop may have.
    pub fn found(&self) -> usize {
        self.free.len() + self.ahead.len() + self.returned.len()
    }

    /// Whether there are messages that no consumer of the group has popped.
    pub fn has_new(&self) -> bool {
        !self.free.is_empty() || !self.ahead.is_empty()
    }

    /// Remember in the session how far the scan came.
    pub fn keep_front(self, group: &Group, partition: &str, was_ahead: bool) {
        let mut left = self.free;
        left.extend(self.open);
        left.extend(self.returned.into_iter().map(|(message, _)| message));
        self.front.keep(group, partition, left, was_ahead);
    }

    /// What the try of the partition came to, with what became of the candidates.
    pub fn result(&self, has_popped: bool, outcome: &ClaimOutcome) -> PartitionResult {
        let is_left = !self.is_all || outcome.is_free_left || self.found() > 0;
        let has_rivals = self.has_rivals || outcome.has_rivals;
        match (has_popped, self.held_back) {
            (false, _) if outcome.is_stale => PartitionResult::MovedOn,
            (true, None) if !is_left && !has_rivals && !outcome.is_stale => PartitionResult::Popped,
            (true, _) => PartitionResult::PoppedSome,
            (false, _) if is_left || has_rivals => PartitionResult::Locked,
            (false, Some((segment, xid))) => PartitionResult::TooYoung(segment, xid),
            (false, None) => PartitionResult::Nothing,
        }
    }
}

/// Messages beyond the last claim that is not below `from`, committed or not: as many as are wanted
/// and some more, or as there are. None where there is no such claim.
pub fn messages_beyond_claims(
    context: &PopContext<'_>,
    partition: &str,
    from: MessageId,
    since: Option<Moment>,
    wanted: usize,
) -> Vec<MessageId> {
    let Some(last) = claim::last_at_hand(context.group.id, partition, from) else {
        return Vec::new();
    };
    let log = context.log(partition, since).bare();
    let read = Read::Beyond { after: last.segment() - 1 };
    let limit = wanted.saturating_add(SPARE_AHEAD).min(LARGEST_READ);
    let LogPage { stored, .. } = log.read(&read, limit, &context.seen, context.under);
    let found = stored.iter().map(Stored::found).filter(|found| !found.skip);
    let messages = found.flat_map(|found| {
        (0..found.messages).map(move |index| MessageId::new(found.segment, index))
    });
    messages.filter(|message| *message > last).take(limit).collect()
}
