//! Latches, by which one process wakes another.

use pgrx::pg_sys;

use super::shared::plain;

/// Where the latch of a process is, or that there is none. The address may be handed to other
/// processes, in shared memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LatchAddress(usize);

plain!(LatchAddress(address));

impl LatchAddress {
    pub const NONE: Self = Self(0);

    /// This process's own.
    #[inline]
    pub fn own() -> Self {
        // SAFETY: a plain global of the process.
        Self(unsafe { pg_sys::MyLatch } as usize)
    }

    pub fn is_some(self) -> bool {
        self != Self::NONE
    }

    /// Set the latch, if there is one: the process wakes, or does not fall asleep the next time. If
    /// it has ended, the process that has its place now wakes in vain.
    pub fn set(self) {
        if self.is_some() {
            // SAFETY: `own` has given the address. A process has a latch in the shared list of
            // processes, which stays where it is for as long as the server runs, for all processes
            // at one address; before it is on that list, one in a variable of the server's program.
            unsafe { pg_sys::SetLatch(self.0 as *mut pg_sys::Latch) };
        }
    }
}

/// Forget that this process's latch was set. What it was set for has to be looked for after this.
pub fn reset_own() {
    // SAFETY: the process's own latch.
    unsafe { pg_sys::ResetLatch(pg_sys::MyLatch) };
}

/// Sleep until this process's latch is set, or for so many milliseconds, at least one; then forget
/// that it was set. Cancellation and termination of the process end the sleep by an ERROR. The end
/// of the postmaster ends the process.
pub fn sleep(ms: i64) {
    let events = pg_sys::WL_LATCH_SET | pg_sys::WL_TIMEOUT | pg_sys::WL_EXIT_ON_PM_DEATH;
    // SAFETY: the process's own latch.
    unsafe {
        pg_sys::WaitLatch(pg_sys::MyLatch, events as i32, ms.max(1), pg_sys::PG_WAIT_EXTENSION);
    }
    reset_own();
    pgrx::check_for_interrupts!();
}
