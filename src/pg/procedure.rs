//! Procedures, which may end transactions. pgrx declares functions only.

use pgrx::{FromDatum, IntoDatum, pg_sys};

use super::call_record::CallRecord;
use super::declared::column_type;
use super::raise::OrRaise;
use crate::error::{Error, Result};

/// Lets PostgreSQL call a function of the module, `fn(ProcedureCall<'_>) -> Datum`, by its name.
/// The second name is `pg_finfo_` and the first.
macro_rules! procedure {
    ($name:ident, $version:ident) => {
        const _: () = {
            /// Tells PostgreSQL how the procedure is called: version 1.
            #[unsafe(no_mangle)]
            pub extern "C" fn $version() -> &'static ::pgrx::pg_sys::Pg_finfo_record {
                const RECORD: ::pgrx::pg_sys::Pg_finfo_record =
                    ::pgrx::pg_sys::Pg_finfo_record { api_version: 1 };
                &RECORD
            }

            /// # Safety
            /// Called by PostgreSQL.
            #[::pgrx::pg_guard]
            #[unsafe(no_mangle)]
            pub unsafe extern "C-unwind" fn $name(
                record: ::pgrx::pg_sys::FunctionCallInfo,
            ) -> ::pgrx::pg_sys::Datum {
                use $crate::pg::call_record::CallRecord;
                // SAFETY: the record of the call that PostgreSQL is making.
                let record = unsafe { CallRecord::new(record) };
                self::$name($crate::pg::procedure::ProcedureCall::new(record))
            }
        };
    };
}
pub(crate) use procedure;

/// A call of a procedure.
#[derive(Clone, Copy)]
pub struct ProcedureCall<'call> {
    pub record: CallRecord<'call>,
    /// Whether it can't end the transaction here: it is called in a transaction block, for
    /// instance, or is no CALL.
    pub is_atomic: bool,
}

impl<'call> ProcedureCall<'call> {
    pub fn new(record: CallRecord<'call>) -> Self {
        // SAFETY: the record of a call. CALL passes a CallContext.
        let is_atomic = unsafe {
            let context = (*record.as_ptr()).context;
            context.is_null()
                || !pgrx::is_a(context, pg_sys::NodeTag::T_CallContext)
                || (*context.cast::<pg_sys::CallContext>()).atomic
        };
        Self { record, is_atomic }
    }

    /// An argument by its number, from 0; None for NULL. 55000 where it is declared to be of
    /// another type.
    pub fn argument<T: FromDatum + IntoDatum>(self, at: usize) -> Option<T> {
        let (mut types, mut count) = (std::ptr::null_mut(), 0);
        // SAFETY: a function that is there; the answer is an array of `count` types in the current
        // memory context.
        let declared = unsafe {
            pg_sys::get_func_signature(self.record.function(), &mut types, &mut count);
            (at < count as usize).then(|| *types.add(at))
        };
        if declared != Some(T::type_oid()) {
            Error::mismatch("a procedure", "An argument of it has another type.").raise();
        }
        // SAFETY: the call has as many arguments as the procedure is declared with, and this one is
        // of this type.
        unsafe { pgrx::pg_getarg::<T>(self.record.as_ptr(), at) }
    }

    /// Run `body` in the transaction of the call, under a snapshot, and commit it. The next one has
    /// no snapshot yet. What `body` returns has to be a plain value, for it outlives the memory of
    /// the transaction. An error is raised here, so that PostgreSQL cleans up what is open.
    pub fn commit_after<T>(self, body: impl FnOnce() -> Result<T>) -> T {
        if self.is_atomic {
            Error::corrupt("a procedure was to commit where it can't").raise();
        }
        // SAFETY: a non-atomic SPI connection may commit, and the caller of the procedure has said
        // that it may.
        unsafe {
            pg_sys::SPI_connect_ext(pg_sys::SPI_OPT_NONATOMIC as i32);
            pg_sys::PushActiveSnapshot(pg_sys::GetTransactionSnapshot());
            let found = body().or_raise();
            pg_sys::PopActiveSnapshot();
            pg_sys::SPI_commit();
            pg_sys::SPI_finish();
            found
        }
    }

    /// The result of a procedure whose only INOUT argument is of this type. 55000 where it is
    /// declared otherwise.
    pub fn row<T: IntoDatum>(self, value: T) -> pg_sys::Datum {
        let mut shape = std::ptr::null_mut();
        let datum = value.into_datum();
        let mut is_null = datum.is_none();
        let mut value = datum.unwrap_or(pg_sys::Datum::null());
        // SAFETY: the row is formed after the description that PostgreSQL has for this call, which
        // has one column, of the type of the value.
        unsafe {
            pg_sys::get_call_result_type(self.record.as_ptr(), std::ptr::null_mut(), &mut shape);
            let is_it =
                !shape.is_null() && (*shape).natts == 1 && column_type(shape, 0) == T::type_oid();
            if !is_it {
                Error::mismatch("a procedure", "Its result has another type.").raise();
            }
            let shape = pg_sys::BlessTupleDesc(shape);
            let row = pg_sys::heap_form_tuple(shape, &raw mut value, &raw mut is_null);
            pg_sys::HeapTupleHeaderGetDatum((*row).t_data)
        }
    }
}
