//! A session remembers nothing of the catalogue that others, or itself, may change: relations that
//! are replaced, dropped, created anew.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use anyhow::Result;
use queen_tests::{Ack, Fails, Pop, PushBatch, Session, TestDb, complete, n, numbers};
use tokio::task::JoinSet;

fn pop() -> Pop {
    Pop::new("q").group("g").mode("all").batch(10)
}

/// Push, pop and ack: it looks into most tables.
async fn goes_around(session: &Session, number: i64) -> Result<()> {
    PushBatch::new("q", vec![n(number)]).run(session).await?;
    let came = pop().run(session).await?;
    assert_eq!(numbers(&came), [number]);
    complete(session, &came).await
}

#[tokio::test(flavor = "multi_thread")]
async fn the_extension_can_be_dropped_and_created_anew() -> Result<()> {
    let db = TestDb::fresh().await?;
    let [session, other] = db.sessions().await?;
    goes_around(&session, 1).await?;
    goes_around(&other, 2).await?;
    other.run("DROP EXTENSION queen_mq").await?;
    other.run("CREATE EXTENSION queen_mq").await?;
    for (session, number) in [(&session, 3), (&other, 4)] {
        goes_around(session, number).await?;
    }

    // In a transaction, which is rolled back: the first relations are there again.
    session.run("BEGIN; DROP EXTENSION queen_mq; CREATE EXTENSION queen_mq").await?;
    goes_around(&session, 5).await?;
    session.run("SAVEPOINT s; DROP EXTENSION queen_mq").await?;
    session.query("SELECT * FROM queen_pop('q')", &[]).await.fails_with("42883")?;
    session.run("ROLLBACK TO SAVEPOINT s").await?;
    goes_around(&session, 6).await?;
    session.run("ROLLBACK").await?;
    goes_around(&session, 7).await?;
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn indexes_and_tables_are_rebuilt_while_everybody_works() -> Result<()> {
    const WORKERS: i64 = 4;
    let db = TestDb::fresh().await?;
    let admin = db.session().await?;
    for (queue, ordering) in [("ordered", "partition"), ("unordered", "none")] {
        admin.run(&format!("SELECT queen_configure('{queue}', ordering => '{ordering}')")).await?;
        admin.run(&format!("SELECT queen_subscribe('{queue}', 'g', 'all')")).await?;
    }
    let (mut workers, is_done) = (JoinSet::new(), Arc::new(AtomicBool::new(false)));
    for worker in 0..WORKERS {
        let (session, is_done) = (db.session().await?, is_done.clone());
        workers.spawn(async move {
            let mut round = 0;
            while !is_done.load(Ordering::Relaxed) {
                round += 1;
                for queue in ["ordered", "unordered"] {
                    let partition = format!("p{worker}");
                    let push = PushBatch::new(queue, vec![n(round)]).partition(&partition);
                    push.run(&session).await?;
                    let pop = Pop::new(queue).group("g").partition(partition);
                    let came = pop.one(&session).await?;
                    assert_eq!(came.payload, n(round), "{queue}");
                    Ack::all(came.lease()?).run(&session).await?;
                }
            }
            anyhow::Ok(round)
        });
    }
    let rebuilding = async {
        let sql = "SELECT c.relname::text, c.relkind = 'i' FROM pg_class c \
                   WHERE c.relnamespace = 'queen_mq'::regnamespace AND c.relkind IN ('i', 'r')";
        let relations = admin.query(sql, &[]).await?;
        for row in &relations {
            let (name, is_index): (String, bool) = (row.get(0), row.get(1));
            let kind = if is_index { "INDEX" } else { "TABLE" };
            admin.run(&format!("REINDEX {kind} CONCURRENTLY queen_mq.{name}")).await?;
        }
        anyhow::Ok(relations.len())
    };
    let rebuilt = rebuilding.await;
    is_done.store(true, Ordering::Relaxed);
    assert!(rebuilt? > 30);
    while let Some(worker) = workers.join_next().await {
        assert!(worker?? > 20);
    }
    let left = "SELECT sum(pending)::bigint FROM queen_groups";
    assert_eq!(admin.count(left).await?, 0);
    Ok(())
}
