//! Plain functions as the argument of a callback of PostgreSQL's.

use std::mem;

use pgrx::pg_sys;

/// A function as the argument that PostgreSQL hands to a callback.
pub fn argument(listener: fn()) -> pg_sys::Datum {
    pg_sys::Datum::from(listener as *mut ())
}

/// Call the function that an argument stands for.
///
/// # Safety
/// [`argument`] has made it.
pub unsafe fn call(argument: pg_sys::Datum) {
    // SAFETY: the address of a function of this type. The library that has it stays loaded.
    let listener: fn() = unsafe { mem::transmute(argument.cast_mut_ptr::<()>()) };
    listener();
}
