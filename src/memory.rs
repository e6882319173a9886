//! What a session remembers of the database, as a cache: everything is right without it.

use std::cell::RefCell;
use std::collections::HashMap;
use std::hash::Hash;

use crate::allocator;

/// Values by key, up to so many; with one more, all are forgotten. That is rare, and what is needed is
/// soon known again.
pub struct Memory<K, V> {
    most: usize,
    known: RefCell<HashMap<K, V>>,
}

impl<K: Eq + Hash, V> Memory<K, V> {
    pub fn of(most: usize) -> Self {
        Self { most, known: RefCell::default() }
    }

    /// The value, which is not remembered from then on.
    pub fn take(&self, key: &K) -> Option<V> {
        self.known.borrow_mut().remove(key)
    }

    /// Read, or change, a value that is there.
    pub fn change<T>(&self, key: &K, change: impl FnOnce(&mut V) -> T) -> Option<T> {
        self.known.borrow_mut().get_mut(key).map(change)
    }

    /// Unless memory is short: there is too little of it for what is only convenient.
    pub fn keep(&self, key: K, value: V) {
        if allocator::is_scarce() {
            return;
        }
        let mut known = self.known.borrow_mut();
        if known.len() >= self.most {
            known.clear();
        }
        known.insert(key, value);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_kept_can_be_changed_and_one_too_many_clears_the_rest() {
        let memory = Memory::of(2);
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
}
