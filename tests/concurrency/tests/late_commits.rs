//! Transactions that were running when a group passed them, and have ended since: what they have
//! pushed is found, and those that have pushed elsewhere cost next to nothing.

use anyhow::{Context, Result, ensure};
use queen_tests::cluster::Cluster;
use queen_tests::waiting::SOON;
use queen_tests::{Pop, Push, Session, TestDb, complete, eventually, n, numbers};
use serde_json::Value;

fn pop() -> Pop {
    Pop::new("q").group("g").partition("p")
}

async fn push(session: &Session, number: i64, partition: &str) -> Result<()> {
    Push::new("q", n(number)).partition(partition).run(session).await?;
    Ok(())
}

/// Pop this one message from the partition, and complete it.
async fn take(session: &Session, number: i64) -> Result<()> {
    let came = pop().run(session).await?;
    assert_eq!(numbers(&came), [number]);
    complete(session, &came).await
}

/// How many buffers a pop in vain touches.
async fn buffers(session: &Session) -> Result<i64> {
    let sql = "EXPLAIN (ANALYZE, BUFFERS, FORMAT JSON)
               SELECT count(*) FROM queen_pop('q', 'g', partition => 'p')";
    let plan: Value = session.query_one(sql, &[]).await?.get(0);
    let count = |name: &str| plan[0]["Plan"][name].as_i64().context("no buffers");
    Ok(count("Shared Hit Blocks")? + count("Shared Read Blocks")?)
}

#[tokio::test(flavor = "multi_thread")]
async fn those_that_have_pushed_elsewhere_cost_a_pop_next_to_nothing() -> Result<()> {
    let db = TestDb::alone().await?;
    let consumer = db.session().await?;
    consumer.run("SELECT queen_subscribe('q', 'g', 'all'), queen_configure('q')").await?;
    push(&consumer, 0, "p").await?;
    take(&consumer, 0).await?;
    buffers(&consumer).await?;
    let alone = buffers(&consumer).await?;
    let others = db.crowd(60).await?;
    for (number, other) in others.iter().enumerate() {
        other.run("BEGIN").await?;
        push(other, 100, &format!("elsewhere {number}")).await?;
    }
    push(&others[40], 7, "p").await?;
    push(&consumer, 1, "p").await?;
    take(&consumer, 1).await?;
    for other in &others {
        other.run("COMMIT").await?;
    }
    // Each of the 60 was asked for in the index before, which took seven buffers.
    take(&consumer, 7).await?;
    for (number, other) in others.iter().enumerate() {
        other.run("BEGIN").await?;
        push(other, 100, &format!("elsewhere {number}")).await?;
    }
    push(&consumer, 2, "p").await?;
    take(&consumer, 2).await?;
    for other in &others {
        other.run("COMMIT").await?;
    }
    let beside_many = buffers(&consumer).await?;
    ensure!(beside_many <= alone + 60, "{alone} buffers, and {beside_many} beside many");
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn one_that_was_prepared_before_a_restart_is_found() -> Result<()> {
    let cluster = Cluster::start_with("max_prepared_transactions = 5")?;
    let session = Session::open(&cluster.config()).await?;
    session.run("CREATE EXTENSION queen_mq").await?;
    session.run("SELECT queen_subscribe('q', 'g', 'all'), queen_configure('q')").await?;
    session.run("BEGIN").await?;
    push(&session, 1, "p").await?;
    session.run("PREPARE TRANSACTION 'late'").await?;
    push(&session, 2, "p").await?;
    take(&session, 2).await?;
    drop(session);
    cluster.stop()?;
    cluster.start()?;
    let session = Session::open(&cluster.config()).await?;
    // Transactions of this life of the server, for which shared memory says what they have pushed.
    push(&session, 3, "p").await?;
    take(&session, 3).await?;
    session.run("COMMIT PREPARED 'late'").await?;
    take(&session, 1).await
}

/// What a standby knows of its primary's transactions it has not seen itself.
#[tokio::test(flavor = "multi_thread")]
async fn one_of_the_primary_is_found_after_a_promotion() -> Result<()> {
    let primary = Cluster::start_with("synchronous_commit = remote_apply")?;
    let [consumer, late] =
        [Session::open(&primary.config()).await?, Session::open(&primary.config()).await?];
    consumer.run("CREATE EXTENSION queen_mq").await?;
    consumer.run("SELECT queen_subscribe('q', 'g', 'all'), queen_configure('q')").await?;
    let standby = primary.standby()?;
    // A reader of the standby comes back to a transaction that has ended since.
    late.run("BEGIN").await?;
    push(&late, 1, "p").await?;
    push(&consumer, 2, "p").await?;
    take(&consumer, 2).await?;
    late.run("COMMIT").await?;
    let reader = Session::open(&standby.config()).await?;
    let read = async || {
        let sql = "SELECT pending FROM queen_groups WHERE queue = 'q' AND consumer_group = 'g'";
        Ok((reader.count(sql).await? == 1).then_some(()))
    };
    eventually("the message on the standby", SOON, read).await?;
    take(&consumer, 1).await?;
    // It is promoted, and the next such transaction is one that it has followed.
    late.run("BEGIN").await?;
    push(&late, 3, "p").await?;
    push(&consumer, 4, "p").await?;
    take(&consumer, 4).await?;
    late.run("COMMIT").await?;
    let read = async || {
        let sql = "SELECT pending FROM queen_groups WHERE queue = 'q' AND consumer_group = 'g'";
        Ok((reader.count(sql).await? == 1).then_some(()))
    };
    eventually("the next message on the standby", SOON, read).await?;
    primary.kill()?;
    standby.promote()?;
    let session = Session::open(&standby.config()).await?;
    take(&session, 3).await
}
