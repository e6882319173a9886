//! Values on their way between Rust and the columns of a row.

use pgrx::{FromDatum, IntoDatum, pg_sys};

use crate::error::Error;

/// A value for a column or a parameter; None is NULL.
pub type Arg = Option<pg_sys::Datum>;

/// From a Rust value.
pub fn arg<T: IntoDatum>(value: T) -> Arg {
    value.into_datum()
}

/// A row whose columns are called by a `C`.
pub trait Columns<C: Copy + std::fmt::Debug> {
    /// The raw value; what it refers to lives as long as the row.
    fn datum(&self, column: C) -> Arg;

    /// The value, None for NULL.
    fn get<T: FromDatum>(&self, column: C) -> Option<T> {
        let datum = self.datum(column)?;
        // SAFETY: statements and tables are ours, and each column is read as the type it has.
        unsafe { T::from_datum(datum, false) }
    }

    /// The value, which is never NULL.
    fn need<T: FromDatum>(&self, column: C) -> T {
        match self.get(column) {
            Some(value) => value,
            None => Error::corrupt(format!("column {column:?} is NULL where it can't be")).raise(),
        }
    }
}
