//! What a call needs to know before it can begin, in one statement: a pop and an ack are a handful
//! of look-ups each, and running a statement costs more than the look-up.

use pgrx::pg_sys;
use queen_engine::cursor::Start;
use queen_engine::discovery::Discovery;

use super::cursor::{self, Located, newest};
use super::group::{self, Group};
use super::identity::{self, Identity};
use super::queue::columns;
use super::queue::{self, Queue};
use super::spi::{Statement, arg};
use super::{discovery, signed, unsigned};
use crate::error::Result;

macro_rules! identity {
    ($own:literal) => {
        concat!(
            "(SELECT system_identifier, xid_offset, restored_at FROM queen_mq.identity
              ORDER BY generation DESC, system_identifier = ",
            $own,
            " LIMIT 1) AS i"
        )
    };
}

static FOR_POP: Statement = Statement::new(
    concat!(
        "SELECT i.system_identifier, i.xid_offset, i.restored_at, ",
        columns!(),
        ", g.id, g.registered_at, g.start_at, g.start, d.revision, d.state
         FROM ",
        identity!("$3"),
        " LEFT JOIN queen_mq.queue q ON q.name = $1
          LEFT JOIN queen_mq.consumer_group g ON g.queue = $1 AND g.name = $2
          LEFT JOIN LATERAL (SELECT revision, state FROM queen_mq.discovery
                             WHERE group_id = g.id ORDER BY revision DESC LIMIT 1) AS d ON true"
    ),
    &[pg_sys::TEXTOID, pg_sys::TEXTOID, pg_sys::INT8OID],
);

/// What there is of a queue and a group.
pub struct ForPop {
    pub identity: Identity,
    pub queue: Option<Queue>,
    pub group: Option<Group>,
    /// How far the group has looked, and the revision of that.
    pub discovery: (i64, Discovery),
}

pub fn for_pop(queue: &str, group: &str) -> Result<ForPop> {
    const GROUP: usize = 4 + queue::COLUMNS;
    let row = FOR_POP.run(&[arg(queue), arg(group), arg(identity::own())]).first();
    let known = row.as_ref().and_then(identity::read);
    let identity = known.map_or_else(identity::current, Ok)?;
    let Some(row) = row else {
        return Ok(ForPop { identity, queue: None, group: None, discovery: Default::default() });
    };
    let is_registered = row.datum(GROUP).is_some();
    let discovery = match row.get::<i64>(GROUP + 4) {
        Some(revision) => (revision, discovery::read(row.need(GROUP + 5))?),
        None => Default::default(),
    };
    Ok(ForPop {
        identity,
        queue: queue::read(&row, 4),
        group: is_registered.then(|| group::read(&row, GROUP)).transpose()?,
        discovery,
    })
}

static FOR_PUSH: Statement = Statement::new(
    concat!(
        "SELECT i.system_identifier, i.xid_offset, i.restored_at, ",
        columns!(),
        " FROM ",
        identity!("$2"),
        " LEFT JOIN queen_mq.queue q ON q.name = $1"
    ),
    &[pg_sys::TEXTOID, pg_sys::INT8OID],
);

/// The queue of this name, if there is one.
pub fn for_push(queue: &str) -> Result<(Identity, Option<Queue>)> {
    let row = FOR_PUSH.run(&[arg(queue), arg(identity::own())]).first();
    let known = row.as_ref().and_then(identity::read);
    let identity = known.map_or_else(identity::current, Ok)?;
    Ok((identity, row.and_then(|row| queue::read(&row, 4))))
}

static FOR_SETTLE: Statement = Statement::new(
    concat!(
        "SELECT i.system_identifier, i.xid_offset, i.restored_at, ",
        columns!(),
        ", c.id, c.group_id, c.partition, p.revision, p.state
         FROM ",
        identity!("$2"),
        " CROSS JOIN LATERAL (SELECT id, group_id, partition FROM queen_mq.cursor
                              WHERE id = ANY ($1)) AS c
          LEFT JOIN queen_mq.consumer_group g ON g.id = c.group_id
          LEFT JOIN queen_mq.queue q ON q.name = g.queue ",
        newest!(),
        " ORDER BY c.id"
    ),
    &[pg_sys::INT8ARRAYOID, pg_sys::INT8OID],
);

/// Cursors of one group, ascending, with their newest states and their queue.
pub struct ForSettle {
    pub identity: Identity,
    pub queue: Queue,
    pub located: Vec<Located>,
}

/// None where the cursors, or their queue, are not there any more. The caller has them locked.
pub fn for_settle(cursors: &[u64]) -> Result<Option<ForSettle>> {
    const CURSOR: usize = 4 + queue::COLUMNS;
    let ids: Vec<i64> = cursors.iter().copied().map(signed).collect();
    let mut found = None;
    let mut located = Vec::with_capacity(cursors.len());
    for row in FOR_SETTLE.run(&[arg(ids), arg(identity::own())]) {
        let at = Located {
            id: unsigned(row.need(CURSOR)),
            group: row.need(CURSOR + 1),
            partition: row.need(CURSOR + 2),
            revision: row.get(CURSOR + 3).unwrap_or(0),
            cursor: cursor::state(&row, CURSOR + 4, &Start::default())?,
        };
        cursor::refuse_stale(at.id, at.revision)?;
        located.push(at);
        if found.is_none() {
            found = Some((identity::read(&row), queue::read(&row, 4)));
        }
    }
    let Some((identity, Some(queue))) = found else { return Ok(None) };
    let identity = identity.map_or_else(identity::current, Ok)?;
    Ok(Some(ForSettle { identity, queue, located }))
}
