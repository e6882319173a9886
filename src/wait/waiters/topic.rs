//! What sessions wait for, and what transactions bring, as hashes.

use std::hash::{DefaultHasher, Hash, Hasher};

use crate::pg::process;
use crate::pg::shared::plain;
use crate::pg::snapshot::one_snapshot_per_transaction;

/// What a session waits for, as a hash. Where two topics have one hash, a commit may wake a session
/// of the other one as well; that one finds nothing and sleeps on.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct Topic(pub(in crate::wait) u64);

impl Topic {
    /// Pushes to the queue of this name.
    pub fn queue(name: &str) -> Self {
        Self(hash(name))
    }

    /// Partitions that become ready for the group of this id.
    pub fn group(id: i64) -> Self {
        Self(hash(id))
    }

    /// A group of a queue, registered or not.
    pub fn consumer(queue: &str, group: &str) -> Self {
        // A session that sees nothing new must not stand for others.
        let alone = one_snapshot_per_transaction().then(std::process::id);
        Self(hash((queue, group, alone)))
    }
}

/// A partition of any queue, as a hash; or any partition.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct PartitionHash(u64);

plain!(PartitionHash(hash));

impl PartitionHash {
    pub const ANY: Self = Self(0);

    pub fn of(name: &str) -> Self {
        Self(hash(name) | 1)
    }

    /// Whether a session that waits for `self` is concerned by what came in `other`.
    pub(super) fn meets(self, other: Self) -> bool {
        self == Self::ANY || other == Self::ANY || self == other
    }
}

fn hash(what: impl Hash) -> u64 {
    let mut hasher = DefaultHasher::new();
    (process::database().to_u32(), what).hash(&mut hasher);
    hasher.finish()
}

/// What a session waits for.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct Wanted {
    pub queue: Topic,
    /// None as long as the group is not registered.
    pub group: Option<Topic>,
    /// Queue and group by their names: a commit wakes one session of each.
    pub consumer: Topic,
    /// The partition that it waits for alone; or any.
    pub partition: PartitionHash,
}
