//! Elements of `timers`.

use std::borrow::Cow;

use serde::Deserialize;
use serde_json::value::RawValue;

use super::fields::{given, needed, refuse_fields, unknown};
use crate::api::args;
use crate::api::push::{destination, message};
use crate::api::timer::moment;
use crate::broker::bundle::NamedTimer;
use crate::error::Result;
use crate::pg::clock::{self, Moment};
use crate::pg::datum::Jsonb;

/// An element of `timers`.
#[derive(Deserialize)]
#[serde(deny_unknown_fields, rename_all = "camelCase")]
pub struct TimerOperation<'a> {
    #[serde(borrow)]
    pub op: Cow<'a, str>,
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

impl TimerOperation<'_> {
    /// The operation, checked. `now`: the moment of the call, from which a delay counts.
    pub fn checked(self, now: Moment) -> Result<NamedTimer> {
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
                let delay = self.delay_ms.map(args::milliseconds).transpose()?;
                let at = self.deliver_at.as_deref().map(clock::parse).transpose()?;
                let deliver_at = moment(delay, at, now, ["delayMs", "deliverAt"])?;
                Ok(NamedTimer::Schedule { key: self.timer_key.into_owned(), message, deliver_at })
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
                Ok(NamedTimer::Cancel { queue, key: self.timer_key.into_owned() })
            }
            other => Err(unknown("timer op", other, "Use \"schedule\" or \"cancel\".")),
        }
    }
}
