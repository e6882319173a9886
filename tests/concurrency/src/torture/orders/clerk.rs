//! Who pop orders, and charge each of them once: the charge, its marker and the ack are in one
//! transaction.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use anyhow::{Result, bail};
use rand::RngExt;
use serde_json::{Value, json};
use tokio::time::sleep;
use tokio_postgres::Error;
use uuid::Uuid;

use super::ledger::{Entry, Fate, Span};
use super::{Desk, Excuse, GROUP, QUEUES, Shop, excuse};
use crate::Session;
use crate::queen::{Ack, Message, Pop};

/// The namespace of the markers.
pub const CHARGED: &str = "charged";

/// Messages under one lease.
pub struct Batch {
    pub lease: Uuid,
    pub messages: Vec<Message>,
    /// Of the pop.
    pub span: Span,
}

/// Why a charge did not come about.
pub enum Refusal {
    Raised(Error),
    /// The bundle's reason.
    Bundle(String),
}

impl From<Error> for Refusal {
    fn from(error: Error) -> Self {
        Self::Raised(error)
    }
}

struct Clerk {
    shop: Arc<Shop>,
    desk: Desk,
    batch: Option<Batch>,
    /// The COMMIT of a charge was sent.
    committing: bool,
}

pub async fn work(shop: Arc<Shop>) -> Result<()> {
    let desk = Desk::open(&shop).await?;
    let mut clerk = Clerk { shop, desk, batch: None, committing: false };
    while !clerk.shop.closed.load(Ordering::Relaxed) {
        clerk.committing = false;
        if let Err(refusal) = clerk.step().await {
            clerk.recover(refusal).await?;
        }
    }
    Ok(())
}

fn chance(probability: f64) -> bool {
    rand::rng().random_bool(probability)
}

async fn nap(up_to: u64) {
    let millis = rand::rng().random_range(0..=up_to);
    sleep(Duration::from_millis(millis)).await;
}

impl Clerk {
    async fn step(&mut self) -> Result<(), Refusal> {
        // A zombie goes on with what it holds on the server that was promoted.
        let moved = self.desk.epoch < self.shop.primary().1;
        if moved
            && chance(0.3)
            && let Ok(desk) = Desk::open(&self.shop).await
        {
            self.desk = desk;
        }
        if self.batch.is_none() && chance(0.4) {
            return self.pop_and_charge().await;
        }
        if self.batch.is_none() {
            self.batch = self.pop().await?;
            if self.batch.is_none() {
                nap(20).await;
            }
        }
        // At the end nothing is left behind.
        let from = if self.shop.closing.load(Ordering::Relaxed) { 50 } else { 0 };
        let dice = rand::rng().random_range(from..100);
        match dice {
            // It forgets what it holds, or dawdles until the lease has ended.
            0..2 => self.batch = None,
            2..4 => nap(3000).await,
            4..15 => nap(100).await,
            _ => {}
        }
        let Some(batch) = self.batch.as_ref().filter(|_| chance(0.95)) else { return Ok(()) };
        let count = match batch.messages.len() {
            1 => 1,
            all if chance(0.6) => all,
            all => rand::rng().random_range(1..all),
        };
        self.begin().await?;
        self.charge(count).await
    }

    async fn begin(&self) -> Result<(), Error> {
        let mut sql = "BEGIN".to_owned();
        if chance(0.1) {
            let millis = rand::rng().random_range(1..8);
            sql += &format!("; SET LOCAL lock_timeout = {millis}");
        }
        if chance(0.1) {
            let millis = rand::rng().random_range(1..8);
            sql += &format!("; SET LOCAL statement_timeout = {millis}");
        }
        self.desk.session.run(&sql).await
    }

    async fn pop(&self) -> Result<Option<Batch>, Error> {
        let queue = QUEUES[rand::rng().random_range(0..2)].0;
        let pop = Pop::new(queue)
            .group(GROUP)
            .batch(rand::rng().random_range(1..=8))
            .partitions(rand::rng().random_range(1..=2));
        pop_batch(&self.desk, &pop).await
    }

    /// Pop, charge and ack in one transaction.
    async fn pop_and_charge(&mut self) -> Result<(), Refusal> {
        self.begin().await?;
        self.batch = self.pop().await?;
        let popped = match &self.batch {
            Some(batch) => self.charge(batch.messages.len()).await,
            None => {
                nap(20).await;
                Ok(self.desk.session.run("ROLLBACK").await?)
            }
        };
        // Its lease went with the transaction.
        let committing = self.committing;
        self.batch = self.batch.take().filter(|_| committing);
        popped
    }

    /// Charge the first messages of the batch, in the open transaction, and end it.
    async fn charge(&mut self, count: usize) -> Result<(), Refusal> {
        let Some(batch) = &self.batch else { return Ok(()) };
        let messages = &batch.messages[..count];
        let whole = count == batch.messages.len();
        let mut charges = Vec::new();
        for message in messages {
            charges.push((message.transaction_id.clone(), self.shop.receipt()));
            insert(&self.desk.session, message, charges[charges.len() - 1].1).await?;
        }
        if chance(0.2) {
            nap(50).await;
        }
        let lease = batch.lease;
        if chance(0.5) {
            bundle(&self.desk.session, lease, messages, whole).await?;
        } else {
            singly(&self.desk.session, lease, messages, whole).await?;
        }
        if chance(0.05) {
            self.shop.count("charges rolled back");
            return Ok(self.desk.session.run("ROLLBACK").await?);
        }
        let before = self.desk.position().await?;
        self.committing = true;
        self.desk.session.run("COMMIT").await?;
        self.committing = false;
        let after = self.desk.position().await.unwrap_or(i64::MAX);
        let span = Span { epoch: self.desk.epoch, before, after };
        self.acknowledged(charges, span);
        Ok(())
    }

    /// Note what was charged.
    fn acknowledged(&mut self, charges: Vec<(String, i64)>, span: Span) {
        let Some(batch) = &mut self.batch else { return };
        let mut ledger = self.shop.ledger();
        if batch.span.epoch < span.epoch {
            *ledger.stats.entry("acks by zombies accepted").or_default() += 1;
            if ledger.fate(batch.span) == Fate::Lost {
                let text = format!("Zombie: a lease that was not replicated settled {charges:?}");
                ledger.violations.push(text);
            }
        }
        batch.messages.drain(..charges.len());
        let entries = charges.into_iter();
        let entries = entries.map(|(order, receipt)| Entry { order, receipt, span });
        ledger.charged.extend(entries);
        if batch.messages.is_empty() {
            self.batch = None;
        }
    }

    async fn recover(&mut self, refusal: Refusal) -> Result<()> {
        let excuse = match &refusal {
            Refusal::Raised(error) => excuse(error),
            Refusal::Bundle(reason) => match &reason[..] {
                "lease_expired" => Excuse::Fenced("refused: lease_expired"),
                "lease_superseded" => Excuse::Fenced("refused: lease_superseded"),
                "lease_unknown" => Excuse::Fenced("refused: lease_unknown"),
                "kv_precondition" => Excuse::Marked,
                _ => Excuse::None,
            },
        };
        match excuse {
            Excuse::Lost => {
                self.shop.count("clerks' connections lost");
                self.desk = Desk::open(&self.shop).await?;
                if chance(0.2) {
                    self.batch = None;
                }
                return Ok(());
            }
            Excuse::Again(name) => self.shop.count(name),
            Excuse::Fenced(name) => {
                self.shop.count(name);
                let is_zombie =
                    self.batch.take().is_some_and(|batch| batch.span.epoch < self.desk.epoch);
                if is_zombie {
                    self.shop.count("acks by zombies refused");
                }
            }
            Excuse::Marked => {
                if let Err(error) = self.is_marked().await {
                    return Box::pin(self.recover(error.into())).await;
                }
            }
            Excuse::None => match refusal {
                Refusal::Raised(error) => bail!("no charge may raise this: {error:?}"),
                Refusal::Bundle(reason) => bail!("no bundle may be refused so: {reason}"),
            },
        }
        if let Err(error) = self.desk.session.run("ROLLBACK").await {
            return Box::pin(self.recover(error.into())).await;
        }
        Ok(())
    }

    /// A marker is there: a commit whose reply was lost has charged the order, or a clerk who was
    /// given it later. In no case does this lease have it to settle: the marker came with an ack.
    async fn is_marked(&mut self) -> Result<(), Error> {
        let Some(batch) = self.batch.take() else { return Ok(()) };
        let session = &self.desk.session;
        session.run("ROLLBACK").await?;
        self.shop.count("orders found charged");
        for message in &batch.messages {
            let sql = "SELECT count(*) FROM charges WHERE order_id = $1";
            let charges: i64 = session.row(sql, &[&message.transaction_id]).await?.get(0);
            session.run("BEGIN").await?;
            let settled = Ack::messages(batch.lease, [message.message_id]).run(session).await;
            session.run("ROLLBACK").await?;
            if charges > 0 && settled.is_ok_and(|ack| ack.settled > 0) {
                let text = format!("Marked: {message:?} was charged, and is still to be settled");
                self.shop.ledger().violations.push(text);
            }
        }
        Ok(())
    }
}

pub async fn pop_batch(desk: &Desk, pop: &Pop) -> Result<Option<Batch>, Error> {
    let before = desk.position().await?;
    let messages = pop.run(&desk.session).await?;
    let Some(lease) = messages.first().and_then(|message| message.lease_id) else {
        return Ok(None);
    };
    // In a transaction that a cancellation has aborted, nothing can be charged.
    let after = desk.position().await?;
    let span = Span { epoch: desk.epoch, before, after };
    Ok(Some(Batch { lease, messages, span }))
}

/// The effect: a charge in a table of the application.
pub async fn insert(session: &Session, message: &Message, receipt: i64) -> Result<(), Error> {
    let number = |name: &str| message.payload[name].as_i64().unwrap_or(-1);
    let (customer, n) = (number("customer") as i32, number("n"));
    let sql = "INSERT INTO charges (order_id, queue, partition, customer, n, message_id, receipt) \
               VALUES ($1, $2, $3, $4, $5, $6, $7)";
    let Message { transaction_id, queue, partition, message_id, .. } = message;
    let values: [&(dyn tokio_postgres::types::ToSql + Sync); 7] =
        [transaction_id, queue, partition, &customer, &n, message_id, &receipt];
    session.rows(sql, &values).await?;
    Ok(())
}

fn names(messages: &[Message]) -> Vec<i64> {
    messages.iter().map(|message| message.message_id).collect()
}

/// Write the markers, with a call for each.
pub async fn mark(session: &Session, messages: &[Message]) -> Result<(), Error> {
    for message in messages {
        let sql = "SELECT queen_kv_put_if_absent($1, $2, 'true', forever => true, \
                   required => true)";
        session.rows(sql, &[&CHARGED, &message.transaction_id]).await?;
    }
    Ok(())
}

/// Write the markers and ack, with a call for each.
async fn singly(
    session: &Session,
    lease: Uuid,
    messages: &[Message],
    whole: bool,
) -> Result<(), Error> {
    mark(session, messages).await?;
    let ack = if whole { Ack::all(lease) } else { Ack::messages(lease, names(messages)) };
    ack.run(session).await?;
    Ok(())
}

/// Write the markers and ack in one call.
async fn bundle(
    session: &Session,
    lease: Uuid,
    messages: &[Message],
    whole: bool,
) -> Result<(), Refusal> {
    let ack = |id: i64| json!({ "type": "ack", "leaseId": lease.to_string(), "messageId": id });
    let acks: Vec<Value> = if whole {
        vec![json!({ "type": "ack", "leaseId": lease.to_string() })]
    } else {
        names(messages).into_iter().map(ack).collect()
    };
    let put = |message: &Message| {
        json!({
            "op": "putIfAbsent", "ns": CHARGED, "key": message.transaction_id, "value": true,
            "forever": true, "required": true,
        })
    };
    let puts: Vec<Value> = messages.iter().map(put).collect();
    let sql = "SELECT queen_tx_commit($1, $2)";
    let row = session.row(sql, &[&Value::Array(acks), &Value::Array(puts)]).await?;
    let answer: Value = row.get(0);
    if answer["success"] == json!(true) {
        return Ok(());
    }
    Err(Refusal::Bundle(answer["reason"].as_str().unwrap_or_default().to_owned()))
}
