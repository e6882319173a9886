//! Taking messages from partitions under one snapshot: read without a lock, and where there is
//! something, lock, write the next state, deliver.
//!
//! In a group without order there is no lock on the partition: see [`unordered`].

mod context;
mod delivery;
mod ordered;
pub mod ready;
pub mod request;
mod run;
pub mod search;
mod unordered;

use std::collections::HashSet;

use queen_engine::discovery::Discovery;
use queen_engine::lease::LeaseId;

pub use self::context::Wanted;
pub use self::delivery::{Delivery, Unpacking};
use self::search::{PartitionResult, Search};
use crate::broker::lookup;
use crate::error::Result;
use crate::pg::clock::{self, Moment};
use crate::pg::datum::ResultContext;
use crate::pg::spi::ActiveSnapshot;
use crate::store::cursor;
use crate::store::group::Group;
use crate::store::lease_set;
use crate::store::lease_set::Covered;
use crate::store::queue::Queue;
use crate::store::seen_snapshot::{self, SeenSnapshot};
use crate::store::unit::Unit;

/// Taking messages from partitions under one snapshot.
pub struct Taking<'a> {
    wanted: &'a Wanted<'a>,
    queue: &'a Queue,
    group: &'a Group,
    /// How far the group has looked.
    discovery: &'a (i64, Discovery),
    now: Moment,
    /// The lease over several partitions, drawn when the first is taken.
    set: Option<(u64, LeaseId)>,
    covered: Vec<Covered>,
    partitions: HashSet<String>,
    /// Claims that have been given a new state.
    moved: HashSet<u64>,
    has_written: bool,
    is_outdated: bool,
    deliveries: Vec<Delivery>,
    results: ResultContext,
}

impl<'a> Taking<'a> {
    pub fn new(
        wanted: &'a Wanted<'a>,
        queue: &'a Queue,
        group: &'a Group,
        discovery: &'a (i64, Discovery),
        results: ResultContext,
    ) -> Self {
        Self {
            wanted,
            queue,
            group,
            discovery,
            now: clock::now(),
            set: None,
            covered: Vec::new(),
            partitions: HashSet::new(),
            moved: HashSet::new(),
            has_written: false,
            is_outdated: false,
            deliveries: Vec::new(),
            results,
        }
    }

    /// Take what was asked for. True if a partition was moved on in the meantime.
    pub fn run(&mut self, under: &ActiveSnapshot) -> Result<bool> {
        let taken = seen_snapshot::describe(under, self.queue.identity);
        let mut moved_on = false;
        // In an ordered group a named partition is all there is to look at.
        if let Some(name) = self.wanted.partition {
            moved_on = self.try_each(vec![name.to_owned()], &taken, under, &mut |_, _| ())?;
        }
        if self.wanted.partition.is_none() || !self.is_ordered() {
            moved_on |= self.search(&taken, under)?;
        }
        if let Some((id, lease)) = self.set.filter(|_| !self.covered.is_empty()) {
            lease_set::insert(id, lease, std::mem::take(&mut self.covered), self.now);
        }
        Ok(moved_on)
    }

    fn search(&mut self, taken: &SeenSnapshot, under: &ActiveSnapshot) -> Result<bool> {
        let mut search =
            Search::open(self.group, self.queue, self.now, taken, under, self.discovery);
        let mut moved_on = false;
        while !self.is_done() {
            let names = search.next(self.has_enough(), |name| self.may_take_from(name))?;
            if names.is_empty() {
                break;
            }
            let mut resolve = |partition: &str, tried: &_| search.resolve(partition, tried);
            moved_on |= self.try_each(names, taken, under, &mut resolve)?;
        }
        search.close(self.has_written);
        Ok(moved_on)
    }

    /// Whether more is hardly worth looking for: the partitions to take from are settled upon.
    fn has_enough(&self) -> bool {
        !self.is_ordered() && self.partitions.len() >= self.wanted.partitions
    }

    /// Whether the group is still what it was when it was looked up. Who has locked a cursor or a claim of
    /// it, or begun to read first, keeps it so to the end of the transaction: this is asked after that.
    fn is_current(&mut self) -> Result<bool> {
        self.is_outdated = !lookup::is_current(self.queue, self.group)?;
        if self.is_outdated {
            cursor::moved_on()?;
        }
        Ok(!self.is_outdated)
    }

    fn is_ordered(&self) -> bool {
        self.group.is_ordered(&self.queue.options)
    }

    /// Whether what the search calls so is wanted.
    fn may_take_from(&self, name: &str) -> bool {
        let may_take_more = self.partitions.len() < self.wanted.partitions;
        if may_take_more && self.wanted.partition.is_none() {
            return true;
        }
        let partition = Unit::named(name).partition();
        self.wanted.partition.is_none_or(|wanted| wanted == partition)
            && (may_take_more || self.partitions.contains(partition))
    }

    /// The queue and the group are to be looked up once more.
    pub fn is_outdated(&self) -> bool {
        self.is_outdated
    }

    /// Whether the take wrote anything that must not be rolled back.
    pub fn has_written(&self) -> bool {
        self.has_written
    }

    pub fn took_any(&self) -> bool {
        !self.deliveries.is_empty()
    }

    pub fn into_deliveries(self) -> Vec<Delivery> {
        self.deliveries
    }

    fn is_done(&self) -> bool {
        // In an ordered group a partition is looked at once.
        let has_all = self.is_ordered() && self.partitions.len() >= self.wanted.partitions;
        self.is_outdated || has_all || self.deliveries.len() >= self.wanted.batch
    }

    fn try_each(
        &mut self,
        partitions: Vec<String>,
        taken: &SeenSnapshot,
        under: &ActiveSnapshot,
        resolve: &mut dyn FnMut(&str, &PartitionResult),
    ) -> Result<bool> {
        let mut moved_on = false;
        for partition in partitions {
            if self.is_done() {
                break;
            }
            if !self.may_take_from(&partition) {
                continue;
            }
            let tried = match self.is_ordered() {
                true => self.try_one(&partition, taken, under)?,
                false => self.try_unit(Unit::named(&partition), taken, under)?,
            };
            moved_on |= matches!(tried, PartitionResult::MovedOn);
            resolve(&partition, &tried);
        }
        Ok(moved_on)
    }

    /// Whether there is something to take, taking nothing.
    pub fn peek(&self, under: &ActiveSnapshot) -> Result<bool> {
        let taken = seen_snapshot::describe(under, self.queue.identity);
        let mut search =
            Search::open(self.group, self.queue, self.now, &taken, under, self.discovery);
        let mut is_there = false;
        while !is_there {
            let names = search.next(false, |_| true)?;
            if names.is_empty() {
                break;
            }
            for name in names {
                let tried = match self.is_ordered() {
                    true => self.look(&name, &taken, under)?.tried(),
                    false => self.look_at_unit(Unit::named(&name), &taken, under)?,
                };
                is_there = matches!(tried, PartitionResult::Took | PartitionResult::TookSome);
                if is_there {
                    break;
                }
                search.resolve(&name, &tried);
            }
        }
        search.close(false);
        Ok(is_there)
    }
}
