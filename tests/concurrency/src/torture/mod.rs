//! The commit-order torture: producers and consumers do everything that a broker must survive, and
//! a checker tests what must hold whatever they do.

mod checker;
mod conduct;
mod consumer;
mod history;
mod judge;
mod lease;
pub mod orders;
mod outside;
mod prefix;
mod producer;
mod worker;

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Result, ensure};
use tokio_postgres::config::Config as Target;

use self::worker::Shared;

/// The settings of a run.
#[derive(Clone, Debug)]
pub struct Config {
    pub seed: u64,
    /// How long producers push.
    pub run_for: Duration,
    /// How long the consumers may take after that to complete everything.
    pub drain_for: Duration,
    pub producers: u32,
    /// Producers that push under a row lock of the application.
    pub lockers: u32,
    /// How many rows they lock.
    pub locks: u32,
    /// Consumers, in two groups.
    pub consumers: u32,
    /// Consumers of one more group, which pop everything with auto_ack as soon as it is there.
    pub eager: u32,
    /// Groups that register shortly before the end of the run, one after the other.
    pub latecomers: u32,
    /// Partitions, in two queues.
    pub streams: u32,
    /// The time of leases that are not meant to expire.
    pub lease: Duration,
    /// The longest pause of a producer between two transactions, in milliseconds.
    pub pause: f64,
    /// How often the backend of a random worker is terminated.
    pub kill_every: Option<Duration>,
    /// The groups are without order.
    pub unordered: bool,
    /// The server may crash during the run.
    pub crashes: bool,
    /// Report progress on stderr.
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
            latecomers: 30,
            streams: 10,
            lease: Duration::from_secs(20),
            pause: 30.0,
            kill_every: None,
            unordered: false,
            crashes: false,
            chatty: false,
        }
    }
}

impl Config {
    /// Whether workers outlive their connections.
    pub fn survives(&self) -> bool {
        self.kill_every.is_some() || self.crashes
    }
}

/// The result of a run.
#[derive(Debug)]
pub struct Report {
    pub seed: u64,
    /// How often each event happened.
    pub stats: BTreeMap<&'static str, u64>,
    /// Promises that were broken.
    pub violations: Vec<String>,
}

impl Report {
    pub fn stat(&self, name: &str) -> u64 {
        self.stats.get(name).copied().unwrap_or(0)
    }

    /// Return an error if any promise was broken.
    pub fn clean(&self) -> Result<()> {
        let count = self.violations.len();
        ensure!(count == 0, "{count} violations, see the report");
        Ok(())
    }
}

/// How many violations of one kind are printed in full.
const SHOWN: usize = 3;

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

/// Run the torture in a database that has the extension and nothing else.
pub async fn torture(config: Config, target: &Target) -> Result<Report> {
    conduct::set_up(&config, target).await?;
    let shared = Arc::new(Shared::new(config, target.clone()));
    let played = conduct::play(&shared).await?;
    let started = Instant::now();
    let (mut report, history) = judge::judge(&shared, played);
    report.stats.insert("milliseconds to judge", started.elapsed().as_millis() as u64);
    judge::look_inside(target, &mut report).await?;
    outside::look(&shared, &history, &mut report).await?;
    Ok(report)
}
