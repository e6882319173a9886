//! Rows that a function returns, all at once.
//!
//! pgrx's own iterator hands out one row at a time, and PostgreSQL calls the function again for
//! each. Between two such calls the caller's code runs, so each would set up anew what a call
//! needs: the check of its declaration, and the reserve of memory. So the
//! rows go into a tuplestore in one call.
//!
//! The function makes them one at a time, and frees what a row is made of before the next. However
//! many rows there are, they take the memory of one, and what the tuplestore keeps (work_mem; the
//! rest is on disk).

use pgrx::callconv::RetAbi;
use pgrx::pgrx_sql_entity_graph::metadata::{
    ArgumentError, ReturnsError, ReturnsRef, SqlMappingRef, SqlTranslatable, TypeOrigin,
};
use pgrx::{IntoDatum, pg_sys};

use crate::error::Error;
use crate::pg::allocator;
use crate::pg::ballast::Ballast;
use crate::pg::raise::OrRaise;
use crate::pg::scratch::Scratch;

/// The rows of a `RETURNS TABLE`. `#[pg_extern]` knows the type by this name.
pub struct TableIterator<'a, Row>(Box<dyn Iterator<Item = Row> + 'a>);

impl<'a, Row: 'a> TableIterator<'a, Row> {
    pub fn new(rows: impl IntoIterator<Item = Row> + 'a) -> Self {
        Self(Box::new(rows.into_iter()))
    }

    pub fn once(row: Row) -> Self {
        Self::new(std::iter::once(row))
    }
}

// SAFETY: what SQL is told is what pgrx's iterator of the same rows tells it.
unsafe impl<'a, Row> SqlTranslatable for TableIterator<'a, Row>
where
    pgrx::iter::TableIterator<'a, Row>: SqlTranslatable,
{
    const TYPE_IDENT: &'static str = pgrx::iter::TableIterator::<'a, Row>::TYPE_IDENT;
    const TYPE_ORIGIN: TypeOrigin = pgrx::iter::TableIterator::<'a, Row>::TYPE_ORIGIN;
    const ARGUMENT_SQL: Result<SqlMappingRef, ArgumentError> =
        pgrx::iter::TableIterator::<'a, Row>::ARGUMENT_SQL;
    const RETURN_SQL: Result<ReturnsRef, ReturnsError> =
        pgrx::iter::TableIterator::<'a, Row>::RETURN_SQL;
}

// SAFETY: follows the protocol of a set-returning function in materialize mode.
unsafe impl<Row: IntoColumns> RetAbi for TableIterator<'_, Row> {
    type Item = Row;
    type Ret = Self;

    fn to_ret(self) -> Self {
        self
    }

    unsafe fn box_ret_in_fcinfo(fcinfo: pg_sys::FunctionCallInfo, rows: Self) -> pg_sys::Datum {
        // SAFETY: InitMaterializedSRF checks that the caller takes a set and leaves the tuplestore
        // and the description of its rows in resultinfo, for the length of the query.
        unsafe {
            let _ballast = Ballast::hold().or_raise();
            pg_sys::InitMaterializedSRF(fcinfo, described_by_caller(fcinfo));
            let result = &*(*fcinfo).resultinfo.cast::<pg_sys::ReturnSetInfo>();
            refuse_other_columns::<Row>(result.setDesc);
            let scratch = Scratch::new();
            for row in rows.0 {
                scratch.run(|| row.put(result.setResult, result.setDesc));
                allocator::check();
                pgrx::check_for_interrupts!();
            }
            (*fcinfo).isnull = true;
        }
        pg_sys::Datum::null()
    }

    unsafe fn move_into_fcinfo_fcx(self, _: pg_sys::FunctionCallInfo) {}

    unsafe fn fill_fcinfo_fcx(&self, _: pg_sys::FunctionCallInfo) {}
}

/// How InitMaterializedSRF is to learn the columns: from the executor, which has looked up how the
/// function is declared, or, where it has not, by looking that up itself.
///
/// # Safety
/// `fcinfo` is the record of a call that PostgreSQL is making.
unsafe fn described_by_caller(fcinfo: pg_sys::FunctionCallInfo) -> u32 {
    // SAFETY: what is no ReturnSetInfo is left to InitMaterializedSRF, which refuses it.
    unsafe {
        let result = (*fcinfo).resultinfo;
        let is_known = !result.is_null()
            && (*result).type_ == pg_sys::NodeTag::T_ReturnSetInfo
            && !(*result.cast::<pg_sys::ReturnSetInfo>()).expectedDesc.is_null();
        if is_known { pg_sys::MAT_SRF_USE_EXPECTED_DESC } else { 0 }
    }
}

/// A tuple whose members are the columns of a row.
pub trait IntoColumns {
    const COUNT: i32;

    /// Append the row, which the store copies.
    ///
    /// # Safety
    /// The description has as many columns, of these types, and the store is one of such rows.
    unsafe fn put(self, store: *mut pg_sys::Tuplestorestate, description: pg_sys::TupleDesc);
}

macro_rules! columns {
    ($($column:ident)+) => {
        impl<$($column: IntoDatum),+> IntoColumns for ($($column,)+) {
            const COUNT: i32 = [$(stringify!($column)),+].len() as i32;

            #[allow(non_snake_case)]
            unsafe fn put(
                self,
                store: *mut pg_sys::Tuplestorestate,
                description: pg_sys::TupleDesc,
            ) {
                let ($($column,)+) = self;
                let columns = [$($column.into_datum()),+];
                let mut nulls = columns.map(|column| column.is_none());
                let mut values = columns.map(|column| column.unwrap_or(pg_sys::Datum::null()));
                // SAFETY: the caller vouches for the description; there is a value for each column.
                unsafe {
                    pg_sys::tuplestore_putvalues(
                        store,
                        description,
                        values.as_mut_ptr(),
                        nulls.as_mut_ptr(),
                    );
                }
            }
        }
    };
}

macro_rules! columns_of_each_length {
    ($first:ident) => { columns!($first); };
    ($first:ident $($rest:ident)+) => {
        columns!($first $($rest)+);
        columns_of_each_length!($($rest)+);
    };
}

columns_of_each_length!(A B C D E F G H I J K L M N O P Q R S T);

/// The columns as the database declares the function, which may be of another version than this
/// library.
///
/// # Safety
/// The description is one.
unsafe fn refuse_other_columns<Row: IntoColumns>(description: pg_sys::TupleDesc) {
    // SAFETY: as above.
    let declared = unsafe { (*description).natts };
    if declared != Row::COUNT {
        let expected = Row::COUNT;
        let why = format!("It is declared to return {declared} columns, not {expected}.");
        Error::mismatch("a function", why).raise();
    }
}
