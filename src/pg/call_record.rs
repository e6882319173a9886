//! The record of a call, with which PostgreSQL calls a function, and a first argument that is made
//! of it.

use std::marker::PhantomData;

use pgrx::pg_sys;

/// The record of a call that PostgreSQL is making.
#[derive(Clone, Copy)]
pub struct CallRecord<'call> {
    record: pg_sys::FunctionCallInfo,
    call: PhantomData<&'call ()>,
}

impl<'call> CallRecord<'call> {
    /// # Safety
    /// PostgreSQL is making this call, as long as `'call` lasts.
    pub unsafe fn new(record: pg_sys::FunctionCallInfo) -> Self {
        Self { record, call: PhantomData }
    }

    /// The OID of the function; InvalidOid where it is not called by one.
    #[inline]
    pub fn function(self) -> pg_sys::Oid {
        // SAFETY: the record of a call; PostgreSQL fills in `flinfo` wherever it calls a function
        // by its OID.
        unsafe {
            let manager = (*self.record).flinfo;
            if manager.is_null() { pg_sys::InvalidOid } else { (*manager).fn_oid }
        }
    }

    /// The record itself, which is valid as long as `'call` lasts.
    pub(super) fn as_ptr(self) -> pg_sys::FunctionCallInfo {
        self.record
    }
}

/// What is made of the record of a call, as the first argument of a function (of `#[pg_extern]`).
/// SQL does not see it. [`hidden_argument!`] lets a type be one.
pub trait HiddenArgument {
    /// Called before the other arguments are read. It may raise an ERROR.
    fn of(record: CallRecord<'_>) -> Self;
}

/// Lets a type that is a [`HiddenArgument`] be one for pgrx.
macro_rules! hidden_argument {
    ($name:ident) => {
        // SAFETY: takes none of the arguments of SQL.
        unsafe impl<'fcx> ::pgrx::callconv::ArgAbi<'fcx> for $name {
            unsafe fn unbox_arg_unchecked(arg: ::pgrx::callconv::Arg<'_, 'fcx>) -> Self {
                use $crate::pg::call_record::{CallRecord, HiddenArgument};
                // SAFETY: pgrx hands the record of the call to an argument of this type.
                let record = unsafe {
                    CallRecord::new(arg.unbox_unchecked::<::pgrx::pg_sys::FunctionCallInfo>())
                };
                <$name as HiddenArgument>::of(record)
            }

            fn is_virtual_arg() -> bool {
                true
            }
        }

        const _: () = {
            use ::std::result::Result;

            use ::pgrx::pgrx_sql_entity_graph::metadata::{
                ArgumentError, ReturnsError, ReturnsRef, SqlMappingRef, SqlTranslatable, TypeOrigin,
            };

            // SAFETY: says that there is no such argument in SQL.
            unsafe impl SqlTranslatable for $name {
                const TYPE_IDENT: &'static str = concat!(module_path!(), "::", stringify!($name));
                const TYPE_ORIGIN: TypeOrigin = TypeOrigin::External;
                const ARGUMENT_SQL: Result<SqlMappingRef, ArgumentError> = Ok(SqlMappingRef::Skip);
                const RETURN_SQL: Result<ReturnsRef, ReturnsError> =
                    Ok(ReturnsRef::One(SqlMappingRef::Skip));
            }
        };
    };
}
pub(crate) use hidden_argument;
