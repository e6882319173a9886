//! All or nothing inside the caller's transaction.

use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};

use pgrx::pg_sys;

/// Run `body` in a subtransaction: kept if it returns Ok, undone if it returns Err. An ERROR in it
/// undoes it as well, and goes on to the caller's transaction: a subtransaction that stayed open would
/// be the one that the caller's exception handler rolls back, in place of its own.
pub fn all_or_nothing<T, E>(body: impl FnOnce() -> Result<T, E>) -> Result<T, E> {
    // SAFETY: the way PL languages run a block: memory context and resource owner are those of
    // before, whichever way the subtransaction ends. SPI connections and snapshots that `body`
    // left open on its way to an Err or an ERROR are closed by the rollback. By the time a panic is
    // caught here, pgrx has taken the error off PostgreSQL's stack, as a PG_CATCH block would.
    unsafe {
        let context = pg_sys::CurrentMemoryContext;
        let owner = pg_sys::CurrentResourceOwner;
        pg_sys::BeginInternalSubTransaction(std::ptr::null());
        pg_sys::MemoryContextSwitchTo(context);
        let result = catch_unwind(AssertUnwindSafe(|| {
            let result = body();
            if result.is_ok() {
                pg_sys::ReleaseCurrentSubTransaction();
            }
            result
        }));
        pg_sys::MemoryContextSwitchTo(context);
        if !matches!(result, Ok(Ok(_))) {
            pg_sys::RollbackAndReleaseCurrentSubTransaction();
            pg_sys::MemoryContextSwitchTo(context);
        }
        pg_sys::CurrentResourceOwner = owner;
        result.unwrap_or_else(|payload| resume_unwind(payload))
    }
}
