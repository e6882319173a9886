//! Values passed through as PostgreSQL holds them: never parsed, never rounded.

use std::cell::RefCell;

use pgrx::callconv::{Arg, ArgAbi, BoxRet, FcInfo};
use pgrx::datum::Datum;
use pgrx::pgrx_sql_entity_graph::metadata::{
    ArgumentError, ReturnsError, ReturnsRef, SqlMappingRef, SqlTranslatable, TypeOrigin,
};
use pgrx::{AnyNumeric, FromDatum, IntoDatum, pg_sys};
use queen_engine::kv::Number;

use crate::error::Error;

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

/// An array of jsonb, text or bigint, as PostgreSQL holds it.
macro_rules! array {
    ($name:ident, $element:expr, $len:expr, $by_value:expr, $align:expr) => {
        #[derive(Clone, Copy, Debug)]
        pub struct $name(pg_sys::Datum);

        impl $name {
            /// Its elements in a copy of their own, made in the current memory context. None if
            /// the array has more than one dimension.
            pub fn elements(self) -> Option<Vec<Option<pg_sys::Datum>>> {
                let (mut values, mut nulls, mut count) =
                    (std::ptr::null_mut(), std::ptr::null_mut(), 0);
                // SAFETY: the Datum is an array of this element type, whose length, passing and
                // alignment are these. Element Datums by reference point into the copy.
                unsafe {
                    let copy = pg_sys::pg_detoast_datum_copy(self.0.cast_mut_ptr());
                    let array = copy.cast::<pg_sys::ArrayType>();
                    if (*array).ndim > 1 {
                        return None;
                    }
                    pg_sys::deconstruct_array(
                        array,
                        $element,
                        $len,
                        $by_value,
                        $align as std::ffi::c_char,
                        &mut values,
                        &mut nulls,
                        &mut count,
                    );
                    let element = |i| (!*nulls.add(i)).then(|| *values.add(i));
                    Some((0..count as usize).map(element).collect())
                }
            }
        }
    };
}

array!(JsonbArray, pg_sys::JSONBOID, -1, false, pg_sys::TYPALIGN_INT);
array!(TextArray, pg_sys::TEXTOID, -1, false, pg_sys::TYPALIGN_INT);
array!(BigintArray, pg_sys::INT8OID, 8, true, pg_sys::TYPALIGN_DOUBLE);
array!(UuidArray, pg_sys::UUIDOID, 16, false, pg_sys::TYPALIGN_CHAR);

/// Passes a Datum in and out of a function as it is.
macro_rules! passed_through {
    ($name:ident, $sql:literal, $oid:expr) => {
        impl FromDatum for $name {
            unsafe fn from_polymorphic_datum(
                datum: pg_sys::Datum,
                is_null: bool,
                _: pg_sys::Oid,
            ) -> Option<Self> {
                (!is_null).then_some(Self(datum))
            }
        }

        impl IntoDatum for $name {
            fn into_datum(self) -> Option<pg_sys::Datum> {
                Some(self.0)
            }

            fn type_oid() -> pg_sys::Oid {
                $oid
            }
        }

        // SAFETY: the argument's Datum is passed on as it is.
        unsafe impl<'fcx> ArgAbi<'fcx> for $name {
            unsafe fn unbox_arg_unchecked(arg: Arg<'_, 'fcx>) -> Self {
                // SAFETY: the SQL type of the argument is the one below.
                unsafe { arg.unbox_arg_using_from_datum() }.unwrap_or(Self(pg_sys::Datum::null()))
            }
        }

        // SAFETY: the Datum is of the SQL type below and is returned as one.
        unsafe impl BoxRet for $name {
            unsafe fn box_into<'fcx>(self, fcinfo: &mut FcInfo<'fcx>) -> Datum<'fcx> {
                // SAFETY: see above.
                unsafe { fcinfo.return_raw_datum(self.0) }
            }
        }

        // SAFETY: names the SQL type that the Datum has.
        unsafe impl SqlTranslatable for $name {
            const TYPE_IDENT: &'static str = concat!("queen_mq::datum::", stringify!($name));
            const TYPE_ORIGIN: TypeOrigin = TypeOrigin::External;
            const ARGUMENT_SQL: Result<SqlMappingRef, ArgumentError> =
                Ok(SqlMappingRef::literal($sql));
            const RETURN_SQL: Result<ReturnsRef, ReturnsError> =
                Ok(ReturnsRef::One(SqlMappingRef::literal($sql)));
        }
    };
}

passed_through!(Jsonb, "jsonb", pg_sys::JSONBOID);
passed_through!(JsonbArray, "jsonb[]", pg_sys::JSONBARRAYOID);
passed_through!(TextArray, "text[]", pg_sys::TEXTARRAYOID);
passed_through!(BigintArray, "bigint[]", pg_sys::INT8ARRAYOID);
passed_through!(UuidArray, "uuid[]", pg_sys::UUIDARRAYOID);

/// The memory context in which a function's result rows live: the one that was current when the
/// function was called. SPI makes another one current, which goes when SPI closes.
#[derive(Clone, Copy)]
pub struct ResultContext(pg_sys::MemoryContext);

impl ResultContext {
    /// The context that is current; to be called before SPI is connected.
    pub fn here() -> Self {
        // SAFETY: a plain global of the backend.
        Self(unsafe { pg_sys::CurrentMemoryContext })
    }

    /// Run `body` with its allocations made here.
    pub fn allocate<T>(self, body: impl FnOnce() -> T) -> T {
        // SAFETY: the context lives until the function's last row has been returned; the former
        // one is made current again, or, on an ERROR, whatever the handler needs.
        unsafe {
            let before = pg_sys::MemoryContextSwitchTo(self.0);
            let value = body();
            pg_sys::MemoryContextSwitchTo(before);
            value
        }
    }
}

thread_local! {
    /// Random numbers in store. A backend begins with none: the postmaster, which it is a copy of, has
    /// drawn none.
    static DRAWN: RefCell<Vec<u64>> = const { RefCell::new(Vec::new()) };
}

/// 64 random bits from PostgreSQL's strong source, which is asked for many at a time: the price is that
/// of the call.
pub fn random() -> u64 {
    if let Some(one) = DRAWN.with_borrow_mut(Vec::pop) {
        return one;
    }
    let mut fresh = [0u64; 64];
    // SAFETY: the buffer is as long as said.
    let strong =
        unsafe { pg_sys::pg_strong_random(fresh.as_mut_ptr().cast(), size_of_val(&fresh)) };
    if !strong {
        Error::corrupt("the system has no randomness to give").raise();
    }
    let [one, rest @ ..] = fresh;
    DRAWN.with_borrow_mut(|drawn| drawn.extend(rest));
    one
}

/// A UUID in its usual form.
pub fn parse_uuid(text: &str) -> Option<[u8; 16]> {
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

thread_local! {
    /// numeric holds 131,072 digits before the point: two numbers of fewer digits have a sum.
    static BOUNDS: (Option<Numeric>, Option<Numeric>) =
        (Numeric::from_text("-1e131071"), Numeric::from_text("1e131071"));
}

impl Number for Numeric {
    /// NaN is greater than all others.
    fn is_usable(&self) -> bool {
        BOUNDS.with(|bounds| matches!(bounds, (Some(low), Some(high)) if low < self && self < high))
    }

    fn plus(&self, other: &Self) -> Self {
        Self(self.0.clone() + other.0.clone())
    }
}
