//! Memory that a call holds in reserve for what PostgreSQL allocates while an error is on its way:
//! see `allocator`.

use std::alloc::{GlobalAlloc, Layout, System};
use std::ffi::{c_int, c_void};
use std::hint::black_box;
use std::ptr;
use std::sync::atomic::{AtomicPtr, Ordering};

use pgrx::pg_sys;

use crate::error::{Code, Error, Result};
use crate::pg::error_context;

/// Bytes that go back to the system when memory is short: a few blocks of PostgreSQL's memory
/// contexts, each of which may take a megabyte for a single byte. Never touched, so they are
/// address space alone.
const BALLAST: usize = 4 * 1024 * 1024;
static HELD: AtomicPtr<u8> = AtomicPtr::new(ptr::null_mut());

/// A call of the extension holds it while it works. The code that finds memory short drops it. It
/// stays with the session from one call to the next.
pub struct Ballast {
    is_watching: bool,
}

static mut WATCH: pg_sys::ErrorContextCallback = pg_sys::ErrorContextCallback {
    previous: ptr::null_mut(),
    callback: Some(drop_if_out_of_memory),
    arg: ptr::null_mut(),
};

impl Ballast {
    /// 53200 if the system has not even this much.
    pub fn hold() -> Result<Self> {
        if HELD.load(Ordering::Relaxed).is_null() {
            // SAFETY: a layout of some size.
            let place = black_box(unsafe { System.alloc(ballast()) });
            if place.is_null() {
                return Err(Error::out_of_memory());
            }
            HELD.store(place, Ordering::Relaxed);
        }
        // SAFETY: a backend has one thread, and WATCH lives for ever.
        let is_watching = unsafe { error_context::push(&raw mut WATCH) };
        Ok(Self { is_watching })
    }
}

impl Drop for Ballast {
    fn drop(&mut self) {
        if !self.is_watching {
            return;
        }
        // SAFETY: `new` has pushed it. While an ERROR unwinds, another callback may lie on top of
        // it. The handler of the ERROR takes both off, and what they point to exists until then.
        unsafe { error_context::pop(&raw mut WATCH) };
    }
}

/// PostgreSQL runs these just before it throws an error.
unsafe extern "C-unwind" fn drop_if_out_of_memory(_: *mut c_void) {
    unsafe extern "C-unwind" {
        fn geterrcode() -> c_int;
    }
    // SAFETY: there is an error on the stack.
    if unsafe { geterrcode() } == Code::OutOfMemory.packed() {
        drop_ballast();
    }
}

fn ballast() -> Layout {
    Layout::new::<[u8; BALLAST]>()
}

/// Whether the memory has been given back.
pub fn is_gone() -> bool {
    HELD.load(Ordering::Relaxed).is_null()
}

/// Give the memory back to the system. False if it has been given back already.
pub fn drop_ballast() -> bool {
    let place = HELD.swap(ptr::null_mut(), Ordering::Relaxed);
    if !place.is_null() {
        // SAFETY: it was made by System with this layout.
        unsafe { System.dealloc(place, ballast()) };
    }
    !place.is_null()
}
