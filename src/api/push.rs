//! `queen_push`, `queen_push_batch`, `queen_push_items`: append messages to the log.
//!
//! Nothing is locked and nobody is waited for, except a transaction that is pushing the same
//! transaction_id, or creating the queue. The transaction gets its xid first, then ids are drawn,
//! then rows are written: on this order the readers rely (see `queen_engine::holes`).

use std::borrow::Cow;
use std::collections::{BTreeMap, HashMap};
use std::rc::Rc;

use pgrx::datum::Interval;
use pgrx::prelude::*;
use serde::Deserialize;
use serde_json::value::RawValue;

use super::args;
use super::call::Call;
use crate::broker::lookup;
use crate::broker::push::delayed;
use crate::broker::push::max_depth;
use crate::broker::push::segmenting::push_to;
use crate::error::{Error, Result};
use crate::pg::allocator;
use crate::pg::clock::{self, DAY};
use crate::pg::datum::{Jsonb, JsonbArray, TextArray};
use crate::pg::raise::OrRaise;
use crate::pg::result_rows::TableIterator;
use crate::settings;
use crate::store::queue::Queue;

/// A queue and a partition, by their names.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Destination {
    pub queue: Rc<str>,
    pub partition: Rc<str>,
}

impl Destination {
    pub fn of(queue: Option<&str>, partition: Option<&str>) -> Result<Self> {
        Ok(Self {
            queue: args::name("queue", queue)?.into(),
            partition: args::name("partition", partition.or(Some(DEFAULT_PARTITION)))?.into(),
        })
    }
}

/// A message to be pushed.
#[derive(Clone, Debug)]
pub struct Message {
    pub to: Destination,
    pub payload: Jsonb,
    pub transaction_id: Option<String>,
    pub headers: Option<Jsonb>,
}

/// What became of it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Pushed {
    /// None: it is not in the log yet.
    pub message: Option<i64>,
    pub transaction_id: String,
    pub status: PushStatus,
    /// A duplicate whose original was there before this call.
    pub was_stored_before: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PushStatus {
    Queued,
    Duplicate,
    Scheduled,
}

impl PushStatus {
    pub fn name(self) -> &'static str {
        match self {
            PushStatus::Queued => "queued",
            PushStatus::Duplicate => "duplicate",
            PushStatus::Scheduled => "scheduled",
        }
    }
}

impl Pushed {
    pub fn scheduled(transaction_id: String) -> Self {
        let status = PushStatus::Scheduled;
        Self { message: None, transaction_id, status, was_stored_before: false }
    }

    pub fn duplicate_of(message: Option<i64>, transaction_id: String) -> Self {
        let status = PushStatus::Duplicate;
        Self { message, transaction_id, status, was_stored_before: true }
    }
}

/// No message is scheduled for later than this.
pub const YEAR: i64 = 366 * DAY;

pub const DEFAULT_PARTITION: &str = "Default";

/// Append one message to `partition` of `queue`, which is created if it does not exist (unless
/// `queen_mq.auto_create` is off). `transaction_id` (1..1024 bytes) is remembered for the queue's
/// dedup window: a second push of it writes nothing and returns the original message's id with
/// status `duplicate`. Without one, it is derived from the message id.
///
/// Errors: 22023 for a malformed argument, 42704 for an unknown queue with auto_create off.
///
/// Transaction: the message is delivered after the caller commits, and in the order of the pushes
/// of one session and of transactions that follow each other. Nobody waits for this push but one
/// with the same transaction_id.
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
    (name!(message_id, Option<i64>), name!(transaction_id, String), name!(status, &'static str)),
> {
    let pushed = (|| {
        let to = Destination::of(queue, partition)?;
        let message = message(&to, payload, transaction_id, headers)?;
        let delay = delay.map(|delay| args::length("delay", delay, 0, YEAR, "0 to one year"));
        match delay.transpose()?.unwrap_or(0) {
            0 => call.write(|| push(&[&message])),
            delay => call.write(|| {
                let queue = find_queue(&message.to.queue)?;
                max_depth::admit(&queue, 1)?;
                Ok(vec![delayed::push_later(&queue, &message, delay)?])
            }),
        }
    })()
    .or_raise();
    TableIterator::new(pushed.into_iter().map(|p| (p.message, p.transaction_id, p.status.name())))
}

/// Append messages to one partition of `queue` in one call, in the order of `payloads`.
/// `transaction_ids` and `headers`, where given, have one element for each payload. Returns a row
/// for each, `ordinal` from 1. Of two equal transaction_ids in the call the first wins, whatever
/// the dedup window. Up to 1,000,000 messages and 256 MiB. Otherwise as `queen_push`.
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
        name!(transaction_id, String),
        name!(status, &'static str),
    ),
> {
    let pushed = (|| {
        let to = Destination::of(queue, partition)?;
        let payloads = args::required("payloads", payloads)?;
        let payloads = args::elements("payloads", payloads, &args::MESSAGES)?;
        let count = payloads.len();
        let ids = args::parallel("transaction_ids", transaction_ids, count)?;
        let headers = args::parallel("headers", headers, count)?;
        let one = |at| {
            let (payload, headers) = (payloads.get(at), headers.get(at));
            // SAFETY: an element of a text array, which lives as long as the call.
            let id = ids.get(at).and_then(|id| unsafe { <&str>::from_datum(id, false) });
            message(&to, payload.map(Jsonb::new), id, headers.map(Jsonb::new))
        };
        let messages = allocator::list(count, (0..count).map(one))?;
        call.write(|| push_all(&messages))
    })()
    .or_raise();
    rows(pushed)
}

/// Append messages to several queues and partitions in one call. `items` is an array of objects
/// `{"queue", "payload", "partition"?, "transactionId"?, "headers"?}`; up to 64 MiB of them.
/// Otherwise as `queen_push_batch`.
#[pg_extern]
fn queen_push_items(
    call: Call,
    items: Option<Jsonb>,
) -> TableIterator<
    'static,
    (
        name!(ordinal, i32),
        name!(message_id, Option<i64>),
        name!(transaction_id, String),
        name!(status, &'static str),
    ),
> {
    let pushed = (|| {
        let items = args::required("items", items)?;
        let text = super::json::text("items", items, &args::JSON_MESSAGES)?;
        let items: Vec<PushItem> = super::json::parse("items", &text)?;
        let messages = allocator::list(items.len(), items.into_iter().map(PushItem::message))?;
        drop(text);
        call.write(|| push_all(&messages))
    })()
    .or_raise();
    rows(pushed)
}

type Rows = TableIterator<
    'static,
    (
        name!(ordinal, i32),
        name!(message_id, Option<i64>),
        name!(transaction_id, String),
        name!(status, &'static str),
    ),
>;

fn rows(pushed: Vec<Pushed>) -> Rows {
    TableIterator::new(
        pushed
            .into_iter()
            .zip(1..)
            .map(|(p, ordinal)| (ordinal, p.message, p.transaction_id, p.status.name())),
    )
}

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
    pub fn message(self) -> Result<Message> {
        let headers = self.headers.map(RawValue::get).filter(|text| *text != "null");
        message(
            &Destination::of(Some(&self.queue), self.partition.as_deref())?,
            Jsonb::from_text(self.payload.get()),
            self.transaction_id.as_deref(),
            headers.and_then(Jsonb::from_text),
        )
    }
}

/// A checked message.
pub fn message(
    to: &Destination,
    payload: Option<Jsonb>,
    transaction_id: Option<&str>,
    headers: Option<Jsonb>,
) -> Result<Message> {
    Ok(Message {
        to: to.clone(),
        payload: args::payload(payload)?,
        transaction_id: transaction_id.map(args::transaction_id).transpose()?.map(str::to_owned),
        headers: args::headers(headers)?,
    })
}

/// Bytes of a message in the lists that a push makes of it, beyond its transaction_id.
const ON_ITS_WAY: usize = 600;

fn push_all(messages: &[Message]) -> Result<Vec<Pushed>> {
    push(&allocator::list(messages.len(), messages.iter().map(Ok))?)
}

/// Push `messages`, in their order within each partition; results in their order.
pub fn push(messages: &[&Message]) -> Result<Vec<Pushed>> {
    let ids = messages.iter().filter_map(|message| message.transaction_id.as_ref());
    let ids: usize = ids.map(String::len).sum();
    allocator::ensure(messages.len() * ON_ITS_WAY + 3 * ids)?;
    // Ascending, so that two calls wait for each other's transaction_ids in one order.
    let mut places: BTreeMap<&Destination, Vec<usize>> = BTreeMap::new();
    for (at, message) in messages.iter().enumerate() {
        places.entry(&message.to).or_default().push(at);
    }
    let mut pushed = allocator::room(messages.len())?;
    pushed.resize(messages.len(), None);
    let mut queues: HashMap<&str, Queue> = HashMap::new();
    for (Destination { queue: name, partition }, places) in places {
        let queue = match queues.remove(&**name) {
            Some(known) => known,
            None => find_queue(name)?,
        };
        max_depth::admit(&queue, places.len())?;
        let wanted: Vec<&Message> = places.iter().map(|&at| messages[at]).collect();
        for (at, result) in places.iter().zip(push_to(&queue, partition, &wanted)?) {
            pushed[*at] = Some(result);
        }
        queues.insert(name, queue);
    }
    Ok(pushed.into_iter().flatten().collect())
}

/// The queue, created where that is allowed.
pub fn find_queue(name: &str) -> Result<Queue> {
    match lookup::queue_named(name)? {
        Some(queue) => Ok(queue),
        None if settings::auto_create() => lookup::find_or_create_queue(name, clock::now()),
        None => Err(Error::no_such_queue(name)),
    }
}
