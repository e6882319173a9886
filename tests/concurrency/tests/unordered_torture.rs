//! Everything at once on one partition of a queue without order: each committed message is
//! completed exactly once.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use queen_tests::expect::sqlstate;
use queen_tests::unordered::{pop, swept_claims};
use queen_tests::{Ack, Message, Push, PushBatch, Session, TestDb, eventually, n, numbers, settle};
use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};
use serde_json::{Value, json};
use tokio::task::JoinSet;
use tokio::time::sleep;
use tokio_postgres::Error;

const PRODUCERS: i64 = 4;
const CONSUMERS: u64 = 8;
/// Transactions per producer.
const ROUNDS: i64 = 150;
/// The deadline of the whole test.
const DEADLINE: Duration = Duration::from_secs(20);

/// Push, and return the numbers that were committed.
async fn produce(session: Session, producer: i64) -> Result<Vec<i64>> {
    let mut rng = StdRng::seed_from_u64(producer.unsigned_abs());
    let mut committed = Vec::new();
    let mut next = producer * 1_000_000;
    for _ in 0..ROUNDS {
        let pushed: Vec<i64> = (next..next + rng.random_range(1..=8)).collect();
        next += pushed.len() as i64;
        session.run("BEGIN").await?;
        if rng.random_bool(0.5) {
            PushBatch::new("q", pushed.iter().copied().map(n).collect()).run(&session).await?;
        } else {
            for number in &pushed {
                Push::new("q", n(*number)).run(&session).await?;
            }
        }
        // Some transactions commit late.
        if rng.random_bool(0.2) {
            sleep(Duration::from_millis(rng.random_range(5..60))).await;
        }
        if rng.random_bool(0.15) {
            session.run("ROLLBACK").await?;
        } else {
            session.run("COMMIT").await?;
            committed.extend(pushed);
        }
    }
    Ok(committed)
}

#[derive(Default)]
struct Seen {
    /// The numbers and attempts of all committed deliveries.
    delivered: Vec<(i64, i32)>,
    /// The numbers of messages whose completion was committed.
    completed: Vec<i64>,
    /// Late acks, conflicts and rollbacks.
    refused: u64,
    conflicts: u64,
    undone: u64,
}

impl Seen {
    fn add(&mut self, other: Self) {
        self.delivered.extend(other.delivered);
        self.completed.extend(other.completed);
        self.refused += other.refused;
        self.conflicts += other.conflicts;
        self.undone += other.undone;
    }
}

impl fmt::Display for Seen {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { delivered, refused, conflicts, undone, .. } = self;
        let deliveries = delivered.len();
        write!(
            f,
            "{deliveries} deliveries, {refused} late acks, {conflicts} conflicts, \
                {undone} rollbacks"
        )
    }
}

struct RoughConsumer {
    session: Session,
    rng: StdRng,
    /// The statement that begins a transaction, if there is one.
    begin: &'static str,
    seen: Seen,
}

/// What the consumer does with the messages of a pop.
#[derive(Clone, Copy, PartialEq)]
enum Plan {
    CompleteAll,
    Mixed,
    OneByOne,
    GiveBack(&'static str),
    /// Let the lease run out, and ack nevertheless.
    TooLate,
    Abandon,
}

impl RoughConsumer {
    fn plan(&mut self) -> Plan {
        match self.rng.random_range(0..100) {
            0..45 => Plan::CompleteAll,
            45..60 => Plan::Mixed,
            60..75 => Plan::OneByOne,
            75..82 => Plan::GiveBack("failed"),
            82..88 => Plan::GiveBack("retry"),
            88..94 => Plan::TooLate,
            _ => Plan::Abandon,
        }
    }

    fn status(&mut self) -> &'static str {
        ["completed", "completed", "failed", "retry"][self.rng.random_range(0..4)]
    }

    /// Pop once, and settle.
    async fn step(&mut self) -> Result<()> {
        let plan = self.plan();
        let is_open = self.rng.random_bool(0.5);
        if is_open {
            self.session.run(self.begin).await?;
            if self.rng.random_bool(0.1) {
                self.undo_to_savepoint().await?;
            }
        }
        let is_short = matches!(plan, Plan::TooLate | Plan::Abandon);
        let batch = self.rng.random_range(1..=8);
        let lease = if is_short { "20 ms" } else { "30 s" };
        let came = match pop().batch(batch).lease(lease).run(&self.session).await {
            Ok(came) => came,
            Err(error) => return self.refuse(error, is_open).await,
        };
        let mut completed = Vec::new();
        if let Err(error) = self.settle(&came, plan, &mut completed).await {
            self.refuse(error, is_open).await?;
            if is_open {
                return Ok(());
            }
        } else if is_open && self.rng.random_bool(0.2) {
            self.seen.undone += 1;
            return Ok(self.session.run("ROLLBACK").await?);
        } else if is_open {
            self.session.run("COMMIT").await?;
        }
        let attempts = came.iter().map(|one| one.delivery_attempt);
        self.seen.delivered.extend(numbers(&came).into_iter().zip(attempts));
        self.seen.completed.extend(completed);
        if came.is_empty() {
            sleep(Duration::from_millis(2)).await;
        }
        Ok(())
    }

    /// Pop and ack after a savepoint, and roll back to it.
    async fn undo_to_savepoint(&mut self) -> Result<()> {
        self.session.run("SAVEPOINT s").await?;
        let mut nothing = Vec::new();
        let done = match pop().batch(3).run(&self.session).await {
            Ok(came) => self.settle(&came, Plan::CompleteAll, &mut nothing).await,
            Err(error) => Err(error),
        };
        if let Err(error) = done {
            ensure!(sqlstate(&error) == Some("40001"), "{error:?}");
        }
        Ok(self.session.run("ROLLBACK TO SAVEPOINT s").await?)
    }

    async fn settle(
        &mut self,
        came: &[Message],
        plan: Plan,
        completed: &mut Vec<i64>,
    ) -> Result<(), Error> {
        let Some(lease) = came.first().and_then(|one| one.lease_id) else { return Ok(()) };
        match plan {
            Plan::Abandon => {}
            Plan::CompleteAll | Plan::TooLate => {
                if plan == Plan::TooLate {
                    sleep(Duration::from_millis(self.rng.random_range(0..40))).await;
                }
                Ack::all(lease).run(&self.session).await?;
                completed.extend(numbers(came));
            }
            Plan::GiveBack(status) => {
                Ack::all(lease).status(status).run(&self.session).await?;
            }
            Plan::Mixed => {
                let results: Vec<Value> = came
                    .iter()
                    .map(|one| json!({ "messageId": one.message_id, "status": self.status() }))
                    .collect();
                let outcomes = settle(&self.session, lease, &Value::Array(results)).await?;
                let done = |one: &&Message| {
                    let mut of_it = outcomes.iter().filter(|row| row.message_id == one.message_id);
                    of_it.any(|row| row.outcome == "completed")
                };
                completed
                    .extend(came.iter().filter(done).flat_map(|one| one.payload["n"].as_i64()));
            }
            Plan::OneByOne => {
                for one in came {
                    let status = self.status();
                    let ack = Ack::messages(lease, [one.message_id]).status(status);
                    ack.run(&self.session).await?;
                    if status == "completed" {
                        completed.extend(one.payload["n"].as_i64());
                    }
                }
            }
        }
        Ok(())
    }

    /// Accept an error that may happen: the lease was over, or the snapshot too old.
    async fn refuse(&mut self, error: Error, is_open: bool) -> Result<()> {
        match sqlstate(&error) {
            Some("QN001" | "QN002") => self.seen.refused += 1,
            Some("40001") if is_open && self.begin.contains("REPEATABLE") => {
                self.seen.conflicts += 1;
            }
            _ => return Err(error).context("no statement of a torture may raise this"),
        }
        if is_open {
            self.session.run("ROLLBACK").await?;
        }
        Ok(())
    }
}

/// Make a queue without order, whose failed messages come back soon, and a group that gets
/// everything.
async fn prepare(session: &Session) -> Result<()> {
    session
        .run(
            "SELECT queen_configure('q', ordering => 'none', retry_limit => 100000,
                                    retry_delay => '3 ms')",
        )
        .await?;
    Ok(session.run("SELECT queen_subscribe('q', 'g', 'all')").await?)
}

async fn keep_sweeping(session: Session, began: Instant, is_over: Arc<AtomicBool>) -> Result<()> {
    while !is_over.load(Ordering::SeqCst) && began.elapsed() < DEADLINE {
        session.run("SELECT queen_sweep(1000)").await?;
        sleep(Duration::from_millis(20)).await;
    }
    Ok(())
}

/// Check that each committed delivery was counted, and no other one.
fn check_attempts(delivered: Vec<(i64, i32)>) -> Result<()> {
    let mut attempts: BTreeMap<i64, Vec<i32>> = BTreeMap::new();
    for (number, attempt) in delivered {
        attempts.entry(number).or_default().push(attempt);
    }
    for (number, mut attempts) in attempts {
        attempts.sort_unstable();
        let counted = (1..).zip(&attempts).all(|(wanted, attempt)| wanted == *attempt);
        ensure!(counted, "message {number} was delivered as {attempts:?}");
    }
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn every_committed_message_is_completed_exactly_once() -> Result<()> {
    let db = TestDb::alone().await?;
    let watcher = db.session().await?;
    prepare(&watcher).await?;
    let began = Instant::now();
    let is_over = Arc::new(AtomicBool::new(false));
    let mut producers: JoinSet<Result<Vec<i64>>> = JoinSet::new();
    for producer in 0..PRODUCERS {
        producers.spawn(produce(db.session().await?, producer));
    }
    let mut consumers: JoinSet<Result<Seen>> = JoinSet::new();
    for number in 0..CONSUMERS {
        let begin = match number {
            0 | 1 => "BEGIN ISOLATION LEVEL REPEATABLE READ; SELECT count(*) FROM pg_class",
            _ => "BEGIN",
        };
        let (session, rng) = (db.session().await?, StdRng::seed_from_u64(1000 + number));
        let mut consumer = RoughConsumer { session, rng, begin, seen: Seen::default() };
        let is_over = is_over.clone();
        consumers.spawn(async move {
            while !is_over.load(Ordering::SeqCst) && began.elapsed() < DEADLINE {
                consumer.step().await.with_context(|| format!("consumer {number}"))?;
            }
            Ok(consumer.seen)
        });
    }
    let sweeper = tokio::spawn(keep_sweeping(db.session().await?, began, is_over.clone()));

    let mut expected = Vec::new();
    while let Some(committed) = producers.join_next().await {
        expected.extend(committed??);
    }
    let sql = "SELECT pending FROM queen_groups WHERE consumer_group = 'g'";
    let drained =
        eventually("end of the work", DEADLINE.saturating_sub(began.elapsed()), async || {
            Ok((watcher.count(sql).await? == 0).then_some(()))
        })
        .await;
    let left = watcher.count(sql).await?;
    is_over.store(true, Ordering::SeqCst);
    sweeper.await??;
    let mut all = Seen::default();
    while let Some(seen) = consumers.join_next().await {
        all.add(seen??);
    }
    println!("{} messages in {:?}: {all}", expected.len(), began.elapsed());
    expected.sort_unstable();
    all.completed.sort_unstable();
    let twice: Vec<_> = all.completed.windows(2).filter(|two| two[0] == two[1]).collect();
    ensure!(twice.is_empty(), "completed twice: {twice:?}");
    drained.with_context(|| format!("{left} of {} are pending", expected.len()))?;
    let missing: Vec<_> =
        expected.iter().filter(|one| all.completed.binary_search(one).is_err()).collect();
    ensure!(missing.is_empty(), "never completed, and not pending: {missing:?}");
    assert_eq!(all.completed, expected);
    check_attempts(all.delivered)?;
    assert!(all.refused > 0 && all.undone > 0, "too little happened");
    assert_eq!(pop().batch(100).run(&watcher).await?, []);
    swept_claims(&watcher).await?;
    assert_eq!(watcher.count(sql).await?, 0);
    assert_eq!(pop().batch(100).run(&watcher).await?, []);
    Ok(())
}
