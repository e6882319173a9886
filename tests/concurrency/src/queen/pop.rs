//! Popping.

use anyhow::{Context, Result, ensure};
use chrono::{DateTime, Utc};
use serde_json::Value;
use tokio_postgres::{Error, Row};
use uuid::Uuid;

use crate::Session;

/// `queen_pop`, or `queen_pop_any` with several queues.
#[derive(Clone, Debug)]
pub struct Pop {
    queue: String,
    any: Option<Vec<String>>,
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
            any: None,
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

    /// From the first of these queues that has something.
    pub fn any(queues: &[&str]) -> Self {
        let queues = queues.iter().map(|queue| (*queue).to_owned()).collect();
        Self { any: Some(queues), ..Self::new("") }
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

    /// The lease time, an interval.
    pub fn lease(mut self, lease_time: impl Into<String>) -> Self {
        self.lease_time = Some(lease_time.into());
        self
    }

    /// How long to wait, an interval.
    pub fn wait(mut self, wait: impl Into<String>) -> Self {
        self.wait = Some(wait.into());
        self
    }

    pub fn auto_ack(mut self) -> Self {
        self.auto_ack = true;
        self
    }

    /// The subscription mode, for a group that is not registered yet.
    pub fn mode(mut self, mode: impl Into<String>) -> Self {
        self.mode = Some(mode.into());
        self
    }

    pub async fn run(&self, session: &Session) -> Result<Vec<Message>, Error> {
        if let Some(queues) = &self.any {
            return self.run_any(queues, session).await;
        }
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

    async fn run_any(&self, queues: &[String], session: &Session) -> Result<Vec<Message>, Error> {
        let rows = session
            .rows(
                "SELECT queue, partition, message_id, transaction_id, payload, headers, \
                 created_at, consumer_group, delivery_attempt, lease_id, lease_expires_at \
                 FROM queen_pop_any($1, consumer_group => $2, batch => $3, partitions => $4, \
                 lease_time => $5::text::interval, wait => $6::text::interval, \
                 auto_ack => $7, subscription_mode => $8)",
                &[
                    &queues,
                    &self.group,
                    &self.batch,
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

    /// Pop exactly one message.
    pub async fn one(&self, session: &Session) -> Result<Message> {
        let mut messages = self.run(session).await?;
        let message = messages.pop().with_context(|| format!("nothing came for {self:?}"))?;
        ensure!(messages.is_empty(), "more than one message came for {self:?}");
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
    /// The lease. Every pop gives one, except with auto_ack.
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
