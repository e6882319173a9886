//! Runs a torture: that of the order of commits as long as asked, `torture --seconds 600`; that of
//! effects with `--crashes 50`, `--promotions 10` or `--full-disks 5`, on servers of its own.

use std::time::Duration;

use anyhow::{Result, ensure};
use clap::Parser;
use queen_tests::TestDb;
use queen_tests::torture::orders::{self, Season, SmallFor};
use queen_tests::torture::{Config, Report, torture};

/// Torture a queen_mq in a database of its own on the server of QUEEN_TEST_URL.
#[derive(Parser)]
struct Arguments {
    /// How long producers push.
    #[arg(long, default_value_t = 60)]
    seconds: u64,
    /// Ordinary producers.
    #[arg(long, default_value_t = 12)]
    producers: u32,
    /// Producers that push under a row lock.
    #[arg(long, default_value_t = 4)]
    lockers: u32,
    /// Consumers, in two groups.
    #[arg(long, default_value_t = 8)]
    consumers: u32,
    /// Partitions, over two queues.
    #[arg(long, default_value_t = 10)]
    partitions: u32,
    /// The longest pause of a producer between two transactions, in milliseconds.
    #[arg(long, default_value_t = 30.0)]
    pause: f64,
    /// Terminate the backend of a random worker every so many milliseconds.
    #[arg(long)]
    kill_every: Option<u64>,
    /// Seed of the random generators. How the server schedules its backends stays random.
    #[arg(long)]
    seed: Option<u64>,
    /// Kill the server so often, while orders are charged.
    #[arg(long)]
    crashes: Option<u32>,
    /// Promote a standby so often, while orders are charged.
    #[arg(long)]
    promotions: Option<u32>,
    /// The standby that is promoted is asynchronous.
    #[arg(long)]
    asynchronous: bool,
    /// Fill the disk of the log, and then that of the tables, so often, while orders are charged.
    #[arg(long)]
    full_disks: Option<u32>,
    /// How long clients work between two crashes, promotions, or full disks, in milliseconds.
    #[arg(long, default_value_t = 3000)]
    between: u64,
}

#[tokio::main]
async fn main() -> Result<()> {
    let arguments = Arguments::parse();
    let effects = effects(&arguments).await?;
    if !effects.is_empty() {
        for report in &effects {
            println!("{report}");
        }
        return effects.iter().try_for_each(Report::clean);
    }
    let kill_every = arguments.kill_every.map(Duration::from_millis);
    let defaults = Config::default();
    let config = Config {
        seed: arguments.seed.unwrap_or(defaults.seed),
        run_for: Duration::from_secs(arguments.seconds),
        producers: arguments.producers,
        lockers: arguments.lockers,
        consumers: arguments.consumers,
        streams: arguments.partitions,
        pause: arguments.pause,
        lease: if kill_every.is_some() { Duration::from_secs(3) } else { defaults.lease },
        kill_every,
        chatty: true,
        ..defaults
    };
    let db = TestDb::alone().await?;
    let report = torture(config, db.config()).await?;
    println!("{report}");
    ensure!(report.violations.is_empty(), "the torture found violations");
    Ok(())
}

/// The tortures of effects that are asked for.
async fn effects(arguments: &Arguments) -> Result<Vec<Report>> {
    let between = Duration::from_millis(arguments.between);
    let synchronous = !arguments.asynchronous;
    let season = |times| Season { times, between, synchronous, chatty: true, ..Season::default() };
    let mut reports = Vec::new();
    if let Some(times) = arguments.crashes {
        reports.push(orders::with_crashes(season(times)).await?);
    }
    if let Some(times) = arguments.promotions {
        reports.push(orders::with_promotions(season(times)).await?);
    }
    if let Some(times) = arguments.full_disks {
        for place in [SmallFor::Log, SmallFor::Tables] {
            reports.extend(orders::with_a_full_disk(season(times), place).await?);
        }
    }
    Ok(reports)
}
