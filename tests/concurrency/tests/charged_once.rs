//! Orders are charged once, whatever becomes of the server: it is killed, its clock is set, its
//! disk is full, or a standby is promoted.

use std::time::Duration;

use anyhow::{Result, ensure};
use queen_tests::torture::orders::{
    Season, SmallFor, with_a_full_disk, with_crashes, with_promotions,
};

#[tokio::test(flavor = "multi_thread")]
async fn crashes_lose_no_order_and_charge_none_twice() -> Result<()> {
    let season = Season { times: 3, between: Duration::from_millis(400), ..Season::default() };
    let report = with_crashes(season).await?;
    println!("{report}");
    report.clean()?;
    ensure!(report.stat("charges in the table") >= 50, "too little happened\n{report}");
    ensure!(report.stat("clerks' connections lost") >= 8, "too few crashes\n{report}");
    Ok(())
}

async fn full(place: SmallFor) -> Result<()> {
    let season = Season { times: 1, between: Duration::from_millis(300), ..Season::default() };
    if let Some(report) = with_a_full_disk(season, place).await? {
        println!("{report}");
        report.clean()?;
        ensure!(report.stat("charges in the table") >= 20, "too little happened\n{report}");
    }
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn a_full_disk_of_the_log_loses_nothing() -> Result<()> {
    full(SmallFor::Log).await
}

#[tokio::test(flavor = "multi_thread")]
async fn a_full_disk_of_the_tables_loses_nothing() -> Result<()> {
    full(SmallFor::Tables).await
}

/// The old primary goes on for a moment, and clients ack at the new one what they popped there.
fn standby(synchronous: bool) -> Season {
    let between = Duration::from_millis(400);
    Season { times: 1, between, synchronous, ..Season::default() }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_promotion_charges_each_order_once_and_refuses_leases_that_it_lacks() -> Result<()> {
    let report = with_promotions(standby(true)).await?;
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
    let report = with_promotions(standby(false)).await?;
    println!("{report}");
    report.clean()?;
    for what in ["orders lost with the tail", "charges lost with the tail"] {
        ensure!(report.stat(what) > 0, "none: {what}\n{report}");
    }
    Ok(())
}
