//! Consumer groups: registered, and moved to another place in the log.

pub mod beginning;
pub mod register;
pub mod reorder;
pub mod revoke;
pub mod seek;
mod unordered_partition;
