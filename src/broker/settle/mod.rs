//! Settling a lease: saying what became of its messages, or holding on to it for longer.
//!
//! Called by `queen_ack`, `queen_settle`, `queen_extend` and bundles. A lease may cover several
//! cursors, and in a group without order a claim for each message. All of those in question are
//! locked first ([`lease`]), then it is found out what the call names ([`names`]). The engine
//! decides for each cursor. If it refuses one, the whole call is refused, and nothing is written:
//! this is the fence. Otherwise the new states are written, and the locks are held to the end of
//! the transaction.

mod items;
mod lease;
mod names;
mod refusal;

use std::rc::Rc;

use queen_engine::cursor::Cursor;
use queen_engine::lease::LeaseId;
use queen_engine::receipt::EndedLease;
use queen_engine::settle::{Policy, Refusal, Settlement, extend, settle};

use self::lease::{HeldCursor, LockedLease, lock};
use self::names::Plan;
use self::refusal::explain;
use crate::broker::stats::outcomes;
use crate::error::Result;
use crate::pg::async_commit::may_be_lost;
use crate::pg::clock::Moment;
use crate::store::dead_letter;
use crate::store::progress::{self, Notice};
use crate::store::queue::DEAD_LETTER;

pub use self::items::{Report, SettleItem, SettleTarget, Settled};
pub use self::lease::lock_leases;

/// Settle what `items` name, as one set. `name_transactions`: fill in the transaction_ids. Errors
/// QN001 to QN005, and 22023 for items that contradict each other.
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

/// An error QN001 to QN004 unless the lease is live and holds something. Locks all that it covers.
pub fn require_live(lease: LeaseId) -> Result<()> {
    lock(lease, &[])?.extended(None).map(|_| ())
}

/// Hold on to a lease for at least `duration` microseconds from now (None: what the pop used).
/// Returns the moment at which the lease ends. Errors QN001 to QN004.
pub fn extend_lease(lease: LeaseId, duration: Option<i64>) -> Result<Moment> {
    may_be_lost(true, || {
        let locked = lock(lease, &[])?;
        let extended = locked.extended(duration)?;
        let mut until = Moment::MAX;
        for (place, cursor, deadline) in extended {
            locked.write_cursor(&locked.held[place], &cursor, &[]);
            until = until.min(deadline);
        }
        Ok(until)
    })
}

impl LockedLease {
    /// What the engine makes of each cursor, in the order of `held`; or, if it refuses some, the
    /// refusal that takes precedence.
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

    /// Write what was decided.
    fn write(&self, items: &[SettleItem], plans: &[Plan], done: Vec<Settlement>) -> Result<Report> {
        let mut report =
            Report { already: vec![0; items.len()], released: true, ..Report::default() };
        for ((held, plan), mut settlement) in self.held.iter().zip(plans).zip(done) {
            report.released &= settlement.released;
            let partition: Rc<str> = held.partition().into();
            if let Some(item) = plan.rest {
                report.already[item] += settlement.already;
            }
            for &(message, outcome) in &settlement.outcomes {
                outcomes::count(held.located.group, outcome, 1);
                report.settled.push(Settled {
                    message,
                    partition: partition.clone(),
                    transaction_id: String::new(),
                    outcome,
                    item: plan.item_of(message),
                });
            }
            for dead in &settlement.dead {
                let error = items[plan.item_of(dead.message)].error.as_deref();
                let (group, partition) = (held.located.group, held.partition());
                dead_letter::bury(group, partition, *dead, error, self.now);
            }
            settlement.keep_errors(|message| items[plan.item_of(message)].error.as_deref());
            if let Some(cursor) = &settlement.cursor {
                let ended = settlement.receipt.map(|receipt| (self.lease, receipt));
                self.write_cursor(held, cursor, ended.as_slice());
            }
        }
        report.released = report.released && !self.holds_unlocked()?;
        // In the order in which they were named.
        report.settled.sort_by_key(|settled| settled.item);
        Ok(report)
    }

    fn write_cursor(&self, held: &HeldCursor, cursor: &Cursor, ended: &[EndedLease]) {
        let notice = Notice::of(&held.located, cursor, self.identity);
        progress::append(&held.located, cursor, notice, ended);
    }

    /// For each cursor where the lease still holds something: its place in `held`, its state with
    /// the lease extended, and the new deadline. Refused if there is none, or if the lease was lost
    /// in one of them.
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
}
