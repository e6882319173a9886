//! The rules of the protocol. Each is a function of the engine, or one line of what the extension
//! does around it. A mutation swaps one of them.

use queen_engine::cursor::{Cursor, Readiness, Start};
use queen_engine::holes::Snapshot;
use queen_engine::lease::LeaseId;
use queen_engine::message::MessageId;
use queen_engine::pop::{FoundSegment, Pop, Popped, Read};
use queen_engine::receipt::{EndedLease, Receipt};
use queen_engine::settle::{Named, Policy, Refusal, Settlement, extend, settle};

use super::log::Seen;

/// No lease came from another cluster.
pub const FOREVER: i64 = i64::MIN;

/// What a pop asks for.
pub struct Wish<'a> {
    pub snapshot: &'a Snapshot,
    pub wanted: usize,
    pub max_deliveries: Option<u32>,
    /// The lease to be given, and for how long.
    pub lease: (LeaseId, i64),
    pub now: i64,
}

/// Reads so many segments at most.
pub type ReadLog<'a> = &'a dyn Fn(&Read, usize) -> Vec<FoundSegment>;

/// Who settles or extends: the state, the lease, its receipt.
pub type Holder<'a> = (&'a Cursor, LeaseId, Option<&'a Receipt>);

/// The next state, and the new deadline.
pub type Extended = Result<(Cursor, i64), Refusal>;

#[derive(Clone, Copy)]
pub struct Rules {
    /// A transaction gets its xid before it draws the id of a segment.
    pub xid_first: bool,
    /// The snapshot of a pop that looked then and writes now.
    pub snapshot: fn(&Seen, &Seen) -> Snapshot,
    pub readiness: fn(&Cursor, i64) -> Readiness,
    pub pop: fn(Cursor, &Wish<'_>, ReadLog<'_>) -> Option<Popped>,
    /// Whether a pop may write: the state that it has looked at is the newest.
    pub may_write: fn(bool) -> bool,
    /// Whether a pop may claim a message: there is a claim; the partition's cursor has settled it.
    pub may_claim: fn(bool, bool) -> bool,
    /// The claim of a message that is delivered for the first time.
    pub claimed: fn(MessageId, i64, (LeaseId, i64)) -> Cursor,
    /// Pop a message that has come back, by its claim.
    pub pop_claim: fn(Cursor, &Wish<'_>) -> Option<Popped>,
    pub settle: fn(Holder<'_>, &Named, &Policy, i64) -> Result<Settlement, Refusal>,
    /// The receipt that is kept of a lease that has ended.
    pub receipt: fn(Receipt) -> Option<Receipt>,
    pub extend: fn(Holder<'_>, i64, i64) -> Extended,
    pub reclaim: fn(&mut Cursor, i64) -> Vec<EndedLease>,
    pub seek: fn(&Cursor, Start) -> (Cursor, Vec<EndedLease>),
    /// Whether the folding cursor may pass a message: there is a claim.
    pub may_pass: fn(bool) -> bool,
    /// Whether the folding may remove a claim behind the cursor.
    pub may_remove: fn(&Cursor) -> bool,
    /// The commit of a settlement waits for the disk.
    pub settlement_is_flushed: bool,
}

impl Rules {
    /// The rules as they are.
    pub const REAL: Self = Self {
        xid_first: true,
        snapshot: |then, _| described(then),
        readiness: |cursor, now| cursor.readiness(now, FOREVER),
        pop,
        may_write: |is_newest| is_newest,
        may_claim: |is_claimed, is_settled| !is_claimed && !is_settled,
        claimed: |message, now, (lease, duration)| {
            Cursor::claimed(message, now, Some((lease, now + duration)))
        },
        pop_claim,
        settle: |(cursor, lease, receipt), named, policy, now| {
            settle(cursor, lease, receipt, named, policy, now, FOREVER)
        },
        receipt: Some,
        extend: |(cursor, lease, receipt), duration, now| {
            extend(cursor, lease, receipt, Some(duration), now, FOREVER)
        },
        reclaim: |cursor, now| cursor.reclaim(now, FOREVER),
        seek: Cursor::moved_to,
        may_pass: |has_claim| has_claim,
        may_remove: |claim| claim.open() == 0,
        settlement_is_flushed: true,
    };
}

/// The engine's snapshot of what PostgreSQL tells.
pub fn described(seen: &Seen) -> Snapshot {
    Snapshot::new(&seen.running, seen.xmax, seen.next, None)
}

/// A pop from a cursor, as the extension drives it.
pub fn pop(cursor: Cursor, wish: &Wish<'_>, read_log: ReadLog<'_>) -> Option<Popped> {
    let mut pop = Pop::begin(cursor, wish.snapshot, wish.wanted, wish.max_deliveries);
    while let Some(read) = pop.next_read() {
        let limit = pop.missing();
        let found = read_log(&read, limit);
        pop.supply(&read, &found, found.len() < limit);
    }
    pop.finish(Some(wish.lease), wish.now)
}

/// A pop of what has come back to a claim, as the extension drives it.
pub fn pop_claim(claim: Cursor, wish: &Wish<'_>) -> Option<Popped> {
    let mut pop = Pop::begin(claim, wish.snapshot, 1, wish.max_deliveries);
    pop.stop();
    pop.finish(Some(wish.lease), wish.now)
}
