//! `queen_mq.claim`: the messages that groups without order have popped.
//!
//! A claim is to one message what a cursor is to a partition: an identity and a lock. Its states
//! are in `queen_mq.progress`, but for the first, which its own row tells.
//!
//! A claim counts from the moment it is inserted, before the popping transaction commits. A pop
//! looks at the claims of open transactions as well, and leaves their messages alone. Of two pops
//! that insert a claim of one message at once, the unique key lets one succeed.

use std::collections::HashMap;
use std::ops::ControlFlow;

use pgrx::datum::Uuid;
use pgrx::pg_sys;
use queen_engine::cursor::Cursor;
use queen_engine::lease::LeaseId;
use queen_engine::message::{MessageId, Spans};

use super::located::Located;
use super::{progress, signed, unsigned};
use crate::error::Result;
use crate::pg::clock::{At, Moment};
use crate::pg::columns::{Columns, arg};
use crate::pg::key::{Key, Value};
use crate::pg::scan::{ScanEnd, Tuple};
use crate::pg::sequence;
use crate::pg::snapshot::ActiveSnapshot;
use crate::pg::spi::{SqlRow, Statement};
use crate::pg::table::{Column, Index, RowLocation, table};

table! {
    CLAIMS = c"claim";
    ID: c"id" INT8OID,
    GROUP_ID: c"group_id" INT8OID,
    PARTITION: c"partition" TEXTOID,
    MESSAGE_ID: c"message_id" INT8OID,
    TAKEN_AT: c"taken_at" TIMESTAMPTZOID,
    LEASE_ID: c"lease_id" UUIDOID,
    DEADLINE: c"deadline" TIMESTAMPTZOID,
}

pub(super) static BY_ID: Index = Index { table: &CLAIMS, name: c"claim_of_id", columns: &[ID] };
pub(super) static BY_MESSAGE: Index =
    Index { table: &CLAIMS, name: c"claim_once", columns: &[GROUP_ID, PARTITION, MESSAGE_ID] };
pub(super) static DUE: Index =
    Index { table: &CLAIMS, name: c"claim_due", columns: &[GROUP_ID, DEADLINE, ID] };

/// A lease with its deadline.
pub type Terms = (LeaseId, Moment);

/// A claim as it lies in the table.
pub struct ClaimRow {
    pub id: u64,
    pub group: i64,
    pub partition: String,
    pub message: MessageId,
    taken_at: Moment,
    /// The first lease; None: settled at once, or told by progress alone.
    pub terms: Option<Terms>,
    /// Of the current transaction.
    pub is_own: bool,
    pub place: RowLocation,
}

impl ClaimRow {
    pub(super) fn read(row: &Tuple) -> Self {
        Self {
            id: unsigned(row.need(ID)),
            group: row.need(GROUP_ID),
            partition: row.need(PARTITION),
            message: MessageId::from_sql(row.need(MESSAGE_ID)),
            taken_at: row.need::<At>(TAKEN_AT).0,
            terms: terms_of(row),
            is_own: row.is_own(),
            place: row.place(),
        }
    }

    /// The state before any in progress.
    pub fn first_state(&self) -> Cursor {
        Cursor::claimed(self.message, self.taken_at, self.terms)
    }

    /// With its newest state.
    pub fn locate(self, under: &ActiveSnapshot) -> Result<(Located, RowLocation)> {
        let first = self.first_state();
        let (revision, is_own, cursor) = progress::newest(signed(self.id), || first, under)?;
        let Self { id, group, partition, message, place, .. } = self;
        let message = Some(message);
        Ok((Located { id, group, partition, message, revision, is_own, cursor }, place))
    }
}

/// A lease and its end, in two columns.
fn terms_of(row: &impl Columns<Column>) -> Option<Terms> {
    let lease = row.get::<Uuid>(LEASE_ID).map(|uuid| LeaseId(*uuid.as_bytes()));
    lease.zip(row.get::<At>(DEADLINE).map(|at| at.0))
}

/// The claim of this id.
pub fn find(id: u64, under: &ActiveSnapshot) -> Option<ClaimRow> {
    BY_ID.end(&[Value::Int(signed(id))], ScanEnd::Start, under, ClaimRow::read)
}

/// Claim a message. None where another transaction has claimed it, committed or not. Never waits.
pub fn try_insert(
    id: u64,
    group: i64,
    partition: &str,
    message: MessageId,
    taken_at: Moment,
    terms: Option<Terms>,
) -> Option<RowLocation> {
    CLAIMS.try_insert(
        &BY_MESSAGE,
        &[
            (ID, arg(signed(id))),
            (GROUP_ID, arg(group)),
            (PARTITION, arg(partition)),
            (MESSAGE_ID, arg(message.to_sql())),
            (TAKEN_AT, arg(At(taken_at))),
            (LEASE_ID, terms.and_then(|(lease, _)| arg(Uuid::from_bytes(lease.0)))),
            (DEADLINE, terms.and_then(|(_, deadline)| arg(At(deadline)))),
        ],
    )
}

/// Delete a claim that this transaction has inserted.
pub fn withdraw(place: RowLocation) {
    CLAIMS.withdraw(place);
}

/// An id for a claim: from the ids of cursors.
pub fn draw_id() -> u64 {
    unsigned(sequence::draw(c"cursor_id_seq"))
}

/// Lock the row of a claim `FOR NO KEY UPDATE`, as that of a cursor is locked.
pub fn lock(place: RowLocation, wait: bool, under: &ActiveSnapshot) -> bool {
    CLAIMS.lock(place, wait, under)
}

/// Whether another transaction, which has not ended, has locked the claim whose row lies there. A
/// guess: a moment later it may be otherwise.
pub fn is_held(place: RowLocation, under: &ActiveSnapshot) -> bool {
    CLAIMS.is_held(place, under)
}

/// A claim as it is at this moment; its transaction may not have committed.
#[derive(Clone, Copy, Debug)]
pub struct DirtyClaim {
    pub id: u64,
    taken_at: Moment,
    /// The first lease, which was given when the message was taken.
    first: Option<Terms>,
    /// Its transaction has not ended: it is another one, or the current one.
    pub is_open: bool,
    pub is_own: bool,
}

impl DirtyClaim {
    /// Whether it began with a lease whose time is over.
    pub fn has_ended(&self, now: Moment, void_before: Moment) -> bool {
        self.first.is_some_and(|(_, end)| end <= now || self.taken_at < void_before)
    }
}

/// Claims of these messages at this moment, whatever has been committed.
pub fn at_hand(group: i64, partition: &str, of: &Spans) -> HashMap<MessageId, DirtyClaim> {
    let mut found = HashMap::new();
    for (low, high) in runs(of) {
        let keys = between(group, partition, low, high);
        BY_MESSAGE.scan_dirty::<()>(&keys, ScanEnd::Start, |row, unended| {
            let is_own = row.is_own();
            let claim = DirtyClaim {
                id: unsigned(row.need(ID)),
                taken_at: row.need::<At>(TAKEN_AT).0,
                first: terms_of(row),
                is_open: unended.written || is_own,
                is_own,
            };
            found.insert(MessageId::from_sql(row.need(MESSAGE_ID)), claim);
            ControlFlow::Continue(())
        });
    }
    found
}

/// The last message of the partition, not below `from`, that is claimed at this moment, committed
/// or not.
pub fn last_at_hand(group: i64, partition: &str, from: MessageId) -> Option<MessageId> {
    let keys = beyond(group, partition, from);
    BY_MESSAGE.scan_dirty(&keys, ScanEnd::End, |row, _| {
        ControlFlow::Break(MessageId::from_sql(row.need(MESSAGE_ID)))
    })
}

/// The claims of these messages that are visible in the snapshot.
pub fn visible(group: i64, partition: &str, of: &Spans, under: &ActiveSnapshot) -> Vec<ClaimRow> {
    let mut found = Vec::new();
    for (low, high) in runs(of) {
        let keys = between(group, partition, low, high);
        BY_MESSAGE.scan::<()>(&keys, ScanEnd::Start, under, |row| {
            found.push(ClaimRow::read(row));
            ControlFlow::Continue(())
        });
    }
    found
}

fn between(group: i64, partition: &str, low: i64, high: i64) -> [(Column, Key<'_>); 4] {
    [
        (GROUP_ID, Key::Is(Value::Int(group))),
        (PARTITION, Key::Is(Value::Text(partition))),
        (MESSAGE_ID, Key::Above(Value::Int(low - 1))),
        (MESSAGE_ID, Key::UpTo(Value::Int(high))),
    ]
}

/// Claims of segments whose ids differ by no more than this are read in one scan.
const NEAR: u64 = 1024;

/// Ranges of message ids, first and last, that together hold all of `spans`.
fn runs(spans: &Spans) -> Vec<(i64, i64)> {
    let mut sorted: Vec<_> = spans.iter().collect();
    sorted.sort_unstable_by_key(|span| (span.segment, span.first));
    let mut runs: Vec<(MessageId, MessageId)> = Vec::new();
    for span in sorted {
        let first = MessageId::new(span.segment, span.first);
        let last = MessageId::new(span.segment, span.first + span.len - 1);
        match runs.last_mut() {
            Some((_, end)) if span.segment - end.segment() <= NEAR => *end = last.max(*end),
            _ => runs.push((first, last)),
        }
    }
    runs.into_iter().map(|(first, last)| (first.to_sql(), last.to_sql())).collect()
}

/// The first partition after `after` that has, or had, claims of the group. While an old snapshot
/// is held, the index may have many entries of claims that are gone; this passes none of them one
/// by one.
pub fn next_partition(group: i64, after: &str) -> Option<String> {
    let keys =
        [(GROUP_ID, Key::Is(Value::Int(group))), (PARTITION, Key::Above(Value::Text(after)))];
    BY_MESSAGE.scan_any(&keys, ScanEnd::Start, |row| ControlFlow::Break(row.need(PARTITION)))
}

/// The group of a row.
pub(super) fn group_in(row: &Tuple) -> i64 {
    row.need(GROUP_ID)
}

/// Whether the group has more claims than this.
pub(super) fn are_more(group: i64, most: usize, under: &ActiveSnapshot) -> bool {
    BY_MESSAGE.has_more(&[Value::Int(group)], most, under)
}

/// The groups that have claims, or had some. Costs one look-up for each.
pub fn groups() -> Vec<i64> {
    BY_MESSAGE.leading_numbers(GROUP_ID)
}

/// The groups of which [`due`] may say something. Costs one look-up for each.
pub(super) fn groups_with_leases() -> Vec<i64> {
    DUE.leading_numbers(GROUP_ID)
}

/// The claims of a partition from `from` on, in the order of messages.
pub fn of_partition(
    group: i64,
    partition: &str,
    from: MessageId,
    limit: usize,
    under: &ActiveSnapshot,
) -> Vec<ClaimRow> {
    let prefix = [Value::Int(group), Value::Text(partition)];
    let after = [Value::Int(from.to_sql() - 1)];
    BY_MESSAGE.after(&prefix, &after, None, limit, under, ClaimRow::read)
}

/// The last message of a partition, not below `from`, whose claim is visible in the snapshot.
pub fn last(
    group: i64,
    partition: &str,
    from: MessageId,
    under: &ActiveSnapshot,
) -> Option<MessageId> {
    let keys = beyond(group, partition, from);
    let read = |row: &Tuple| ControlFlow::Break(MessageId::from_sql(row.need(MESSAGE_ID)));
    BY_MESSAGE.scan(&keys, ScanEnd::End, under, read)
}

fn beyond(group: i64, partition: &str, from: MessageId) -> [(Column, Key<'_>); 3] {
    [
        (GROUP_ID, Key::Is(Value::Int(group))),
        (PARTITION, Key::Is(Value::Text(partition))),
        (MESSAGE_ID, Key::Above(Value::Int(from.to_sql() - 1))),
    ]
}

/// Ends of first leases after (moment, claim) and up to `bound`, in order.
pub(super) fn due(
    group: i64,
    after: (Moment, i64),
    bound: Option<Moment>,
    limit: usize,
    under: &ActiveSnapshot,
) -> Vec<(Moment, i64)> {
    let after = [Value::Time(after.0), Value::Int(after.1)];
    let read = |row: &Tuple| (row.need::<At>(DEADLINE).0, row.need(ID));
    DUE.after(&[Value::Int(group)], &after, bound.map(Value::Time), limit, under, read)
}

/// Ends of first leases after `now` that are visible, among the next `most` entries of the index,
/// in order; and where these end, if there may be more.
pub(super) fn upcoming(
    group: i64,
    now: Moment,
    most: usize,
    under: &ActiveSnapshot,
) -> (Vec<(Moment, i64)>, Option<Moment>) {
    let read = |row: &Tuple| (row.need::<At>(DEADLINE).0, row.need(ID));
    DUE.visible_of_next((GROUP_ID, group), (DEADLINE, now), most, under, read)
}

static OF_GROUP: Statement = Statement::new(
    "SELECT c.id, c.partition, c.message_id, c.taken_at, c.lease_id, c.deadline, p.revision, p.state
     FROM queen_mq.claim c
     LEFT JOIN LATERAL (SELECT revision, state FROM queen_mq.progress
         WHERE cursor_id = c.id ORDER BY revision DESC LIMIT 1) AS p ON true
     WHERE c.group_id = $1 ORDER BY c.id",
    &[pg_sys::INT8OID],
);

/// Every claim of the group.
pub fn of_group(group: i64, under: &ActiveSnapshot) -> Result<Vec<Located>> {
    let read = |row: SqlRow| {
        let message = MessageId::from_sql(row.need(MESSAGE_ID));
        let cursor = match row.get::<Vec<u8>>(c"state") {
            Some(bytes) => progress::read_state(&bytes)?,
            None => Cursor::claimed(message, row.need::<At>(TAKEN_AT).0, terms_of(&row)),
        };
        Ok(Located {
            id: unsigned(row.need(ID)),
            group,
            partition: row.need(PARTITION),
            message: Some(message),
            revision: row.get(c"revision").unwrap_or(0),
            is_own: true,
            cursor,
        })
    };
    OF_GROUP.read(&[arg(group)], under).map(read).collect()
}

/// Delete claims with their states, except those that another transaction has locked; returns the
/// ids of the deleted ones. Receipts in the states are kept.
pub fn delete(claims: &[u64]) -> Result<Vec<u64>> {
    ActiveSnapshot::new_snapshot(|under| {
        let read = |row: &Tuple| {
            let of_row = (unsigned(row.need(ID)), row.need(GROUP_ID), row.need(PARTITION));
            ControlFlow::Continue(Some(of_row))
        };
        let mut gone: Vec<(u64, i64, String)> = Vec::new();
        let deleting = CLAIMS.deleting();
        for id in claims {
            let keys = [(ID, Key::Is(Value::Int(signed(*id))))];
            gone.extend(deleting.by_index(&BY_ID, &keys, under, read));
        }
        deleting.end();
        progress::delete_of_claims(&gone, under)?;
        Ok(gone.into_iter().map(|(id, ..)| id).collect())
    })
}
