//! All or nothing inside the caller's transaction.

use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};

use pgrx::pg_sys;

use crate::pg::guard::pin_search_path;
use crate::pg::kept_open::Mark;

/// Run `body` in a subtransaction: kept if it returns Ok, rolled back if it returns Err. An ERROR
/// in it rolls it back as well, and goes on to the caller's transaction: the caller's exception
/// handler would take a subtransaction that stayed open for its own, and roll back that one
/// instead.
pub fn all_or_nothing<T, E>(body: impl FnOnce() -> Result<T, E>) -> Result<T, E> {
    let subtransaction = Subtransaction::begin();
    // Keeping it may fail as well: a subtransaction that is half committed is rolled back.
    let result = catch_unwind(AssertUnwindSafe(|| {
        let result = body();
        if result.is_ok() {
            subtransaction.keep();
        }
        result
    }));
    if !matches!(result, Ok(Ok(_))) {
        subtransaction.undo();
    }
    result.unwrap_or_else(|panic| resume_unwind(panic))
}

/// Run `body` in a subtransaction: kept if it succeeds and `is_worth` it, otherwise rolled back
/// with all locks that `body` has taken.
pub fn kept_if<T, E>(
    is_worth: impl FnOnce(&T) -> bool,
    body: impl FnOnce() -> Result<T, E>,
) -> Result<T, E> {
    let outcome = all_or_nothing(|| match body() {
        Ok(value) if is_worth(&value) => Ok(value),
        Ok(value) => Err(Ok(value)),
        Err(error) => Err(Err(error)),
    });
    outcome.or_else(|undone| undone)
}

/// Run `body` in a subtransaction that is always rolled back: for a body that waits for a lock.
pub fn undone<T, E>(body: impl FnOnce() -> Result<T, E>) -> Result<T, E> {
    match all_or_nothing(|| Err::<(), _>(body())) {
        Err(result) => result,
        Ok(()) => unreachable!("the body has returned Err"),
    }
}

/// The number of the innermost subtransaction that is open, or of the transaction. Each has a
/// higher number than all that began before it.
#[inline]
pub fn number() -> pg_sys::SubTransactionId {
    // SAFETY: reads the backend's memory.
    unsafe { pg_sys::GetCurrentSubTransactionId() }
}

/// A subtransaction that has been begun. However it ends, memory context and resource owner are
/// those of before, as PL languages run a block. Rolling it back closes SPI connections and
/// snapshots that were left open in it.
struct Subtransaction {
    context: pg_sys::MemoryContext,
    owner: pg_sys::ResourceOwner,
    relations: Mark,
}

impl Subtransaction {
    fn begin() -> Self {
        pin_search_path();
        // SAFETY: in a transaction; ended by `keep` or `undo`.
        unsafe {
            let before = Self {
                context: pg_sys::CurrentMemoryContext,
                owner: pg_sys::CurrentResourceOwner,
                relations: Mark::here(),
            };
            pg_sys::BeginInternalSubTransaction(std::ptr::null());
            pg_sys::MemoryContextSwitchTo(before.context);
            before
        }
    }

    fn keep(&self) {
        self.relations.close();
        // SAFETY: it is the innermost one.
        unsafe { pg_sys::ReleaseCurrentSubTransaction() };
        self.leave();
    }

    fn undo(&self) {
        self.relations.forget();
        // SAFETY: it is the innermost one, also after an ERROR, which has been copied by then.
        unsafe { pg_sys::RollbackAndReleaseCurrentSubTransaction() };
        self.leave();
    }

    fn leave(&self) {
        // SAFETY: both are older than the subtransaction, and outlive it.
        unsafe {
            pg_sys::MemoryContextSwitchTo(self.context);
            pg_sys::CurrentResourceOwner = self.owner;
        }
    }
}
