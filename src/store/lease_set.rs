//! `queen_mq.lease_set`: the cursors of leases over several partitions.

use pgrx::pg_sys;

use super::clock::{At, Moment};
use super::spi::{Columns, Statement, Under, arg, one_snapshot_per_transaction};
use super::{signed, table, unsigned};
use crate::error::{Error, Result};

static INSERT: Statement = Statement::new(
    "INSERT INTO queen_mq.lease_set (id, cursor_ids, created_at) OVERRIDING SYSTEM VALUE
     VALUES ($1, $2, $3)",
    &[pg_sys::INT8OID, pg_sys::INT8ARRAYOID, pg_sys::TIMESTAMPTZOID],
);
static FIND: Statement = Statement::new(
    "SELECT unnest(cursor_ids) FROM queen_mq.lease_set WHERE id = $1",
    &[pg_sys::INT8OID],
);

/// The id of a set to be inserted when its cursors are known.
pub fn draw_id() -> u64 {
    unsigned(table::draw(c"lease_set_id_seq"))
}

pub fn insert(id: u64, cursors: &[u64], now: Moment) {
    let mut cursors: Vec<i64> = cursors.iter().copied().map(signed).collect();
    cursors.sort_unstable();
    INSERT.run(&[arg(signed(id)), arg(cursors), arg(At(now))]);
}

/// The cursors of the set, ascending; none where it is not known. In REPEATABLE READ one that was
/// made after the transaction's snapshot is an error.
pub fn cursors(id: u64) -> Result<Vec<u64>> {
    let find = |under: &Under| {
        Ok(FIND.read(&[arg(signed(id))], under).map(|row| unsigned(row.need(1))).collect())
    };
    let found: Vec<u64> = Under::new_snapshot(find)?;
    if found.is_empty() && one_snapshot_per_transaction() {
        let latest: Vec<u64> = Under::latest_snapshot(find)?;
        if !latest.is_empty() {
            return Err(Error::conflict("The lease"));
        }
    }
    Ok(found)
}
