//! How a call takes leases away, and sees that no consumer reads on from where the group was.
//!
//! Seeks, changes of ordering, purges and unsubscriptions do so, with every cursor and claim in
//! question locked. The holder of a lease is told at its next settlement: the receipt that is left
//! here makes that QN002.

use queen_engine::cursor::Cursor;
use queen_engine::receipt::EndedLease;

use crate::error::Result;
use crate::pg::snapshot::ActiveSnapshot;
use crate::store::cursor_or_claim::{self, LockedCursor};
use crate::store::group::{self, Group};
use crate::store::located::Located;
use crate::store::progress::{self, Notice};
use crate::store::queue::Queue;
use crate::store::{claim, replay, seen_snapshot};
use crate::wait::waiters::{self, Topic};

/// The states of the group's cursors and claims that have been locked. In REPEATABLE READ a state
/// that is out of date is error 40001.
pub fn locate(group: &Group, locked: Vec<LockedCursor>) -> Result<Vec<Located>> {
    ActiveSnapshot::new_snapshot(|under| cursor_or_claim::locate(locked, |_| &group.start, under))
}

/// Take all leases of the group away, and leave the rest as it is. `queue`: None where there is no
/// queue of that name any more, so that no pop has to be told.
pub fn revoke_leases(queue: Option<&Queue>, located: &[Located]) {
    for located in located.iter().filter(|located| !located.cursor.leases.is_empty()) {
        let revoked = located.cursor.revoked();
        let cursor = Cursor { leases: Vec::new(), ..located.cursor.clone() };
        match queue {
            Some(queue) => write_state(queue, located, (cursor, revoked)),
            None => progress::append(located, &cursor, Notice::Leased, &revoked),
        }
    }
}

/// Take all leases away, and let every cursor and open claim end here: a consumer that has looked
/// at one before finds a newer state, in which there is nothing to read.
pub fn retire(queue: &Queue, located: &[Located]) {
    for located in located.iter().filter(|one| one.message.is_none() || one.cursor.open() > 0) {
        let revoked = located.cursor.revoked();
        write_state(queue, located, (located.cursor.retired(), revoked));
    }
}

/// Give the group a new id, and return it. No consumer has looked for work under it yet. Pops that
/// wait have registered under the old id, or for pushes to the queue: the commit wakes them.
pub fn renumber(queue: &Queue, group: &Group) -> i64 {
    let id = group::renumber(group.id);
    replay::hand_over(queue.id, group.id, id);
    waiters::touch_all(Topic::group(group.id));
    id
}

/// Write the next state of a cursor or a claim that is locked, announced to the search for work;
/// and the receipts of the leases that it takes away.
pub fn write_state(queue: &Queue, located: &Located, (cursor, revoked): (Cursor, Vec<EndedLease>)) {
    let xid = seen_snapshot::assign_xid(queue.identity);
    progress::append(located, &cursor, Notice::Ready { xid }, &revoked);
}

/// Delete claims that are locked. The receipts of the leases that this takes away are kept.
pub fn delete_claims<'a>(claims: impl IntoIterator<Item = &'a Located>) -> Result<()> {
    let mut ids = Vec::new();
    for claim in claims {
        let revoked = claim.cursor.revoked();
        if !revoked.is_empty() {
            progress::append(claim, &claim.cursor.emptied(), Notice::Leased, &revoked);
        }
        ids.push(claim.id);
    }
    claim::delete(&ids).map(drop)
}
