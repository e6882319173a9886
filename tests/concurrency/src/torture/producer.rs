//! Producers: some make transactions of several pushes that take their time, roll back, and use
//! savepoints. Others get their transaction id early and push under a row lock.

use std::collections::HashMap;
use std::sync::atomic::Ordering;

use anyhow::Result;
use rand::RngExt;
use rand::seq::IndexedRandom;
use serde_json::{Value, json};
use tokio_postgres::Error;

use super::history::{PushRecord, StreamId, TxId, Uid};
use super::worker::{Worker, stream_name};
use crate::queen::{Item, Push, PushBatch, Pushed};

/// Producers with this number or a larger one push under row locks.
pub const LOCKERS: u32 = 1000;

/// Producers pause while the slowest group has this many messages to complete.
const BACKLOG: u64 = 150;

/// A message about to be pushed.
#[derive(Clone)]
struct Draft {
    uid: Uid,
    stream: StreamId,
    transaction_id: Option<String>,
}

impl Draft {
    fn payload(&self) -> Value {
        json!({ "uid": self.uid, "id": self.transaction_id })
    }
}

pub struct Producer {
    worker: Worker,
    number: u32,
    /// The largest message_id so far in each stream.
    last: HashMap<StreamId, i64>,
    /// Messages with a transaction_id, of transactions that committed.
    committed: Vec<(StreamId, String, i64)>,
    /// Messages with a transaction_id, of the open transaction.
    tentative: Vec<(StreamId, String, i64)>,
    /// The number of messages to count when the open transaction commits.
    pushed: u64,
}

impl Producer {
    pub fn new(worker: Worker, number: u32) -> Self {
        Self {
            worker,
            number,
            last: HashMap::new(),
            committed: Vec::new(),
            tentative: Vec::new(),
            pushed: 0,
        }
    }

    pub async fn run(mut self) -> Result<Worker> {
        while !self.worker.shared.stop.load(Ordering::Relaxed) {
            if self.worker.shared.backlog() > BACKLOG {
                self.worker.count("pauses of producers", 1);
                self.worker.nap(10.0).await;
                continue;
            }
            self.tentative.clear();
            self.pushed = 0;
            let done = if self.number >= LOCKERS {
                self.under_lock().await
            } else if self.worker.chance(0.2) && !self.worker.shared.config.survives() {
                self.single().await
            } else {
                self.transaction().await
            };
            let committed = match done {
                Ok(committed) => committed,
                Err(error) => {
                    // After a crash other messages may get the numbers of uncommitted ones.
                    self.last.clear();
                    self.worker.recover(error).await?
                }
            };
            if committed {
                self.worker.shared.pushed.fetch_add(self.pushed, Ordering::Relaxed);
                self.committed.append(&mut self.tentative);
            }
            self.worker.nap(self.worker.shared.config.pause).await;
        }
        Ok(self.worker)
    }

    /// One push that is a transaction of its own.
    async fn single(&mut self) -> Result<bool, Error> {
        let tx = self.worker.begin_single();
        self.push_some(tx, false).await?;
        self.worker.end_single();
        self.worker.count("transactions of one push", 1);
        Ok(true)
    }

    async fn transaction(&mut self) -> Result<bool, Error> {
        let begin = if self.worker.chance(0.1) {
            "BEGIN ISOLATION LEVEL REPEATABLE READ; SELECT 1 FROM pg_class LIMIT 1"
        } else {
            "BEGIN"
        };
        let tx = self.worker.begin(begin).await?;
        // Half of the transactions are quick: so more of them overlap only briefly.
        let patience = f64::from(u8::from(self.worker.chance(0.5)));
        for _ in 0..self.worker.rng.random_range(1..=4) {
            match self.worker.rng.random_range(0..100) {
                0..15 => self.undone_push(tx).await?,
                15..25 => {
                    self.worker.run("SAVEPOINT kept").await?;
                    self.push_some(tx, false).await?;
                    self.worker.run("RELEASE SAVEPOINT kept").await?;
                }
                25..32 => self.duplicate().await?,
                _ => {
                    self.push_some(tx, false).await?;
                }
            }
            self.worker.nap(5.0 * patience).await;
        }
        if self.worker.chance(0.02) {
            self.worker.count("commits a second late", 1);
            self.worker.nap(2000.0).await;
        } else {
            self.worker.nap(25.0 * patience).await;
        }
        if self.worker.chance(0.15) {
            self.worker.rollback().await?;
            self.worker.count("transactions rolled back", 1);
            return Ok(false);
        }
        self.worker.commit().await?;
        self.worker.count("transactions committed", 1);
        Ok(true)
    }

    /// Push and roll back to the savepoint before it. Some of these messages are pushed again.
    async fn undone_push(&mut self, tx: TxId) -> Result<(), Error> {
        self.worker.run("SAVEPOINT undone").await?;
        let drafts = self.push_some(tx, true).await?;
        self.worker.nap(5.0).await;
        self.worker.run("ROLLBACK TO SAVEPOINT undone").await?;
        self.worker.count("pushes undone", drafts.len() as u64);
        if self.worker.chance(0.4) {
            // Their transaction_ids are free again.
            let again = drafts
                .into_iter()
                .map(|draft| Draft { uid: self.worker.shared.uid(), ..draft })
                .collect();
            self.push(tx, again, false, None).await?;
        }
        Ok(())
    }

    /// Push a transaction_id that was pushed before: no message may come of it.
    async fn duplicate(&mut self) -> Result<(), Error> {
        let Some((stream, id, message_id)) = self.committed.choose(&mut self.worker.rng).cloned()
        else {
            return Ok(());
        };
        let (queue, partition) = stream_name(stream);
        let payload = json!({ "uid": self.worker.shared.uid(), "id": id });
        let push = Push::new(queue, payload).partition(partition).id(&id);
        let pushed = push.run(&self.worker.session).await?;
        self.worker.answered();
        self.worker.count("duplicates", 1);
        if pushed.status != "duplicate" || pushed.message_id != message_id {
            let text = format!("{id} was message {message_id}, pushed again it gave {pushed:?}");
            self.worker.anomalies.push(text);
        }
        Ok(())
    }

    /// Call one of the push functions, for random streams.
    async fn push_some(&mut self, tx: TxId, undone: bool) -> Result<Vec<Draft>, Error> {
        let streams = self.worker.shared.streams();
        let stream = self.worker.rng.random_range(0..streams);
        let (many, scattered) = match self.worker.rng.random_range(0..4) {
            0 | 1 => (1, false),
            2 => (self.worker.rng.random_range(1..=6), false),
            _ => (self.worker.rng.random_range(1..=6), true),
        };
        let mut drafts = Vec::new();
        for _ in 0..many {
            let stream = if scattered { self.worker.rng.random_range(0..streams) } else { stream };
            let uid = self.worker.shared.uid();
            let transaction_id = self.worker.chance(0.5).then(|| format!("id-{uid}"));
            drafts.push(Draft { uid, stream, transaction_id });
        }
        self.push(tx, drafts.clone(), undone, None).await?;
        Ok(drafts)
    }

    async fn push(
        &mut self,
        tx: TxId,
        drafts: Vec<Draft>,
        undone: bool,
        locked: Option<(u32, i64)>,
    ) -> Result<(), Error> {
        let began = self.worker.tick();
        let rows = self.call(&drafts).await?;
        self.worker.answered();
        if rows.len() != drafts.len() {
            let text = format!("{} rows for {} pushes", rows.len(), drafts.len());
            self.worker.anomalies.push(text);
        }
        for (n, (draft, row)) in drafts.iter().zip(&rows).enumerate() {
            self.look_at(n, draft, row);
            self.worker.log.pushes.push(PushRecord {
                uid: draft.uid,
                producer: self.number,
                stream: draft.stream,
                tx,
                began,
                message_id: row.message_id,
                undone,
                locked,
            });
            if undone {
                continue;
            }
            self.pushed += 1;
            if let Some(id) = &draft.transaction_id {
                self.tentative.push((draft.stream, id.clone(), row.message_id));
            }
        }
        Ok(())
    }

    /// Call the function that fits the messages; where several fit, any of them.
    async fn call(&mut self, drafts: &[Draft]) -> Result<Vec<Pushed>, Error> {
        let first = &drafts[0];
        let same = drafts.iter().all(|draft| draft.stream == first.stream);
        let (queue, partition) = stream_name(first.stream);
        let session = &self.worker.session;
        match (drafts.len(), same, self.worker.rng.random_range(0..3)) {
            (1, _, 0 | 1) => {
                let mut push = Push::new(queue, first.payload()).partition(partition);
                if let Some(id) = &first.transaction_id {
                    push = push.id(id);
                }
                Ok(vec![push.run(session).await?])
            }
            (_, true, 0 | 1) => {
                let payloads = drafts.iter().map(Draft::payload).collect();
                let ids = drafts.iter().map(|draft| draft.transaction_id.clone()).collect();
                PushBatch::new(queue, payloads).partition(partition).ids(ids).run(session).await
            }
            _ => {
                let items: Vec<Item> = drafts
                    .iter()
                    .map(|draft| {
                        let (queue, partition) = stream_name(draft.stream);
                        Item {
                            queue: queue.into(),
                            payload: draft.payload(),
                            partition,
                            transaction_id: draft.transaction_id.clone(),
                        }
                    })
                    .collect();
                Item::push(&items, session).await
            }
        }
    }

    /// Compare a row of a push with what was pushed.
    fn look_at(&mut self, n: usize, draft: &Draft, row: &Pushed) {
        let last = self.last.insert(draft.stream, row.message_id).unwrap_or(0);
        let id_kept = draft.transaction_id.as_ref().is_none_or(|id| *id == row.transaction_id);
        if row.status != "queued"
            || row.ordinal as usize != n + 1
            || !id_kept
            || row.message_id <= last
            || row.message_id >= 1 << 53
        {
            let text = format!("push {n} of a call gave {row:?} (the last in its stream: {last})");
            self.worker.anomalies.push(text);
        }
    }

    /// Push as from an outbox: get a transaction id first, then a row lock, then push. A counter in
    /// the row tells the order in which the lock was granted.
    async fn under_lock(&mut self) -> Result<bool, Error> {
        let tx = self.worker.begin("BEGIN; SELECT pg_current_xact_id()").await?;
        self.worker.nap(30.0).await;
        if self.worker.chance(0.2) {
            self.push_some(tx, false).await?;
        }
        let row = self.worker.rng.random_range(0..self.worker.shared.config.locks);
        // Three rows share a stream with others; one has a stream of its own.
        let stream = row % self.worker.shared.streams();
        let key = row as i32;
        let session = &self.worker.session;
        session.rows("SELECT FROM torture_orders WHERE id = $1 FOR UPDATE", &[&key]).await?;
        let place: i64 = session
            .row(
                "UPDATE torture_orders SET place = place + 1 WHERE id = $1 RETURNING place",
                &[&key],
            )
            .await?
            .get(0);
        self.worker.answered();
        self.worker.nap(2.0).await;
        for n in 0..self.worker.rng.random_range(1..=2) {
            let uid = self.worker.shared.uid();
            let transaction_id = self.worker.chance(0.3).then(|| format!("id-{uid}"));
            let draft = Draft { uid, stream, transaction_id };
            // Two pushes of one transaction get different places.
            self.push(tx, vec![draft], false, Some((row, 2 * place + n))).await?;
        }
        self.worker.nap(5.0).await;
        if self.worker.chance(0.1) {
            self.worker.rollback().await?;
            self.worker.count("transactions under lock rolled back", 1);
            return Ok(false);
        }
        self.worker.commit().await?;
        self.worker.count("transactions under lock committed", 1);
        Ok(true)
    }
}
