//! Memory of PostgreSQL's for one step of many: given back before the next.

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

    /// The same, but they stay until the next `clear`.
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
        // SAFETY: the context is there, and nobody has kept anything of it.
        unsafe { pg_sys::MemoryContextReset(self.0) };
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        // On the way of an ERROR it goes with the context that it is below, whose end may have come
        // before this.
        if !std::thread::panicking() {
            // SAFETY: the context above is current again, or still there.
            unsafe { pg_sys::MemoryContextDelete(self.0) };
        }
    }
}
