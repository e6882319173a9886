//! The torture of effects: orders are pushed, and charged in the transactions that settle them,
//! while the server is killed, promoted, out of disk space, or its clock is set. What the clients
//! were told is compared with what the database holds.

mod audit;
mod clerk;
mod crashes;
mod customer;
mod failover;
mod full;
mod ledger;
mod pester;

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use tokio::task::JoinSet;
use tokio::time::sleep;
use tokio_postgres::Error;
use tokio_postgres::config::Config as Target;

pub use self::crashes::with_crashes;
pub use self::failover::with_promotions;
pub use self::full::{SmallFor, with_a_full_disk};
use self::ledger::Ledger;
use super::Report;
use crate::Session;
use crate::expect::sqlstate;

/// The queues, and their ordering. The group is `billing`.
const QUEUES: [(&str, &str); 2] = [("orders", "partition"), ("parcels", "none")];
const GROUP: &str = "billing";
/// The application_name of the clients.
const APPLICATION: &str = "queen_orders";
/// How long a server may need to come back.
const COME_BACK: Duration = Duration::from_secs(120);
/// How long everything that was pushed may take to be charged at the end.
const DRAIN: Duration = Duration::from_secs(120);
/// How many orders and charges make a test of it.
const SOME: usize = 20;

/// Settings of the servers. The worker serves all databases, and has much to do. Processes end, the
/// machine does not: what is written stays, so nothing need be flushed to a disk.
const SETTINGS: &str = "
fsync = off
queen_mq.databases = ''
queen_mq.sweep_interval = '200ms'
autovacuum_naptime = 1s
max_wal_senders = 10
wal_keep_size = 512MB
restart_after_crash = on
";

/// What happens in a run.
#[derive(Clone, Debug)]
pub struct Season {
    /// Who push orders, half of them into each queue.
    pub customers: u32,
    /// Who charge them.
    pub clerks: u32,
    /// Partitions of each queue.
    pub partitions: u32,
    /// How often the server is killed, or a standby promoted.
    pub times: u32,
    /// How long the clients work between two of these.
    pub between: Duration,
    /// The standby is synchronous.
    pub synchronous: bool,
    /// Report progress on stderr.
    pub chatty: bool,
}

impl Default for Season {
    fn default() -> Self {
        Self {
            customers: 4,
            clerks: 8,
            partitions: 6,
            times: 2,
            between: Duration::from_millis(1500),
            synchronous: true,
            chatty: false,
        }
    }
}

/// What the clients share.
struct Shop {
    season: Season,
    started: Instant,
    /// Where the primary is, and how many promotions there were before.
    primary: Mutex<(Target, usize)>,
    ledger: Mutex<Ledger>,
    /// Customers are to stop.
    closing: AtomicBool,
    /// Clerks are to stop.
    closed: AtomicBool,
    next_receipt: AtomicU64,
    /// Held while the clock is set, and while a server is started: pg_ctl compares two moments.
    clock: tokio::sync::Mutex<()>,
}

impl Shop {
    fn new(season: Season, target: Target) -> Arc<Self> {
        Arc::new(Self {
            season,
            started: Instant::now(),
            primary: Mutex::new((target, 0)),
            ledger: Mutex::default(),
            closing: AtomicBool::new(false),
            closed: AtomicBool::new(false),
            next_receipt: AtomicU64::new(1),
            clock: tokio::sync::Mutex::default(),
        })
    }

    fn ledger(&self) -> MutexGuard<'_, Ledger> {
        self.ledger.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn primary(&self) -> (Target, usize) {
        self.primary.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Send the clients to another server.
    fn move_to(&self, target: Target) {
        let mut primary = self.primary.lock().unwrap_or_else(PoisonError::into_inner);
        *primary = (target, primary.1 + 1);
    }

    fn receipt(&self) -> i64 {
        self.next_receipt.fetch_add(1, Ordering::Relaxed) as i64
    }

    fn count(&self, what: &'static str) {
        *self.ledger().stats.entry(what).or_default() += 1;
    }

    /// How many orders, and how many charges.
    fn acknowledged(&self) -> (usize, usize) {
        let ledger = self.ledger();
        (ledger.queued.len(), ledger.charged.len())
    }

    fn say(&self, text: &str) {
        if self.season.chatty {
            let ledger = self.ledger();
            eprintln!(
                "{:>5} s: {text}; {} orders, {} charges acknowledged, {} violations",
                self.started.elapsed().as_secs(),
                ledger.queued.len(),
                ledger.charged.len(),
                ledger.violations.len(),
            );
        }
    }
}

/// Make the queues, and the table of the application.
async fn set_up(target: &Target) -> Result<()> {
    let session = Session::open(target).await?;
    for (queue, ordering) in QUEUES {
        // Orders that a client repeats are known however the clock is set.
        let sql = "SELECT queen_configure($1, ordering => $2, lease_time => '2 seconds', \
                   retry_limit => 1000000, dedup_window => '30 days')";
        session.query(sql, &[&queue, &ordering]).await?;
        session.query("SELECT queen_subscribe($1, $2, mode => 'all')", &[&queue, &GROUP]).await?;
    }
    session
        .run(
            "CREATE TABLE charges (place bigserial, order_id text NOT NULL, queue text NOT NULL,
                 partition text NOT NULL, customer int NOT NULL, n bigint NOT NULL,
                 message_id bigint NOT NULL, receipt bigint NOT NULL);
             CREATE EXTENSION amcheck",
        )
        .await?;
    Ok(())
}

/// The clients of a shop.
struct Staff {
    customers: JoinSet<Result<()>>,
    clerks: JoinSet<Result<()>>,
}

impl Staff {
    fn hire(shop: &Arc<Shop>) -> Self {
        let (mut customers, mut clerks) = (JoinSet::new(), JoinSet::new());
        for number in 0..shop.season.customers {
            customers.spawn(customer::work(shop.clone(), number as i32));
        }
        for _ in 0..shop.season.clerks {
            clerks.spawn(clerk::work(shop.clone()));
        }
        Self { customers, clerks }
    }

    /// Wait, but return early when a client fails.
    async fn watch(&mut self, time: Duration) -> Result<()> {
        tokio::select! {
            () = sleep(time) => Ok(()),
            Some(ended) = self.customers.join_next() => ended?.context("a customer ended"),
            Some(ended) = self.clerks.join_next() => ended?.context("a clerk ended"),
        }
    }

    /// Let them work for this time, and on until some orders and charges more are acknowledged.
    async fn work(&mut self, shop: &Shop, time: Duration) -> Result<()> {
        let (began, before) = (Instant::now(), shop.acknowledged());
        self.watch(time).await?;
        while shop.acknowledged().0 < before.0 + SOME || shop.acknowledged().1 < before.1 + SOME {
            ensure!(began.elapsed() < COME_BACK, "nothing is pushed and charged any more");
            self.watch(Duration::from_millis(20)).await?;
        }
        Ok(())
    }

    /// Let the customers stop, the clerks charge what there is, and the clerks stop.
    async fn finish(mut self, shop: &Shop) -> Result<()> {
        shop.closing.store(true, Ordering::Relaxed);
        while let Some(ended) = self.customers.join_next().await {
            ended??;
        }
        let began = Instant::now();
        let drained = audit::drained(shop).await;
        shop.closed.store(true, Ordering::Relaxed);
        while let Some(ended) = self.clerks.join_next().await {
            ended??;
        }
        let mut ledger = shop.ledger();
        ledger.stats.insert("milliseconds to drain", began.elapsed().as_millis() as u64);
        if let Err(error) = drained {
            ledger.violations.push(format!("Stuck: {error:#}"));
        }
        Ok(())
    }
}

fn report(shop: &Shop) -> Report {
    let mut ledger = shop.ledger();
    let (queued, charged) = (ledger.queued.len() as u64, ledger.charged.len() as u64);
    ledger.stats.insert("orders acknowledged", queued);
    ledger.stats.insert("charges acknowledged", charged);
    ledger.stats.insert("seconds", shop.started.elapsed().as_secs());
    Report { seed: 0, stats: ledger.stats.clone(), violations: ledger.violations.clone() }
}

/// A session of a client, which it opens again as often as it must.
struct Desk {
    session: Session,
    /// How many promotions there were before the server that it is connected to.
    epoch: usize,
}

impl Desk {
    async fn open(shop: &Shop) -> Result<Self> {
        let began = Instant::now();
        loop {
            let (mut target, epoch) = shop.primary();
            target.application_name(APPLICATION);
            match Session::open(&target).await {
                Ok(session) => return Ok(Self { session, epoch }),
                Err(error) => {
                    let late = began.elapsed() > COME_BACK;
                    ensure!(!late, "the server did not come back: {error:?}");
                }
            }
            sleep(Duration::from_millis(30)).await;
        }
    }

    /// How far the log of the server is written.
    async fn position(&self) -> Result<i64, Error> {
        let sql = "SELECT (pg_current_wal_insert_lsn() - '0/0')::bigint";
        Ok(self.session.row(sql, &[]).await?.get(0))
    }
}

/// What an error means for a client.
enum Excuse {
    /// The connection is gone, and it is unknown what became of a commit.
    Lost,
    /// Nothing has happened; try again.
    Again(&'static str),
    /// The lease is not valid any more.
    Fenced(&'static str),
    /// A marker of the order is there.
    Marked,
    /// No such error may come.
    None,
}

fn excuse(error: &Error) -> Excuse {
    match sqlstate(error) {
        None | Some("57P01" | "57P02" | "57P03" | "57P05" | "08006" | "08003" | "25006") => {
            Excuse::Lost
        }
        Some("57014") => Excuse::Again("cancelled or timed out"),
        Some("55P03") => Excuse::Again("lock timeouts"),
        Some("40001") => Excuse::Again("serialization failures"),
        Some("40P01") => Excuse::Again("deadlocks"),
        Some("53100") => Excuse::Again("disk full"),
        Some("QN001") => Excuse::Fenced("refused: lease_expired"),
        Some("QN002") => Excuse::Fenced("refused: lease_superseded"),
        Some("QN003") => Excuse::Fenced("refused: lease_unknown"),
        Some("QN010") => Excuse::Marked,
        Some(_) => Excuse::None,
    }
}
