//! An old snapshot that stays open does not make consuming slower.

use std::env;
use std::time::{Duration, Instant};

use anyhow::{Result, ensure};
use queen_tests::{Ack, Pop, PushBatch, Session, TestDb, n};

/// A loaded machine may miss the mark by accident, an engine that slows down misses it each time.
const TRIES: usize = 3;

/// Messages waiting at all times.
const BACKLOG: i64 = 20_000;

/// Messages per push.
const CHUNK: i64 = 500;

const QUEUE: &str = "steady";

#[tokio::test(flavor = "multi_thread")]
async fn consuming_keeps_its_pace_beside_a_repeatable_read_snapshot() -> Result<()> {
    let seconds: u64 = env::var("QUEEN_TEST_RR_SECONDS").map_or(Ok(60), |text| text.parse())?;
    let mut seen = Vec::new();
    for _ in 0..TRIES {
        let (first, last) = pace(Duration::from_secs(seconds)).await?;
        println!("{first:.0} messages per second in the first third, {last:.0} in the last");
        if last >= 0.9 * first {
            return Ok(());
        }
        seen.push((first, last));
    }
    anyhow::bail!("messages per second in the first and the last third: {seen:.0?}")
}

/// Messages per second in the first and in the last third of this time, both beside a snapshot
/// that is as old as it.
async fn pace(time: Duration) -> Result<(f64, f64)> {
    let db = TestDb::alone().await?;
    let [ref consumer, ref producer, ref old] = db.sessions().await?;
    // Not the disk is to be measured.
    consumer.run("SET synchronous_commit = off").await?;
    producer.run("SET synchronous_commit = off").await?;
    // Short, so that the moments of leases long gone pile up in time, too.
    consumer.run(&format!("SELECT queen_configure('{QUEUE}', lease_time => '5 seconds')")).await?;
    let mut pushed = 0;
    let mut next = 0;
    while pushed < BACKLOG {
        pushed = push(producer, pushed).await?;
    }
    consume(consumer, &mut next, Duration::from_secs(2)).await?;

    old.run("BEGIN ISOLATION LEVEL REPEATABLE READ").await?;
    old.count("SELECT count(*) FROM pg_class").await?;
    let started = Instant::now();
    let mut thirds = Vec::new();
    for _ in 0..3 {
        // Steadily: each slice of time gets the pushes that keep the backlog as it was.
        let (from, begun) = (next, Instant::now());
        while begun.elapsed() < time / 3 {
            while pushed - next < BACKLOG {
                pushed = push(producer, pushed).await?;
            }
            consume(consumer, &mut next, Duration::from_millis(100)).await?;
        }
        thirds.push((next - from) as f64 / begun.elapsed().as_secs_f64());
    }
    ensure!(started.elapsed() >= time, "the snapshot was not that old");
    old.run("COMMIT").await?;
    Ok((thirds[0], thirds[2]))
}

async fn push(producer: &Session, pushed: i64) -> Result<i64> {
    let payloads = (pushed..pushed + CHUNK).map(n).collect();
    PushBatch::new(QUEUE, payloads).run(producer).await?;
    Ok(pushed + CHUNK)
}

/// Pop one message and complete it, again and again; they come in order.
async fn consume(consumer: &Session, next: &mut i64, time: Duration) -> Result<()> {
    let pop = Pop::new(QUEUE).group("g").mode("all");
    let started = Instant::now();
    while started.elapsed() < time {
        let message = pop.one(consumer).await?;
        ensure!(message.payload == n(*next), "expected {next}, got {message:?}");
        let settled = Ack::all(message.lease()?).run(consumer).await?;
        ensure!(settled.settled == 1, "completing {message:?} gave {settled:?}");
        *next += 1;
    }
    Ok(())
}
