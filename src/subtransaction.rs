//! All or nothing inside the caller's transaction.

use pgrx::pg_sys;

/// Run `body` in a subtransaction: kept if it returns Ok, undone if it returns Err. An ERROR in it
/// goes on to the caller's transaction, which undoes it with everything else.
pub fn all_or_nothing<T, E>(body: impl FnOnce() -> Result<T, E>) -> Result<T, E> {
    // SAFETY: the way PL languages run a block: memory context and resource owner are those of
    // before, whichever way the subtransaction ends. SPI connections and snapshots that `body`
    // left open on its way to an Err are closed by the rollback.
    unsafe {
        let context = pg_sys::CurrentMemoryContext;
        let owner = pg_sys::CurrentResourceOwner;
        pg_sys::BeginInternalSubTransaction(std::ptr::null());
        pg_sys::MemoryContextSwitchTo(context);
        let result = body();
        match result {
            Ok(_) => pg_sys::ReleaseCurrentSubTransaction(),
            Err(_) => pg_sys::RollbackAndReleaseCurrentSubTransaction(),
        }
        pg_sys::MemoryContextSwitchTo(context);
        pg_sys::CurrentResourceOwner = owner;
        result
    }
}
