//! The commit-order torture: producers and consumers that do everything a broker must survive,
//! and a checker that knows what must hold whatever they did.

mod checker;
mod consumer;
mod history;
mod lease;
mod producer;
mod worker;

use std::collections::{BTreeMap, HashMap};
use std::fmt;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use rand::SeedableRng;
use rand::rngs::StdRng;
use rand::seq::IndexedRandom;
use tokio::task::JoinSet;
use tokio::time::sleep;
use tokio_postgres::config::Config as Target;

use self::checker::{Violation, check};
use self::consumer::{Consumer, Manners};
use self::history::{Group, GroupId, History, Uid};
use self::producer::{LOCKERS, Producer};
use self::worker::{APPLICATION, Left, QUEUES, Shared, Worker};
use crate::{Session, eventually};

/// What to run.
#[derive(Clone, Debug)]
pub struct Config {
    pub seed: u64,
    /// How long producers push.
    pub run_for: Duration,
    /// How long after that everything may take to be consumed.
    pub drain_for: Duration,
    pub producers: u32,
    /// Producers under a row lock of the application.
    pub lockers: u32,
    /// Rows they lock.
    pub locks: u32,
    /// In two groups.
    pub consumers: u32,
    /// In one more group, which takes everything without a lease as soon as it is there.
    pub eager: u32,
    /// Partitions, over two queues.
    pub streams: u32,
    /// Leases that are not meant to expire.
    pub lease: Duration,
    /// Producers rest up to so many milliseconds between transactions.
    pub pause: f64,
    /// End the backend of a random worker this often.
    pub kill_every: Option<Duration>,
    /// The server may crash meanwhile.
    pub crashes: bool,
    /// Tell on stderr how far it is.
    pub chatty: bool,
}

impl Default for Config {
    fn default() -> Self {
        Self {
            seed: rand::random(),
            run_for: Duration::from_secs(20),
            drain_for: Duration::from_secs(60),
            producers: 12,
            lockers: 4,
            locks: 3,
            consumers: 8,
            eager: 2,
            streams: 10,
            lease: Duration::from_secs(20),
            pause: 30.0,
            kill_every: None,
            crashes: false,
            chatty: false,
        }
    }
}

impl Config {
    /// Workers outlive their connections.
    pub fn survives(&self) -> bool {
        self.kill_every.is_some() || self.crashes
    }
}

/// What came of it.
#[derive(Debug)]
pub struct Report {
    pub seed: u64,
    /// How often everything happened.
    pub stats: BTreeMap<&'static str, u64>,
    /// Promises that were broken.
    pub violations: Vec<String>,
}

impl Report {
    pub fn stat(&self, name: &str) -> u64 {
        self.stats.get(name).copied().unwrap_or(0)
    }

    /// An error if anything was wrong.
    pub fn clean(&self) -> Result<()> {
        let count = self.violations.len();
        ensure!(count == 0, "{count} violations, see the report");
        Ok(())
    }
}

/// Violations of one kind beyond these are counted only.
const SHOWN: usize = 3;

/// When nothing more is completed for so long, nothing more will come.
const STALLED: Duration = Duration::from_secs(10);

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "torture with seed {}", self.seed)?;
        for (name, n) in &self.stats {
            writeln!(f, "{n:>10} {name}")?;
        }
        writeln!(f, "{:>10} violations", self.violations.len())?;
        let mut kinds: BTreeMap<&str, Vec<&str>> = BTreeMap::new();
        for violation in &self.violations {
            let (kind, text) = violation.split_once(": ").unwrap_or(("", violation));
            kinds.entry(kind).or_default().push(text);
        }
        for (kind, texts) in kinds {
            writeln!(f, "{:>10} {kind}, such as", texts.len())?;
            for text in texts.iter().take(SHOWN) {
                writeln!(f, "{:>14} {text}", "-")?;
            }
        }
        Ok(())
    }
}

/// The groups by number: two that are tortured, one that stays at the end of the log, one that
/// registers in the middle, and queue mode, which reads everything once more in the end.
const GROUPS: [Option<&str>; 5] = [Some("alpha"), Some("beta"), Some("eager"), Some("late"), None];
const EAGER: GroupId = 2;
const LATE: GroupId = 3;
const REPLAY: GroupId = 4;

/// Run it in a database that has the extension and nothing else.
pub async fn torture(config: Config, target: &Target) -> Result<Report> {
    set_up(&config, target).await?;
    let shared = Arc::new(Shared::new(config, target.clone()));
    let config = &shared.config;

    let mut producers = JoinSet::new();
    for number in 0..config.producers {
        let worker = Worker::start(shared.clone(), u64::from(number)).await?;
        producers.spawn(Producer::new(worker, number).run());
    }
    for number in LOCKERS..LOCKERS + config.lockers {
        let worker = Worker::start(shared.clone(), u64::from(number)).await?;
        producers.spawn(Producer::new(worker, number).run());
    }
    let mut consumers = JoinSet::new();
    for number in 0..config.consumers {
        let worker = Worker::start(shared.clone(), 2000 + u64::from(number)).await?;
        let group = number % 2;
        let name = GROUPS[group as usize];
        consumers.spawn(Consumer::new(worker, group, name, Manners::Rough).run());
    }
    for number in 0..config.eager {
        let worker = Worker::start(shared.clone(), 2900 + u64::from(number)).await?;
        let name = GROUPS[EAGER as usize];
        consumers.spawn(Consumer::new(worker, EAGER, name, Manners::Eager).run());
    }
    let killer = config.kill_every.map(|every| tokio::spawn(kill(shared.clone(), every)));
    let observer = config.chatty.then(|| tokio::spawn(observe(shared.clone())));

    let mut lefts = Vec::new();
    let registered = conduct(&shared, &mut producers, &mut consumers, &mut lefts).await;
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
    let (registered, drained) = registered?;

    lefts.push(replay(&shared).await?);
    let started = Instant::now();
    let mut report = judge(&shared, registered, lefts);
    report.stats.insert("milliseconds to drain", drained.as_millis() as u64);
    report.stats.insert("milliseconds to judge", started.elapsed().as_millis() as u64);
    report.stats.insert("backends ended", kills);
    look_inside(target, &mut report).await?;
    Ok(report)
}

async fn set_up(config: &Config, target: &Target) -> Result<()> {
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
        // One group is registered before the queue exists, by a pop; the other by name, after.
        admin
            .query("SELECT * FROM queen_pop($1, consumer_group => 'beta')", &[&queue])
            .await
            .context("registering a group")?;
        admin
            .query("SELECT queen_configure($1, retry_limit => 100000)", &[&queue])
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

type Running = JoinSet<Result<Worker>>;

/// Let it run, then drain. Gives the stamps around the registration of the late group, and how
/// long the drain took.
async fn conduct(
    shared: &Arc<Shared>,
    producers: &mut Running,
    consumers: &mut Running,
    lefts: &mut Vec<Left>,
) -> Result<((u64, u64), Duration)> {
    let config = &shared.config;
    let middle = config.run_for.mul_f64(0.4);
    watch(consumers, middle.saturating_sub(shared.started.elapsed())).await?;
    let registered = register_late(shared).await?;
    let worker = Worker::start(shared.clone(), 3000).await?;
    consumers.spawn(Consumer::new(worker, LATE, GROUPS[LATE as usize], Manners::Gentle).run());

    watch(consumers, config.run_for.saturating_sub(shared.started.elapsed())).await?;
    shared.stop.store(true, Ordering::Relaxed);
    while let Some(worker) = producers.join_next().await {
        lefts.push(worker??.finish());
    }
    shared.draining.store(true, Ordering::Relaxed);
    let started = Instant::now();
    let mut seen = (0, Instant::now());
    while shared.backlog() > 0 && started.elapsed() < config.drain_for && seen.1.elapsed() < STALLED
    {
        watch(consumers, Duration::from_millis(20)).await?;
        let completed = shared.completed.iter().map(|n| n.load(Ordering::Relaxed)).sum();
        if completed != seen.0 {
            seen = (completed, Instant::now());
        }
    }
    // What is missing now is found, and named, by the checker. The late group is alone and
    // leaves nothing behind: it has all once pops stay empty.
    let drained = started.elapsed();
    let quiet = if config.survives() { config.lease.mul_f64(1.5) } else { config.lease / 20 };
    let mut seen = (0, Instant::now());
    while seen.1.elapsed() < quiet && started.elapsed() < config.drain_for {
        watch(consumers, Duration::from_millis(20)).await?;
        let completed = shared.completed[LATE as usize].load(Ordering::Relaxed);
        if completed != seen.0 {
            seen = (completed, Instant::now());
        }
    }
    Ok((registered, drained))
}

/// Wait, unless a worker fails meanwhile.
async fn watch(workers: &mut Running, time: Duration) -> Result<()> {
    tokio::select! {
        () = sleep(time) => Ok(()),
        Some(ended) = workers.join_next() => {
            ended??;
            anyhow::bail!("a consumer ended early")
        }
    }
}

async fn register_late(shared: &Arc<Shared>) -> Result<(u64, u64)> {
    let before = shared.clock.tick();
    for queue in QUEUES {
        // After a crash or a kill the registration may or may not have been made.
        eventually("registration", Duration::from_secs(60), async || {
            let registered = async {
                let session = Session::open(&shared.target).await?;
                let sql = "SELECT queen_subscribe($1, 'late', mode => 'new')";
                session.query(sql, &[&queue]).await
            };
            match registered.await {
                Ok(_) => Ok(Some(())),
                Err(_) if shared.config.survives() => Ok(None),
                Err(error) => Err(error.into()),
            }
        })
        .await?;
    }
    Ok((before, shared.clock.tick()))
}

/// Read everything once more, in queue mode, from the oldest message.
async fn replay(shared: &Arc<Shared>) -> Result<Left> {
    let expected = shared.pushed.load(Ordering::Relaxed);
    let worker = Worker::start(shared.clone(), 4000).await?;
    let mut reader = Consumer::new(worker, REPLAY, None, Manners::Greedy);
    let completed = &shared.completed[REPLAY as usize];
    let mut progress = Instant::now();
    let mut empty = 0;
    while empty < 10 && progress.elapsed() < STALLED {
        let before = completed.load(Ordering::Relaxed);
        let came = reader.step().await?;
        if came > 0 {
            progress = Instant::now();
        }
        let idle = came == 0 && completed.load(Ordering::Relaxed) == before;
        // More than expected would come now, less until nothing has come for long.
        empty = if idle && before >= expected { empty + 1 } else { 0 };
    }
    Ok(reader.worker.finish())
}

/// End the backends of random workers, until everything is finished.
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
            shared.completed.iter().map(|n| n.load(Ordering::Relaxed)).collect();
        eprintln!(
            "{:>5} s: {} pushed, completed by group: {completed:?}",
            shared.started.elapsed().as_secs(),
            shared.pushed.load(Ordering::Relaxed),
        );
    }
}

/// Put the logs together and check them.
fn judge(shared: &Shared, registered: (u64, u64), lefts: Vec<Left>) -> Report {
    let groups = GROUPS.iter().zip(0..).map(|(name, number)| Group {
        name: name.unwrap_or("(queue mode)").into(),
        registered: (number == LATE).then_some(registered),
    });
    let mut history =
        History { groups: groups.collect(), gaps: shared.config.survives(), ..History::default() };
    let mut stats = BTreeMap::new();
    let mut violations = Vec::new();
    for left in lefts {
        history.append(left.log);
        for (name, n) in left.stats {
            *stats.entry(name).or_default() += n;
        }
        violations.extend(left.anomalies.into_iter().map(|text| format!("Anomaly: {text}")));
    }
    violations.extend(check(&history).iter().map(Violation::to_string));
    stats.insert("messages pushed", shared.pushed.load(Ordering::Relaxed));
    for (name, group) in [
        ("completed by alpha", 0),
        ("completed by beta", 1),
        ("completed by eager", EAGER),
        ("completed by late", LATE),
    ] {
        stats.insert(name, shared.completed[group as usize].load(Ordering::Relaxed));
    }
    stats.insert("messages overtaken by later ones", overtaken(&history));
    Report { seed: shared.config.seed, stats, violations }
}

/// Messages that came to a group after ones with larger ids in their stream: they committed late.
fn overtaken(history: &History) -> u64 {
    let mut deliveries: Vec<_> = history.deliveries.iter().collect();
    deliveries.sort_unstable_by_key(|one| (one.returned, one.at));
    let mut largest: HashMap<(GroupId, u32), i64> = HashMap::new();
    let mut first: HashMap<(GroupId, Uid), ()> = HashMap::new();
    let mut count = 0;
    for one in deliveries {
        if first.insert((one.group, one.uid), ()).is_some() {
            continue;
        }
        let largest = largest.entry((one.group, one.stream)).or_insert(i64::MIN);
        count += u64::from(one.message_id < *largest);
        *largest = one.message_id.max(*largest);
    }
    count
}

/// What the database itself says in the end.
async fn look_inside(target: &Target, report: &mut Report) -> Result<()> {
    let admin = Session::open(target).await?;
    let sql =
        "SELECT grp, uid, count(*) FROM torture_effects GROUP BY grp, uid HAVING count(*) > 1";
    for row in admin.query(sql, &[]).await? {
        let (group, uid, n): (i32, i64, i64) = (row.get(0), row.get(1), row.get(2));
        report.violations.push(format!("Effect: message {uid} took effect {n} times in {group}"));
    }
    let effects = admin.count("SELECT count(*) FROM torture_effects").await? as u64;
    let names = ["completed by alpha", "completed by beta", "completed by late", "messages pushed"];
    let completed: u64 = names.iter().map(|name| report.stat(name)).sum();
    if effects + report.stat("effects not recorded") != completed {
        let text = format!("Effect: {effects} effects of {completed} completions");
        report.violations.push(text);
    }
    if admin.count("SELECT count(*) FROM queen_dead_letters").await? != 0 {
        report.violations.push("Dead letters: there are some".into());
    }
    let groups = admin.count("SELECT count(to_regclass('queen_groups'))").await?;
    if groups == 0 {
        return Ok(());
    }
    let sql = "SELECT queue, coalesce(consumer_group, '(queue mode)'), pending::bigint, \
               in_flight::bigint FROM queen_groups WHERE pending <> 0 OR in_flight <> 0";
    for row in admin.query(sql, &[]).await? {
        let (queue, group): (String, String) = (row.get(0), row.get(1));
        let (pending, in_flight): (i64, i64) = (row.get(2), row.get(3));
        let text = format!("queen_groups: {queue}, {group}: {pending} pending, {in_flight} leased");
        report.violations.push(text);
    }
    Ok(())
}
