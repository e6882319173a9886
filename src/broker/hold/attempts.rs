//! How a call waits for many locks at once, and keeps no other transaction waiting meanwhile.
//!
//! A seek, a purge, a deletion or a change of ordering needs many locks. Transactions that stay
//! open for long may hold some of them. A call that took the locks one by one, and waited for the
//! next with the others in hand, would stop every consumer for that long. So the call takes them in
//! *attempts*, each in a subtransaction. An attempt waits for locks that are busy, but only for a
//! moment in all. When that is over, the call rolls the attempt back. This frees all its locks, and
//! wakes pops that wait for messages. Then the call waits for the busy lock *in the open*, holding
//! nothing. For a lock that many share, it waits for the transactions that hold it at that moment.
//! Any other lock it takes alone, in a subtransaction that it rolls back. The next attempt has more
//! patience than the last, so in the end it outwaits many short transactions that follow each other
//! closely.
//!
//! Both waits are for ordinary locks: a user can cancel them, and `statement_timeout` ends them. An
//! attempt is over before PostgreSQL would look for a deadlock, except the most patient attempts. A
//! deadlock with a lock that the caller's transaction holds is found while the call waits in the
//! open. `lock_timeout` holds for each wait: if it is shorter than the patience of an attempt, it
//! ends the call there, otherwise in the open.
//!
//! An attempt that succeeds keeps its locks to the end of the caller's transaction.

use std::cell::{Cell, RefCell};
use std::panic::AssertUnwindSafe;
use std::rc::Rc;

use pgrx::PgTryBuilder;
use pgrx::prelude::*;

use crate::error::Result;
use crate::pg::clock::{self, SECOND};
use crate::pg::lock_timeout::LockTimeout;
use crate::pg::statement_timeout::StatementTimeout;
use crate::pg::subtransaction::{all_or_nothing, undone};
use crate::store::cursor_or_claim::{self, LockedCursor};
use crate::store::locks::{Lock, order};
use crate::wait::waiters::{self, Topic};

/// For how many microseconds the first attempt waits in all. Each further one waits twice as long,
/// up to `LONGEST`. One long transaction makes no attempt patient, for the call waits for it in the
/// open. Many that overlap, and last for seconds, do.
const FIRST: i64 = SECOND / 10;
const LONGEST: i64 = 64 * FIRST;

/// Take all locks that `lock_all` asks the attempt for, and hold them to the end of the caller's
/// transaction. `lock_all` runs again until an attempt gets everything; the result is that of the
/// last run. `queue` is the name of the queue whose waiting pops an undone attempt wakes.
pub fn hold_in_attempts<T>(
    queue: &str,
    mut lock_all: impl FnMut(&Attempt) -> Result<T>,
) -> Result<T> {
    let mut patience = FIRST;
    let locked_before = order::reached();
    loop {
        order::back_to(locked_before);
        let undoing = Undoing(queue);
        match Attempt::new(patience).run(&mut lock_all)? {
            Ok(held) => {
                std::mem::forget(undoing);
                return Ok(held);
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

/// Wakes the sessions that wait for messages of the queue, when it is dropped: an attempt has been
/// undone, by an ERROR or to make way for the next.
struct Undoing<'a>(&'a str);

impl Drop for Undoing<'_> {
    fn drop(&mut self) {
        waiters::wake_now(Topic::queue(self.0));
    }
}

/// A lock that an attempt waits for.
#[derive(Clone)]
enum AwaitedLock {
    /// The whole of a lock that other transactions share.
    Whole(Lock),
    /// A cursor or a claim.
    Cursor(u64),
    /// Rows that a statement locks, or creates, or deletes.
    Rows(Rc<dyn Fn() -> Result<()>>),
}

impl AwaitedLock {
    /// Wait until the lock was free, and hold nothing.
    fn wait_in_the_open(self) -> Result<()> {
        match self {
            AwaitedLock::Whole(lock) => {
                lock.wait_for_holders();
                Ok(())
            }
            AwaitedLock::Cursor(id) => undone(|| cursor_or_claim::lock_row(id).map(drop)),
            AwaitedLock::Rows(lock) => undone(|| lock()),
        }
    }
}

/// An attempt to take all locks of a call.
pub struct Attempt {
    /// For how many microseconds it may still wait.
    left: Cell<i64>,
    /// The lock that it is waiting for. None while it waits for no lock, or while the caller's
    /// `lock_timeout` ends the wait before the attempt's own patience does.
    awaited: RefCell<Option<AwaitedLock>>,
}

impl Attempt {
    fn new(patience: i64) -> Self {
        Self { left: Cell::new(patience), awaited: RefCell::new(None) }
    }

    /// What `lock_all` returns; or the lock that was busy, with no lock held.
    fn run<T>(
        &self,
        lock_all: &mut impl FnMut(&Attempt) -> Result<T>,
    ) -> Result<std::result::Result<T, AwaitedLock>> {
        let timeout = StatementTimeout::now();
        let all = AssertUnwindSafe(|| Ok(all_or_nothing(|| lock_all(self))));
        let outcome = PgTryBuilder::new(all)
            .catch_when(PgSqlErrorCode::ERRCODE_LOCK_NOT_AVAILABLE, |error| Err(Box::new(error)))
            // The cycle may consist of locks of this attempt alone, which the rollback frees.
            .catch_when(PgSqlErrorCode::ERRCODE_T_R_DEADLOCK_DETECTED, |error| Err(Box::new(error)))
            .execute();
        match outcome {
            Ok(held) => held.map(Ok),
            Err(error) => match self.awaited.take() {
                Some(busy) => {
                    timeout.renew_if_passed();
                    Ok(Err(busy))
                }
                None => error.rethrow(),
            },
        }
    }

    /// Take an object lock whole.
    pub fn lock_whole(&self, lock: Lock) {
        self.wait(AwaitedLock::Whole(lock), || lock.whole());
    }

    /// Lock cursors and claims in the given order, which is ascending. Those that are gone drop
    /// out. The caller reads their states after this, under a newer snapshot.
    pub fn lock_cursors(&self, ids: &[u64]) -> Result<Vec<LockedCursor>> {
        let mut locked = Vec::with_capacity(ids.len());
        for &id in ids {
            locked.extend(self.wait(AwaitedLock::Cursor(id), || cursor_or_claim::lock_row(id))?);
        }
        Ok(locked)
    }

    /// Run a statement that locks rows, or creates or deletes them.
    pub fn lock_rows(&self, statement: impl Fn() -> Result<()> + 'static) -> Result<()> {
        let statement = Rc::new(statement);
        self.wait(AwaitedLock::Rows(statement.clone()), || statement())
    }

    /// Take a lock within what is left of the attempt's patience. After an ERROR `self.awaited`
    /// still names the lock.
    fn wait<T>(&self, awaited: AwaitedLock, lock: impl FnOnce() -> T) -> T {
        let began = clock::now();
        let patience = (self.left.get() / 1000).clamp(1, LONGEST / 1000);
        let limit = LockTimeout::lower_to(patience as i32);
        self.awaited.replace(limit.is_lowered().then_some(awaited));
        let locked = lock();
        self.awaited.replace(None);
        self.left.set(self.left.get() - (clock::now() - began));
        locked
    }
}
