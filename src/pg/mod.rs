//! PostgreSQL, and nothing of ours: another extension could use these modules as they are.

pub mod address_map;
pub mod allocator;
pub mod backtrace;
pub mod ballast;
pub mod binary_upgrade;
pub mod catalogue;
pub mod clock;
pub mod datum;
pub mod error_context;
mod executor;
pub mod guard;
pub mod insert;
mod key;
mod layout;
pub mod lock_timeout;
pub mod planning;
pub mod relation;
pub mod result_rows;
pub mod scratch;
pub mod session_cache;
pub mod spi;
pub mod sqlstate;
pub mod statement_timeout;
pub mod subtransaction;
pub mod table;
#[cfg(any(test, feature = "pg_test"))]
#[allow(clippy::expect_used, clippy::panic)]
mod tests;
