//! PostgreSQL, and nothing of ours: another extension could use these modules as they are.

pub mod address_map;
pub mod allocator;
pub mod arrays;
pub mod async_commit;
pub mod backtrace;
pub mod ballast;
pub mod binary_upgrade;
pub mod catalogue;
pub mod changes;
pub mod client;
pub mod clock;
pub mod columns;
pub mod completions;
pub mod datum;
mod delete;
pub mod error_context;
mod executor;
pub mod guard;
pub mod insert;
pub mod key;
pub mod lock_timeout;
mod passed_through;
pub mod planning;
pub mod raise;
pub mod random;
pub mod relation;
pub mod result_context;
pub mod result_rows;
pub mod row_cache;
mod row_lock;
pub mod scan;
pub mod scratch;
pub mod sequence;
pub mod session_cache;
pub mod snapshot;
pub mod spi;
pub mod sqlstate;
pub mod statement_timeout;
pub mod subtransaction;
pub mod table;
#[cfg(any(test, feature = "pg_test"))]
#[allow(clippy::expect_used, clippy::panic)]
mod tests;
pub mod time_zone;
mod write;
