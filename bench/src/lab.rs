//! What every scenario works with, and the contest that most scenarios are.

use std::sync::Arc;
use std::time::Duration;

use anyhow::{Result, bail};
use indicatif::ProgressBar;

use crate::db::{Db, Server};
use crate::fill::{self, Backlog};
use crate::graphile::{Graphile, WorkerRun};
use crate::job::{self, Action, Job, System};
use crate::load::{self, Latencies, Load, Measured};
use crate::outcome::Sample;
use crate::payload::{Payloads, Size};
use crate::scale::Scale;
use crate::standby::Standby;

pub struct Lab {
    pub server: Server,
    pub payloads: Arc<Payloads>,
    pub scale: Scale,
    pub standby: Option<Standby>,
    /// One more contender, where it is installed.
    pub graphile: Option<Graphile>,
    pub progress: ProgressBar,
}

/// One of the systems that are measured in turns.
#[derive(Clone, Debug)]
pub struct Contender {
    pub label: String,
    pub system: System,
    pub action: Action,
    pub size: Size,
    pub partitions: u64,
    pub sessions: usize,
    pub backlog: Option<Backlog>,
    /// The queue is one of queen_mq without order.
    pub unordered: bool,
    /// SQL that each session runs before its turn; `RESET ALL` follows it.
    pub setting: &'static str,
}

impl Contender {
    /// Pushes `batch` messages per transaction, each time to another partition.
    pub fn pushes(system: System, batch: usize, partitions: u64, sessions: usize) -> Self {
        Self {
            label: system.label().to_owned(),
            system,
            action: Action::Push { batch },
            size: Size::Small,
            partitions,
            sessions,
            backlog: None,
            unordered: false,
            setting: "",
        }
    }

    /// Pops and settles `batch` messages at a time from a backlog.
    pub fn consumes(system: System, batch: i32, sessions: usize, backlog: Backlog) -> Self {
        Self {
            label: system.label().to_owned(),
            system,
            action: Action::Consume { batch },
            size: Size::Small,
            partitions: backlog.partitions,
            sessions,
            backlog: Some(backlog),
            unordered: false,
            setting: "",
        }
    }

    pub fn labelled(mut self, label: impl Into<String>) -> Self {
        self.label = label.into();
        self
    }

    pub fn of_size(mut self, size: Size) -> Self {
        self.size = size;
        self
    }

    pub fn doing(mut self, action: Action) -> Self {
        self.action = action;
        self
    }

    pub fn with(mut self, setting: &'static str) -> Self {
        self.setting = setting;
        self
    }

    /// Uses a queue with `ordering => 'none'`.
    pub fn unordered(mut self) -> Self {
        self.unordered = true;
        self
    }

    pub fn job(&self, queue: String) -> Job {
        Job {
            system: self.system,
            queue,
            action: self.action,
            size: self.size,
            partitions: self.partitions,
        }
    }
}

/// The rounds of one contender so far.
struct Tally {
    rates: Vec<f64>,
    latencies: Latencies,
}

impl Lab {
    /// Measures A B A B: in each round every contender gets its turn, with a new queue.
    pub async fn contest(&self, db: &Db, contenders: &[Contender]) -> Result<Vec<Sample>> {
        let mut tallies = Vec::with_capacity(contenders.len());
        for _ in contenders {
            tallies.push(Tally { rates: Vec::new(), latencies: load::latencies()? });
        }
        for round in 0..self.scale.rounds {
            for (n, (contender, tally)) in contenders.iter().zip(&mut tallies).enumerate() {
                let measured = self.turn(db, contender, &format!("q{n}_{round}")).await?;
                tally.rates.push(measured.rate());
                tally.latencies.add(&measured.latencies)?;
            }
        }
        let samples = contenders.iter().zip(tallies);
        Ok(samples.map(|(c, t)| Sample::of_rates(&c.label, t.rates, &t.latencies)).collect())
    }

    /// Measures one contender once, on a new queue.
    pub async fn turn(&self, db: &Db, contender: &Contender, queue: &str) -> Result<Measured> {
        self.progress.set_message(contender.label.clone());
        self.fresh(db, contender, queue).await?;
        self.measure(db, contender, queue, self.scale.duration).await
    }

    /// Creates the queue of a contender and pushes its backlog.
    pub async fn fresh(&self, db: &Db, contender: &Contender, queue: &str) -> Result<()> {
        if let Some(session) = db.sessions(1).await?.first() {
            contender.system.create(session, queue).await?;
            if contender.unordered {
                job::without_order(session, queue).await?;
            }
        }
        if let Some(backlog) = contender.backlog {
            let (system, size) = (contender.system, contender.size);
            fill::fill(db, system, queue, backlog, &self.payloads, size).await?;
        }
        Ok(())
    }

    pub async fn measure(
        &self,
        db: &Db,
        contender: &Contender,
        queue: &str,
        duration: Duration,
    ) -> Result<Measured> {
        if let (System::Graphile, Some(graphile)) = (contender.system, &self.graphile) {
            let Contender { sessions, size, .. } = *contender;
            let (cycle, batch) = match contender.action {
                Action::Cycle { batch } => (true, batch),
                Action::Consume { batch } => (false, usize::try_from(batch)?),
                action => bail!("graphile-worker can't do {action:?}"),
            };
            let task = WorkerRun { cycle, batch, sessions, duration, size };
            return graphile.measure(db.config(), task).await;
        }
        // A cycle pushes what it pops. Every other action stops when the backlog is used up.
        let messages = match contender.action {
            Action::Cycle { .. } => None,
            _ => contender.backlog.map(|backlog| backlog.messages),
        };
        let load = Load { sessions: contender.sessions, duration, messages };
        if !contender.setting.is_empty() {
            set(db, contender.sessions, contender.setting).await?;
        }
        let measured = load::run(db, &contender.job(queue.to_owned()), load, &self.payloads).await;
        if !contender.setting.is_empty() {
            set(db, contender.sessions, "RESET ALL").await?;
        }
        measured
    }
}

async fn set(db: &Db, sessions: usize, sql: &str) -> Result<()> {
    for session in db.sessions(sessions).await? {
        session.batch_execute(sql).await?;
    }
    Ok(())
}
