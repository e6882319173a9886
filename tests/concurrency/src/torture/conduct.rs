//! The course of a run: when producers, consumers and late groups start, when backends are killed,
//! and how the run ends.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use rand::SeedableRng;
use rand::rngs::StdRng;
use rand::seq::IndexedRandom;
use tokio::task::JoinSet;
use tokio::time::sleep;
use tokio_postgres::config::Config as Target;

use super::Config;
use super::consumer::{Consumer, Manners};
use super::history::{Group, GroupId};
use super::producer::{LOCKERS, Producer};
use super::worker::{APPLICATION, Left, QUEUES, Shared, Worker};
use crate::{Session, eventually};

/// The groups by number: two that are tortured, one that stays at the end of the log, one that
/// registers in the middle of the run, and queue mode, which reads everything once more at the end.
/// Latecomers follow.
pub const GROUPS: [Option<&str>; 5] =
    [Some("alpha"), Some("beta"), Some("eager"), Some("late"), None];
pub const EAGER: GroupId = 2;
pub const LATE: GroupId = 3;
const REPLAY: GroupId = 4;

/// When nothing has been completed for so long, nothing more will come.
const STALLED: Duration = Duration::from_secs(10);

/// Latecomers register after this part of the run, so that they have little to read.
const LATECOMERS_FROM: f64 = 0.85;

pub async fn set_up(config: &Config, target: &Target) -> Result<()> {
    let admin = Session::open(target).await?;
    admin
        .run(
            "CREATE TABLE torture_effects (grp int NOT NULL, uid bigint NOT NULL);
             CREATE TABLE torture_commits (tx bigint PRIMARY KEY);
             CREATE TABLE torture_orders (id int PRIMARY KEY, place bigint NOT NULL);",
        )
        .await?;
    let orders = "INSERT INTO torture_orders SELECT n, 0 FROM generate_series(0, $1::int - 1) n";
    admin.execute(orders, &[&(config.locks as i32)]).await?;
    for queue in QUEUES {
        // One group is registered by a pop, before the queue exists; the other one by name, after
        // it.
        admin
            .query("SELECT * FROM queen_pop($1, consumer_group => 'beta')", &[&queue])
            .await
            .context("registering a group")?;
        let ordering = if config.unordered { "none" } else { "partition" };
        admin
            .query(
                "SELECT queen_configure($1, retry_limit => 100000, ordering => $2)",
                &[&queue, &ordering],
            )
            .await
            .context("configuring")?;
        for group in ["alpha", "eager"] {
            admin
                .query("SELECT queen_subscribe($1, $2, mode => 'all')", &[&queue, &group])
                .await
                .context("subscribing")?;
        }
    }
    let side = QUEUES[1];
    let sql = "SELECT queen_configure($1, retry_delay => '20 milliseconds')";
    admin.query(sql, &[&side]).await?;
    Ok(())
}

/// What is left of a run.
pub struct Played {
    pub groups: Vec<Group>,
    pub lefts: Vec<Left>,
    pub kills: u64,
    /// How long it took to consume everything.
    pub drained: Duration,
}

type Running = JoinSet<Result<Worker>>;

/// Run the torture, drain the queues, and read everything once more.
pub async fn play(shared: &Arc<Shared>) -> Result<Played> {
    let config = &shared.config;
    let mut producers = JoinSet::new();
    for number in (0..config.producers).chain(LOCKERS..LOCKERS + config.lockers) {
        let worker = Worker::start(shared.clone(), u64::from(number)).await?;
        producers.spawn(Producer::new(worker, number).run());
    }
    let mut consumers = JoinSet::new();
    for number in 0..config.consumers {
        consume(shared, &mut consumers, number, number % 2, Manners::Rough).await?;
    }
    for number in config.consumers..config.consumers + config.eager {
        consume(shared, &mut consumers, number, EAGER, Manners::Eager).await?;
    }
    let killer = config.kill_every.map(|every| tokio::spawn(kill(shared.clone(), every)));
    let observer = config.chatty.then(|| tokio::spawn(observe(shared.clone())));

    let mut lefts = Vec::new();
    let conducted = conduct(shared, &mut producers, &mut consumers, &mut lefts).await;
    shared.stop.store(true, Ordering::Relaxed);
    shared.finished.store(true, Ordering::Relaxed);
    if let Some(observer) = observer {
        observer.abort();
    }
    let kills = match killer {
        Some(killer) => killer.await??,
        None => 0,
    };
    while let Some(worker) = consumers.join_next().await {
        lefts.push(worker??.finish());
    }
    let (mut groups, drained) = conducted?;
    groups.insert(REPLAY as usize, Group { name: "(queue mode)".into(), registered: None });
    lefts.push(read_all(shared, &groups).await?);
    Ok(Played { groups, lefts, kills, drained })
}

async fn consume(
    shared: &Arc<Shared>,
    consumers: &mut Running,
    number: u32,
    group: GroupId,
    manners: Manners,
) -> Result<()> {
    let worker = Worker::start(shared.clone(), 2000 + u64::from(number)).await?;
    let name = GROUPS[group as usize];
    consumers.spawn(Consumer::new(worker, group, name, manners).run());
    Ok(())
}

/// Run the torture, then drain the queues. Returns all groups except queue mode, and how long the
/// drain took.
async fn conduct(
    shared: &Arc<Shared>,
    producers: &mut Running,
    consumers: &mut Running,
    lefts: &mut Vec<Left>,
) -> Result<(Vec<Group>, Duration)> {
    let config = &shared.config;
    let until = |part: f64| config.run_for.mul_f64(part).saturating_sub(shared.started.elapsed());
    let early = GROUPS[..LATE as usize].iter().flatten();
    let mut groups: Vec<Group> =
        early.map(|name| Group { name: (*name).into(), registered: None }).collect();
    watch(consumers, until(0.4)).await?;
    groups.push(register(shared, "late").await?);
    consume(shared, consumers, 900, LATE, Manners::Gentle).await?;
    for number in 0..config.latecomers {
        let part = f64::from(number) / f64::from(config.latecomers);
        watch(consumers, until(LATECOMERS_FROM + part * (1.0 - LATECOMERS_FROM))).await?;
        groups.push(register(shared, &format!("latecomer {number}")).await?);
    }
    watch(consumers, until(1.0)).await?;

    shared.stop.store(true, Ordering::Relaxed);
    while let Some(worker) = producers.join_next().await {
        lefts.push(worker??.finish());
    }
    shared.draining.store(true, Ordering::Relaxed);
    let started = Instant::now();
    // The checker finds and names what is missing in the end.
    quiet(shared, consumers, STALLED, || shared.backlog() == 0).await?;
    let drained = started.elapsed();
    // The late group is alone and leaves no lease behind: when its pops stay empty, it has
    // everything.
    let patience = if config.survives() { config.lease.mul_f64(1.5) } else { config.lease / 20 };
    quiet(shared, consumers, patience, || false).await?;
    Ok((groups, drained))
}

/// Wait until `done`, or until nothing has been completed for this time.
async fn quiet(
    shared: &Shared,
    consumers: &mut Running,
    patience: Duration,
    done: impl Fn() -> bool,
) -> Result<()> {
    let started = Instant::now();
    let mut seen = (0, started);
    while !done() && seen.1.elapsed() < patience && started.elapsed() < shared.config.drain_for {
        watch(consumers, Duration::from_millis(20)).await?;
        let completed: u64 = shared.completed.iter().map(|n| n.load(Ordering::Relaxed)).sum();
        if completed != seen.0 {
            seen = (completed, Instant::now());
        }
    }
    Ok(())
}

/// Wait, but return early when a worker fails.
async fn watch(workers: &mut Running, time: Duration) -> Result<()> {
    tokio::select! {
        () = sleep(time) => Ok(()),
        Some(ended) = workers.join_next() => {
            ended??;
            bail!("a consumer ended early")
        }
    }
}

/// Register a group for both queues, for what commits from now on.
async fn register(shared: &Arc<Shared>, name: &str) -> Result<Group> {
    let before = shared.clock.tick();
    // After a crash it is unknown whether the registrations were made.
    eventually("registration", Duration::from_secs(60), async || {
        let registered = async {
            let session = Session::open(&shared.target).await?;
            for queue in QUEUES {
                let sql = "SELECT queen_subscribe($1, $2, mode => 'new')";
                session.query(sql, &[&queue, &name]).await?;
            }
            Ok::<_, tokio_postgres::Error>(())
        };
        match registered.await {
            Ok(()) => Ok(Some(())),
            Err(_) if shared.config.survives() => Ok(None),
            Err(error) => Err(error.into()),
        }
    })
    .await?;
    Ok(Group { name: name.into(), registered: Some((before, shared.clock.tick())) })
}

/// Read everything once more in queue mode, from the oldest message, and let the latecomers read
/// what there is for them.
async fn read_all(shared: &Arc<Shared>, groups: &[Group]) -> Result<Left> {
    let expected = shared.pushed.load(Ordering::Relaxed);
    let mut worker = Worker::start(shared.clone(), 4000).await?;
    for (group, about) in groups.iter().enumerate().skip(REPLAY as usize) {
        let replays = group == REPLAY as usize;
        let name = (!replays).then_some(about.name.as_str());
        let mut reader = Consumer::new(worker, group as GroupId, name, Manners::Greedy);
        let mut progress = Instant::now();
        loop {
            if reader.step().await? > 0 {
                progress = Instant::now();
            }
            let completed = shared.completed[group].load(Ordering::Relaxed);
            let enough = !replays || completed >= expected;
            if reader.finds_nothing() && (enough || progress.elapsed() > STALLED) {
                break;
            }
        }
        worker = reader.worker;
    }
    Ok(worker.finish())
}

/// Terminate the backends of random workers until everything is finished.
async fn kill(shared: Arc<Shared>, every: Duration) -> Result<u64> {
    let mut rng = StdRng::seed_from_u64(shared.config.seed);
    let admin = Session::open(&shared.target).await?;
    let mut kills = 0;
    while !shared.draining.load(Ordering::Relaxed) && !shared.finished.load(Ordering::Relaxed) {
        sleep(every).await;
        let pids = admin
            .query("SELECT pid FROM pg_stat_activity WHERE application_name = $1", &[&APPLICATION])
            .await?;
        let Some(row) = pids.choose(&mut rng) else { continue };
        let pid: i32 = row.get(0);
        admin.query("SELECT pg_terminate_backend($1)", &[&pid]).await?;
        kills += 1;
    }
    Ok(kills)
}

async fn observe(shared: Arc<Shared>) {
    loop {
        sleep(Duration::from_secs(5)).await;
        let completed: Vec<u64> =
            shared.completed[..4].iter().map(|n| n.load(Ordering::Relaxed)).collect();
        eprintln!(
            "{:>5} s: {} pushed, completed by group: {completed:?}",
            shared.started.elapsed().as_secs(),
            shared.pushed.load(Ordering::Relaxed),
        );
    }
}
