//! What has happened while a model was explored: a model in which a thing never happens proves
//! nothing about it.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

/// A thing that can happen.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Event {
    /// A pop found that a commit was faster.
    PopTooLate,
    /// A pop ended a lease that had expired.
    ExpiredByPop,
    /// The sweep did.
    ExpiredBySweep,
    /// Late segments were read in parts.
    Drained,
    /// A message was delivered after its successor, since its push committed later.
    LateCommit,
    Redelivered,
    DeadLettered,
    /// A message was delivered as often as it may be.
    DeliveredTooOften,
    Superseded,
    Expired,
    Unknown,
    NotInLease,
    Repeated,
    Extended,
    Folded,
    /// A crash of the server took a lease.
    LeaseTaken,
    RunEnded,
}

/// What happens in ordered groups.
pub const ORDERED: &[Event] = &[
    Event::PopTooLate,
    Event::ExpiredByPop,
    Event::ExpiredBySweep,
    Event::Drained,
    Event::LateCommit,
    Event::Redelivered,
    Event::DeadLettered,
    Event::DeliveredTooOften,
    Event::Superseded,
    Event::Expired,
    Event::Unknown,
    Event::Repeated,
    Event::Extended,
    Event::LeaseTaken,
    Event::RunEnded,
];

/// What happens in groups without order.
pub const UNORDERED: &[Event] = &[
    Event::PopTooLate,
    Event::ExpiredByPop,
    Event::ExpiredBySweep,
    Event::Redelivered,
    Event::DeadLettered,
    Event::DeliveredTooOften,
    Event::Superseded,
    Event::Expired,
    Event::Unknown,
    Event::Repeated,
    Event::Extended,
    Event::Folded,
    Event::LeaseTaken,
    Event::RunEnded,
];

const COUNT: usize = Event::RunEnded as usize + 1;

#[derive(Clone, Default)]
pub struct Events(Arc<[AtomicBool; COUNT]>);

impl Events {
    pub fn note(&self, event: Event) {
        let has_happened = &self.0[event as usize];
        if !has_happened.load(Ordering::Relaxed) {
            has_happened.store(true, Ordering::Relaxed);
        }
    }

    pub fn has(&self, event: Event) -> bool {
        self.0[event as usize].load(Ordering::Relaxed)
    }
}
