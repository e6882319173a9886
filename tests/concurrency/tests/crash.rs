//! A server crashes while all sessions work: what was acknowledged stays, and what was completed
//! does not come again.

use std::time::Duration;

use anyhow::{Result, ensure};
use queen_tests::cluster::Cluster;
use queen_tests::torture::{Config, torture};
use queen_tests::{Ack, Pop, PushBatch, TestDb, complete, n, numbers};
use tokio::task::spawn_blocking;
use tokio::time::sleep;

#[tokio::test(flavor = "multi_thread")]
async fn a_torture_with_crashes_loses_and_doubles_nothing() -> Result<()> {
    torture_with_crashes(false).await
}

#[tokio::test(flavor = "multi_thread")]
async fn a_torture_without_order_with_crashes_loses_and_doubles_nothing() -> Result<()> {
    torture_with_crashes(true).await
}

async fn torture_with_crashes(unordered: bool) -> Result<()> {
    // The history takes each lease for one that lasts. What becomes of leases that a crash may
    // take, `durable_leases` tests.
    let cluster = Cluster::start_with("queen_mq.durable_leases = on")?;
    let db = TestDb::create(&cluster.config()).await?;
    let config = Config {
        run_for: Duration::from_secs(9),
        lease: Duration::from_secs(3),
        crashes: true,
        unordered,
        latecomers: 5,
        ..Config::default()
    };
    let crashing = async {
        let mut cluster = cluster;
        for _ in 0..2 {
            sleep(Duration::from_secs(3)).await;
            cluster = spawn_blocking(move || {
                cluster.crash()?;
                cluster.start()?;
                anyhow::Ok(cluster)
            })
            .await??;
        }
        anyhow::Ok(cluster)
    };
    let (report, cluster) = tokio::join!(torture(config, db.config()), crashing);
    let (report, cluster) = (report?, cluster?);
    println!("{report}");
    report.clean()?;
    // Every worker lost its connection each time.
    ensure!(report.stat("connections lost") >= 30, "too few crashes\n{report}");
    ensure!(report.stat("messages pushed") >= 500, "too little happened\n{report}");
    drop(db);
    drop(cluster);
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn leases_and_what_they_completed_outlive_a_crash() -> Result<()> {
    let cluster = Cluster::start_new()?;
    let db = TestDb::create(&cluster.config()).await?;
    let pop = Pop::new("q").group("g").mode("all").batch(10);
    let session = db.session().await?;
    PushBatch::new("q", vec![n(1), n(2), n(3), n(4)]).run(&session).await?;
    let held = pop.clone().batch(3).run(&session).await?;
    Ack::messages(held[0].lease()?, [held[1].message_id]).run(&session).await?;
    let open = db.session().await?;
    open.run("BEGIN").await?;
    Ack::messages(held[0].lease()?, [held[0].message_id]).run(&open).await?;
    cluster.crash()?;
    cluster.start()?;

    let session = db.session().await?;
    assert_eq!(pop.run(&session).await?, [], "the lease is alive");
    let settled = Ack::messages(held[0].lease()?, [held[0].message_id]).run(&session).await?;
    assert_eq!((settled.settled, settled.already), (1, 0), "the open ack did not happen");
    let settled = Ack::messages(held[0].lease()?, [held[1].message_id]).run(&session).await?;
    assert_eq!((settled.settled, settled.already), (0, 1));
    let settled = Ack::all(held[0].lease()?).run(&session).await?;
    assert_eq!((settled.settled, settled.lease_released), (1, true));
    let came = pop.run(&session).await?;
    assert_eq!(numbers(&came), [4]);
    complete(&session, &came).await?;
    drop(db);
    Ok(())
}
