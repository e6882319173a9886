//! A standby is promoted while orders are charged. The old primary goes on for a moment, and
//! clients ack at the new one what they popped at the old one.

use std::time::Duration;

use anyhow::{Result, ensure};
use queen_tests::torture::orders::{Season, with_promotions};

fn season(synchronous: bool) -> Season {
    let between = Duration::from_millis(400);
    Season { times: 1, between, synchronous, ..Season::default() }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_promotion_charges_each_order_once_and_refuses_leases_that_it_lacks() -> Result<()> {
    let report = with_promotions(season(true)).await?;
    println!("{report}");
    report.clean()?;
    for what in
        ["leases that were not replicated, refused", "leases that were replicated, accepted"]
    {
        ensure!(report.stat(what) > 0, "none: {what}\n{report}");
    }
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn a_promotion_of_an_asynchronous_standby_loses_the_tail_alone() -> Result<()> {
    let report = with_promotions(season(false)).await?;
    println!("{report}");
    report.clean()?;
    for what in ["orders lost with the tail", "charges lost with the tail"] {
        ensure!(report.stat(what) > 0, "none: {what}\n{report}");
    }
    Ok(())
}
