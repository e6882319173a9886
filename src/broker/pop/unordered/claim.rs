//! Claims in a group without order: claim messages that a scan found free, and read a claim that
//! exists.
//!
//! A scan takes no lock, so before a message is claimed, and after, this checks that the pop may
//! have it. In order: the shares of `first_reads`, which hold off a seek, a purge and a change of
//! ordering to the end of the transaction; the lock `claims` of the partition, which retention
//! holds while it removes messages; the insert, which the unique key refuses if another consumer
//! was faster; then, with the claim in place, the lock once more, the group, the segment and the
//! cursor. Retention takes the lock before it looks for claims. So either it sees the claim, or the
//! pop sees the lock.

use std::collections::HashMap;

use queen_engine::cursor::{Cursor, Readiness};
use queen_engine::failures::Failures;
use queen_engine::lease::LeaseId;
use queen_engine::message::{MessageId, Span, Spans};
use queen_engine::pop::Pop;

use crate::broker::pop::context::PopContext;
use crate::broker::pop::run::PopRun;
use crate::error::Result;
use crate::pg::clock;
use crate::pg::snapshot::ActiveSnapshot;
use crate::pg::table::RowLocation;
use crate::store::claim;
use crate::store::cursor;
use crate::store::lease_set::Covered;
use crate::store::located::Located;
use crate::store::progress;
use crate::store::segment::Stored;

/// Candidates whose claims are read once more before the insert, beyond those that are wanted.
const SPARE: usize = 4;

/// A message that was free when it was scanned.
#[derive(Clone, Copy)]
pub struct Candidate {
    pub message: MessageId,
    /// The front has passed it: the next scan does not meet it by itself.
    pub is_passed: bool,
}

/// What became of the candidates.
#[derive(Default)]
pub struct ClaimOutcome {
    /// Passed by the front, and claimed.
    pub own: Vec<MessageId>,
    /// Passed by the front, and to be scanned again.
    pub left: Vec<MessageId>,
    /// Some free messages were left.
    pub is_free_left: bool,
    /// Other transactions hold some of the messages, and may give them back.
    pub has_rivals: bool,
    /// Another consumer was faster.
    pub was_late: bool,
    /// Some message was removed or settled before it could be claimed.
    pub is_stale: bool,
}

impl ClaimOutcome {
    fn leave(&mut self, candidate: Candidate) {
        if candidate.is_passed {
            self.left.push(candidate.message);
        }
    }
}

/// A claim that this pop has inserted.
struct NewClaim {
    candidate: Candidate,
    id: u64,
    lease: Option<(LeaseId, i64)>,
    place: RowLocation,
}

/// Why a message that was claimed is not delivered under that claim.
#[derive(Clone, Copy)]
enum LostMessage {
    /// Retention may be removing it, and has not committed.
    Perhaps,
    /// It has been removed or settled, or the group has been changed.
    ForGood,
}

/// Claim as many of the candidates as are wanted and still free, and deliver them. `cursor_id`: the
/// id of the partition's cursor when it was scanned, if it had one.
pub fn claim_free(
    run: &mut PopRun<'_>,
    partition: &str,
    candidates: Vec<Candidate>,
    cursor_id: Option<u64>,
) -> Result<ClaimOutcome> {
    let mut outcome = ClaimOutcome::default();
    if candidates.is_empty() {
        return Ok(outcome);
    }
    let (queue, group) = (run.context.queue.id, run.context.group.id);
    let has_shares = cursor::try_share_first_reads(queue, group);
    if !has_shares || cursor::claims_are_locked_out(group, partition) {
        if has_shares {
            cursor::give_back_first_reads(queue, group);
        }
        outcome.has_rivals = true;
        candidates.into_iter().for_each(|candidate| outcome.leave(candidate));
        return Ok(outcome);
    }
    let claims = insert_claims(run, partition, candidates, &mut outcome);
    if claims.is_empty() {
        cursor::give_back_first_reads(queue, group);
        return Ok(outcome);
    }
    let messages = claims.iter().map(|claim| Span::of(claim.candidate.message)).collect();
    let (segments, lost) = check_claimed(run, partition, &messages, cursor_id)?;
    let (mut kept, mut lease_of_kept) = (Spans::new(), None);
    for NewClaim { candidate, id, lease, place } in claims {
        let message = candidate.message;
        let Some(lost) = lost.get(&message) else {
            lease_of_kept = lease;
            run.cover(Covered { id, message: Some(message), given_by: Some(0) });
            kept.push(Span::of(message));
            if candidate.is_passed {
                outcome.own.push(message);
            }
            continue;
        };
        claim::withdraw(place);
        match lost {
            LostMessage::Perhaps => {
                outcome.has_rivals = true;
                outcome.leave(candidate);
            }
            LostMessage::ForGood => outcome.is_stale = true,
        }
    }
    if !kept.is_empty() {
        run.deliver(partition, &kept.delivered(), &Failures::default(), &segments, lease_of_kept);
    }
    Ok(outcome)
}

/// Insert claims for as many of the candidates as are wanted. Time has passed since the scan, and
/// other consumers scan the same messages. So the claims are read once more, which spares most of
/// the inserts that would fail.
fn insert_claims(
    run: &mut PopRun<'_>,
    partition: &str,
    mut candidates: Vec<Candidate>,
    outcome: &mut ClaimOutcome,
) -> Vec<NewClaim> {
    let (group, now, wanted) = (run.context.group.id, run.context.now, run.missing());
    let rest = candidates.split_off(candidates.len().min(wanted.saturating_add(SPARE)));
    let mut id = claim::draw_id();
    let mut lease = run.lease_for(id, 0);
    let near = candidates.iter().map(|candidate| Span::of(candidate.message)).collect();
    let claimed = claim::at_hand(group, partition, &near);
    let mut new = Vec::new();
    for candidate in candidates {
        if new.len() == wanted {
            outcome.is_free_left = true;
            outcome.leave(candidate);
            continue;
        }
        let message = candidate.message;
        let terms = lease.map(|(lease, duration)| (lease, now.saturating_add(duration)));
        let place = match claimed.contains_key(&message) {
            true => None,
            false => claim::try_insert(id, group, partition, message, now, terms),
        };
        let Some(place) = place else {
            (outcome.was_late, outcome.has_rivals) = (true, true);
            outcome.leave(candidate);
            continue;
        };
        new.push(NewClaim { candidate, id, lease, place });
        if new.len() < wanted {
            id = claim::draw_id();
            lease = run.lease_for(id, 0);
        }
    }
    outcome.is_free_left |= !rest.is_empty();
    rest.into_iter().for_each(|candidate| outcome.leave(candidate));
    new
}

/// Check what this pop has just claimed, as it is at this moment: the segments of the messages, and
/// those of the messages that it may not have.
fn check_claimed(
    run: &mut PopRun<'_>,
    partition: &str,
    claimed: &Spans,
    cursor_id: Option<u64>,
) -> Result<(HashMap<u64, Stored>, HashMap<MessageId, LostMessage>)> {
    let all = |lost| claimed.messages().map(|message| (message, lost)).collect();
    if cursor::claims_are_locked_out(run.context.group.id, partition) {
        return Ok((HashMap::new(), all(LostMessage::Perhaps)));
    }
    if !run.check_current()? {
        return Ok((HashMap::new(), all(LostMessage::ForGood)));
    }
    let context = run.context;
    ActiveSnapshot::latest_snapshot(|latest| {
        let stored = context.log(partition, None).segments(claimed, latest);
        let segments: HashMap<u64, Stored> =
            stored.into_iter().map(|stored| (stored.id(), stored)).collect();
        let is_lost = loss_by_cursor(context, partition, cursor_id, &segments, latest)?;
        let lost = claimed.messages().filter(is_lost);
        let lost = lost.map(|message| (message, LostMessage::ForGood)).collect();
        Ok((segments, lost))
    })
}

/// Whether a message was removed or settled, by the partition's cursor as `latest` shows it. All
/// messages count as lost if the cursor is not the one of `cursor_id` any more: a seek has put
/// another in its place.
fn loss_by_cursor<'s>(
    context: &PopContext<'_>,
    partition: &str,
    cursor_id: Option<u64>,
    segments: &'s HashMap<u64, Stored>,
    latest: &ActiveSnapshot,
) -> Result<impl Fn(&MessageId) -> bool + use<'s>> {
    let group = context.group;
    // A cursor that was replaced has no state. The id alone spares a look-up by partition.
    let state = cursor_id.map(|id| progress::state_of(id, latest)).transpose()?.flatten();
    let (cursor, is_other) = match state {
        Some(state) => (Some(state), false),
        None => {
            let now = cursor::status(group.id, &group.start, partition, latest)?;
            let id = now.as_ref().map(|(now, _)| now.id);
            (now.map(|(now, _)| now.cursor), cursor_id.is_some() && cursor_id != id)
        }
    };
    Ok(move |message: &MessageId| {
        let Some(segment) = segments.get(&message.segment()) else { return true };
        is_other || cursor.as_ref().is_some_and(|cursor| has_settled(cursor, *message, segment))
    })
}

/// Whether a cursor says that a message is settled: it has passed the message and does not have it
/// waiting.
pub fn has_settled(cursor: &Cursor, message: MessageId, segment: &Stored) -> bool {
    cursor.has_read(segment.id(), segment.xid()) && cursor.waiting.find(message).is_none()
}

/// What a claim means for this pop.
pub enum ClaimState<'c> {
    /// Its message is settled, leased, or waits for a retry.
    Busy,
    /// The pop's snapshot does not show that its message can be popped, but newer ones may.
    Unseen,
    /// Its message has come back and can be popped.
    Returned(Box<ReturnedMessage<'c>>),
}

pub struct ReturnedMessage<'c> {
    pub pop: Pop<'c>,
    /// The claim, and where its row lies.
    pub located: Located,
    pub place: RowLocation,
}

/// Read the claim of this id with its newest state.
pub fn read_claim<'c>(context: &'c PopContext<'_>, id: u64) -> Result<ClaimState<'c>> {
    let Some(row) = claim::find(id, context.under) else { return Ok(ClaimState::Unseen) };
    let (located, place) = row.locate(context.under)?;
    if let Readiness::At(at) = context.readiness(&located.cursor) {
        // The leases of a message must not overlap. So a lease that has ended since the pop began
        // is not over for this pop, but it is for a later one.
        let is_over_by_now = at <= clock::now();
        return Ok(if is_over_by_now { ClaimState::Unseen } else { ClaimState::Busy });
    }
    let max_deliveries = context.queue.options.max_deliveries();
    let cursor = located.cursor.clone();
    let mut pop = Pop::begin(cursor, &context.seen.snapshot, 1, max_deliveries);
    pop.stop();
    Ok(match pop.found_any() {
        true => ClaimState::Returned(Box::new(ReturnedMessage { pop, located, place })),
        false => ClaimState::Busy,
    })
}
