//! A jsonb value passed through as PostgreSQL holds it: never parsed, never copied into Rust.

use pgrx::callconv::{Arg, ArgAbi, BoxRet, FcInfo};
use pgrx::datum::Datum;
use pgrx::pgrx_sql_entity_graph::metadata::{
    ArgumentError, ReturnsError, ReturnsRef, SqlMappingRef, SqlTranslatable, TypeOrigin,
};
use pgrx::{FromDatum, IntoDatum, pg_sys};

/// A jsonb Datum. It lives as long as the memory context it came from.
#[derive(Clone, Copy, Debug)]
pub struct Jsonb(pg_sys::Datum);

impl Jsonb {
    /// A jsonb Datum that the caller knows to be one.
    pub fn new(datum: pg_sys::Datum) -> Self {
        Self(datum)
    }

    pub fn datum(self) -> pg_sys::Datum {
        self.0
    }

    /// Bytes of the value as stored, without compression.
    pub fn size(self) -> usize {
        // SAFETY: a Jsonb is made from a jsonb Datum, which is a valid varlena.
        unsafe { pg_sys::toast_raw_datum_size(self.0) }
    }

    /// As JSON text.
    pub fn to_text(self) -> String {
        // SAFETY: jsonb_out takes one jsonb and returns a C string.
        let text = unsafe {
            pgrx::direct_function_call::<&core::ffi::CStr>(pg_sys::jsonb_out, &[Some(self.0)])
        };
        text.map(|t| t.to_string_lossy().into_owned()).unwrap_or_default()
    }

    /// From JSON text; None when the text is not JSON that jsonb can hold is an ERROR of jsonb_in.
    pub fn from_text(text: &str) -> Option<Self> {
        let text = std::ffi::CString::new(text).ok()?;
        // SAFETY: jsonb_in takes one C string and returns a jsonb.
        let datum = unsafe {
            pgrx::direct_function_call_as_datum(
                pg_sys::jsonb_in,
                &[Some(pg_sys::Datum::from(text.as_ptr()))],
            )
        };
        datum.map(Self)
    }
}

impl FromDatum for Jsonb {
    unsafe fn from_polymorphic_datum(
        datum: pg_sys::Datum,
        is_null: bool,
        _: pg_sys::Oid,
    ) -> Option<Self> {
        (!is_null).then_some(Self(datum))
    }
}

impl IntoDatum for Jsonb {
    fn into_datum(self) -> Option<pg_sys::Datum> {
        Some(self.0)
    }

    fn type_oid() -> pg_sys::Oid {
        pg_sys::JSONBOID
    }
}

// SAFETY: the argument's Datum is passed on as it is.
unsafe impl<'fcx> ArgAbi<'fcx> for Jsonb {
    unsafe fn unbox_arg_unchecked(arg: Arg<'_, 'fcx>) -> Self {
        // SAFETY: the SQL type of the argument is jsonb (see SqlTranslatable).
        unsafe { arg.unbox_arg_using_from_datum() }.unwrap_or(Self(pg_sys::Datum::null()))
    }
}

// SAFETY: the Datum is a jsonb and is returned as one.
unsafe impl BoxRet for Jsonb {
    unsafe fn box_into<'fcx>(self, fcinfo: &mut FcInfo<'fcx>) -> Datum<'fcx> {
        // SAFETY: see above.
        unsafe { fcinfo.return_raw_datum(self.0) }
    }
}

// SAFETY: maps to the SQL type that the Datum has.
unsafe impl SqlTranslatable for Jsonb {
    const TYPE_IDENT: &'static str = "queen_mq::datum::Jsonb";
    const TYPE_ORIGIN: TypeOrigin = TypeOrigin::External;
    const ARGUMENT_SQL: Result<SqlMappingRef, ArgumentError> = Ok(SqlMappingRef::literal("jsonb"));
    const RETURN_SQL: Result<ReturnsRef, ReturnsError> =
        Ok(ReturnsRef::One(SqlMappingRef::literal("jsonb")));
}
