//! Memory on Rust's heap, where the system may have none left.
//!
//! Rust has no way to say "out of memory" from within a `String` or a `Vec` but to abort, and a
//! backend that aborts takes the whole server through crash recovery. PostgreSQL raises an ERROR
//! instead, and so does this extension:
//!
//! - Memory whose size depends on a caller's data is bounded by the code that reads arguments, lies
//!   in PostgreSQL's memory, or is asked for beforehand ([`ensure`], [`room`]), where a refusal is
//!   an ERROR.
//! - The other requests are small. If the system refuses one, the allocator serves it from a
//!   reserve, and the next safe point ([`check`]) raises 53200 out_of_memory.
//! - pgrx copies an error on its way through Rust several times, also into PostgreSQL's memory,
//!   which this reserve does not serve. So a call holds a [`ballast::Ballast`]. The code that first
//!   notices that memory is short drops it, before the error is thrown.
//! - If the reserve is used up as well, the session ends with FATAL, as PostgreSQL ends one whose
//!   error it can't handle. The server and the other sessions go on.
//!
//! Nothing here unwinds or jumps out of an allocation.

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::{RefCell, UnsafeCell};
use std::hint::{black_box, spin_loop};
use std::ptr;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use crate::error::{Error, Result};
use crate::pg::ballast;

#[global_allocator]
static ALLOCATOR: Contained = Contained;

/// Bytes in the reserve: far more than is allocated between two safe points, apart from what is
/// asked for beforehand. Pages that are never touched cost nothing (with vm.overcommit_memory = 2
/// they count towards the limit).
const RESERVE: usize = 4 * 1024 * 1024;
/// Size and address of every piece of the reserve are multiples of this.
const GRANULE: usize = 64;
const WORDS: usize = RESERVE / GRANULE / 64;
/// Words, of 64 granules each, that are kept for the way out of a session that is ended.
const LAST_WORDS: usize = WORDS / 16;

/// The reserve has been used, or a request for more was refused, since the last safe point.
static IS_SCARCE: AtomicBool = AtomicBool::new(false);
/// The code that asks for memory can handle a refusal.
static MAY_REFUSE: AtomicBool = AtomicBool::new(false);
static IS_ENDING: AtomicBool = AtomicBool::new(false);
static SPARE: Reserve = Reserve {
    memory: ReserveMemory(UnsafeCell::new([0; RESERVE])),
    used: UnsafeCell::new([0; WORDS]),
    is_locked: AtomicBool::new(false),
    granules: AtomicUsize::new(0),
};

#[repr(C, align(4096))]
struct ReserveMemory(UnsafeCell<[u8; RESERVE]>);

struct Reserve {
    memory: ReserveMemory,
    /// A bit for each granule.
    used: UnsafeCell<[u64; WORDS]>,
    is_locked: AtomicBool,
    /// How many are in use.
    granules: AtomicUsize,
}

// SAFETY: `used` is touched under the lock alone; each piece of the memory belongs to its taker.
unsafe impl Sync for Reserve {}

impl Reserve {
    fn locked<T>(&self, body: impl FnOnce(&mut [u64; WORDS]) -> T) -> T {
        while self.is_locked.swap(true, Ordering::Acquire) {
            spin_loop();
        }
        // SAFETY: the lock is held, and `body`, which does not allocate, does not come here again.
        let value = body(unsafe { &mut *self.used.get() });
        self.is_locked.store(false, Ordering::Release);
        value
    }

    fn holds(&self, place: *const u8) -> bool {
        let start = self.memory.0.get() as usize;
        (start..start + RESERVE).contains(&(place as usize))
    }

    /// Null if there is no room of this size in one piece.
    fn take(&self, layout: Layout) -> *mut u8 {
        let wanted = granules(layout);
        let words = if IS_ENDING.load(Ordering::Relaxed) { WORDS } else { WORDS - LAST_WORDS };
        if wanted > words * 64 || layout.align() > 4096 {
            return ptr::null_mut();
        }
        let step = layout.align().div_ceil(GRANULE);
        let found = self.locked(|used| {
            let first = first_free(&used[..words], wanted, step)?;
            (first..first + wanted).for_each(|at| used[at / 64] |= 1 << (at % 64));
            Some(first)
        });
        let Some(first) = found else { return ptr::null_mut() };
        self.granules.fetch_add(wanted, Ordering::Relaxed);
        // SAFETY: within the reserve, by its size.
        unsafe { self.memory.0.get().cast::<u8>().add(first * GRANULE) }
    }

    fn give_back(&self, place: *mut u8, layout: Layout) {
        let first = (place as usize - self.memory.0.get() as usize) / GRANULE;
        let count = granules(layout);
        self.locked(|used| {
            (first..first + count).for_each(|at| used[at / 64] &= !(1 << (at % 64)));
        });
        self.granules.fetch_sub(count, Ordering::Relaxed);
    }
}

fn granules(layout: Layout) -> usize {
    layout.size().div_ceil(GRANULE).max(1)
}

/// The first of `wanted` free granules in a row, at a multiple of `step`.
fn first_free(used: &[u64], wanted: usize, step: usize) -> Option<usize> {
    let (mut first, mut at) = (0, 0);
    while at < used.len() * 64 {
        let word = used[at / 64];
        if at % 64 == 0 && word == u64::MAX {
            at += 64;
            first = at;
            continue;
        }
        let is_used = word & (1 << (at % 64)) != 0;
        at += 1;
        if is_used {
            first = at.next_multiple_of(step);
            at = first;
        } else if at - first == wanted {
            return Some(first);
        }
    }
    None
}

struct Contained;

// SAFETY: System's memory goes back to System and the reserve's to the reserve, told apart by their
// addresses. A layout is given back as it was taken. Nothing unwinds: a request that can't be
// served is null where `MAY_REFUSE` is set, and ends the process elsewhere.
unsafe impl GlobalAlloc for Contained {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        // SAFETY: the caller's promises about the layout are passed on.
        let place = unsafe { System.alloc(layout) };
        if place.is_null() { otherwise(layout) } else { place }
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        // SAFETY: as in `alloc`; what `otherwise` gives is as long as the layout says.
        unsafe {
            let place = System.alloc_zeroed(layout);
            if !place.is_null() {
                return place;
            }
            let place = otherwise(layout);
            if !place.is_null() {
                place.write_bytes(0, layout.size());
            }
            place
        }
    }

    unsafe fn dealloc(&self, place: *mut u8, layout: Layout) {
        match SPARE.holds(place) {
            true => SPARE.give_back(place, layout),
            // SAFETY: it is not of the reserve, so it came from System.
            false => unsafe { System.dealloc(place, layout) },
        }
    }

    unsafe fn realloc(&self, place: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        // SAFETY: the caller promises that `size` makes a layout; both places have the bytes
        // copied.
        unsafe {
            if !SPARE.holds(place) {
                let moved = System.realloc(place, layout, size);
                if !moved.is_null() {
                    return moved;
                }
            }
            let fresh = self.alloc(Layout::from_size_align_unchecked(size, layout.align()));
            if !fresh.is_null() {
                ptr::copy_nonoverlapping(place, fresh, size.min(layout.size()));
                self.dealloc(place, layout);
            }
            fresh
        }
    }
}

/// System has refused.
#[cold]
fn otherwise(layout: Layout) -> *mut u8 {
    IS_SCARCE.store(true, Ordering::Relaxed);
    if MAY_REFUSE.load(Ordering::Relaxed) {
        return ptr::null_mut();
    }
    if ballast::drop_ballast() {
        // SAFETY: the layout is passed on.
        let place = unsafe { System.alloc(layout) };
        if !place.is_null() {
            return place;
        }
    }
    let place = SPARE.take(layout);
    // A request on the way out of the session that finds the reserve empty gets null.
    if place.is_null() && !IS_ENDING.swap(true, Ordering::Relaxed) {
        end_session();
    }
    place
}

/// The program that runs the tests is no backend, and has none of PostgreSQL's functions.
#[cfg(test)]
fn end_session() -> ! {
    std::process::abort()
}

/// FATAL does not come back here, and does not unwind: PostgreSQL cleans up and exits.
#[cfg(not(test))]
fn end_session() -> ! {
    use std::ffi::{c_char, c_int};

    unsafe extern "C-unwind" {
        fn errstart(elevel: c_int, domain: *const c_char) -> bool;
        fn errcode(sqlerrcode: c_int) -> c_int;
        fn errmsg_internal(format: *const c_char, ...) -> c_int;
        fn errfinish(file: *const c_char, line: c_int, function: *const c_char);
    }
    // SAFETY: what ereport(FATAL) is made of; the texts are static.
    unsafe {
        if errstart(pgrx::pg_sys::FATAL as c_int, ptr::null()) {
            errcode(crate::error::Code::OutOfMemory.packed());
            errmsg_internal(c"out of memory in queen_mq".as_ptr());
        }
        errfinish(c"allocator.rs".as_ptr(), line!() as c_int, c"end_session".as_ptr());
    }
    std::process::abort()
}

/// A safe point: raise 53200 if memory was short since the last one, and still is. Called where an
/// ERROR may be raised: between statements, rows and messages.
#[inline]
pub fn check() {
    if IS_SCARCE.load(Ordering::Relaxed) {
        raise_if_short();
    }
}

#[cold]
fn raise_if_short() {
    // Where all pieces of the reserve have been freed again, the call has what it needs.
    let is_short = SPARE.granules.load(Ordering::Relaxed) > 0 || ballast::is_gone();
    IS_SCARCE.store(false, Ordering::Relaxed);
    if is_short {
        Error::out_of_memory().raise();
    }
}

/// Whether memory is short at this moment, so that a cache should keep nothing new.
pub fn is_scarce() -> bool {
    IS_SCARCE.load(Ordering::Relaxed)
}

/// Requests up to this size are left to the reserve.
const SMALL: usize = 512 * 1024;

/// 53200 unless the system has this much memory: for a caller that knows only the size of what it
/// is about to allocate. A backend has one thread, so the memory is still there when the caller
/// takes it.
pub fn ensure(bytes: usize) -> Result<()> {
    if bytes <= SMALL {
        return Ok(());
    }
    let layout = Layout::from_size_align(bytes, 16).map_err(|_| Error::out_of_memory())?;
    // SAFETY: allocated and freed with one layout. `black_box`: the compiler must not elide both.
    unsafe {
        let place = black_box(System.alloc(layout));
        if place.is_null() {
            return Err(Error::out_of_memory());
        }
        System.dealloc(place, layout);
    }
    Ok(())
}

/// An empty list with room for `count`; 53200 if the system has no room for it.
pub fn room<T>(count: usize) -> Result<Vec<T>> {
    let mut list = Vec::new();
    MAY_REFUSE.store(count.saturating_mul(size_of::<T>()) > SMALL, Ordering::Relaxed);
    let reserved = list.try_reserve_exact(count);
    MAY_REFUSE.store(false, Ordering::Relaxed);
    reserved.map_err(|_| Error::out_of_memory())?;
    Ok(list)
}

/// All of `items`, of which there are `count`; 53200 if there is no room for them.
pub fn list<T>(count: usize, items: impl Iterator<Item = Result<T>>) -> Result<Vec<T>> {
    let mut list = room(count)?;
    for item in items {
        list.push(item?);
        check();
    }
    Ok(list)
}

thread_local! {
    static WITH_DESTRUCTOR: RefCell<Vec<u8>> = const { RefCell::new(Vec::new()) };
}

/// Make the C library allocate now what it needs for thread-local values with a destructor. At
/// their first use it would abort if it had no memory for that.
pub fn prepare() {
    WITH_DESTRUCTOR.with_borrow(|value| black_box(value.len()));
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn free_granules_are_found_in_a_row_and_at_their_step() {
        assert_eq!(first_free(&[0, 0], 128, 1), Some(0));
        assert_eq!(first_free(&[0, 0], 129, 1), None);
        assert_eq!(first_free(&[u64::MAX, 0b1011], 1, 1), Some(66));
        assert_eq!(first_free(&[u64::MAX, 0b1011], 2, 1), Some(68));
        assert_eq!(first_free(&[0b1, 0], 3, 4), Some(4));
        assert_eq!(first_free(&[u64::MAX, u64::MAX], 1, 1), None);
    }

    #[test]
    fn the_reserve_is_usable_again_when_all_of_it_is_given_back() {
        let layout = |size, align| Layout::from_size_align(size, align).ok();
        let Some(big) = layout((WORDS - LAST_WORDS) * 64 * GRANULE, 1) else { return };
        let Some(small) = layout(100, 8) else { return };
        let one = SPARE.take(small);
        assert!(!one.is_null() && SPARE.holds(one));
        assert!(SPARE.take(big).is_null());
        SPARE.give_back(one, small);
        let all = SPARE.take(big);
        assert!(!all.is_null());
        assert!(SPARE.take(small).is_null());
        SPARE.give_back(all, big);
        assert_eq!(SPARE.granules.load(Ordering::Relaxed), 0);
    }
}
