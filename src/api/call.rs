//! The way into every function of SQL. The first argument of each is a [`Call`], which SQL does not
//! see. pgrx makes it before it reads the other arguments, and that checks whether the function may
//! run here at all: it is declared as the library expects (see [`super::signatures`]), and the
//! database is UTF-8. The function's body then runs in [`Call::answer`], and what touches tables in
//! one of [`Call::read`], [`Call::write`] and [`Call::write_if_needed`].

use std::cell::{Cell, RefCell};
use std::ffi::CStr;

use pgrx::callconv::{Arg, ArgAbi};
use pgrx::pg_sys;
use pgrx::pgrx_sql_entity_graph::metadata::{
    ArgumentError, ReturnsError, ReturnsRef, SqlMappingRef, SqlTranslatable, TypeOrigin,
};

use super::signatures::{SIGNATURES, Signature};
use crate::error::{Code, Error, Result};
use crate::pg::address_map::AddressMap;
use crate::pg::ballast::Ballast;
use crate::pg::raise::OrRaise;
use crate::pg::spi;
use crate::worker;

/// A call of a function of SQL.
pub struct Call {
    signature: &'static Signature,
    /// The memory that errors of the call need, taken before it reads its arguments.
    _ballast: Ballast,
}

impl Call {
    /// Check the call, and raise an ERROR if something is wrong with it.
    ///
    /// # Safety
    /// `fcinfo` is the record of a call that PostgreSQL is making.
    pub unsafe fn accept(fcinfo: pg_sys::FunctionCallInfo) -> Self {
        // SAFETY: as above; PostgreSQL fills in `flinfo` wherever it calls a function by its OID.
        let function = unsafe {
            let manager = (*fcinfo).flinfo;
            if manager.is_null() { pg_sys::InvalidOid } else { (*manager).fn_oid }
        };
        let accept = || {
            let ballast = Ballast::hold()?;
            let signature = signature_of(function)?;
            refuse_encoding()?;
            Ok(Self { signature, _ballast: ballast })
        };
        accept().or_raise()
    }

    /// What the function answers, or the ERROR that it raises: `body` reads the arguments, and does
    /// the work within [`Call::read`], [`Call::write`] or [`Call::write_if_needed`].
    pub fn answer<T>(&self, body: impl FnOnce() -> Result<T>) -> T {
        body().or_raise()
    }

    /// Run `body`, which may write, as the role that owns the extension. Error 25006 on a standby
    /// and in a READ ONLY transaction.
    pub fn write<T>(&self, body: impl FnOnce() -> Result<T>) -> Result<T> {
        self.need_writable()?;
        self.read(body)
    }

    /// Run `body` as the role that owns the extension, in an SPI connection. The launcher is told
    /// that this session uses the extension, so that a worker serves its database.
    pub fn read<T>(&self, body: impl FnOnce() -> Result<T>) -> Result<T> {
        worker::announce();
        spi::connected(body)
    }

    /// Run `body` as [`Call::read`] does; in a READ ONLY transaction PostgreSQL itself refuses its
    /// writes. On a standby error 25006 says so.
    pub fn write_if_needed<T>(&self, body: impl FnOnce() -> Result<T>) -> Result<T> {
        self.need_primary()?;
        self.read(body)
    }

    /// Error 25006 where this session cannot write.
    pub fn need_writable(&self) -> Result<()> {
        self.need_primary()?;
        // SAFETY: a plain global of the backend.
        match unsafe { pg_sys::XactReadOnly } {
            false => Ok(()),
            true => Err(Error::new(
                Code::ReadOnly,
                format!("cannot execute {}() in a read-only transaction", self.signature.name),
            )
            .detail("The function writes.")
            .hint("Begin the transaction with READ WRITE.")),
        }
    }

    /// Error 25006 on a standby.
    fn need_primary(&self) -> Result<()> {
        // SAFETY: reads shared memory.
        match unsafe { pg_sys::RecoveryInProgress() } {
            false => Ok(()),
            true => Err(Error::new(
                Code::ReadOnly,
                format!("cannot execute {}() on a standby", self.signature.name),
            )
            .detail("The function writes, and this server is in recovery.")
            .hint("Connect to the primary: target_session_attrs=read-write.")),
        }
    }
}

// SAFETY: takes none of the arguments of SQL.
unsafe impl<'fcx> ArgAbi<'fcx> for Call {
    unsafe fn unbox_arg_unchecked(arg: Arg<'_, 'fcx>) -> Self {
        // SAFETY: pgrx hands the record of the call to an argument of this type.
        unsafe { Self::accept(arg.unbox_unchecked::<pg_sys::FunctionCallInfo>()) }
    }

    fn is_virtual_arg() -> bool {
        true
    }
}

// SAFETY: says that there is no such argument in SQL.
unsafe impl SqlTranslatable for Call {
    const TYPE_IDENT: &'static str = "queen_mq::api::call::Call";
    const TYPE_ORIGIN: TypeOrigin = TypeOrigin::External;
    const ARGUMENT_SQL: std::result::Result<SqlMappingRef, ArgumentError> = Ok(SqlMappingRef::Skip);
    const RETURN_SQL: std::result::Result<ReturnsRef, ReturnsError> =
        Ok(ReturnsRef::One(SqlMappingRef::Skip));
}

/// Refuse a database of another encoding than UTF-8. Texts are UTF-8 in the library, and would be
/// stored there as other texts.
fn refuse_encoding() -> Result<()> {
    // SAFETY: reads the backend's memory; the name is a constant of PostgreSQL.
    let (encoding, name) = unsafe {
        let encoding = pg_sys::GetDatabaseEncoding();
        (encoding, CStr::from_ptr(pg_sys::GetDatabaseEncodingName()))
    };
    match encoding == pg_sys::pg_enc::PG_UTF8 as i32 {
        true => Ok(()),
        false => Err(Error::new(
            Code::FeatureNotSupported,
            "queen_mq needs a database whose encoding is UTF8",
        )
        .detail(format!("The encoding of this database is {}.", name.to_string_lossy()))
        .hint("Create a database with ENCODING 'UTF8'.")),
    }
}

thread_local! {
    /// OIDs of functions whose declaration has been checked. Emptied when a function changes.
    static CHECKED: RefCell<AddressMap<u32, &'static Signature>> = RefCell::default();
    /// The session is told of changes of functions.
    static IS_LISTENING: Cell<bool> = const { Cell::new(false) };
}

/// The signature of a function, after a check that it is declared so.
fn signature_of(function: pg_sys::Oid) -> Result<&'static Signature> {
    if let Some(known) = CHECKED.with_borrow(|known| known.get(&function.to_u32()).copied()) {
        return Ok(known);
    }
    if !IS_LISTENING.replace(true) {
        let cache = pg_sys::SysCacheIdentifier::PROCOID as i32;
        // SAFETY: the callback lives as long as the process, and does nothing but forget.
        unsafe {
            pg_sys::CacheRegisterSyscacheCallback(cache, Some(forget), pg_sys::Datum::null());
        }
    }
    // SAFETY: look-ups in the catalogue, in a transaction.
    let declared = unsafe { Declared::read(function) };
    let declared =
        declared.ok_or_else(|| Error::mismatch("a function", "It is not known by its OID."))?;
    let expected = SIGNATURES.iter().find(|signature| signature.name == declared.symbol);
    match expected.filter(|expected| declared.is(expected)) {
        Some(signature) => {
            CHECKED.with_borrow_mut(|known| known.insert(function.to_u32(), signature));
            Ok(signature)
        }
        None => Err(Error::mismatch(
            &format!("the function {}", declared.symbol),
            "Its arguments or its result are declared otherwise than the library expects.",
        )),
    }
}

extern "C-unwind" fn forget(_: pg_sys::Datum, _: std::ffi::c_int, _: u32) {
    // The map is borrowed only while no code of PostgreSQL runs, so this is never refused.
    CHECKED.with(|known| known.try_borrow_mut().map(|mut known| known.clear()).unwrap_or_default());
}

/// How the catalogue declares a function.
struct Declared {
    symbol: String,
    arguments: Vec<pg_sys::Oid>,
    result: Vec<pg_sys::Oid>,
}

impl Declared {
    fn is(&self, expected: &Signature) -> bool {
        self.arguments == expected.arguments && self.result == expected.result
    }

    /// None where there is no such function.
    ///
    /// # Safety
    /// In a transaction.
    unsafe fn read(function: pg_sys::Oid) -> Option<Self> {
        let cache = pg_sys::SysCacheIdentifier::PROCOID as i32;
        // SAFETY: the entry is a row of pg_proc, and stays until it is given back; what is read of
        // it is copied. The description of result columns is allocated in the current memory
        // context.
        unsafe {
            let entry = pg_sys::SearchSysCache1(cache, pg_sys::Datum::from(function));
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
            let source = pg_sys::SysCacheGetAttr(cache, entry, number, &mut is_null);
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
unsafe fn column_type(columns: pg_sys::TupleDesc, at: usize) -> pg_sys::Oid {
    // SAFETY: as above.
    unsafe {
        #[cfg(any(feature = "pg15", feature = "pg16", feature = "pg17"))]
        return (*columns).attrs.as_slice((*columns).natts as usize)[at].atttypid;
        #[cfg(feature = "pg18")]
        return (*pg_sys::TupleDescAttr(columns, at as i32)).atttypid;
    }
}
