//! `queen_push`, `queen_push_batch`, `queen_push_items`: append messages to the log. What a push
//! does there is in [`crate::broker::push`].

use std::borrow::Cow;
use std::rc::Rc;

use pgrx::datum::Interval;
use pgrx::prelude::*;
use queen_engine::message::DERIVED_MAX;
use serde::Deserialize;
use serde_json::value::RawValue;

use super::call::Call;
use super::{args, json};
use crate::broker::push::delayed::push_later;
use crate::broker::push::{Destination, Message, PushStatus, Pushed, push};
use crate::error::Result;
use crate::pg::allocator;
use crate::pg::arrays::{JsonbArray, TextArray};
use crate::pg::datum::Jsonb;
use crate::pg::result_context::ResultContext;
use crate::pg::result_rows::TableIterator;
use crate::pg::text::{Text, TextRoom};

/// A queue and a partition, by checked names; no partition is the default one.
pub fn destination(queue: Option<&str>, partition: Option<&str>) -> Result<Destination> {
    Ok(Destination {
        queue: args::name("queue", queue)?.into(),
        partition: args::name("partition", partition.or(Some(DEFAULT_PARTITION)))?.into(),
    })
}

const DEFAULT_PARTITION: &str = "Default";

/// Append one message to `partition` of `queue`, which is created if it does not exist (unless
/// `queen_mq.auto_create` is off). `transaction_id` (1..1024 bytes) is remembered for the queue's
/// dedup window: a second push of it writes nothing and returns the original message's id with
/// status `duplicate`. Without one, it is derived from the message id.
///
/// Errors: 22023 for a malformed argument, 42704 for an unknown queue with auto_create off.
///
/// Transaction: the message is delivered after the caller commits. Messages of one session, and of
/// transactions of which one begins after the other has committed, are delivered in their order.
/// No other transaction waits for this push, except one that pushes an equal transaction_id.
#[pg_extern]
fn queen_push(
    call: Call,
    queue: Option<&str>,
    payload: Option<Jsonb>,
    partition: default!(Option<&str>, "'Default'"),
    transaction_id: default!(Option<&str>, "NULL"),
    headers: default!(Option<Jsonb>, "NULL"),
    delay: default!(Option<Interval>, "NULL"),
) -> TableIterator<
    'static,
    (name!(message_id, Option<i64>), name!(transaction_id, Text), name!(status, Text)),
> {
    let pushed = call.answer(|| {
        let to = destination(queue, partition)?;
        let message = message(&to, payload, transaction_id, headers)?;
        match delay.map(args::delay).transpose()?.unwrap_or(0) {
            0 => call.write(|| push(&[&message])),
            delay => call.write(|| Ok(vec![push_later(&message, delay)?])),
        }
    });
    let mut texts = Texts::default();
    TableIterator::new(
        pushed.into_iter().map(move |pushed| {
            (pushed.message, texts.transaction_id(&pushed), texts.status(&pushed))
        }),
    )
}

/// Append messages to one partition of `queue` in one call, in the order of `payloads`.
/// `transaction_ids` and `headers`, where given, have one element for each payload. Returns a row
/// for each, `ordinal` from 1; no rows where `payloads` is NULL. Of two equal transaction_ids in
/// the call the first wins, whatever the dedup window. Up to 1,000,000 messages and 256 MiB.
/// Otherwise as `queen_push`.
#[pg_extern]
fn queen_push_batch(
    call: Call,
    queue: Option<&str>,
    payloads: Option<JsonbArray>,
    partition: default!(Option<&str>, "'Default'"),
    transaction_ids: default!(Option<TextArray>, "NULL"),
    headers: default!(Option<JsonbArray>, "NULL"),
) -> TableIterator<
    'static,
    (
        name!(ordinal, i32),
        name!(message_id, Option<i64>),
        name!(transaction_id, Text),
        name!(status, Text),
    ),
> {
    let pushed = call.answer(|| {
        let to = destination(queue, partition)?;
        let Some(payloads) = payloads else { return Ok(Vec::new()) };
        let payloads = args::elements("payloads", payloads, &args::MESSAGES)?;
        let count = payloads.len();
        let ids = args::parallel("transaction_ids", transaction_ids, count)?;
        let headers = args::parallel("headers", headers, count)?;
        let one = |at| {
            let (payload, headers) = (payloads.get(at), headers.get(at));
            message(&to, payload.map(Jsonb::new), ids.text(at), headers.map(Jsonb::new))
                .map_err(|error| error.in_element(format!("message {} of the call", at + 1)))
        };
        let messages = allocator::list(count, (0..count).map(one))?;
        call.write(|| push_all(&messages))
    });
    rows(pushed)
}

/// Append messages to several queues and partitions in one call. `items` is an array of objects
/// `{"queue", "payload", "partition"?, "transactionId"?, "headers"?}`; up to 64 MiB of them. NULL
/// is nothing to push, as `[]` is. Otherwise as `queen_push_batch`.
#[pg_extern]
fn queen_push_items(
    call: Call,
    items: Option<Jsonb>,
) -> TableIterator<
    'static,
    (
        name!(ordinal, i32),
        name!(message_id, Option<i64>),
        name!(transaction_id, Text),
        name!(status, Text),
    ),
> {
    let pushed = call.answer(|| {
        let Some(items) = items else { return Ok(Vec::new()) };
        let text = json::text("items", items, &args::JSON_MESSAGES)?;
        let items: Vec<PushItem> = json::parse("items", &text, ITEM_FIELDS)?;
        let message = |(at, item): (usize, PushItem)| {
            item.message().map_err(|error| error.in_element(format!("items[{at}]")))
        };
        let messages = allocator::list(items.len(), items.into_iter().enumerate().map(message))?;
        drop(text);
        call.write(|| push_all(&messages))
    });
    rows(pushed)
}

/// The rows of a push of several messages.
type Rows = TableIterator<
    'static,
    (
        name!(ordinal, i32),
        name!(message_id, Option<i64>),
        name!(transaction_id, Text),
        name!(status, Text),
    ),
>;

fn rows(pushed: Vec<Pushed>) -> Rows {
    let mut texts = Texts::default();
    TableIterator::new(pushed.into_iter().zip(1..).map(move |(pushed, ordinal)| {
        (ordinal, pushed.message, texts.transaction_id(&pushed), texts.status(&pushed))
    }))
}

/// The texts in the rows of a push.
struct Texts {
    results: ResultContext,
    room: TextRoom,
    /// By their numbers.
    statuses: [Option<Text>; PushStatus::COUNT],
}

impl Default for Texts {
    fn default() -> Self {
        Self {
            results: ResultContext::here(),
            room: TextRoom::default(),
            statuses: Default::default(),
        }
    }
}

impl Texts {
    /// It lives until the next row's is made.
    fn transaction_id(&mut self, of: &Pushed) -> Text {
        self.room.hold(of.transaction_id(&mut [0; DERIVED_MAX]))
    }

    fn status(&mut self, of: &Pushed) -> Text {
        let made = || self.results.allocate(|| Text::copied(of.status.name()));
        *self.statuses[of.status as usize].get_or_insert_with(made)
    }
}

const ITEM_FIELDS: &str = "Each element has queue and payload, and may have partition, \
                           transactionId and headers.";

/// An item of `queen_push_items`, and a push in a bundle.
#[derive(Deserialize)]
#[serde(deny_unknown_fields, rename_all = "camelCase")]
pub struct PushItem<'a> {
    #[serde(borrow)]
    pub queue: Cow<'a, str>,
    #[serde(borrow)]
    pub payload: &'a RawValue,
    #[serde(borrow)]
    pub partition: Option<Cow<'a, str>>,
    #[serde(borrow)]
    pub transaction_id: Option<Cow<'a, str>>,
    #[serde(borrow)]
    pub headers: Option<&'a RawValue>,
}

impl PushItem<'_> {
    /// The message, checked.
    pub fn message(self) -> Result<Message> {
        let headers = self.headers.map(RawValue::get).filter(|text| *text != "null");
        message(
            &destination(Some(&self.queue), self.partition.as_deref())?,
            Jsonb::from_text(self.payload.get()),
            self.transaction_id.as_deref(),
            headers.and_then(Jsonb::from_text),
        )
    }
}

/// A message for `to`, its parts checked.
pub fn message(
    to: &Destination,
    payload: Option<Jsonb>,
    transaction_id: Option<&str>,
    headers: Option<Jsonb>,
) -> Result<Message> {
    Ok(Message {
        to: to.clone(),
        payload: args::payload(payload)?,
        transaction_id: transaction_id.map(args::transaction_id).transpose()?.map(Rc::from),
        headers: args::headers(headers)?,
        was_admitted: false,
    })
}

fn push_all(messages: &[Message]) -> Result<Vec<Pushed>> {
    push(&allocator::list(messages.len(), messages.iter().map(Ok))?)
}
