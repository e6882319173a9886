//! Rows that change rarely, as a session remembers them.

use std::hash::Hash;

use super::changes;
use super::session_cache::SessionCache;
use super::snapshot::{ActiveSnapshot, one_snapshot_per_transaction};
use crate::error::Result;

/// Rows by a key of theirs. The transaction that changes one announces it (see [`changes`]).
pub struct RowCache<K, T> {
    rows: SessionCache<K, (u64, T)>,
    /// Bytes that a row takes besides itself.
    weigh: fn(&T) -> usize,
}

impl<K: Eq + Hash, T: Clone> RowCache<K, T> {
    /// Remembers up to `most` rows.
    pub fn of(most: usize) -> Self {
        Self::weighed(most, |_| 0)
    }

    /// Remembers up to `most` rows, as long as they do not take too many bytes: `weigh` tells how
    /// many one takes besides itself.
    pub fn weighed(most: usize, weigh: fn(&T) -> usize) -> Self {
        Self { rows: SessionCache::of(most), weigh }
    }

    /// The row of this key as it is at this moment: remembered, or read by `read`. In REPEATABLE
    /// READ `read` reads it each time, as the transaction sees it, and it is not remembered.
    pub fn get(
        &self,
        key: K,
        read: impl FnOnce(&ActiveSnapshot) -> Result<Option<T>>,
    ) -> Result<Option<T>> {
        if one_snapshot_per_transaction() {
            return ActiveSnapshot::new_snapshot(read);
        }
        changes::hear_all();
        let count = changes::count();
        let remembered =
            self.rows.change(&key, |(before, row)| (*before == count).then(|| row.clone()));
        if let Some(row) = remembered.flatten() {
            return Ok(Some(row));
        }
        let found = ActiveSnapshot::new_snapshot(read)?;
        if let Some(row) = &found {
            self.rows.keep_heavy(key, (count, row.clone()), (self.weigh)(row));
        }
        Ok(found)
    }
}
