//! All or nothing inside the caller's transaction.

use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};

use pgrx::pg_sys;

/// Run `body` in a subtransaction: kept if it returns Ok, undone if it returns Err. An ERROR in it undoes
/// it as well, and goes on from there.
pub fn all_or_nothing<T, E>(body: impl FnOnce() -> Result<T, E>) -> Result<T, E> {
    let subtransaction = Subtransaction::begin();
    // What is broken off halfway is undone.
    match catch_unwind(AssertUnwindSafe(body)) {
        Ok(Ok(value)) => {
            subtransaction.keep();
            Ok(value)
        }
        Ok(Err(error)) => {
            subtransaction.undo();
            Err(error)
        }
        Err(panic) => {
            subtransaction.undo();
            resume_unwind(panic)
        }
    }
}

/// Run `body` in a subtransaction, and undo it in any case: for what it waits for.
pub fn undone<T, E>(body: impl FnOnce() -> Result<T, E>) -> Result<T, E> {
    match all_or_nothing(|| Err::<(), _>(body())) {
        Err(result) => result,
        Ok(()) => unreachable!("the body has returned Err"),
    }
}

/// One that has been begun. Memory context and resource owner are those of before, whichever way it
/// ends, as PL languages run a block. SPI connections and snapshots that were left open in it are closed
/// when it is undone.
struct Subtransaction {
    context: pg_sys::MemoryContext,
    owner: pg_sys::ResourceOwner,
}

impl Subtransaction {
    fn begin() -> Self {
        // SAFETY: in a transaction; ended by `keep` or `undo`.
        unsafe {
            let before =
                Self { context: pg_sys::CurrentMemoryContext, owner: pg_sys::CurrentResourceOwner };
            pg_sys::BeginInternalSubTransaction(std::ptr::null());
            pg_sys::MemoryContextSwitchTo(before.context);
            before
        }
    }

    fn keep(self) {
        // SAFETY: it is the innermost one.
        unsafe { pg_sys::ReleaseCurrentSubTransaction() };
        self.leave();
    }

    fn undo(self) {
        // SAFETY: it is the innermost one, also after an ERROR, which has been copied by then.
        unsafe { pg_sys::RollbackAndReleaseCurrentSubTransaction() };
        self.leave();
    }

    fn leave(self) {
        // SAFETY: both are older than the subtransaction, and outlive it.
        unsafe {
            pg_sys::MemoryContextSwitchTo(self.context);
            pg_sys::CurrentResourceOwner = self.owner;
        }
    }
}
