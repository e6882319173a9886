//! How the catalogue declares a function, and whether that has changed.

use std::ffi::{CStr, c_int};

use pgrx::{pg_guard, pg_sys};

use super::listener;

const FUNCTIONS: c_int = pg_sys::SysCacheIdentifier::PROCOID as c_int;

/// What `pg_proc` says of a function.
#[derive(Debug, PartialEq, Eq)]
pub struct DeclaredFunction {
    /// What is called: the name of the function in the library, without the suffix that pgrx gives
    /// it.
    pub symbol: String,
    /// The types of its arguments that a caller passes.
    pub arguments: Vec<pg_sys::Oid>,
    /// The types of the columns that it returns, or the type that it returns.
    pub result: Vec<pg_sys::Oid>,
}

impl DeclaredFunction {
    /// None where there is no such function.
    pub fn read(function: pg_sys::Oid) -> Option<Self> {
        // SAFETY: the entry is a row of pg_proc, and stays until it is given back; what is read of
        // it is copied. The description of result columns is allocated in the current memory
        // context.
        unsafe {
            let entry = pg_sys::SearchSysCache1(FUNCTIONS, pg_sys::Datum::from(function));
            if entry.is_null() {
                return None;
            }
            let row = &*pg_sys::GETSTRUCT(entry).cast::<pg_sys::FormData_pg_proc>();
            let count = row.pronargs as usize;
            let arguments = row.proargtypes.values.as_slice(count).to_vec();
            let columns = pg_sys::build_function_result_tupdesc_t(entry);
            let result = match columns.is_null() {
                true => vec![row.prorettype],
                false => {
                    (0..(*columns).natts as usize).map(|at| column_type(columns, at)).collect()
                }
            };
            let mut is_null = false;
            let number = pg_sys::Anum_pg_proc_prosrc as pg_sys::AttrNumber;
            let source = pg_sys::SysCacheGetAttr(FUNCTIONS, entry, number, &mut is_null);
            let symbol = pg_sys::text_to_cstring(source.cast_mut_ptr());
            let symbol = CStr::from_ptr(symbol).to_string_lossy();
            let symbol = symbol.strip_suffix("_wrapper").unwrap_or(&symbol).to_owned();
            pg_sys::ReleaseSysCache(entry);
            Some(Self { symbol, arguments, result })
        }
    }
}

/// # Safety
/// The description has more columns than `at`.
pub(super) unsafe fn column_type(columns: pg_sys::TupleDesc, at: usize) -> pg_sys::Oid {
    // SAFETY: as above.
    unsafe {
        #[cfg(any(feature = "pg15", feature = "pg16", feature = "pg17"))]
        return (*columns).attrs.as_slice((*columns).natts as usize)[at].atttypid;
        #[cfg(feature = "pg18")]
        return (*pg_sys::TupleDescAttr(columns, at as i32)).atttypid;
    }
}

/// Call `listener` whenever the session hears that a function has changed, or may have. It may not
/// look at the catalogue. A call for each time that this was called.
pub fn on_change(listener: fn()) {
    let argument = listener::argument(listener);
    // SAFETY: the callback is a function of this library, which stays loaded, and takes this
    // argument.
    unsafe { pg_sys::CacheRegisterSyscacheCallback(FUNCTIONS, Some(hear), argument) };
}

#[pg_guard]
unsafe extern "C-unwind" fn hear(argument: pg_sys::Datum, _cache: c_int, _hash: u32) {
    // SAFETY: `on_change` has made the argument.
    unsafe { listener::call(argument) }
}
