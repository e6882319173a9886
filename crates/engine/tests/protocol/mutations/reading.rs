//! Mutations of what is read of the log.

use queen_engine::cursor::Cursor;
use queen_engine::holes::Snapshot;
use queen_engine::message::{Span, Spans};
use queen_engine::pop::{Pop, Popped, Read};

use super::{Mutation, mutation};
use crate::bounds::{Bounds, ORDERED};
use crate::promise::Promise::*;
use crate::rules::{ReadLog, Rules, Wish, described, pop};

const PLAIN: Bounds = Bounds { troubles: 0, ..ORDERED };
const SLOW: Bounds = Bounds { two_steps: true, ..PLAIN };
const THREE: Bounds = Bounds { pushes: &[1, 1, 1], ..PLAIN };

/// As a message was before its last delivery.
fn not_counted(spans: &Spans) -> Spans {
    spans.iter().map(|span| Span { deliveries: span.deliveries.max(2) - 1, ..span }).collect()
}

/// A pop that takes late segments for read.
fn deaf_to_late_segments(cursor: Cursor, wish: &Wish<'_>, log: ReadLog<'_>) -> Option<Popped> {
    pop(cursor, wish, &|read, limit| match read {
        Read::Late { .. } => Vec::new(),
        Read::Beyond { .. } => log(read, limit),
    })
}

/// A pop that takes what it was given of late segments for all there are.
fn careless_of_the_rest(cursor: Cursor, wish: &Wish<'_>, log: ReadLog<'_>) -> Option<Popped> {
    let mut pop = Pop::begin(cursor, wish.snapshot, wish.wanted, wish.max_deliveries);
    while let Some(read) = pop.next_read() {
        let limit = pop.missing();
        let found = log(&read, limit);
        let is_late = matches!(read, Read::Late { .. });
        pop.supply(&read, &found, is_late || found.len() < limit);
    }
    pop.finish(Some(wish.lease), wish.now)
}

pub const ALL: &[fn() -> Mutation] = &[
    no_running_transactions,
    nothing_from_xmax_on,
    holes_of_a_later_snapshot,
    segment_before_xid,
    no_late_segments,
    no_drain,
    no_second_look,
    no_count_of_deliveries,
];

fn no_running_transactions() -> Mutation {
    mutation(
        "the holes of a snapshot leave out the transactions that run",
        NotLost,
        Rules { snapshot: |seen, _| Snapshot::new(&[], seen.xmax, seen.next, None), ..Rules::REAL },
        PLAIN,
    )
}

fn nothing_from_xmax_on() -> Mutation {
    mutation(
        "the holes of a snapshot leave out the transactions from xmax on",
        NotLost,
        Rules {
            snapshot: |seen, _| Snapshot::new(&seen.running, seen.xmax, seen.xmax, None),
            ..Rules::REAL
        },
        PLAIN,
    )
}

fn holes_of_a_later_snapshot() -> Mutation {
    mutation(
        "the holes are those of a later snapshot than the segments",
        NotLost,
        Rules { snapshot: |_, now| described(now), ..Rules::REAL },
        SLOW,
    )
}

fn segment_before_xid() -> Mutation {
    mutation(
        "a transaction draws the id of its segment before it has an xid",
        NotLost,
        Rules { xid_first: false, ..Rules::REAL },
        PLAIN,
    )
}

fn no_late_segments() -> Mutation {
    mutation(
        "late segments are not read",
        NotLost,
        Rules { pop: deaf_to_late_segments, ..Rules::REAL },
        PLAIN,
    )
}

fn no_drain() -> Mutation {
    mutation(
        "the late segments that a pop has no room for are forgotten",
        NotLost,
        Rules { pop: careless_of_the_rest, ..Rules::REAL },
        THREE,
    )
}

fn no_second_look() -> Mutation {
    mutation(
        "a pop writes although the cursor has moved on since it looked",
        OneHolder,
        Rules { may_write: |_| true, ..Rules::REAL },
        SLOW,
    )
}

fn no_count_of_deliveries() -> Mutation {
    mutation(
        "a delivery is not counted",
        Attempt,
        Rules {
            pop: |cursor, wish, log| {
                let mut popped = pop(cursor, wish, log)?;
                popped.taken = not_counted(&popped.taken);
                popped.cursor.leases.iter_mut().for_each(|lease| {
                    lease.held = not_counted(&lease.held);
                });
                Some(popped)
            },
            ..Rules::REAL
        },
        PLAIN,
    )
}
