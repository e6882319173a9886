//! Rows that change rarely, as a session remembers them.

use std::hash::Hash;

use super::changes;
use super::session_cache::SessionCache;
use super::snapshot::{ActiveSnapshot, one_snapshot_per_transaction};
use crate::error::Result;

/// Rows by a key of theirs. The transaction that changes one announces it (see [`changes`]).
pub struct RowCache<K, T>(SessionCache<K, (u64, T)>);

impl<K: Eq + Hash, T: Clone> RowCache<K, T> {
    /// Remembers up to `most` rows.
    pub fn of(most: usize) -> Self {
        Self(SessionCache::of(most))
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
            self.0.change(&key, |(before, row)| (*before == count).then(|| row.clone()));
        if let Some(row) = remembered.flatten() {
            return Ok(Some(row));
        }
        let found = ActiveSnapshot::new_snapshot(read)?;
        if let Some(row) = &found {
            self.0.keep(key, (count, row.clone()));
        }
        Ok(found)
    }
}
