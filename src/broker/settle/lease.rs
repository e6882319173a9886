//! What a lease holds: found, and locked.

use std::cell::OnceCell;
use std::collections::{BTreeSet, HashSet};

use queen_engine::lease::{Handle, LeaseId};
use queen_engine::message::{MessageId, Spans};
use queen_engine::receipt::Receipt;
use queen_engine::settle::Refusal;

use super::names::Places;
use super::{SettleItem, Target};
use crate::broker::lookup::{self, ForSettle};
use crate::broker::settle::refusal::explain;
use crate::error::Result;
use crate::pg::clock::{self, Moment};
use crate::pg::spi::ActiveSnapshot;
use crate::store::cursor::Located;
use crate::store::identity::Identity;
use crate::store::lease_set::{self, Covered};
use crate::store::queue::Options;
use crate::store::{claim, receipt};

/// A cursor of the lease, locked, with the lease's trace if it has ended there.
pub(super) struct HeldCursor {
    pub(super) located: Located,
    pub(super) receipt: Option<Receipt>,
}

impl HeldCursor {
    /// Every message the lease was ever given here.
    pub(super) fn members(&self, lease: LeaseId) -> Spans {
        let mut all = Spans::new();
        if let Some(live) = self.located.cursor.leases.iter().find(|l| l.id == lease) {
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

/// A lease with its cursors, all locked.
pub(super) struct LockedLease {
    pub(super) lease: LeaseId,
    pub(super) queue: i64,
    pub(super) options: Options,
    pub(super) identity: Identity,
    pub(super) now: Moment,
    pub(super) held: Vec<HeldCursor>,
    pub(super) places: OnceCell<Places>,
    /// Claims that the lease covers, and that are not of interest.
    pub(super) rest: Vec<u64>,
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
pub(super) fn lock(lease: LeaseId, items: &[SettleItem]) -> Result<LockedLease> {
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

impl LockedLease {
    pub(super) fn partitions(&self) -> BTreeSet<&str> {
        self.held.iter().map(HeldCursor::partition).collect()
    }

    /// Whether the lease holds something beyond what was locked.
    pub(super) fn holds_rest(&self) -> Result<bool> {
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
}
