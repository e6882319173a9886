//! Rows that a function returns, all at once.
//!
//! pgrx's own iterator hands out a row at a time, and PostgreSQL calls the function again for each.
//! Ours are SECURITY DEFINER with a search_path of their own, which is set up and put back around
//! every call: that cost more than the rows did. So the rows go into a tuplestore in one call.

use pgrx::callconv::RetAbi;
use pgrx::htup::IntoHeapTuple;
use pgrx::pg_sys;
use pgrx::pgrx_sql_entity_graph::metadata::{
    ArgumentError, ReturnsError, ReturnsRef, SqlMappingRef, SqlTranslatable, TypeOrigin,
};

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
unsafe impl<Row: IntoHeapTuple> RetAbi for TableIterator<'_, Row> {
    type Item = Row;
    type Ret = Self;

    fn to_ret(self) -> Self {
        self
    }

    unsafe fn box_ret_in_fcinfo(fcinfo: pg_sys::FunctionCallInfo, rows: Self) -> pg_sys::Datum {
        // SAFETY: InitMaterializedSRF checks that the caller takes a set and leaves the tuplestore
        // and the description of its rows in resultinfo, for the length of the query. The tuples
        // are formed after that description, and copied by the store.
        unsafe {
            pg_sys::InitMaterializedSRF(fcinfo, 0);
            let result = &*(*fcinfo).resultinfo.cast::<pg_sys::ReturnSetInfo>();
            for row in rows.0 {
                let tuple = row.into_heap_tuple(result.setDesc);
                pg_sys::tuplestore_puttuple(result.setResult, tuple);
                pg_sys::heap_freetuple(tuple);
            }
            (*fcinfo).isnull = true;
        }
        pg_sys::Datum::null()
    }

    unsafe fn move_into_fcinfo_fcx(self, _: pg_sys::FunctionCallInfo) {}

    unsafe fn fill_fcinfo_fcx(&self, _: pg_sys::FunctionCallInfo) {}
}
