//! `queen_mq.installation` and `queen_mq.identity`: transaction ids across a restore.
//!
//! A dump carries the transaction ids of the cluster it was taken from; where it is restored, real
//! ones may be lower. So the tables store the real id plus an offset. A row that another
//! installation wrote tells that a dump has been restored. The first call that finds one sets the
//! offset so that new ids exceed every stored one. It does that under a lock on
//! `queen_mq.identity`, for which other calls wait this one time. The first call does so as well
//! where stored ids exceed the next one for another reason: a clone that ran ahead was dumped and
//! loaded back into the tables of its original, or an administrator has set the cluster's counter
//! back.
//!
//! The cluster's system identifier would tell neither: pg_upgrade changes it and keeps the
//! transaction ids, and a clone has that of its original and counts by itself.

use std::cell::Cell;

use pgrx::pg_sys;

use super::{discovery, group, segment, tally};
use super::{signed, unsigned};
use crate::error::{Error, Result};
use crate::pg::clock::{self, At, Moment};
use crate::pg::scan::{ScanEnd, Tuple};
use crate::pg::session_cache::SessionCache;
use crate::pg::spi::{ActiveSnapshot, Arg, Columns, Statement, arg};
use crate::pg::table::{Column, Index, table};
use crate::pg::{catalogue, changes};

/// How transaction ids are stored.
#[derive(Clone, Copy, Debug)]
pub struct Identity {
    pub xid_offset: u64,
    /// Leases given before this moment count as expired.
    pub void_before: Moment,
}

/// The distance between the ids of a dump and new ones: more than any cluster could have had
/// running. The search for the highest id leaves out holes of cursors. A hole above the new ids
/// does no harm: a message that is pushed now has a higher segment id than any position, so it is
/// read in order of id, whatever its transaction, and the holes of that read's snapshot replace the
/// old ones.
const GAP: u64 = 1 << 32;
/// No cluster gets this far: the extension did not store an id above it.
const HIGHEST_LEGAL: u64 = 1 << 61;

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

static OWN_NUMBER: Index =
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
static ADOPT: Statement = Statement::new(
    "INSERT INTO queen_mq.identity (installation, xid_offset, restored_at) VALUES ($1, $2, $3)",
    &[pg_sys::INT8OID, pg_sys::INT8OID, pg_sys::TIMESTAMPTZOID],
);
static ADOPT_QUEUES: Statement = Statement::new(
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

/// Number of queues that a session remembers to have checked. Large: the worker visits all of them
/// again and again.
const CHECKED: usize = 1 << 16;

thread_local! {
    /// This installation's number, with the count of changes before it was read.
    static OWN: Cell<Option<(u64, i64)>> = const { Cell::new(None) };
    /// By queue: the installation and the offset that it was checked with.
    static KNOWN_GOOD: SessionCache<i64, (i64, u64)> = SessionCache::of(CHECKED);
    /// A next transaction id that the session has read. The real one is not lower.
    static NEXT: Cell<u64> = const { Cell::new(0) };
}

/// The identity in force. Everything that reads or writes transaction ids asks first.
pub fn current() -> Result<Identity> {
    match in_force() {
        Some(identity) => Ok(identity),
        None => adopt(Reason::Foreign),
    }
}

/// This installation's number. It changes only with DROP and CREATE EXTENSION. Every session hears
/// of these, also of a CREATE EXTENSION that is rolled back.
fn own() -> i64 {
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

/// The identity in force, where a queue was found that another installation wrote.
pub(super) fn adopt_foreign() -> Result<Identity> {
    adopt(Reason::Foreign)
}

/// The identity in force, where a stored id was found that exceeds the next one.
pub fn adopt_beyond() -> Result<Identity> {
    adopt(Reason::Beyond)
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

    /// Whether `stored` exceeds the next transaction id. Nothing that was stored under this
    /// identity does.
    pub fn is_behind(self, stored: u64) -> bool {
        let exceeds = |next: u64| stored > next.saturating_add(self.xid_offset);
        exceeds(NEXT.get()) && exceeds(read_next())
    }

    /// This identity, if it was right for the queue when the session first used it: from then on
    /// new ids exceed those that are stored. Otherwise the identity that is right, from now on.
    pub(super) fn checked(self, queue: i64, name: &str, under: &ActiveSnapshot) -> Result<Self> {
        let with = (own(), self.xid_offset);
        if KNOWN_GOOD.with(|known| known.change(&queue, |before| *before == with)) == Some(true) {
            return Ok(self);
        }
        let in_log = segment::newest_xid(queue).unwrap_or(0);
        let counted = tally::newest(queue, under)?.1.reached();
        if self.is_behind(in_log.max(counted).max(group::newest_start(name, under)?)) {
            return adopt(Reason::Beyond);
        }
        KNOWN_GOOD.with(|known| known.keep(queue, with));
        Ok(self)
    }
}

fn read_next() -> u64 {
    // SAFETY: reads the next transaction id.
    let next = unsafe { pg_sys::ReadNextFullTransactionId().value };
    NEXT.set(next);
    next
}

/// What this installation's rows say; None if there are rows of others, or none at all.
fn in_force() -> Option<Identity> {
    let row = IN_FORCE.run(&[arg(own())]).first()?;
    let has_others = row.get::<bool>(c"has_others")?;
    (!has_others).then(|| Identity::of(&row, XID_OFFSET, RESTORED_AT))
}

/// Why the identity is to be set anew.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Reason {
    /// The tables hold rows that another installation wrote.
    Foreign,
    /// Stored ids exceed the next one.
    Beyond,
}

impl Reason {
    /// The identity in force, if another session has set it already; None if this one has to.
    fn is_gone(self) -> Result<Option<Identity>> {
        let Some(identity) = in_force() else { return Ok(None) };
        let [own, offset, _] = identity.args();
        let is_done = STRAY_QUEUE.run(&[own, offset]).affected() == 0
            && (self == Reason::Foreign || !identity.is_behind(highest()?));
        Ok(is_done.then_some(identity))
    }
}

/// Set the identity so that new transaction ids exceed every stored one, and no lease is alive. The
/// lock is kept to the end of the transaction, unless another session has set the identity in the
/// meantime. In REPEATABLE READ that is 40001, because that session has replaced the row.
fn adopt(reason: Reason) -> Result<Identity> {
    // SAFETY: a plain global of the backend.
    if unsafe { pg_sys::XactReadOnly } {
        return provisional();
    }
    let table = catalogue::oid_of(IDENTITIES.name);
    let lock = pg_sys::ShareRowExclusiveLock as i32;
    // SAFETY: waits for the lock; an ERROR leaves it to the end of the transaction.
    unsafe { pg_sys::LockRelationOid(table, lock) };
    if let Some(identity) = reason.is_gone()? {
        // SAFETY: nothing was done under the lock taken above.
        unsafe { pg_sys::UnlockRelationOid(table, lock) };
        return Ok(identity);
    }
    let identity = above_all()?;
    let [own, offset, at] = identity.args();
    CLEAR.run(&[]);
    ADOPT.run(&[own, offset, at]);
    catalogue::announce();
    ADOPT_QUEUES.run(&[own, offset, at]);
    // Their deadlines are void: make them due, so that the search comes by.
    for statement in &END_LEASES {
        statement.run(&[arg(At(identity.void_before))]);
    }
    Ok(identity)
}

/// The identity that the next transaction that writes would set, for a standby or a READ ONLY
/// transaction. Views use it; the session does not remember it.
fn provisional() -> Result<Identity> {
    changes::count_one();
    above_all()
}

/// An identity under which new transaction ids exceed every stored one. The offset never falls.
fn above_all() -> Result<Identity> {
    let before = IN_FORCE.run(&[arg(own())]).first().and_then(|row| row.get::<i64>(XID_OFFSET));
    let needed = (highest()? + GAP).saturating_sub(read_next());
    let xid_offset = needed.max(before.map_or(0, unsigned));
    Ok(Identity { xid_offset, void_before: clock::now() })
}

/// The highest transaction id that is stored.
fn highest() -> Result<u64> {
    let rows = HIGHEST.run(&[]).first().and_then(|row| row.only()).map_or(0, unsigned);
    let states = [discovery::highest_xid()?, tally::highest_xid()?, group::highest_xid()?];
    match states.into_iter().fold(rows, u64::max) {
        highest if highest < HIGHEST_LEGAL => Ok(highest),
        highest => Err(Error::corrupt(format!("{highest} is stored as a transaction id"))),
    }
}
