//! Settling.

use serde_json::Value;
use tokio_postgres::Error;
use uuid::Uuid;

use crate::Session;

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
    /// Ack everything in the lease that is not settled yet.
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

    /// Status `failed`, with its error.
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

/// The row of an ack that makes no dead letter.
pub fn counts(settled: i32, already: i32, lease_released: bool) -> Settled {
    Settled { settled, already, dead_lettered: 0, lease_released }
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
