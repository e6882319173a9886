//! Relations that a call has opened, kept open to its end, so that each is opened and locked once.
//! (The locks are kept to the end of the transaction in any case.)
//!
//! PostgreSQL wants an open relation to be closed under the resource owner under which it was
//! opened. A subtransaction has an owner of its own, so it opens its relations itself, and they are
//! closed before it is kept. Where a transaction or a subtransaction is rolled back, its owner
//! closes them, and here they are only forgotten.
//!
//! While a relation is open, this session can't alter it. So before code runs that may want to, for
//! instance a trigger, all that are not in use are closed ([`close_unused`]).

use std::cell::{Cell, RefCell};
use std::ffi::c_char;
use std::ptr;

use pgrx::pg_sys;

/// By what the code asks for a relation: the address of its name, or its OID; and the lock.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum RelationKey {
    Name(*const c_char, i32),
    Oid(pg_sys::Oid, i32),
}

struct Kept {
    key: RelationKey,
    /// NULL: it has been closed.
    relation: pg_sys::Relation,
    owner: pg_sys::ResourceOwner,
    /// The count of changes when it was opened.
    changes: u64,
    users: usize,
}

thread_local! {
    static KEPT: RefCell<Vec<Kept>> = const { RefCell::new(Vec::new()) };
    /// From which place on [`KEPT`] has relations of the innermost call; None outside of calls.
    static FROM: Cell<Option<usize>> = const { Cell::new(None) };
}

/// A relation in use.
pub struct InUse {
    pub relation: pg_sys::Relation,
    /// Its place in [`KEPT`]; None: it is not kept.
    place: Option<usize>,
}

impl InUse {
    /// A relation that is kept open under this key, and was opened since the last of `changes`.
    pub fn kept(key: RelationKey, changes: u64) -> Option<Self> {
        let from = FROM.get()?;
        KEPT.with_borrow_mut(|kept| {
            let owner = owner();
            let is_it = |open: &Kept| {
                let is_open = !open.relation.is_null() && open.owner == owner;
                is_open && open.key == key && open.changes == changes
            };
            let place = from + kept.get(from..)?.iter().position(is_it)?;
            let open = kept.get_mut(place)?;
            open.users += 1;
            Some(Self { relation: open.relation, place: Some(place) })
        })
    }

    /// A relation that has just been opened, to be kept from now on.
    pub fn opened(key: RelationKey, changes: u64, relation: pg_sys::Relation) -> Self {
        let place = FROM.get().map(|from| {
            let owner = owner();
            let new = Kept { key, relation, owner, changes, users: 1 };
            // One that was opened before the last change is of no more use.
            let is_old = |open: &Kept| open.key == key && open.owner == owner && open.users == 0;
            let (place, old) =
                KEPT.with_borrow_mut(|kept| match kept.iter().skip(from).position(is_old) {
                    Some(at) => (from + at, Some(std::mem::replace(&mut kept[from + at], new))),
                    None => {
                        kept.push(new);
                        (kept.len() - 1, None)
                    }
                });
            old.into_iter().for_each(|old| close(old.relation));
            place
        });
        Self { relation, place }
    }

    /// Give the relation back.
    pub fn close(self) {
        let Some(place) = self.place else {
            close(self.relation);
            return;
        };
        KEPT.with_borrow_mut(|kept| {
            if let Some(open) = kept.get_mut(place) {
                open.users = open.users.saturating_sub(1);
            }
        });
    }
}

fn owner() -> pg_sys::ResourceOwner {
    // SAFETY: a plain global of the backend.
    unsafe { pg_sys::CurrentResourceOwner }
}

/// NULL: it has been closed.
fn close(relation: pg_sys::Relation) {
    if !relation.is_null() {
        // SAFETY: it is open, and was opened under the owner that is current. The lock stays.
        unsafe { pg_sys::relation_close(relation, pg_sys::NoLock as i32) };
    }
}

/// Close those of the innermost call, and of the subtransaction, that are not in use. Places stay
/// what they are while a relation behind them is in use.
pub fn close_unused() {
    let Some(from) = FROM.get() else { return };
    let unused = KEPT.with_borrow_mut(|kept| {
        let is_unused = |open: &&mut Kept| open.users == 0 && open.owner == owner();
        let ours = kept.iter_mut().skip(from).filter(is_unused);
        let closed = ours.map(|open| std::mem::replace(&mut open.relation, ptr::null_mut()));
        let closed: Vec<pg_sys::Relation> = closed.collect();
        let is_gone = |open: &Kept| open.relation.is_null() && open.owner == owner();
        while kept.len() > from && kept.last().is_some_and(is_gone) {
            kept.pop();
        }
        closed
    });
    unused.into_iter().for_each(close);
}

/// Take those from this place on off the list, and close them.
fn close_from(place: usize) {
    let open = KEPT.with_borrow_mut(|kept| {
        let place = place.min(kept.len());
        kept.drain(place..).map(|open| open.relation).collect::<Vec<_>>()
    });
    open.into_iter().for_each(close);
}

/// The relations of one call. Without [`CallRelations::end`], because of an ERROR, they are
/// forgotten.
pub struct CallRelations {
    from: usize,
    outer: Option<usize>,
}

impl CallRelations {
    pub fn begin() -> Self {
        let from = KEPT.with_borrow(Vec::len);
        Self { from, outer: FROM.replace(Some(from)) }
    }

    /// Close all that the call has left open.
    pub fn end(self) {
        close_from(self.from);
    }
}

impl Drop for CallRelations {
    fn drop(&mut self) {
        KEPT.with_borrow_mut(|kept| kept.truncate(self.from));
        FROM.set(self.outer);
    }
}

/// Where the relations of a subtransaction begin.
#[derive(Clone, Copy)]
pub struct Mark(usize);

impl Mark {
    pub fn here() -> Self {
        Self(KEPT.with_borrow(Vec::len))
    }

    /// The subtransaction is about to be kept: close what it has opened.
    pub fn close(self) {
        close_from(self.0);
    }

    /// The subtransaction is about to be rolled back.
    pub fn forget(self) {
        KEPT.with_borrow_mut(|kept| kept.truncate(self.0));
    }
}
