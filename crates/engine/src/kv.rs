//! Markers: what an operation does to the marker that it finds.
//!
//! A marker is a value under a namespace and a key, with a version and, unless it is kept forever,
//! an expiry. An operation may *expect* that there is no marker, or that it has a certain version.
//! What arguments are accepted is in `args`.
//!
//! A marker whose expiry has come is no marker: no operation tells it from one that never was. So
//! its row may stay until a sweep deletes it.
//!
//! A decision is made on a row that was read without a lock, and holds for that row only. The
//! calling transaction writes under the condition that the row still has the version that was read.
//! Each write gives a version that no other write gives. If the row has changed, the caller reads
//! it again and asks for another decision.

mod args;

pub use args::{
    Expect, Invalid, MAX_KEY_BYTES, MAX_LIST_ROWS, MAX_NS_BYTES, MAX_VALUE_BYTES, Micros, Name,
    Number, Ttl, check_incr, check_key, check_max_rows, check_ns, check_value, expiry, range,
};

/// Why an operation was not applied.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum NotApplied {
    /// There is a marker, and none was expected.
    Exists,
    /// There is no marker, and one was expected.
    Absent,
    /// The marker has another version than was expected.
    Version,
    /// The sum would be below its minimum or above its maximum.
    Limit,
    /// The value is not a number.
    Type,
}

impl NotApplied {
    /// As users see it, in the column `reason`.
    pub const fn as_str(self) -> &'static str {
        match self {
            NotApplied::Exists => "exists",
            NotApplied::Absent => "absent",
            NotApplied::Version => "version",
            NotApplied::Limit => "limit",
            NotApplied::Type => "type",
        }
    }
}

/// An operation, without the value that it would store.
#[derive(Clone, Debug)]
pub enum Write<N> {
    Put { expect: Expect },
    Delete { expect: Expect },
    Incr { delta: N, min: Option<N>, max: Option<N> },
    Check { expect: Expect },
}

/// The row of a marker, whose expiry may have come.
#[derive(Clone, Debug)]
pub struct Found<N> {
    pub version: i64,
    /// None if it is kept forever.
    pub expires_at: Option<Micros>,
    /// The value, if it is a JSON number. Only `Incr` needs it.
    pub number: Option<N>,
}

impl<N> Found<N> {
    /// Whether there is a marker at `now`: before its expiry, not at it.
    pub fn is_live(&self, now: Micros) -> bool {
        self.expires_at.is_none_or(|end| end > now)
    }
}

/// What stands where a new value goes. It decides how the value is written: an expired row is
/// overwritten, and what is returned is as if there had been none.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Slot {
    Empty,
    Expired,
    Live,
}

/// What the caller does, if the row is still the one that was read.
#[derive(Clone, Debug, PartialEq)]
pub enum Decision<N> {
    /// It is not applied, and writes nothing.
    Refuse(NotApplied),
    /// It is applied: there is no marker, as was expected. Nothing is written.
    Agree,
    /// It is applied: the marker is as expected. Nothing is written, and the row is locked, so that
    /// the marker stays so to the end of the transaction.
    Hold,
    /// Store the value and the expiry of the operation.
    Store(Slot),
    /// Store this number. A live marker keeps its expiry.
    Count(Slot, N),
    /// Delete the row.
    Remove,
}

/// Decide what an operation does at `now`. `found` is the row of its marker, if there is one. An
/// error if an increment finds a number that is too large to add to.
pub fn decide<N: Number>(
    write: &Write<N>,
    found: Option<&Found<N>>,
    now: Micros,
) -> Result<Decision<N>, Invalid> {
    let live = found.filter(|row| row.is_live(now));
    let slot = match (found, live) {
        (None, _) => Slot::Empty,
        (Some(_), None) => Slot::Expired,
        (Some(_), Some(_)) => Slot::Live,
    };
    let version = live.map(|row| row.version);
    Ok(match write {
        Write::Put { expect } => match expect.failure(version) {
            Some(reason) => Decision::Refuse(reason),
            None => Decision::Store(slot),
        },
        Write::Delete { expect } => match (expect.failure(version), live) {
            (Some(reason), _) => Decision::Refuse(reason),
            (None, Some(_)) => Decision::Remove,
            (None, None) if *expect == Expect::Absent => Decision::Agree,
            (None, None) => Decision::Refuse(NotApplied::Absent),
        },
        Write::Check { expect } => match (expect.failure(version), live) {
            (Some(reason), _) => Decision::Refuse(reason),
            (None, Some(_)) => Decision::Hold,
            (None, None) => Decision::Agree,
        },
        Write::Incr { delta, min, max } => {
            let Some(sum) = sum(delta, live)? else {
                return Ok(Decision::Refuse(NotApplied::Type));
            };
            let below = min.as_ref().is_some_and(|min| sum < *min);
            let above = max.as_ref().is_some_and(|max| sum > *max);
            if below || above {
                Decision::Refuse(NotApplied::Limit)
            } else {
                Decision::Count(slot, sum)
            }
        }
    })
}

/// The number after an increment, which begins at zero if there is no marker. None if the value is
/// not a number.
fn sum<N: Number>(delta: &N, live: Option<&Found<N>>) -> Result<Option<N>, Invalid> {
    let Some(row) = live else { return Ok(Some(delta.clone())) };
    match &row.number {
        None => Ok(None),
        Some(number) if number.is_usable() => Ok(Some(number.plus(delta))),
        Some(_) => Err(Invalid::new(
            "the number is too large to be incremented",
            "It has more than 131071 digits before the point.",
            "Store a smaller number first.",
        )),
    }
}

#[cfg(test)]
mod model_tests;
#[cfg(test)]
mod tests;
