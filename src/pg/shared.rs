//! Values in shared memory, each under an LWLock of its own.
//!
//! The postmaster sets them up while it preloads the library, and makes them anew where it begins
//! again after a crash. Without preload they are not there.

use std::cell::RefCell;
use std::ffi::CStr;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, AtomicI64, AtomicU64, Ordering};

use pgrx::lwlock::{PgLwLock, PgLwLockExclusiveGuard, PgLwLockShareGuard};
use pgrx::pg_sys::ffi::pg_guard_ffi_boundary;
use pgrx::shmem::{AssertPGRXSharedMemory, PgSharedMemoryInitialization};
use pgrx::{pg_guard, pg_sys};

use super::process;

/// What may lie in shared memory. The macro [`plain!`] implements it.
///
/// # Safety
/// A value has no pointer to the memory of one process, so each process reads the value that
/// another has written. Through a shared reference, processes change it by atomic operations alone.
pub unsafe trait Plain {}

macro_rules! numbers {
    ($($number:ty),+) => {
        $(
            // SAFETY: a number, or a flag.
            unsafe impl Plain for $number {}
        )+
    };
}
numbers!(bool, u8, i32, u32, i64, u64, usize, pg_sys::Oid, AtomicBool, AtomicI64, AtomicU64);

// SAFETY: its elements are plain.
unsafe impl<T: Plain, const N: usize> Plain for [T; N] {}
// SAFETY: both are plain.
unsafe impl<A: Plain, B: Plain> Plain for (A, B) {}
// SAFETY: what it may have is plain.
unsafe impl<T: Plain> Plain for Option<T> {}

/// Says that a struct is [`Plain`]: one whose fields are. It names all of them; the compiler checks
/// that it does, and that each is plain.
macro_rules! plain {
    ($name:ident { $($field:ident),+ $(,)? }) => {
        $crate::pg::shared::plain!($name, $name { $($field),+ }, $($field),+);
    };
    ($name:ident($($field:ident),+)) => {
        $crate::pg::shared::plain!($name, $name($($field),+), $($field),+);
    };
    ($name:ident, $fields:pat, $($field:ident),+) => {
        const _: fn(&$name) = |$fields| {
            $($crate::pg::shared::check_plain($field);)+
        };
        // SAFETY: so are all its fields, which the compiler has checked above.
        unsafe impl $crate::pg::shared::Plain for $name {}
    };
}
pub(crate) use plain;

/// Compiles for what is plain.
pub const fn check_plain<T: Plain>(_: &T) {}

/// A value that all processes of the server share.
pub struct Shared<T> {
    lock: PgLwLock<AssertPGRXSharedMemory<T>>,
    first: fn() -> T,
    /// Set in the postmaster, and so in all its children.
    is_there: AtomicBool,
}

impl<T: Plain> Shared<T> {
    /// `name`: of the lock, as `pg_stat_activity` shows a wait for it, and of the memory, as
    /// `pg_shmem_allocations` does. It begins with the name of the extension, so that no other
    /// library has it. `first`: makes the value when the server starts.
    pub const fn new(name: &'static CStr, first: fn() -> T) -> Self {
        // SAFETY: `set_up` refuses a name that another value of this library has. PostgreSQL
        // refuses one that another library has for a value of another size.
        let lock = unsafe { PgLwLock::new(name) };
        Self { lock, first, is_there: AtomicBool::new(false) }
    }

    /// Whether the library was preloaded, so that the value is there.
    #[inline]
    pub fn is_there(&self) -> bool {
        self.is_there.load(Ordering::Relaxed)
    }

    /// Read the value, while others may read it. It panics where there is no value. Nothing may
    /// fail or wait while the guard lives.
    #[inline]
    pub fn share(&self) -> PgLwLockShareGuard<'_, AssertPGRXSharedMemory<T>> {
        self.lock.share()
    }

    /// Read and change the value, as no other process does meanwhile. It panics where there is no
    /// value. Nothing may fail or wait while the guard lives.
    #[inline]
    pub fn exclusive(&self) -> PgLwLockExclusiveGuard<'_, AssertPGRXSharedMemory<T>> {
        self.lock.exclusive()
    }
}

impl<T: Plain + 'static> Shared<T> {
    /// Called as the library is loaded: have the value, if this is the preload.
    pub fn set_up(&'static self) {
        if !process::is_preloading() {
            return;
        }
        AREAS.with_borrow_mut(|areas| {
            let is_free = areas.iter().all(|known| known.name() != self.name());
            assert!(is_free, "two shared values are called {:?}", self.name());
            areas.push(self);
        });
        install();
        self.is_there.store(true, Ordering::Relaxed);
    }
}

/// A [`Shared`] of whatever type.
trait SharedArea {
    fn name(&self) -> &'static CStr;
    /// # Safety
    /// Called by the hook for requests of shared memory.
    unsafe fn request(&'static self);
    /// # Safety
    /// Called by the hook for the beginning of shared memory.
    unsafe fn begin(&'static self);
}

impl<T: Plain> SharedArea for Shared<T> {
    fn name(&self) -> &'static CStr {
        self.lock.name()
    }

    unsafe fn request(&'static self) {
        // SAFETY: as the caller says.
        unsafe { self.lock.on_shmem_request() }
    }

    unsafe fn begin(&'static self) {
        // SAFETY: as the caller says; what is plain may lie in shared memory.
        unsafe { self.lock.on_shmem_startup(AssertPGRXSharedMemory::new((self.first)())) }
    }
}

thread_local! {
    /// Those that were set up, in the postmaster.
    static AREAS: RefCell<Vec<&'static dyn SharedArea>> = const { RefCell::new(Vec::new()) };
}

type Hook = Option<unsafe extern "C-unwind" fn()>;

/// The hooks of other libraries, which come first.
static BEFORE: OnceLock<(Hook, Hook)> = OnceLock::new();

fn install() {
    BEFORE.get_or_init(|| {
        // SAFETY: the postmaster loads one library after the other. The hooks are functions of this
        // one, which stays loaded.
        unsafe {
            let before = (pg_sys::shmem_request_hook, pg_sys::shmem_startup_hook);
            pg_sys::shmem_request_hook = Some(at_request);
            pg_sys::shmem_startup_hook = Some(at_beginning);
            before
        }
    });
}

#[pg_guard]
unsafe extern "C-unwind" fn at_request() {
    if let Some((Some(before), _)) = BEFORE.get() {
        // SAFETY: a hook, called as one.
        unsafe { pg_guard_ffi_boundary(|| before()) };
    }
    // SAFETY: this is that hook.
    AREAS.with_borrow(|areas| areas.iter().for_each(|area| unsafe { area.request() }));
}

#[pg_guard]
unsafe extern "C-unwind" fn at_beginning() {
    if let Some((_, Some(before))) = BEFORE.get() {
        // SAFETY: a hook, called as one.
        unsafe { pg_guard_ffi_boundary(|| before()) };
    }
    // SAFETY: this is that hook.
    AREAS.with_borrow(|areas| areas.iter().for_each(|area| unsafe { area.begin() }));
}
