//! What the figures need of the state of a cursor or a claim. States are read once and forgotten;
//! their summaries may be kept by a session, for 100,000 partitions and more.

use queen_engine::cursor::Cursor;
use queen_engine::lease::LeaseId;
use queen_engine::message::Spans;

use crate::pg::clock::Moment;

/// The part of a state that figures come from.
#[derive(Clone, Debug, Default)]
pub struct StateSummary {
    pub settled: i64,
    /// 0: never.
    pub last_pop_at: Moment,
    /// Messages that were delivered before, and wait to be delivered again.
    pub came_back: i64,
    /// Messages are held or wait.
    pub is_open: bool,
    pub position: u64,
    /// The lowest segment with a message that is held or waits.
    pub first_open: Option<u64>,
    pub waiting: Spans,
    pub leases: Vec<LeaseSummary>,
}

/// A lease that has not ended; its time may be over.
#[derive(Clone, Debug)]
pub struct LeaseSummary {
    pub id: LeaseId,
    pub given_at: Moment,
    pub deadline: Moment,
    pub messages: i64,
    /// Deliveries of the message that was delivered most often.
    pub attempt: i32,
}

impl StateSummary {
    pub fn of(state: Cursor) -> Self {
        let held = state.leases.iter().flat_map(|lease| lease.held.iter());
        let first_open = held.chain(state.waiting.iter()).map(|span| span.segment).min();
        let back = state.waiting.iter().filter(|span| span.deliveries > 0);
        let came_back = back.map(|span| i64::from(span.len)).sum();
        let leases = state.leases.iter().map(|lease| LeaseSummary {
            id: lease.id,
            given_at: lease.given_at,
            deadline: lease.deadline,
            messages: lease.held.count() as i64,
            attempt: lease.held.max_deliveries() as i32,
        });
        Self {
            settled: state.settled,
            last_pop_at: state.last_pop_at,
            came_back,
            is_open: state.open() > 0,
            position: state.position,
            first_open,
            leases: leases.collect(),
            waiting: state.waiting,
        }
    }
}

impl LeaseSummary {
    /// Whether the lease is in force, as `queen_engine::cursor::Lease::is_live` has it.
    pub fn is_live(&self, now: Moment, void_before: Moment) -> bool {
        self.deadline > now && self.given_at >= void_before
    }
}
