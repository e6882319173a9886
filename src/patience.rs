//! Waiting for everything at once, without keeping others waiting.
//!
//! A seek, a purge, a deletion, a change of ordering need many locks, some of which are held by
//! transactions that may stay open for long. Who takes them one by one, and waits for the next with the
//! others in hand, stops every consumer for that long. So they are taken in *attempts*, each in a
//! subtransaction: it waits for whatever is busy, but only for a moment in all. When that is over, the
//! attempt is undone, by which everything is free for others again (those who wait for messages are woken),
//! and what was busy is waited for *in the
//! open*, holding nothing: a lock that is shared by many, by waiting for those transactions that have it
//! at that moment; anything else by taking it alone, in a subtransaction that is undone. Then comes the
//! next attempt, more patient than the last: many short transactions that follow each other closely are
//! outwaited in the end.
//!
//! Both are waits for ordinary locks, which can be cancelled, and end at `statement_timeout`. An attempt is
//! over before a deadlock would be looked for (but for the most patient ones); a deadlock with what the
//! caller's transaction holds is found while it waits in the open. `lock_timeout` holds for each wait: one
//! that is shorter than an attempt's patience ends the call there, a longer one in the open.
//!
//! What an attempt has taken when it succeeds stays to the end of the caller's transaction.

use std::cell::{Cell, RefCell};
use std::panic::AssertUnwindSafe;
use std::rc::Rc;

use pgrx::prelude::*;
use pgrx::{PgTryBuilder, pg_sys};

use crate::error::Result;
use crate::store::clock::{self, SECOND};
use crate::store::cursor::{self, Locked};
use crate::store::locks::Lock;
use crate::subtransaction::{all_or_nothing, undone};
use crate::waiters::{self, Topic};

/// For how long the first attempt waits in all; each that follows twice as long as the one before, up to
/// the last. One transaction that is open for long makes no attempt patient, for it is waited for in the
/// open; many that overlap, and last for seconds, do.
const FIRST: i64 = SECOND / 10;
const LONGEST: i64 = 64 * FIRST;

/// Take everything that `take` asks for, of a queue: it is called until nothing is busy for long.
pub fn hold_all<T>(queue: &str, mut take: impl FnMut(&Attempt) -> Result<T>) -> Result<T> {
    let mut patience = FIRST;
    loop {
        let undoing = Undoing(queue);
        match Attempt::new(patience).run(&mut take)? {
            Ok(taken) => {
                std::mem::forget(undoing);
                return Ok(taken);
            }
            Err(busy) => {
                drop(undoing);
                busy.wait_in_the_open()?;
            }
        }
        patience = LONGEST.min(2 * patience);
        pgrx::check_for_interrupts!();
    }
}

/// Wakes those who wait for messages of the queue: an attempt has been undone, by an ERROR or for another.
struct Undoing<'a>(&'a str);

impl Drop for Undoing<'_> {
    fn drop(&mut self) {
        waiters::wake_now(Topic::queue(self.0));
    }
}

/// What may be busy.
#[derive(Clone)]
enum Wanted {
    /// The whole of a lock that others share.
    Whole(Lock),
    /// A cursor or a claim.
    Cursor(u64),
    /// Rows that a statement locks, or creates, or deletes.
    Rows(Rc<dyn Fn() -> Result<()>>),
}

impl Wanted {
    fn wait_in_the_open(self) -> Result<()> {
        match self {
            Wanted::Whole(lock) => {
                lock.wait_for_holders();
                Ok(())
            }
            Wanted::Cursor(id) => undone(|| cursor::lock_row(id).map(drop)),
            Wanted::Rows(take) => undone(|| take()),
        }
    }
}

/// An attempt to take everything.
pub struct Attempt {
    /// It waits for so long yet.
    left: Cell<i64>,
    /// What it is waiting for, with its own patience and not the caller's.
    awaited: RefCell<Option<Wanted>>,
}

impl Attempt {
    fn new(patience: i64) -> Self {
        Self { left: Cell::new(patience), awaited: RefCell::new(None) }
    }

    /// What was taken; or what was busy, with nothing taken.
    fn run<T>(
        &self,
        take: &mut impl FnMut(&Attempt) -> Result<T>,
    ) -> Result<std::result::Result<T, Wanted>> {
        let all = AssertUnwindSafe(|| Ok(all_or_nothing(|| take(self))));
        let outcome = PgTryBuilder::new(all)
            .catch_when(PgSqlErrorCode::ERRCODE_LOCK_NOT_AVAILABLE, |error| Err(Box::new(error)))
            // Perhaps with nothing but what the attempt has taken.
            .catch_when(PgSqlErrorCode::ERRCODE_T_R_DEADLOCK_DETECTED, |error| Err(Box::new(error)))
            .execute();
        match outcome {
            Ok(taken) => taken.map(Ok),
            Err(error) => match self.awaited.take() {
                Some(busy) => Ok(Err(busy)),
                None => error.rethrow(),
            },
        }
    }

    /// The whole of a lock.
    pub fn whole(&self, lock: Lock) {
        self.wait(Wanted::Whole(lock), || lock.whole());
    }

    /// Cursors and claims, in the order given, which is ascending; those that are gone drop out. Their
    /// states are to be read after this, under a newer snapshot.
    pub fn cursors(&self, ids: &[u64]) -> Result<Vec<Locked>> {
        let mut locked = Vec::with_capacity(ids.len());
        for &id in ids {
            locked.extend(self.wait(Wanted::Cursor(id), || cursor::lock_row(id))?);
        }
        Ok(locked)
    }

    /// Rows that `take` locks, or creates, or deletes.
    pub fn rows(&self, take: impl Fn() -> Result<()> + 'static) -> Result<()> {
        let take = Rc::new(take);
        self.wait(Wanted::Rows(take.clone()), || take())
    }

    /// Take something, with what is left of the attempt's patience. On an ERROR it stays noted.
    fn wait<T>(&self, wanted: Wanted, take: impl FnOnce() -> T) -> T {
        let began = clock::now();
        let limit = Limit::lower_to(self.left.get());
        self.awaited.replace(limit.is_lower.then_some(wanted));
        let taken = take();
        self.awaited.replace(None);
        self.left.set(self.left.get() - (clock::now() - began));
        taken
    }
}

/// `lock_timeout`, lowered while this lives. Where it is lower already, it stays.
struct Limit {
    before: i32,
    is_lower: bool,
}

impl Limit {
    fn lower_to(patience: i64) -> Self {
        let limit = (patience / 1000).clamp(1, LONGEST / 1000) as i32;
        // SAFETY: a plain setting of this single-threaded backend, put back by `Drop`, which also runs when
        // an ERROR unwinds.
        unsafe {
            let before = pg_sys::LockTimeout;
            let is_lower = before <= 0 || before > limit;
            if is_lower {
                pg_sys::LockTimeout = limit;
            }
            Self { before, is_lower }
        }
    }
}

impl Drop for Limit {
    fn drop(&mut self) {
        // SAFETY: as in `lower_to`.
        unsafe { pg_sys::LockTimeout = self.before };
    }
}
