//! Consumers: they pop any number of messages, and then do with them everything that can go wrong.

mod settling;

use std::collections::BTreeSet;
use std::sync::atomic::Ordering;

use anyhow::Result;
use rand::RngExt;
use tokio_postgres::Error;

use super::history::{Completion, Delivery, GroupId, Stamp, TxId, Uid};
use super::lease::{Held, Lease, State};
use super::worker::{QUEUES, Worker, stream_name, stream_of};
use crate::expect::sqlstate;
use crate::queen::{Message, Pop};

/// How a consumer behaves.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Manners {
    /// Makes every mistake a consumer may make, until the run only has to be finished.
    Rough,
    /// Completes every message it gets.
    Gentle,
    /// Completes every message it gets, and pops many at once.
    Greedy,
    /// Pops with auto_ack and pops again at once. It is always at the end of the log, where
    /// transactions overlap.
    Eager,
}

/// A call of queen_pop, before it is made.
struct Request {
    pop: Pop,
    /// The number of its queue in [`QUEUES`].
    which: usize,
    batch: i32,
    partitions: i32,
    /// The lease is meant to run out.
    brief: bool,
    lease_ms: i64,
    waits: bool,
}

pub struct Consumer {
    pub worker: Worker,
    group: GroupId,
    name: Option<String>,
    manners: Manners,
    /// The lease it holds.
    lease: Option<Lease>,
    /// The lease it will hold when the open transaction has committed.
    next: Option<Lease>,
    /// Messages completed in the open transaction, to be counted when it commits.
    completed: u64,
    /// For each queue, whether the last pop found nothing.
    empty: [bool; QUEUES.len()],
}

impl Consumer {
    /// Without a name it consumes in queue mode.
    pub fn new(worker: Worker, group: GroupId, name: Option<&str>, manners: Manners) -> Self {
        Self {
            worker,
            group,
            name: name.map(Into::into),
            manners,
            lease: None,
            next: None,
            completed: 0,
            empty: [false; QUEUES.len()],
        }
    }

    /// The last pops of all queues found nothing, and nothing is left to be settled.
    pub fn finds_nothing(&self) -> bool {
        self.lease.is_none() && self.empty.iter().all(|empty| *empty)
    }

    pub async fn run(mut self) -> Result<Worker> {
        while !self.worker.shared.finished.load(Ordering::Relaxed) {
            self.step().await?;
        }
        Ok(self.worker)
    }

    fn gentle(&self) -> bool {
        self.manners != Manners::Rough || self.worker.shared.draining.load(Ordering::Relaxed)
    }

    /// Pop once, or settle once. Returns the number of messages that came.
    pub async fn step(&mut self) -> Result<usize> {
        let deliveries = self.worker.log.deliveries.len();
        self.completed = 0;
        self.next = None;
        let settles = self.lease.is_some();
        let done = if self.manners == Manners::Eager {
            self.pop_for_good().await
        } else if settles {
            self.settle_some().await
        } else {
            self.pop_somehow().await
        };
        let committed = match done {
            Ok(committed) => committed,
            Err(error) => self.failed(error).await?,
        };
        if committed {
            self.lease = self.next.take();
            let counter = &self.worker.shared.completed[self.group as usize];
            counter.fetch_add(self.completed, Ordering::Relaxed);
        }
        if self.lease.as_ref().is_some_and(Lease::is_over) {
            self.lease = None;
        }
        let came = self.worker.log.deliveries.len() - deliveries;
        if came == 0 && !settles {
            self.worker.nap(if self.manners == Manners::Eager { 2.0 } else { 15.0 }).await;
        }
        Ok(came)
    }

    /// Handle an error that a consumer may meet: it loses its lease, or only its transaction.
    async fn failed(&mut self, error: Error) -> Result<bool> {
        let Some(state @ ("QN001" | "QN002")) = sqlstate(&error) else {
            return self.worker.recover(error).await;
        };
        let state = state.to_owned();
        self.worker.abandon().await?;
        self.worker.count("leases lost", 1);
        if let Some(lease) = self.lease.take()
            && !self.has_expired(&lease).await?
        {
            let text = format!("{state} before the lease expired: {error:?} for {lease:?}");
            self.worker.anomalies.push(text);
        }
        Ok(false)
    }

    /// Whether a lease has expired by the server's clock. When the connection is lost the answer is
    /// unknown, and the lease counts as expired.
    async fn has_expired(&mut self, lease: &Lease) -> Result<bool> {
        let sql = "SELECT clock_timestamp() >= $1";
        match self.worker.session.row(sql, &[&lease.expires]).await {
            Ok(row) => Ok(row.get(0)),
            Err(error) => {
                self.worker.recover(error).await?;
                Ok(true)
            }
        }
    }

    async fn pop_somehow(&mut self) -> Result<bool, Error> {
        let kind = if self.gentle() { 99 } else { self.worker.rng.random_range(0..100) };
        match kind {
            0..15 => self.pop_and_roll_back().await,
            15..25 => self.pop_over_savepoint().await,
            25..50 => self.pop_and_complete(kind % 5 == 0).await,
            _ => {
                let tx = self.worker.begin_single();
                self.next = self.pop(tx).await?;
                self.worker.end_single();
                Ok(true)
            }
        }
    }

    /// Pop with auto_ack, so that a delivered message is completed. Where connections are cut the
    /// answer may be lost, and with it the messages. There the pop runs in a transaction, whose end
    /// can be looked up.
    async fn pop_for_good(&mut self) -> Result<bool, Error> {
        let (survives, rolls_back) =
            (self.worker.shared.config.survives(), self.worker.chance(0.05));
        if !survives && !rolls_back {
            let tx = self.worker.begin_single();
            self.pop(tx).await?;
            self.worker.end_single();
            return Ok(true);
        }
        let tx = self.worker.begin("BEGIN").await?;
        self.pop(tx).await?;
        if rolls_back {
            self.worker.rollback().await?;
            return Ok(false);
        }
        self.worker.commit().await?;
        Ok(true)
    }

    async fn pop_and_roll_back(&mut self) -> Result<bool, Error> {
        let tx = self.worker.begin("BEGIN").await?;
        let lease = self.pop(tx).await?;
        if let Some(mut lease) = lease {
            if self.worker.chance(0.3) {
                self.complete(&mut lease, tx, None).await?;
            }
            while self.worker.chance(0.5) {
                // Whatever the transaction has learned from its own pops must go with the rollback.
                self.pop(tx).await?;
            }
            self.worker.nap(30.0).await;
            self.worker.count("pops rolled back", 1);
        }
        self.worker.rollback().await?;
        Ok(false)
    }

    async fn pop_over_savepoint(&mut self) -> Result<bool, Error> {
        let tx = self.worker.begin("BEGIN; SAVEPOINT pop").await?;
        let from = self.worker.log.deliveries.len();
        let undone = self.pop(tx).await?.is_some();
        self.worker.nap(5.0).await;
        let now = self.worker.tick();
        self.worker.run("ROLLBACK TO SAVEPOINT pop").await?;
        for delivery in &mut self.worker.log.deliveries[from..] {
            delivery.undone = Some(now);
        }
        self.worker.count("pops undone", u64::from(undone));
        self.next = self.pop(tx).await?;
        self.worker.nap(5.0).await;
        self.worker.commit().await?;
        Ok(true)
    }

    /// Pop, and complete with the effect, in one transaction.
    async fn pop_and_complete(&mut self, repeatable: bool) -> Result<bool, Error> {
        let begin = if repeatable {
            "BEGIN ISOLATION LEVEL REPEATABLE READ; SELECT 1 FROM pg_class LIMIT 1"
        } else {
            "BEGIN"
        };
        let tx = self.worker.begin(begin).await?;
        self.worker.nap(5.0).await;
        if let Some(mut lease) = self.pop(tx).await? {
            self.complete(&mut lease, tx, None).await?;
            self.worker.count("pops completed in one transaction", 1);
        }
        self.worker.nap(10.0).await;
        self.worker.commit().await?;
        Ok(true)
    }

    /// Call queen_pop once, and record it.
    async fn pop(&mut self, tx: TxId) -> Result<Option<Lease>, Error> {
        let request = self.request();
        let began = self.worker.tick();
        let rows = request.pop.run(&self.worker.session).await?;
        let returned = self.worker.answered();
        self.empty = if rows.is_empty() { self.empty } else { Default::default() };
        self.empty[request.which] = rows.is_empty();
        self.look_at(&request, &rows);
        let lease = self.record(tx, &request, (began, returned), &rows);
        Ok(lease.filter(|_| self.manners != Manners::Eager))
    }

    /// Choose what the next call asks for.
    fn request(&mut self) -> Request {
        let gentle = self.gentle();
        let which = usize::from(self.worker.chance(0.3));
        let queue = QUEUES[which];
        let (batch, partitions) = match self.manners {
            Manners::Greedy => (40, 10),
            Manners::Eager => (20, 10),
            _ => (self.worker.rng.random_range(1..=20), self.worker.rng.random_range(1..=3)),
        };
        let brief = !gentle && self.worker.chance(0.12);
        let lease_ms: i64 = if brief {
            self.worker.rng.random_range(100..600)
        } else {
            self.worker.shared.config.lease.as_millis() as i64
        };
        let mut pop = Pop::new(queue)
            .batch(batch)
            .partitions(partitions)
            .lease(format!("{lease_ms} milliseconds"));
        if let Some(name) = &self.name {
            pop = pop.group(name);
        }
        if self.manners == Manners::Eager {
            pop = pop.auto_ack();
        }
        if !gentle && self.worker.chance(0.15) {
            let stream = self.worker.rng.random_range(0..self.worker.shared.streams());
            if stream_name(stream).0 == queue {
                pop = pop.partition(stream_name(stream).1);
            }
        }
        let waits = !gentle && self.worker.chance(0.1);
        if waits {
            pop = pop.wait("50 milliseconds");
        }
        Request { pop, which, batch, partitions, brief, lease_ms, waits }
    }

    /// Record the rows of a call. Returns the lease on them.
    fn record(
        &mut self,
        tx: TxId,
        request: &Request,
        (began, returned): (Stamp, Stamp),
        rows: &[Message],
    ) -> Option<Lease> {
        let eager = self.manners == Manners::Eager;
        let first = rows.first()?;
        let id = first.lease_id.unwrap_or_default();
        let expires = first.lease_expires_at.unwrap_or_default();
        let brief = request.brief;
        let call = self.worker.shared.pop_id();
        let mut lease = Lease { id, expires, brief, messages: Vec::with_capacity(rows.len()) };
        for (at, row) in rows.iter().enumerate() {
            let (Some(uid), Some(stream)) = (uid_of(row), stream_of(&row.queue, &row.partition))
            else {
                self.worker.anomalies.push(format!("no producer pushed {row:?}"));
                continue;
            };
            let expires = expires.timestamp_micros();
            self.worker.log.deliveries.push(Delivery {
                group: self.group,
                stream,
                uid,
                message_id: row.message_id,
                attempt: row.delivery_attempt,
                pop: call,
                at: at as u32,
                tx,
                began,
                returned,
                lease: id,
                clock: (!request.waits && !eager).then_some(expires - request.lease_ms * 1000),
                expires,
                undone: None,
            });
            if eager {
                let (group, lease, undone) = (self.group, None, None);
                let completion = Completion { group, uid, lease, tx, began, undone };
                self.worker.log.completions.push(completion);
                self.completed += 1;
                continue;
            }
            let unit = self.worker.log.unit(stream, uid);
            lease.messages.push(Held {
                uid,
                unit,
                message_id: row.message_id,
                transaction_id: row.transaction_id.clone(),
                state: State::Open,
            });
        }
        self.worker.count("messages delivered", rows.len() as u64);
        Some(lease)
    }

    /// Check what must hold for the rows of any pop.
    fn look_at(&mut self, request: &Request, rows: &[Message]) {
        let Request { pop, batch, partitions, .. } = request;
        let eager = self.manners == Manners::Eager;
        let streams: BTreeSet<_> = rows.iter().map(|row| (&row.queue, &row.partition)).collect();
        let leases: BTreeSet<_> = rows.iter().map(|row| row.lease_id).collect();
        let ends: BTreeSet<_> = rows.iter().map(|row| row.lease_expires_at).collect();
        let right = rows.len() <= *batch as usize
            && streams.len() <= *partitions as usize
            && (rows.is_empty() || leases.len() == 1 && leases.contains(&None) == eager)
            && (rows.is_empty() || ends.len() == 1 && ends.contains(&None) == eager)
            && rows.iter().all(|row| row.consumer_group == self.name)
            && rows.iter().all(|row| {
                let id = row.payload.get("id").and_then(|id| id.as_str());
                id.is_none_or(|id| id == row.transaction_id)
            });
        if !right {
            self.worker.anomalies.push(format!("{pop:?} gave {rows:?}"));
        }
    }
}

/// The number that a producer wrote into the payload.
fn uid_of(row: &Message) -> Option<Uid> {
    row.payload.get("uid")?.as_u64()?.try_into().ok()
}
