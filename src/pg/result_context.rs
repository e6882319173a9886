//! Where the rows of a function's result live.

use pgrx::pg_sys;

/// The memory context in which a function's result rows live: the one that was current when the
/// function was called. SPI makes another one current, which goes when SPI closes.
#[derive(Clone, Copy)]
pub struct ResultContext(pg_sys::MemoryContext);

impl ResultContext {
    /// The context that is current; to be called before SPI is connected.
    pub fn here() -> Self {
        // SAFETY: a plain global of the backend.
        Self(unsafe { pg_sys::CurrentMemoryContext })
    }

    /// Run `body` with its allocations made here.
    pub fn allocate<T>(self, body: impl FnOnce() -> T) -> T {
        // SAFETY: the context lives until the function's last row has been returned; the former
        // one is made current again, or, on an ERROR, whatever the handler needs.
        unsafe {
            let before = pg_sys::MemoryContextSwitchTo(self.0);
            let value = body();
            pg_sys::MemoryContextSwitchTo(before);
            value
        }
    }
}
