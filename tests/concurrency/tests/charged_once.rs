//! Orders are charged once, whatever becomes of the server: it is killed, its clock is set, or its
//! disk is full.

use std::time::Duration;

use anyhow::{Result, ensure};
use queen_tests::torture::orders::{Season, SmallFor, with_a_full_disk, with_crashes};

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
