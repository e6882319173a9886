//! The cursors, claims and states of some groups, read page by page: first all pages of the three
//! tables, later those that have changed. For a reader of nearly everything, this costs a small
//! part of what look-ups by key cost.

use queen_engine::cursor::Cursor;

use super::claim::{self, CLAIMS, ClaimRow};
use super::cursor::{self, CURSORS};
use super::progress::{self, PROGRESS};
use crate::error::Result;
use crate::pg::page_watch::{self, PageWatch, RowVisitor};
use crate::pg::scan::Tuple;
use crate::pg::snapshot::ActiveSnapshot;

/// Hears what has changed in the groups that it follows.
pub trait GroupVisitor {
    fn follows(&self, group: i64) -> bool;
    /// A cursor is visible that was not. `place`: where its row lies.
    fn cursor_came(&mut self, id: u64, place: u64, group: i64, partition: String);
    fn claim_came(&mut self, claim: ClaimRow);
    /// The cursor or claim of this id, whose row lay there, is gone.
    fn went(&mut self, group: i64, id: u64, place: u64);
    /// A state of a cursor or claim is visible that was not.
    fn state_came(&mut self, state: StateName, read: &dyn Fn() -> Result<Cursor>) -> Result<()>;
    fn state_went(&mut self, state: StateName);
}

/// Which state of which cursor or claim.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct StateName {
    pub group: i64,
    pub id: u64,
    pub revision: i64,
}

/// The row of a cursor or claim: its group, its id, where it lies.
type RowName = (i64, u64, u64);

/// What is remembered of the pages.
pub struct GroupPages {
    cursors: PageWatch<RowName>,
    claims: PageWatch<RowName>,
    states: PageWatch<StateName>,
}

/// Whether the tables can be read page by page.
pub fn are_watchable() -> bool {
    [&CURSORS, &CLAIMS, &PROGRESS].into_iter().all(page_watch::is_watchable)
}

/// How many pages hold states.
pub fn count() -> usize {
    page_watch::pages_of(&PROGRESS)
}

impl GroupPages {
    pub fn unread() -> Self {
        Self { cursors: PageWatch::new(), claims: PageWatch::new(), states: PageWatch::new() }
    }

    /// The visitor follows more groups from now on: the next reading tells of all that they have.
    pub fn read_all_again(&mut self) {
        self.cursors.read_all_again();
        self.claims.read_all_again();
        self.states.read_all_again();
    }

    /// How many rows and pages are remembered.
    pub fn size(&self) -> usize {
        self.cursors.size() + self.claims.size() + self.states.size()
    }

    /// Tell `visitor` what has changed since the last reading ([`PageWatch::read`]): cursors and
    /// claims first. False: a table was rewritten, and what was told does not hold any more.
    pub fn read(
        &mut self,
        visitor: &mut impl GroupVisitor,
        under: &ActiveSnapshot,
    ) -> Result<bool> {
        Ok(self.cursors.read(&CURSORS, under, &mut CursorRows(visitor))?
            && self.claims.read(&CLAIMS, under, &mut ClaimRows(visitor))?
            && self.states.read(&PROGRESS, under, &mut StateRows(visitor))?)
    }
}

struct CursorRows<'a, V>(&'a mut V);

impl<V: GroupVisitor> RowVisitor<RowName> for CursorRows<'_, V> {
    fn came(&mut self, row: &Tuple) -> Result<Option<RowName>> {
        if !self.0.follows(cursor::group_in(row)) {
            return Ok(None);
        }
        let ((id, group, partition), place) = (cursor::name_of(row), row.place().number());
        self.0.cursor_came(id, place, group, partition);
        Ok(Some((group, id, place)))
    }

    fn went(&mut self, (group, id, place): RowName) {
        self.0.went(group, id, place);
    }
}

struct ClaimRows<'a, V>(&'a mut V);

impl<V: GroupVisitor> RowVisitor<RowName> for ClaimRows<'_, V> {
    fn came(&mut self, row: &Tuple) -> Result<Option<RowName>> {
        if !self.0.follows(claim::group_in(row)) {
            return Ok(None);
        }
        let claim = ClaimRow::read(row);
        let name = (claim.group, claim.id, claim.place.number());
        self.0.claim_came(claim);
        Ok(Some(name))
    }

    fn went(&mut self, (group, id, place): RowName) {
        self.0.went(group, id, place);
    }
}

struct StateRows<'a, V>(&'a mut V);

impl<V: GroupVisitor> RowVisitor<StateName> for StateRows<'_, V> {
    fn came(&mut self, row: &Tuple) -> Result<Option<StateName>> {
        let (group, id, revision) = progress::name_of(row);
        if !self.0.follows(group) {
            return Ok(None);
        }
        let state = StateName { group, id, revision };
        self.0.state_came(state, &|| progress::state_in(row))?;
        Ok(Some(state))
    }

    fn went(&mut self, state: StateName) {
        self.0.state_went(state);
    }
}
