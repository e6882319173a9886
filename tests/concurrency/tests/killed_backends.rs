//! Backends that are terminated at any moment lose nothing and complete nothing twice.

use std::time::Duration;

use anyhow::{Result, ensure};
use queen_tests::torture::{Config, torture};
use queen_tests::{
    Ack, Pop, Push, PushBatch, Session, TestDb, complete, eventually, marker, n, numbers,
    put_if_absent,
};

fn pop() -> Pop {
    Pop::new("q").group("g").mode("all").batch(100).partitions(100)
}

/// Terminate a backend, and wait until it is gone.
async fn end(session: &Session, victim: Session) -> Result<()> {
    let pid = victim.pid();
    session.query("SELECT pg_terminate_backend($1)", &[&pid]).await?;
    eventually("end of the backend", Duration::from_secs(10), async || {
        let sql = format!("SELECT count(*) FROM pg_stat_activity WHERE pid = {pid}");
        Ok((session.count(&sql).await? == 0).then_some(()))
    })
    .await
}

#[tokio::test(flavor = "multi_thread")]
async fn an_open_pop_frees_its_messages() -> Result<()> {
    let db = TestDb::fresh().await?;
    let [victim, session] = db.sessions().await?;
    PushBatch::new("q", vec![n(1), n(2)]).run(&session).await?;
    victim.run("BEGIN").await?;
    assert_eq!(pop().run(&victim).await?.len(), 2);
    assert_eq!(pop().run(&session).await?, []);
    end(&session, victim).await?;
    let came = pop().run(&session).await?;
    assert_eq!(numbers(&came), [1, 2]);
    assert!(came.iter().all(|one| one.delivery_attempt == 1));
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn an_open_ack_leaves_its_messages_in_the_lease() -> Result<()> {
    let db = TestDb::fresh().await?;
    let [victim, session] = db.sessions().await?;
    PushBatch::new("q", vec![n(1), n(2)]).run(&session).await?;
    let held = pop().run(&victim).await?;
    let lease = held[0].lease()?;
    victim.run("BEGIN").await?;
    put_if_absent(&victim, "killed", "effect", &n(1), "1 hour").await?;
    Ack::messages(lease, [held[0].message_id]).run(&victim).await?;
    end(&session, victim).await?;
    assert_eq!(marker(&session, "killed", "effect").await?, None);
    assert_eq!(pop().run(&session).await?, [], "the lease is alive");
    complete(&session, &held).await
}

#[tokio::test(flavor = "multi_thread")]
async fn an_open_push_never_happened() -> Result<()> {
    let db = TestDb::fresh().await?;
    let [victim, session] = db.sessions().await?;
    Push::new("q", n(1)).run(&session).await?;
    victim.run("BEGIN").await?;
    Push::new("q", n(100)).id("x").run(&victim).await?;
    end(&session, victim).await?;
    assert_eq!(Push::new("q", n(2)).id("x").run(&session).await?.status, "queued");
    let came = pop().run(&session).await?;
    assert_eq!(numbers(&came), [1, 2]);
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn a_torture_with_killed_backends_loses_and_doubles_nothing() -> Result<()> {
    let config = Config {
        run_for: Duration::from_secs(8),
        lease: Duration::from_secs(3),
        kill_every: Some(Duration::from_millis(100)),
        latecomers: 5,
        ..Config::default()
    };
    for unordered in [false, true] {
        let db = TestDb::alone().await?;
        let report = torture(Config { unordered, ..config.clone() }, db.config()).await?;
        println!("{report}");
        report.clean()?;
        ensure!(report.stat("connections lost") >= 10, "too few kills\n{report}");
        ensure!(report.stat("messages pushed") >= 500, "too little happened\n{report}");
    }
    Ok(())
}
