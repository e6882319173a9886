//! What is counted of each group as it happens: what became of messages, and leases that expired.
//! The counters are [`crate::pg::counters`], under the id of the group; they cost no row, and are
//! there only with the library preloaded.

use queen_engine::settle::Outcome;

use crate::pg::counters::{self, COUNTERS};

/// Each outcome that is counted, with the name that the metrics give it.
pub const OUTCOMES: [(&str, Outcome); 5] = [
    ("completed", Outcome::Completed),
    ("failed", Outcome::Failed),
    ("retry", Outcome::Retry),
    ("dead_lettered", Outcome::DeadLettered),
    ("dropped", Outcome::Dropped),
];

/// The counter of leases that expired, behind those of outcomes.
const EXPIRED: usize = 5;

/// Messages of the group have been settled, so many of them in this way. What was settled before
/// is not counted again.
pub fn count(group: i64, outcome: Outcome, messages: usize) {
    if let Some(counter) = OUTCOMES.iter().position(|(_, counted)| *counted == outcome) {
        counters::count(group, counter, messages);
    }
}

/// A pop or a sweep has found that so many leases of the group were over, on as many cursors or
/// claims.
pub fn count_expired(group: i64, leases: usize) {
    counters::count(group, EXPIRED, leases);
}

/// What was counted of a group.
pub struct GroupCounts([u64; COUNTERS]);

impl GroupCounts {
    /// None where nothing is counted.
    pub fn of(group: i64) -> Option<Self> {
        counters::read(group).map(Self)
    }

    /// In the order of [`OUTCOMES`].
    pub fn settled(&self, outcome: usize) -> f64 {
        self.0[outcome] as f64
    }

    pub fn expired(&self) -> f64 {
        self.0[EXPIRED] as f64
    }
}
