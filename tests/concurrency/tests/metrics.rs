//! What the metrics count as it happens: what has committed, once, and only with preload.

use std::time::Duration;

use anyhow::{Context, Result, ensure};
use queen_tests::cluster::Cluster;
use queen_tests::unordered::SOON;
use queen_tests::{
    Ack, Fails, Message, Pop, PushBatch, Session, TestDb, complete, eventually, expiry, settle,
};
use serde_json::{Value, json};

fn pop() -> Pop {
    Pop::new("q").group("g").mode("all")
}

/// The value of a metric; None: it has no row.
async fn metric(session: &Session, name: &str) -> Result<Option<f64>> {
    let sql = "SELECT value FROM queen_metrics() WHERE name = $1";
    Ok(session.rows(sql, &[&name]).await?.first().map(|row| row.get(0)))
}

/// The outcomes that were counted of the group g: completed, failed, retry, dead_lettered, dropped,
/// and leases expired.
async fn counted(session: &Session) -> Result<Vec<f64>> {
    let sql = "SELECT value FROM queen_metrics()
               WHERE name IN ('queen_group_settled_total', 'queen_group_leases_expired_total')
               AND labels ->> 'consumer_group' = 'g' AND kind = 'counter'
               ORDER BY name DESC, array_position(
                   ARRAY['completed', 'failed', 'retry', 'dead_lettered', 'dropped'],
                   labels ->> 'outcome')";
    Ok(session.rows(sql, &[]).await?.iter().map(|row| row.get(0)).collect())
}

async fn prepared(options: &str) -> Result<(TestDb, Session)> {
    let db = TestDb::fresh().await?;
    let session = db.session().await?;
    session.run(&format!("SELECT queen_configure('q'{options})")).await?;
    PushBatch::numbers("q", 1..=20).run(&session).await?;
    Ok((db, session))
}

async fn fail(session: &Session, one: &Message) -> Result<()> {
    Ack::messages(one.lease()?, [one.message_id]).failed("no").run(session).await?;
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn each_outcome_that_commits_is_counted_once() -> Result<()> {
    for ordering in ["partition", "none"] {
        let (_db, session) =
            prepared(&format!(", retry_limit => 1, ordering => '{ordering}'")).await?;
        let held = pop().batch(2).run(&session).await?;
        assert_eq!(counted(&session).await?, [0.0; 6]);
        complete(&session, &held).await?;
        // What is repeated changes nothing.
        assert_eq!(Ack::all(held[0].lease()?).run(&session).await?.already, 2);
        assert_eq!(counted(&session).await?, [2.0, 0.0, 0.0, 0.0, 0.0, 0.0]);
        let held = pop().batch(4).run(&session).await?;
        let result =
            |at: usize, status: &str| json!({ "messageId": held[at].message_id, "status": status });
        let results = json!([
            result(0, "completed"),
            result(1, "failed"),
            result(2, "retry"),
            result(3, "dead_letter"),
        ]);
        settle(&session, held[0].lease()?, &results).await?;
        settle(&session, held[0].lease()?, &results).await?;
        assert_eq!(counted(&session).await?, [3.0, 1.0, 1.0, 1.0, 0.0, 0.0]);
        if ordering == "none" {
            // It is not said which message comes next.
            continue;
        }
        // The second failure exhausts the message.
        let again = pop().batch(1).one(&session).await?;
        assert_eq!(again.message_id, held[1].message_id);
        fail(&session, &again).await?;
        assert_eq!(counted(&session).await?, [3.0, 1.0, 1.0, 2.0, 0.0, 0.0]);
        // What is not acknowledged by itself, and what is at once.
        pop().batch(3).auto_ack().run(&session).await?;
        assert_eq!(counted(&session).await?, [6.0, 1.0, 1.0, 2.0, 0.0, 0.0]);
        let brief = pop().lease("1 ms").one(&session).await?;
        expiry(&session, &brief).await?;
        let late = pop().one(&session).await?;
        assert_eq!(late.message_id, brief.message_id);
        assert_eq!(counted(&session).await?, [6.0, 1.0, 1.0, 2.0, 0.0, 1.0]);
        session
            .run("SELECT queen_configure('q', on_exhausted => 'drop', retry_limit => 0)")
            .await?;
        fail(&session, &late).await?;
        assert_eq!(counted(&session).await?, [6.0, 1.0, 1.0, 2.0, 1.0, 1.0]);
    }
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn what_is_rolled_back_is_not_counted() -> Result<()> {
    let (_db, session) = prepared("").await?;
    let completed = async || Ok::<_, anyhow::Error>(counted(&session).await?[0]);
    session.run("SELECT queen_subscribe('q', 'g', 'all')").await?;
    session.run("BEGIN").await?;
    complete(&session, &pop().run(&session).await?).await?;
    session.run("ROLLBACK").await?;
    assert_eq!(completed().await?, 0.0);
    session.run("BEGIN").await?;
    for how in ["ROLLBACK TO", "RELEASE", "ROLLBACK TO", "RELEASE"] {
        session.run("SAVEPOINT outer_one; SAVEPOINT inner_one").await?;
        complete(&session, &pop().run(&session).await?).await?;
        session.run("RELEASE inner_one").await?;
        session.run(&format!("{how} outer_one")).await?;
    }
    complete(&session, &pop().run(&session).await?).await?;
    assert_eq!(completed().await?, 0.0);
    session.run("COMMIT").await?;
    assert_eq!(completed().await?, 3.0);
    // A bundle that is refused, in a transaction that commits.
    let held = pop().one(&session).await?;
    let operations = json!([{ "type": "ack", "leaseId": held.lease()?.to_string() }]);
    let kv = json!([{ "op": "check", "ns": "n", "key": "k", "expect": 7, "required": true }]);
    let sql = "SELECT queen_tx_commit($1, $2)";
    let answer: Value = session.query_one(sql, &[&operations, &kv]).await?.get(0);
    assert_eq!(answer["reason"], "kv_precondition");
    assert_eq!(completed().await?, 3.0);
    let foreign = Ack::messages(held.lease()?, [held.message_id, 1]).run(&session).await;
    foreign.fails_with("QN004")?;
    assert_eq!(completed().await?, 3.0);
    // Of a prepared transaction, the end may come in another process.
    session.run("BEGIN").await?;
    complete(&session, &[held]).await?;
    let name: String = session.query_one("SELECT current_database()::text", &[]).await?.get(0);
    session.run(&format!("PREPARE TRANSACTION '{name}'")).await?;
    session.run(&format!("COMMIT PREPARED '{name}'")).await?;
    assert_eq!(completed().await?, 4.0);
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn timers_that_are_overdue_and_the_last_sweep_are_shown() -> Result<()> {
    // The list of databases of the common server may be full.
    let cluster = Cluster::start_with("queen_mq.databases = 'none of these'\nfsync = off")?;
    let session = Session::open(&cluster.config()).await?;
    session.run("CREATE EXTENSION queen_mq").await?;
    PushBatch::numbers("q", 1..=2).run(&session).await?;
    assert_eq!(metric(&session, "queen_queue_timers_overdue").await?, Some(0.0));
    assert_eq!(metric(&session, "queen_last_sweep_timestamp_seconds").await?, None);
    assert_eq!(metric(&session, "queen_worker_running").await?, Some(0.0));
    assert_eq!(metric(&session, "queen_group_last_pop_timestamp_seconds").await?, None);
    let schedule = "SELECT queen_schedule('q', k, '1', delay => d) FROM (VALUES
                    ('a', interval '1 ms'), ('b', '2 ms'), ('c', '1 hour')) AS v (k, d)";
    session.run(schedule).await?;
    eventually("two overdue timers", SOON, async || {
        let overdue = metric(&session, "queen_queue_timers_overdue").await?;
        Ok((overdue == Some(2.0)).then_some(()))
    })
    .await?;
    let before = "SELECT extract(epoch FROM clock_timestamp())::float8";
    let before: f64 = session.query_one(before, &[]).await?.get(0);
    session.run("SELECT queen_sweep(60000)").await?;
    assert_eq!(metric(&session, "queen_queue_timers_overdue").await?, Some(0.0));
    let swept = metric(&session, "queen_last_sweep_timestamp_seconds").await?.context("a sweep")?;
    ensure!(swept >= before - 0.001, "{swept} is before {before}");
    pop().one(&session).await?;
    let popped = metric(&session, "queen_group_last_pop_timestamp_seconds").await?;
    ensure!(popped.context("a pop")? >= swept, "{popped:?} is before {swept}");
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn what_cannot_be_counted_without_preload_is_absent() -> Result<()> {
    let cluster = Cluster::start_with("shared_preload_libraries = ''\nfsync = off")?;
    let session = Session::open(&cluster.config()).await?;
    session.run("CREATE EXTENSION queen_mq").await?;
    PushBatch::numbers("q", 1..=2).run(&session).await?;
    complete(&session, &pop().run(&session).await?).await?;
    session.run("SELECT queen_sweep()").await?;
    assert_eq!(counted(&session).await?, [0.0; 0]);
    for name in ["queen_last_sweep_timestamp_seconds", "queen_worker_late_seconds"] {
        assert_eq!(metric(&session, name).await?, None, "{name}");
    }
    assert_eq!(metric(&session, "queen_worker_running").await?, Some(0.0));
    assert_eq!(metric(&session, "queen_queue_timers_overdue").await?, Some(0.0));
    session.run("SELECT queen_worker_start()").await?;
    eventually("a worker", Duration::from_secs(30), async || {
        Ok((metric(&session, "queen_worker_running").await? == Some(1.0)).then_some(()))
    })
    .await?;
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn counts_begin_again_when_the_server_does() -> Result<()> {
    let cluster = Cluster::start_with("queen_mq.databases = 'none of these'\nfsync = off")?;
    let session = Session::open(&cluster.config()).await?;
    session.run("CREATE EXTENSION queen_mq").await?;
    PushBatch::numbers("q", 1..=2).run(&session).await?;
    complete(&session, &pop().run(&session).await?).await?;
    assert_eq!(counted(&session).await?, [1.0, 0.0, 0.0, 0.0, 0.0, 0.0]);
    drop(session);
    cluster.stop()?;
    cluster.start()?;
    let session = Session::open(&cluster.config()).await?;
    assert_eq!(counted(&session).await?, [0.0; 6]);
    assert_eq!(metric(&session, "queen_queue_messages_pushed_total").await?, Some(2.0));
    Ok(())
}

/// A pop of the newest message alone completes the older ones.
#[tokio::test(flavor = "multi_thread")]
async fn what_gives_way_to_a_newer_message_is_counted_as_completed() -> Result<()> {
    let (_db, session) = prepared(", delivery => 'latest'").await?;
    let newest = pop().one(&session).await?;
    assert_eq!(counted(&session).await?[0], 19.0);
    complete(&session, &[newest]).await?;
    assert_eq!(counted(&session).await?[0], 20.0);
    Ok(())
}
