//! Mutations of when a lease holds, and when it does not.

use queen_engine::cursor::{Cursor, Readiness, Start};
use queen_engine::settle::{extend, settle};

use super::{Mutation, mutation};
use crate::bounds::{Bounds, ORDERED, Trouble};
use crate::promise::Promise::*;
use crate::rules::{FOREVER, Rules};

const PLAIN: Bounds = Bounds { troubles: 0, ..ORDERED };

fn with(kinds: &'static [Trouble]) -> Bounds {
    Bounds { kinds, ..ORDERED }
}

/// A moment before all deadlines.
const LONG_AGO: i64 = i64::MIN / 2;

/// What a seek would leave that took no lease away.
fn moved_with_leases(cursor: &Cursor, start: Start) -> Cursor {
    let (moved, _) = cursor.moved_to(start);
    Cursor { leases: cursor.leases.clone(), ..moved }
}

pub const ALL: &[fn() -> Mutation] = &[
    no_exclusion,
    no_deadline,
    no_lease_id,
    revival,
    extension_unwritten,
    extension_shortens,
    deaf_to_the_holder,
    no_end,
    sweep_too_early,
    sweep_drops,
    seek_past_a_lease,
];

fn no_exclusion() -> Mutation {
    mutation(
        "a leased partition is ready",
        OneHolder,
        Rules { readiness: |_, _| Readiness::Now, ..Rules::REAL },
        PLAIN,
    )
}

fn no_deadline() -> Mutation {
    mutation(
        "a lease that has expired still settles",
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

fn no_lease_id() -> Mutation {
    mutation(
        "a lease that another one has followed settles in its place",
        Fence,
        Rules {
            settle: |(cursor, lease, receipt), named, policy, now| {
                let lease = cursor.leases.first().map_or(lease, |other| other.id);
                settle(cursor, lease, receipt, named, policy, now, FOREVER)
            },
            ..Rules::REAL
        },
        PLAIN,
    )
}

fn revival() -> Mutation {
    mutation(
        "an extension revives a lease",
        Fence,
        Rules {
            extend: |(cursor, lease, receipt), duration, now| {
                let ahead = duration + now - LONG_AGO;
                extend(cursor, lease, receipt, Some(ahead), LONG_AGO, FOREVER)
            },
            ..Rules::REAL
        },
        with(&[Trouble::Extend]),
    )
}

fn extension_unwritten() -> Mutation {
    mutation(
        "an extension is not written",
        OneHolder,
        Rules {
            extend: |holder, duration, now| {
                let (cursor, _, _) = holder;
                let extended = (Rules::REAL.extend)(holder, duration, now);
                extended.map(|(_, deadline)| (cursor.clone(), deadline))
            },
            ..Rules::REAL
        },
        with(&[Trouble::Extend]),
    )
}

fn extension_shortens() -> Mutation {
    mutation(
        "an extension shortens a lease",
        Deadline,
        Rules {
            extend: |holder, duration, now| {
                let (mut cursor, _) = (Rules::REAL.extend)(holder, duration, now)?;
                cursor.leases.iter_mut().for_each(|lease| lease.deadline = now + 1);
                Ok((cursor, now + 1))
            },
            ..Rules::REAL
        },
        with(&[Trouble::Extend]),
    )
}

fn deaf_to_the_holder() -> Mutation {
    mutation(
        "a lease settles nothing",
        HolderIsHeard,
        Rules {
            settle: |holder, named, policy, now| {
                (Rules::REAL.settle)(holder, named, policy, now + 1_000_000)
            },
            ..Rules::REAL
        },
        PLAIN,
    )
}

fn no_end() -> Mutation {
    mutation(
        "a lease that has expired keeps its partition",
        SettledAtLast,
        Rules {
            readiness: |cursor, now| match cursor.leases.is_empty() {
                true => cursor.readiness(now, FOREVER),
                false => Readiness::At(i64::MAX),
            },
            reclaim: |_, _| Vec::new(),
            ..Rules::REAL
        },
        PLAIN,
    )
}

fn sweep_too_early() -> Mutation {
    mutation(
        "the sweep ends leases before their time",
        OneHolder,
        Rules { reclaim: |cursor, _| cursor.reclaim(i64::MAX, FOREVER), ..Rules::REAL },
        PLAIN,
    )
}

fn sweep_drops() -> Mutation {
    mutation(
        "what the sweep takes back is dropped",
        NotLost,
        Rules {
            reclaim: |cursor, now| {
                let waiting = cursor.waiting.clone();
                let ended = cursor.reclaim(now, FOREVER);
                cursor.waiting = waiting;
                ended
            },
            ..Rules::REAL
        },
        PLAIN,
    )
}

fn seek_past_a_lease() -> Mutation {
    mutation(
        "a seek leaves a lease in force",
        Fence,
        Rules {
            seek: |cursor, start| (moved_with_leases(cursor, start), Vec::new()),
            ..Rules::REAL
        },
        with(&[Trouble::SeekStart]),
    )
}
