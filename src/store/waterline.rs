//! `queen_mq.waterline`: from which xid on transactions have segment ids above which one. A row
//! says of a moment which id the next transaction was to get, and which segment id had been drawn
//! last. It is true for good: a transaction gets its id before it draws segment ids (the push
//! rule).
//!
//! Rows are written with the counts of a queue, some hundred segments apart, and looked up by the
//! floor of the queue's log. Those below the floor are deleted.

use std::ops::ControlFlow;

use pgrx::pg_sys;

use super::{signed, unsigned};
use crate::pg::columns::{Columns, arg};
use crate::pg::key::{Key, Value};
use crate::pg::scan::ScanEnd;
use crate::pg::snapshot::ActiveSnapshot;
use crate::pg::spi::Statement;
use crate::pg::table::{Index, table};

table! {
    WATERLINES = c"waterline";
    QUEUE_ID: c"queue_id" INT8OID,
    XID: c"xid" INT8OID,
    SEGMENT_ID: c"segment_id" INT8OID,
}

pub(super) static BY_XID: Index =
    Index { table: &WATERLINES, name: c"waterline_once", columns: &[QUEUE_ID, XID] };

static NOTE: Statement = Statement::new(
    "INSERT INTO queen_mq.waterline (queue_id, xid, segment_id) VALUES ($1, $2, $3)
     ON CONFLICT ON CONSTRAINT waterline_once DO NOTHING",
    &[pg_sys::INT8OID, pg_sys::INT8OID, pg_sys::INT8OID],
);

/// Note that every transaction from `xid` on has segment ids above `segment`: the last id that was
/// drawn, read before the next xid was.
pub fn note(queue: i64, xid: u64, segment: u64) {
    NOTE.run(&[arg(queue), arg(signed(xid)), arg(signed(segment))]);
}

/// The last waterline of the queue whose xid is not above this one: its xid and its segment id.
pub fn upto(queue: i64, xid: u64, under: &ActiveSnapshot) -> Option<(u64, u64)> {
    let keys = [(QUEUE_ID, Key::Is(Value::Int(queue))), (XID, Key::UpTo(Value::Int(signed(xid))))];
    BY_XID.scan(&keys, ScanEnd::End, under, |row| {
        ControlFlow::Break((unsigned(row.need(XID)), unsigned(row.need(SEGMENT_ID))))
    })
}

static PRUNE: Statement = Statement::new(
    "DELETE FROM queen_mq.waterline WHERE queue_id = $1 AND xid >= $2 AND xid < $3",
    &[pg_sys::INT8OID, pg_sys::INT8OID, pg_sys::INT8OID],
);

/// Delete the queue's waterlines from one xid up to another one. The caller holds the lock `tally`
/// of the queue.
pub fn prune(queue: i64, from: u64, below: u64) {
    if from < below {
        PRUNE.run(&[arg(queue), arg(signed(from)), arg(signed(below))]);
    }
}
