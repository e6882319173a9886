//! The SQL functions, one file a family: arguments in, rows out.

mod args;
pub mod bundle;
pub mod group;
mod json;
mod kv;
pub mod pop;
pub mod push;
pub mod queue;
mod register;
pub mod settle;
pub mod watch;
