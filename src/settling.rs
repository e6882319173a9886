//! Settling a lease: several cursors, several statements of outcome, one decision.

use std::collections::{BTreeMap, HashMap};

use queen_engine::cursor::Cursor;
use queen_engine::lease::{Handle, LeaseId};
use queen_engine::message::{MessageId, Spans};
use queen_engine::receipt::Receipt;
use queen_engine::settle::{
    DeadLetter, Named, Outcome, Policy, Refusal, Settlement, Status, extend, settle,
};

use crate::error::{Code, Error, Result};
use crate::refusal::explain;
use crate::store::clock::{self, Moment};
use crate::store::cursor::{self, Located, Notice};
use crate::store::dead_letter;
use crate::store::identity::Identity;
use crate::store::lookup::{self, ForSettle};
use crate::store::queue::{DEAD_LETTER, Options};
use crate::store::segment::Log;
use crate::store::spi::Under;
use crate::store::{lease_set, receipt};

/// What a statement of outcome names.
#[derive(Clone, Debug)]
pub enum Target {
    /// Everything the lease holds that is not settled yet.
    All,
    Message(MessageId),
    /// All messages of the lease that carry it, in one partition.
    Transaction(String),
}

/// One statement of outcome.
#[derive(Clone, Debug)]
pub struct Item {
    pub target: Target,
    pub partition: Option<String>,
    pub status: Status,
    pub error: Option<String>,
}

/// What became of one named message.
#[derive(Clone, Debug)]
pub struct Settled {
    pub message: MessageId,
    pub partition: String,
    /// Filled in where asked for.
    pub transaction_id: String,
    pub outcome: Outcome,
    /// The item that named it.
    pub item: usize,
}

/// The result of settling a lease.
#[derive(Debug, Default)]
pub struct Report {
    pub settled: Vec<Settled>,
    /// For each item: messages it found settled before, beyond those in `settled`.
    pub already: Vec<usize>,
    /// Nothing of the lease is left.
    pub released: bool,
}

impl Report {
    /// (settled, already, dead-lettered) of the messages named by the items that `of` picks.
    pub fn counts(&self, of: impl Fn(usize) -> bool) -> (i32, i32, i32) {
        let mut counts = (0, 0, 0);
        for settled in self.settled.iter().filter(|settled| of(settled.item)) {
            match settled.outcome {
                Outcome::Already => counts.1 += 1,
                Outcome::DeadLettered => (counts.0, counts.2) = (counts.0 + 1, counts.2 + 1),
                _ => counts.0 += 1,
            }
        }
        let already: usize =
            self.already.iter().enumerate().filter(|(item, _)| of(*item)).map(|(_, n)| n).sum();
        (counts.0, counts.1 + already as i32, counts.2)
    }
}

/// A cursor of the lease, locked, with the lease's trace if it has ended there.
struct Held {
    located: Located,
    receipt: Option<Receipt>,
}

impl Held {
    /// Every message the lease was ever given here.
    fn members(&self, lease: LeaseId) -> Spans {
        let mut all = Spans::new();
        if let Some(live) = self.located.cursor.leases.iter().find(|l| l.id == lease) {
            [&live.held, &live.done, &live.dead].into_iter().for_each(|s| all.extend(s.iter()));
        }
        if let Some(past) = &self.receipt {
            [&past.open, &past.done, &past.dead].into_iter().for_each(|s| all.extend(s.iter()));
        }
        all
    }

    fn partition(&self) -> &str {
        &self.located.partition
    }
}

/// A lease with its cursors, all locked.
pub struct Locked {
    lease: LeaseId,
    queue: i64,
    options: Options,
    identity: Identity,
    now: Moment,
    held: Vec<Held>,
}

/// The cursors that a lease covers, ascending.
pub fn cursors_of(lease: LeaseId) -> Result<Vec<u64>> {
    match lease.handle() {
        Some(Handle::Cursor(id)) => Ok(vec![id]),
        Some(Handle::Set(id)) => lease_set::cursors(id),
        None => Ok(Vec::new()),
    }
}

/// Lock the cursors of a lease, in ascending order, waiting for whoever holds one of them.
pub fn lock(lease: LeaseId) -> Result<Locked> {
    let cursors = cursors_of(lease)?;
    let ForSettle { queue, identity, located } = lookup::for_settle(&cursors)?;
    let mut held = Vec::with_capacity(located.len());
    for mut located in located {
        if queue.is_none() {
            // Given by a transaction that committed after the group was removed.
            let lost = located.cursor.revoked().into_iter().find(|(id, _)| *id == lease);
            if let Some((_, receipt)) = lost {
                located.cursor.leases.clear();
                held.push(Held { located, receipt: Some(receipt) });
                continue;
            }
        }
        let is_here = located.cursor.leases.iter().any(|l| l.id == lease);
        let receipt = match is_here {
            true => None,
            false => Under::new_snapshot(|under| receipt::find(located.id, lease, under))?,
        };
        if is_here || receipt.is_some() {
            held.push(Held { located, receipt });
        }
    }
    let now = clock::now();
    if held.is_empty() {
        return Err(explain(lease, &Refusal::Unknown, now));
    }
    let lost = |held: &Held| held.receipt.as_ref().is_some_and(|receipt| !receipt.open.is_empty());
    if queue.is_none() && held.iter().any(lost) {
        return Err(explain(lease, &Refusal::Superseded { holder: None }, now));
    }
    let (queue, options) = queue.map(|queue| (queue.id, queue.options)).unwrap_or_default();
    Ok(Locked { lease, queue, options, identity, now, held })
}

/// Settle what `items` name, as one set. `name_transactions`: fill in the transaction_ids.
pub fn settle_lease(lease: LeaseId, items: &[Item], name_transactions: bool) -> Result<Report> {
    let locked = lock(lease)?;
    let plan = locked.resolve(items)?;
    let settlements = locked.decide(&plan)?;
    let mut report = locked.write(items, &plan, settlements)?;
    if name_transactions {
        locked.name_transactions(&mut report)?;
    }
    Ok(report)
}

/// For one cursor: which item names which message, and which names the rest.
#[derive(Default)]
struct Plan {
    named: Named,
    by: BTreeMap<MessageId, usize>,
    rest: Option<usize>,
}

impl Locked {
    /// Find out which messages the items mean, and in which cursors they are.
    fn resolve(&self, items: &[Item]) -> Result<Vec<Plan>> {
        let mut plans: Vec<Plan> = self.held.iter().map(|_| Plan::default()).collect();
        let mut carriers = Carriers { lease: self, of: self.held.iter().map(|_| None).collect() };
        for (at, item) in items.iter().enumerate() {
            let places: Vec<usize> = (0..self.held.len())
                .filter(|&i| {
                    item.partition.as_deref().is_none_or(|name| name == self.held[i].partition())
                })
                .collect();
            if places.is_empty() {
                let partition = item.partition.as_deref().unwrap_or_default();
                return Err(self.not_in_lease(&format!("partition \"{partition}\"")));
            }
            match &item.target {
                Target::All => {
                    for place in places {
                        let plan = &mut plans[place];
                        if plan.named.rest.is_some_and(|status| status != item.status) {
                            return Err(contradiction("everything"));
                        }
                        (plan.named.rest, plan.rest) = (Some(item.status), Some(at));
                    }
                }
                Target::Message(message) => {
                    let holds = |&i: &usize| self.held[i].members(self.lease).find(*message);
                    let place = places.into_iter().find(|i| holds(i).is_some());
                    let place =
                        place.ok_or_else(|| self.not_in_lease(&format!("message {message}")))?;
                    plans[place].name(*message, item.status, at)?;
                }
                Target::Transaction(id) => {
                    let (place, messages) = carriers.find(id, places)?;
                    for message in messages {
                        plans[place].name(message, item.status, at)?;
                    }
                }
            }
        }
        Ok(plans)
    }

    /// The transaction_ids of all messages the lease was given in one cursor.
    fn transaction_ids(&self, place: usize) -> Result<Vec<(MessageId, String)>> {
        let held = &self.held[place];
        let members = held.members(self.lease);
        let partition = held.partition();
        let log = Log { queue: self.queue, partition, group: 0, since: None, until: None };
        Under::new_snapshot(|under| {
            let unpacked: HashMap<u64, _> = log
                .segments(&members, under)
                .into_iter()
                .map(|stored| (stored.id(), stored.unpack()))
                .collect();
            let name = |message: MessageId| {
                let stored = unpacked.get(&message.segment())?;
                Some((message, stored.transaction_id(message)))
            };
            Ok(members.messages().filter_map(name).collect())
        })
    }

    fn decide(&self, plans: &[Plan]) -> Result<Vec<Settlement>> {
        let options = &self.options;
        let policy = Policy {
            retry_limit: options.retry_limit() as u32,
            retry_delay: options.retry_delay(),
            retry_backoff: options.retry_backoff(),
            retry_delay_max: options.retry_delay_max(),
            drop_exhausted: options.on_exhausted() != DEAD_LETTER,
        };
        let mut settlements = Vec::with_capacity(plans.len());
        let mut refusals = Vec::new();
        for (held, plan) in self.held.iter().zip(plans) {
            let verdict = settle(
                &held.located.cursor,
                self.lease,
                held.receipt.as_ref(),
                &plan.named,
                &policy,
                self.now,
                self.identity.void_before,
            );
            match verdict {
                Ok(settlement) => settlements.push(settlement),
                Err(refusal) => refusals.push(refusal),
            }
        }
        match refusals.into_iter().min() {
            Some(refusal) => Err(explain(self.lease, &refusal, self.now)),
            None => Ok(settlements),
        }
    }

    fn write(&self, items: &[Item], plans: &[Plan], done: Vec<Settlement>) -> Result<Report> {
        let mut report =
            Report { already: vec![0; items.len()], released: true, ..Report::default() };
        for ((held, plan), settlement) in self.held.iter().zip(plans).zip(done) {
            report.released &= settlement.released;
            if let Some(item) = plan.rest {
                report.already[item] += settlement.already;
            }
            let item_of =
                |message: &MessageId| plan.by.get(message).copied().or(plan.rest).unwrap_or(0);
            for &(message, outcome) in &settlement.outcomes {
                report.settled.push(Settled {
                    message,
                    partition: held.partition().to_owned(),
                    transaction_id: String::new(),
                    outcome,
                    item: item_of(&message),
                });
            }
            for dead in &settlement.dead {
                let error = items[item_of(&dead.message)].error.as_deref();
                self.bury(held, *dead, error);
            }
            if let Some(cursor) = &settlement.cursor {
                self.write_cursor(held, cursor);
            }
            if let Some(trace) = &settlement.receipt {
                receipt::insert(held.located.id, self.lease, trace, self.now);
            }
        }
        // In the order in which they were named.
        report.settled.sort_by_key(|settled| settled.item);
        Ok(report)
    }

    fn write_cursor(&self, held: &Held, cursor: &Cursor) {
        let notice = Notice::of(&held.located, cursor, self.identity);
        cursor::append(&held.located, cursor, notice);
    }

    fn bury(&self, held: &Held, dead: DeadLetter, error: Option<&str>) {
        dead_letter::bury(held.located.group, held.partition(), dead, error, self.now);
    }

    fn name_transactions(&self, report: &mut Report) -> Result<()> {
        let mut names = HashMap::new();
        for place in 0..self.held.len() {
            names.extend(self.transaction_ids(place)?);
        }
        for settled in &mut report.settled {
            let known = names.get(&settled.message).cloned();
            settled.transaction_id =
                known.unwrap_or_else(|| settled.message.derived_transaction_id());
        }
        Ok(())
    }

    /// Where the lease still holds something, the cursor as it would be with the lease extended,
    /// and its new deadline. Refused if that is nowhere, or if it was lost anywhere.
    fn extended(&self, duration: Option<i64>) -> Result<Vec<(usize, Cursor, Moment)>> {
        let mut extended = Vec::new();
        let mut nothing_left = Refusal::Unknown;
        for (place, held) in self.held.iter().enumerate() {
            let (cursor, receipt) = (&held.located.cursor, held.receipt.as_ref());
            let void_before = self.identity.void_before;
            match extend(cursor, self.lease, receipt, duration, self.now, void_before) {
                Ok((cursor, deadline)) => extended.push((place, cursor, deadline)),
                Err(refusal @ Refusal::NotInLease { .. }) => nothing_left = refusal,
                Err(refusal) => return Err(explain(self.lease, &refusal, self.now)),
            }
        }
        match extended.is_empty() {
            false => Ok(extended),
            true => Err(explain(self.lease, &nothing_left, self.now)),
        }
    }

    fn not_in_lease(&self, what: &str) -> Error {
        Error::new(Code::MessageNotInLease, format!("{what} is not part of lease {}", self.lease))
            .detail("The lease was never given it, or has given it back.")
            .hint("Settle a message with the lease_id that came with its delivery.")
    }
}

/// Which messages of a lease carry which transaction_id, read once for each cursor.
struct Carriers<'a> {
    lease: &'a Locked,
    of: Vec<Option<HashMap<String, Vec<MessageId>>>>,
}

impl Carriers<'_> {
    /// The messages that carry a transaction_id, which must be in one of `places`.
    fn find(&mut self, id: &str, places: Vec<usize>) -> Result<(usize, Vec<MessageId>)> {
        let mut found: Option<(usize, Vec<MessageId>)> = None;
        for place in places {
            let Some(messages) = self.at(place)?.get(id).cloned() else { continue };
            if let Some((other, _)) = found {
                let held = &self.lease.held;
                let (other, this) = (held[other].partition(), held[place].partition());
                return Err(Error::invalid(
                    format!("transaction_id \"{id}\" is in several partitions of the lease"),
                    format!("Among them \"{other}\" and \"{this}\"."),
                    "Name the partition as well.",
                ));
            }
            found = Some((place, messages));
        }
        found.ok_or_else(|| self.lease.not_in_lease(&format!("transaction_id \"{id}\"")))
    }

    fn at(&mut self, place: usize) -> Result<&HashMap<String, Vec<MessageId>>> {
        if self.of[place].is_none() {
            let mut carriers: HashMap<String, Vec<MessageId>> = HashMap::new();
            for (message, id) in self.lease.transaction_ids(place)? {
                carriers.entry(id).or_default().push(message);
            }
            self.of[place] = Some(carriers);
        }
        Ok(self.of[place].get_or_insert_default())
    }
}

impl Plan {
    fn name(&mut self, message: MessageId, status: Status, item: usize) -> Result<()> {
        match self.named.each.insert(message, status) {
            Some(before) if before != status => Err(contradiction(&format!("message {message}"))),
            Some(_) => Ok(()),
            None => {
                self.by.insert(message, item);
                Ok(())
            }
        }
    }
}

fn contradiction(what: &str) -> Error {
    Error::invalid(
        format!("{what} is settled in two ways at once"),
        "Two statements of this call name it with different statuses.",
        "Say once what became of each message.",
    )
}

/// Refuse unless the lease is live and holds something.
pub fn require_live(lease: LeaseId) -> Result<()> {
    lock(lease)?.extended(None).map(|_| ())
}

/// Hold on to a lease for at least `duration` from now; returns when it ends.
pub fn extend_lease(lease: LeaseId, duration: Option<i64>) -> Result<Moment> {
    let locked = lock(lease)?;
    let extended = locked.extended(duration)?;
    let mut until = Moment::MAX;
    for (place, cursor, deadline) in extended {
        locked.write_cursor(&locked.held[place], &cursor);
        until = until.min(deadline);
    }
    Ok(until)
}
