//! Arrays of SQL, read without a copy of their elements.

use std::ffi::{c_char, c_int};

use pgrx::callconv::{Arg, ArgAbi, BoxRet, FcInfo};
use pgrx::datum::Datum;
use pgrx::pgrx_sql_entity_graph::metadata::{
    ArgumentError, ReturnsError, ReturnsRef, SqlMappingRef, SqlTranslatable, TypeOrigin,
};
use pgrx::{FromDatum, IntoDatum, pg_sys};

use super::passed_through::passed_through;
use crate::error::Error;

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
        Elements { element: oid, values, nulls, count: count as usize }
    }
}

/// The elements of an array; the list of them lies in PostgreSQL's memory.
#[derive(Clone, Copy)]
pub struct Elements {
    /// Their type.
    element: pg_sys::Oid,
    values: *mut pg_sys::Datum,
    nulls: *mut bool,
    count: usize,
}

impl Elements {
    pub fn none() -> Self {
        let element = pg_sys::InvalidOid;
        Self { element, values: std::ptr::null_mut(), nulls: std::ptr::null_mut(), count: 0 }
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

    /// An element of an array of text; None for NULL, and beyond the last.
    pub fn text(&self, at: usize) -> Option<&str> {
        let datum = self.get(at)?;
        if self.element != pg_sys::TEXTOID {
            Error::corrupt("an array that is not of text was read as one").raise();
        }
        // SAFETY: a text, which lives as long as the list of the elements.
        unsafe { <&str>::from_datum(datum, false) }
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

passed_through!(JsonbArray, "jsonb[]", pg_sys::JSONBARRAYOID);
passed_through!(TextArray, "text[]", pg_sys::TEXTARRAYOID);
passed_through!(BigintArray, "bigint[]", pg_sys::INT8ARRAYOID);
passed_through!(UuidArray, "uuid[]", pg_sys::UUIDARRAYOID);
