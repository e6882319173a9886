//! PostgreSQL, and nothing of ours: another extension could use these modules as they are.

pub mod backtrace;
pub mod guard;
