//! `queen_mq.lease_set`: the cursors, or the claims, of leases that cover more than one.

use pgrx::datum::Uuid;
use pgrx::pg_sys;
use queen_engine::lease::LeaseId;
use queen_engine::message::MessageId;

use super::{signed, unsigned};
use crate::error::{Error, Result};
use crate::pg::clock::{At, Moment};
use crate::pg::columns::{Columns, arg};
use crate::pg::sequence;
use crate::pg::snapshot::{ActiveSnapshot, one_snapshot_per_transaction};
use crate::pg::spi::{SqlRow, Statement};
use crate::pg::table::table;

table! {
    LEASE_SETS = c"lease_set";
    ID: c"id" INT8OID,
    LEASE_ID: c"lease_id" UUIDOID,
    CURSOR_IDS: c"cursor_ids" INT8ARRAYOID,
    MESSAGE_IDS: c"message_ids" INT8ARRAYOID,
    CREATED_AT: c"created_at" TIMESTAMPTZOID,
    REVISIONS: c"revisions" INT8ARRAYOID,
}

static FIND: Statement = Statement::new(
    "SELECT c.cursor_id, c.message_id, c.revision FROM queen_mq.lease_set s,
         unnest(s.cursor_ids, s.message_ids, s.revisions) AS c(cursor_id, message_id, revision)
     WHERE s.id = $1 AND s.lease_id = $2",
    &[pg_sys::INT8OID, pg_sys::UUIDOID],
);

/// An id for a set that is inserted later, when the pop knows its cursors.
pub fn draw_id() -> u64 {
    unsigned(sequence::draw(c"lease_set_id_seq"))
}

/// What a lease covers: a cursor or a claim.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Covered {
    pub id: u64,
    /// Of a claim in a set.
    pub message: Option<MessageId>,
    /// The revision that gave the lease; 0: the row of the claim does. None where only the lease id
    /// tells it.
    pub given_by: Option<i64>,
}

/// Write the set of a lease.
pub fn insert(id: u64, lease: LeaseId, mut covered: Vec<Covered>, now: Moment) {
    covered.sort_unstable();
    let cursors: Vec<i64> = covered.iter().map(|covered| signed(covered.id)).collect();
    let messages: Option<Vec<i64>> =
        covered.iter().map(|covered| covered.message.map(MessageId::to_sql)).collect();
    let revisions: Vec<i64> = covered.iter().map(|covered| covered.given_by.unwrap_or(0)).collect();
    let are_first = revisions.iter().all(|revision| *revision == 0);
    LEASE_SETS.insert(&[
        (ID, arg(signed(id))),
        (LEASE_ID, arg(Uuid::from_bytes(lease.0))),
        (CURSOR_IDS, arg(cursors)),
        (MESSAGE_IDS, messages.and_then(arg)),
        (CREATED_AT, arg(At(now))),
        (REVISIONS, (!are_first).then(|| arg(revisions)).flatten()),
    ]);
}

/// What the set of `lease` covers, ascending; nothing if there is no such set. In REPEATABLE READ,
/// a set that was written after the transaction took its snapshot is an error.
pub fn covered(id: u64, lease: LeaseId) -> Result<Vec<Covered>> {
    let read = |row: SqlRow| {
        let message = row.get::<i64>(c"message_id").map(MessageId::from_sql);
        let given_by = Some(row.get(c"revision").unwrap_or(0));
        Covered { id: unsigned(row.need(c"cursor_id")), message, given_by }
    };
    let find = |under: &ActiveSnapshot| {
        let set = [arg(signed(id)), arg(Uuid::from_bytes(lease.0))];
        Ok(FIND.read(&set, under).map(read).collect())
    };
    let found: Vec<Covered> = ActiveSnapshot::new_snapshot(find)?;
    if found.is_empty() && one_snapshot_per_transaction() {
        let latest: Vec<Covered> = ActiveSnapshot::latest_snapshot(find)?;
        if !latest.is_empty() {
            return Err(Error::conflict(&format!("Lease {lease}")));
        }
    }
    Ok(found)
}
