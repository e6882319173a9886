//! Values passed through as PostgreSQL holds them: never parsed, never rounded.

use std::ffi::{CStr, c_char};

use pgrx::callconv::{Arg, ArgAbi, BoxRet, FcInfo};
use pgrx::datum::Datum;
use pgrx::pgrx_sql_entity_graph::metadata::{
    ArgumentError, ReturnsError, ReturnsRef, SqlMappingRef, SqlTranslatable, TypeOrigin,
};
use pgrx::{AnyNumeric, FromDatum, IntoDatum, pg_sys};

use super::passed_through::passed_through;
use super::result_context::ResultContext;
use crate::error::Error;
use crate::pg::ballast::Ballast;
use crate::pg::raise::OrRaise;

/// A jsonb Datum. It lives as long as the memory context it came from.
#[derive(Clone, Copy, Debug)]
pub struct Jsonb(pg_sys::Datum);

impl Jsonb {
    /// A jsonb Datum that the caller knows to be one.
    pub fn new(datum: pg_sys::Datum) -> Self {
        Self(datum)
    }

    /// A copy in `context`, whole and uncompressed: it needs no SPI connection, table or snapshot.
    pub fn copied_to(self, context: ResultContext) -> Self {
        // SAFETY: a Jsonb is made from a jsonb Datum, which is a valid varlena.
        let copy =
            context.allocate(|| unsafe { pg_sys::pg_detoast_datum_copy(self.0.cast_mut_ptr()) });
        Self(pg_sys::Datum::from(copy))
    }

    /// Bytes of the value as stored, without compression.
    pub fn size(self) -> usize {
        // SAFETY: a Jsonb is made from a jsonb Datum, which is a valid varlena. One that is neither
        // compressed nor out of line says how long it is.
        unsafe {
            let whole = self.0.cast_mut_ptr::<pg_sys::varlena>();
            match pgrx::varatt_is_4b_u(whole) {
                true => pgrx::varsize_4b(whole),
                false => pg_sys::toast_raw_datum_size(self.0),
            }
        }
    }

    /// The number of elements of a JSON array, from its header; None for any other value.
    pub fn array_length(self) -> Option<usize> {
        const { assert!(pg_sys::JB_CMASK == 0x0fff_ffff) };
        // SAFETY: after the length word of a jsonb comes the header of its outermost container.
        let header = unsafe {
            let whole = pg_sys::pg_detoast_datum(self.0.cast_mut_ptr());
            whole.cast::<u32>().add(1).read_unaligned()
        };
        let is_array = header & pg_sys::JB_FARRAY != 0 && header & pg_sys::JB_FSCALAR == 0;
        is_array.then_some((header & pg_sys::JB_CMASK) as usize)
    }

    /// As JSON text.
    pub fn to_text(self) -> JsonText {
        let _ballast = Ballast::hold().or_raise();
        // SAFETY: jsonb_out takes one jsonb and returns a C string, made for us.
        unsafe {
            let text = pgrx::direct_function_call_as_datum(pg_sys::jsonb_out, &[Some(self.0)]);
            JsonText::new(text.map_or(std::ptr::null_mut(), pg_sys::Datum::cast_mut_ptr))
        }
    }

    /// From JSON text; None when the text is not JSON that jsonb can hold is an ERROR of jsonb_in.
    pub fn from_text(text: &str) -> Option<Self> {
        if text.as_bytes().contains(&0) {
            return None;
        }
        let _ballast = Ballast::hold().or_raise();
        // SAFETY: jsonb_in takes one C string, which is a copy made here, and returns a jsonb.
        unsafe {
            let text = pg_sys::pnstrdup(text.as_ptr().cast(), text.len());
            let datum = pgrx::direct_function_call_as_datum(
                pg_sys::jsonb_in,
                &[Some(pg_sys::Datum::from(text))],
            );
            pg_sys::pfree(text.cast());
            datum.map(Self)
        }
    }
}

/// JSON text in PostgreSQL's memory, where a refused allocation is an ERROR.
pub struct JsonText {
    start: *mut c_char,
    length: usize,
}

impl JsonText {
    /// # Safety
    /// A C string made by palloc, which no other code frees or keeps.
    unsafe fn new(start: *mut c_char) -> Self {
        if start.is_null() {
            Error::corrupt("a jsonb value has no text").raise();
        }
        // SAFETY: a C string.
        let text = unsafe { CStr::from_ptr(start) };
        if text.to_str().is_err() {
            Error::corrupt("the text of a jsonb value is not UTF-8").raise();
        }
        Self { start, length: text.count_bytes() }
    }
}

impl std::ops::Deref for JsonText {
    type Target = str;

    fn deref(&self) -> &str {
        // SAFETY: the string has this many bytes while `self` lives, and `new` has seen that they
        // are UTF-8.
        unsafe {
            let bytes = std::slice::from_raw_parts(self.start.cast::<u8>(), self.length);
            std::str::from_utf8_unchecked(bytes)
        }
    }
}

impl Drop for JsonText {
    fn drop(&mut self) {
        // While an ERROR unwinds, its memory context frees it.
        if !std::thread::panicking() {
            // SAFETY: made by palloc, in a context that outlives the function's work.
            unsafe { pg_sys::pfree(self.start.cast()) };
        }
    }
}

impl From<Jsonb> for pg_sys::Datum {
    fn from(value: Jsonb) -> Self {
        value.0
    }
}

passed_through!(Jsonb, "jsonb", pg_sys::JSONBOID);

/// A uuid Datum, made once for many rows. It lives as long as the memory context it is in.
#[derive(Clone, Copy, Debug)]
pub struct UuidDatum(pg_sys::Datum);

impl UuidDatum {
    /// A copy in the current memory context.
    pub fn copied(bytes: [u8; 16]) -> Self {
        Self(pgrx::Uuid::from_bytes(bytes).into_datum().unwrap_or(pg_sys::Datum::null()))
    }
}

passed_through!(UuidDatum, "uuid", pg_sys::UUIDOID);

/// A UUID in its usual form.
pub fn parse_uuid(text: &str) -> Option<[u8; 16]> {
    if text.len() > 64 {
        return None;
    }
    let digits: Vec<u8> = text.bytes().filter(|byte| *byte != b'-').collect();
    let well_formed = digits.len() == 32 && digits.iter().all(u8::is_ascii_hexdigit);
    let mut bytes = [0; 16];
    for (byte, pair) in bytes.iter_mut().zip(digits.chunks(2)) {
        *byte = u8::from_str_radix(std::str::from_utf8(pair).ok()?, 16).ok()?;
    }
    well_formed.then_some(bytes)
}

/// PostgreSQL's numeric, exact.
#[derive(Clone, Debug, PartialEq, PartialOrd)]
pub struct Numeric(pub AnyNumeric);

impl Numeric {
    /// From the text of a number; None where numeric can't hold it.
    pub fn from_text(text: &str) -> Option<Self> {
        AnyNumeric::try_from(text).ok().map(Numeric)
    }

    pub fn to_jsonb(&self) -> Result<Jsonb, Error> {
        Jsonb::from_text(&self.0.to_string())
            .ok_or_else(|| Error::corrupt("a numeric did not become jsonb"))
    }
}
