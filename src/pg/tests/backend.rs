//! The server process in which a test runs: its state, its settings, and its errors.

use std::ffi::CStr;
use std::panic::AssertUnwindSafe;

use pgrx::pg_sys::errcodes::PgSqlErrorCode;
use pgrx::pg_sys::panic::CaughtError;
use pgrx::{PgTryBuilder, Spi, pg_sys};

use crate::pg::sqlstate;
use crate::pg::subtransaction::all_or_nothing;

/// What a guard may change, and what a subtransaction may leave behind.
#[derive(Debug, PartialEq)]
pub struct Backend {
    pub user: pg_sys::Oid,
    pub security: i32,
    pub search_path: String,
    pub plans: (bool, bool, bool, bool, bool, bool, i32, i32),
    pub context: pg_sys::MemoryContext,
    pub owner: pg_sys::ResourceOwner,
    pub depth: i32,
}

impl Backend {
    pub fn now() -> Self {
        let (mut user, mut security) = (pg_sys::InvalidOid, 0);
        // SAFETY: reads plain globals of the backend.
        unsafe {
            pg_sys::GetUserIdAndSecContext(&mut user, &mut security);
            Self {
                user,
                security,
                search_path: setting(c"search_path"),
                plans: (
                    pg_sys::enable_seqscan,
                    pg_sys::enable_bitmapscan,
                    pg_sys::enable_hashjoin,
                    pg_sys::enable_mergejoin,
                    pg_sys::enable_material,
                    pg_sys::jit_enabled,
                    pg_sys::plan_cache_mode,
                    pg_sys::max_parallel_workers_per_gather,
                ),
                context: pg_sys::CurrentMemoryContext,
                owner: pg_sys::CurrentResourceOwner,
                depth: pg_sys::GetCurrentTransactionNestLevel(),
            }
        }
    }
}

pub fn setting(name: &CStr) -> String {
    // SAFETY: a setting that exists; its value is copied.
    unsafe {
        let value = pg_sys::GetConfigOption(name.as_ptr(), false, false);
        CStr::from_ptr(value).to_string_lossy().into_owned()
    }
}

/// Creates a role.
pub fn role(name: &str) -> pg_sys::Oid {
    Spi::run(&format!("CREATE ROLE {name}")).expect("a role");
    let oid = format!("SELECT oid FROM pg_catalog.pg_roles WHERE rolname = '{name}'");
    Spi::get_one(&oid).expect("a look-up").expect("the role")
}

/// An error that was raised in the test's own session.
#[derive(Debug, PartialEq)]
pub struct RaisedError {
    pub code: PgSqlErrorCode,
    pub message: String,
    pub detail: String,
}

/// Raise an error as PostgreSQL does, and catch it as a PL does: in a subtransaction around it.
pub fn refused(body: impl FnOnce()) -> Option<RaisedError> {
    let body = AssertUnwindSafe(|| {
        let result: Result<(), ()> = all_or_nothing(|| {
            body();
            Ok(())
        });
        result.expect("Ok");
        None
    });
    let refusal = PgTryBuilder::new(body)
        .catch_others(|error| match error {
            CaughtError::PostgresError(report)
            | CaughtError::ErrorReport(report)
            | CaughtError::RustPanic { ereport: report, .. } => Some(RaisedError {
                code: report.sql_error_code(),
                message: report.message().to_owned(),
                detail: report.detail().unwrap_or_default().to_owned(),
            }),
        })
        .execute();
    sqlstate::forget();
    refusal
}

/// The message of an error; empty if there is none.
pub fn caught(body: impl FnOnce()) -> String {
    refused(body).map(|refusal| refusal.message).unwrap_or_default()
}

pub fn fail_in_postgres() {
    Spi::run("SELECT 1 / 0").expect("not reached");
}
