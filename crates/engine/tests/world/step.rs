//! The steps of the model.

use proptest::prelude::*;
use queen_engine::settle::Status;

use super::LEASE;

#[derive(Clone, Debug)]
pub enum Step {
    /// A transaction gets its xid.
    Begin(usize),
    Push(usize, u16),
    Commit(usize),
    Abort(usize),
    /// Pop so many messages, and read so many segments at a time.
    Pop(usize, usize),
    /// Settle these of the held messages (one bit each, repeated), with this status.
    Settle(u8, Status),
    SettleAll(Status),
    /// Let time pass.
    Wait(i64),
    /// Ack with the lease before the current one.
    StaleAck,
}

pub fn any_step() -> impl Strategy<Value = Step> {
    let status = prop_oneof![
        4 => Just(Status::Completed),
        2 => Just(Status::Failed { delay: None }),
        1 => Just(Status::Retry { delay: 0 }),
        1 => Just(Status::DeadLetter),
    ];
    prop_oneof![
        3 => (0..5usize).prop_map(Step::Begin),
        6 => (0..5usize, 1..6u16).prop_map(|(slot, n)| Step::Push(slot, n)),
        4 => (0..5usize).prop_map(Step::Commit),
        1 => (0..5usize).prop_map(Step::Abort),
        6 => (1..8usize, 1..4usize).prop_map(|(n, chunk)| Step::Pop(n, chunk)),
        5 => (any::<u8>(), status.clone()).prop_map(|(bits, s)| Step::Settle(bits, s)),
        2 => status.prop_map(Step::SettleAll),
        2 => prop_oneof![Just(50i64), Just(500), Just(LEASE + 1)].prop_map(Step::Wait),
        1 => Just(Step::StaleAck),
    ]
}
