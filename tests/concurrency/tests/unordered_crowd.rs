//! Groups without order: 64 consumers pop from one partition.

use std::time::{Duration, Instant};

use anyhow::{Result, ensure};
use queen_tests::unordered::{SOON, figures, pop_all, push, sweep};
use queen_tests::{Message, Push, Session, TestDb, at_once, complete, n, sorted};

const CROWD: usize = 64;

/// Push 64 messages to one partition, together or one by one.
async fn crowded(db: &TestDb, is_batch: bool) -> Result<Session> {
    let session = db.session().await?;
    session.run("SELECT queen_configure('q', ordering => 'none')").await?;
    session.run("SELECT queen_subscribe('q', 'g', 'all')").await?;
    if is_batch {
        push(&session, "Default", 1, CROWD as i64).await?;
    } else {
        for number in 1..=CROWD as i64 {
            Push::new("q", n(number)).run(&session).await?;
        }
    }
    let segments = session.count("SELECT count(*) FROM queen_mq.segment").await?;
    // A segment holds 28 messages.
    assert_eq!(segments, if is_batch { 3 } else { CROWD as i64 });
    Ok(session)
}

#[tokio::test(flavor = "multi_thread")]
async fn sixty_four_open_pops_get_different_messages_of_one_partition() -> Result<()> {
    for is_batch in [true, false] {
        let db = TestDb::alone().await?;
        let watcher = crowded(&db, is_batch).await?;
        let consumers = db.crowd(CROWD).await?;
        let mut held = Vec::new();
        for consumer in &consumers {
            // A pop that waited for another one would wait for ever.
            consumer.run("SET statement_timeout = '3 s'; BEGIN").await?;
            held.push(pop_all().batch(1).one(consumer).await?);
        }
        assert_eq!(sorted(&held), (1..=CROWD as i64).collect::<Vec<_>>());
        assert!(held.iter().all(|one| one.delivery_attempt == 1));
        watcher.be_prompt().await?;
        assert_eq!(pop_all().run(&watcher).await?, []);
        assert_eq!(figures(&watcher).await?, (64, 0, 0));
        for consumer in &consumers {
            consumer.run("COMMIT").await?;
        }
        assert_eq!(figures(&watcher).await?, (64, 64, 0));
        let sql = "SELECT count(DISTINCT lease_id) FROM queen_leases WHERE messages = 1";
        assert_eq!(watcher.count(sql).await?, 64);
        for (consumer, message) in consumers.iter().zip(held).rev() {
            complete(consumer, &[message]).await?;
        }
        assert_eq!(figures(&watcher).await?, (0, 0, 0));
        assert_eq!(pop_all().run(&watcher).await?, []);
        sweep(&watcher).await?;
        assert_eq!(pop_all().run(&watcher).await?, []);
    }
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn sixty_four_pops_at_once_share_them_too() -> Result<()> {
    for is_batch in [true, false] {
        let db = TestDb::alone().await?;
        let watcher = crowded(&db, is_batch).await?;
        let results = at_once(db.crowd(CROWD).await?, |_, session| async move {
            session.run("SET statement_timeout = '5 s'; BEGIN").await?;
            let began = Instant::now();
            let message = loop {
                if let Some(message) = pop_all().batch(1).run(&session).await?.pop() {
                    break message;
                }
                ensure!(began.elapsed() < SOON, "there is one for each");
                tokio::time::sleep(Duration::from_millis(5)).await;
            };
            // The others have a message, or get one, while this transaction is open.
            tokio::time::sleep(Duration::from_millis(50)).await;
            session.run("COMMIT").await?;
            Ok((message, session))
        })
        .await?;
        let mut held = Vec::new();
        for one in results {
            held.push(one?);
        }
        let messages: Vec<Message> = held.iter().map(|one| one.0.clone()).collect();
        assert_eq!(sorted(&messages), (1..=CROWD as i64).collect::<Vec<_>>());
        assert_eq!(figures(&watcher).await?, (64, 64, 0));
        for (message, session) in held {
            complete(&session, &[message]).await?;
        }
        assert_eq!(figures(&watcher).await?, (0, 0, 0));
    }
    Ok(())
}
