//! What a search for work finds for a group: a partition, or, in a group without order, the claim
//! of one message that may have come back. The state of a search remembers each by its name.

use std::fmt;

/// Stands between partition and claim in a name. No partition's name has control characters.
const BETWEEN: char = '\u{2}';

/// A partition or a claim; `to_string` gives its name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Unit<'a> {
    Partition(&'a str),
    Claim { partition: &'a str, id: u64 },
}

impl<'a> Unit<'a> {
    /// The unit that has this name.
    pub fn named(name: &'a str) -> Self {
        match name.split_once(BETWEEN).map(|(partition, id)| (partition, id.parse())) {
            Some((partition, Ok(id))) => Self::Claim { partition, id },
            _ => Self::Partition(name),
        }
    }

    /// The partition that it is, or that its message is in.
    pub fn partition(self) -> &'a str {
        match self {
            Self::Partition(partition) | Self::Claim { partition, .. } => partition,
        }
    }
}

impl fmt::Display for Unit<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Partition(partition) => f.write_str(partition),
            Self::Claim { partition, id } => write!(f, "{partition}{BETWEEN}{id}"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_unit_is_known_by_its_name() {
        for unit in [Unit::Partition("p 7"), Unit::Claim { partition: "p", id: 7 }] {
            assert_eq!(Unit::named(&unit.to_string()), unit);
        }
    }
}
