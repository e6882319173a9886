//! Values passed through as PostgreSQL holds them: never parsed, never rounded.

use std::cell::RefCell;
use std::ffi::{CStr, c_char, c_int};

use pgrx::callconv::{Arg, ArgAbi, BoxRet, FcInfo};
use pgrx::datum::Datum;
use pgrx::pgrx_sql_entity_graph::metadata::{
    ArgumentError, ReturnsError, ReturnsRef, SqlMappingRef, SqlTranslatable, TypeOrigin,
};
use pgrx::{AnyNumeric, FromDatum, IntoDatum, pg_sys};
use queen_engine::kv::Number;

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
        // SAFETY: a Jsonb is made from a jsonb Datum, which is a valid varlena.
        unsafe { pg_sys::toast_raw_datum_size(self.0) }
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

/// An argument that is an array and has not been read yet.
pub trait Array: Copy {
    /// Bytes of the whole array, without compression.
    fn size(self) -> usize;

    /// The elements; the array is fetched and decompressed first, where that is needed.
    fn open(self) -> OpenArray;

    /// All elements, unchecked: for an array that the extension has written itself.
    fn elements(self) -> Elements {
        self.open().elements()
    }
}

/// The shape of an array, known before any of its elements is read.
#[derive(Clone, Copy)]
pub struct OpenArray {
    array: *mut pg_sys::ArrayType,
    element: (pg_sys::Oid, c_int, bool, u8),
    pub dimensions: usize,
    pub count: usize,
}

impl OpenArray {
    /// # Safety
    /// The Datum is an array of this element type, whose length, passing and alignment are these.
    unsafe fn of(datum: pg_sys::Datum, element: (pg_sys::Oid, c_int, bool, u8)) -> Self {
        // SAFETY: as above; the lengths of the dimensions follow the header.
        unsafe {
            let array: *mut pg_sys::ArrayType =
                pg_sys::pg_detoast_datum(datum.cast_mut_ptr()).cast();
            let count = pg_sys::ArrayGetNItems((*array).ndim, array.add(1).cast());
            let dimensions = (*array).ndim as usize;
            Self { array, element, dimensions, count: count as usize }
        }
    }

    /// The elements; by-reference ones still lie in the array itself.
    pub fn elements(self) -> Elements {
        let (mut values, mut nulls, mut count) = (std::ptr::null_mut(), std::ptr::null_mut(), 0);
        let (oid, length, by_value, alignment) = self.element;
        // SAFETY: as `of` says.
        unsafe {
            pg_sys::deconstruct_array(
                self.array,
                oid,
                length,
                by_value,
                alignment as c_char,
                &mut values,
                &mut nulls,
                &mut count,
            );
        }
        Elements { values, nulls, count: count as usize }
    }
}

/// The elements of an array; the list of them lies in PostgreSQL's memory.
#[derive(Clone, Copy)]
pub struct Elements {
    values: *mut pg_sys::Datum,
    nulls: *mut bool,
    count: usize,
}

impl Elements {
    pub fn none() -> Self {
        Self { values: std::ptr::null_mut(), nulls: std::ptr::null_mut(), count: 0 }
    }

    pub fn len(&self) -> usize {
        self.count
    }

    /// None for NULL, and beyond the last.
    pub fn get(&self, at: usize) -> Option<pg_sys::Datum> {
        if at >= self.count {
            return None;
        }
        // SAFETY: both lists have `count` entries, and live as long as the context they were made
        // in.
        unsafe { (!*self.nulls.add(at)).then(|| *self.values.add(at)) }
    }

    /// All elements, as Rust values of the array's element type.
    pub fn iter<T: FromDatum>(self) -> impl ExactSizeIterator<Item = Option<T>> {
        // SAFETY: T is the array's element type, by the caller.
        (0..self.count).map(move |at| self.get(at).and_then(|d| unsafe { T::from_datum(d, false) }))
    }
}

/// An array of jsonb, text or bigint, as PostgreSQL holds it.
macro_rules! array {
    ($name:ident, $element:expr, $len:expr, $by_value:expr, $align:expr) => {
        #[derive(Clone, Copy, Debug)]
        pub struct $name(pg_sys::Datum);

        impl Array for $name {
            fn size(self) -> usize {
                // SAFETY: the Datum is an array, which is a valid varlena.
                unsafe { pg_sys::toast_raw_datum_size(self.0) }
            }

            fn open(self) -> OpenArray {
                // SAFETY: the Datum is an array of this element type.
                unsafe { OpenArray::of(self.0, ($element, $len, $by_value, $align)) }
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
