//! `queen_mq.receipt`: what ended leases settled, so that a repeated or a late ack is answered
//! rightly.
//!
//! A receipt begins in the state that ends the lease ([`super::progress`]). When that state is
//! deleted, the receipt moves into this table, together with those of other states: into a *block*.
//! A block of a cursor, or of a claim, has the receipts of up to 64 revisions; its key is the last
//! of them. When claims are deleted, those of one lease set come into one block, whose key is the
//! set. Receipts that have been kept for [`KEPT`] are not moved.
//!
//! **How a receipt is found.** A lease id tells the revision that gave the lease; a lease set tells
//! it of each cursor. A cursor, or a claim, has one lease at a time. So behind that revision, the
//! first receipt is that of the lease, or there is none any more. It is in one of the newest
//! states, or in one of the first two blocks behind the revision: the first may have receipts of
//! earlier revisions alone.
//!
//! **Old blocks** are deleted by who writes a new one. The scan for them begins at the low-water
//! mark of the newest block (`pruned_to`): below it the index has only dead rows. Those of a cursor
//! that went quiet are left to the sweep.

use std::collections::BTreeMap;
use std::ops::ControlFlow;

use queen_engine::codec::encode_each;
use queen_engine::lease::{Handle, LeaseId};
use queen_engine::receipt::{EndedLease, Receipt, joined};

use super::lease_set::Covered;
use super::located::Located;
use super::{aging, decode_each, signed};
use crate::error::Result;
use crate::pg::clock::{self, At, HOUR, Moment};
use crate::pg::columns::{Columns, arg};
use crate::pg::insert::Inserting;
use crate::pg::key::{Key, Value};
use crate::pg::scan::{ScanEnd, Tuple};
use crate::pg::snapshot::ActiveSnapshot;
use crate::pg::table::{Index, table};

table! {
    RECEIPTS = c"receipt";
    CURSOR_ID: c"cursor_id" INT8OID,
    REVISION: c"revision" INT8OID,
    ENDED_AT: c"ended_at" TIMESTAMPTZOID,
    PRUNED_TO: c"pruned_to" INT8OID,
    BODY: c"body" BYTEAOID,
    GROUP_ID: c"group_id" INT8OID,
    PARTITION: c"partition" TEXTOID,
}

/// A receipt answers a repeated ack for at least this long.
const KEPT: i64 = HOUR;

/// How many old blocks are deleted when a new one is written.
const PRUNED: usize = 4;

pub(super) static BLOCKS: Index =
    Index { table: &RECEIPTS, name: c"receipt_newest", columns: &[CURSOR_ID, REVISION] };

/// The receipts of one state: when it ended its leases ([`aging`]), and they, as stored.
pub(super) struct StoredReceipts {
    pub(super) ended_at: Moment,
    pub(super) body: Vec<u8>,
}

/// A row of the table.
struct Block<'a> {
    /// A cursor or a claim; a lease set below zero.
    id: i64,
    revision: i64,
    pruned_to: i64,
    receipts: StoredReceipts,
    /// Of claims: group and partition, because the claims may be gone when the lease is named.
    of_claims: Option<(i64, &'a str)>,
}

impl Block<'_> {
    fn insert(&self, into: &Inserting) {
        // What a sweep has not seen before has been seen now.
        let ended_at = self.receipts.ended_at;
        let ended_at = if ended_at == aging::NOT_YET { clock::now() } else { ended_at };
        aging::note_block(self.id, self.revision, ended_at);
        into.row(&[
            (CURSOR_ID, arg(self.id)),
            (REVISION, arg(self.revision)),
            (ENDED_AT, arg(At(ended_at))),
            (PRUNED_TO, arg(self.pruned_to)),
            (BODY, arg(self.receipts.body.as_slice())),
            (GROUP_ID, self.of_claims.and_then(|(group, _)| arg(group))),
            (PARTITION, self.of_claims.and_then(|(_, partition)| arg(partition))),
        ]);
    }
}

/// Keep the receipts of states up to `revision` that have just been deleted, in one block, unless
/// all are old. The caller holds the lock of the cursor or claim.
pub(super) fn keep(
    at: &Located,
    revision: i64,
    of_states: impl Iterator<Item = StoredReceipts>,
    under: &ActiveSnapshot,
) {
    let until = clock::now() - KEPT;
    let young: Vec<_> = of_states.filter(|receipts| receipts.ended_at >= until).collect();
    let Some(ended_at) = young.iter().map(|receipts| receipts.ended_at).max() else { return };
    let bodies: Vec<&[u8]> = young.iter().map(|receipts| receipts.body.as_slice()).collect();
    let body = bodies.concat();
    let block = Block {
        id: signed(at.id),
        revision,
        pruned_to: prune(signed(at.id), until, revision, under),
        receipts: StoredReceipts { ended_at, body },
        of_claims: at.message.map(|_| (at.group, at.partition.as_str())),
    };
    let inserting = RECEIPTS.inserting();
    block.insert(&inserting);
    inserting.end();
}

/// Delete the oldest blocks of the cursor, if all their leases had ended before `until`. Returns
/// the low-water mark for the block of `revision`.
fn prune(cursor: i64, until: Moment, revision: i64, under: &ActiveSnapshot) -> i64 {
    let read = |row: &Tuple| (row.need(REVISION), row.need(PRUNED_TO), row.need::<At>(ENDED_AT).0);
    let newest = BLOCKS.end(&[Value::Int(cursor)], ScanEnd::End, under, read);
    let (newest, pruned_to, ended_at) = newest.unwrap_or((0, 0, Moment::MIN));
    if ended_at == aging::NOT_YET {
        aging::stamp_block(cursor, newest);
    }
    let keys =
        [(CURSOR_ID, Key::Is(Value::Int(cursor))), (REVISION, Key::Above(Value::Int(pruned_to)))];
    let (mut left, mut last, mut first_kept) = (PRUNED, pruned_to, revision);
    BLOCKS.delete(&keys, under, |row| {
        let of_row = row.need::<i64>(REVISION);
        if left == 0 || row.need::<At>(ENDED_AT).0 >= until {
            first_kept = of_row;
            return ControlFlow::Break(());
        }
        (left, last) = (left - 1, of_row);
        ControlFlow::Continue(Some(()))
    });
    last.max(first_kept - 1)
}

/// The low-water mark of the newest block of a cursor or claim; None if it has no block.
fn pruned_to(cursor: i64, under: &ActiveSnapshot) -> Option<i64> {
    let read = |row: &Tuple| row.need(PRUNED_TO);
    BLOCKS.end(&[Value::Int(cursor)], ScanEnd::End, under, read)
}

/// The receipts of states of claims that have just been deleted, with the claims.
pub(super) struct ClaimReceipts<'a> {
    pub(super) claim: u64,
    pub(super) group: i64,
    pub(super) partition: &'a str,
    pub(super) revision: i64,
    pub(super) receipts: StoredReceipts,
}

/// Keep receipts of claims that have just been deleted: those of one lease set in one block.
pub(super) fn keep_of_claims(all: Vec<ClaimReceipts<'_>>) -> Result<()> {
    let until = clock::now() - KEPT;
    let mut blocks: BTreeMap<_, (i64, Moment, Vec<EndedLease>)> = BTreeMap::new();
    for one in all.into_iter().filter(|one| one.receipts.ended_at >= until) {
        let claim = signed(one.claim);
        for (lease, receipt) in read(&one.receipts.body)? {
            // A claim leaves a set once, and so is in one block of it.
            let (id, revision) = match lease.handle() {
                Some(Handle::Set(set)) => (-signed(set), claim),
                _ => (claim, one.revision),
            };
            let block = blocks.entry((id, one.group, one.partition)).or_default();
            block.0 = block.0.max(revision);
            block.1 = block.1.max(one.receipts.ended_at);
            block.2.push((lease, receipt));
        }
    }
    if blocks.is_empty() {
        return Ok(());
    }
    let inserting = RECEIPTS.inserting();
    for ((id, group, partition), (revision, ended_at, ended)) in blocks {
        let receipts = StoredReceipts { ended_at, body: encode_each(&joined(ended)) };
        let of_claims = Some((group, partition));
        Block { id, revision, pruned_to: 0, receipts, of_claims }.insert(&inserting);
    }
    inserting.end();
    Ok(())
}

fn read(body: &[u8]) -> Result<Vec<EndedLease>> {
    decode_each(body, &RECEIPTS, "the receipt of a lease")
}

/// The receipt of the lease, if it is among these.
pub(super) fn read_one(body: &[u8], lease: LeaseId) -> Result<Option<Receipt>> {
    let mut all = read(body)?.into_iter();
    Ok(all.find_map(|(of, receipt)| (of == lease).then_some(receipt)))
}

/// The receipt of a lease in the blocks of this cursor or claim, which has its newest state.
/// `given_by`: the revision that gave the lease, if more is known of it than the lease id tells.
pub(super) fn find_in_blocks(
    at: &Located,
    lease: LeaseId,
    given_by: Option<i64>,
    under: &ActiveSnapshot,
) -> Result<Option<Receipt>> {
    let Some(pruned_to) = pruned_to(signed(at.id), under) else { return Ok(None) };
    let named = lease.given_by(at.revision);
    for given_by in given_by.map_or_else(|| named.collect(), |known| vec![known]) {
        let behind = [Value::Int(given_by.max(pruned_to))];
        let body = |row: &Tuple| row.need::<Vec<u8>>(BODY);
        let two = BLOCKS.after(&[Value::Int(signed(at.id))], &behind, None, 2, under, body);
        for body in two {
            if let Some(found) = read_one(&body, lease)? {
                return Ok(Some(found));
            }
        }
        if given_by <= pruned_to {
            break;
        }
        pgrx::check_for_interrupts!();
    }
    Ok(None)
}

/// Of these claims, which are gone, those of which the lease has left a receipt. Receipts are read
/// as they are at this moment, because a claim may have gone after the transaction took its
/// snapshot.
pub fn find_of_gone(lease: LeaseId, gone: &[Covered]) -> Result<Vec<(Located, Receipt)>> {
    ActiveSnapshot::latest_snapshot(|under| {
        let of_set = match lease.handle() {
            Some(Handle::Set(set)) => of_claims(-signed(set), lease, under)?,
            _ => Vec::new(),
        };
        let mut found = Vec::new();
        for covered in gone {
            let about = |all: &Receipt| covered.message.and_then(|message| all.about(message));
            let in_set = of_set.iter().find_map(|(group, partition, all)| {
                about(all).map(|receipt| (*group, partition.clone(), receipt))
            });
            let own = match in_set {
                Some(found) => Some(found),
                None => of_claims(signed(covered.id), lease, under)?.pop(),
            };
            if let Some((group, partition, receipt)) = own {
                found.push((Located::gone(covered.id, group, partition), receipt));
            }
            pgrx::check_for_interrupts!();
        }
        Ok(found)
    })
}

/// The receipts of the lease in the blocks of a claim or a set, with group and partition.
fn of_claims(
    id: i64,
    lease: LeaseId,
    under: &ActiveSnapshot,
) -> Result<Vec<(i64, String, Receipt)>> {
    let mut found = Vec::new();
    let mut add = |row: &Tuple| -> Result<()> {
        let Some((group, partition)) = row.get(GROUP_ID).zip(row.get::<String>(PARTITION)) else {
            return Ok(());
        };
        let all = read(&row.need::<Vec<u8>>(BODY))?.into_iter().filter(|(of, _)| *of == lease);
        found.extend(all.map(|(_, receipt)| (group, partition.clone(), receipt)));
        Ok(())
    };
    let keys = [(CURSOR_ID, Key::Is(Value::Int(id)))];
    let damaged = BLOCKS.scan(&keys, ScanEnd::Start, under, |row| match add(row) {
        Ok(()) => ControlFlow::Continue(()),
        Err(error) => ControlFlow::Break(error),
    });
    damaged.map_or(Ok(found), Err)
}
