//! Consumer groups: registered, and moved to another place in the log.

pub mod register;
pub mod seek;
