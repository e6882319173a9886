//! What the views and the metrics tell.

pub mod count;
pub mod figures;
pub mod metrics;
