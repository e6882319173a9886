//! What the views and the metrics show: counts of messages, figures of queues and groups.

pub mod count;
pub mod figures;
pub mod floor;
pub mod metrics;
