//! graphile-worker as a contender: a queue in PostgreSQL whose jobs a worker in Node does. Jobs are
//! added by its SQL function; its own worker, `bench/contender/graphile.js`, does them.

use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use serde::Deserialize;
use serde_json::json;
use tokio_postgres::config::{Config, Host};

use crate::load::{self, Measured};
use crate::payload::Size;

/// The batch of its page about performance.
pub const BATCH: usize = 500;

/// Where graphile-worker is installed, with the program that runs it.
#[derive(Clone, Debug)]
pub struct Graphile {
    directory: PathBuf,
}

/// One measurement.
#[derive(Clone, Copy)]
pub struct WorkerRun {
    /// Each session adds jobs, too; otherwise the worker works off what is there.
    pub cycle: bool,
    /// As many jobs are fetched at once; settled in batches, too, if it is more than one.
    pub batch: usize,
    pub sessions: usize,
    pub duration: Duration,
    pub size: Size,
}

/// What the program prints. Latencies are in microseconds.
#[derive(Deserialize)]
struct Printed {
    messages: u64,
    seconds: f64,
    latencies: Vec<u64>,
}

impl Graphile {
    pub fn new(directory: PathBuf) -> Self {
        Self { directory }
    }

    /// Creates its schema in this database.
    pub async fn install(&self, database: &Config) -> Result<()> {
        self.node(database, &["install"]).await.map(drop)
    }

    pub async fn measure(&self, database: &Config, task: WorkerRun) -> Result<Measured> {
        let options = json!({
            "sessions": task.sessions,
            "seconds": task.duration.as_secs_f64(),
            "bytes": task.size.bytes(),
            "batch": task.batch,
        });
        let mode = if task.cycle { "cycle" } else { "consume" };
        let printed = self.node(database, &[mode, &options.to_string()]).await?;
        let last = printed.lines().last().unwrap_or_default();
        let printed: Printed = serde_json::from_str(last).with_context(|| last.to_owned())?;
        let mut latencies = load::latencies()?;
        for micros in printed.latencies {
            load::record(&mut latencies, Duration::from_micros(micros));
        }
        let Printed { messages, seconds, .. } = printed;
        Ok(Measured { messages, seconds, latencies, ends: Vec::new() })
    }

    async fn node(&self, database: &Config, arguments: &[&str]) -> Result<String> {
        let mut command = Command::new("node");
        command.arg("graphile.js").args(arguments).current_dir(&self.directory);
        command.envs(environment(database)).env("NO_LOG_SUCCESS", "1").stderr(Stdio::inherit());
        let output = tokio::task::spawn_blocking(move || command.output()).await?;
        let output = output.context("running node")?;
        ensure!(output.status.success(), "graphile.js {arguments:?}: {}", output.status);
        Ok(String::from_utf8(output.stdout)?)
    }
}

/// The server as the variables that Node's driver reads.
fn environment(database: &Config) -> Vec<(&'static str, String)> {
    let mut variables = Vec::new();
    match database.get_hosts().first() {
        Some(Host::Unix(path)) => variables.push(("PGHOST", path.display().to_string())),
        Some(Host::Tcp(name)) => variables.push(("PGHOST", name.clone())),
        None => {}
    }
    let port = database.get_ports().first().map(ToString::to_string);
    let user = database.get_user().map(str::to_owned);
    let password = database.get_password().map(|it| String::from_utf8_lossy(it).into_owned());
    let name = database.get_dbname().map(str::to_owned);
    let rest = [("PGPORT", port), ("PGUSER", user), ("PGPASSWORD", password), ("PGDATABASE", name)];
    variables.extend(rest.into_iter().filter_map(|(name, value)| Some((name, value?))));
    variables
}
