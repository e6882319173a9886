//! Where the transactions of the last while have pushed to, in shared memory. So it is known only
//! with the library preloaded; without, every answer is that a transaction may have pushed.
//!
//! A reader comes back to transactions that were running when it passed them ([`super::log`]). On a
//! busy server these are as many as there are sessions, and few of them have pushed to the
//! partition that it reads. To ask the index for each would be most of what a pop costs.
//!
//! Each transaction id has one slot, which it shares with ids that are a multiple of [`SLOTS`]
//! away. A push marks the slot of its transaction before it writes a row. The slot belongs to the
//! highest id that has marked it. So for a transaction that a reader's snapshot shows as ended, the
//! slot says one of three things:
//!
//! - it is marked by that transaction: the marks say which partitions it may have pushed to;
//! - it is marked by a lower id, or by none: the transaction has pushed nothing;
//! - it is marked by a higher id: what the transaction has marked is not known any more.
//!
//! The second holds only for transactions that got their ids in the life of this shared memory, on
//! this server, and not on a primary that it has followed ([`RecentPushes::known_from`]).
//!
//! There is no lock: a slot is one word, and changes by compare and exchange.

use std::hash::{DefaultHasher, Hash, Hasher};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use pgrx::atomics::PgAtomic;
use pgrx::shmem::PGRXSharedMemory;
use pgrx::{pg_guard, pg_shmem_init, pg_sys};

const SLOTS: u64 = 65_536;
/// The lower bits of a slot are marks: so many for queues, then the rest for partitions. The upper
/// half says how many times [`SLOTS`] fits into the id that has made them.
const MARKS: u32 = 32;
const QUEUE_MARKS: u64 = 8;
const PARTITION_MARKS: u64 = MARKS as u64 - QUEUE_MARKS;
/// Ids from here on do not fit into a slot.
const FIRST_TOO_HIGH: u64 = SLOTS << MARKS;

struct RecentPushes {
    /// All transactions from this id on that have pushed have marked their slots; 0: not known yet.
    known_from: AtomicU64,
    slots: [AtomicU64; SLOTS as usize],
}

// SAFETY: atomics alone.
unsafe impl PGRXSharedMemory for RecentPushes {}

// SAFETY: no other shared memory of the server has this name.
static RECENT: PgAtomic<RecentPushes> = unsafe { PgAtomic::new(c"queen_mq recent pushes") };
/// Set in the postmaster, and so in all its children.
static IS_SHARED: AtomicBool = AtomicBool::new(false);

/// Called by `_PG_init`: in the postmaster it sets up shared memory for the slots.
pub fn register() {
    // SAFETY: a plain global of the process.
    if !unsafe { pg_sys::process_shared_preload_libraries_in_progress } {
        return;
    }
    pg_shmem_init!(
        RECENT = RecentPushes {
            known_from: AtomicU64::new(0),
            slots: [const { AtomicU64::new(0) }; SLOTS as usize],
        }
    );
    IS_SHARED.store(true, Ordering::Relaxed);
}

fn recent() -> Option<&'static RecentPushes> {
    IS_SHARED.load(Ordering::Relaxed).then(|| RECENT.get())
}

/// Which of the marks of a queue are its own, and those of one partition if that is given.
fn marks(queue: i64, partition: Option<&str>) -> u64 {
    let mark = |of: DefaultHasher, count| of.finish() % count;
    let mut hasher = DefaultHasher::new();
    queue.hash(&mut hasher);
    let of_queue = 1 << mark(hasher.clone(), QUEUE_MARKS);
    let Some(partition) = partition else { return of_queue };
    partition.hash(&mut hasher);
    of_queue | 1 << (QUEUE_MARKS + mark(hasher, PARTITION_MARKS))
}

/// Note that this transaction is about to write a segment of the partition. It has its id.
pub(super) fn note(queue: i64, partition: &str) {
    let Some(recent) = recent() else { return };
    // SAFETY: reads the backend's memory.
    let xid = unsafe { pg_sys::GetTopFullTransactionIdIfAny().value };
    recent.mark(xid, marks(queue, Some(partition)));
}

/// Whether a transaction may have pushed to the partition, or to the queue where no partition is
/// given. The caller's snapshot shows it as ended. `xid` is as PostgreSQL counts.
pub(super) fn may_have_pushed(xid: Option<u64>, queue: i64, partition: Option<&str>) -> bool {
    match (recent(), xid) {
        (Some(recent), Some(xid)) => {
            recent.may_have(recent.known_from(), xid, marks(queue, partition))
        }
        _ => true,
    }
}

impl RecentPushes {
    fn slot(&self, xid: u64) -> &AtomicU64 {
        &self.slots[(xid % SLOTS) as usize]
    }

    fn mark(&self, xid: u64, marks: u64) {
        if xid >= FIRST_TOO_HIGH {
            return;
        }
        let round = xid / SLOTS;
        // Fails where the slot belongs to a higher id.
        let _ =
            self.slot(xid).fetch_update(Ordering::AcqRel, Ordering::Acquire, |slot| {
                match (slot >> MARKS).cmp(&round) {
                    std::cmp::Ordering::Less => Some(round << MARKS | marks),
                    std::cmp::Ordering::Equal => Some(slot | marks),
                    std::cmp::Ordering::Greater => None,
                }
            });
    }

    /// Whether a transaction may have these marks. `from` is [`Self::known_from`]: apart, so that a
    /// test without a server can call this.
    fn may_have(&self, from: Option<u64>, xid: u64, marks: u64) -> bool {
        if xid >= FIRST_TOO_HIGH || from.is_none_or(|from| xid < from) {
            return true;
        }
        let slot = self.slot(xid).load(Ordering::Acquire);
        match (slot >> MARKS).cmp(&(xid / SLOTS)) {
            std::cmp::Ordering::Less => false,
            std::cmp::Ordering::Equal => slot & marks == marks,
            std::cmp::Ordering::Greater => true,
        }
    }

    /// The first transaction id that was given later than some moment at which this memory was
    /// there and the server was no standby. None on a standby: the primary gives the ids, and what
    /// its transactions push is not marked here.
    fn known_from(&self) -> Option<u64> {
        let known = self.known_from.load(Ordering::Acquire);
        if known != 0 {
            return Some(known);
        }
        // SAFETY: both read shared memory.
        let next = unsafe {
            if pg_sys::RecoveryInProgress() {
                return None;
            }
            pg_sys::ReadNextFullTransactionId().value
        };
        let first = self.known_from.compare_exchange(0, next, Ordering::AcqRel, Ordering::Acquire);
        Some(first.map_or_else(|earlier| earlier, |_| next))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// With every transaction id known from the first on.
    fn empty() -> Box<RecentPushes> {
        let slots = [const { AtomicU64::new(0) }; SLOTS as usize];
        Box::new(RecentPushes { known_from: AtomicU64::new(1), slots })
    }

    fn may_have(recent: &RecentPushes, xid: u64, marks: u64) -> bool {
        recent.may_have(Some(recent.known_from.load(Ordering::Relaxed)), xid, marks)
    }

    #[test]
    fn a_transaction_that_has_marked_nothing_has_pushed_nothing() {
        let recent = empty();
        let marks = marks(1, Some("p"));
        recent.mark(1000, marks);
        assert!(may_have(&recent, 1000, marks));
        assert!(!may_have(&recent, 999, marks));
        assert!(!may_have(&recent, 1000 + SLOTS, marks));
    }

    #[test]
    fn a_mark_is_of_one_partition() {
        let recent = empty();
        recent.mark(1000, marks(1, Some("p")));
        let names: Vec<String> = (0..100).map(|n| format!("other{n}")).collect();
        let others = names.iter().filter(|name| may_have(&recent, 1000, marks(1, Some(name))));
        // One in 24 has that mark.
        assert!(others.count() < 20);
        assert!(may_have(&recent, 1000, marks(1, None)));
        recent.mark(1000, marks(1, Some("other1")));
        assert!(may_have(&recent, 1000, marks(1, Some("p"))));
        assert!(may_have(&recent, 1000, marks(1, Some("other1"))));
    }

    #[test]
    fn of_a_slot_with_a_higher_id_nothing_is_known() {
        let recent = empty();
        let marks = marks(1, Some("p"));
        recent.mark(1000 + SLOTS, marks);
        recent.mark(1000, marks);
        assert!(may_have(&recent, 1000, marks));
        assert!(may_have(&recent, 1000, 1 << (MARKS - 1)));
        assert!(may_have(&recent, 1000 + SLOTS, marks));
        assert!(!may_have(&recent, 1000 + 2 * SLOTS, marks));
    }

    #[test]
    fn of_ids_before_this_memory_and_of_too_high_ones_nothing_is_known() {
        let recent = empty();
        recent.known_from.store(500, Ordering::Relaxed);
        assert!(may_have(&recent, 499, 1));
        assert!(!may_have(&recent, 500, 1));
        assert!(may_have(&recent, FIRST_TOO_HIGH, 1));
        recent.mark(FIRST_TOO_HIGH, 1);
        assert!(!may_have(&recent, FIRST_TOO_HIGH - SLOTS, 1));
    }
}
