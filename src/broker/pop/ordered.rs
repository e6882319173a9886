//! Taking messages from a partition of a group with order.

use std::collections::HashMap;

use queen_engine::cursor::Readiness;
use queen_engine::pop::Pop;

use crate::broker::pop::Taking;
use crate::broker::pop::context::read_log;
use crate::broker::pop::search::PartitionResult;
use crate::error::Result;
use crate::pg::spi::ActiveSnapshot;
use crate::pg::table::RowLocation;
use crate::store::cursor::{self, Located, LockAttempt};
use crate::store::seen_snapshot::SeenSnapshot;
use crate::store::segment::Stored;
use crate::store::tally;

/// What a look at one partition found.
pub(super) enum Look<'t> {
    Nothing(PartitionResult),
    Something(Box<Something<'t>>),
}

impl Look<'_> {
    /// What would have become of it.
    pub(super) fn tried(self) -> PartitionResult {
        match self {
            Look::Nothing(tried) => tried,
            Look::Something(_) => PartitionResult::Took,
        }
    }
}

/// A pop that has found something.
pub(super) struct Something<'t> {
    /// The cursor and where it lies, unless it is new.
    found: Option<(Located, RowLocation)>,
    pop: Pop<'t>,
    /// The segments it has read.
    segments: HashMap<u64, Stored>,
}

impl Taking<'_> {
    /// Read what a partition has to give, without a lock.
    pub(super) fn look<'t>(
        &self,
        partition: &str,
        taken: &'t SeenSnapshot,
        under: &ActiveSnapshot,
    ) -> Result<Look<'t>> {
        let found = cursor::status(self.group.id, &self.group.start, partition, under)?;
        let cursor = self.group.state_in(found.as_ref().map(|(located, _)| located));
        if let Readiness::At(_) = cursor.readiness(self.now, self.queue.identity.void_before) {
            return Ok(Look::Nothing(PartitionResult::Nothing));
        }
        let log = self.log(partition, cursor.since);
        let missing = self.wanted.batch - self.deliveries.len();
        let max_deliveries = self.queue.options.max_deliveries();
        let mut pop = Pop::begin(cursor, &taken.snapshot, missing, max_deliveries);
        let (segments, held_back) = read_log(&mut pop, &log, taken, under);
        if pop.found_any() {
            return Ok(Look::Something(Box::new(Something { found, pop, segments })));
        }
        let too_young = |(segment, xid)| PartitionResult::TooYoung(segment, xid);
        Ok(Look::Nothing(held_back.map_or(PartitionResult::Nothing, too_young)))
    }

    /// Look; and if there is something, lock, write the next state, deliver.
    pub(super) fn try_one(
        &mut self,
        partition: &str,
        taken: &SeenSnapshot,
        under: &ActiveSnapshot,
    ) -> Result<PartitionResult> {
        let something = match self.look(partition, taken, under)? {
            Look::Nothing(tried) => return Ok(tried),
            Look::Something(something) => something,
        };
        let Something { found, pop, mut segments } = *something;
        let log = self.log(partition, pop.since());
        let located = match found {
            Some((located, place)) => match cursor::try_lock(&located, place, under)? {
                LockAttempt::Locked if !self.is_current()? => return Ok(PartitionResult::MovedOn),
                LockAttempt::Locked => located,
                LockAttempt::HeldByAnother => return Ok(PartitionResult::Locked),
                LockAttempt::MovedOn => return Ok(PartitionResult::MovedOn),
            },
            None if !cursor::try_share_first_reads(self.queue.id, self.group.id) => {
                return Ok(PartitionResult::Locked);
            }
            None if !self.is_current()? => {
                cursor::give_back_first_reads(self.queue.id, self.group.id);
                return Ok(PartitionResult::MovedOn);
            }
            None => match cursor::try_create_with_shares(self.group.id, partition)? {
                // The state of this cursor knows nothing of messages that a sweep or a purge has
                // removed since the look. From here on neither removes any: a purge waits for the
                // share that this transaction holds, and a sweep creates a missing cursor before it
                // removes messages that the group has not read.
                Some(_) if !tally::is_as_seen(self.queue.id, under)? => {
                    cursor::moved_on()?;
                    return Ok(PartitionResult::MovedOn);
                }
                Some(located) => located,
                None => {
                    cursor::give_back_first_reads(self.queue.id, self.group.id);
                    return Ok(PartitionResult::Locked);
                }
            },
        };
        self.take(&located, pop, &mut segments, &log, under)
    }
}
