//! Sessions that wait, and what other sessions do to what they wait for: clients that are killed,
//! messages that a transaction has popped and may give back.

use std::time::Duration;

use anyhow::{Result, ensure};
use queen_tests::waiting::{SOON, are_asleep, wait_in_task};
use queen_tests::{Pop, Push, Session, TestDb, complete, eventually, n, numbers};
use tokio::task::JoinHandle;

fn pop() -> Pop {
    Pop::new("q").group("g").mode("all")
}

/// `queen_wait` in a task: whether it was ready.
fn wait(session: Session, timeout: &str) -> JoinHandle<Result<bool>> {
    let call = format!("CALL queen_wait('q', 'g', '{timeout}')");
    tokio::spawn(async move { Ok(session.query_one(&call, &[]).await?.get(0)) })
}

async fn is_ready(admin: &Session) -> Result<bool> {
    Ok(admin.query_one("CALL queen_wait('q', 'g', '0')", &[]).await?.get(0))
}

#[tokio::test(flavor = "multi_thread")]
async fn a_session_whose_client_is_gone_takes_nothing() -> Result<()> {
    let db = TestDb::alone().await?;
    let [admin, pusher, gone, other] = db.sessions().await?;
    admin.run("SELECT queen_configure('q'), queen_subscribe('q', 'g', 'all')").await?;
    let (killed, pid) = (gone.connection(), gone.pid());
    let first = wait_in_task(gone, pop().wait("60 s"));
    are_asleep(&admin, 1).await?;
    let second = wait_in_task(other, pop().wait("60 s"));
    are_asleep(&admin, 2).await?;
    killed.abort();
    ensure!(first.await?.is_err(), "the connection is closed");

    Push::new("q", n(1)).run(&pusher).await?;
    let (came, _, session) = second.await??;
    assert_eq!(numbers(&came), [1]);
    assert_eq!(came[0].delivery_attempt, 1);
    complete(&session, &came).await?;
    // The push may have woken the other session alone. The next ones come to the first, too.
    eventually("the end of the session", Duration::from_secs(20), async || {
        Push::new("q", n(2)).run(&pusher).await?;
        complete(&session, &pop().run(&session).await?).await?;
        let sql = format!("SELECT count(*) FROM pg_stat_activity WHERE pid = {pid}");
        Ok((admin.count(&sql).await? == 0).then_some(()))
    })
    .await
}

/// A message is popped in a transaction that stays open. Is there something to pop for others? When
/// it is given back, the waiting session is woken.
async fn what_is_popped_is_not_ready(db: &TestDb) -> Result<()> {
    let [admin, holder, sleeper] = db.sessions().await?;
    ensure!(is_ready(&admin).await?, "before");
    holder.run("BEGIN").await?;
    assert_eq!(numbers(&pop().run(&holder).await?), [1]);
    ensure!(!is_ready(&admin).await?, "popped by a transaction that has not ended");
    let waiting = wait(sleeper, "60 s");
    are_asleep(&admin, 1).await?;
    holder.run("ROLLBACK").await?;
    ensure!(tokio::time::timeout(SOON, waiting).await???, "given back");
    ensure!(is_ready(&admin).await?, "after");
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn a_wait_is_not_ready_for_what_another_transaction_has_popped() -> Result<()> {
    let db = TestDb::alone().await?;
    let admin = db.session().await?;
    for ordering in ["partition", "none"] {
        admin
            .run(&format!(
                "SELECT queen_configure('q', ordering => '{ordering}', retry_limit => 9);
                 SELECT queen_subscribe('q', 'g', 'all'); SELECT queen_push('q', '{{\"n\": 1}}')"
            ))
            .await?;
        // The first pop of the partition, and one of a message that has come back.
        what_is_popped_is_not_ready(&db).await?;
        let came = pop().run(&admin).await?;
        let failed = format!("SELECT queen_ack('{}', status => 'failed')", came[0].lease()?);
        admin.run(&failed).await?;
        what_is_popped_is_not_ready(&db).await?;
        admin.run("SELECT queen_delete_queue('q')").await?;
    }
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn a_wait_beside_an_open_pop_sleeps() -> Result<()> {
    let db = TestDb::alone().await?;
    let [admin, holder, sleeper] = db.sessions().await?;
    admin.run("SELECT queen_subscribe('q', 'g', 'all'); SELECT queen_push('q', '1')").await?;
    holder.run("BEGIN; SELECT count(*) FROM queen_pop('q', 'g')").await?;
    // Each look is a transaction that takes no more than a tenth of a second to come again.
    let looks = "SELECT pg_stat_clear_snapshot(), xact_commit FROM pg_stat_database
                 WHERE datname = current_database()";
    let before: i64 = admin.query_one(looks, &[]).await?.get(1);
    assert!(!wait(sleeper, "2 s").await??);
    tokio::time::sleep(Duration::from_millis(1200)).await;
    let after: i64 = admin.query_one(looks, &[]).await?.get(1);
    ensure!(after - before < 60, "{} transactions in two seconds", after - before);
    holder.run("COMMIT").await?;
    Ok(())
}
