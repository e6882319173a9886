//! Memory that a call holds in reserve for PostgreSQL's own needs, on the way of an error: see
//! `allocator`.

use std::alloc::{GlobalAlloc, Layout, System};
use std::ffi::{c_int, c_void};
use std::hint::black_box;
use std::ptr;
use std::sync::atomic::{AtomicBool, AtomicPtr, Ordering};

use pgrx::pg_sys;

use crate::allocator::out_of_memory;
use crate::error::{Code, Result};

/// What is given back to the system when memory is short: a few blocks of PostgreSQL's memory contexts,
/// which take up to a megabyte even for a byte. Never touched, so it is address space alone.
const BALLAST: usize = 4 * 1024 * 1024;
static HELD: AtomicPtr<u8> = AtomicPtr::new(ptr::null_mut());
static IS_WATCHING: AtomicBool = AtomicBool::new(false);

/// Held by a call of the extension while it works: whatever finds that memory is short drops it. It
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
    /// 53200 if there is not even that.
    pub fn hold() -> Result<Self> {
        if HELD.load(Ordering::Relaxed).is_null() {
            // SAFETY: a layout of some size.
            let place = black_box(unsafe { System.alloc(ballast()) });
            if place.is_null() {
                return Err(out_of_memory());
            }
            HELD.store(place, Ordering::Relaxed);
        }
        let is_watching = !IS_WATCHING.swap(true, Ordering::Relaxed);
        if is_watching {
            // SAFETY: a backend has one thread. WATCH lives for ever, and is on the stack once.
            unsafe {
                let watch = &raw mut WATCH;
                (*watch).previous = pg_sys::error_context_stack;
                pg_sys::error_context_stack = watch;
            }
        }
        Ok(Self { is_watching })
    }
}

impl Drop for Ballast {
    fn drop(&mut self) {
        if !self.is_watching {
            return;
        }
        IS_WATCHING.store(false, Ordering::Relaxed);
        // SAFETY: as in `hold`. On the way of an ERROR another may lie on top of it; both go when it is
        // thrown, and what they point to is there until then.
        unsafe {
            let watch = &raw mut WATCH;
            if pg_sys::error_context_stack == watch {
                pg_sys::error_context_stack = (*watch).previous;
            }
        }
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

/// Whether there is none at this moment.
pub fn is_gone() -> bool {
    HELD.load(Ordering::Relaxed).is_null()
}

/// False if it is gone already.
pub fn drop_ballast() -> bool {
    let place = HELD.swap(ptr::null_mut(), Ordering::Relaxed);
    if !place.is_null() {
        // SAFETY: it was made by System with this layout.
        unsafe { System.dealloc(place, ballast()) };
    }
    !place.is_null()
}
