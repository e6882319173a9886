//! Texts as rows of a result return them: made once for many rows, or in room that one row after
//! the other uses.

use pgrx::callconv::{Arg, ArgAbi, BoxRet, FcInfo};
use pgrx::datum::Datum;
use pgrx::pgrx_sql_entity_graph::metadata::{
    ArgumentError, ReturnsError, ReturnsRef, SqlMappingRef, SqlTranslatable, TypeOrigin,
};
use pgrx::{FromDatum, IntoDatum, pg_sys};

use super::passed_through::passed_through;

/// A text Datum. It lives as long as the memory that it lies in.
#[derive(Clone, Copy, Debug)]
pub struct Text(pg_sys::Datum);

impl Text {
    /// A text Datum that the caller knows to be one.
    pub fn new(datum: pg_sys::Datum) -> Self {
        Self(datum)
    }

    /// A copy in the current memory context.
    pub fn copied(text: &str) -> Self {
        Self(text.into_datum().unwrap_or(pg_sys::Datum::null()))
    }
}

passed_through!(Text, "text", pg_sys::TEXTOID);

/// Room for one text at a time: a row is stored before the next one is made. The words keep the
/// text where PostgreSQL wants a varlena to begin.
#[derive(Default)]
pub struct TextRoom(Vec<u32>);

impl TextRoom {
    /// Hold `text`, in place of the one before. The Datum may be used until the next call, and
    /// while the room is there.
    pub fn hold(&mut self, text: &str) -> Text {
        let size = pg_sys::VARHDRSZ + text.len();
        self.0.clear();
        self.0.resize(size.div_ceil(pg_sys::VARHDRSZ), 0);
        let place = self.0.as_mut_ptr();
        // SAFETY: there is room for the header, which is a word, and for the bytes behind it.
        unsafe {
            pgrx::set_varsize_4b(place.cast(), size as i32);
            place.add(1).cast::<u8>().copy_from_nonoverlapping(text.as_ptr(), text.len());
        }
        Text(pg_sys::Datum::from(place))
    }
}
