//! The option `notify`: what enters the log is told to clients that LISTEN.

use std::future::poll_fn;
use std::time::Duration;

use anyhow::{Context, Result};
use queen_tests::cluster::Cluster;
use queen_tests::{Ack, Fails, Pop, Push, Session, TestDb, n};
use tokio::sync::mpsc::{UnboundedReceiver, unbounded_channel};
use tokio_postgres::{AsyncMessage, Client, NoTls};

const SOON: Duration = Duration::from_secs(20);

/// A client that listens.
struct Listener {
    _client: Client,
    heard: UnboundedReceiver<String>,
}

impl Listener {
    async fn of(db: &TestDb) -> Result<Self> {
        let (client, mut connection) = db.config().connect(NoTls).await?;
        let (tell, heard) = unbounded_channel();
        tokio::spawn(async move {
            while let Some(Ok(message)) = poll_fn(|context| connection.poll_message(context)).await
            {
                if let AsyncMessage::Notification(one) = message {
                    drop(tell.send(format!("{} {}", one.channel(), one.payload())));
                }
            }
        });
        client.batch_execute("LISTEN queen_mq; LISTEN done").await?;
        Ok(Self { _client: client, heard })
    }

    /// What has come since the last call. Notifications come in the order of commits, so a last one
    /// tells that all are here.
    async fn heard(&mut self, session: &Session) -> Result<Vec<String>> {
        session.run("NOTIFY done").await?;
        let mut all = Vec::new();
        loop {
            let next = tokio::time::timeout(SOON, self.heard.recv()).await;
            match next.context("no notification")?.context("the connection has ended")? {
                last if last == "done " => return Ok(all),
                one => all.push(one),
            }
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn each_way_into_the_log_is_told_once_a_transaction() -> Result<()> {
    let db = TestDb::fresh().await?;
    let session = db.session().await?;
    let mut listener = Listener::of(&db).await?;
    session.run("SELECT queen_configure('q', notify => true), queen_bind('t.#', 'q')").await?;
    let once = ["queen_mq q".to_owned()];
    for sql in [
        "SELECT queen_push('q', '1')",
        "SELECT queen_push_batch('q', ARRAY['1', '2']::jsonb[])",
        "SELECT queen_push('q', '1') FROM generate_series(1, 3)",
        "SELECT queen_push_items('[{\"queue\": \"q\", \"payload\": 1}, {\"queue\": \"r\",
            \"payload\": 1}, {\"queue\": \"q\", \"payload\": 1, \"partition\": \"p\"}]')",
        "SELECT queen_publish('t.x', '1')",
        "SELECT queen_tx_commit('[{\"type\": \"push\", \"queue\": \"q\", \"payload\": 1}]')",
        "BEGIN; SELECT queen_push('q', '1'); SAVEPOINT s; SELECT queen_push('q', '1');
         ROLLBACK TO s; COMMIT",
    ] {
        session.run(sql).await?;
        assert_eq!(listener.heard(&session).await?, once, "{sql}");
    }
    // Timers: by a sweep, and by a pop.
    session.run("SELECT queen_push('q', '1', delay => '1 ms')").await?;
    session.run("SELECT queen_every('q', 'k', '1 s', '1')").await?;
    assert_eq!(listener.heard(&session).await?, [""; 0]);
    session.run("SELECT pg_sleep(0.01); SELECT queen_sweep()").await?;
    assert_eq!(listener.heard(&session).await?, once);
    session.run("SELECT pg_sleep(1.1)").await?;
    Pop::new("q").group("g").mode("all").partition("none").run(&session).await?;
    assert_eq!(listener.heard(&session).await?, once);
    session.run("SELECT queen_cancel('q', 'k')").await?;
    // A dead letter that is replayed.
    let dead = Pop::new("q").group("g").one(&session).await?;
    Ack::all(dead.lease()?).status("dead_letter").run(&session).await?;
    session.run("SELECT queen_dead_letter_replay_all('q')").await?;
    assert_eq!(listener.heard(&session).await?, once);
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn nothing_else_is_told() -> Result<()> {
    let db = TestDb::fresh().await?;
    let session = db.session().await?;
    let mut listener = Listener::of(&db).await?;
    session.run("SELECT queen_configure('q', notify => true), queen_configure('plain')").await?;
    Push::new("plain", n(1)).run(&session).await?;
    session.run("BEGIN; SELECT queen_push('q', '1'); ROLLBACK").await?;
    let push = Push::new("q", n(1)).id("once");
    push.run(&session).await?;
    assert_eq!(listener.heard(&session).await?, ["queen_mq q"]);
    // A duplicate; pops and settlements; a queue that has the option no more.
    push.run(&session).await?;
    let held = Pop::new("q").one(&session).await?;
    Ack::all(held.lease()?).run(&session).await?;
    session.run("SELECT queen_configure('q', unset => ARRAY['notify'])").await?;
    Push::new("q", n(2)).run(&session).await?;
    assert_eq!(listener.heard(&session).await?, [""; 0]);
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn a_transaction_that_notifies_cannot_be_prepared() -> Result<()> {
    let db = TestDb::fresh().await?;
    let session = db.session().await?;
    session.run("SELECT queen_configure('q', notify => true)").await?;
    session.run("BEGIN; SELECT queen_push('q', '1')").await?;
    session.run("PREPARE TRANSACTION 'told'").await.fails_with("0A000")?;
    assert_eq!(session.count("SELECT count(*) FROM queen_messages").await?, 0);
    // Without the option it can.
    session.run("SELECT queen_configure('q', notify => false)").await?;
    session.run("BEGIN; SELECT queen_push('q', '1'); PREPARE TRANSACTION 'told'").await?;
    session.run("COMMIT PREPARED 'told'").await?;
    assert_eq!(session.count("SELECT count(*) FROM queen_messages").await?, 1);
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn the_worker_tells_when_it_moves_a_timer() -> Result<()> {
    let serve_all = "queen_mq.databases = ''\nqueen_mq.sweep_interval = '100ms'";
    let cluster = Cluster::start_with(serve_all)?;
    let db = TestDb::create(&cluster.config()).await?;
    let session = db.session().await?;
    let mut listener = Listener::of(&db).await?;
    session.run("SELECT queen_configure('q', notify => true)").await?;
    session.run("SELECT queen_schedule('q', 'k', '1', delay => '100 ms')").await?;
    let told =
        tokio::time::timeout(SOON, listener.heard.recv()).await.context("no notification")?;
    assert_eq!(told.as_deref(), Some("queen_mq q"));
    assert_eq!(session.count("SELECT count(*) FROM queen_messages").await?, 1);
    Ok(())
}
