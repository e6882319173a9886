//! Up to where the log of a queue is empty: its *floor*.
//!
//! Segments are deleted at the low end of the log. While some transaction holds an old snapshot,
//! PostgreSQL keeps what is deleted, and a reader that began at the low end would step over all of
//! it. So the log has a low-water mark, and a reader begins there.
//!
//! A floor is derived under one snapshot, and stored by the transaction that derived it. It says
//! what the log holds **for each snapshot that shows the floor**: no segment below the floor, but
//! for those of the transactions in [`Floor::except`]. Why that is so:
//!
//! - A segment that the deriving snapshot did not show, for it was deleted, no later snapshot
//!   shows.
//! - A segment that it did not show, for its transaction had not ended, is of a hole of that
//!   snapshot. These are in `except`.
//! - A transaction that begins later has a higher xid than the floor, which is the xid of one that
//!   has committed, or of the one that stores the floor. (A crash gives xids again under which
//!   nothing was logged. It gives none below that of a transaction whose commit was kept.)
//!
//! In the order of xids a reader begins at [`Floor::xid`]. In the order of ids it needs a segment
//! id. The push rule gives it: a transaction gets its xid before it draws ids. So if at some moment
//! the next xid was X and the last id drawn was I, all transactions from X on have ids above I
//! (a *waterline*). If the floor's xid is no lower than X, all that is above the floor is above I.

use serde::{Deserialize, Serialize};

use crate::holes::{Holes, Snapshot};

/// A reader looks at each exception by itself, so a floor has no more than so many.
const MOST: u64 = 64;

/// The floor of the log of one queue, as stored.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Floor {
    /// No transaction below this xid has segments in the log, except those of `except`.
    pub xid: u64,
    /// No segment up to this id is in the log, except those of `except`.
    pub segment: u64,
    /// Transactions below `xid` that may have segments in the log.
    pub except: Holes,
}

impl Floor {
    /// The floor, raised to `first`: the lowest xid, from the present floor on, that has a segment
    /// which `snapshot` shows; or else that of the transaction that will store the floor. `kept`:
    /// the exceptions of the present floor that may still have segments. The segment id stays.
    pub fn raised(&self, first: u64, kept: &Holes, snapshot: &Snapshot) -> Self {
        let first = first.max(self.xid);
        let not_shown = snapshot.holes.ranges().iter().copied();
        let own = snapshot.own.map(|own| (own, own + 1));
        let between = |(low, high): (u64, u64)| (low.max(self.xid), high.min(first));
        let mut except = kept.ranges().to_vec();
        except.extend(not_shown.chain(own).map(between));
        let (except, xid) = first_of(&Holes::from_ranges(except), first);
        Self { xid, segment: self.segment, except }
    }

    /// The floor with another segment id, which every transaction from `xid` on exceeds.
    pub fn with_segment(self, segment: u64) -> Self {
        Self { segment: segment.max(self.segment), ..self }
    }
}

/// From which moment on a queue may have timers, as stored. Timers are deleted at the low end of
/// their index as well, and have no xid to be looked up by.
///
/// It holds for each snapshot that shows it: no timer of the queue has a moment before
/// [`TimerFloor::from`], which knows of that snapshot. The scheduling transaction gets an xid
/// first, then looks at the clock, and sets the timer for that moment or later. So a transaction
/// that had no xid when a snapshot was taken has no timer before that time, and one that had one is
/// a hole of the snapshot.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct TimerFloor {
    /// No timer has a moment before this one, except those of `except`.
    pub at: i64,
    /// Transactions that had not ended, each with the moment from which on it may have timers.
    pub except: Vec<(u64, i64)>,
}

impl TimerFloor {
    /// The moment from which on the snapshot may show timers.
    pub fn from(&self, snapshot: &Snapshot) -> i64 {
        let ended = self.except.iter().filter(|(xid, _)| !snapshot.holes.contains(*xid));
        ended.map(|(_, from)| *from).fold(self.at, i64::min)
    }

    /// The floor, raised to `at`. An earlier snapshot, which had the holes `then`, was taken no
    /// earlier than `at`, and `snapshot` shows no timer before `at`. The floor stays where too many
    /// transactions have run since then.
    pub fn raised(&self, at: i64, then: &Holes, snapshot: &Snapshot) -> Self {
        let still_runs = |xid: &u64| snapshot.holes.contains(*xid) || snapshot.is_own(*xid);
        let mut except: Vec<(u64, i64)> =
            self.except.iter().copied().filter(|(xid, _)| still_runs(xid)).collect();
        for &(low, high) in then.ranges() {
            if high - low > MOST {
                return self.clone();
            }
            for xid in (low..high).filter(still_runs) {
                if except.iter().all(|(known, _)| *known != xid) {
                    except.push((xid, self.at));
                }
            }
        }
        match except.len() as u64 > MOST || at <= self.at {
            true => self.clone(),
            false => Self { at, except },
        }
    }
}

/// The first [`MOST`] of the exceptions, and up to where the log is empty but for them.
fn first_of(except: &Holes, xid: u64) -> (Holes, u64) {
    let mut left = MOST;
    let mut first = Vec::new();
    for &(low, high) in except.ranges() {
        if high - low > left {
            first.push((low, low + left));
            return (Holes::from_ranges(first), low + left);
        }
        left -= high - low;
        first.push((low, high));
    }
    (except.clone(), xid)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_not_shown_below_the_floor_is_excepted() {
        let snapshot = Snapshot::new(&[5, 12, 30], 40, 42, Some(33));
        let floor = Floor { xid: 10, ..Floor::default() }.raised(50, &Holes::none(), &snapshot);
        assert_eq!(floor.xid, 50);
        // 5 is below the floor that was there before, which said that it has nothing.
        assert_eq!(floor.except.ranges(), [(12, 13), (30, 31), (33, 34), (40, 42)]);
        let next = Snapshot::new(&[30], 60, 60, Some(55));
        let kept = Holes::from_ranges(vec![(30, 31)]);
        let floor = floor.raised(55, &kept, &next).with_segment(7);
        assert_eq!((floor.xid, floor.segment, floor.except.ranges()), (55, 7, &[(30, 31)][..]));
    }

    #[test]
    fn timers_of_a_transaction_that_ran_are_looked_for_when_it_has_ended() {
        let runs = |xids: &[u64], next| Snapshot::new(xids, next, next, None);
        let (first, second) = (runs(&[5, 6], 10), runs(&[5], 12));
        let floor = TimerFloor { at: 100, except: vec![] }.raised(200, &first.holes, &second);
        // 6 has ended, and the second snapshot shows no timer of it before 200.
        assert_eq!(floor, TimerFloor { at: 200, except: vec![(5, 100)] });
        assert_eq!((floor.from(&second), floor.from(&runs(&[], 12))), (200, 100));
        let third = runs(&[5, 11], 20);
        let floor = floor.raised(300, &runs(&[5, 11], 12).holes, &third);
        assert_eq!(floor.except, [(5, 100), (11, 200)]);
        assert_eq!((floor.from(&third), floor.from(&runs(&[5], 30))), (300, 200));
        assert_eq!(floor.raised(250, &Holes::none(), &third), floor);
    }

    #[test]
    fn a_floor_is_never_lowered() {
        let floor = Floor { xid: 10, segment: 3, except: Holes::none() };
        let snapshot = Snapshot::new(&[], 20, 20, None);
        let same = floor.raised(4, &Holes::none(), &snapshot).with_segment(2);
        assert_eq!(same, floor);
    }

    #[test]
    fn a_floor_with_too_many_exceptions_stays_lower() {
        let snapshot = Snapshot::new(&[7], 100, 1_000, Some(2_000));
        let floor = Floor::default().raised(1_500, &Holes::none(), &snapshot);
        assert_eq!(floor.xid, 163);
        assert_eq!(floor.except.ranges(), [(7, 8), (100, 163)]);
    }
}
