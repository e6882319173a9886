//! Settling a lease: several cursors, several statements of outcome, one decision.

pub mod refusal;

use std::cell::OnceCell;
use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};
use std::rc::Rc;

use queen_engine::cursor::Cursor;
use queen_engine::lease::{Handle, LeaseId};
use queen_engine::message::{MessageId, Span, Spans};
use queen_engine::receipt::Receipt;
use queen_engine::settle::{
    DeadLetter, Named, Outcome, Policy, Refusal, Settlement, Status, extend, settle,
};

use crate::broker::lookup::{self, ForSettle};
use crate::broker::settle::refusal::explain;
use crate::error::{Code, Error, Result};
use crate::pg::allocator;
use crate::pg::clock::{self, Moment};
use crate::pg::scratch::Scratch;
use crate::pg::spi::ActiveSnapshot;
use crate::store::claim;
use crate::store::cursor::{self, Located, Notice};
use crate::store::dead_letter;
use crate::store::identity::Identity;
use crate::store::lease_set::Covered;
use crate::store::queue::{DEAD_LETTER, Options};
use crate::store::segment::Log;
use crate::store::{lease_set, receipt};

/// What a statement of outcome names.
#[derive(Clone, Debug)]
pub enum Target {
    /// Everything the lease holds that is not settled yet.
    All,
    Message(MessageId),
    /// All messages of the lease that carry it, in one partition.
    Transaction(Rc<str>),
}

/// One statement of outcome.
#[derive(Clone, Debug)]
pub struct SettleItem {
    pub target: Target,
    pub partition: Option<Rc<str>>,
    pub status: Status,
    /// The text of the error, shared by all messages of the call.
    pub error: Option<Rc<str>>,
}

/// What became of one named message.
#[derive(Clone, Debug)]
pub struct Settled {
    pub message: MessageId,
    pub partition: Rc<str>,
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
struct HeldCursor {
    located: Located,
    receipt: Option<Receipt>,
}

impl HeldCursor {
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

/// In which of the cursors and claims of a lease each message is that it was ever given: runs of
/// messages, in the order of the log.
struct Places(Vec<(Span, usize)>);

impl Places {
    fn of(held: &[HeldCursor], lease: LeaseId) -> Self {
        let runs = |(place, held): (usize, &HeldCursor)| {
            held.members(lease).iter().map(|span| (span, place)).collect::<Vec<_>>()
        };
        let mut places: Vec<_> = held.iter().enumerate().flat_map(runs).collect();
        places.sort_unstable_by_key(|(span, _)| (span.segment, span.first));
        Self(places)
    }

    fn find(&self, message: MessageId) -> Option<usize> {
        let key = (message.segment(), message.index());
        let after = self.0.partition_point(|(span, _)| (span.segment, span.first) <= key);
        let (span, place) = self.0[..after].last()?;
        span.holds(message).then_some(*place)
    }
}

/// A lease with its cursors, all locked.
pub struct LockedLease {
    lease: LeaseId,
    queue: i64,
    options: Options,
    identity: Identity,
    now: Moment,
    held: Vec<HeldCursor>,
    places: OnceCell<Places>,
    /// Claims that the lease covers, and that are not of interest.
    rest: Vec<u64>,
}

/// What a lease covers, ascending.
fn covered_by(lease: LeaseId) -> Result<Vec<Covered>> {
    match lease.handle() {
        Some(Handle::Cursor(id)) => Ok(vec![(id, None)]),
        Some(Handle::Set(id)) => lease_set::covered(id),
        None => Ok(Vec::new()),
    }
}

/// The cursors and claims that a lease covers, ascending.
pub fn cursors_of(lease: LeaseId) -> Result<Vec<u64>> {
    Ok(covered_by(lease)?.into_iter().map(|(cursor, _)| cursor).collect())
}

/// Lock what a lease covers, in ascending order, waiting for whoever holds some of it: in a group
/// without order only the messages that `items` name, if they name nothing else.
fn lock(lease: LeaseId, items: &[SettleItem]) -> Result<LockedLease> {
    let mut cursors = covered_by(lease)?;
    let mut rest = Vec::new();
    if cursors.iter().any(|(_, message)| message.is_some())
        && let Some(named) = only_messages(items)
    {
        (cursors, rest) = cursors
            .into_iter()
            .partition(|(_, message)| message.is_some_and(|message| named.contains(&message)));
    }
    // Nothing it was given is named, as will be said.
    if cursors.is_empty() {
        cursors = std::mem::take(&mut rest);
    }
    let ids =
        |covered: Vec<Covered>| -> Vec<u64> { covered.into_iter().map(|(id, _)| id).collect() };
    let (cursors, rest) = (ids(cursors), ids(rest));
    let ForSettle { queue, identity, located, gone } = lookup::for_settle(lease, &cursors)?;
    let mut held = Vec::with_capacity(cursors.len());
    held.extend(
        gone.into_iter().map(|(located, receipt)| HeldCursor { located, receipt: Some(receipt) }),
    );
    for mut located in located {
        if queue.is_none() {
            // Given by a transaction that committed after the group was removed.
            let lost = located.cursor.revoked().into_iter().find(|(id, _)| *id == lease);
            if let Some((_, receipt)) = lost {
                located.cursor.leases.clear();
                held.push(HeldCursor { located, receipt: Some(receipt) });
                continue;
            }
        }
        let is_here = located.cursor.leases.iter().any(|l| l.id == lease);
        let receipt = match is_here {
            true => None,
            false => ActiveSnapshot::new_snapshot(|under| receipt::find(located.id, lease, under))?,
        };
        if is_here || receipt.is_some() {
            held.push(HeldCursor { located, receipt });
        }
    }
    let now = clock::now();
    if held.is_empty() {
        return Err(explain(lease, &Refusal::Unknown, now));
    }
    let lost =
        |held: &HeldCursor| held.receipt.as_ref().is_some_and(|receipt| !receipt.open.is_empty());
    if queue.is_none() && held.iter().any(lost) {
        return Err(explain(lease, &Refusal::Superseded { holder: None }, now));
    }
    let (queue, options) = queue.map(|queue| (queue.id, queue.options)).unwrap_or_default();
    Ok(LockedLease { lease, queue, options, identity, now, held, places: OnceCell::new(), rest })
}

/// The messages that the items name, if they name messages alone.
fn only_messages(items: &[SettleItem]) -> Option<HashSet<MessageId>> {
    let message = |item: &SettleItem| match item.target {
        Target::Message(message) => Some(message),
        Target::All | Target::Transaction(_) => None,
    };
    items.iter().map(message).collect::<Option<_>>().filter(|_: &HashSet<_>| !items.is_empty())
}

/// Settle what `items` name, as one set. `name_transactions`: fill in the transaction_ids.
pub fn settle_lease(
    lease: LeaseId,
    items: &[SettleItem],
    name_transactions: bool,
) -> Result<Report> {
    let locked = lock(lease, items)?;
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

impl LockedLease {
    /// Find out which messages the items mean, and in which cursors they are.
    fn resolve(&self, items: &[SettleItem]) -> Result<Vec<Plan>> {
        let mut plans: Vec<Plan> = self.held.iter().map(|_| Plan::default()).collect();
        let mut carriers = Carriers::of(self);
        for (at, item) in items.iter().enumerate() {
            let is_meant = |place: &usize| {
                let partition = self.held[*place].partition();
                item.partition.as_deref().is_none_or(|name| name == partition)
            };
            if !(0..self.held.len()).any(|place| is_meant(&place)) {
                let partition = item.partition.as_deref().unwrap_or_default();
                return Err(self.not_in_lease(&format!("partition \"{partition}\"")));
            }
            match &item.target {
                Target::All => {
                    for place in (0..self.held.len()).filter(is_meant) {
                        let plan = &mut plans[place];
                        if plan.named.rest.is_some_and(|status| status != item.status) {
                            return Err(contradiction("everything"));
                        }
                        (plan.named.rest, plan.rest) = (Some(item.status), Some(at));
                    }
                }
                Target::Message(message) => {
                    let place = self.places().find(*message).filter(is_meant);
                    let place =
                        place.ok_or_else(|| self.not_in_lease(&format!("message {message}")))?;
                    plans[place].name(*message, item.status, at)?;
                }
                Target::Transaction(id) => {
                    for (place, message) in carriers.find(id, item.partition.as_deref())? {
                        plans[place].name(message, item.status, at)?;
                    }
                }
            }
        }
        Ok(plans)
    }

    fn places(&self) -> &Places {
        self.places.get_or_init(|| Places::of(&self.held, self.lease))
    }

    /// The transaction_ids of all messages the lease was given in one partition, and where they are.
    fn transaction_ids(&self, partition: &str) -> Result<Vec<(usize, MessageId, String)>> {
        let places = self.places().0.iter();
        let here: Vec<&(Span, usize)> =
            places.filter(|(_, place)| self.held[*place].partition() == partition).collect();
        let queue = self.queue;
        let log = Log { queue, partition, group: 0, since: None, until: None, is_bare: false };
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

    fn partitions(&self) -> BTreeSet<&str> {
        self.held.iter().map(HeldCursor::partition).collect()
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

    fn write(&self, items: &[SettleItem], plans: &[Plan], done: Vec<Settlement>) -> Result<Report> {
        let mut report =
            Report { already: vec![0; items.len()], released: true, ..Report::default() };
        for ((held, plan), settlement) in self.held.iter().zip(plans).zip(done) {
            report.released &= settlement.released;
            let partition: Rc<str> = held.partition().into();
            if let Some(item) = plan.rest {
                report.already[item] += settlement.already;
            }
            let item_of =
                |message: &MessageId| plan.by.get(message).copied().or(plan.rest).unwrap_or(0);
            for &(message, outcome) in &settlement.outcomes {
                report.settled.push(Settled {
                    message,
                    partition: partition.clone(),
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
                receipt::insert(&held.located, self.lease, trace, self.now);
            }
        }
        report.released = report.released && !self.holds_rest()?;
        // In the order in which they were named.
        report.settled.sort_by_key(|settled| settled.item);
        Ok(report)
    }

    /// Whether the lease holds something beyond what was locked.
    fn holds_rest(&self) -> Result<bool> {
        // What was taken last is settled last.
        for &id in self.rest.iter().rev() {
            let is_held = ActiveSnapshot::new_snapshot(|under| {
                let found = claim::find(id, under).map(|row| row.locate(under)).transpose()?;
                Ok(found.is_some_and(|(located, _)| {
                    located.cursor.leases.iter().any(|held| held.id == self.lease)
                }))
            })?;
            if is_held {
                return Ok(true);
            }
            pgrx::check_for_interrupts!();
        }
        Ok(false)
    }

    fn write_cursor(&self, held: &HeldCursor, cursor: &Cursor) {
        let notice = Notice::of(&held.located, cursor, self.identity);
        cursor::append(&held.located, cursor, notice);
    }

    fn bury(&self, held: &HeldCursor, dead: DeadLetter, error: Option<&str>) {
        dead_letter::bury(held.located.group, held.partition(), dead, error, self.now);
    }

    fn name_transactions(&self, report: &mut Report) -> Result<()> {
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

    /// Where the lease still holds something, the cursor as it would be with the lease extended,
    /// and its new deadline. Refused if that is nowhere, or if it was lost anywhere.
    fn extended(&self, duration: Option<i64>) -> Result<Vec<(usize, Cursor, Moment)>> {
        let (mut extended, mut refusals) = (Vec::new(), Vec::new());
        let mut nothing_left = Refusal::Unknown;
        for (place, held) in self.held.iter().enumerate() {
            let (cursor, receipt) = (&held.located.cursor, held.receipt.as_ref());
            let void_before = self.identity.void_before;
            match extend(cursor, self.lease, receipt, duration, self.now, void_before) {
                Ok((cursor, deadline)) => extended.push((place, cursor, deadline)),
                Err(refusal @ Refusal::NotInLease { .. }) => nothing_left = refusal,
                Err(refusal) => refusals.push(refusal),
            }
        }
        let nothing_left = extended.is_empty().then_some(nothing_left);
        match refusals.into_iter().min().or(nothing_left) {
            None => Ok(extended),
            Some(refusal) => Err(explain(self.lease, &refusal, self.now)),
        }
    }

    fn not_in_lease(&self, what: &str) -> Error {
        Error::new(Code::MessageNotInLease, format!("{what} is not part of lease {}", self.lease))
            .detail("The lease was never given it, or has given it back.")
            .hint("Settle a message with the lease_id that came with its delivery.")
    }
}

/// Messages, and where they are, by transaction_id.
type ByTransaction = HashMap<String, Vec<(usize, MessageId)>>;

/// Which messages of a lease carry which transaction_id, and where they are; read once for each
/// partition.
struct Carriers<'a> {
    lease: &'a LockedLease,
    of: BTreeMap<&'a str, Option<ByTransaction>>,
}

impl<'a> Carriers<'a> {
    fn of(lease: &'a LockedLease) -> Self {
        Self { lease, of: lease.partitions().into_iter().map(|name| (name, None)).collect() }
    }

    /// The messages that carry a transaction_id, in the partition or in all; which must be one.
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
                return Err(Error::invalid(
                    format!("transaction_id \"{id}\" is in several partitions of the lease"),
                    format!("Among them \"{other}\" and \"{name}\"."),
                    "Name the partition as well.",
                ));
            }
            found = Some((name, messages.clone()));
        }
        let not_there = || self.lease.not_in_lease(&format!("transaction_id \"{id}\""));
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
    lock(lease, &[])?.extended(None).map(|_| ())
}

/// Hold on to a lease for at least `duration` from now; returns when it ends.
pub fn extend_lease(lease: LeaseId, duration: Option<i64>) -> Result<Moment> {
    let locked = lock(lease, &[])?;
    let extended = locked.extended(duration)?;
    let mut until = Moment::MAX;
    for (place, cursor, deadline) in extended {
        locked.write_cursor(&locked.held[place], &cursor);
        until = until.min(deadline);
    }
    Ok(until)
}
