//! The functions of the contract, with typed arguments and rows.
//!
//! Arguments are passed by name and only as far as they are set, as a user would write them.

use anyhow::{Context, Result};
use chrono::{DateTime, Utc};
use serde_json::{Value, json};
use tokio_postgres::{Error, Row};
use uuid::Uuid;

use crate::Session;

/// The payload of most tests: a number.
pub fn n(number: i64) -> Value {
    json!({ "n": number })
}

/// The numbers of messages, in the order of their delivery.
pub fn numbers(messages: &[Message]) -> Vec<i64> {
    messages.iter().map(|one| one.payload["n"].as_i64().unwrap_or(i64::MIN)).collect()
}

/// `queen_push`.
#[derive(Clone, Debug)]
pub struct Push {
    queue: String,
    payload: Value,
    partition: Option<String>,
    transaction_id: Option<String>,
    headers: Option<Value>,
}

impl Push {
    pub fn new(queue: impl Into<String>, payload: Value) -> Self {
        Self { queue: queue.into(), payload, partition: None, transaction_id: None, headers: None }
    }

    pub fn partition(mut self, partition: impl Into<String>) -> Self {
        self.partition = Some(partition.into());
        self
    }

    pub fn id(mut self, transaction_id: impl Into<String>) -> Self {
        self.transaction_id = Some(transaction_id.into());
        self
    }

    pub fn headers(mut self, headers: Value) -> Self {
        self.headers = Some(headers);
        self
    }

    pub async fn run(&self, session: &Session) -> Result<Pushed, Error> {
        let row = session
            .row(
                "SELECT 1 AS ordinal, message_id, transaction_id, status FROM queen_push($1, $2, \
                 partition => $3, transaction_id => $4, headers => $5)",
                &[&self.queue, &self.payload, &self.partition, &self.transaction_id, &self.headers],
            )
            .await?;
        Ok(Pushed::from(&row))
    }
}

/// `queen_push_batch`.
#[derive(Clone, Debug)]
pub struct PushBatch {
    queue: String,
    payloads: Vec<Value>,
    partition: Option<String>,
    transaction_ids: Option<Vec<Option<String>>>,
}

impl PushBatch {
    pub fn new(queue: impl Into<String>, payloads: Vec<Value>) -> Self {
        Self { queue: queue.into(), payloads, partition: None, transaction_ids: None }
    }

    pub fn partition(mut self, partition: impl Into<String>) -> Self {
        self.partition = Some(partition.into());
        self
    }

    pub fn ids(mut self, transaction_ids: Vec<Option<String>>) -> Self {
        self.transaction_ids = Some(transaction_ids);
        self
    }

    pub async fn run(&self, session: &Session) -> Result<Vec<Pushed>, Error> {
        let rows = session
            .rows(
                "SELECT ordinal, message_id, transaction_id, status FROM queen_push_batch($1, $2, \
                 partition => $3, transaction_ids => $4)",
                &[&self.queue, &self.payloads, &self.partition, &self.transaction_ids],
            )
            .await?;
        Ok(rows.iter().map(Pushed::from).collect())
    }
}

/// One item of `queen_push_items`.
#[derive(Clone, Debug)]
pub struct Item {
    pub queue: String,
    pub payload: Value,
    pub partition: String,
    pub transaction_id: Option<String>,
}

impl Item {
    /// `queen_push_items`.
    pub async fn push(items: &[Item], session: &Session) -> Result<Vec<Pushed>, Error> {
        let items: Vec<Value> = items
            .iter()
            .map(|item| {
                let mut value = json!({
                    "queue": item.queue, "payload": item.payload, "partition": item.partition,
                });
                if let Some(id) = &item.transaction_id {
                    value["transactionId"] = json!(id);
                }
                value
            })
            .collect();
        let rows = session
            .rows(
                "SELECT ordinal, message_id, transaction_id, status FROM queen_push_items($1)",
                &[&Value::Array(items)],
            )
            .await?;
        Ok(rows.iter().map(Pushed::from).collect())
    }
}

/// A row of the push functions.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Pushed {
    pub ordinal: i32,
    pub message_id: i64,
    pub transaction_id: String,
    pub status: String,
}

impl From<&Row> for Pushed {
    fn from(row: &Row) -> Self {
        Self {
            ordinal: row.get("ordinal"),
            message_id: row.get("message_id"),
            transaction_id: row.get("transaction_id"),
            status: row.get("status"),
        }
    }
}

/// `queen_pop`.
#[derive(Clone, Debug)]
pub struct Pop {
    queue: String,
    group: Option<String>,
    batch: i32,
    partition: Option<String>,
    partitions: i32,
    lease_time: Option<String>,
    wait: Option<String>,
    auto_ack: bool,
    mode: Option<String>,
}

impl Pop {
    pub fn new(queue: impl Into<String>) -> Self {
        Self {
            queue: queue.into(),
            group: None,
            batch: 1,
            partition: None,
            partitions: 1,
            lease_time: None,
            wait: None,
            auto_ack: false,
            mode: None,
        }
    }

    pub fn group(mut self, group: impl Into<String>) -> Self {
        self.group = Some(group.into());
        self
    }

    pub fn batch(mut self, batch: i32) -> Self {
        self.batch = batch;
        self
    }

    pub fn partition(mut self, partition: impl Into<String>) -> Self {
        self.partition = Some(partition.into());
        self
    }

    pub fn partitions(mut self, partitions: i32) -> Self {
        self.partitions = partitions;
        self
    }

    /// As an interval.
    pub fn lease(mut self, lease_time: impl Into<String>) -> Self {
        self.lease_time = Some(lease_time.into());
        self
    }

    /// As an interval.
    pub fn wait(mut self, wait: impl Into<String>) -> Self {
        self.wait = Some(wait.into());
        self
    }

    pub fn auto_ack(mut self) -> Self {
        self.auto_ack = true;
        self
    }

    /// Subscription mode of a group that is not registered yet.
    pub fn mode(mut self, mode: impl Into<String>) -> Self {
        self.mode = Some(mode.into());
        self
    }

    pub async fn run(&self, session: &Session) -> Result<Vec<Message>, Error> {
        let rows = session
            .rows(
                "SELECT queue, partition, message_id, transaction_id, payload, headers, \
                 created_at, consumer_group, delivery_attempt, lease_id, lease_expires_at \
                 FROM queen_pop($1, consumer_group => $2, batch => $3, partition => $4, \
                 partitions => $5, lease_time => $6::text::interval, wait => \
                 $7::text::interval, auto_ack => $8, subscription_mode => $9)",
                &[
                    &self.queue,
                    &self.group,
                    &self.batch,
                    &self.partition,
                    &self.partitions,
                    &self.lease_time,
                    &self.wait,
                    &self.auto_ack,
                    &self.mode,
                ],
            )
            .await?;
        Ok(rows.iter().map(Message::from).collect())
    }

    /// The one message that must come.
    pub async fn one(&self, session: &Session) -> Result<Message> {
        let mut messages = self.run(session).await?;
        let message = messages.pop().with_context(|| format!("nothing came for {self:?}"))?;
        anyhow::ensure!(messages.is_empty(), "more than one message came for {self:?}");
        Ok(message)
    }
}

/// A row of `queen_pop`.
#[derive(Clone, Debug, PartialEq)]
pub struct Message {
    pub queue: String,
    pub partition: String,
    pub message_id: i64,
    pub transaction_id: String,
    pub payload: Value,
    pub headers: Option<Value>,
    pub created_at: DateTime<Utc>,
    pub consumer_group: Option<String>,
    pub delivery_attempt: i32,
    pub lease_id: Option<Uuid>,
    pub lease_expires_at: Option<DateTime<Utc>>,
}

impl Message {
    /// The lease, which every pop gives but one with auto_ack.
    pub fn lease(&self) -> Result<Uuid> {
        self.lease_id.context("the message came without a lease")
    }

    pub fn expires_at(&self) -> Result<DateTime<Utc>> {
        self.lease_expires_at.context("the message came without the end of its lease")
    }
}

impl From<&Row> for Message {
    fn from(row: &Row) -> Self {
        Self {
            queue: row.get("queue"),
            partition: row.get("partition"),
            message_id: row.get("message_id"),
            transaction_id: row.get("transaction_id"),
            payload: row.get("payload"),
            headers: row.get("headers"),
            created_at: row.get("created_at"),
            consumer_group: row.get("consumer_group"),
            delivery_attempt: row.get("delivery_attempt"),
            lease_id: row.get("lease_id"),
            lease_expires_at: row.get("lease_expires_at"),
        }
    }
}

/// `queen_ack`.
#[derive(Clone, Debug)]
pub struct Ack {
    lease: Uuid,
    message_ids: Option<Vec<i64>>,
    transaction_ids: Option<Vec<String>>,
    status: Option<String>,
    error: Option<String>,
    partition: Option<String>,
}

impl Ack {
    /// Everything in the lease that is not settled yet.
    pub fn all(lease: Uuid) -> Self {
        Self {
            lease,
            message_ids: None,
            transaction_ids: None,
            status: None,
            error: None,
            partition: None,
        }
    }

    pub fn messages(lease: Uuid, ids: impl IntoIterator<Item = i64>) -> Self {
        Self { message_ids: Some(ids.into_iter().collect()), ..Self::all(lease) }
    }

    pub fn ids<I: Into<String>>(lease: Uuid, ids: impl IntoIterator<Item = I>) -> Self {
        let ids = ids.into_iter().map(Into::into).collect();
        Self { transaction_ids: Some(ids), ..Self::all(lease) }
    }

    pub fn status(mut self, status: impl Into<String>) -> Self {
        self.status = Some(status.into());
        self
    }

    /// `failed`, with its error.
    pub fn failed(mut self, error: impl Into<String>) -> Self {
        self.error = Some(error.into());
        self.status("failed")
    }

    pub fn partition(mut self, partition: impl Into<String>) -> Self {
        self.partition = Some(partition.into());
        self
    }

    pub async fn run(&self, session: &Session) -> Result<Settled, Error> {
        let row = session
            .row(
                "SELECT settled, already, dead_lettered, lease_released FROM queen_ack($1, \
                 message_ids => $2, status => $3, error => $4, transaction_ids => $5, \
                 partition => $6)",
                &[
                    &self.lease,
                    &self.message_ids,
                    &self.status,
                    &self.error,
                    &self.transaction_ids,
                    &self.partition,
                ],
            )
            .await?;
        Ok(Settled {
            settled: row.get("settled"),
            already: row.get("already"),
            dead_lettered: row.get("dead_lettered"),
            lease_released: row.get("lease_released"),
        })
    }
}

/// The row of `queen_ack`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Settled {
    pub settled: i32,
    pub already: i32,
    pub dead_lettered: i32,
    pub lease_released: bool,
}

/// A row of `queen_settle`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Outcome {
    pub message_id: i64,
    pub transaction_id: String,
    pub partition: String,
    pub outcome: String,
}

/// `queen_settle`.
pub async fn settle(
    session: &Session,
    lease: Uuid,
    results: &Value,
) -> Result<Vec<Outcome>, Error> {
    let rows = session
        .rows(
            "SELECT message_id, transaction_id, partition, outcome FROM queen_settle($1, $2)",
            &[&lease, &results],
        )
        .await?;
    Ok(rows
        .iter()
        .map(|row| Outcome {
            message_id: row.get("message_id"),
            transaction_id: row.get("transaction_id"),
            partition: row.get("partition"),
            outcome: row.get("outcome"),
        })
        .collect())
}

/// The row of a marker write.
#[derive(Clone, Debug, PartialEq)]
pub struct Applied {
    pub applied: bool,
    pub value: Option<Value>,
    pub version: Option<i64>,
    pub reason: Option<String>,
}

/// `queen_kv_put_if_absent` with a ttl as an interval.
pub async fn put_if_absent(
    session: &Session,
    ns: &str,
    key: &str,
    value: &Value,
    ttl: &str,
) -> Result<Applied, Error> {
    let row = session
        .row(
            "SELECT applied, value, version, reason FROM queen_kv_put_if_absent($1, $2, $3, \
             ttl => $4::text::interval)",
            &[&ns, &key, &value, &ttl],
        )
        .await?;
    Ok(Applied {
        applied: row.get("applied"),
        value: row.get("value"),
        version: row.get("version"),
        reason: row.get("reason"),
    })
}

/// The value of a marker, or none.
pub async fn marker(session: &Session, ns: &str, key: &str) -> Result<Option<Value>, Error> {
    let row = session.row("SELECT found, value FROM queen_kv_get($1, $2)", &[&ns, &key]).await?;
    let found: bool = row.get("found");
    Ok(if found { row.get("value") } else { None })
}
