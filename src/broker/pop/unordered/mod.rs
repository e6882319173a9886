//! Taking messages in a group without order: any number of consumers take from one partition side by
//! side, each message by itself.
//!
//! Who takes a message for the first time inserts a claim, which everybody else sees at once, and
//! which is unique. Nobody waits: what is claimed is passed by, whether or not that has been
//! committed. A message that was failed, or whose lease ran out, is found by its claim, as a
//! partition of an ordered group is found by its cursor, and is locked by it.
//!
//! The cursor of a partition says, as in an ordered group, how far it has been read: what is behind
//! has been claimed, but for what `waiting` names. It is moved on by the sweep ([`crate::broker::housekeeping::fold_claims`]),
//! since nobody is to wait for a transaction that holds it. How far it could be moved on, each
//! session remembers for itself: its *front*.

mod claim;
mod front;
mod scan;

use std::collections::HashMap;

use queen_engine::cursor::Readiness;
use queen_engine::pop::Pop;

use self::claim::{Candidate, Outcome};
use self::front::Ahead;
use crate::broker::housekeeping::fold_claims;
use crate::broker::pop::{PartitionResult, Taking};
use crate::error::Result;
use crate::pg::clock::{self, SECOND};
use crate::pg::datum::random;
use crate::pg::spi::ActiveSnapshot;
use crate::pg::table::RowLocation;
use crate::store::claim as claims;
use crate::store::cursor::{self, Located, LockAttempt};
use crate::store::seen_snapshot::SeenSnapshot;
use crate::store::unit::Unit;

/// Looks at a partition in one pop, where others are faster.
const MOST_LOOKS: usize = 64;

/// Once in so many times that something is taken, claims are folded for so long.
const FOLD_EVERY: u64 = 256;
const FOLD_FOR: i64 = SECOND / 100;

/// A message that has been claimed before.
pub(super) enum Claimed<'t> {
    /// It does not concern this look: settled, or in somebody's hands, or waiting.
    Busy,
    /// There for others, and not for this transaction.
    Unseen,
    Returned(Box<(Pop<'t>, Located, RowLocation)>),
}

impl Taking<'_> {
    pub(super) fn try_unit(
        &mut self,
        unit: Unit<'_>,
        taken: &SeenSnapshot,
        under: &ActiveSnapshot,
    ) -> Result<PartitionResult> {
        match unit {
            Unit::Partition(partition) => self.try_partition(partition, taken, under),
            Unit::Claim { id, .. } => self.try_claim(id, taken, under),
        }
    }

    /// Whether there is something to take, taking nothing.
    pub(super) fn look_at_unit(
        &self,
        unit: Unit<'_>,
        taken: &SeenSnapshot,
        under: &ActiveSnapshot,
    ) -> Result<PartitionResult> {
        match unit {
            Unit::Partition(partition) => {
                let sifted = self.sift(partition, 1, taken, under)?;
                let tried = sifted.tried(sifted.found() > 0, &Outcome::default());
                sifted.keep(self.group, partition, false);
                Ok(tried)
            }
            Unit::Claim { id, .. } => match self.claimed(id, taken, under)? {
                Claimed::Returned(_) => Ok(PartitionResult::Took),
                Claimed::Busy | Claimed::Unseen => Ok(PartitionResult::Nothing),
            },
        }
    }

    /// What has become of a claim.
    pub(super) fn claimed<'t>(
        &self,
        id: u64,
        taken: &'t SeenSnapshot,
        under: &ActiveSnapshot,
    ) -> Result<Claimed<'t>> {
        let Some(row) = claims::find(id, under) else { return Ok(Claimed::Unseen) };
        let (located, place) = row.locate(under)?;
        if let Readiness::At(at) =
            located.cursor.readiness(self.now, self.queue.identity.void_before)
        {
            // A lease that has ended since this pop began is not over for it: the leases of a
            // message are not to overlap.
            let is_over_for_others = at <= clock::now();
            return Ok(if is_over_for_others { Claimed::Unseen } else { Claimed::Busy });
        }
        let max_deliveries = self.queue.options.max_deliveries();
        let mut pop = Pop::begin(located.cursor.clone(), &taken.snapshot, 1, max_deliveries);
        pop.stop();
        match pop.found_any() {
            true => Ok(Claimed::Returned(Box::new((pop, located, place)))),
            false => Ok(Claimed::Busy),
        }
    }

    /// Take a message that has come back.
    fn try_claim(
        &mut self,
        id: u64,
        taken: &SeenSnapshot,
        under: &ActiveSnapshot,
    ) -> Result<PartitionResult> {
        // What is written here is not seen here.
        if self.moved.contains(&id) {
            return Ok(PartitionResult::Nothing);
        }
        let (pop, located, place) = match self.claimed(id, taken, under)? {
            Claimed::Returned(returned) => *returned,
            Claimed::Busy | Claimed::Unseen => return Ok(PartitionResult::Nothing),
        };
        match cursor::try_lock(&located, place, under)? {
            LockAttempt::Locked if !self.is_current()? => return Ok(PartitionResult::MovedOn),
            LockAttempt::Locked => (),
            LockAttempt::HeldByAnother => return Ok(PartitionResult::Locked),
            LockAttempt::MovedOn => return Ok(PartitionResult::MovedOn),
        }
        self.moved.insert(id);
        let log = self.log(&located.partition, None);
        self.take(&located, pop, &mut HashMap::new(), &log, under)
    }

    /// Take what is free in a partition. Where others are faster each time, look again: by then they
    /// have come further.
    fn try_partition(
        &mut self,
        partition: &str,
        taken: &SeenSnapshot,
        under: &ActiveSnapshot,
    ) -> Result<PartitionResult> {
        let mut tried = PartitionResult::Locked;
        for look in 0..MOST_LOOKS {
            if look == 0 && self.try_ahead(partition, taken, under)? {
                tried = PartitionResult::TookSome;
                break;
            }
            let (outcome, was_late) = self.try_once(partition, taken, under)?;
            tried = outcome;
            if !was_late
                || self.is_outdated
                || matches!(tried, PartitionResult::Took | PartitionResult::TookSome)
            {
                break;
            }
            pgrx::check_for_interrupts!();
        }
        if matches!(tried, PartitionResult::Took | PartitionResult::TookSome) {
            self.fold_now_and_then(partition, under)?;
        }
        Ok(tried)
    }

    /// Take what lies beyond all that anybody has taken, where the last look found nothing but that. It
    /// is the shortest way where many take from one partition.
    fn try_ahead(
        &mut self,
        partition: &str,
        taken: &SeenSnapshot,
        under: &ActiveSnapshot,
    ) -> Result<bool> {
        let Some(Ahead { from, since, base }) = front::ahead(self.group, partition) else {
            return Ok(false);
        };
        let (had, wanted) = (self.deliveries.len(), self.missing());
        let messages = self.beyond_all(partition, from, since, wanted, taken, under);
        if messages.len() >= wanted {
            let candidate = |message| Candidate { message, is_passed: false };
            self.claim(partition, messages.into_iter().map(candidate).collect(), Some(base))?;
        }
        Ok(self.deliveries.len() > had)
    }

    /// Look through the partition, and take what is free; and whether somebody else came first. Takes also
    /// what has come back and was not found otherwise: a claim that was committed after its lease had
    /// ended.
    fn try_once(
        &mut self,
        partition: &str,
        taken: &SeenSnapshot,
        under: &ActiveSnapshot,
    ) -> Result<(PartitionResult, bool)> {
        let had = self.deliveries.len();
        let mut sifted = self.sift(partition, self.missing(), taken, under)?;
        let is_ahead = sifted.is_ahead();
        for (message, id) in std::mem::take(&mut sifted.ended) {
            let tried = match self.missing() {
                0 => PartitionResult::Locked,
                _ => self.try_claim(id, taken, under)?,
            };
            if matches!(tried, PartitionResult::Locked | PartitionResult::MovedOn) {
                sifted.has_rivals = true;
                sifted.open.push(message);
            }
            if self.moved.contains(&id) {
                sifted.front.own.push(message);
            }
        }
        let mut outcome = Outcome::default();
        if self.missing() > 0 {
            let candidates = sifted.candidates();
            outcome = self.claim(partition, candidates, sifted.front.base())?;
            sifted.open.append(&mut outcome.left);
            sifted.front.own.append(&mut outcome.own);
        }
        let took_any = self.deliveries.len() > had;
        let tried = sifted.tried(took_any, &outcome);
        sifted.keep(self.group, partition, is_ahead && took_any);
        Ok((tried, outcome.was_late || outcome.is_stale))
    }

    /// Do a little of the sweep's work, where nobody else does it.
    fn fold_now_and_then(&self, partition: &str, under: &ActiveSnapshot) -> Result<()> {
        if random().is_multiple_of(FOLD_EVERY) {
            let until = clock::now() + FOLD_FOR;
            fold_claims::fold_in_pop(self.queue, self.group, partition, until, under)?;
        }
        Ok(())
    }

    pub(super) fn missing(&self) -> usize {
        self.wanted.batch - self.deliveries.len()
    }
}
