//! The last segment of each partition: which partitions has a queue, and does one of them have
//! anything beyond a cursor?

use super::{CREATED_AT, ID, IN_ORDER, PARTITION, XID};
use crate::pg::clock::{At, Moment};
use crate::pg::columns::Columns;
use crate::pg::key::Value;
use crate::pg::scan::{ScanEnd, Tuple};
use crate::pg::snapshot::ActiveSnapshot;
use crate::store::unsigned;

/// The last segment of a partition.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LastSegment {
    pub id: u64,
    /// The transaction that has written it.
    pub xid: u64,
    pub created_at: Moment,
}

impl LastSegment {
    fn read(row: &Tuple) -> Self {
        let (id, xid) = (unsigned(row.need(ID)), unsigned(row.need(XID)));
        Self { id, xid, created_at: row.need::<At>(CREATED_AT).0 }
    }
}

/// The partitions of a queue that hold a visible segment, each with its last one. Costs two steps
/// for each, from the end at which no row dies.
pub fn last_segments(queue: i64, under: &ActiveSnapshot) -> Vec<(String, LastSegment)> {
    let mut found = Vec::new();
    IN_ORDER.last_of_each(Value::Int(queue), PARTITION, under, |partition, row| {
        found.push((partition.to_owned(), LastSegment::read(row)));
    });
    found
}

/// The last visible segment of a partition.
pub fn last_of(queue: i64, partition: &str, under: &ActiveSnapshot) -> Option<LastSegment> {
    let key = [Value::Int(queue), Value::Text(partition)];
    IN_ORDER.end(&key, ScanEnd::End, under, LastSegment::read)
}
