//! Types that pass a Datum in and out of an SQL function as it is.

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
pub(super) use passed_through;
