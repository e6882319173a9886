//! The SQL functions, one file a family: arguments in, rows out.

mod args;
mod json;
mod pop;
mod push;
mod register;
