//! Load driver: queen_mq beside pgmq and a textbook `FOR UPDATE SKIP LOCKED` table.
//!
//! Every scenario gives all systems equal work: equal payloads, sessions and durability, and
//! prepared statements for all of them. The systems take turns. See `scripts/bench.sh`.

mod cpu;
mod db;
mod fill;
mod graphile;
mod job;
mod lab;
mod load;
mod outcome;
mod payload;
mod plot;
mod profile;
mod report;
mod scale;
mod scenarios;
mod standby;

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use clap::Parser;
use indicatif::{ProgressBar, ProgressStyle};

use crate::db::Server;
use crate::graphile::Graphile;
use crate::lab::Lab;
use crate::payload::Payloads;
use crate::report::Report;
use crate::scale::Scale;
use crate::standby::Standby;

#[derive(Parser)]
#[command(about = "Measures queen_mq beside pgmq and a FOR UPDATE SKIP LOCKED table")]
struct Options {
    /// Small sizes and short times: about 8 minutes instead of an hour
    #[arg(long)]
    quick: bool,
    /// Only these scenarios, by their numbers: 4,9
    #[arg(long, value_delimiter = ',', value_name = "NUMBERS")]
    only: Vec<u8>,
    /// Interleaved rounds of each scenario; the figures are their medians (5; with --quick 2)
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..))]
    rounds: Option<u16>,
    /// How long scenario 7 holds the snapshot
    #[arg(long, value_name = "SECONDS")]
    snapshot_seconds: Option<u64>,
    /// How long scenario 13 keeps its steady rate
    #[arg(long, value_name = "SECONDS")]
    steady_seconds: Option<u64>,
    /// Starts a standby of the server, for scenario 19, and stops it: called with start and stop
    #[arg(long, value_name = "PROGRAM")]
    standby: Option<PathBuf>,
    /// graphile-worker takes part in scenarios 4 and 16; this is where it is installed
    #[arg(long, value_name = "DIRECTORY")]
    contender: Option<PathBuf>,
    /// No scenarios: records where sessions spend their time, with perf, into this directory
    #[arg(long, value_name = "DIRECTORY", conflicts_with = "only")]
    profile: Option<PathBuf>,
    /// Superuser of a server that preloads queen_mq and allows 300 connections or more
    #[arg(long, env = "QUEEN_TEST_URL", hide_env_values = true)]
    url: String,
    /// Where results and plots go
    #[arg(long, default_value = "target/bench", value_name = "DIRECTORY")]
    out: PathBuf,
}

impl Options {
    fn scale(&self) -> Scale {
        let mut scale = if self.quick { Scale::quick() } else { Scale::full() };
        if let Some(rounds) = self.rounds {
            scale.rounds = rounds.into();
        }
        if let Some(seconds) = self.snapshot_seconds {
            scale.with_snapshot = Duration::from_secs(seconds);
        }
        if let Some(seconds) = self.steady_seconds {
            scale.steady = Duration::from_secs(seconds);
        }
        scale
    }

    fn scenarios(&self) -> Result<Vec<u8>> {
        let unknown = self.only.iter().find(|n| !scenarios::ALL.contains(n));
        ensure!(unknown.is_none(), "there is no scenario {}", unknown.unwrap_or(&0));
        Ok(scenarios::ALL
            .into_iter()
            .filter(|n| self.only.is_empty() || self.only.contains(n))
            .collect())
    }
}

#[tokio::main]
async fn main() -> Result<()> {
    let options = Options::parse();
    let numbers = options.scenarios()?;
    fs::create_dir_all(&options.out).with_context(|| options.out.display().to_string())?;
    let graphile = options.contender.clone().map(Graphile::new);
    let lab = Lab {
        server: Server::prepare(&options.url, graphile.as_ref()).await?,
        payloads: Arc::new(Payloads::generate()),
        scale: options.scale(),
        standby: options.standby.clone().map(Standby::new),
        graphile,
        progress: progress(numbers.len())?,
    };

    if let Some(directory) = &options.profile {
        fs::create_dir_all(directory).with_context(|| directory.display().to_string())?;
        profile::record(&lab, directory).await?;
        return lab.server.clean_up().await;
    }
    let report = run(&lab, &options, &numbers).await?;
    println!("\n{}", report.summary());
    println!("{}", report.goals());
    save(&options.out, &report)?;
    lab.server.clean_up().await
}

async fn run(lab: &Lab, options: &Options, numbers: &[u8]) -> Result<Report> {
    let began = Instant::now();
    let mut report = Report {
        started: chrono::Local::now().format("%Y%m%d-%H%M%S").to_string(),
        mode: if options.quick { "quick" } else { "full" },
        rounds: lab.scale.rounds,
        seconds: 0.0,
        cpus: std::thread::available_parallelism().map_or(1, Into::into),
        server: lab.server.facts().await?,
        outcomes: Vec::new(),
    };
    for number in numbers {
        lab.progress.set_prefix(format!("scenario {number}"));
        let outcome =
            scenarios::run(lab, *number).await.with_context(|| format!("scenario {number}"))?;
        lab.progress.suspend(|| print!("{}", report::details(&outcome)));
        lab.progress.inc(1);
        report.outcomes.push(outcome);
    }
    lab.progress.finish_and_clear();
    report.seconds = began.elapsed().as_secs_f64();
    Ok(report)
}

fn progress(scenarios: usize) -> Result<ProgressBar> {
    let bar = ProgressBar::new(scenarios as u64);
    bar.set_style(ProgressStyle::with_template(
        "{spinner} [{elapsed_precise}] {bar:20} {pos}/{len} {prefix}: {wide_msg}",
    )?);
    bar.enable_steady_tick(Duration::from_millis(200));
    Ok(bar)
}

/// Saves results and plots, with the time of the run in their names.
fn save(directory: &Path, report: &Report) -> Result<()> {
    let path = |suffix: &str| directory.join(format!("{}{suffix}", report.started));
    report.write(&path(".json"))?;
    report.write_goals(&path(".md"))?;
    plot::goals(&path(".svg"), &report.outcomes)?;
    for outcome in report.outcomes.iter().filter(|outcome| !outcome.lines.is_empty()) {
        plot::lines(&path(&format!("-{}.svg", outcome.number)), outcome)?;
    }
    println!("results and plots: {}*", path("").display());
    Ok(())
}
