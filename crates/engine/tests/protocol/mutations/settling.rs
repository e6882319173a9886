//! Mutations of what becomes of messages that are settled, or fail.

use queen_engine::cursor::Cursor;
use queen_engine::message::Spans;
use queen_engine::receipt::{Ending, Receipt};
use queen_engine::settle::Policy;

use super::{Mutation, mutation};
use crate::bounds::{Bounds, ORDERED, Trouble};
use crate::promise::Promise::*;
use crate::rules::{FOREVER, Rules, Wish, pop};

fn with(kinds: &'static [Trouble]) -> Bounds {
    Bounds { kinds, ..ORDERED }
}

pub const ALL: &[fn() -> Mutation] = &[
    buried_too_early,
    buried_too_late,
    no_delay,
    back_behind_the_others,
    rest_forgotten,
    settled_waits,
    settled_uncounted,
    no_receipt,
    silent_receipt,
    settlement_unflushed,
    no_limit_of_deliveries,
];

fn buried_too_early() -> Mutation {
    mutation(
        "a message is given up before its failures are used up",
        Budget,
        Rules {
            settle: |holder, named, policy, now| {
                let policy = Policy { retry_limit: policy.retry_limit - 1, ..*policy };
                (Rules::REAL.settle)(holder, named, &policy, now)
            },
            ..Rules::REAL
        },
        with(&[Trouble::Fail]),
    )
}

fn buried_too_late() -> Mutation {
    mutation(
        "a message fails more often than it may",
        Budget,
        Rules {
            settle: |holder, named, policy, now| {
                let policy = Policy { retry_limit: policy.retry_limit + 1, ..*policy };
                (Rules::REAL.settle)(holder, named, &policy, now)
            },
            ..Rules::REAL
        },
        Bounds { troubles: 2, ..with(&[Trouble::Fail]) },
    )
}

fn no_delay() -> Mutation {
    mutation(
        "a message that has failed comes back at once",
        Delay,
        Rules {
            readiness: |cursor, now| {
                let ready = Cursor { retry_at: None, ..cursor.clone() };
                ready.readiness(now, FOREVER)
            },
            ..Rules::REAL
        },
        with(&[Trouble::Fail]),
    )
}

fn back_behind_the_others() -> Mutation {
    mutation(
        "what comes back waits behind the others",
        Order,
        Rules {
            settle: |holder, named, policy, now| {
                let (before, _, _) = holder;
                let mut done = (Rules::REAL.settle)(holder, named, policy, now)?;
                if let (Some(cursor), Some(_)) = (&mut done.cursor, &done.receipt) {
                    let (others, back) =
                        cursor.waiting.partition(|message| before.waiting.find(message).is_some());
                    cursor.waiting = others.iter().chain(back.iter()).collect();
                }
                Ok(done)
            },
            ..Rules::REAL
        },
        Bounds { pushes: &[2], ..with(&[Trouble::Fail]) },
    )
}

fn rest_forgotten() -> Mutation {
    mutation(
        "what a lease holds behind a message that failed is forgotten",
        NotLost,
        Rules {
            settle: |holder, named, policy, now| {
                let mut done = (Rules::REAL.settle)(holder, named, policy, now)?;
                let failed = |message| named.each.contains_key(&message);
                if let (Some(cursor), Some(receipt)) = (&mut done.cursor, &done.receipt)
                    && receipt.ending == Ending::GaveBack
                {
                    cursor.waiting = cursor.waiting.partition(failed).0;
                }
                Ok(done)
            },
            ..Rules::REAL
        },
        Bounds { pushes: &[2], ..with(&[Trouble::Fail]) },
    )
}

fn settled_waits() -> Mutation {
    mutation(
        "a settled message waits again",
        SettledStays,
        Rules {
            settle: |holder, named, policy, now| {
                let (before, lease, _) = holder;
                let mut done = (Rules::REAL.settle)(holder, named, policy, now)?;
                let held = before.leases.iter().find(|held| held.id == lease);
                if let (Some(cursor), Some(held)) = (&mut done.cursor, held) {
                    cursor.waiting.prepend(held.held.clone());
                }
                Ok(done)
            },
            ..Rules::REAL
        },
        Bounds { troubles: 0, ..ORDERED },
    )
}

fn settled_uncounted() -> Mutation {
    mutation(
        "what is settled is not counted",
        Count,
        Rules {
            settle: |holder, named, policy, now| {
                let (before, _, _) = holder;
                let mut done = (Rules::REAL.settle)(holder, named, policy, now)?;
                done.cursor.iter_mut().for_each(|cursor| cursor.settled = before.settled);
                Ok(done)
            },
            ..Rules::REAL
        },
        Bounds { kinds: &[], troubles: 0, ..ORDERED },
    )
}

fn no_receipt() -> Mutation {
    mutation(
        "a lease leaves no receipt",
        Repetition,
        Rules { receipt: |_| None, ..Rules::REAL },
        with(&[Trouble::LostReply]),
    )
}

fn silent_receipt() -> Mutation {
    mutation(
        "a receipt does not say what was completed",
        Repetition,
        Rules { receipt: |receipt| Some(Receipt { done: Spans::new(), ..receipt }), ..Rules::REAL },
        with(&[Trouble::LostReply]),
    )
}

fn settlement_unflushed() -> Mutation {
    mutation(
        "a settlement does not wait for the disk",
        Durable,
        Rules { settlement_is_flushed: false, ..Rules::REAL },
        with(&[Trouble::Crash]),
    )
}

fn no_limit_of_deliveries() -> Mutation {
    mutation(
        "what was delivered too often is delivered again",
        Budget,
        Rules {
            pop: |cursor, wish, log| pop(cursor, &Wish { max_deliveries: None, ..*wish }, log),
            ..Rules::REAL
        },
        Bounds { max_deliveries: Some(1), troubles: 0, ..ORDERED },
    )
}
