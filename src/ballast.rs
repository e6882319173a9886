//! Memory that a call holds in reserve for PostgreSQL's own needs, on the way of an error: see
//! `allocator`.

use std::alloc::{GlobalAlloc, Layout, System};
use std::ffi::{c_int, c_void};
use std::hint::black_box;
use std::ptr;
use std::sync::atomic::{AtomicPtr, Ordering};

use pgrx::pg_sys;

use crate::allocator::out_of_memory;
use crate::error::{Code, Result};
use crate::pg::error_context;

/// What is given back to the system when memory is short: a few blocks of PostgreSQL's memory contexts,
/// which take up to a megabyte even for a byte. Never touched, so it is address space alone.
const BALLAST: usize = 4 * 1024 * 1024;
static HELD: AtomicPtr<u8> = AtomicPtr::new(ptr::null_mut());

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
        // SAFETY: it has been pushed. On the way of an ERROR another may lie on top of it; both go when
        // it is caught, and what they point to is there until then.
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
