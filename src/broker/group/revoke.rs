//! Taking leases away by hand: the holder of one is told so when it settles (QN002).

use queen_engine::cursor::Cursor;
use queen_engine::lease::LeaseId;
use queen_engine::receipt::Receipt;

use crate::error::Result;
use crate::pg::clock::{self, Moment};
use crate::pg::spi::ActiveSnapshot;
use crate::store::cursor::{self, Located, LockedCursor, Notice};
use crate::store::group::{self, Group};
use crate::store::queue::Queue;
use crate::store::{receipt, replay, seen_snapshot};
use crate::wait::waiters::{self, Topic};

/// Give the group a new id. No consumer has looked for work under it yet. Pops that wait have registered
/// under the old id, or for pushes to the queue: the commit wakes them.
pub fn renumber(queue: &Queue, group: &Group) -> i64 {
    let id = group::renumber(group.id);
    replay::hand_over(queue.id, group.id, id);
    waiters::touch(Topic::group(group.id));
    id
}

/// The group's cursors and claims, locked, with their states.
pub fn locate(group: &Group, locked: Vec<LockedCursor>) -> Result<Vec<Located>> {
    ActiveSnapshot::new_snapshot(|under| cursor::locate(locked, |_| &group.start, under))
}

/// Take all leases away, and see that nobody who has looked before goes on from what he has seen.
pub fn retire(queue: &Queue, located: &[Located]) {
    for located in located.iter().filter(|one| one.message.is_none() || one.cursor.open() > 0) {
        let revoked = located.cursor.revoked();
        write(queue, located, (located.cursor.retired(), revoked));
    }
}

/// Take all leases away.
pub fn revoke(queue: Option<&Queue>, located: &[Located]) {
    for located in located.iter().filter(|located| !located.cursor.leases.is_empty()) {
        let revoked = located.cursor.revoked();
        let cursor = Cursor { leases: Vec::new(), ..located.cursor.clone() };
        match queue {
            Some(queue) => write(queue, located, (cursor, revoked)),
            None => trace(located, &revoked, clock::now()),
        }
    }
}

pub fn write(
    queue: &Queue,
    located: &Located,
    (cursor, revoked): (Cursor, Vec<(LeaseId, Receipt)>),
) {
    let xid = seen_snapshot::assign_xid(queue.identity);
    cursor::append(located, &cursor, Notice::Ready { xid });
    trace(located, &revoked, clock::now());
}

pub fn trace(located: &Located, revoked: &[(LeaseId, Receipt)], now: Moment) {
    for (lease, receipt) in revoked {
        receipt::insert(located, *lease, receipt, now);
    }
}
