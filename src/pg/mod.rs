//! PostgreSQL, and nothing of ours: another extension could use these modules as they are.

pub mod address_map;
pub mod backtrace;
pub mod error_context;
pub mod guard;
pub mod statement_timeout;
#[cfg(any(test, feature = "pg_test"))]
#[allow(clippy::expect_used, clippy::panic)]
mod tests;
