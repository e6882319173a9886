//! The SQL functions, one file a family: arguments in, rows out.

pub mod args;
pub mod bundle;
mod call;
pub mod dead_letter;
pub mod group;
mod json;
mod kv;
pub mod message_status;
mod options;
pub mod pop;
pub mod push;
pub mod queue;
pub mod rights;
pub mod settle;
mod signatures;
pub mod sweep;
pub mod timer;
pub mod topic;
pub mod wait;
pub mod watch;
