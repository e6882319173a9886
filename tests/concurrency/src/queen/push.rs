//! Pushing.

use std::ops::RangeInclusive;

use serde_json::{Value, json};
use tokio_postgres::{Error, Row};

use super::n;
use crate::Session;

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

    /// A batch with these numbers as payloads.
    pub fn numbers(queue: impl Into<String>, numbers: RangeInclusive<i64>) -> Self {
        Self::new(queue, numbers.map(n).collect())
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
