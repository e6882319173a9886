//! What a session knows of a group: a summary of the newest state of each cursor and claim, and
//! since when each partition has something that is not settled.
//!
//! A change of one cursor, claim or partition is entered as such. What follows from it for the
//! partition is found out by the next [`TrackedGroup::refresh`].

use std::collections::{BTreeMap, HashMap, HashSet};
use std::mem;
use std::rc::Rc;

use queen_engine::cursor::Cursor;
use queen_engine::message::MessageId;

use super::log_standing::LogStanding;
use super::oldest::{GroupLog, PartitionLog};
use super::summary::{LeaseSummary, StateSummary};
use crate::error::Result;
use crate::pg::address_map::AddressMap;
use crate::pg::clock::Moment;
use crate::pg::snapshot::ActiveSnapshot;
use crate::store::claim::{self, ClaimRow};
use crate::store::group::Group;
use crate::store::group_pages::StateName;
use crate::store::located::Located;
use crate::store::queue::Queue;
use crate::store::segment::LastSegment;
use crate::store::{cursor_or_claim, seen_snapshot};

/// A group's cursors and claims.
pub struct TrackedGroup {
    /// The state of a cursor that has none: the group's start.
    first: StateSummary,
    units: AddressMap<u64, TrackedUnit>,
    partitions: HashMap<Rc<str>, TrackedPartition>,
    /// When the oldest message arrived that is not settled, in partitions that have one.
    oldest: HashMap<Rc<str>, Moment>,
    /// The partitions of which `oldest` does not know yet.
    stale: Stale,
    /// Cursors and claims whose newest state is to be looked up.
    unclear: HashSet<u64>,
    /// Its cursors, claims and states were read in full.
    is_read: bool,
}

/// A cursor or a claim.
struct TrackedUnit {
    /// Where its row lies.
    place: u64,
    partition: Rc<str>,
    /// What it is a claim of.
    message: Option<MessageId>,
    /// Of the newest state; 0: it has none.
    revision: i64,
    summary: StateSummary,
}

#[derive(Default)]
struct TrackedPartition {
    cursor: Option<u64>,
    claims: BTreeMap<MessageId, u64>,
}

enum Stale {
    All,
    Some(HashSet<Rc<str>>),
}

/// The sums over a group, as of a snapshot.
pub struct UnitSums {
    pub settled: i64,
    pub came_back: i64,
    pub last_pop_at: Option<Moment>,
    pub oldest_pending: Option<Moment>,
    /// Leases that have not ended, by partition.
    pub leases: Vec<(Rc<str>, LeaseSummary)>,
}

impl TrackedGroup {
    /// A group of which nothing has been read.
    pub fn unread(group: &Group) -> Self {
        Self {
            first: StateSummary::of(group.first_state()),
            units: AddressMap::default(),
            partitions: HashMap::new(),
            oldest: HashMap::new(),
            stale: Stale::All,
            unclear: HashSet::new(),
            is_read: false,
        }
    }

    /// A group of which these are all cursors and claims.
    pub fn of(group: &Group, all: Vec<Located>) -> Self {
        let mut tracked = Self::unread(group);
        for Located { id, partition, message, revision, cursor, .. } in all {
            tracked.add(id, 0, partition, message, StateSummary::of(cursor));
            if let Some(unit) = tracked.units.get_mut(&id) {
                unit.revision = revision;
            }
        }
        tracked.note_read();
        tracked
    }

    /// How many cursors, claims and partitions it remembers.
    pub fn size(&self) -> usize {
        self.units.len() + self.partitions.len() + self.oldest.len()
    }

    pub fn add_cursor(&mut self, id: u64, place: u64, partition: String) {
        self.add(id, place, partition, None, self.first.clone());
    }

    pub fn add_claim(&mut self, claim: ClaimRow) {
        let summary = StateSummary::of(claim.first_state());
        let ClaimRow { id, partition, message, place, .. } = claim;
        self.add(id, place.number(), partition, Some(message), summary);
    }

    fn add(
        &mut self,
        id: u64,
        place: u64,
        partition: String,
        message: Option<MessageId>,
        summary: StateSummary,
    ) {
        let known = self.partitions.get_key_value(partition.as_str());
        let partition = known.map_or_else(|| Rc::from(partition), |(name, _)| Rc::clone(name));
        let of = self.partitions.entry(Rc::clone(&partition)).or_default();
        match message {
            None => of.cursor = Some(id),
            Some(message) => {
                of.claims.insert(message, id);
            }
        }
        self.stale.insert(&partition);
        self.unclear.insert(id);
        self.units.insert(id, TrackedUnit { place, partition, message, revision: 0, summary });
    }

    /// The row of a cursor or claim is gone. If another row tells of it now, that lies elsewhere.
    pub fn remove(&mut self, id: u64, place: u64) {
        if self.units.get(&id).is_none_or(|unit| unit.place != place) {
            return;
        }
        let Some(TrackedUnit { partition, message, .. }) = self.units.remove(&id) else { return };
        self.stale.insert(&partition);
        if let Some(of) = self.partitions.get_mut(&partition) {
            let id = Some(&id);
            match message {
                None if of.cursor.as_ref() == id => of.cursor = None,
                Some(message) if of.claims.get(&message) == id => {
                    of.claims.remove(&message);
                }
                _ => (),
            }
            if of.cursor.is_none() && of.claims.is_empty() {
                self.partitions.remove(&partition);
            }
        }
    }

    /// A state is there. It counts if it is the newest.
    pub fn add_state(&mut self, state: StateName, read: &dyn Fn() -> Result<Cursor>) -> Result<()> {
        let StateName { id, revision, .. } = state;
        if let Some(unit) = self.units.get_mut(&id)
            && unit.revision <= revision
        {
            (unit.revision, unit.summary) = (revision, StateSummary::of(read()?));
            self.stale.insert(&unit.partition);
        }
        Ok(())
    }

    /// A state is gone. If it was the newest, there is a newer one, or none.
    pub fn remove_state(&mut self, state: StateName) {
        if self.units.get(&state.id).is_some_and(|unit| unit.revision == state.revision) {
            self.unclear.insert(state.id);
        }
    }

    /// Everything is to be read again.
    pub fn forget(&mut self) {
        (self.units, self.partitions) = Default::default();
        (self.unclear, self.stale, self.is_read) = (HashSet::new(), Stale::All, false);
    }

    /// All changes up to a snapshot have been entered. If that was for the first time, then all
    /// states have.
    pub fn note_read(&mut self) {
        if !self.is_read {
            self.unclear.clear();
        }
        self.is_read = true;
    }

    /// Something arrived in the partition.
    pub fn note_arrival(&mut self, partition: &Rc<str>) {
        self.stale.insert(partition);
    }

    /// Messages may have been removed that were created up to this moment.
    pub fn note_removal(&mut self, upto: Moment) {
        let old = self.oldest.iter().filter(|(_, moment)| **moment <= upto);
        old.for_each(|(partition, _)| self.stale.insert(partition));
    }

    /// The log was read anew.
    pub fn note_new_log(&mut self) {
        self.stale = Stale::All;
    }

    /// Bring everything up to date with the log, after the last change has been entered.
    pub fn refresh(
        &mut self,
        queue: &Queue,
        group: &Group,
        log: &LogStanding,
        under: &ActiveSnapshot,
    ) -> Result<()> {
        self.clear_up(under)?;
        self.move_start(group);
        let is_ordered = group.is_ordered(&queue.options);
        let seen = seen_snapshot::describe(under, queue.identity);
        let floor = &log.count.tally.floor;
        let of = GroupLog { queue: queue.id, group: group.id, floor, seen: &seen };
        match mem::replace(&mut self.stale, Stale::Some(HashSet::new())) {
            Stale::All => {
                self.oldest.clear();
                for (partition, last) in &log.last {
                    self.find_oldest(of, partition, last.id, is_ordered, under);
                }
            }
            Stale::Some(partitions) => {
                for partition in partitions {
                    let last = log.last.get(&partition).map_or(0, |last| last.id);
                    self.find_oldest(of, &partition, last, is_ordered, under);
                }
            }
        }
        Ok(())
    }

    /// Look up the newest states that are unclear.
    fn clear_up(&mut self, under: &ActiveSnapshot) -> Result<()> {
        for id in mem::take(&mut self.unclear) {
            let Some(unit) = self.units.get_mut(&id) else { continue };
            let newest = cursor_or_claim::newest_state(id, under)?;
            self.stale.insert(&unit.partition);
            (unit.revision, unit.summary) = match newest {
                Some((revision, state)) => (revision, StateSummary::of(state)),
                None if unit.revision == 0 => continue,
                None if unit.message.is_none() => (0, self.first.clone()),
                None => {
                    let first = claim::find(id, under).map(|claim| claim.first_state());
                    (0, first.map(StateSummary::of).unwrap_or_default())
                }
            };
            pgrx::check_for_interrupts!();
        }
        Ok(())
    }

    /// The group may have been moved: partitions that it has not read begin elsewhere then.
    fn move_start(&mut self, group: &Group) {
        if self.first.position == group.start.position {
            return;
        }
        self.first = StateSummary::of(group.first_state());
        self.stale = Stale::All;
        let unread = |unit: &&mut TrackedUnit| unit.message.is_none() && unit.revision == 0;
        self.units.values_mut().filter(unread).for_each(|unit| unit.summary = self.first.clone());
    }

    fn find_oldest(
        &mut self,
        of: GroupLog<'_>,
        partition: &Rc<str>,
        last: u64,
        is_ordered: bool,
        under: &ActiveSnapshot,
    ) {
        let known = self.partitions.get(partition);
        let cursor = known.and_then(|known| known.cursor).and_then(|id| self.units.get(&id));
        let cursor = cursor.map_or(&self.first, |unit| &unit.summary);
        let log = PartitionLog { of, partition, last, cursor };
        let found = match is_ordered {
            true => log.oldest_in_order(under),
            false => {
                let claims = known.into_iter().flat_map(|known| known.claims.iter());
                let is_open = |id| self.units.get(id).is_some_and(|unit| unit.summary.is_open());
                let claims = claims.map(|(message, id)| (*message, is_open(id)));
                log.oldest_without_order(claims, under)
            }
        };
        match found {
            Some(moment) => self.oldest.insert(Rc::clone(partition), moment),
            None => self.oldest.remove(partition),
        };
    }

    /// How many messages are pending, for a group that gets the newest of each partition alone.
    pub fn newest_pending(&self, log: &LogStanding) -> i64 {
        let of = |(partition, last): (&Rc<str>, &LastSegment)| {
            let cursor = self.partitions.get(partition).and_then(|of| of.cursor);
            let unit = cursor.and_then(|id| self.units.get(&id));
            unit.map_or(&self.first, |unit| &unit.summary).newest_pending(last)
        };
        log.last.iter().map(of).sum()
    }

    /// The sums, after [`TrackedGroup::refresh`].
    pub fn sums(&self) -> UnitSums {
        let (mut settled, mut came_back, mut last_pop_at) = (0, 0, 0);
        let mut leases = Vec::new();
        for TrackedUnit { partition, summary, .. } in self.units.values() {
            settled += summary.settled;
            came_back += summary.came_back();
            last_pop_at = summary.last_pop_at.max(last_pop_at);
            let own = summary.leases().iter().map(|lease| (Rc::clone(partition), lease.clone()));
            leases.extend(own);
        }
        leases.sort_by(|a, b| (&a.0, a.1.id).cmp(&(&b.0, b.1.id)));
        UnitSums {
            settled,
            came_back,
            last_pop_at: (last_pop_at > 0).then_some(last_pop_at),
            oldest_pending: self.oldest.values().copied().min(),
            leases,
        }
    }
}

impl Stale {
    fn insert(&mut self, partition: &Rc<str>) {
        if let Self::Some(partitions) = self
            && !partitions.contains(partition)
        {
            partitions.insert(Rc::clone(partition));
        }
    }
}
