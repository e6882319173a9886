//! What a snapshot shows, to be compared with what another one shows.

use pgrx::pg_sys;

use super::seen_snapshot::widen;
use crate::pg::snapshot::ActiveSnapshot;

/// Which transactions a snapshot shows. Two snapshots of a session that are equal in this show the
/// same rows of every table.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Shown {
    /// It shows no transaction from this id on. Ids have their epoch.
    xmax: u64,
    /// Nor these, ascending.
    running: Vec<u64>,
    is_in_recovery: bool,
    /// What it shows of the session's own transaction, if that has written something.
    own: Option<OwnWrites>,
}

/// The session's own transaction, up to a command. In a subtransaction that is rolled back, later
/// commands have the numbers that its commands had.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct OwnWrites {
    xid: u64,
    command: u32,
    subtransaction: u32,
}

impl Shown {
    /// By the active snapshot.
    pub fn by(_under: &ActiveSnapshot) -> Self {
        // SAFETY: an `ActiveSnapshot` proves that there is an active snapshot; its lists hold as
        // many entries as it says. In recovery, all that run are in the second list.
        unsafe {
            let active = &*pg_sys::GetActiveSnapshot();
            let next = pg_sys::ReadNextFullTransactionId().value;
            let (list, count) = match active.takenDuringRecovery {
                true => (active.subxip, active.subxcnt as usize),
                false => (active.xip, active.xcnt as usize),
            };
            let full = |xid: pg_sys::TransactionId| widen(xid.into_inner(), next);
            let mut running: Vec<u64> = (0..count).map(|i| full(*list.add(i))).collect();
            running.sort_unstable();
            let xid = pg_sys::GetTopFullTransactionIdIfAny().value;
            let own = OwnWrites {
                xid,
                command: active.curcid,
                subtransaction: pg_sys::GetCurrentSubTransactionId(),
            };
            Self {
                xmax: full(active.xmax),
                running,
                is_in_recovery: active.takenDuringRecovery,
                own: (xid != 0).then_some(own),
            }
        }
    }

    /// Whether it shows only what is committed, by a list of the transactions that run.
    pub fn is_plain(&self) -> bool {
        self.own.is_none() && !self.is_in_recovery
    }

    /// Whether it shows all that `earlier` shows: each transaction that had ended for that one has
    /// ended for this one. Both are plain.
    pub fn shows_all_of(&self, earlier: &Self) -> bool {
        let ran = |xid: &u64| *xid >= earlier.xmax || earlier.running.binary_search(xid).is_ok();
        self.xmax >= earlier.xmax && self.running.iter().all(ran)
    }
}

#[cfg(test)]
mod tests {
    use super::Shown;

    fn shown(xmax: u64, running: &[u64]) -> Shown {
        Shown { xmax, running: running.to_vec(), is_in_recovery: false, own: None }
    }

    #[test]
    fn a_later_snapshot_shows_all_of_an_earlier_one_and_not_the_other_way_round() {
        let (earlier, later) = (shown(10, &[5, 8]), shown(12, &[8, 11]));
        assert!(later.shows_all_of(&earlier) && !earlier.shows_all_of(&later));
        assert!(earlier.shows_all_of(&earlier));
    }

    #[test]
    fn one_that_lists_what_had_ended_before_is_no_later_one() {
        // A transaction of the session itself, prepared since: it was in no list while it was open.
        assert!(!shown(12, &[7]).shows_all_of(&shown(10, &[5])));
    }
}
