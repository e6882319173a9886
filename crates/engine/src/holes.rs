//! Which transactions may still bring segments up to a position: the *holes*.
//!
//! Segments become visible when their transaction commits, not in the order of their ids. A reader
//! that kept only a position would lose a segment whose transaction drew a low id and committed
//! after the reader had passed that id. Making pushes wait for each other would avoid this, and one
//! long transaction would then block the queue. So the reader keeps the holes beside the position,
//! and later reads what these transactions have brought.
//!
//! **The push rule**: the pushing transaction first gets its xid, then draws the id of the segment,
//! then writes the row. So a segment with a smaller id than one that is visible in a snapshot
//! belongs to a transaction that had its xid before the snapshot was taken. Those of them that the
//! snapshot does not see are its holes:
//!
//! - the transactions that it lists as running;
//! - all from its `xmax` on that have an xid by now. `xmax` follows the highest xid that had ended.
//!   A transaction above it may be running, and is in no list.
//!
//! A transaction that reads is no hole to itself. It sees its own segments, and those that it will
//! push later get higher ids.
//!
//! Holes that are no longer needed cost time, and a missing one loses messages. Where a set is not
//! known exactly, it is therefore taken wider.

use serde::de::Error as _;
use serde::{Deserialize, Deserializer, Serialize, Serializer};

use crate::codec::{Reader, Writer};

/// A set of xids, as half-open ranges in ascending order that neither overlap nor touch.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Holes(Vec<(u64, u64)>);

impl Holes {
    /// The empty set.
    pub fn none() -> Self {
        Self::default()
    }

    /// The union of half-open ranges, which may come in any order and overlap.
    pub fn from_ranges(mut ranges: Vec<(u64, u64)>) -> Self {
        ranges.retain(|(low, high)| low < high);
        ranges.sort_unstable();
        let mut merged: Vec<(u64, u64)> = Vec::with_capacity(ranges.len());
        for (low, high) in ranges {
            match merged.last_mut() {
                Some(last) if low <= last.1 => last.1 = last.1.max(high),
                _ => merged.push((low, high)),
            }
        }
        Self(merged)
    }

    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// The ranges, half-open and ascending.
    pub fn ranges(&self) -> &[(u64, u64)] {
        &self.0
    }

    pub fn contains(&self, xid: u64) -> bool {
        let after = self.0.partition_point(|&(low, _)| low <= xid);
        after > 0 && xid < self.0[after - 1].1
    }

    /// The lowest xid in the set that is not below `xid`.
    pub fn first_from(&self, xid: u64) -> Option<u64> {
        let at = self.0.partition_point(|&(_, high)| high <= xid);
        self.0.get(at).map(|&(low, _)| low.max(xid))
    }

    /// The xids of this set that are not in `other`.
    pub fn minus(&self, other: &Holes) -> Holes {
        let mut left = Vec::with_capacity(self.0.len());
        let mut cuts = other.0.iter().peekable();
        for &(mut low, high) in &self.0 {
            while cuts.next_if(|cut| cut.1 <= low).is_some() {}
            let mut ahead = cuts.clone();
            while let Some(&(cut_low, cut_high)) = ahead.next_if(|cut| cut.0 < high) {
                if low < cut_low {
                    left.push((low, cut_low));
                }
                low = low.max(cut_high);
            }
            if low < high {
                left.push((low, high));
            }
        }
        Holes(left)
    }

    /// This set without `xid`.
    pub fn without(&self, xid: u64) -> Holes {
        self.minus(&Holes(vec![(xid, xid + 1)]))
    }
}

// For each range, its distance from the end of the range before, then its length. A transaction
// takes two bytes or a few more.
impl Serialize for Holes {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut out = Writer::default();
        let mut end = 0;
        for &(low, high) in &self.0 {
            out.unsigned((low - end).into());
            out.unsigned((high - low).into());
            end = high;
        }
        serializer.serialize_bytes(&out.finish())
    }
}

impl<'de> Deserialize<'de> for Holes {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let bytes = <&[u8]>::deserialize(deserializer)?;
        decode_holes(bytes).ok_or_else(|| D::Error::custom("damaged set of transactions"))
    }
}

fn decode_holes(bytes: &[u8]) -> Option<Holes> {
    let mut input = Reader::new(bytes);
    let mut ranges = Vec::new();
    let mut end = 0u64;
    while !input.is_empty() {
        let low = end.checked_add(u64::try_from(input.unsigned()?).ok()?)?;
        let high = low.checked_add(u64::try_from(input.unsigned()?).ok()?)?;
        ranges.push((low, high));
        end = high;
    }
    Some(Holes::from_ranges(ranges))
}

/// What a snapshot says about transactions.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Snapshot {
    /// The transactions that had an xid and are not seen, except `own`.
    pub holes: Holes,
    /// The next xid that was to be assigned.
    pub next: u64,
    /// The xid of the transaction that reads, if it has one.
    pub own: Option<u64>,
}

impl Snapshot {
    /// `running` and `xmax` are those of the snapshot. `next` must have been read after the
    /// snapshot was taken: read before, it could leave out a transaction that began in between.
    pub fn new(running: &[u64], xmax: u64, next: u64, own: Option<u64>) -> Self {
        let mut ranges: Vec<_> = running.iter().map(|&xid| (xid, xid + 1)).collect();
        ranges.push((xmax, next));
        let holes = Holes::from_ranges(ranges);
        Self { holes: own.map_or(holes.clone(), |xid| holes.without(xid)), next, own }
    }

    /// Whether this is the xid of the transaction that reads.
    pub fn is_own(&self, xid: u64) -> bool {
        self.own == Some(xid)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::codec::{decode, encode};
    use proptest::prelude::*;
    use std::collections::BTreeSet;

    fn any_set() -> impl Strategy<Value = (Holes, BTreeSet<u64>)> {
        prop::collection::vec((0..200u64, 0..12u64), 0..12).prop_map(|ranges| {
            let set = ranges.iter().flat_map(|&(low, len)| low..low + len).collect();
            (Holes::from_ranges(ranges.iter().map(|&(l, n)| (l, l + n)).collect()), set)
        })
    }

    fn members(holes: &Holes) -> BTreeSet<u64> {
        holes.ranges().iter().flat_map(|&(low, high)| low..high).collect()
    }

    proptest! {
        #[test]
        fn ranges_are_the_set_they_were_made_of((holes, set) in any_set()) {
            prop_assert_eq!(members(&holes), set.clone());
            for xid in 0..220 {
                prop_assert_eq!(holes.contains(xid), set.contains(&xid));
            }
        }

        #[test]
        fn minus_is_set_difference((a, set_a) in any_set(), (b, set_b) in any_set()) {
            let expected: BTreeSet<_> = set_a.difference(&set_b).copied().collect();
            prop_assert_eq!(members(&a.minus(&b)), expected);
        }

        #[test]
        fn a_set_reads_back_as_written((holes, _) in any_set()) {
            prop_assert_eq!(decode::<Holes>(&encode(&holes)).unwrap(), holes);
        }

        #[test]
        fn damaged_bytes_never_panic(bytes in prop::collection::vec(any::<u8>(), 0..64)) {
            let _ = decode_holes(&bytes);
        }
    }

    #[test]
    fn a_transaction_above_xmax_that_runs_is_a_hole_and_the_own_one_is_not() {
        let snapshot = Snapshot::new(&[5, 8], 10, 14, Some(12));
        assert_eq!(snapshot.holes.ranges(), [(5, 6), (8, 9), (10, 12), (13, 14)]);
    }
}
