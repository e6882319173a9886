//! What the views and the metrics show: counts of messages, figures of queues and groups.

pub mod blocked;
pub mod count;
pub mod figures;
pub mod floor;
mod log_standing;
mod memory;
pub mod metrics;
mod oldest;
pub mod outcomes;
mod summary;
mod tracked;
