//! What a session remembers of the database, as a cache: everything is right without it.

use std::cell::{Cell, RefCell};
use std::collections::HashMap;
use std::hash::Hash;

use crate::pg::allocator;

/// Values by key, up to a number of values and of bytes. When one more would exceed either, all are
/// forgotten. That is rare, and the session soon has again what it needs.
pub struct SessionCache<K, V> {
    most: usize,
    known: RefCell<HashMap<K, (V, usize)>>,
    bytes: Cell<usize>,
}

/// Bytes that values which grow with the data may take in one memory, for the life of a session.
const HEAVIEST: usize = 16 * 1024 * 1024;

impl<K: Eq + Hash, V> SessionCache<K, V> {
    pub fn of(most: usize) -> Self {
        Self { most, known: RefCell::default(), bytes: Cell::new(0) }
    }

    /// The value, which is not remembered from then on.
    pub fn take(&self, key: &K) -> Option<V> {
        let (value, bytes) = self.known.borrow_mut().remove(key)?;
        self.bytes.set(self.bytes.get() - bytes);
        Some(value)
    }

    /// Read, or change, a value that is there.
    pub fn change<T>(&self, key: &K, change: impl FnOnce(&mut V) -> T) -> Option<T> {
        self.known.borrow_mut().get_mut(key).map(|(value, _)| change(value))
    }

    pub fn keep(&self, key: K, value: V) {
        self.keep_heavy(key, value, 0);
    }

    /// Remember a value that takes about `bytes` bytes besides itself. While memory is short
    /// nothing is remembered: a cache is no reason to use the reserve.
    pub fn keep_heavy(&self, key: K, value: V, bytes: usize) {
        if allocator::is_scarce() {
            return;
        }
        self.take(&key);
        let mut known = self.known.borrow_mut();
        if known.len() >= self.most || self.bytes.get() + bytes > HEAVIEST {
            known.clear();
            self.bytes.set(0);
        }
        if bytes <= HEAVIEST {
            self.bytes.set(self.bytes.get() + bytes);
            known.insert(key, (value, bytes));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_kept_can_be_changed_and_one_too_many_clears_the_rest() {
        let memory = SessionCache::of(2);
        memory.keep('a', 1);
        memory.keep('b', 2);
        assert_eq!(memory.change(&'b', |value| std::mem::replace(value, 5)), Some(2));
        assert_eq!(memory.change(&'x', |value| *value), None);
        assert_eq!((memory.take(&'a'), memory.take(&'a')), (Some(1), None));
        memory.keep('c', 3);
        memory.keep('d', 4);
        assert_eq!(
            (memory.take(&'b'), memory.take(&'c'), memory.take(&'d')),
            (None, None, Some(4))
        );
    }

    #[test]
    fn what_is_kept_is_bounded_by_its_bytes_as_well() {
        let memory = SessionCache::of(100);
        memory.keep_heavy('a', 1, HEAVIEST / 2);
        memory.keep_heavy('a', 2, HEAVIEST / 2);
        memory.keep_heavy('b', 3, HEAVIEST / 2);
        assert_eq!((memory.take(&'a'), memory.take(&'b')), (Some(2), Some(3)));
        memory.keep_heavy('c', 4, HEAVIEST);
        memory.keep_heavy('d', 5, 1);
        memory.keep_heavy('e', 6, HEAVIEST + 1);
        assert_eq!((memory.take(&'c'), memory.take(&'d'), memory.take(&'e')), (None, None, None));
        memory.keep_heavy('f', 7, HEAVIEST);
        assert_eq!(memory.take(&'f'), Some(7));
    }
}
