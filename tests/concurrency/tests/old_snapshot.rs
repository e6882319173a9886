//! An old snapshot that stays open does not slow consumers down.

use std::env;
use std::time::{Duration, Instant};

use anyhow::{Result, ensure};
use queen_tests::{Ack, Pop, PushBatch, Session, TestDb, n};

/// A loaded machine may miss the limit by accident; an engine that slows down misses it every time.
const TRIES: usize = 2;

/// The smallest ratio of the last third's rate to the first third's.
const AT_LEAST: f64 = 0.9;

/// Messages that are pending at all times.
const BACKLOG: i64 = 20_000;

/// Messages per push.
const CHUNK: i64 = 500;

const QUEUE: &str = "steady";

#[tokio::test(flavor = "multi_thread")]
async fn consuming_keeps_its_pace_beside_a_repeatable_read_snapshot() -> Result<()> {
    let seconds: u64 = env::var("QUEEN_TEST_RR_SECONDS").map_or(Ok(60), |text| text.parse())?;
    let mut seen = Vec::new();
    for _ in 0..TRIES {
        let [first, _, last] = thirds(Duration::from_secs(seconds)).await?;
        println!("in the first third {first:.0?}, in the last {last:.0?}");
        let kept = last.messages / first.messages;
        // A machine that has become slower is no fault of the engine.
        let machine = (last.trifles / first.trifles).min(1.0);
        if kept >= AT_LEAST * machine {
            return Ok(());
        }
        seen.push((first, last));
    }
    anyhow::bail!("in the first and in the last third: {seen:.0?}")
}

/// The rates per second.
#[derive(Clone, Copy, Debug)]
struct Pace {
    messages: f64,
    /// Statements that do not use the extension: the rate of the machine.
    trifles: f64,
}

/// The rates in each third of this time, beside a snapshot that is taken at its start.
async fn thirds(time: Duration) -> Result<[Pace; 3]> {
    let db = TestDb::alone().await?;
    let [ref consumer, ref producer, ref old] = db.sessions().await?;
    // The disk is not to be measured.
    consumer.run("SET synchronous_commit = off").await?;
    producer.run("SET synchronous_commit = off").await?;
    let mut lane = Lane { consumer, producer, pushed: 0, next: 0 };
    lane.fill().await?;
    lane.third(Duration::from_secs(2)).await?;

    old.run("BEGIN ISOLATION LEVEL REPEATABLE READ").await?;
    old.count("SELECT count(*) FROM pg_class").await?;
    let started = Instant::now();
    let paces =
        [lane.third(time / 3).await?, lane.third(time / 3).await?, lane.third(time / 3).await?];
    ensure!(started.elapsed() >= time.mul_f64(0.99), "the snapshot was not that old");
    old.run("COMMIT").await?;
    Ok(paces)
}

/// A partition with its producer and its consumer.
struct Lane<'a> {
    consumer: &'a Session,
    producer: &'a Session,
    pushed: i64,
    next: i64,
}

impl Lane<'_> {
    /// Measure in small slices: push what keeps the backlog at its size, consume, and run trivial
    /// statements.
    async fn third(&mut self, time: Duration) -> Result<Pace> {
        let (from, begun) = (self.next, Instant::now());
        let (mut trifles, mut spent) = (0, Duration::ZERO);
        while begun.elapsed() < time {
            self.fill().await?;
            self.consume(Duration::from_millis(90)).await?;
            let slice = Instant::now();
            while slice.elapsed() < Duration::from_millis(10) {
                let sql = "SELECT count(*) FROM generate_series(1, 500)";
                self.consumer.row(sql, &[]).await?;
                trifles += 1;
            }
            spent += slice.elapsed();
        }
        Ok(Pace {
            messages: (self.next - from) as f64 / (begun.elapsed() - spent).as_secs_f64(),
            trifles: f64::from(trifles) / spent.as_secs_f64(),
        })
    }

    async fn fill(&mut self) -> Result<()> {
        while self.pushed - self.next < BACKLOG {
            let payloads = (self.pushed..self.pushed + CHUNK).map(n).collect();
            PushBatch::new(QUEUE, payloads).run(self.producer).await?;
            self.pushed += CHUNK;
        }
        Ok(())
    }

    /// Pop and complete one message after the other, and check that they come in order.
    async fn consume(&mut self, time: Duration) -> Result<()> {
        let pop = Pop::new(QUEUE).group("g").mode("all");
        let started = Instant::now();
        while started.elapsed() < time {
            let message = pop.one(self.consumer).await?;
            ensure!(message.payload == n(self.next), "expected {}, got {message:?}", self.next);
            let settled = Ack::all(message.lease()?).run(self.consumer).await?;
            ensure!(settled.settled == 1, "completing {message:?} gave {settled:?}");
            self.next += 1;
        }
        Ok(())
    }
}
