//! Key/value markers: what a name, an expiry and an expectation may be, and what an operation does
//! to the marker it finds.
//!
//! Everything here is pure: the row comes in as it was read, the decision goes out. A decision
//! holds for exactly the row it was made on; whoever carries it out writes on the condition that
//! the row is still that one (its version, which no two writes share), and asks again if not.
//!
//! Source: API.md, "Key/value markers" and fine print 13.

mod args;

pub use args::{
    Expect, Invalid, MAX_KEY_BYTES, MAX_LIST_ROWS, MAX_NS_BYTES, MAX_VALUE_BYTES, Micros, Name,
    Number, Ttl, check_incr, check_key, check_max_rows, check_ns, check_value, expiry, range,
};

/// Why a write was not applied.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum NotApplied {
    Exists,
    Absent,
    Version,
    Limit,
    Type,
}

impl NotApplied {
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

/// An operation that may write, without its value.
#[derive(Clone, Debug)]
pub enum Write<N> {
    Put { expect: Expect },
    Delete { expect: Expect },
    Incr { delta: N, min: Option<N>, max: Option<N> },
    Check { expect: Expect },
}

/// A row as it was read, expired or not.
#[derive(Clone, Debug)]
pub struct Found<N> {
    pub version: i64,
    /// None: never.
    pub expires_at: Option<Micros>,
    /// The value, where it is a JSON number. Needed for `Incr` only.
    pub number: Option<N>,
}

impl<N> Found<N> {
    /// At equality it is dead.
    pub fn is_live(&self, now: Micros) -> bool {
        self.expires_at.is_none_or(|end| end > now)
    }
}

/// What stands where a new value goes. The difference is how to write it, not what it means: an
/// expired row is overwritten as if it were not there.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Slot {
    Empty,
    Expired,
    Live,
}

/// What to do, on condition that the row is still the one decided on.
#[derive(Clone, Debug, PartialEq)]
pub enum Decision<N> {
    /// Not applied; nothing to do.
    Refuse(NotApplied),
    /// Applied: there is no marker, as expected. Nothing to do.
    Agree,
    /// Applied: the marker is as expected. Nothing to write, but it should stay so.
    Hold,
    /// Store the operation's value and expiry.
    Store(Slot),
    /// Store this number; over a live marker its expiry stays.
    Count(Slot, N),
    Remove,
}

/// Decide an operation on the row found, None being no row.
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

/// A marker that is not there counts as zero; None where the value is not a number.
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
