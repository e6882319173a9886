//! `queen_mq.identity`: transaction ids across a restore.
//!
//! A dump carries the transaction ids of the cluster it was taken from; where it is restored, real
//! ones start anew and lower. So what is stored is the real id plus an offset. When the newest row
//! was written by another cluster, the first function that comes along sets the offset so that new
//! ids exceed every stored one, under a lock that others wait for this one time.

use pgrx::pg_sys;

use super::catalogue;
use super::clock::{self, At, Moment};
use super::spi::{Arg, Columns, Statement, arg};
use super::{discovery, group, tally};
use super::{signed, unsigned};
use crate::error::Result;

/// How this cluster's transaction ids are stored.
#[derive(Clone, Copy, Debug)]
pub struct Identity {
    pub xid_offset: u64,
    /// Leases given before this moment count as expired.
    pub void_before: Moment,
}

/// Between what a dump brought and what is written after it: more than any cluster could have had
/// running, so that ids remembered as holes lie below too.
const GAP: u64 = 1 << 32;

static NEWEST: Statement = Statement::new(
    "SELECT system_identifier, xid_offset, restored_at, generation FROM queen_mq.identity
     ORDER BY generation DESC, system_identifier = $1 LIMIT 1",
    &[pg_sys::INT8OID],
);
static LOCK: Statement =
    Statement::new("LOCK TABLE queen_mq.identity IN SHARE ROW EXCLUSIVE MODE", &[]);
static HIGHEST: Statement = Statement::new(
    "SELECT greatest((SELECT max(xid) FROM queen_mq.segment),
                     (SELECT max(announced_xid) FROM queen_mq.progress), 0)",
    &[],
);
static ADOPT: Statement = Statement::new(
    "INSERT INTO queen_mq.identity (system_identifier, generation, xid_offset, restored_at)
     VALUES ($1, $2, $3, $4)",
    &[pg_sys::INT8OID, pg_sys::INT4OID, pg_sys::INT8OID, pg_sys::TIMESTAMPTZOID],
);
static ADOPT_QUEUES: Statement = Statement::new(
    "UPDATE queen_mq.queue SET system_identifier = $1, xid_offset = $2, restored_at = $3",
    &[pg_sys::INT8OID, pg_sys::INT8OID, pg_sys::TIMESTAMPTZOID],
);
static FOREIGN_QUEUE: Statement = Statement::new(
    "SELECT FROM queen_mq.queue WHERE system_identifier <> $1 LIMIT 1",
    &[pg_sys::INT8OID],
);
static END_LEASES: [Statement; 2] = [
    Statement::new(
        "UPDATE queen_mq.progress SET due_at = $1 WHERE due_at > $1 AND announced_xid IS NULL",
        &[pg_sys::TIMESTAMPTZOID],
    ),
    Statement::new(
        "UPDATE queen_mq.claim SET deadline = $1 WHERE deadline > $1",
        &[pg_sys::TIMESTAMPTZOID],
    ),
];

/// The identity in force. Everything that reads or writes transaction ids asks first.
pub fn current() -> Result<Identity> {
    match newest() {
        (Some(identity), _) => Ok(identity),
        (None, _) => rebase(),
    }
}

/// This cluster's own identifier.
pub(super) fn own() -> i64 {
    // SAFETY: reads the control file's copy in shared memory.
    unsafe { pg_sys::GetSystemIdentifier() as i64 }
}

/// Read system_identifier, xid_offset and restored_at from column `first` on; None if another
/// cluster wrote them.
pub(super) fn read(row: &impl Columns, first: usize) -> Option<Identity> {
    (row.get::<i64>(first)? == own()).then(|| Identity {
        xid_offset: unsigned(row.need(first + 1)),
        void_before: row.get::<At>(first + 2).map_or(Moment::MIN, |at| at.0),
    })
}

/// The identity in force, where a queue was found that another cluster wrote.
pub(super) fn of_foreign_queue() -> Result<Identity> {
    rebase()
}

impl Identity {
    /// Transaction ids as they are; no lease is void.
    pub(super) const PLAIN: Self = Self { xid_offset: 0, void_before: Moment::MIN };

    /// As parameters: system_identifier, xid_offset, restored_at.
    pub(super) fn args(self) -> [Arg; 3] {
        let restored_at = (self.void_before != Moment::MIN).then_some(At(self.void_before));
        [arg(own()), arg(signed(self.xid_offset)), restored_at.and_then(arg)]
    }
}

/// The newest row if it is this cluster's, and the highest generation.
fn newest() -> (Option<Identity>, i32) {
    let Some(row) = NEWEST.run(&[arg(own())]).first() else {
        return (None, 0);
    };
    (read(&row, 1), row.need(4))
}

fn rebase() -> Result<Identity> {
    LOCK.run(&[]);
    let (found, generation) = newest();
    if let Some(identity) = found
        && FOREIGN_QUEUE.run(&[arg(own())]).affected() == 0
    {
        return Ok(identity);
    }
    // SAFETY: reads the next transaction id.
    let next = unsafe { pg_sys::ReadNextFullTransactionId().value };
    let stored = HIGHEST.run(&[]).first().map_or(0, |row| unsigned(row.need::<i64>(1)));
    let states = [discovery::highest_xid()?, tally::highest_xid()?, group::highest_xid()?];
    let highest = states.into_iter().fold(stored, u64::max);
    let now = clock::now();
    let identity = Identity { xid_offset: (highest + GAP).saturating_sub(next), void_before: now };
    let [own, offset, at] = identity.args();
    ADOPT.run(&[own, arg(generation + 1), offset, at]);
    catalogue::announce();
    ADOPT_QUEUES.run(&[own, offset, at]);
    // Their deadlines are void: make them due, so that the search comes by.
    for statement in &END_LEASES {
        statement.run(&[arg(At(now))]);
    }
    Ok(identity)
}
