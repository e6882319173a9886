//! The clock of the server is set back: leases that are given then end before moments that pops
//! have passed already.

use std::time::Duration;

use anyhow::Result;
use queen_tests::clock::ServerClock;
use queen_tests::cluster::Cluster;
use queen_tests::{Pop, Push, Session, complete, eventually, n, numbers};

const SOON: Duration = Duration::from_secs(60);
/// More than a search passes without writing down how far it has come.
const MESSAGES: i64 = 60;
/// So many of them are leased when the clock has been set back.
const LEASED: usize = 40;

async fn messages_come_back(name: &str, ordering: &str) -> Result<()> {
    let clock = ServerClock::new(name)?;
    let cluster = Cluster::start_in(clock.environment()?, "fsync = off")?;
    let session = Session::open(&cluster.config()).await?;
    session.run("CREATE EXTENSION queen_mq").await?;
    session.run("SELECT queen_subscribe('q', 'g', 'all'), queen_configure('q')").await?;
    session.run(&format!("SELECT queen_configure('q', ordering => '{ordering}')")).await?;
    for number in 1..=MESSAGES {
        Push::new("q", n(number)).partition(format!("p{number}")).run(&session).await?;
    }
    let pop = Pop::new("q").group("g");
    let mut settled = Vec::new();
    let first = pop.run(&session).await?;
    complete(&session, &first).await?;
    settled.extend(numbers(&first));
    clock.set(-1)?;
    for _ in 0..LEASED {
        pop.clone().lease("5 s").one(&session).await?;
    }
    // These pops find most partitions leased, and leave them to the ends of the leases.
    for _ in 0..10 {
        let came = pop.run(&session).await?;
        complete(&session, &came).await?;
        settled.extend(numbers(&came));
    }
    // The leases are over before the next search.
    tokio::time::sleep(Duration::from_secs(5)).await;
    let come = eventually("all messages", SOON, async || {
        let came = pop.run(&session).await?;
        complete(&session, &came).await?;
        settled.extend(numbers(&came));
        Ok((settled.len() >= MESSAGES as usize).then_some(()))
    });
    come.await?;
    settled.sort_unstable();
    assert_eq!(settled, Vec::from_iter(1..=MESSAGES));
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn messages_whose_leases_end_come_back_in_order() -> Result<()> {
    messages_come_back("back", "partition").await
}

#[tokio::test(flavor = "multi_thread")]
async fn messages_whose_leases_end_come_back_without_order() -> Result<()> {
    messages_come_back("back-unordered", "none").await
}
