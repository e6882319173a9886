//! `queen_mq.receipt`: the traces of ended leases.

use pgrx::datum::Uuid;
use pgrx::pg_sys;
use queen_engine::codec::encode;
use queen_engine::lease::LeaseId;
use queen_engine::receipt::Receipt;

use super::clock::{At, HOUR, Moment};
use super::spi::{Statement, arg};
use super::{decode, signed};
use crate::error::Result;

/// A receipt answers a repeated ack for at least this long.
const KEPT: i64 = HOUR;

static INSERT: Statement = Statement::new(
    "INSERT INTO queen_mq.receipt (cursor_id, lease_id, ended_at, body) VALUES ($1, $2, $3, $4)",
    &[pg_sys::INT8OID, pg_sys::UUIDOID, pg_sys::TIMESTAMPTZOID, pg_sys::BYTEAOID],
);
static FIND: Statement = Statement::new(
    "SELECT body FROM queen_mq.receipt WHERE cursor_id = $1 AND lease_id = $2",
    &[pg_sys::INT8OID, pg_sys::UUIDOID],
);

// Leases are given in the order of their ids. The lower bound keeps the scan away from the end of
// the index where rows die; what is older on a cursor that went quiet is the sweep's.
static PRUNE: Statement = Statement::new(
    "DELETE FROM queen_mq.receipt WHERE ctid = ANY (ARRAY(
         SELECT ctid FROM queen_mq.receipt
         WHERE cursor_id = $1 AND lease_id >= $2 AND lease_id < $3 AND ended_at < $4
         ORDER BY lease_id LIMIT 128))",
    &[pg_sys::INT8OID, pg_sys::UUIDOID, pg_sys::UUIDOID, pg_sys::TIMESTAMPTZOID],
);

/// Remove receipts of the cursor, whose lock the caller holds, that have served their time.
pub fn prune(cursor: u64, now: Moment) {
    let bound = |moment| arg(Uuid::from_bytes(LeaseId::earliest(moment).0));
    let until = now - KEPT;
    PRUNE.run(&[arg(signed(cursor)), bound(until - 2 * KEPT), bound(until), arg(At(until))]);
}

pub fn insert(cursor: u64, lease: LeaseId, receipt: &Receipt, now: Moment) {
    INSERT.run(&[
        arg(signed(cursor)),
        arg(Uuid::from_bytes(lease.0)),
        arg(At(now)),
        arg(encode(receipt)),
    ]);
}

pub fn find(cursor: u64, lease: LeaseId) -> Result<Option<Receipt>> {
    let row = FIND.run(&[arg(signed(cursor)), arg(Uuid::from_bytes(lease.0))]).first();
    row.map(|row| decode(&row.need::<Vec<u8>>(1), "the receipt of a lease")).transpose()
}
