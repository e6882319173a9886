//! What producers and consumers have in common: a session, a random generator, a log, and
//! transactions whose end is recorded, also when it costs the connection.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};
use tokio::time::sleep;
use tokio_postgres::Error;
use tokio_postgres::config::Config as Target;

use super::Config;
use super::conduct::GROUPS;
use super::history::{Clock, History, Stamp, StreamId, Tx, TxId, Uid};
use crate::Session;
use crate::expect::sqlstate;

/// How long a server may need to come back after a crash.
const COME_BACK: Duration = Duration::from_secs(60);

/// The application_name of the workers' sessions.
pub const APPLICATION: &str = "queen_torture";

/// What all workers share.
pub struct Shared {
    pub config: Config,
    pub target: Target,
    pub started: Instant,
    pub clock: Clock,
    /// Producers are to stop.
    pub stop: AtomicBool,
    /// All producers have stopped: consumers only complete what is there.
    pub draining: AtomicBool,
    /// Everything is finished.
    pub finished: AtomicBool,
    /// Messages whose transactions committed.
    pub pushed: AtomicU64,
    /// For each group, messages completed by acks that committed.
    pub completed: Vec<AtomicU64>,
    next_tx: AtomicU32,
    next_uid: AtomicU32,
    next_pop: AtomicU32,
}

impl Shared {
    pub fn new(config: Config, target: Target) -> Self {
        let groups = GROUPS.len() + config.latecomers as usize;
        Self {
            config,
            target,
            started: Instant::now(),
            clock: Clock::default(),
            stop: AtomicBool::new(false),
            draining: AtomicBool::new(false),
            finished: AtomicBool::new(false),
            pushed: AtomicU64::new(0),
            completed: (0..groups).map(|_| AtomicU64::default()).collect(),
            next_tx: AtomicU32::new(1),
            next_uid: AtomicU32::new(1),
            next_pop: AtomicU32::new(1),
        }
    }

    /// How many streams exist by now: half of them from the beginning, the others from some moment
    /// in the first half of the run.
    pub fn streams(&self) -> u32 {
        let all = self.config.streams;
        let part = self.started.elapsed().as_secs_f64() / self.config.run_for.as_secs_f64();
        (all as f64 * (0.5 + part)).min(all as f64).max(1.0) as u32
    }

    /// How many messages the slowest group has not completed.
    pub fn backlog(&self) -> u64 {
        let completed = self.completed[..3].iter().map(|n| n.load(Ordering::Relaxed)).min();
        self.pushed.load(Ordering::Relaxed).saturating_sub(completed.unwrap_or(0))
    }

    pub fn pop_id(&self) -> u32 {
        self.next_pop.fetch_add(1, Ordering::Relaxed)
    }

    pub fn uid(&self) -> Uid {
        self.next_uid.fetch_add(1, Ordering::Relaxed)
    }
}

/// The queue and the partition of a stream. Three of four streams are in one queue.
pub fn stream_name(stream: StreamId) -> (&'static str, String) {
    (QUEUES[usize::from(stream % 4 == 3)], format!("p{stream}"))
}

/// The stream of a queue and a partition.
pub fn stream_of(queue: &str, partition: &str) -> Option<StreamId> {
    let stream = partition.strip_prefix('p')?.parse().ok()?;
    (stream_name(stream).0 == queue).then_some(stream)
}

/// The queues of a torture.
pub const QUEUES: [&str; 2] = ["torture", "torture side"];

/// What went wrong with a statement, by what the worker must do.
enum Trouble {
    /// The transaction was rolled back; begin another one.
    Conflict(&'static str),
    /// The connection was lost, too.
    Lost,
}

fn trouble(error: &Error) -> Option<Trouble> {
    match sqlstate(error) {
        None => Some(Trouble::Lost),
        Some("57P01" | "57P02" | "57P03" | "08006" | "08003") => Some(Trouble::Lost),
        Some("40001") => Some(Trouble::Conflict("serialization failures")),
        Some("40P01") => Some(Trouble::Conflict("deadlocks")),
        Some(_) => None,
    }
}

/// The transaction that is open.
struct Open {
    id: TxId,
    /// Set when COMMIT is sent.
    sent: Option<Stamp>,
    /// The transaction is a single statement; it only counts if that succeeds.
    single: bool,
}

pub struct Worker {
    pub shared: Arc<Shared>,
    pub session: Session,
    pub rng: StdRng,
    pub log: History,
    /// What the worker saw that is not in the history.
    pub anomalies: Vec<String>,
    pub stats: BTreeMap<&'static str, u64>,
    open: Option<Open>,
    /// Taken after the last answer. Whatever has failed since then took effect later.
    answered: Stamp,
}

/// What a worker leaves behind.
pub struct Left {
    pub log: History,
    pub anomalies: Vec<String>,
    pub stats: BTreeMap<&'static str, u64>,
}

impl Worker {
    pub async fn start(shared: Arc<Shared>, number: u64) -> Result<Self> {
        let session = first_connection(&shared).await?;
        let rng = StdRng::seed_from_u64(shared.config.seed.wrapping_mul(1009).wrapping_add(number));
        let answered = shared.clock.tick();
        let log = History { unordered: shared.config.unordered, ..History::default() };
        Ok(Self {
            shared,
            session,
            rng,
            log,
            anomalies: Vec::new(),
            stats: BTreeMap::new(),
            open: None,
            answered,
        })
    }

    pub fn finish(self) -> Left {
        Left { log: self.log, anomalies: self.anomalies, stats: self.stats }
    }

    pub fn tick(&self) -> Stamp {
        self.shared.clock.tick()
    }

    /// Note that a statement was answered.
    pub fn answered(&mut self) -> Stamp {
        self.answered = self.tick();
        self.answered
    }

    pub fn count(&mut self, what: &'static str, n: u64) {
        *self.stats.entry(what).or_default() += n;
    }

    /// True with this probability.
    pub fn chance(&mut self, probability: f64) -> bool {
        self.rng.random_bool(probability)
    }

    /// Sleep for a random time of at most so many milliseconds.
    pub async fn nap(&mut self, up_to: f64) {
        if up_to == 0.0 {
            return;
        }
        let millis = self.rng.random_range(0.0..=up_to);
        sleep(Duration::from_secs_f64(millis / 1000.0)).await;
    }

    /// Run statements inside the open transaction.
    pub async fn run(&mut self, sql: &str) -> Result<(), Error> {
        self.session.run(sql).await?;
        self.answered();
        Ok(())
    }

    /// Begin a transaction. Returns its number.
    pub async fn begin(&mut self, sql: &str) -> Result<TxId, Error> {
        let id = self.shared.next_tx.fetch_add(1, Ordering::Relaxed);
        self.open = Some(Open { id, sent: None, single: false });
        self.run(sql).await?;
        Ok(id)
    }

    /// Number a transaction that consists of the one statement that follows. [`Worker::end_single`]
    /// ends it.
    pub fn begin_single(&mut self) -> TxId {
        let id = self.shared.next_tx.fetch_add(1, Ordering::Relaxed);
        self.open = Some(Open { id, sent: Some(self.tick()), single: true });
        id
    }

    pub fn end_single(&mut self) {
        self.answered();
        self.ended(true);
    }

    pub async fn commit(&mut self) -> Result<(), Error> {
        let id = self.open.as_ref().map_or(0, |open| open.id);
        if self.shared.config.survives() {
            // After a lost connection, this row tells whether the commit took effect.
            let sql = "INSERT INTO torture_commits VALUES ($1)";
            self.session.rows(sql, &[&i64::from(id)]).await?;
            self.answered();
        }
        let now = self.tick();
        if let Some(open) = &mut self.open {
            open.sent = Some(now);
        }
        self.session.run("COMMIT").await?;
        self.answered();
        self.ended(true);
        Ok(())
    }

    pub async fn rollback(&mut self) -> Result<(), Error> {
        let now = self.tick();
        if let Some(open) = &mut self.open {
            open.sent = Some(now);
        }
        self.session.run("ROLLBACK").await?;
        self.answered();
        self.ended(false);
        Ok(())
    }

    /// Record the end of the open transaction.
    fn ended(&mut self, committed: bool) {
        if let Some(open) = self.open.take() {
            let sent = open.sent.unwrap_or(self.answered);
            self.log.txs.push(Tx { id: open.id, sent, done: self.tick(), committed });
        }
    }

    /// After an error, end the transaction, so that its end is known, and be ready for another one.
    /// True if it committed all the same. Errors that should never happen are returned.
    pub async fn recover(&mut self, error: Error) -> Result<bool> {
        match trouble(&error) {
            Some(Trouble::Conflict(name)) => {
                self.count(name, 1);
                self.abandon().await
            }
            Some(Trouble::Lost) if self.shared.config.survives() => {
                self.count("connections lost", 1);
                self.reconnect().await
            }
            Some(Trouble::Lost) => Err(error).context("the connection was lost"),
            None => Err(error).context("no statement of a torture may raise this"),
        }
    }

    /// Record that the server has ended the transaction, at the earliest after the last answer.
    pub async fn abandon(&mut self) -> Result<bool> {
        if let Some(open) = &mut self.open {
            open.sent = Some(self.answered);
            let single = open.single;
            self.ended(false);
            if !single && let Err(error) = self.session.run("ROLLBACK").await {
                return Box::pin(self.recover(error)).await;
            }
        }
        Ok(false)
    }

    async fn reconnect(&mut self) -> Result<bool> {
        let target = self.shared.target.clone();
        let pid = self.session.pid();
        let open = self.open.take();
        let id = open.as_ref().map_or(0, |open| i64::from(open.id));
        let started = Instant::now();
        let (session, committed) = loop {
            if let Some(found) = outcome(&target, pid, id).await {
                break found;
            }
            ensure!(started.elapsed() < COME_BACK, "the server did not come back");
            sleep(Duration::from_millis(20)).await;
        };
        self.session = session;
        self.open = open.map(|open| Open { sent: open.sent.or(Some(self.answered)), ..open });
        if !committed && let Some(open) = &mut self.open {
            // The backend may have been gone since its last answer.
            open.sent = Some(self.answered);
        }
        self.ended(committed);
        self.answered();
        Ok(committed)
    }
}

/// Connect for the first time. If crashes are part of the run, the server may be down.
async fn first_connection(shared: &Shared) -> Result<Session> {
    let started = Instant::now();
    loop {
        match connect(&shared.target).await {
            Ok(session) => return Ok(session),
            Err(_) if shared.config.survives() && started.elapsed() < COME_BACK => {
                sleep(Duration::from_millis(20)).await;
            }
            Err(error) => return Err(error).context("connecting"),
        }
    }
}

/// Open a new session, and find out whether the transaction of the lost backend committed. This is
/// known only when that backend is gone; None: not yet.
async fn outcome(target: &Target, pid: i32, tx: i64) -> Option<(Session, bool)> {
    let session = connect(target).await.ok()?;
    let row = session
        .row(
            "SELECT EXISTS (SELECT FROM pg_stat_activity WHERE pid = $1), \
             EXISTS (SELECT FROM torture_commits WHERE tx = $2)",
            &[&pid, &tx],
        )
        .await
        .ok()?;
    let (alive, committed): (bool, bool) = (row.get(0), row.get(1));
    (!alive).then_some((session, committed))
}

async fn connect(target: &Target) -> Result<Session, Error> {
    let mut target = target.clone();
    target.application_name(APPLICATION);
    Session::open(&target).await
}
