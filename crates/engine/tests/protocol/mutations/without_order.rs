//! Mutations of groups without order.

use queen_engine::settle::settle;

use super::{Mutation, mutation};
use crate::bounds::{Bounds, UNORDERED};
use crate::promise::Promise::*;
use crate::rules::{FOREVER, Rules};

const PLAIN: Bounds = Bounds { troubles: 0, ..UNORDERED };
const SLOW: Bounds = Bounds { two_steps: true, ..PLAIN };

/// A moment before all deadlines.
const LONG_AGO: i64 = i64::MIN / 2;

pub const ALL: &[fn() -> Mutation] = &[
    claims_overlap,
    claim_of_the_folded,
    no_second_look_at_claims,
    no_deadline_of_claims,
    fold_passes_all,
    fold_removes_all,
];

fn claims_overlap() -> Mutation {
    mutation(
        "a message is claimed that has a claim",
        OneHolder,
        Rules { may_claim: |_, is_settled| !is_settled, ..Rules::REAL },
        PLAIN,
    )
}

fn claim_of_the_folded() -> Mutation {
    mutation(
        "a message is claimed that was folded in the meantime",
        SettledStays,
        Rules { may_claim: |is_claimed, _| !is_claimed, ..Rules::REAL },
        SLOW,
    )
}

fn no_second_look_at_claims() -> Mutation {
    mutation(
        "a claim is popped that has moved on since the pop looked",
        OneHolder,
        Rules { may_write: |_| true, ..Rules::REAL },
        SLOW,
    )
}

fn no_deadline_of_claims() -> Mutation {
    mutation(
        "a lease without order settles after its time",
        Fence,
        Rules {
            settle: |(cursor, lease, receipt), named, policy, _| {
                settle(cursor, lease, receipt, named, policy, LONG_AGO, FOREVER)
            },
            ..Rules::REAL
        },
        PLAIN,
    )
}

fn fold_passes_all() -> Mutation {
    mutation(
        "the folding cursor passes a message that has no claim",
        NotLost,
        Rules { may_pass: |_| true, ..Rules::REAL },
        PLAIN,
    )
}

fn fold_removes_all() -> Mutation {
    mutation(
        "the folding removes a claim that is held",
        NotLost,
        Rules { may_remove: |_| true, ..Rules::REAL },
        PLAIN,
    )
}
