//! A try of one partition, or of one claim, in a group without order: any number of consumers pop
//! from one partition side by side, each message by itself.
//!
//! The first consumer that pops a message inserts a *claim* on it. The table has a unique key, and
//! all other consumers see the row at once, committed or not, so two consumers never have one
//! message. No consumer waits for another: a message that is claimed is passed by. A message that
//! was failed, or whose lease ran out, is found by its claim, as a partition of a group with order
//! is found by its cursor, and the row of its claim is what the next consumer locks.
//!
//! The partition's cursor says, as in a group with order, how far the partition has been read: all
//! messages behind it have been claimed, but for those that its `waiting` names. Pops do not move
//! it, because then they would wait for each other's transactions. Mostly the sweep does
//! ([`crate::broker::housekeeping::fold_claims`]). How far the cursor could be moved, each session
//! remembers for itself: its *front* ([`front`]).
//!
//! | file | its question |
//! |---|---|
//! | [`scan`] | which messages of a partition are free, from the front on |
//! | [`claim`] | claim those that are still free, and read claims |
//! | [`front`] | how far the session has come in a partition |

mod claim;
mod front;
mod scan;

use std::collections::{HashMap, HashSet};
use std::ops::ControlFlow;

use self::claim::{Candidate, ClaimOutcome, ClaimState, ReturnedMessage, claim_free, read_claim};
use self::front::Ahead;
use self::scan::{PartitionScan, messages_beyond_claims};
use crate::broker::housekeeping::fold_claims;
use crate::broker::pop::context::{PopContext, PopLimits};
use crate::broker::pop::run::{PartitionPop, PopRun};
use crate::broker::pop::search::PartitionResult;
use crate::error::Result;
use crate::pg::clock::{self, SECOND};
use crate::pg::random::random;
use crate::store::claim::is_held;
use crate::store::unit::Unit;

/// Scans of a partition in one pop, where other consumers are faster each time.
const MOST_SCANS: usize = 64;

/// One in this many pops that got a message folds claims, for this long.
const FOLD_EVERY: u64 = 256;
const FOLD_FOR: i64 = SECOND / 100;

/// How groups without order pop.
#[derive(Default)]
pub struct UnorderedPop {
    /// Claims to which this pop has given a new state. Its snapshot does not show that.
    written: HashSet<u64>,
}

impl PartitionPop for UnorderedPop {
    /// The messages of a partition may come to the search one by one, by their claims.
    const ONE_TRY_IS_ALL: bool = false;

    fn locks_one_row(limits: &PopLimits<'_>) -> bool {
        limits.batch == 1
    }

    fn pop_from(&mut self, run: &mut PopRun<'_>, name: &str) -> Result<PartitionResult> {
        match Unit::named(name) {
            Unit::Partition(partition) => self.pop_from_partition(run, partition),
            Unit::Claim { id, .. } => self.pop_returned(run, id),
        }
    }

    fn peek(context: &PopContext<'_>, name: &str) -> Result<PartitionResult> {
        match Unit::named(name) {
            Unit::Partition(partition) => {
                let scan = PartitionScan::run(context, partition, 1)?;
                let mut is_any_there = scan.has_new();
                for (_, id) in &scan.returned {
                    is_any_there = is_any_there || peek_returned(context, *id)?.has_messages();
                }
                let result = scan.result(is_any_there, &ClaimOutcome::default());
                scan.keep_front(context.group, partition, false);
                Ok(result)
            }
            Unit::Claim { id, .. } => peek_returned(context, id),
        }
    }
}

/// What a pop of a message that has come back would come to.
fn peek_returned(context: &PopContext<'_>, id: u64) -> Result<PartitionResult> {
    Ok(match read_claim(context, id)? {
        ClaimState::Busy | ClaimState::Unseen => PartitionResult::Nothing,
        ClaimState::Returned(returned) => match is_held(returned.place, context.under) {
            true => PartitionResult::Locked,
            false => PartitionResult::FOUND,
        },
    })
}

impl UnorderedPop {
    /// Pop a message that has come back, by its claim.
    fn pop_returned(&mut self, run: &mut PopRun<'_>, id: u64) -> Result<PartitionResult> {
        if self.written.contains(&id) {
            return Ok(PartitionResult::Nothing);
        }
        let ReturnedMessage { pop, located, place } = match read_claim(run.context, id)? {
            ClaimState::Returned(returned) => *returned,
            ClaimState::Busy | ClaimState::Unseen => return Ok(PartitionResult::Nothing),
        };
        if let ControlFlow::Break(result) = run.try_lock(&located, place)? {
            return Ok(result);
        }
        self.written.insert(id);
        let log = run.context.log(&located.partition, None);
        run.write_and_deliver(&located, pop, &mut HashMap::new(), &log)
    }

    /// Pop what is free in a partition. Where other consumers are faster, scan again: by then they
    /// have come further.
    fn pop_from_partition(
        &mut self,
        run: &mut PopRun<'_>,
        partition: &str,
    ) -> Result<PartitionResult> {
        let mut result = PartitionResult::PoppedSome;
        if !pop_ahead(run, partition)? {
            for _ in 0..MOST_SCANS {
                let (scanned, was_late) = self.scan_and_pop(run, partition)?;
                result = scanned;
                if !was_late || run.is_outdated() || result.has_messages() {
                    break;
                }
                pgrx::check_for_interrupts!();
            }
        }
        if result.has_messages() {
            fold_now_and_then(run.context, partition)?;
        }
        Ok(result)
    }

    /// Scan the partition and pop what is free. True: another consumer was faster, or a message was
    /// removed before it could be claimed.
    ///
    /// Pops also messages that have come back and that no search finds: their claims were committed
    /// after their leases had ended.
    fn scan_and_pop(
        &mut self,
        run: &mut PopRun<'_>,
        partition: &str,
    ) -> Result<(PartitionResult, bool)> {
        let wanted = run.missing();
        let mut scan = PartitionScan::run(run.context, partition, wanted)?;
        let is_ahead = scan.is_ahead();
        for (message, id) in std::mem::take(&mut scan.returned) {
            let result = match run.missing() {
                0 => PartitionResult::Locked,
                _ => self.pop_returned(run, id)?,
            };
            if matches!(result, PartitionResult::Locked | PartitionResult::MovedOn) {
                scan.has_rivals = true;
                scan.open.push(message);
            }
            if self.written.contains(&id) {
                scan.front.own.push(message);
            }
        }
        let mut outcome = ClaimOutcome::default();
        if run.missing() > 0 {
            outcome = claim_free(run, partition, scan.candidates(), scan.front.cursor_id())?;
            scan.open.append(&mut outcome.left);
            scan.front.own.append(&mut outcome.own);
        }
        let has_popped = run.missing() < wanted;
        let result = scan.result(has_popped, &outcome);
        scan.keep_front(run.context.group, partition, is_ahead && has_popped);
        Ok((result, outcome.was_late || outcome.is_stale))
    }
}

/// Pop messages beyond all claims, where the session's last scan found only such. This is the
/// shortest way where many consumers pop from one partition. False: nothing was popped.
fn pop_ahead(run: &mut PopRun<'_>, partition: &str) -> Result<bool> {
    let Some(Ahead { from, since, cursor_id }) = front::ahead(run.context.group, partition) else {
        return Ok(false);
    };
    let wanted = run.missing();
    let messages = messages_beyond_claims(run.context, partition, from, since, wanted);
    if messages.len() >= wanted {
        let candidate = |message| Candidate { message, is_passed: false };
        let candidates = messages.into_iter().map(candidate).collect();
        claim_free(run, partition, candidates, Some(cursor_id))?;
    }
    Ok(run.missing() < wanted)
}

/// Do a little of the sweep's work in some pops, for a database where no worker does it.
fn fold_now_and_then(context: &PopContext<'_>, partition: &str) -> Result<()> {
    if random().is_multiple_of(FOLD_EVERY) {
        let until = clock::now() + FOLD_FOR;
        fold_claims::fold_in_pop(context.queue, context.group, partition, until, context.under)?;
    }
    Ok(())
}
