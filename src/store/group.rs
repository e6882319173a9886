//! `queen_mq.consumer_group`.

use pgrx::pg_sys;
use queen_engine::codec::encode;
use queen_engine::cursor::Start;

use super::clock::{At, Moment};
use super::spi::{Columns, Statement, Under, arg};
use super::table::{From, Index, Table, Value};
use super::{advisory, decode};
use crate::error::Result;

/// The name under which queue mode is stored: no group can be called so.
pub const QUEUE_MODE: &str = "";

/// A registered consumer group.
#[derive(Clone, Debug)]
pub struct Group {
    pub id: i64,
    pub registered_at: Moment,
    /// Messages created before this moment are not for this group.
    pub start_at: Option<Moment>,
    pub start: Start,
}

static FIND_ALL: Statement = Statement::new(
    "SELECT id, queue, name, registered_at, start_at, start FROM queen_mq.consumer_group
     WHERE queue = $1",
    &[pg_sys::TEXTOID],
);

/// A row of the table.
fn read(row: &impl Columns) -> Result<Group> {
    Ok(Group {
        id: row.need(1),
        registered_at: row.need::<At>(4).0,
        start_at: row.get::<At>(5).map(|at| at.0),
        start: decode(&row.need::<Vec<u8>>(6), "the start of a consumer group")?,
    })
}

static BY_NAME: Index = Index { table: Table(c"consumer_group"), name: c"consumer_group_once" };
static BY_ID: Index = Index { table: Table(c"consumer_group"), name: c"consumer_group_pkey" };

/// The group of this queue and name, if it is registered.
pub fn find(queue: &str, name: &str, under: &Under) -> Result<Option<Group>> {
    BY_NAME.end(&[Value::Text(queue), Value::Text(name)], From::Start, under, read).transpose()
}

/// The queue's name of the group of this id.
pub fn queue_of(group: i64, under: &Under) -> Option<String> {
    BY_ID.end(&[Value::Int(group)], From::Start, under, |row| row.need(2))
}

static ALL: Statement = Statement::new(
    "SELECT id, queue, name, registered_at, start_at, start FROM queen_mq.consumer_group
     ORDER BY queue, name",
    &[],
);

/// Every group with its queue's name and its own.
pub fn all(under: &Under) -> Result<Vec<(String, String, Group)>> {
    ALL.read(&[], under).map(|row| Ok((row.need(2), row.need(3), read(&row)?))).collect()
}

pub fn of_queue(queue: &str) -> Result<Vec<Group>> {
    FIND_ALL.run(&[arg(queue)]).map(|row| read(&row)).collect()
}

/// What to do about a transaction that is registering the same group.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Patience {
    Wait,
    PassBy,
}

static REGISTER: Statement = Statement::new(
    "INSERT INTO queen_mq.consumer_group (queue, name, registered_at, start_at, start)
     VALUES ($1, $2, $3, $4, $5) ON CONFLICT ON CONSTRAINT consumer_group_once DO NOTHING
     RETURNING id",
    &[
        pg_sys::TEXTOID,
        pg_sys::TEXTOID,
        pg_sys::TIMESTAMPTZOID,
        pg_sys::TIMESTAMPTZOID,
        pg_sys::BYTEAOID,
    ],
);

/// Register the group. None where somebody else has just done so; or, not to wait for them, is
/// about to.
pub fn register(
    queue: &str,
    name: &str,
    now: Moment,
    start_at: Option<Moment>,
    start: Start,
    patience: Patience,
) -> Option<Group> {
    let lock = format!("consumer_group {queue}\n{name}");
    match patience {
        Patience::Wait => advisory::lock(&lock),
        Patience::PassBy if advisory::try_lock(&lock) => (),
        Patience::PassBy => return None,
    }
    let row = REGISTER
        .run(&[
            arg(queue),
            arg(name),
            arg(At(now)),
            start_at.and_then(|at| arg(At(at))),
            arg(encode(&start)),
        ])
        .first()?;
    Some(Group { id: row.need(1), registered_at: now, start_at, start })
}

static DELETE: [Statement; 4] = [
    Statement::new(
        "DELETE FROM queen_mq.progress WHERE cursor_id IN (SELECT id FROM queen_mq.cursor WHERE group_id = ANY ($1))",
        &[pg_sys::INT8ARRAYOID],
    ),
    Statement::new(
        "DELETE FROM queen_mq.cursor WHERE group_id = ANY ($1)",
        &[pg_sys::INT8ARRAYOID],
    ),
    Statement::new(
        "DELETE FROM queen_mq.discovery WHERE group_id = ANY ($1)",
        &[pg_sys::INT8ARRAYOID],
    ),
    Statement::new(
        "DELETE FROM queen_mq.consumer_group WHERE id = ANY ($1)",
        &[pg_sys::INT8ARRAYOID],
    ),
];
static DELETE_RECEIPTS: Statement = Statement::new(
    "DELETE FROM queen_mq.receipt WHERE cursor_id IN
         (SELECT id FROM queen_mq.cursor WHERE group_id = ANY ($1))",
    &[pg_sys::INT8ARRAYOID],
);

/// Remove groups with their cursors. Waits for transactions that hold one of them.
pub fn delete(groups: &[Group]) {
    let ids: Vec<i64> = groups.iter().map(|group| group.id).collect();
    DELETE_RECEIPTS.run(&[arg(ids.clone())]);
    for statement in &DELETE {
        statement.run(&[arg(ids.clone())]);
    }
}
