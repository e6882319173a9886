//! `queen_mq.installation` and `queen_mq.identity`: which installation has written the rows of a
//! database, and what it adds to transaction ids before it stores them. `broker::restore` decides
//! when an identity is right, and what the next one is; here it is read and written.

use std::cell::Cell;

use pgrx::pg_sys;

use super::{signed, unsigned};
use crate::error::Error;
use crate::pg::clock::{At, Moment};
use crate::pg::columns::{Arg, Columns, arg};
use crate::pg::scan::{ScanEnd, Tuple};
use crate::pg::snapshot::ActiveSnapshot;
use crate::pg::spi::Statement;
use crate::pg::table::{Column, Index, table};
use crate::pg::{catalogue, changes};

/// How transaction ids are stored.
#[derive(Clone, Copy, Debug)]
pub struct Identity {
    /// A stored transaction id is the cluster's own plus this.
    pub xid_offset: u64,
    /// Leases given before this moment count as expired.
    pub void_before: Moment,
}

table! {
    INSTALLATIONS = c"installation";
    INSTALLATION_ID: c"id" INT8OID,
}

table! {
    IDENTITIES = c"identity";
    INSTALLATION: c"installation" INT8OID,
    XID_OFFSET: c"xid_offset" INT8OID,
    RESTORED_AT: c"restored_at" TIMESTAMPTZOID,
}

pub(super) static OWN_NUMBER: Index =
    Index { table: &INSTALLATIONS, name: c"installation_pkey", columns: &[INSTALLATION_ID] };
// What the rows of this installation say; whether there are others.
static IN_FORCE: Statement = Statement::new(
    "SELECT max(xid_offset) FILTER (WHERE installation = $1) AS xid_offset,
            max(restored_at) FILTER (WHERE installation = $1) AS restored_at,
            bool_or(installation <> $1) AS has_others
     FROM queen_mq.identity",
    &[pg_sys::INT8OID],
);
static STRAY_QUEUE: Statement = Statement::new(
    "SELECT FROM queen_mq.queue WHERE installation <> $1 OR xid_offset <> $2 LIMIT 1",
    &[pg_sys::INT8OID, pg_sys::INT8OID],
);
// One look-up by an index for each queue and each group, however long the log is.
static HIGHEST: Statement = Statement::new(
    "SELECT greatest(
         (SELECT max(newest.xid) FROM queen_mq.queue AS q,
              LATERAL (SELECT max(s.xid) AS xid FROM queen_mq.segment AS s
                       WHERE s.queue_id = q.id) AS newest),
         (SELECT max(newest.xid) FROM queen_mq.consumer_group AS g,
              LATERAL (SELECT max(p.announced_xid) AS xid FROM queen_mq.progress AS p
                       WHERE p.group_id = g.id AND p.announced_xid IS NOT NULL) AS newest),
         (SELECT max(r.xid) FROM queen_mq.replay AS r), 0)",
    &[],
);
static CLEAR: Statement = Statement::new("DELETE FROM queen_mq.identity", &[]);
static INSERT: Statement = Statement::new(
    "INSERT INTO queen_mq.identity (installation, xid_offset, restored_at) VALUES ($1, $2, $3)",
    &[pg_sys::INT8OID, pg_sys::INT8OID, pg_sys::TIMESTAMPTZOID],
);
static UPDATE_QUEUES: Statement = Statement::new(
    "UPDATE queen_mq.queue SET installation = $1, xid_offset = $2, restored_at = $3",
    &[pg_sys::INT8OID, pg_sys::INT8OID, pg_sys::TIMESTAMPTZOID],
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

thread_local! {
    /// This installation's number, with the count of changes before it was read.
    static OWN: Cell<Option<(u64, i64)>> = const { Cell::new(None) };
}

/// This installation's number. It changes only with DROP and CREATE EXTENSION. Every session hears
/// of these, also of a CREATE EXTENSION that is rolled back.
pub fn own() -> i64 {
    let changes = changes::count();
    if let Some((_, own)) = OWN.get().filter(|(before, _)| *before == changes) {
        return own;
    }
    // Also in REPEATABLE READ: the extension may be younger than the snapshot.
    let read = |under: &ActiveSnapshot| {
        Ok(OWN_NUMBER
            .end(&[], ScanEnd::Start, under, |row: &Tuple| row.need::<i64>(INSTALLATION_ID)))
    };
    match ActiveSnapshot::latest_snapshot(read) {
        Ok(Some(own)) => {
            OWN.set(Some((changes, own)));
            own
        }
        _ => Error::corrupt("queen_mq.installation is empty").raise(),
    }
}

/// Read installation, xid_offset and restored_at from these columns; None if another installation
/// wrote them.
pub(super) fn read(row: &impl Columns<Column>, columns: [Column; 3]) -> Option<Identity> {
    let [installation, offset, restored_at] = columns;
    (row.get::<i64>(installation)? == own()).then(|| Identity::of(row, offset, restored_at))
}

impl Identity {
    /// Transaction ids as they are; no lease is void.
    pub(super) const PLAIN: Self = Self { xid_offset: 0, void_before: Moment::MIN };

    fn of(row: &impl Columns<Column>, offset: Column, restored_at: Column) -> Self {
        Self {
            xid_offset: unsigned(row.need(offset)),
            void_before: row.get::<At>(restored_at).map_or(Moment::MIN, |at| at.0),
        }
    }

    /// As parameters: installation, xid_offset, restored_at.
    pub(super) fn args(self) -> [Arg; 3] {
        let restored_at = (self.void_before != Moment::MIN).then_some(At(self.void_before));
        [arg(own()), arg(signed(self.xid_offset)), restored_at.and_then(arg)]
    }
}

/// What this installation's rows say; None if there are rows of others, or none at all.
pub fn in_force() -> Option<Identity> {
    let row = IN_FORCE.run(&[arg(own())]).first()?;
    let has_others = row.get::<bool>(c"has_others")?;
    (!has_others).then(|| Identity::of(&row, XID_OFFSET, RESTORED_AT))
}

/// The offset that this installation's rows say; None if it has no row.
pub fn own_offset() -> Option<u64> {
    let row = IN_FORCE.run(&[arg(own())]).first()?;
    row.get::<i64>(XID_OFFSET).map(unsigned)
}

/// Whether the row of a queue says another installation or another offset.
pub fn has_stray_queue(identity: Identity) -> bool {
    let [own, offset, _] = identity.args();
    STRAY_QUEUE.run(&[own, offset]).affected() > 0
}

/// The lock under which the identity is set: on the table, to the end of the transaction.
pub struct IdentityLock(pg_sys::Oid);

impl IdentityLock {
    const MODE: i32 = pg_sys::ShareRowExclusiveLock as i32;

    /// Take it, waiting for a transaction that holds it.
    pub fn take() -> Self {
        let table = catalogue::oid_of(IDENTITIES.name);
        // SAFETY: waits for the lock; an ERROR leaves it to the end of the transaction.
        unsafe { pg_sys::LockRelationOid(table, Self::MODE) };
        Self(table)
    }

    /// Give it back, where nothing was written under it.
    pub fn give_back(self) {
        // SAFETY: undoes `take`.
        unsafe { pg_sys::UnlockRelationOid(self.0, Self::MODE) };
    }

    /// Write the identity in place of all rows of the table, and to every queue. Leases are void
    /// from now on, so their deadlines are now: a search for work comes by.
    pub fn set(&self, identity: Identity) {
        let [own, offset, at] = identity.args();
        CLEAR.run(&[]);
        INSERT.run(&[own, offset, at]);
        catalogue::announce();
        UPDATE_QUEUES.run(&[own, offset, at]);
        for statement in &END_LEASES {
            statement.run(&[arg(At(identity.void_before))]);
        }
    }
}

/// The next transaction id that the cluster will assign, as it is.
pub fn next_xid() -> u64 {
    // SAFETY: reads shared memory.
    unsafe { pg_sys::ReadNextFullTransactionId().value }
}

/// The highest transaction id in a column of a row: of a segment, an announcement or a replay.
/// States refer to others.
pub fn highest_xid_in_columns() -> u64 {
    HIGHEST.run(&[]).first().and_then(|row| row.only()).map_or(0, unsigned)
}
