//! A short run of the commit-order torture.

use std::env;
use std::time::Duration;

use anyhow::{Result, ensure};
use queen_tests::TestDb;
use queen_tests::torture::{Config, torture};

/// How often each event must have happened at least; otherwise the run proves nothing.
const LEAST: [(&str, u64); 19] = [
    ("messages pushed", 1000),
    ("messages overtaken by later ones", 100),
    ("transactions committed", 150),
    ("transactions rolled back", 25),
    ("transactions under lock committed", 60),
    ("transactions under lock rolled back", 5),
    ("transactions of one push", 40),
    ("commits a second late", 3),
    ("pushes undone", 120),
    ("duplicates", 25),
    ("completed by late", 400),
    ("pops rolled back", 40),
    ("pops undone", 30),
    ("pops completed in one transaction", 60),
    ("leases expired", 10),
    ("acks rolled back", 20),
    ("failed", 20),
    ("retries", 15),
    ("settled as a set", 20),
];

#[tokio::test(flavor = "multi_thread")]
async fn no_message_is_lost_doubled_invented_or_swapped() -> Result<()> {
    no_message_is_lost(false).await
}

#[tokio::test(flavor = "multi_thread")]
async fn without_order_no_message_is_lost_doubled_or_invented() -> Result<()> {
    no_message_is_lost(true).await
}

async fn no_message_is_lost(unordered: bool) -> Result<()> {
    let seconds = env::var("QUEEN_TEST_TORTURE_SECONDS").map_or(Ok(20), |text| text.parse())?;
    let run_for = Duration::from_secs(seconds);
    let config = Config { run_for, unordered, ..Config::default() };
    let db = TestDb::alone().await?;
    let report = torture(config, db.config()).await?;
    println!("{report}");
    report.clean()?;
    for (what, least) in LEAST {
        ensure!(report.stat(what) >= least, "too few: {what}\n{report}");
    }
    Ok(())
}
