//! Transactions, as the tables store their ids: which of them a snapshot does not show, and which
//! one this session's is. Reads the backend's memory and shared memory, no table.

use pgrx::pg_sys;
use queen_engine::holes::Snapshot;

use super::identity::Identity;
use crate::pg::snapshot::ActiveSnapshot;

/// What a snapshot shows, in stored transaction ids. `xmax`: the snapshot shows no transaction from
/// this id on.
#[derive(Clone, Debug)]
pub struct SeenSnapshot {
    pub snapshot: Snapshot,
    pub xmax: u64,
    /// A stored transaction id is the cluster's own plus this.
    xid_offset: u64,
}

impl SeenSnapshot {
    /// A stored transaction id as PostgreSQL counts; None for one of the cluster that a dump was
    /// taken from.
    pub fn own_xid(&self, stored: u64) -> Option<u64> {
        stored.checked_sub(self.xid_offset)
    }
}

/// Read which transactions the active snapshot does not show. The next transaction id is read after
/// the snapshot was taken, as the engine demands (`holes::Snapshot`).
pub fn describe(_under: &ActiveSnapshot, identity: Identity) -> SeenSnapshot {
    // SAFETY: an `ActiveSnapshot` proves that there is an active snapshot; its xip holds xcnt
    // entries. A session that may push is not in recovery, so these are the running top-level
    // transactions.
    unsafe {
        let active = &*pg_sys::GetActiveSnapshot();
        let next = pg_sys::ReadNextFullTransactionId().value;
        let full = |xid: pg_sys::TransactionId| widen(xid.into_inner(), next) + identity.xid_offset;
        let running: Vec<u64> =
            (0..active.xcnt as usize).map(|i| full(*active.xip.add(i))).collect();
        let own = pg_sys::GetTopFullTransactionIdIfAny().value;
        let own = (own != 0).then(|| own + identity.xid_offset);
        let xmax = full(active.xmax);
        SeenSnapshot {
            snapshot: Snapshot::new(&running, xmax, next + identity.xid_offset, own),
            xmax,
            xid_offset: identity.xid_offset,
        }
    }
}

/// This transaction's id. Assigns one if it has none yet; error 25006 in a READ ONLY transaction. A
/// transaction that pushes calls this before it draws a segment id: that is the push rule.
pub fn assign_xid(identity: Identity) -> u64 {
    // SAFETY: raises an ERROR where nothing may be written, or no id can be assigned.
    let own = unsafe {
        pg_sys::PreventCommandIfReadOnly(c"a function of queen_mq that writes".as_ptr());
        pg_sys::GetTopFullTransactionId().value
    };
    own + identity.xid_offset
}

/// A transaction, or a subtransaction, of this session that has written something.
#[derive(Clone, Copy, Debug)]
pub struct WritingTransaction(pg_sys::FullTransactionId);

impl WritingTransaction {
    /// The innermost one that is open, if it has an id.
    pub fn current() -> Option<Self> {
        // SAFETY: reads the backend's memory.
        unsafe {
            let has_id = pg_sys::GetCurrentTransactionIdIfAny() != pg_sys::InvalidTransactionId;
            has_id.then(|| Self(pg_sys::GetCurrentFullTransactionId()))
        }
    }

    /// Whether what it wrote is still there, for this session alone to see: neither it, nor a
    /// transaction around it, has been committed to others or rolled back.
    pub fn is_open(self) -> bool {
        let xid = pg_sys::TransactionId::from(self.0.value as u32);
        // SAFETY: reads the backend's memory.
        unsafe {
            let top = pg_sys::GetTopFullTransactionIdIfAny().value;
            top != 0 && top <= self.0.value && pg_sys::TransactionIdIsCurrentTransactionId(xid)
        }
    }
}

/// A 32-bit transaction id that is not in the future of `next`, with its epoch.
pub(super) fn widen(xid: u32, next: u64) -> u64 {
    let epoch = next >> 32;
    let behind = u64::from(xid) > (next & 0xffff_ffff);
    (epoch - u64::from(behind && epoch > 0)) << 32 | u64::from(xid)
}

#[cfg(test)]
mod tests {
    use super::widen;

    #[test]
    fn an_xid_from_before_the_wraparound_belongs_to_the_epoch_before() {
        assert_eq!(widen(7, 3 << 32 | 9), 3 << 32 | 7);
        assert_eq!(widen(0xffff_fff0, 3 << 32 | 9), 2 << 32 | 0xffff_fff0);
        assert_eq!(widen(9, 3 << 32 | 9), 3 << 32 | 9);
    }
}
