//! The options in effect as JSON, for the views: whatever the session's settings are, durations are
//! in ISO 8601, and numbers have all their digits.

use pgrx::JsonB;
use pgrx::datum::Interval;
use serde_json::{Map, Value};

use super::queue::shown;
use crate::pg::clock;
use crate::store::queue::Options;

/// Those of a queue.
pub fn of_queue(o: &Options) -> JsonB {
    let mut all = common(o);
    let completed = o.completed_retention.or(Some(Interval::from_days(1)));
    all.extend(members([
        ("dedup_window", duration(shown(o.dedup_window, o.dedup_window()))),
        ("delay", duration(shown(o.delay, o.delay()))),
        ("retention", duration(o.retention)),
        ("completed_retention", duration(completed)),
        ("max_depth", o.max_depth.into()),
        ("delivery", o.delivery().into()),
        ("notify", o.notify().into()),
    ]));
    JsonB(Value::Object(all))
}

/// Those of a group.
pub fn of_group(o: &Options) -> JsonB {
    JsonB(Value::Object(common(o)))
}

/// What both queues and groups have.
fn common(o: &Options) -> Map<String, Value> {
    members([
        ("lease_time", duration(shown(o.lease_time, o.lease_time()))),
        ("retry_limit", o.retry_limit().into()),
        ("retry_delay", duration(shown(o.retry_delay, o.retry_delay()))),
        ("retry_backoff", number(o.retry_backoff())),
        ("retry_delay_max", duration(shown(o.retry_delay_max, o.retry_delay_max()))),
        ("max_deliveries", o.max_deliveries.into()),
        ("on_exhausted", o.on_exhausted().into()),
        ("ordering", o.ordering().into()),
    ])
}

fn members<const N: usize>(members: [(&str, Value); N]) -> Map<String, Value> {
    members.into_iter().map(|(name, value)| (name.to_owned(), value)).collect()
}

fn duration(length: Option<Interval>) -> Value {
    length.map_or(Value::Null, |length| clock::iso_duration(length).into())
}

/// A whole number has no fraction.
fn number(value: f64) -> Value {
    match value.fract() == 0.0 && value.abs() < 1e15 {
        true => (value as i64).into(),
        false => value.into(),
    }
}
