//! What a lease holds: which cursors and claims, locked, and what each of them says of the lease.
//!
//! Every verb of [`crate::broker::settle`] begins here. Cursors and claims are locked in ascending
//! order, waiting for the transactions that hold them: a pop or a settlement that has not ended, a
//! seek, a purge, a sweep. No other lock is held meanwhile, but for what the caller's transaction
//! has taken before.

use std::cell::OnceCell;
use std::collections::{BTreeSet, HashSet};

use queen_engine::lease::{Handle, LeaseId};
use queen_engine::message::{MessageId, Span, Spans};
use queen_engine::receipt::{Ending, Receipt};
use queen_engine::rights::Privilege;
use queen_engine::settle::Refusal;

use super::items::{SettleItem, SettleTarget};
use super::refusal::explain;
use crate::broker::lookup::{self, ForSettle};
use crate::broker::rights;
use crate::error::Result;
use crate::pg::clock::{self, Moment};
use crate::pg::snapshot::ActiveSnapshot;
use crate::store::claim;
use crate::store::cursor_or_claim;
use crate::store::identity::Identity;
use crate::store::lease_set::{self, Covered};
use crate::store::located::Located;
use crate::store::queue::Options;

/// A lease with the cursors and claims that its settlement is about, all locked.
pub(super) struct LockedLease {
    pub(super) lease: LeaseId,
    /// The queue's id, and its options; 0 and the defaults where the group has been removed.
    pub(super) queue: i64,
    pub(super) options: Options,
    pub(super) identity: Identity,
    /// The moment by which the lease is live or has expired: after everything was locked.
    pub(super) now: Moment,
    pub(super) held: Vec<HeldCursor>,
    /// In which of `held` each message is; found when it is first asked.
    places: OnceCell<Places>,
    /// Claims that the lease covers, that no item names, and that are not locked.
    unlocked: Vec<u64>,
}

/// A cursor or a claim of the lease, locked.
pub(super) struct HeldCursor {
    pub(super) located: Located,
    /// What the lease has left here, if it has ended here.
    pub(super) receipt: Option<Receipt>,
}

/// Lock what the lease covers, waiting for the transactions that hold some of it: but nothing of a
/// queue that the caller may not pop from ([`lookup::lock_leased`]). In a group
/// without order a lease covers a claim for each message: if `items` name nothing but messages,
/// only the claims of those are locked.
///
/// Error QN003 where nothing is known of the lease; 42501 where the caller may not pop from its
/// queue; QN002 where its group has been removed while it held something.
pub(super) fn lock(lease: LeaseId, items: &[SettleItem]) -> Result<LockedLease> {
    let (named, unlocked) = to_lock(covered_by(lease)?, items);
    let unknown = || explain(lease, &Refusal::Unknown, clock::now());
    let found = lookup::for_settle(lease, &named)?.ok_or_else(unknown)?;
    let ForSettle { queue, queue_name, identity, located, gone } = found;
    let mut held = Vec::with_capacity(named.len());
    held.extend(
        gone.into_iter().map(|(located, receipt)| HeldCursor { located, receipt: Some(receipt) }),
    );
    for located in located {
        let covered = named.binary_search_by_key(&located.id, |covered| covered.id);
        let given_by = covered.ok().and_then(|place| named[place].given_by);
        held.extend(HeldCursor::of(located, lease, given_by, queue.is_none())?);
    }
    let now = clock::now();
    if held.is_empty() {
        return Err(unknown());
    }
    // What is gone was not locked, and the right may have been revoked while this call waited.
    if let Some(name) = &queue_name {
        rights::require(Privilege::Pop, name)?;
    }
    if queue.is_none() && held.iter().any(HeldCursor::has_lost_something) {
        return Err(explain(lease, &Refusal::Superseded { holder: None }, now));
    }
    let (queue, options) = queue.map(|queue| (queue.id, queue.options)).unwrap_or_default();
    let places = OnceCell::new();
    Ok(LockedLease { lease, queue, options, identity, now, held, places, unlocked })
}

/// Lock the cursors and claims of several leases in one ascending order, as all bundles do. So two
/// calls about the same leases wait for each other in one direction only. Cursors and claims of a
/// queue that the caller may not pop from are left out ([`lookup::lock_leased`]).
pub fn lock_leases(leases: impl IntoIterator<Item = LeaseId>) -> Result<()> {
    // A set was found by its whole lease id; None stands for that.
    let mut named: Vec<(u64, Option<LeaseId>)> = Vec::new();
    for lease in leases {
        let unproven = matches!(lease.handle(), Some(Handle::Cursor(_))).then_some(lease);
        named.extend(covered_by(lease)?.into_iter().map(|covered| (covered.id, unproven)));
    }
    named.sort_unstable();
    let mut ids: Vec<u64> = named.iter().map(|(id, _)| *id).collect();
    ids.dedup();
    let is_leased = |id| {
        let from = named.partition_point(|(named, _)| *named < id);
        for (_, lease) in named[from..].iter().take_while(|(named, _)| *named == id) {
            if lease.map_or(Ok(true), |lease| cursor_or_claim::knows(id, lease))? {
                return Ok(true);
            }
        }
        Ok(false)
    };
    lookup::lock_leased(&ids, is_leased).map(drop)
}

/// The cursors or claims that a lease covers, ascending by id.
fn covered_by(lease: LeaseId) -> Result<Vec<Covered>> {
    match lease.handle() {
        Some(Handle::Cursor(id)) => Ok(vec![Covered { id, message: None, given_by: None }]),
        Some(Handle::Set(id)) => lease_set::covered(id, lease),
        None => Ok(Vec::new()),
    }
}

/// What is to be locked, and the ids of claims that need no lock; both ascending.
fn to_lock(covered: Vec<Covered>, items: &[SettleItem]) -> (Vec<Covered>, Vec<u64>) {
    let has_claims = covered.iter().any(|covered| covered.message.is_some());
    let Some(named) = has_claims.then(|| only_messages(items)).flatten() else {
        return (covered, Vec::new());
    };
    let is_named =
        |covered: &Covered| covered.message.is_some_and(|message| named.contains(&message));
    match covered.iter().any(is_named) {
        true => {
            let (named, others): (_, Vec<Covered>) = covered.into_iter().partition(is_named);
            (named, others.into_iter().map(|covered| covered.id).collect())
        }
        // The lease was never given any of the messages. It takes everything that is known of the
        // lease to refuse that in the right words.
        false => (covered, Vec::new()),
    }
}

/// The messages that the items name, if they name messages alone.
fn only_messages(items: &[SettleItem]) -> Option<HashSet<MessageId>> {
    let message = |item: &SettleItem| match item.target {
        SettleTarget::Message(message) => Some(message),
        SettleTarget::All | SettleTarget::Transaction(_) => None,
    };
    items.iter().map(message).collect::<Option<_>>().filter(|_: &HashSet<_>| !items.is_empty())
}

impl HeldCursor {
    /// What a cursor or a claim, which is locked, says of the lease; None if nothing.
    /// `given_by`: see [`Covered`]. `is_group_gone`: the group has been removed.
    fn of(
        mut located: Located,
        lease: LeaseId,
        given_by: Option<i64>,
        is_group_gone: bool,
    ) -> Result<Option<Self>> {
        let is_live = located.cursor.leases.iter().any(|live| live.id == lease);
        if !is_live {
            let find = |under: &ActiveSnapshot| {
                cursor_or_claim::receipt_of(&located, lease, given_by, under)
            };
            let receipt = ActiveSnapshot::new_snapshot(find)?;
            return Ok(receipt.map(|receipt| Self { located, receipt: Some(receipt) }));
        }
        let mut receipt = None;
        if is_group_gone {
            // The pop that gave the lease committed after the group was removed, so the
            // unsubscription has not seen the lease, and has left no receipt.
            let revoked = located.cursor.revoked().into_iter().find(|(id, _)| *id == lease);
            receipt = revoked.map(|(_, receipt)| receipt);
            located.cursor.leases.clear();
        }
        Ok(Some(Self { located, receipt }))
    }

    /// The lease was taken away here, or its time was over, with messages that were not settled.
    fn has_lost_something(&self) -> bool {
        let is_lost = |past: &Receipt| past.ending != Ending::GaveBack && !past.open.is_empty();
        self.receipt.as_ref().is_some_and(is_lost)
    }

    /// Every message the lease was ever given here.
    pub(super) fn members(&self, lease: LeaseId) -> Spans {
        let mut all = Spans::new();
        if let Some(live) = self.located.cursor.leases.iter().find(|live| live.id == lease) {
            [&live.held, &live.done, &live.dead].into_iter().for_each(|s| all.extend(s.iter()));
        }
        if let Some(past) = &self.receipt {
            [&past.open, &past.done, &past.dead].into_iter().for_each(|s| all.extend(s.iter()));
        }
        all
    }

    pub(super) fn partition(&self) -> &str {
        &self.located.partition
    }
}

impl LockedLease {
    /// The partitions that were locked.
    pub(super) fn partitions(&self) -> BTreeSet<&str> {
        self.held.iter().map(HeldCursor::partition).collect()
    }

    /// Whether the lease holds a claim that was not locked.
    pub(super) fn holds_unlocked(&self) -> Result<bool> {
        // From the end: a consumer settles last what it was given last.
        for &id in self.unlocked.iter().rev() {
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

    /// Where each message of the lease is.
    pub(super) fn places(&self) -> &Places {
        self.places.get_or_init(|| Places::of(&self.held, self.lease))
    }
}

/// In which of the lease's cursors and claims each message is that the lease was ever given: runs
/// of messages in the order of the log, each with its place in `held`.
pub(super) struct Places(Vec<(Span, usize)>);

impl Places {
    fn of(held: &[HeldCursor], lease: LeaseId) -> Self {
        let runs = |(place, held): (usize, &HeldCursor)| {
            held.members(lease).iter().map(|span| (span, place)).collect::<Vec<_>>()
        };
        let mut places: Vec<_> = held.iter().enumerate().flat_map(runs).collect();
        places.sort_unstable_by_key(|(span, _)| (span.segment, span.first));
        Self(places)
    }

    /// The runs of messages, each with its place.
    pub(super) fn runs(&self) -> impl Iterator<Item = &(Span, usize)> {
        self.0.iter()
    }

    /// The place of a message; None if the lease was never given it.
    pub(super) fn find(&self, message: MessageId) -> Option<usize> {
        let key = (message.segment(), message.index());
        let after = self.0.partition_point(|(span, _)| (span.segment, span.first) <= key);
        let (span, place) = self.0[..after].last()?;
        span.holds(message).then_some(*place)
    }
}
