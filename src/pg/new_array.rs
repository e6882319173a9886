//! Arrays of jsonb and text, made in one piece: each element is copied once, straight from where it
//! lies.

use std::ptr;

use pgrx::pg_sys;

use super::columns::Arg;
use crate::pg::datum::Jsonb;

/// What an array is made of.
pub trait Element: Copy {
    /// The type of the elements: a varlena that begins at a multiple of four bytes.
    const OID: pg_sys::Oid;

    /// Its bytes behind the header.
    fn bytes(self) -> (*const u8, usize);
}

impl Element for Jsonb {
    const OID: pg_sys::Oid = pg_sys::JSONBOID;

    fn bytes(self) -> (*const u8, usize) {
        // SAFETY: a jsonb is a varlena. Where it lies compressed or out of line, this is a copy in
        // the current memory context.
        unsafe {
            let whole = pg_sys::Datum::from(self).cast_mut_ptr::<pg_sys::varlena>();
            let is_packed = pgrx::varatt_is_1b_e(whole)
                || !(pgrx::varatt_is_1b(whole) || pgrx::varatt_is_4b_u(whole));
            let whole = if is_packed { pg_sys::pg_detoast_datum(whole) } else { whole };
            (pgrx::vardata_any(whole).cast(), pgrx::varsize_any_exhdr(whole))
        }
    }
}

impl Element for &str {
    const OID: pg_sys::Oid = pg_sys::TEXTOID;

    fn bytes(self) -> (*const u8, usize) {
        (self.as_ptr(), self.len())
    }
}

/// Elements begin at multiples of this.
const ALIGNMENT: usize = size_of::<i32>();
/// The header of an array of one dimension: length, dimensions, offset of the elements, type, count
/// and lower bound.
const HEADER: usize = size_of::<pg_sys::ArrayType>() + 2 * size_of::<i32>();

/// An array of one dimension in the current memory context; None is a NULL element.
pub fn array<E: Element>(elements: &[Option<E>]) -> Arg {
    let none = (ptr::null(), 0);
    let parts: Vec<(*const u8, usize)> =
        elements.iter().map(|element| element.map_or(none, E::bytes)).collect();
    let has_nulls = elements.iter().any(Option::is_none);
    let bitmap = if has_nulls { elements.len().div_ceil(8) } else { 0 };
    let start = (HEADER + bitmap).next_multiple_of(pg_sys::MAXIMUM_ALIGNOF as usize);
    let room = |length: usize| pg_sys::VARHDRSZ + length.next_multiple_of(ALIGNMENT);
    let filled = elements.iter().zip(&parts).filter(|(element, _)| element.is_some());
    let size = start + filled.map(|(_, (_, length))| room(*length)).sum::<usize>();
    // SAFETY: `size` bytes are allocated, and the elements fill what the headers leave of them. The
    // bytes between, by which elements are aligned, are set as well: equal arrays are equal bytes.
    unsafe {
        let array: *mut u8 = pg_sys::palloc(size).cast();
        array.write_bytes(0, start);
        pgrx::set_varsize_4b(array.cast(), size as i32);
        let header = &mut *array.cast::<pg_sys::ArrayType>();
        header.ndim = 1;
        header.dataoffset = if has_nulls { start as i32 } else { 0 };
        header.elemtype = E::OID;
        let dimension = array.add(size_of::<pg_sys::ArrayType>()).cast::<i32>();
        dimension.write(elements.len() as i32);
        dimension.add(1).write(1);
        let mut place = array.add(start);
        for (at, (element, (bytes, length))) in elements.iter().zip(&parts).enumerate() {
            if element.is_none() {
                continue;
            }
            if has_nulls {
                *array.add(HEADER + at / 8) |= 1 << (at % 8);
            }
            let end = place.add(room(*length));
            end.sub(ALIGNMENT).cast::<u32>().write(0);
            pgrx::set_varsize_4b(place.cast(), (pg_sys::VARHDRSZ + length) as i32);
            place.add(pg_sys::VARHDRSZ).copy_from_nonoverlapping(*bytes, *length);
            place = end;
        }
        Some(pg_sys::Datum::from(array))
    }
}
