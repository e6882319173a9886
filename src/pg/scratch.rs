//! PostgreSQL's memory for one step of many, freed before the next step.

use pgrx::pg_sys;

/// A memory context of its own, below the one that was current.
pub struct Scratch(pg_sys::MemoryContext);

impl Scratch {
    pub fn new() -> Self {
        // SAFETY: the context that is current outlives this, or takes it along: see `drop`.
        unsafe {
            Self(pg_sys::AllocSetContextCreateInternal(
                pg_sys::CurrentMemoryContext,
                c"queen_mq scratch".as_ptr(),
                pg_sys::ALLOCSET_SMALL_MINSIZE as usize,
                pg_sys::ALLOCSET_SMALL_INITSIZE as usize,
                pg_sys::ALLOCSET_DEFAULT_MAXSIZE as usize,
            ))
        }
    }

    /// Run `body` with its allocations made here; they are freed when it returns, so it must not
    /// return any of them.
    pub fn run<T>(&self, body: impl FnOnce() -> T) -> T {
        let value = self.keep(body);
        self.clear();
        value
    }

    /// Run `body` with its allocations made here; they stay until the next `clear`.
    pub fn keep<T>(&self, body: impl FnOnce() -> T) -> T {
        // SAFETY: the context is there. SPI makes its own current whenever a statement ends, so
        // the former one is put back by name; on an ERROR the handler sets what it needs.
        unsafe {
            let before = pg_sys::MemoryContextSwitchTo(self.0);
            let value = body();
            pg_sys::MemoryContextSwitchTo(before);
            value
        }
    }

    pub fn clear(&self) {
        // SAFETY: the context is there, and no caller has kept anything that lies in it. PostgreSQL
        // takes note in it of the first allocation after a reset.
        unsafe {
            if !(*self.0).isReset {
                pg_sys::MemoryContextReset(self.0);
            }
        }
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        // While an ERROR unwinds, the context above may have been deleted already, and this one
        // with it.
        if !std::thread::panicking() {
            // SAFETY: the context above is current again, or still there.
            unsafe { pg_sys::MemoryContextDelete(self.0) };
        }
    }
}
