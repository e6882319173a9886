//! A closed loop: so many sessions, each of which makes one step after the other.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use hdrhistogram::Histogram;
use tokio::sync::Barrier;
use tokio::task::JoinSet;

use crate::db::{Db, Session};
use crate::job::{Held, Job, Turn};
use crate::payload::Payloads;

/// Steps that every session makes before the clock runs, so that plans are made and caches are
/// warm.
const WARM_UP: u64 = 2;
/// Latencies are counted in microseconds, to three digits, up to a minute.
const LONGEST_US: u64 = 60_000_000;

#[derive(Clone, Copy, Debug)]
pub struct Load {
    pub sessions: usize,
    pub duration: Duration,
    /// Ends the run early, when so many messages are done.
    pub messages: Option<u64>,
}

pub type Latencies = Histogram<u64>;

pub fn latencies() -> Result<Latencies> {
    Ok(Histogram::new_with_max(LONGEST_US, 3)?)
}

pub fn record(latencies: &mut Latencies, latency: Duration) {
    latencies.saturating_record(u64::try_from(latency.as_micros()).unwrap_or(LONGEST_US).max(1));
}

pub struct Measured {
    pub messages: u64,
    pub seconds: f64,
    pub latencies: Latencies,
    /// For every step that did something: when it ended, and how many messages it handled.
    pub ends: Vec<(Duration, u64)>,
}

impl Measured {
    pub fn rate(&self) -> f64 {
        self.messages as f64 / self.seconds
    }
}

/// What one session shares with the others of its run.
struct Shared {
    job: Job,
    payloads: Arc<Payloads>,
    load: Load,
    barrier: Barrier,
    done: AtomicU64,
}

pub async fn run(db: &Db, job: &Job, load: Load, payloads: &Arc<Payloads>) -> Result<Measured> {
    let shared = Arc::new(Shared {
        job: job.clone(),
        payloads: payloads.clone(),
        load,
        barrier: Barrier::new(load.sessions),
        done: AtomicU64::new(0),
    });
    let mut tasks = JoinSet::new();
    for (worker, session) in db.sessions(load.sessions).await?.into_iter().enumerate() {
        tasks.spawn(work(shared.clone(), session, worker as u64));
    }
    let mut all = Measured { messages: 0, seconds: 0.0, latencies: latencies()?, ends: Vec::new() };
    while let Some(measured) = tasks.join_next().await {
        let one = measured?.with_context(|| format!("{job:?}"))?;
        all.messages += one.messages;
        all.seconds = all.seconds.max(one.seconds);
        all.latencies.add(&one.latencies)?;
        all.ends.extend(one.ends);
    }
    Ok(all)
}

async fn work(shared: Arc<Shared>, session: Arc<Session>, worker: u64) -> Result<Measured> {
    let mut held = Held::default();
    let warm = warm_up(&shared, &session, worker, &mut held).await;
    // Every session must come here, or the others would wait for ever.
    shared.barrier.wait().await;
    warm?;
    let mut own = Measured { messages: 0, seconds: 0.0, latencies: latencies()?, ends: Vec::new() };
    let start = Instant::now();
    let mut step = WARM_UP;
    while start.elapsed() < shared.load.duration && !shared.enough() {
        let began = Instant::now();
        let turn = Turn { worker, step };
        let messages = shared.job.step(&session, &shared.payloads, turn, &mut held).await?;
        step += 1;
        if messages > 0 {
            record(&mut own.latencies, began.elapsed());
            own.messages += messages;
            own.seconds = start.elapsed().as_secs_f64();
            own.ends.push((start.elapsed(), messages));
            shared.done.fetch_add(messages, Ordering::Relaxed);
        }
    }
    Ok(own)
}

async fn warm_up(shared: &Shared, session: &Session, worker: u64, held: &mut Held) -> Result<()> {
    for step in 0..WARM_UP {
        let turn = Turn { worker, step };
        let messages = shared.job.step(session, &shared.payloads, turn, held).await?;
        // They come out of the backlog, though they are not measured.
        shared.done.fetch_add(messages, Ordering::Relaxed);
    }
    Ok(())
}

impl Shared {
    fn enough(&self) -> bool {
        self.load.messages.is_some_and(|limit| self.done.load(Ordering::Relaxed) >= limit)
    }
}
