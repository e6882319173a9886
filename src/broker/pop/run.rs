//! A pop in progress: what it has to deliver so far, and what it writes for that.
//!
//! [`super::ordered`] and [`super::unordered`] find messages and lock; then they come here. All
//! writes here are under the lock on a cursor or a claim, which the transaction keeps to its end.

use std::collections::{HashMap, HashSet};
use std::ops::ControlFlow;
use std::rc::Rc;

use queen_engine::failures::Failures;
use queen_engine::lease::LeaseId;
use queen_engine::message::Spans;
use queen_engine::pop::{Pop, Popped};
use queen_engine::settle::Outcome;

use super::context::{PopContext, PopLimits};
use super::delivery::Delivery;
use super::search::PartitionResult;
use crate::broker::lookup;
use crate::broker::stats::outcomes;
use crate::error::Result;
use crate::pg::clock::SECOND;
use crate::pg::random::random;
use crate::pg::result_context::ResultContext;
use crate::pg::table::RowLocation;
use crate::store::cursor_or_claim::{self, LockAttempt};
use crate::store::dead_letter;
use crate::store::lease_set::{self, Covered};
use crate::store::located::Located;
use crate::store::progress::{self, Notice};
use crate::store::queue::DEAD_LETTER;
use crate::store::segment::{Log, Stored};
use crate::store::unit::Unit;
use crate::wait::waiters::{self, PartitionHash, Topic};

/// A message that was pushed longer ago than this, in microseconds, has waited.
const OLD: i64 = SECOND;

/// What groups with order and groups without do differently.
pub trait PartitionPop: Default {
    /// Whether the first try of a partition finds all that the pop may have of it.
    const ONE_TRY_IS_ALL: bool;

    /// Whether a pop within `limits` locks one cursor, or one claim, at most. Its lease then names
    /// that row, and otherwise a set.
    fn locks_one_row(limits: &PopLimits<'_>) -> bool;

    /// Pop what there is from the partition, or by the claim, that the search calls `name`. Waits
    /// for no lock.
    fn pop_from(&mut self, run: &mut PopRun<'_>, name: &str) -> Result<PartitionResult>;

    /// What [`Self::pop_from`] would come to, without a lock and without a write.
    fn peek(context: &PopContext<'_>, name: &str) -> Result<PartitionResult>;
}

/// A pop that has begun.
pub struct PopRun<'a> {
    pub context: &'a PopContext<'a>,
    lease: PopLease,
    /// Partitions that messages were popped from.
    partitions: HashSet<String>,
    deliveries: Vec<Delivery>,
    has_written: bool,
    is_outdated: bool,
    has_moved_on: bool,
    met_lock: bool,
    left_in: Option<PartitionHash>,
    /// Where the contents of deliveries are kept until their rows are returned.
    results: ResultContext,
}

/// What became of one pop under one snapshot.
#[derive(Default)]
pub struct PopResult {
    pub deliveries: Vec<Delivery>,
    /// The pop wrote something that other transactions may need, even where it delivers nothing.
    pub has_written: bool,
    /// It delivers nothing, and the queue or the group has been changed since they were looked up.
    pub is_outdated: bool,
    /// A partition was written by another transaction after the pop's snapshot.
    pub has_moved_on: bool,
    /// Another transaction had messages locked, and may give them back.
    pub met_lock: bool,
    /// Where the pop has left messages that it could have had, if it knows of some.
    pub left_in: Option<PartitionHash>,
}

/// The lease of one pop.
struct PopLease {
    locks_one_row: bool,
    /// The set's own id and the lease's, once the first row has been locked for it.
    set: Option<(u64, LeaseId)>,
    covered: Vec<Covered>,
}

impl<'a> PopRun<'a> {
    /// `locks_one_row`: see [`PartitionPop::locks_one_row`].
    pub fn new(context: &'a PopContext<'a>, locks_one_row: bool, results: ResultContext) -> Self {
        Self {
            context,
            lease: PopLease { locks_one_row, set: None, covered: Vec::new() },
            partitions: HashSet::new(),
            deliveries: Vec::new(),
            has_written: false,
            is_outdated: false,
            has_moved_on: false,
            met_lock: false,
            left_in: None,
            results,
        }
    }

    /// How many messages the pop still wants.
    pub fn missing(&self) -> usize {
        self.context.limits.batch - self.deliveries.len()
    }

    /// Whether there is nothing to go on for: the batch is full, or the queue or the group is no
    /// more what it was.
    pub fn is_over(&self) -> bool {
        self.is_outdated || self.missing() == 0
    }

    /// Whether [`Self::check_current`] has found a change of the queue or the group.
    pub fn is_outdated(&self) -> bool {
        self.is_outdated
    }

    /// Whether the pop has written anything that must not be rolled back.
    pub fn has_written(&self) -> bool {
        self.has_written
    }

    /// Whether the pop has messages of as many partitions as it wants. Then it is not worth much
    /// to search for more.
    pub fn has_all_partitions(&self) -> bool {
        self.partitions.len() >= self.context.limits.partitions
    }

    /// Whether the pop may have messages of what the search calls `name`.
    pub fn may_pop_from(&self, name: &str) -> bool {
        let limits = self.context.limits;
        let wants_more_partitions = !self.has_all_partitions();
        if wants_more_partitions && limits.partition.is_none() {
            return true;
        }
        let partition = Unit::named(name).partition();
        limits.partition.is_none_or(|wanted| wanted == partition)
            && (wants_more_partitions || self.partitions.contains(partition))
    }

    /// Whether the last message that the pop delivers has waited in the log for a while.
    pub fn has_popped_old(&self) -> bool {
        let old = self.context.now.saturating_sub(OLD);
        self.deliveries.last().is_some_and(|last| last.created_at < old)
    }

    /// Take note of what a try of `name` came to.
    pub fn note(&mut self, name: &str, result: &PartitionResult) {
        match result {
            PartitionResult::MovedOn => self.has_moved_on = true,
            PartitionResult::Locked => self.met_lock = true,
            PartitionResult::PoppedSome => self.leave(name),
            _ => (),
        }
    }

    /// There are messages under `name` that the pop leaves to other consumers.
    pub fn leave(&mut self, name: &str) {
        self.left_in = Some(PartitionHash::of(Unit::named(name).partition()));
    }

    /// Whether the group still is what it was when it was looked up. The caller has just locked a
    /// cursor or a claim of it, or taken the shares of `first_reads`: a seek, a purge or a change
    /// of ordering waits for either, so a yes holds to the end of the transaction.
    ///
    /// In REPEATABLE READ a no is an error.
    pub fn check_current(&mut self) -> Result<bool> {
        self.is_outdated = !lookup::is_current(self.context.queue, self.context.group)?;
        if self.is_outdated {
            let PopContext { queue, group, .. } = self.context;
            cursor_or_claim::moved_on(|| group.title(&queue.name))?;
        }
        Ok(!self.is_outdated)
    }

    /// Lock a cursor, or a claim, that was read at `located`. `Break`: it is not for this pop, and
    /// why.
    pub fn try_lock(
        &mut self,
        located: &Located,
        place: RowLocation,
    ) -> Result<ControlFlow<PartitionResult>> {
        Ok(match cursor_or_claim::try_lock(located, place, self.context.under)? {
            LockAttempt::Locked if self.check_current()? => ControlFlow::Continue(()),
            LockAttempt::Locked | LockAttempt::MovedOn => {
                ControlFlow::Break(PartitionResult::MovedOn)
            }
            LockAttempt::HeldByAnother => ControlFlow::Break(PartitionResult::Locked),
        })
    }

    /// Write the next state of a cursor, or of a claim, that this transaction has locked, and
    /// deliver what it gives. `segments`: those that `pop` has read.
    pub fn write_and_deliver(
        &mut self,
        located: &Located,
        pop: Pop<'_>,
        segments: &mut HashMap<u64, Stored>,
        log: &Log<'_>,
    ) -> Result<PartitionResult> {
        let given_by = located.revision + 1;
        let lease = self.lease_for(located.id, given_by);
        let Some(popped) = pop.finish(lease, self.context.now) else {
            return Ok(PartitionResult::Nothing);
        };
        self.write_state(located, &popped);
        // To have passed messages that are not delivered is no reason to stop waiting for others:
        // what is rolled back of that, the next pop passes again.
        self.has_written |= !(popped.taken.is_empty() && popped.exhausted.is_empty());
        if popped.taken.is_empty() {
            return Ok(PartitionResult::Nothing);
        }
        self.fetch_missing(segments, &popped.taken, log);
        let (id, message) = (located.id, located.message);
        self.cover(Covered { id, message, given_by: Some(given_by) });
        let failures = &located.cursor.failures;
        self.deliver(&located.partition, &popped.taken, failures, segments, lease);
        Ok(PartitionResult::Popped)
    }

    /// The lease for messages of this cursor, or under this claim, and its length; None with
    /// `auto_ack`. `given_by`: the revision that gives it, 0 for the row of a claim.
    pub fn lease_for(&mut self, cursor: u64, given_by: i64) -> Option<(LeaseId, i64)> {
        let PopContext { limits, queue, .. } = *self.context;
        if limits.auto_ack {
            return None;
        }
        let duration = limits.lease_time.unwrap_or(queue.options.lease_time());
        let id = if self.lease.locks_one_row {
            LeaseId::of_one(cursor, given_by, random())
        } else {
            let (_, id) = *self.lease.set.get_or_insert_with(|| {
                let set = lease_set::draw_id();
                (set, LeaseId::of_set(set, random()))
            });
            id
        };
        Some((id, duration))
    }

    /// The lease covers this row.
    pub fn cover(&mut self, row: Covered) {
        self.lease.covered.push(row);
    }

    /// Deliver messages whose state has been written. `failures`: how often each was settled as
    /// failed before.
    pub fn deliver(
        &mut self,
        partition: &str,
        messages: &Spans,
        failures: &Failures,
        segments: &HashMap<u64, Stored>,
        lease: Option<(LeaseId, i64)>,
    ) {
        self.has_written = true;
        if lease.is_none() {
            outcomes::count(self.context.group.id, Outcome::Completed, messages.count());
        }
        let group = Topic::group(self.context.group.id);
        let hash = PartitionHash::of(partition);
        waiters::touch_if_undone(group, hash);
        if let Some((_, duration)) = lease {
            waiters::touch_at(group, hash, self.context.now.saturating_add(duration));
        }
        self.partitions.insert(partition.to_owned());
        let partition: Rc<str> = partition.into();
        let now = self.context.now;
        for span in messages.iter() {
            let Some(stored) = segments.get(&span.segment) else { continue };
            let created_at = stored.created_at();
            let contents = self.results.allocate(|| stored.contents().copied());
            for message in span.messages() {
                self.deliveries.push(Delivery {
                    partition: partition.clone(),
                    message,
                    contents,
                    created_at,
                    attempt: span.deliveries,
                    failures: failures.of(message),
                    lease: lease.map(|(id, duration)| (id, now.saturating_add(duration))),
                });
            }
        }
    }

    /// Write what the lease covers, and end the pop.
    pub fn finish(self) -> PopResult {
        let Self { context, lease, mut deliveries, has_written, is_outdated, .. } = self;
        let Self { has_moved_on, met_lock, left_in, .. } = self;
        if let Some((id, lease_id)) = lease.set.filter(|_| !lease.covered.is_empty()) {
            lease_set::insert(id, lease_id, lease.covered, context.now);
        }
        if !context.group.is_ordered(&context.queue.options) {
            in_order_of_the_log(&mut deliveries);
        }
        let is_outdated = is_outdated && deliveries.is_empty();
        PopResult { deliveries, has_written, is_outdated, has_moved_on, met_lock, left_in }
    }

    fn write_state(&self, located: &Located, popped: &Popped) {
        let PopContext { queue, now, .. } = *self.context;
        let notice = Notice::of(located, &popped.cursor, queue.identity);
        progress::append(located, &popped.cursor, notice, &popped.ended);
        outcomes::count_expired(located.group, popped.ended.len());
        outcomes::count(located.group, Outcome::Completed, popped.superseded);
        let is_kept = queue.options.on_exhausted() == DEAD_LETTER;
        let outcome = if is_kept { Outcome::DeadLettered } else { Outcome::Dropped };
        outcomes::count(located.group, outcome, popped.exhausted.len());
        if is_kept {
            for dead in &popped.exhausted {
                let mut error =
                    format!("delivered {} times, which is max_deliveries", dead.deliveries);
                if let Some(said) = located.cursor.failures.last_error(dead.message) {
                    error.push_str("; its last failure: ");
                    error.push_str(said);
                }
                dead_letter::bury(located.group, &located.partition, *dead, Some(&error), now);
            }
        }
    }

    /// Read the segments of messages that came back: the pop has not read the log for them.
    fn fetch_missing(&self, segments: &mut HashMap<u64, Stored>, popped: &Spans, log: &Log<'_>) {
        let missing: Spans =
            popped.iter().filter(|span| !segments.contains_key(&span.segment)).collect();
        if !missing.is_empty() {
            let stored = log.segments(&missing, self.context.under);
            segments.extend(stored.into_iter().map(|segment| (segment.id(), segment)));
        }
    }
}

/// Sort deliveries by their messages, within each partition: without order, messages that came back
/// are popped before or after others of their partition. Partitions stay in the order in which the
/// pop came to them.
fn in_order_of_the_log(deliveries: &mut [Delivery]) {
    let mut first = HashMap::new();
    for (place, delivery) in deliveries.iter().enumerate() {
        first.entry(delivery.partition.clone()).or_insert(place);
    }
    deliveries.sort_by_key(|delivery| (first[&delivery.partition], delivery.message));
}
