//! Pushing messages: into segments of the log, or into the table of timers for later.

pub mod delayed;
pub mod max_depth;
pub mod segmenting;
