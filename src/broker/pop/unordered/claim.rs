//! Claiming messages in a group without order, and making sure that they are still to be had.

use std::collections::HashMap;

use queen_engine::cursor::Cursor;
use queen_engine::lease::LeaseId;
use queen_engine::message::{MessageId, Span, Spans};

use crate::broker::pop::Taking;
use crate::error::Result;
use crate::pg::spi::ActiveSnapshot;
use crate::pg::table::RowLocation;
use crate::store::claim;
use crate::store::cursor;
use crate::store::segment::Stored;

/// Messages looked at once more before they are claimed, beyond those that are wanted.
const SPARE: usize = 4;

/// A message that nobody had when it was looked at.
#[derive(Clone, Copy)]
pub struct Candidate {
    pub message: MessageId,
    /// The front has passed it: it is not come across again by itself.
    pub is_passed: bool,
}

/// What became of the candidates.
#[derive(Default)]
pub struct Outcome {
    /// Passed, and claimed.
    pub own: Vec<MessageId>,
    /// Passed, and to be looked at again.
    pub left: Vec<MessageId>,
    /// Some of what is free was left.
    pub is_free_left: bool,
    /// Some is in the hands of others, who may give it back.
    pub has_rivals: bool,
    /// Somebody else was faster.
    pub was_late: bool,
    /// Something was there no more when it was to be taken.
    pub is_stale: bool,
}

impl Outcome {
    fn leave(&mut self, candidate: Candidate) {
        if candidate.is_passed {
            self.left.push(candidate.message);
        }
    }
}

/// A candidate that has been claimed.
struct Claiming {
    candidate: Candidate,
    id: u64,
    lease: Option<(LeaseId, i64)>,
    place: RowLocation,
}

/// A message that was claimed, and is not to be delivered under that claim.
#[derive(Clone, Copy)]
enum Lost {
    /// Somebody is removing it, and has not committed.
    Perhaps,
    Forever,
}

impl Taking<'_> {
    /// Claim what is still free, as far as it is wanted, and deliver it. `base`: the id of the
    /// partition's cursor when it was looked at, if it had one.
    pub(super) fn claim(
        &mut self,
        partition: &str,
        candidates: Vec<Candidate>,
        base: Option<u64>,
    ) -> Result<Outcome> {
        let mut outcome = Outcome::default();
        if candidates.is_empty() {
            return Ok(outcome);
        }
        // Once a message is claimed, this transaction keeps the shares of [`locks::first_reads`] to
        // its end: a seek, a purge or a change of ordering waits for it. One that was faster is
        // noticed below.
        let (queue, group) = (self.queue.id, self.group.id);
        let has_shares = cursor::try_share_first_reads(queue, group);
        if !has_shares || cursor::claims_are_locked_out(group, partition) {
            if has_shares {
                cursor::give_back_first_reads(queue, group);
            }
            outcome.has_rivals = true;
            candidates.into_iter().for_each(|candidate| outcome.leave(candidate));
            return Ok(outcome);
        }
        let claimed = self.insert_claims(partition, candidates, &mut outcome);
        if claimed.is_empty() {
            cursor::give_back_first_reads(queue, group);
            return Ok(outcome);
        }
        let messages =
            claimed.iter().map(|claiming| Span::of(claiming.candidate.message)).collect();
        let (stored, lost) = self.still_there(partition, &messages, base)?;
        let (mut good, mut given) = (Spans::new(), None);
        for Claiming { candidate, id, lease, place } in claimed {
            let message = candidate.message;
            match lost.get(&message) {
                None => {
                    given = lease;
                    self.covered.push((id, Some(message)));
                    good.push(Span::of(message));
                    if candidate.is_passed {
                        outcome.own.push(message);
                    }
                }
                Some(lost) => {
                    claim::withdraw(place);
                    match lost {
                        Lost::Perhaps => {
                            outcome.has_rivals = true;
                            outcome.leave(candidate);
                        }
                        Lost::Forever => outcome.is_stale = true,
                    }
                }
            }
        }
        if !good.is_empty() {
            self.has_written = true;
            self.partitions.insert(partition.to_owned());
            self.deliver(partition, &good.delivered(), &stored, given);
        }
        Ok(outcome)
    }

    /// Insert claims for as many of the candidates as are wanted. Time has passed since they were looked
    /// at, and others look at the same: a second look spares most of the inserts that would be in vain.
    fn insert_claims(
        &mut self,
        partition: &str,
        mut candidates: Vec<Candidate>,
        outcome: &mut Outcome,
    ) -> Vec<Claiming> {
        let wanted = self.missing();
        let rest = candidates.split_off(candidates.len().min(wanted.saturating_add(SPARE)));
        let mut id = claim::draw_id();
        let mut lease = self.lease(id);
        let near = candidates.iter().map(|candidate| Span::of(candidate.message)).collect();
        let taken = claim::at_hand(self.group.id, partition, &near);
        let mut claimed = Vec::new();
        for candidate in candidates {
            if claimed.len() == wanted {
                outcome.is_free_left = true;
                outcome.leave(candidate);
                continue;
            }
            let message = candidate.message;
            let terms = lease.map(|(lease, duration)| (lease, self.now.saturating_add(duration)));
            let place = match taken.contains_key(&message) {
                true => None,
                false => claim::try_insert(id, self.group.id, partition, message, self.now, terms),
            };
            let Some(place) = place else {
                (outcome.was_late, outcome.has_rivals) = (true, true);
                outcome.leave(candidate);
                continue;
            };
            claimed.push(Claiming { candidate, id, lease, place });
            if claimed.len() < wanted {
                id = claim::draw_id();
                lease = self.lease(id);
            }
        }
        outcome.is_free_left |= !rest.is_empty();
        rest.into_iter().for_each(|candidate| outcome.leave(candidate));
        claimed
    }

    /// The segments of what has just been claimed, as they are at this moment; and what of it is not
    /// to be had: what has been removed since the look, or settled and forgotten, or may just be being
    /// removed. All of it, if the group is no more what it was.
    ///
    /// Whoever removes messages says so before looking for claims, so one of the two has seen the
    /// other.
    fn still_there(
        &mut self,
        partition: &str,
        claimed: &Spans,
        base: Option<u64>,
    ) -> Result<(HashMap<u64, Stored>, HashMap<MessageId, Lost>)> {
        let all = |lost| claimed.messages().map(|message| (message, lost)).collect();
        if cursor::claims_are_locked_out(self.group.id, partition) {
            return Ok((HashMap::new(), all(Lost::Perhaps)));
        }
        if !self.is_current()? {
            return Ok((HashMap::new(), all(Lost::Forever)));
        }
        ActiveSnapshot::latest_snapshot(|under| {
            let stored = self.log(partition, None).segments(claimed, under);
            let stored: HashMap<u64, Stored> =
                stored.into_iter().map(|stored| (stored.id(), stored)).collect();
            let is_lost = self.is_lost(partition, base, &stored, under)?;
            let lost = claimed.messages().filter(is_lost).map(|message| (message, Lost::Forever));
            let lost = lost.collect();
            Ok((stored, lost))
        })
    }

    /// Whether a message is not to be had any more, by the partition's cursor as it is now.
    fn is_lost<'s>(
        &self,
        partition: &str,
        base: Option<u64>,
        stored: &'s HashMap<u64, Stored>,
        under: &ActiveSnapshot,
    ) -> Result<impl Fn(&MessageId) -> bool + use<'s>> {
        // One that has been put in the place of the other, by hand, has another id, and the other has
        // no state.
        let state = base.map(|id| cursor::state_of(id, under)).transpose()?.flatten();
        let (now, is_other) = match state {
            Some(state) => (Some(state), false),
            None => {
                let now = cursor::status(self.group.id, &self.group.start, partition, under)?;
                let id = now.as_ref().map(|(now, _)| now.id);
                (now.map(|(now, _)| now.cursor), base.is_some() && base != id)
            }
        };
        Ok(move |message: &MessageId| {
            let Some(segment) = stored.get(&message.segment()) else { return true };
            let is_forgotten = |now: &Cursor| has_forgotten(now, *message, segment);
            is_other || now.as_ref().is_some_and(is_forgotten)
        })
    }
}

/// Whether the cursor has passed a message and tells that it is settled.
pub fn has_forgotten(cursor: &Cursor, message: MessageId, segment: &Stored) -> bool {
    cursor.has_read(segment.id(), segment.xid()) && cursor.waiting.find(message).is_none()
}
