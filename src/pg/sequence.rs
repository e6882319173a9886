//! Sequences of the extension's schema.

use std::ffi::CStr;

use pgrx::{IntoDatum, pg_sys};

use super::catalogue;
use crate::error::Error;

/// The next value of a sequence. It is never given out again, also if the transaction rolls back.
pub fn draw(sequence: &'static CStr) -> i64 {
    let oid = catalogue::oid_of(sequence);
    // SAFETY: nextval_oid takes one OID and returns a bigint.
    let drawn =
        unsafe { pgrx::direct_function_call::<i64>(pg_sys::nextval_oid, &[oid.into_datum()]) };
    drawn.unwrap_or_else(|| Error::corrupt("a sequence gave NULL").raise())
}
