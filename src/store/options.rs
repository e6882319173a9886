//! The options of a queue, and their defaults.

use pgrx::datum::Interval;

use crate::pg::clock::{DAY, HOUR, SECOND, micros};

/// A queue's options as set; None is the default.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Options {
    pub lease_time: Option<Interval>,
    pub retry_limit: Option<i32>,
    pub retry_delay: Option<Interval>,
    pub retry_backoff: Option<f64>,
    pub retry_delay_max: Option<Interval>,
    pub on_exhausted: Option<String>,
    pub dedup_window: Option<Interval>,
    pub max_deliveries: Option<i32>,
    pub delay: Option<Interval>,
    pub retention: Option<Interval>,
    pub completed_retention: Option<Interval>,
    pub max_depth: Option<i64>,
    pub ordering: Option<String>,
    pub delivery: Option<String>,
    pub notify: Option<bool>,
}

pub const DEFAULT_LEASE_TIME: i64 = 60 * SECOND;
pub const DEFAULT_RETRY_LIMIT: i32 = 3;
pub const DEFAULT_RETRY_BACKOFF: f64 = 1.0;
pub const DEFAULT_RETRY_DELAY_MAX: i64 = HOUR;
/// A value of on_exhausted, and the default.
pub const DEAD_LETTER: &str = "dead_letter";
/// A value of ordering: competing consumers.
pub const UNORDERED: &str = "none";
/// A value of delivery: of each partition, the newest message alone.
pub const LATEST: &str = "latest";
pub const DEFAULT_DEDUP_WINDOW: i64 = HOUR;
pub const DEFAULT_COMPLETED_RETENTION: i64 = DAY;

impl Options {
    /// These options, of a queue, for a group that has some of its own.
    pub fn with(mut self, own: &Self) -> Self {
        fn take<T: Clone>(option: &mut Option<T>, own: &Option<T>) {
            if own.is_some() {
                option.clone_from(own);
            }
        }
        take(&mut self.lease_time, &own.lease_time);
        take(&mut self.retry_limit, &own.retry_limit);
        take(&mut self.retry_delay, &own.retry_delay);
        take(&mut self.retry_backoff, &own.retry_backoff);
        take(&mut self.retry_delay_max, &own.retry_delay_max);
        take(&mut self.max_deliveries, &own.max_deliveries);
        take(&mut self.on_exhausted, &own.on_exhausted);
        take(&mut self.ordering, &own.ordering);
        self
    }

    pub fn lease_time(&self) -> i64 {
        length(self.lease_time, DEFAULT_LEASE_TIME)
    }

    pub fn retry_limit(&self) -> i32 {
        self.retry_limit.unwrap_or(DEFAULT_RETRY_LIMIT)
    }

    pub fn retry_delay(&self) -> i64 {
        length(self.retry_delay, 0)
    }

    pub fn retry_backoff(&self) -> f64 {
        self.retry_backoff.unwrap_or(DEFAULT_RETRY_BACKOFF)
    }

    pub fn retry_delay_max(&self) -> i64 {
        length(self.retry_delay_max, DEFAULT_RETRY_DELAY_MAX)
    }

    pub fn on_exhausted(&self) -> &str {
        self.on_exhausted.as_deref().unwrap_or(DEAD_LETTER)
    }

    pub fn dedup_window(&self) -> i64 {
        length(self.dedup_window, DEFAULT_DEDUP_WINDOW)
    }

    pub fn max_deliveries(&self) -> Option<u32> {
        self.max_deliveries.map(|max| max as u32)
    }

    pub fn delay(&self) -> i64 {
        length(self.delay, 0)
    }

    /// None: messages are kept, whatever their age.
    pub fn retention(&self) -> Option<i64> {
        self.retention.and_then(micros)
    }

    pub fn ordering(&self) -> &str {
        self.ordering.as_deref().unwrap_or("partition")
    }

    pub fn delivery(&self) -> &str {
        self.delivery.as_deref().unwrap_or("all")
    }

    /// Whether ordered groups get the newest message of a partition alone.
    pub fn is_latest(&self) -> bool {
        self.delivery() == LATEST
    }

    /// Whether a push notifies clients that LISTEN.
    pub fn notify(&self) -> bool {
        self.notify.unwrap_or(false)
    }

    pub fn completed_retention(&self) -> i64 {
        length(self.completed_retention, DEFAULT_COMPLETED_RETENTION)
    }
}

fn length(option: Option<Interval>, default: i64) -> i64 {
    option.and_then(micros).unwrap_or(default)
}
