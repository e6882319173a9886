//! The timers of a bundle.

use std::borrow::Cow;

use serde::Deserialize;
use serde::Serialize;
use serde_json::value::RawValue;

use super::answer::{Json, json};
use super::parse::{given, needed, refuse_fields, unknown};
use crate::api::args;
use crate::api::args::YEAR;
use crate::api::push::{destination, message};
use crate::api::timer::moment;
use crate::broker::push::Message;
use crate::error::{Error, Result};
use crate::pg::clock::{self, Moment};
use crate::pg::datum::Jsonb;

/// An element of `timers`.
#[derive(Deserialize)]
#[serde(deny_unknown_fields, rename_all = "camelCase")]
pub struct TimerOperation<'a> {
    #[serde(borrow)]
    op: Cow<'a, str>,
    #[serde(borrow)]
    queue: Cow<'a, str>,
    #[serde(borrow)]
    timer_key: Cow<'a, str>,
    #[serde(borrow, default, deserialize_with = "given")]
    payload: Option<&'a RawValue>,
    delay_ms: Option<f64>,
    #[serde(borrow)]
    deliver_at: Option<Cow<'a, str>>,
    #[serde(borrow)]
    partition: Option<Cow<'a, str>>,
    #[serde(borrow)]
    transaction_id: Option<Cow<'a, str>>,
    #[serde(borrow)]
    headers: Option<&'a RawValue>,
}

/// A timer operation, checked.
pub enum Timer {
    Schedule { key: String, message: Message, deliver_at: Moment },
    Cancel { queue: String, key: String },
}

impl TimerOperation<'_> {
    pub fn checked(self, now: Moment) -> Result<Timer> {
        args::timer_key(Some(&self.timer_key))?;
        match self.op.as_ref() {
            "schedule" => {
                let to = destination(Some(&self.queue), self.partition.as_deref())?;
                let payload = needed("payload", self.payload)?;
                let headers = self.headers.map(RawValue::get).filter(|text| *text != "null");
                let message = message(
                    &to,
                    Jsonb::from_text(payload.get()),
                    self.transaction_id.as_deref(),
                    headers.and_then(Jsonb::from_text),
                )?;
                let delay = self.delay_ms.map(milliseconds).transpose()?;
                let at = self.deliver_at.as_deref().map(clock::parse).transpose()?;
                let deliver_at = moment(delay, at, now)?;
                Ok(Timer::Schedule { key: self.timer_key.into_owned(), message, deliver_at })
            }
            "cancel" => {
                let has = [
                    ("payload", self.payload.is_some()),
                    ("delayMs", self.delay_ms.is_some()),
                    ("deliverAt", self.deliver_at.is_some()),
                    ("partition", self.partition.is_some()),
                    ("transactionId", self.transaction_id.is_some()),
                    ("headers", self.headers.is_some()),
                ];
                refuse_fields("cancel", &has, &has.map(|(name, _)| name))?;
                let queue = args::name("queue", Some(&self.queue))?.to_owned();
                Ok(Timer::Cancel { queue, key: self.timer_key.into_owned() })
            }
            other => Err(unknown("timer op", other, "Use \"schedule\" or \"cancel\".")),
        }
    }
}

fn milliseconds(delay: f64) -> Result<i64> {
    const YEAR_MS: f64 = YEAR as f64 / 1000.0;
    match delay {
        delay if (0.0..=YEAR_MS).contains(&delay) => Ok((delay * 1000.0).round() as i64),
        delay => Err(Error::invalid(
            "delayMs is out of range",
            format!("It is {delay}."),
            "Pass 0 to one year.",
        )),
    }
}

impl Timer {
    /// What no bundle may name twice.
    pub fn name(&self) -> (&str, &str) {
        match self {
            Timer::Schedule { key, message, .. } => (&message.to.queue, key),
            Timer::Cancel { queue, key } => (queue, key),
        }
    }
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct Timed<'a> {
    index: usize,
    op: &'static str,
    status: &'static str,
    queue: &'a str,
    timer_key: &'a str,
    transaction_id: Option<&'a str>,
    deliver_at: Option<String>,
}

/// What a timer operation answers. `found`: the timer's transaction_id and moment.
pub fn timed(
    index: usize,
    timer: &Timer,
    status: &'static str,
    found: Option<(&str, Moment)>,
) -> Result<Json> {
    let (queue, timer_key) = timer.name();
    let op = match timer {
        Timer::Schedule { .. } => "schedule",
        Timer::Cancel { .. } => "cancel",
    };
    let transaction_id = found.map(|(id, _)| id);
    let deliver_at = found.map(|(_, at)| clock::iso(at));
    json(Timed { index, op, status, queue, timer_key, transaction_id, deliver_at })
}
