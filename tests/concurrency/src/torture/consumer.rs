//! Consumers: they pop any number of messages, and then do everything that goes wrong in life.

use std::collections::BTreeSet;
use std::sync::atomic::Ordering;

use anyhow::Result;
use rand::RngExt;
use serde_json::json;
use tokio_postgres::Error;

use super::history::{Completion, Delivery, GroupId, Release, StreamId, TxId, Uid};
use super::lease::{Held, Lease, State};
use super::worker::{QUEUES, Worker, stream_name, stream_of};
use crate::expect::sqlstate;
use crate::queen::{Ack, Message, Pop, Settled, settle};

/// How a consumer behaves.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Manners {
    /// As badly as it may, until everything is only to be finished.
    Rough,
    /// Completes all it gets.
    Gentle,
    /// Completes all it gets, and takes much at once.
    Greedy,
    /// Takes what is there without a lease, and looks again at once: always at the end of the
    /// log, where transactions overlap.
    Eager,
}

pub struct Consumer {
    pub worker: Worker,
    group: GroupId,
    name: Option<String>,
    manners: Manners,
    /// The lease it holds.
    lease: Option<Lease>,
    /// What it holds when the open transaction has committed.
    next: Option<Lease>,
    /// Acks of the open transaction, to count when it commits.
    completed: u64,
    /// Of each queue, whether the last pop found nothing.
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

    /// Pop once, or settle once; the number of messages that came.
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

    /// An error that a consumer may meet: it loses its lease, or only its transaction.
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

    /// By the server's clock. A lost connection counts as expired: nobody knows.
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

    /// With auto_ack: delivered is completed. Where connections are cut the answer may be lost,
    /// and with it the messages: there a transaction tells what became of them.
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
                // What it sees of its own doings it has to forget.
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

    /// The effect, the ack and the pop in one transaction.
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

    /// One call of queen_pop, recorded.
    async fn pop(&mut self, tx: TxId) -> Result<Option<Lease>, Error> {
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
        let eager = self.manners == Manners::Eager;
        if eager {
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
        let began = self.worker.tick();
        let rows = pop.run(&self.worker.session).await?;
        let returned = self.worker.answered();
        self.empty = if rows.is_empty() { self.empty } else { Default::default() };
        self.empty[which] = rows.is_empty();
        self.look_at(&pop, batch, partitions, &rows);
        let Some(first) = rows.first() else { return Ok(None) };
        let id = first.lease_id.unwrap_or_default();
        let expires = first.lease_expires_at.unwrap_or_default();
        let call = self.worker.shared.pop_id();
        let mut lease = Lease { id, expires, brief, messages: Vec::with_capacity(rows.len()) };
        for (at, row) in rows.iter().enumerate() {
            let (Some(uid), Some(stream)) = (uid_of(row), stream_of(&row.queue, &row.partition))
            else {
                self.worker.anomalies.push(format!("nobody pushed {row:?}"));
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
                clock: (!waits && !eager).then_some(expires - lease_ms * 1000),
                expires,
                undone: None,
            });
            if eager {
                let completion = Completion { group: self.group, uid, tx, began, undone: None };
                self.worker.log.completions.push(completion);
                self.completed += 1;
                continue;
            }
            lease.messages.push(Held {
                uid,
                stream,
                message_id: row.message_id,
                transaction_id: row.transaction_id.clone(),
                state: State::Open,
            });
        }
        self.worker.count("messages delivered", rows.len() as u64);
        Ok((!eager).then_some(lease))
    }

    /// What must hold of the rows of a pop by themselves.
    fn look_at(&mut self, pop: &Pop, batch: i32, partitions: i32, rows: &[Message]) {
        let eager = self.manners == Manners::Eager;
        let streams: BTreeSet<_> = rows.iter().map(|row| (&row.queue, &row.partition)).collect();
        let leases: BTreeSet<_> = rows.iter().map(|row| row.lease_id).collect();
        let ends: BTreeSet<_> = rows.iter().map(|row| row.lease_expires_at).collect();
        let right = rows.len() <= batch as usize
            && streams.len() <= partitions as usize
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

    /// Do something about the lease in hand.
    async fn settle_some(&mut self) -> Result<bool, Error> {
        let Some(lease) = self.lease.clone() else { return Ok(false) };
        let kind = if self.gentle() { 0 } else { self.worker.rng.random_range(0..100) };
        if lease.brief && kind < 60 && !self.gentle() {
            return self.let_it_expire(lease).await;
        }
        match kind {
            0..35 => self.in_transaction(lease, Step::All).await,
            35..60 => self.in_transaction(lease, Step::Some).await,
            60..68 => self.in_transaction(lease, Step::GiveBack("failed")).await,
            68..74 => self.in_transaction(lease, Step::GiveBack("retry")).await,
            74..82 => self.in_transaction(lease, Step::Mixed).await,
            82..88 => self.in_transaction(lease, Step::Repeat).await,
            88..94 => self.complete_and_pop(lease).await,
            _ => self.complete_alone(lease).await,
        }
    }

    /// An ack that comes too late must fail, whoever has the messages by then.
    async fn let_it_expire(&mut self, lease: Lease) -> Result<bool, Error> {
        self.worker.nap(700.0).await;
        let sql = "SELECT clock_timestamp() > $1";
        let expired: bool = self.worker.session.row(sql, &[&lease.expires]).await?.get(0);
        self.worker.answered();
        if !expired {
            return Ok(false);
        }
        self.worker.count("leases expired", 1);
        if self.worker.chance(0.5) {
            self.lease = None;
            return Ok(false);
        }
        let mut late = lease.clone();
        let tx = self.worker.begin("BEGIN").await?;
        self.complete(&mut late, tx, None).await?;
        self.worker.anomalies.push(format!("an ack succeeded after {lease:?} had expired"));
        self.worker.rollback().await?;
        self.lease = None;
        Ok(false)
    }

    /// A step of settling in a transaction of its own, with the effect of what it completes.
    async fn in_transaction(&mut self, lease: Lease, step: Step) -> Result<bool, Error> {
        let tx = self.worker.begin("BEGIN").await?;
        let mut after = lease.clone();
        if !self.gentle() && self.worker.chance(0.1) {
            self.worker.run("SAVEPOINT ack").await?;
            let marks = (self.worker.log.completions.len(), self.worker.log.releases.len());
            let mut undone = lease.clone();
            let before = self.completed;
            self.complete(&mut undone, tx, None).await?;
            self.completed = before;
            let now = self.worker.tick();
            self.worker.run("ROLLBACK TO SAVEPOINT ack").await?;
            for one in &mut self.worker.log.completions[marks.0..] {
                one.undone = Some(now);
            }
            for one in &mut self.worker.log.releases[marks.1..] {
                one.undone = Some(now);
            }
            self.worker.count("acks undone", 1);
        }
        match step {
            Step::All => self.complete(&mut after, tx, None).await?,
            Step::Some => {
                let some = after.some_open(&mut self.worker.rng);
                self.complete(&mut after, tx, Some(some)).await?;
            }
            Step::GiveBack(status) => self.give_back(&mut after, tx, status).await?,
            Step::Mixed => self.settle_mixed(&mut after, tx).await?,
            Step::Repeat => self.repeat(&after).await?,
        }
        if !self.gentle() && self.worker.chance(0.08) {
            self.worker.rollback().await?;
            self.worker.count("acks rolled back", 1);
            return Ok(false);
        }
        self.next = Some(after);
        self.worker.commit().await?;
        Ok(true)
    }

    /// The last batch is completed and the next popped in one transaction.
    async fn complete_and_pop(&mut self, mut lease: Lease) -> Result<bool, Error> {
        let tx = self.worker.begin("BEGIN").await?;
        self.complete(&mut lease, tx, None).await?;
        self.next = self.pop(tx).await?;
        self.worker.count("acks and pops in one transaction", u64::from(self.next.is_some()));
        self.worker.commit().await?;
        Ok(true)
    }

    /// An ack that is a transaction by itself. Where connections are cut it can't be told
    /// afterwards whether it took effect, so there it gets a transaction around it.
    async fn complete_alone(&mut self, lease: Lease) -> Result<bool, Error> {
        if self.worker.shared.config.survives() {
            return self.in_transaction(lease, Step::All).await;
        }
        let mut after = lease;
        let all = after.open();
        let tx = self.worker.begin_single();
        let began = self.worker.tick();
        let settled = Ack::all(after.id).run(&self.worker.session).await?;
        self.worker.end_single();
        self.completed_now(&mut after, tx, began, &all, settled);
        self.worker.count("effects not recorded", all.len() as u64);
        self.next = Some(after);
        Ok(true)
    }

    /// Complete some messages of a lease, or all that are open, and record the effect.
    async fn complete(
        &mut self,
        lease: &mut Lease,
        tx: TxId,
        some: Option<Vec<usize>>,
    ) -> Result<(), Error> {
        let which = some.clone().unwrap_or_else(|| lease.open());
        let uids: Vec<i64> = which.iter().map(|n| i64::from(lease.messages[*n].uid)).collect();
        let sql = "INSERT INTO torture_effects SELECT $1, unnest($2::bigint[])";
        self.worker.session.rows(sql, &[&(self.group as i32), &uids]).await?;
        self.worker.answered();
        let ack = match some {
            None => Ack::all(lease.id),
            Some(some) if self.worker.chance(0.5) => {
                Ack::messages(lease.id, some.iter().map(|n| lease.messages[*n].message_id))
            }
            Some(some) => {
                let named = some.iter().map(|n| &lease.messages[*n]);
                Ack::ids(lease.id, named.map(|one| one.transaction_id.clone()))
            }
        };
        let began = self.worker.tick();
        let settled = ack.run(&self.worker.session).await?;
        self.worker.answered();
        self.completed_now(lease, tx, began, &which, settled);
        Ok(())
    }

    fn completed_now(
        &mut self,
        lease: &mut Lease,
        tx: TxId,
        began: u64,
        which: &[usize],
        settled: Settled,
    ) {
        let (group, before) = (self.group, lease.clone());
        for n in which {
            let uid = lease.messages[*n].uid;
            self.worker.log.completions.push(Completion { group, uid, tx, began, undone: None });
        }
        self.completed += which.len() as u64;
        let over = lease.complete(which);
        self.released(lease, tx, began, over);
        let expected = Settled {
            settled: which.len() as i32,
            already: 0,
            dead_lettered: 0,
            lease_released: lease.is_over(),
        };
        // An ack of everything also reports what had been completed before, or not: nothing
        // says which. An ack by name names open ones alone.
        if (Settled { already: 0, ..settled }) != expected {
            let text = format!("completing {which:?} of {before:?} gave {settled:?}");
            self.worker.anomalies.push(text);
        }
    }

    fn released(
        &mut self,
        lease: &Lease,
        tx: TxId,
        began: u64,
        streams: impl IntoIterator<Item = StreamId>,
    ) {
        let all = streams.into_iter().map(|stream| Release {
            lease: lease.id,
            stream,
            tx,
            began,
            undone: None,
        });
        self.worker.log.releases.extend(all);
    }

    /// One message is given back, and with it the rest of its stream.
    async fn give_back(
        &mut self,
        lease: &mut Lease,
        tx: TxId,
        status: &'static str,
    ) -> Result<(), Error> {
        let Some(n) = lease.some_open(&mut self.worker.rng).pop() else { return Ok(()) };
        let (stream, id) = (lease.messages[n].stream, lease.messages[n].message_id);
        let began = self.worker.tick();
        let ack = Ack::messages(lease.id, [id]).status(status);
        let settled = ack.run(&self.worker.session).await?;
        self.worker.answered();
        let before = lease.clone();
        let back = lease.give_back(stream);
        self.released(lease, tx, began, [stream]);
        // Whether what follows the named one counts as given back "by this call" is left open.
        if !(1..=back as i32).contains(&settled.settled)
            || settled.already != 0
            || settled.dead_lettered != 0
            || settled.lease_released != lease.is_over()
        {
            let text = format!("{status} for {id} of {before:?} gave {settled:?}");
            self.worker.anomalies.push(text);
        }
        self.worker.count(if status == "failed" { "failed" } else { "retries" }, 1);
        Ok(())
    }

    /// Some completed and one failed, as one set.
    async fn settle_mixed(&mut self, lease: &mut Lease, tx: TxId) -> Result<(), Error> {
        let mut some = lease.some_open(&mut self.worker.rng);
        let Some(failed) = some.pop() else { return Ok(()) };
        let named = |n: &usize, status: &str| {
            let one = &lease.messages[*n];
            json!({ "messageId": one.message_id, "status": status })
        };
        let mut results: Vec<_> = some.iter().map(|n| named(n, "completed")).collect();
        results.push(named(&failed, "failed"));
        let uids: Vec<i64> = some.iter().map(|n| i64::from(lease.messages[*n].uid)).collect();
        let sql = "INSERT INTO torture_effects SELECT $1, unnest($2::bigint[])";
        self.worker.session.rows(sql, &[&(self.group as i32), &uids]).await?;
        self.worker.answered();
        let began = self.worker.tick();
        let outcomes = settle(&self.worker.session, lease.id, &json!(results)).await?;
        self.worker.answered();
        let mut got: Vec<_> =
            outcomes.iter().map(|row| (row.message_id, row.outcome.as_str())).collect();
        let mut expected: Vec<_> =
            some.iter().map(|n| (lease.messages[*n].message_id, "completed")).collect();
        expected.push((lease.messages[failed].message_id, "failed"));
        got.sort_unstable();
        expected.sort_unstable();
        if got != expected {
            let text = format!("settling {results:?} of {lease:?} gave {outcomes:?}");
            self.worker.anomalies.push(text);
        }
        for n in &some {
            let (group, uid) = (self.group, lease.messages[*n].uid);
            self.worker.log.completions.push(Completion { group, uid, tx, began, undone: None });
        }
        self.completed += some.len() as u64;
        let mut over = lease.complete(&some);
        let stream = lease.messages[failed].stream;
        lease.give_back(stream);
        over.insert(stream);
        self.released(lease, tx, began, over);
        self.worker.count("settled as a set", 1);
        Ok(())
    }

    /// A lost reply: what this lease completed is completed, and nothing else happens.
    async fn repeat(&mut self, lease: &Lease) -> Result<(), Error> {
        let done = lease.indexes(State::Completed);
        if done.is_empty() {
            return Ok(());
        }
        let ids = done.iter().map(|n| lease.messages[*n].message_id);
        let settled = Ack::messages(lease.id, ids).run(&self.worker.session).await?;
        self.worker.answered();
        if settled.settled != 0 || settled.already != done.len() as i32 || settled.lease_released {
            let text = format!("repeating {done:?} of {lease:?} gave {settled:?}");
            self.worker.anomalies.push(text);
        }
        self.worker.count("acks repeated", 1);
        Ok(())
    }
}

/// What to do to a lease in one transaction.
#[derive(Clone, Copy)]
enum Step {
    All,
    Some,
    GiveBack(&'static str),
    Mixed,
    Repeat,
}

/// The number that a producer wrote into the payload.
fn uid_of(row: &Message) -> Option<Uid> {
    row.payload.get("uid")?.as_u64()?.try_into().ok()
}
