//! Taking messages in a group without order: any number of consumers take from one partition side by
//! side, each message by itself.
//!
//! Who takes a message for the first time inserts a claim, which everybody else sees at once, and
//! which is unique. Nobody waits: what is claimed is passed by, whether or not that has been
//! committed. A message that was failed, or whose lease ran out, is found by its claim, as a
//! partition of an ordered group is found by its cursor, and is locked by it.
//!
//! The cursor of a partition says, as in an ordered group, how far it has been read: what is behind
//! has been claimed, but for what `waiting` names. It is moved on by the sweep ([`crate::folding`]),
//! since nobody is to wait for a transaction that holds it. How far it could be moved on, each
//! session remembers for itself: its *front*.

use std::collections::HashMap;

use queen_engine::cursor::{Cursor, Readiness};
use queen_engine::message::{MessageId, Span, Spans};
use queen_engine::pop::{Pop, Read};

use super::front::Front;
use super::{Taking, Tried, read_log};
use crate::datum::random;
use crate::error::Result;
use crate::folding;
use crate::store::claim;
use crate::store::clock::{self, SECOND};
use crate::store::cursor::{self, Attempt, Located};
use crate::store::group::Group;
use crate::store::segment::{Batch, Log, Stored};
use crate::store::snapshot::Taken;
use crate::store::spi::{Under, one_snapshot_per_transaction};
use crate::store::table::Place;
use crate::store::unit::Unit;

/// Messages looked at first, beyond those that are wanted; doubled while all are taken.
const FIRST_LOOK: usize = 3;
const LARGEST_LOOK: usize = 4096;
/// Segments looked at ahead, beyond those that are wanted: others come for the same.
const SPARE: usize = 4;
/// Looks at a partition in one pop, where others are faster.
const MOST_LOOKS: usize = 64;

/// Once in so many times that something is taken, claims are folded for so long.
const FOLD_EVERY: u64 = 256;
const FOLD_FOR: i64 = SECOND / 100;

/// What a look through a partition found.
struct Sifted {
    /// In nobody's hands, and never were.
    free: Vec<MessageId>,
    /// The same, beyond what was looked through.
    ahead: Vec<MessageId>,
    /// Some of what is free was left.
    is_free_left: bool,
    /// Their first lease has ended, and they can be taken again: with the claim.
    ended: Vec<(MessageId, u64)>,
    /// Claimed by transactions that have not ended.
    open: Vec<MessageId>,
    /// Some of these by others.
    has_rivals: bool,
    /// Somebody else was faster.
    was_late: bool,
    /// Something was there no more when it was to be taken.
    is_stale: bool,
    /// What is not to be delivered yet: its first segment, and its transaction.
    held_back: Option<(u64, u64)>,
    /// The log has nothing more.
    is_all: bool,
    front: Front,
}

/// A message that is being claimed.
struct Claiming {
    message: MessageId,
    /// The front has passed it.
    is_passed: bool,
    id: u64,
    place: Place,
}

/// A message that was claimed, and is not to be delivered under that claim.
#[derive(Clone, Copy)]
enum Lost {
    /// Somebody is removing it, and has not committed.
    Perhaps,
    Forever,
}

/// A message that has been claimed before.
enum Claimed<'t> {
    /// It does not concern this look: settled, or in somebody's hands, or waiting.
    Busy,
    /// There for others, and not for this transaction.
    Unseen,
    Returned(Box<(Pop<'t>, Located, Place)>),
}

impl Taking<'_> {
    pub(super) fn try_unit(
        &mut self,
        unit: Unit<'_>,
        taken: &Taken,
        under: &Under,
    ) -> Result<Tried> {
        match unit {
            Unit::Partition(partition) => self.try_partition(partition, taken, under),
            Unit::Claim { id, .. } => self.try_claim(id, taken, under),
        }
    }

    /// Whether there is something to take, taking nothing.
    pub(super) fn look_at_unit(
        &self,
        unit: Unit<'_>,
        taken: &Taken,
        under: &Under,
    ) -> Result<Tried> {
        match unit {
            Unit::Partition(partition) => {
                let sifted = self.sift(partition, 1, taken, under)?;
                let tried = sifted.tried(sifted.found() > 0);
                sifted.keep(self.group, partition);
                Ok(tried)
            }
            Unit::Claim { id, .. } => match self.claimed(id, taken, under)? {
                Claimed::Returned(_) => Ok(Tried::Took),
                Claimed::Busy | Claimed::Unseen => Ok(Tried::Nothing),
            },
        }
    }

    /// What has become of a claim.
    fn claimed<'t>(&self, id: u64, taken: &'t Taken, under: &Under) -> Result<Claimed<'t>> {
        let Some(row) = claim::find(id, under) else { return Ok(Claimed::Unseen) };
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
    fn try_claim(&mut self, id: u64, taken: &Taken, under: &Under) -> Result<Tried> {
        // What is written here is not seen here.
        if self.moved.contains(&id) {
            return Ok(Tried::Nothing);
        }
        let (pop, located, place) = match self.claimed(id, taken, under)? {
            Claimed::Returned(returned) => *returned,
            Claimed::Busy | Claimed::Unseen => return Ok(Tried::Nothing),
        };
        match cursor::try_lock(&located, place, under)? {
            Attempt::Locked => (),
            Attempt::Taken => return Ok(Tried::Locked),
            Attempt::MovedOn => return Ok(Tried::MovedOn),
        }
        self.moved.insert(id);
        let log = self.log(&located.partition, None);
        self.take(&located, pop, &mut HashMap::new(), &log, under)
    }

    /// Take what is free in a partition. Where others are faster each time, look again: by then they
    /// have come further.
    fn try_partition(&mut self, partition: &str, taken: &Taken, under: &Under) -> Result<Tried> {
        let mut tried = Tried::Locked;
        for _ in 0..MOST_LOOKS {
            let (outcome, was_late) = self.try_once(partition, taken, under)?;
            tried = outcome;
            if !was_late || matches!(tried, Tried::Took | Tried::TookSome) {
                break;
            }
            pgrx::check_for_interrupts!();
        }
        if matches!(tried, Tried::Took | Tried::TookSome) {
            self.fold_now_and_then(partition, under)?;
        }
        Ok(tried)
    }

    /// The same, once; and whether somebody else came first. Takes also what has come back and was not
    /// found otherwise: a claim that was committed after its lease had ended.
    fn try_once(&mut self, partition: &str, taken: &Taken, under: &Under) -> Result<(Tried, bool)> {
        let had = self.deliveries.len();
        let mut sifted = self.sift(partition, self.missing(), taken, under)?;
        for (message, id) in std::mem::take(&mut sifted.ended) {
            let tried = match self.missing() {
                0 => Tried::Locked,
                _ => self.try_claim(id, taken, under)?,
            };
            if matches!(tried, Tried::Locked | Tried::MovedOn) {
                sifted.has_rivals = true;
                sifted.open.push(message);
            }
            if self.moved.contains(&id) {
                sifted.front.own.push(message);
            }
        }
        if self.missing() > 0 && sifted.free.len() + sifted.ahead.len() > 0 {
            self.claim(partition, &mut sifted)?;
        }
        let tried = sifted.tried(self.deliveries.len() > had);
        let was_late = sifted.was_late || sifted.is_stale;
        sifted.keep(self.group, partition);
        Ok((tried, was_late))
    }

    /// Do a little of the sweep's work, where nobody else does it.
    fn fold_now_and_then(&self, partition: &str, under: &Under) -> Result<()> {
        if random().is_multiple_of(FOLD_EVERY) && !one_snapshot_per_transaction() {
            let until = clock::now() + FOLD_FOR;
            folding::fold_locked(self.queue, self.group, partition, until, under)?;
        }
        Ok(())
    }

    fn missing(&self) -> usize {
        self.wanted.batch - self.deliveries.len()
    }

    /// Look through a partition, from the front on, for `wanted` messages to take.
    fn sift(&self, partition: &str, wanted: usize, taken: &Taken, under: &Under) -> Result<Sifted> {
        let stored = cursor::status(self.group.id, &self.group.start, partition, under)?;
        let stored = stored.map(|(located, _)| located);
        let bare = self.log(partition, None).bare();
        let mut sifted = Sifted {
            free: Vec::new(),
            ahead: Vec::new(),
            is_free_left: false,
            ended: Vec::new(),
            open: Vec::new(),
            has_rivals: false,
            was_late: false,
            is_stale: false,
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
        taken: &Taken,
        under: &Under,
    ) {
        let from = MessageId::new(sifted.front.cursor.position + 1, 0);
        let Some(last) = claim::last_at_hand(self.group.id, partition, from) else { return };
        let log = self.log(partition, sifted.front.cursor.since).bare();
        let read = Read::Beyond { after: last.segment() - 1 };
        let limit = (wanted - sifted.found()).saturating_add(SPARE).min(LARGEST_LOOK);
        let Batch { stored, .. } = log.read(&read, limit, &taken.snapshot.holes, under);
        for found in stored.iter().map(Stored::found).filter(|found| !found.skip) {
            let ahead = (0..found.messages).map(|index| MessageId::new(found.segment, index));
            sifted.ahead.extend(ahead.filter(|message| *message > last));
        }
    }

    /// Which of the messages can be taken.
    fn sort_out(
        &self,
        partition: &str,
        messages: &Spans,
        sifted: &mut Sifted,
        taken: &Taken,
        under: &Under,
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

    /// Claim what is free, as far as it is wanted, and deliver it.
    fn claim(&mut self, partition: &str, sifted: &mut Sifted) -> Result<()> {
        let may_take =
            cursor::try_read_first(self.queue.id) && cursor::may_take(self.group.id, partition);
        if !may_take {
            sifted.has_rivals = true;
            return Ok(());
        }
        if !self.is_group_there()? {
            sifted.is_stale = true;
            return Ok(());
        }
        let wanted = self.missing();
        let (mut claimed, mut lease) = (Vec::new(), None);
        let free = std::mem::take(&mut sifted.free).into_iter().map(|message| (message, true));
        let ahead = std::mem::take(&mut sifted.ahead).into_iter().map(|message| (message, false));
        for (message, is_passed) in free.chain(ahead) {
            if claimed.len() == wanted {
                sifted.is_free_left = true;
                sifted.leave(message, is_passed);
                continue;
            }
            let id = claim::draw_id();
            lease = self.lease(id);
            let terms = lease.map(|(lease, duration)| (lease, self.now.saturating_add(duration)));
            match claim::try_insert(id, self.group.id, partition, message, self.now, terms) {
                Some(place) => claimed.push(Claiming { message, is_passed, id, place }),
                None => {
                    sifted.was_late = true;
                    sifted.has_rivals = true;
                    sifted.leave(message, is_passed);
                }
            }
        }
        if claimed.is_empty() {
            return Ok(());
        }
        self.has_written = true;
        let messages = claimed.iter().map(|claiming| one(claiming.message)).collect();
        let (stored, lost) = self.still_there(partition, &messages, sifted)?;
        let mut good = Spans::new();
        for Claiming { message, is_passed, id, place } in claimed {
            match lost.get(&message) {
                None => {
                    self.covered.push((id, Some(message)));
                    good.push(one(message));
                    if is_passed {
                        sifted.front.own.push(message);
                    }
                }
                Some(lost) => {
                    claim::withdraw(place);
                    match lost {
                        Lost::Perhaps => {
                            sifted.has_rivals = true;
                            sifted.leave(message, is_passed);
                        }
                        Lost::Forever => sifted.is_stale = true,
                    }
                }
            }
        }
        if !good.is_empty() {
            self.partitions.insert(partition.to_owned());
            self.deliver(partition, &good.delivered(), &stored, lease)?;
        }
        Ok(())
    }

    /// The segments of what has just been claimed, as they are at this moment; and what of it is not
    /// to be had: what has been removed since the look, or settled and forgotten, or may just be being
    /// removed.
    ///
    /// Whoever removes messages says so before looking for claims, so one of the two has seen the
    /// other.
    fn still_there(
        &self,
        partition: &str,
        claimed: &Spans,
        sifted: &Sifted,
    ) -> Result<(HashMap<u64, Stored>, HashMap<MessageId, Lost>)> {
        if !cursor::may_take(self.group.id, partition) {
            let lost = claimed.messages().map(|message| (message, Lost::Perhaps));
            return Ok((HashMap::new(), lost.collect()));
        }
        Under::latest_snapshot(|under| {
            let stored = self.log(partition, None).segments(claimed, under);
            let stored: HashMap<u64, Stored> =
                stored.into_iter().map(|stored| (stored.id(), stored)).collect();
            let base = cursor::status(self.group.id, &self.group.start, partition, under)?;
            let base = base.map(|(base, _)| base);
            // Moved by hand.
            let now = base.as_ref().map(|base| base.id);
            let is_other = sifted.front.base().is_some_and(|id| now != Some(id));
            let is_lost = |message: &MessageId| {
                let Some(segment) = stored.get(&message.segment()) else { return true };
                let is_forgotten = |base: &Located| has_forgotten(&base.cursor, *message, segment);
                is_other || base.as_ref().is_some_and(is_forgotten)
            };
            let lost = claimed.messages().filter(is_lost).map(|message| (message, Lost::Forever));
            let lost = lost.collect();
            Ok((stored, lost))
        })
    }
}

impl Sifted {
    /// A message that was not taken, or whose claim has not been committed, is looked at again.
    fn leave(&mut self, message: MessageId, is_passed: bool) {
        // Beyond the front it is come across anyway.
        if is_passed {
            self.open.push(message);
        }
    }

    /// Remember how far the look came.
    fn keep(self, group: &Group, partition: &str) {
        let mut left = self.free;
        left.extend(self.open);
        left.extend(self.ended.into_iter().map(|(message, _)| message));
        self.front.keep(group, partition, left);
    }

    fn found(&self) -> usize {
        self.free.len() + self.ahead.len() + self.ended.len()
    }

    /// What to tell the search.
    fn tried(&self, took_any: bool) -> Tried {
        let is_left = !self.is_all || self.is_free_left || self.found() > 0;
        match (took_any, self.held_back) {
            (false, _) if self.is_stale => Tried::MovedOn,
            (true, None) if !is_left && !self.has_rivals && !self.is_stale => Tried::Took,
            (true, _) => Tried::TookSome,
            (false, _) if is_left || self.has_rivals => Tried::Locked,
            (false, Some((segment, xid))) => Tried::TooYoung(segment, xid),
            (false, None) => Tried::Nothing,
        }
    }
}

/// Whether the cursor has passed a message and tells that it is settled.
fn has_forgotten(cursor: &Cursor, message: MessageId, segment: &Stored) -> bool {
    cursor.has_read(segment.id(), segment.xid()) && cursor.waiting.find(message).is_none()
}

pub(super) fn one(message: MessageId) -> Span {
    Span { segment: message.segment(), first: message.index(), len: 1, deliveries: 0 }
}
