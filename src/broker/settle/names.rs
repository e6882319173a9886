//! Which messages the items of a settlement name, in which of the lease's cursors each is, and
//! which transaction_ids messages carry.
//!
//! Everything that the lease holds of interest is locked by then. The log is read only where an
//! item names a transaction_id, or where the answer gives them: a partition at a time, without
//! payloads.

use std::collections::{BTreeMap, HashMap};

use queen_engine::floor::Floor;
use queen_engine::message::{MessageId, Span, Spans};
use queen_engine::settle::{Named, Status};

use super::items::{Report, SettleItem, SettleTarget};
use super::lease::LockedLease;
use super::refusal::{in_several_partitions, not_in_lease, settled_in_two_ways};
use crate::error::Result;
use crate::pg::allocator;
use crate::pg::scratch::Scratch;
use crate::pg::snapshot::ActiveSnapshot;
use crate::store::segment::Log;

/// What the items say of one cursor.
#[derive(Default)]
pub(super) struct Plan {
    /// For the engine: the messages, and their statuses.
    pub(super) named: Named,
    /// The item that names each message.
    by: BTreeMap<MessageId, usize>,
    /// The item that names the rest of what the lease holds here.
    pub(super) rest: Option<usize>,
}

impl Plan {
    /// An item names the message. Error 22023 if another item names it with another status.
    fn name(&mut self, message: MessageId, status: Status, item: usize) -> Result<()> {
        match self.named.each.insert(message, status) {
            Some(before) if before != status => {
                Err(settled_in_two_ways(&format!("message {message}")))
            }
            Some(_) => Ok(()),
            None => {
                self.by.insert(message, item);
                Ok(())
            }
        }
    }

    /// An item names everything that no other item names. Error 22023 if another item does so with
    /// another status.
    fn name_rest(&mut self, status: Status, item: usize) -> Result<()> {
        if self.named.rest.is_some_and(|before| before != status) {
            return Err(settled_in_two_ways("everything"));
        }
        (self.named.rest, self.rest) = (Some(status), Some(item));
        Ok(())
    }

    /// The item that a message of this cursor was named by.
    pub(super) fn item_of(&self, message: MessageId) -> usize {
        self.by.get(&message).copied().or(self.rest).unwrap_or(0)
    }
}

impl LockedLease {
    /// What the items say of each cursor, in the order of `held`. Error QN004 for a message or a
    /// partition that is not the lease's, 22023 for one that is named in two ways.
    pub(super) fn resolve(&self, items: &[SettleItem]) -> Result<Vec<Plan>> {
        let mut plans: Vec<Plan> = self.held.iter().map(|_| Plan::default()).collect();
        let mut carriers = Carriers::of(self);
        for (at, item) in items.iter().enumerate() {
            let is_meant = |place: &usize| {
                let partition = self.held[*place].partition();
                item.partition.as_deref().is_none_or(|name| name == partition)
            };
            if !(0..self.held.len()).any(|place| is_meant(&place)) {
                let partition = item.partition.as_deref().unwrap_or_default();
                return Err(not_in_lease(self.lease, &format!("partition \"{partition}\"")));
            }
            match &item.target {
                SettleTarget::All => {
                    for place in (0..self.held.len()).filter(is_meant) {
                        plans[place].name_rest(item.status, at)?;
                    }
                }
                SettleTarget::Message(message) => {
                    let place = self.places().find(*message).filter(is_meant);
                    let place = place
                        .ok_or_else(|| not_in_lease(self.lease, &format!("message {message}")))?;
                    plans[place].name(*message, item.status, at)?;
                }
                SettleTarget::Transaction(id) => {
                    for (place, message) in carriers.find(id, item.partition.as_deref())? {
                        plans[place].name(message, item.status, at)?;
                    }
                }
            }
        }
        Ok(plans)
    }

    /// The transaction_ids of all messages that the lease was given in one partition, each with its
    /// message and that one's place in `held`.
    fn transaction_ids(&self, partition: &str) -> Result<Vec<(usize, MessageId, String)>> {
        let runs = self.places().runs();
        let here: Vec<&(Span, usize)> =
            runs.filter(|(_, place)| self.held[*place].partition() == partition).collect();
        let queue = self.queue;
        let floor = &Floor::default();
        let log =
            Log { queue, partition, group: 0, since: None, until: None, is_bare: false, floor };
        let mut names = Vec::new();
        let scratch = Scratch::new();
        ActiveSnapshot::new_snapshot(|under| {
            // One segment is in memory at a time, without its payloads.
            for run in here.chunk_by(|(one, _), (other, _)| one.segment == other.segment) {
                let members: Spans = run.iter().map(|(span, _)| *span).collect();
                scratch.run(|| {
                    let found = log.segments(&members, under);
                    let Some(unpacked) = found.first().map(|stored| stored.contents().names())
                    else {
                        return;
                    };
                    for &&(span, place) in run {
                        names.extend(span.messages().map(|at| (place, at, unpacked.of(at))));
                    }
                });
                allocator::check();
            }
            Ok(names)
        })
    }

    /// Fill in the transaction_ids of what was settled. A message that is gone from the log gets
    /// the derived one.
    pub(super) fn name_transactions(&self, report: &mut Report) -> Result<()> {
        let mut names = HashMap::new();
        for partition in self.partitions() {
            let of = self.transaction_ids(partition)?;
            names.extend(of.into_iter().map(|(_, message, name)| (message, name)));
        }
        for settled in &mut report.settled {
            let known = names.get(&settled.message).cloned();
            settled.transaction_id =
                known.unwrap_or_else(|| settled.message.derived_transaction_id());
        }
        Ok(())
    }
}

/// Messages, each with its place in `held`, by transaction_id.
type ByTransaction = HashMap<String, Vec<(usize, MessageId)>>;

/// Which messages of a lease carry which transaction_id: by partition, each read when it is first
/// asked for.
struct Carriers<'a> {
    lease: &'a LockedLease,
    of: BTreeMap<&'a str, Option<ByTransaction>>,
}

impl<'a> Carriers<'a> {
    fn of(lease: &'a LockedLease) -> Self {
        Self { lease, of: lease.partitions().into_iter().map(|name| (name, None)).collect() }
    }

    /// The messages that carry a transaction_id, in the partition that is given, or in the only one
    /// of the lease that has it. Error QN004 if none has it, 22023 if several have.
    fn find(&mut self, id: &str, partition: Option<&str>) -> Result<Vec<(usize, MessageId)>> {
        let mut found: Option<(&str, Vec<(usize, MessageId)>)> = None;
        for (name, carriers) in &mut self.of {
            if partition.is_some_and(|partition| partition != *name) {
                continue;
            }
            let carriers = match carriers {
                Some(carriers) => carriers,
                None => carriers.insert(read_carriers(self.lease, name)?),
            };
            let Some(messages) = carriers.get(id) else { continue };
            if let Some((other, _)) = found {
                return Err(in_several_partitions(id, other, name));
            }
            found = Some((name, messages.clone()));
        }
        let not_there = || not_in_lease(self.lease.lease, &format!("transaction_id \"{id}\""));
        found.map(|(_, messages)| messages).ok_or_else(not_there)
    }
}

fn read_carriers(lease: &LockedLease, partition: &str) -> Result<ByTransaction> {
    let mut carriers = ByTransaction::new();
    for (place, message, id) in lease.transaction_ids(partition)? {
        carriers.entry(id).or_default().push((place, message));
    }
    Ok(carriers)
}
