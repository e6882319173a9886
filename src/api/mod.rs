//! The SQL functions, one file a family: arguments in, rows out.

mod args;
mod group;
mod json;
mod pop;
mod push;
mod queue;
mod register;
mod settle;
pub mod watch;
