//! `queen_mq.consumer_group`: registered consumer groups, and where each begins to read.

use std::ops::ControlFlow;

use pgrx::pg_sys;
use queen_engine::codec::encode;
use queen_engine::cursor::{Cursor, Start};

use super::located::Located;
use super::options::{Options, UNORDERED};
use super::{decode, locks};
use crate::error::Result;
use crate::pg::catalogue;
use crate::pg::clock::{At, Moment};
use crate::pg::columns::{Columns, arg};
use crate::pg::key::{Key, Value};
use crate::pg::relation;
use crate::pg::row_cache::RowCache;
use crate::pg::scan::{ScanEnd, Tuple};
use crate::pg::snapshot::ActiveSnapshot;
use crate::pg::spi::Statement;
use crate::pg::table::{Column, Index, table};

/// How many groups a session remembers.
const REMEMBERED: usize = 1024;

/// The name under which the group of queue mode is stored. No user can give a group this name.
pub const QUEUE_MODE: &str = "";

/// A registered consumer group.
#[derive(Clone, Debug)]
pub struct Group {
    pub id: i64,
    pub name: String,
    pub registered_at: Moment,
    pub start: Start,
    /// Messages that were there at the start and are for the group.
    pub initial: i64,
    /// Messages that have arrived in the queue and are not for the group, or are gone. None until a
    /// transaction has counted them.
    pub baseline: Option<i64>,
    /// Options that the group has of its own, in place of the queue's: those that are not None.
    pub own: Options,
    /// Pops of the group find nothing.
    pub is_paused: bool,
}

impl Group {
    /// Whether each partition is read in order, by one consumer at a time. `options`: those of the
    /// queue, or those that are in effect for the group.
    pub fn is_ordered(&self, options: &Options) -> bool {
        self.own.ordering.as_deref().unwrap_or(options.ordering()) != UNORDERED
    }

    /// The group, of the queue called `queue`, as a sentence to the user begins with it.
    pub fn title(&self, queue: &str) -> String {
        match self.name.as_str() {
            QUEUE_MODE => format!("Queue mode of queue \"{queue}\""),
            name => format!("Consumer group \"{name}\" of queue \"{queue}\""),
        }
    }

    /// The state of a cursor of the group that has read nothing yet.
    pub fn first_state(&self) -> Cursor {
        Cursor::new(self.start.clone())
    }

    /// The group's state in a partition: that of its cursor, or, where the group has not read the
    /// partition and has no cursor there, the first one.
    pub fn state_in(&self, cursor: Option<&Located>) -> Cursor {
        cursor.map_or_else(|| self.first_state(), |located| located.cursor.clone())
    }
}

// As sql/tables.sql has them.
macro_rules! columns {
    () => {
        "id, queue, name, registered_at, start, initial, baseline, ordering, lease_time,
         retry_limit, retry_delay, retry_backoff, retry_delay_max, max_deliveries, on_exhausted,
         paused"
    };
}

static FIND_ALL: Statement = Statement::new(
    concat!("SELECT ", columns!(), " FROM queen_mq.consumer_group WHERE queue = $1 ORDER BY id"),
    &[pg_sys::TEXTOID],
);

table! {
    GROUPS = c"consumer_group";
    ID: c"id" INT8OID,
    QUEUE: c"queue" TEXTOID,
    NAME: c"name" TEXTOID,
    REGISTERED_AT: c"registered_at" TIMESTAMPTZOID,
    START: c"start" BYTEAOID,
    INITIAL: c"initial" INT8OID,
    BASELINE: c"baseline" INT8OID,
    ORDERING: c"ordering" TEXTOID,
    LEASE_TIME: c"lease_time" INTERVALOID,
    RETRY_LIMIT: c"retry_limit" INT4OID,
    RETRY_DELAY: c"retry_delay" INTERVALOID,
    RETRY_BACKOFF: c"retry_backoff" FLOAT8OID,
    RETRY_DELAY_MAX: c"retry_delay_max" INTERVALOID,
    MAX_DELIVERIES: c"max_deliveries" INT4OID,
    ON_EXHAUSTED: c"on_exhausted" TEXTOID,
    PAUSED: c"paused" BOOLOID,
}

/// A row of the table.
fn read(row: &impl Columns<Column>) -> Result<Group> {
    Ok(Group {
        id: row.need(ID),
        name: row.need(NAME),
        registered_at: row.need::<At>(REGISTERED_AT).0,
        start: decode(&row.need::<Vec<u8>>(START), &GROUPS, "the start of a consumer group")?,
        initial: row.need(INITIAL),
        baseline: row.get(BASELINE),
        own: Options {
            ordering: row.get(ORDERING),
            lease_time: row.get(LEASE_TIME),
            retry_limit: row.get(RETRY_LIMIT),
            retry_delay: row.get(RETRY_DELAY),
            retry_backoff: row.get(RETRY_BACKOFF),
            retry_delay_max: row.get(RETRY_DELAY_MAX),
            max_deliveries: row.get(MAX_DELIVERIES),
            on_exhausted: row.get(ON_EXHAUSTED),
            ..Options::default()
        },
        is_paused: row.need(PAUSED),
    })
}

pub(super) static BY_NAME: Index =
    Index { table: &GROUPS, name: c"consumer_group_once", columns: &[QUEUE, NAME] };
pub(super) static BY_ID: Index =
    Index { table: &GROUPS, name: c"consumer_group_pkey", columns: &[ID] };

/// The group of this queue and name, if it is registered.
pub fn find(queue: &str, name: &str, under: &ActiveSnapshot) -> Result<Option<Group>> {
    // From the end: of a row that was updated, the newest version most likely lies there.
    BY_NAME.end(&[Value::Text(queue), Value::Text(name)], ScanEnd::End, under, read).transpose()
}

thread_local! {
    static NAMES: RowCache<i64, (String, String)> = RowCache::of(REMEMBERED);
}

/// The names of the queue that the group of this id reads, and of the group: as they are at this
/// moment; in REPEATABLE READ, as the transaction sees them.
pub fn names_of(group: i64) -> Result<Option<(String, String)>> {
    let names = |row: &Tuple| (row.need(QUEUE), row.need(NAME));
    let read =
        |under: &ActiveSnapshot| Ok(BY_ID.end(&[Value::Int(group)], ScanEnd::End, under, names));
    NAMES.with(|rows| rows.get(group, read))
}

static ALL: Statement = Statement::new(
    concat!("SELECT ", columns!(), " FROM queen_mq.consumer_group ORDER BY queue, name"),
    &[],
);

/// Every group with its queue's name and its own.
pub fn all(under: &ActiveSnapshot) -> Result<Vec<(String, Group)>> {
    ALL.read(&[], under).map(|row| Ok((row.need(QUEUE), read(&row)?))).collect()
}

/// The groups of a queue, in the order of their names.
pub fn of_queue_named(queue: &str, under: &ActiveSnapshot) -> Result<Vec<Group>> {
    let mut groups = of_queue(queue, under)?;
    groups.sort_by(|a, b| a.name.cmp(&b.name));
    Ok(groups)
}

/// The groups of a queue, in the order of their ids.
pub fn of_queue(queue: &str, under: &ActiveSnapshot) -> Result<Vec<Group>> {
    FIND_ALL.read(&[arg(queue)], under).map(|row| read(&row)).collect()
}

static QUEUES_OF: Statement = Statement::new(
    "SELECT DISTINCT q.id FROM queen_mq.consumer_group g JOIN queen_mq.queue q ON q.name = g.queue
     WHERE g.id = ANY ($1)",
    &[pg_sys::INT8ARRAYOID],
);

/// The ids of the queues that these groups read.
pub fn queues_of(groups: Vec<i64>) -> Vec<i64> {
    QUEUES_OF.run(&[arg(groups)]).filter_map(|row| row.only()).collect()
}

/// What a registration does about another transaction that is registering the group.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Patience {
    Wait,
    PassBy,
}

static REGISTER: Statement = Statement::new(
    "INSERT INTO queen_mq.consumer_group
         (queue, name, registered_at, start, initial, baseline, ordering)
     VALUES ($1, $2, $3, $4, $5, $6, $7) ON CONFLICT ON CONSTRAINT consumer_group_once DO NOTHING
     RETURNING id",
    &[
        pg_sys::TEXTOID,
        pg_sys::TEXTOID,
        pg_sys::TIMESTAMPTZOID,
        pg_sys::BYTEAOID,
        pg_sys::INT8OID,
        pg_sys::INT8OID,
        pg_sys::TEXTOID,
    ],
);

/// A group to be registered.
#[derive(Debug)]
pub struct NewGroup {
    pub now: Moment,
    pub start: Start,
    pub initial: i64,
    pub baseline: Option<i64>,
    pub ordering: Option<String>,
}

/// Register the group, under [`locks::registration`]. None where another transaction has registered
/// it since the caller looked, or, with `Patience::PassBy`, is registering it now.
pub fn register(queue: &str, name: &str, new: NewGroup, patience: Patience) -> Option<Group> {
    let lock = locks::registration(queue, name);
    match patience {
        Patience::Wait => lock.whole(),
        Patience::PassBy if lock.try_whole() => (),
        Patience::PassBy => return None,
    }
    let NewGroup { now, start, initial, baseline, ordering } = new;
    catalogue::announce();
    let row = REGISTER
        .run(&[
            arg(queue),
            arg(name),
            arg(At(now)),
            arg(encode(&start)),
            arg(initial),
            baseline.and_then(arg),
            ordering.as_deref().and_then(arg),
        ])
        .first();
    let Some(row) = row else {
        if exists(queue, name).is_ok_and(|exists| !exists) {
            relation::refuse_suppression(&GROUPS);
        }
        return None;
    };
    let (id, name) = (row.need(ID), name.to_owned());
    let own = Options { ordering, ..Options::default() };
    let (registered_at, is_paused) = (now, false);
    Some(Group { id, name, registered_at, start, initial, baseline, own, is_paused })
}

/// Whether the group is registered at this moment.
fn exists(queue: &str, name: &str) -> Result<bool> {
    let key = [Value::Text(queue), Value::Text(name)];
    ActiveSnapshot::latest_snapshot(|under| {
        Ok(BY_NAME.end(&key, ScanEnd::End, under, |_| ()).is_some())
    })
}

static MOVE: Statement = Statement::new(
    "UPDATE queen_mq.consumer_group SET start = $2, initial = $3, baseline = $4 WHERE id = $1",
    &[pg_sys::INT8OID, pg_sys::BYTEAOID, pg_sys::INT8OID, pg_sys::INT8OID],
);

/// New cursors of the group begin at `start` from now on. `initial` and `baseline`: as in
/// [`Group`].
pub fn move_to(group: i64, start: &Start, initial: i64, baseline: Option<i64>) {
    catalogue::announce();
    MOVE.run(&[arg(group), arg(encode(start)), arg(initial), baseline.and_then(arg)]);
}

static RENUMBER: Statement = Statement::new(
    "UPDATE queen_mq.consumer_group SET id = DEFAULT WHERE id = $1 RETURNING id",
    &[pg_sys::INT8OID],
);

/// Give the group a new id. What it had under the old id stays for a while, to answer late acks,
/// and is then swept, as after the removal of the group.
pub fn renumber(group: i64) -> i64 {
    catalogue::announce();
    RENUMBER.run(&[arg(group)]).first().map_or(group, |row| row.need(ID))
}

static HOLD: Statement = Statement::new(
    "SELECT FROM queen_mq.consumer_group WHERE id = $1 AND start = $2 AND initial = $3
         AND baseline IS NOT DISTINCT FROM $4 FOR NO KEY UPDATE SKIP LOCKED",
    &[pg_sys::INT8OID, pg_sys::BYTEAOID, pg_sys::INT8OID, pg_sys::INT8OID],
);

/// Lock the group's row `FOR NO KEY UPDATE`, so that no other transaction moves the group before
/// this one ends. False if another transaction has locked the row, or has moved the group since it
/// was read. Never waits.
pub fn try_hold(group: &Group) -> bool {
    let (start, baseline) = (arg(encode(&group.start)), group.baseline.and_then(arg));
    HOLD.run(&[arg(group.id), start, arg(group.initial), baseline]).first().is_some()
}

static LOCK: Statement = Statement::new(
    "SELECT FROM queen_mq.consumer_group WHERE id = ANY ($1) ORDER BY id FOR UPDATE",
    &[pg_sys::INT8ARRAYOID],
);

/// Lock the groups' rows `FOR UPDATE`, ascending, waiting for transactions that have locked one.
pub fn lock(groups: &[i64]) {
    LOCK.run(&[arg(groups.to_vec())]);
}

static SET_BASELINE: Statement = Statement::new(
    "UPDATE queen_mq.consumer_group SET baseline = $2 WHERE id = $1",
    &[pg_sys::INT8OID, pg_sys::INT8OID],
);

/// Write the group's baseline: the messages that are not for it have been counted.
pub fn set_baseline(group: i64, baseline: i64) {
    catalogue::announce();
    SET_BASELINE.run(&[arg(group), arg(baseline)]);
}

static WRITE_OFF: Statement = Statement::new(
    "UPDATE queen_mq.consumer_group SET baseline = baseline + $2 WHERE id = $1",
    &[pg_sys::INT8OID, pg_sys::INT8OID],
);

/// Add messages that the group will never get to its baseline.
pub fn write_off(group: i64, messages: i64) {
    if messages != 0 {
        catalogue::announce();
        WRITE_OFF.run(&[arg(group), arg(messages)]);
    }
}

static FORGET: Statement =
    Statement::new("DELETE FROM queen_mq.consumer_group WHERE id = $1", &[pg_sys::INT8OID]);

/// Delete the group alone. Its cursors stay for a while, to answer late acks, and are then swept.
pub fn forget(group: i64) {
    catalogue::announce();
    FORGET.run(&[arg(group)]);
}

/// The highest transaction id in the starts of the queue's groups.
pub fn newest_start(queue: &str, under: &ActiveSnapshot) -> Result<u64> {
    let keys = [(QUEUE, Key::Is(Value::Text(queue)))];
    let mut highest = 0;
    let damaged = BY_NAME.scan(&keys, ScanEnd::Start, under, |row| match read(row) {
        Ok(group) => {
            highest = highest.max(group.start.next);
            ControlFlow::Continue(())
        }
        Err(error) => ControlFlow::Break(error),
    });
    damaged.map_or(Ok(highest), Err)
}

/// The highest transaction id in the start of any group.
pub fn highest_xid() -> Result<u64> {
    let groups = ALL.run(&[]).map(|row| read(&row)).collect::<Result<Vec<Group>>>()?;
    Ok(groups.into_iter().map(|group| group.start.next).max().unwrap_or(0))
}
