//! What a role may do: which privileges it has, and on what.
//!
//! A *grant* gives a role a privilege on one queue, or on one namespace of markers, by its name; or
//! on all of them, also on those that come later. A name need not belong to anything yet.

use std::collections::HashSet;

/// What can be granted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Privilege {
    /// To push to a queue, now or later.
    Push,
    /// To pop from a queue and to settle, which includes to register groups and to read payloads.
    Pop,
    /// To change a queue and its groups by hand.
    Manage,
    /// To see the figures of a queue.
    Monitor,
    /// To read the markers of a namespace.
    Read,
    /// To write the markers of a namespace.
    Write,
    /// To do everything, as the owner of the extension. It is on all there is.
    Owner,
}

/// What a privilege is on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum GrantedOn {
    Queue,
    Namespace,
    Everything,
}

impl Privilege {
    pub const ALL: [Self; 7] =
        [Self::Push, Self::Pop, Self::Manage, Self::Monitor, Self::Read, Self::Write, Self::Owner];

    pub const fn name(self) -> &'static str {
        match self {
            Self::Push => "push",
            Self::Pop => "pop",
            Self::Manage => "manage",
            Self::Monitor => "monitor",
            Self::Read => "read",
            Self::Write => "write",
            Self::Owner => "owner",
        }
    }

    /// The privilege of this name, if there is one.
    pub fn named(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|privilege| privilege.name() == name)
    }

    pub const fn on(self) -> GrantedOn {
        match self {
            Self::Push | Self::Pop | Self::Manage | Self::Monitor => GrantedOn::Queue,
            Self::Read | Self::Write => GrantedOn::Namespace,
            Self::Owner => GrantedOn::Everything,
        }
    }
}

/// What a grant has in place of a name if it is on all queues, or on all namespaces: no name is
/// empty.
pub const ALL_OF_THEM: &str = "";

/// All that a role may do.
#[derive(Clone, Debug, Default)]
pub struct Rights {
    is_owner: bool,
    /// By the number of the privilege.
    scopes: [GrantScope; Privilege::ALL.len()],
}

/// On what a role has a privilege.
#[derive(Clone, Debug, Default)]
struct GrantScope {
    is_on_all: bool,
    names: HashSet<Box<str>>,
}

impl Rights {
    /// Those of the owner of the extension.
    pub fn of_owner() -> Self {
        Self { is_owner: true, ..Self::default() }
    }

    /// Add what a grant gives; `name` may be [`ALL_OF_THEM`].
    pub fn add(&mut self, privilege: Privilege, name: &str) {
        let scope = &mut self.scopes[privilege as usize];
        match (privilege, name) {
            (Privilege::Owner, _) => self.is_owner = true,
            (_, ALL_OF_THEM) => scope.is_on_all = true,
            (_, name) => {
                scope.names.insert(name.into());
            }
        }
    }

    pub fn is_owner(&self) -> bool {
        self.is_owner
    }

    /// Whether the role has the privilege on the queue, or the namespace, of this name.
    pub fn allow(&self, privilege: Privilege, name: &str) -> bool {
        self.allow_all(privilege) || self.scopes[privilege as usize].names.contains(name)
    }

    /// Whether the role has the privilege on all queues, or all namespaces.
    pub fn allow_all(&self, privilege: Privilege) -> bool {
        self.is_owner || self.scopes[privilege as usize].is_on_all
    }

    /// Whether the role has the privilege on anything.
    pub fn allow_some(&self, privilege: Privilege) -> bool {
        self.allow_all(privilege) || !self.scopes[privilege as usize].names.is_empty()
    }

    /// About how many bytes the names take.
    pub fn size(&self) -> usize {
        let names = self.scopes.iter().flat_map(|scope| &scope.names);
        names.map(|name| 2 * size_of::<Box<str>>() + name.len()).sum()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_privilege_is_known_by_its_name_alone() {
        for privilege in Privilege::ALL {
            assert_eq!(Privilege::named(privilege.name()), Some(privilege));
            assert_eq!(Privilege::ALL[privilege as usize], privilege);
        }
        for name in ["", "Push", "push ", "all", "usage", "poppush"] {
            assert_eq!(Privilege::named(name), None);
        }
    }

    #[test]
    fn without_a_grant_nothing_is_allowed() {
        let none = Rights::default();
        for privilege in Privilege::ALL {
            assert!(!none.allow(privilege, "q") && !none.allow_all(privilege));
            assert!(!none.allow_some(privilege));
        }
        assert!(!none.is_owner());
        assert_eq!(none.size(), 0);
    }

    #[test]
    fn a_grant_is_of_one_privilege_on_one_name() {
        for granted in &Privilege::ALL[..6] {
            let mut rights = Rights::default();
            rights.add(*granted, "q");
            for privilege in Privilege::ALL {
                assert_eq!(rights.allow(privilege, "q"), privilege == *granted);
                assert_eq!(rights.allow_some(privilege), privilege == *granted);
                assert!(!rights.allow_all(privilege));
                for other in ["", "Q", "q ", "r", "qq"] {
                    assert!(!rights.allow(privilege, other), "{other:?}");
                }
            }
            assert!(rights.size() > 0);
        }
    }

    #[test]
    fn a_grant_on_all_is_on_each_name() {
        for granted in &Privilege::ALL[..6] {
            let mut rights = Rights::default();
            rights.add(*granted, ALL_OF_THEM);
            for privilege in Privilege::ALL {
                assert_eq!(rights.allow(privilege, "any"), privilege == *granted);
                assert_eq!(rights.allow_all(privilege), privilege == *granted);
                assert_eq!(rights.allow_some(privilege), privilege == *granted);
            }
            assert!(!rights.is_owner());
        }
    }

    #[test]
    fn the_owner_may_do_everything() {
        let mut granted = Rights::default();
        granted.add(Privilege::Owner, ALL_OF_THEM);
        for rights in [Rights::of_owner(), granted] {
            assert!(rights.is_owner());
            for privilege in Privilege::ALL {
                assert!(rights.allow(privilege, "any") && rights.allow_all(privilege));
                assert!(rights.allow_some(privilege));
            }
        }
    }
}
