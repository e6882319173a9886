//! The bounds that are explored: small ones in each run of the tests, large ones by `make model`.
//! Their names say workers x messages x partitions.

use super::bounds::{Bounds, ORDERED, Trouble, UNORDERED};

/// The name of a model, and its bounds.
pub type Size = (&'static str, Bounds);

/// What changes the counts of a message.
const FAILURES: &[Trouble] = &[Trouble::Fail, Trouble::Forget];

/// What a pop can meet between its look and its write.
const CHANGES: &[Trouble] = &[Trouble::Extend, Trouble::SeekStart, Trouble::Crash];

/// What may come twice.
const TWICE: &[Trouble] = &[Trouble::Fail, Trouble::Crash, Trouble::LostReply];

const COUNTED: Bounds = Bounds { max_deliveries: Some(2), troubles: 2, kinds: FAILURES, ..ORDERED };
const EXPIRING: Bounds = Bounds { kinds: &[], troubles: 0, expiries: 2, ..ORDERED };
const SLOW: Bounds = Bounds { two_steps: true, kinds: CHANGES, ..ORDERED };
const WIDE: Bounds =
    Bounds { workers: 3, pushes: &[1, 1, 1], partitions: 2, troubles: 0, ..ORDERED };

const fn without_order(bounds: Bounds) -> Bounds {
    Bounds { ordered: false, batches: UNORDERED.batches, ..bounds }
}

pub const SMALL_ORDERED: &[Size] = &[
    ("3 x 3 x 1, 1 expiry", Bounds { partitions: 1, ..WIDE }),
    ("2 x 2 x 1, 1 expiry, in two steps", SLOW),
    ("2 x 2 x 1, 1 expiry, 2 troubles", Bounds { troubles: 2, kinds: TWICE, ..ORDERED }),
    ("2 x 3 x 1 in two pushes, 1 trouble", Bounds { pushes: &[2, 1], ..ORDERED }),
    ("2 x 2 x 1, at most 2 deliveries", COUNTED),
    ("2 x 2 x 1, 2 expiries", EXPIRING),
];

pub const SMALL_WITHOUT_ORDER: &[Size] = &[
    ("2 x 2 x 1, 1 expiry, in two steps", without_order(SLOW)),
    ("2 x 2 x 1, 1 expiry, 1 trouble", UNORDERED),
    ("2 x 2 x 1, at most 2 deliveries", without_order(COUNTED)),
    ("2 x 2 x 1, 2 expiries", without_order(EXPIRING)),
];

pub const LARGE_ORDERED: &[Size] = &[
    ("3 x 3 x 2, 2 expiries", Bounds { expiries: 2, ..WIDE }),
    ("3 x 3 x 2, 1 expiry, 1 trouble", Bounds { troubles: 1, ..WIDE }),
    (
        "3 x 3 x 1, 1 expiry, 1 trouble, in two steps",
        Bounds { two_steps: true, partitions: 1, troubles: 1, ..WIDE },
    ),
    (
        "3 x 2 x 2, 2 expiries, 1 trouble",
        Bounds { workers: 3, partitions: 2, expiries: 2, ..ORDERED },
    ),
    ("2 x 2 x 1, 2 expiries, 2 troubles", Bounds { expiries: 2, troubles: 2, ..ORDERED }),
];

pub const LARGE_WITHOUT_ORDER: &[Size] = &[
    (
        "3 x 3 x 2, 2 expiries, no early xids",
        without_order(Bounds { early_xids: false, expiries: 2, ..WIDE }),
    ),
    ("3 x 3 x 2, 1 expiry", without_order(WIDE)),
    ("3 x 3 x 1, 2 expiries", without_order(Bounds { partitions: 1, expiries: 2, ..WIDE })),
    (
        "3 x 3 x 1, 1 expiry, 1 trouble",
        without_order(Bounds { partitions: 1, troubles: 1, ..WIDE }),
    ),
    (
        "2 x 2 x 1, 2 expiries, 1 trouble, in two steps",
        without_order(Bounds { two_steps: true, expiries: 2, ..ORDERED }),
    ),
];

/// With each trouble by itself: together they are too many states.
pub const LARGEST: &[Size] = &[
    ("3 x 3 x 2, 2 expiries, a failure", largest(&[Trouble::Fail])),
    ("3 x 3 x 2, 2 expiries, a seek", largest(&[Trouble::SeekStart])),
    ("3 x 3 x 2, 2 expiries, an extension", largest(&[Trouble::Extend])),
    ("3 x 3 x 2, 2 expiries, a crash", largest(&[Trouble::Crash])),
];

const fn largest(kinds: &'static [Trouble]) -> Bounds {
    Bounds { expiries: 2, troubles: 1, kinds, ..WIDE }
}
