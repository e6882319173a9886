//! The commit-order torture, short.

use std::env;
use std::time::Duration;

use anyhow::{Result, ensure};
use queen_tests::TestDb;
use queen_tests::torture::{Config, torture};

/// What must have happened at least so often, or the run proves nothing.
const LEAST: [(&str, u64); 19] = [
    ("messages pushed", 2000),
    ("messages overtaken by later ones", 10),
    ("transactions committed", 200),
    ("transactions rolled back", 40),
    ("transactions under lock committed", 100),
    ("transactions under lock rolled back", 10),
    ("transactions of one push", 40),
    ("commits a second late", 5),
    ("pushes undone", 100),
    ("duplicates", 20),
    ("completed by late", 500),
    ("pops rolled back", 20),
    ("pops undone", 10),
    ("pops completed in one transaction", 20),
    ("leases expired", 5),
    ("acks rolled back", 5),
    ("failed", 10),
    ("retries", 5),
    ("settled as a set", 10),
];

#[tokio::test(flavor = "multi_thread")]
async fn no_message_is_lost_doubled_invented_or_swapped() -> Result<()> {
    let seconds = env::var("QUEEN_TEST_TORTURE_SECONDS").map_or(Ok(20), |text| text.parse())?;
    let config = Config { run_for: Duration::from_secs(seconds), ..Config::default() };
    let db = TestDb::alone().await?;
    let report = torture(config, db.config()).await?;
    println!("{report}");
    report.clean()?;
    for (what, least) in LEAST {
        ensure!(report.stat(what) >= least, "too few: {what}\n{report}");
    }
    Ok(())
}
