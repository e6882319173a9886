//! A set of partition names that is read much more often than it is changed.
//!
//! Every pop reads the set of partitions that its group has heard of and not looked at yet, and
//! picks a few. The set can have 100,000 names. So it stays in the bytes that were stored, where
//! names are counted and found without a memory allocation for each. It becomes a tree only when it
//! is changed.

use std::borrow::Cow;
use std::collections::BTreeSet;

use serde::de::Error;
use serde::{Deserialize, Deserializer, Serialize, Serializer};

use crate::codec::{Reader, Writer};

/// A set of names, in ascending order.
#[derive(Clone, Debug, Default)]
pub struct Names {
    /// The names as stored, each behind its length. Not in use once `open` is there.
    packed: Vec<u8>,
    /// How many names are in `packed`.
    count: usize,
    /// The names as a tree, after the first change.
    open: Option<BTreeSet<String>>,
}

impl Names {
    pub fn len(&self) -> usize {
        self.open.as_ref().map_or(self.count, BTreeSet::len)
    }

    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The names, in ascending order.
    pub fn iter(&self) -> impl Iterator<Item = &str> {
        let stored = if self.open.is_none() { &self.packed[..] } else { &[] };
        packed(stored).chain(self.open.iter().flatten().map(String::as_str))
    }

    pub fn insert(&mut self, name: String) {
        self.opened().insert(name);
    }

    /// Remove the names for which `keep` does not hold.
    pub fn retain(&mut self, keep: impl FnMut(&String) -> bool) {
        self.opened().retain(keep);
    }

    fn opened(&mut self) -> &mut BTreeSet<String> {
        let stored = &self.packed;
        self.open.get_or_insert_with(|| packed(stored).map(str::to_owned).collect())
    }

    fn pack(&self) -> Cow<'_, [u8]> {
        let Some(names) = &self.open else { return Cow::Borrowed(&self.packed) };
        let mut writer = Writer::default();
        for name in names {
            writer.unsigned(name.len() as u128);
            writer.bytes(name.as_bytes());
        }
        Cow::Owned(writer.finish())
    }
}

/// The names in `bytes`, up to the first one that is damaged.
fn packed(bytes: &[u8]) -> impl Iterator<Item = &str> {
    let mut reader = Reader::new(bytes);
    std::iter::from_fn(move || {
        let length = usize::try_from(reader.unsigned()?).ok()?;
        std::str::from_utf8(reader.bytes(length)?).ok()
    })
}

impl PartialEq for Names {
    fn eq(&self, other: &Self) -> bool {
        self.iter().eq(other.iter())
    }
}

impl Eq for Names {}

impl Extend<String> for Names {
    fn extend<I: IntoIterator<Item = String>>(&mut self, names: I) {
        let mut names = names.into_iter().peekable();
        if names.peek().is_some() {
            self.opened().extend(names);
        }
    }
}

impl FromIterator<String> for Names {
    fn from_iter<I: IntoIterator<Item = String>>(names: I) -> Self {
        Self { open: Some(names.into_iter().collect()), ..Self::default() }
    }
}

impl Serialize for Names {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        (self.len() as u64, self.pack()).serialize(serializer)
    }
}

impl<'de> Deserialize<'de> for Names {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let (count, bytes) = <(u64, &[u8])>::deserialize(deserializer)?;
        let (bytes, count) = (bytes.to_vec(), count as usize);
        match packed(&bytes).count() == count {
            true => Ok(Self { packed: bytes, count, open: None }),
            false => Err(D::Error::custom("names that do not read back")),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::codec::{decode, encode};
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn a_packed_set_is_the_set(names: BTreeSet<String>, more: BTreeSet<String>) {
            let open: Names = names.iter().cloned().collect();
            let mut packed: Names = decode(&encode(&open)).unwrap();
            prop_assert_eq!(packed.len(), names.len());
            prop_assert!(packed.iter().eq(names.iter().map(String::as_str)));
            prop_assert_eq!(encode(&packed), encode(&open));

            let both: BTreeSet<String> = names.union(&more).cloned().collect();
            packed.extend(more.iter().cloned());
            prop_assert!(packed.iter().eq(both.iter().map(String::as_str)));
            packed.retain(|name| !names.contains(name));
            prop_assert_eq!(packed.len(), more.difference(&names).count());
        }

        #[test]
        fn any_bytes_are_read_without_panic(bytes: Vec<u8>) {
            let _ = decode::<Names>(&bytes);
        }
    }
}
