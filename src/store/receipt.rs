//! `queen_mq.receipt`: what ended leases settled, so that a repeated or a late ack is answered
//! rightly.

use std::ops::ControlFlow;

use pgrx::datum::Uuid;
use queen_engine::codec::encode;
use queen_engine::lease::LeaseId;
use queen_engine::receipt::Receipt;

use super::located::Located;
use super::{decode, signed};
use crate::error::Result;
use crate::pg::clock::{At, HOUR, Moment};
use crate::pg::columns::{Columns, arg};
use crate::pg::key::{Key, Value};
use crate::pg::scan::{ScanEnd, Tuple};
use crate::pg::snapshot::ActiveSnapshot;
use crate::pg::table::{Index, table};

table! {
    RECEIPTS = c"receipt";
    CURSOR_ID: c"cursor_id" INT8OID,
    LEASE_ID: c"lease_id" UUIDOID,
    ENDED_AT: c"ended_at" TIMESTAMPTZOID,
    BODY: c"body" BYTEAOID,
    GROUP_ID: c"group_id" INT8OID,
    PARTITION: c"partition" TEXTOID,
}

/// A receipt answers a repeated ack for at least this long.
const KEPT: i64 = HOUR;

pub(super) static BY_LEASE: Index =
    Index { table: &RECEIPTS, name: c"receipt_once", columns: &[CURSOR_ID, LEASE_ID] };

// The time is part of a lease id, so ids grow with it, until those bits wrap around. The bounds
// keep the scan away from the end of the index where rows die. Older receipts, of a cursor that
// went quiet, are left to the sweep. What is deleted is decided by the moment that each row stores.

/// How many receipts are looked at at a time.
const PRUNED: usize = 128;

/// Delete receipts of the cursor that are older than [`KEPT`]. The caller holds the cursor's lock.
pub fn prune(cursor: u64, now: Moment) {
    let until = now - KEPT;
    for (first, last) in LeaseId::given_between(until - 2 * KEPT, until) {
        let keys = [
            (CURSOR_ID, Key::Is(Value::Int(signed(cursor)))),
            (LEASE_ID, Key::Above(Value::Uuid(&first.0))),
            (LEASE_ID, Key::UpTo(Value::Uuid(&last.0))),
        ];
        let mut left = PRUNED;
        let choose = |row: &Tuple| {
            left -= 1;
            let is_old = row.need::<At>(ENDED_AT).0 < until;
            if left > 0 {
                ControlFlow::Continue(is_old.then_some(()))
            } else {
                ControlFlow::Break(())
            }
        };
        ActiveSnapshot::fresh(|under| BY_LEASE.delete(&keys, under, choose));
    }
}

/// Write the receipt of a lease on a cursor or a claim.
pub fn insert(at: &Located, lease: LeaseId, receipt: &Receipt, now: Moment) {
    let is_claim = at.message.is_some();
    RECEIPTS.insert(&[
        (CURSOR_ID, arg(signed(at.id))),
        (LEASE_ID, arg(Uuid::from_bytes(lease.0))),
        (ENDED_AT, arg(At(now))),
        (BODY, arg(encode(receipt))),
        (GROUP_ID, is_claim.then(|| arg(at.group)).flatten()),
        (PARTITION, is_claim.then(|| arg(at.partition.as_str())).flatten()),
    ]);
}

/// The receipt of a lease on this cursor or claim.
pub fn find(cursor: u64, lease: LeaseId, under: &ActiveSnapshot) -> Result<Option<Receipt>> {
    let key = [Value::Int(signed(cursor)), Value::Uuid(&lease.0)];
    BY_LEASE
        .end(&key, ScanEnd::Start, under, |row| {
            decode(&row.need::<Vec<u8>>(BODY), &RECEIPTS, "the receipt of a lease")
        })
        .transpose()
}

/// The receipt of a lease on a claim that is gone, with the claim's group and partition. It is read
/// as it is at this moment, because the claim may have gone after the transaction took its
/// snapshot.
pub fn find_of_claim(claim: u64, lease: LeaseId) -> Result<Option<(i64, String, Receipt)>> {
    let key = [Value::Int(signed(claim)), Value::Uuid(&lease.0)];
    ActiveSnapshot::latest_snapshot(|under| {
        let read = |row: &Tuple| {
            let (group, partition) = row.get(GROUP_ID).zip(row.get(PARTITION))?;
            let receipt = decode(&row.need::<Vec<u8>>(BODY), &RECEIPTS, "the receipt of a lease");
            Some(receipt.map(|receipt| (group, partition, receipt)))
        };
        BY_LEASE.end(&key, ScanEnd::Start, under, read).flatten().transpose()
    })
}
