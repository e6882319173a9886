//! Topics: which queues get what is published, as other transactions bind and undo bindings.

use std::time::Duration;

use anyhow::Result;
use queen_tests::cluster::Cluster;
use queen_tests::{Fails, Session, TestDb, at_once, eventually};

/// The queues that get what is published on a topic, in the order in which the call returns them.
async fn publish(session: &Session, topic: &str) -> Result<Vec<String>> {
    let sql = "SELECT queue FROM queen_publish($1, '1')";
    Ok(session.rows(sql, &[&topic]).await?.iter().map(|row| row.get(0)).collect())
}

async fn flag(session: &Session, call: &str) -> Result<bool> {
    Ok(session.query_one(&format!("SELECT {call}"), &[]).await?.get(0))
}

#[tokio::test(flavor = "multi_thread")]
async fn a_binding_counts_when_it_is_committed_and_for_its_own_transaction_at_once() -> Result<()> {
    let db = TestDb::fresh().await?;
    let [session, other] = db.sessions().await?;
    other.be_prompt().await?;
    assert!(flag(&session, "queen_bind('a.*', 'one')").await?);
    for reader in [&session, &other] {
        assert_eq!(publish(reader, "a.b").await?, ["one"]);
    }
    session.run("BEGIN").await?;
    assert!(flag(&session, "queen_bind('a.#', 'two')").await?);
    assert!(flag(&session, "queen_unbind('a.*', 'one')").await?);
    assert_eq!(publish(&session, "a.b").await?, ["two"]);
    assert_eq!(publish(&other, "a.b").await?, ["one"]);
    session.run("COMMIT").await?;
    for reader in [&session, &other] {
        assert_eq!(publish(reader, "a.b").await?, ["two"]);
    }
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn a_binding_that_is_rolled_back_was_never_there() -> Result<()> {
    let db = TestDb::fresh().await?;
    let [session, other] = db.sessions().await?;
    session.run("SELECT queen_bind('#', 'all')").await?;
    for (begin, end) in [("BEGIN", "ROLLBACK"), ("BEGIN; SAVEPOINT s", "ROLLBACK TO s")] {
        session.run(begin).await?;
        session.run("SELECT queen_bind('x', 'more'), queen_unbind('#', 'all')").await?;
        assert_eq!(publish(&session, "x").await?, ["more"]);
        session.run(end).await?;
        for reader in [&session, &other] {
            assert_eq!(publish(reader, "x").await?, ["all"], "{end}");
        }
    }
    session.run("COMMIT").await?;
    assert_eq!(publish(&other, "x").await?, ["all"]);
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn in_repeatable_read_bindings_are_those_of_the_snapshot() -> Result<()> {
    let db = TestDb::fresh().await?;
    let [session, other] = db.sessions().await?;
    session.run("SELECT queen_bind('#', 'old')").await?;
    assert_eq!(publish(&session, "x").await?, ["old"]);
    session.begin_snapshot().await?;
    other.run("SELECT queen_bind('#', 'new'), queen_unbind('#', 'old')").await?;
    assert_eq!(publish(&session, "x").await?, ["old"]);
    session.query("SELECT queen_bind('#', 'new')", &[]).await.fails_with("40001")?;
    session.run("ROLLBACK").await?;
    session.begin_snapshot().await?;
    other.run("SELECT queen_unbind('#', 'new')").await?;
    session.query("SELECT queen_unbind('#', 'new')", &[]).await.fails_with("40001")?;
    session.run("ROLLBACK").await?;
    assert_eq!(publish(&session, "x").await?, [""; 0]);
    Ok(())
}

/// Two that publish to the same queues wait for each other's transaction_ids in one order.
#[tokio::test(flavor = "multi_thread")]
async fn publishes_to_the_same_queues_do_not_deadlock() -> Result<()> {
    let db = TestDb::fresh().await?;
    let session = db.session().await?;
    for (pattern, queue) in [("*.x", "z"), ("a.#", "a"), ("b.#", "a"), ("#", "m")] {
        session.run(&format!("SELECT queen_bind('{pattern}', '{queue}')")).await?;
    }
    let rounds = at_once(db.crowd(6).await?, |number, session| async move {
        let topic = if number % 2 == 0 { "a.x" } else { "b.x" };
        let mut queued = 0;
        for round in 0..20 {
            let sql = "SELECT count(*) FILTER (WHERE status = 'queued') \
                       FROM queen_publish($1, '1', transaction_id => $2)";
            let row = session.query_one(sql, &[&topic, &format!("{round}")]).await?;
            queued += row.get::<_, i64>(0);
        }
        anyhow::Ok(queued)
    })
    .await?;
    let mut queued = 0;
    for round in rounds {
        queued += round?;
    }
    assert_eq!(queued, 3 * 20, "each id is stored once in each queue");
    assert_eq!(session.count("SELECT count(*) FROM queen_messages").await?, 3 * 20);
    Ok(())
}

/// The deletion waits for an open transaction that undoes a binding, and keeps no push waiting.
#[tokio::test(flavor = "multi_thread")]
async fn a_deleted_queue_is_bound_no_more() -> Result<()> {
    let db = TestDb::fresh().await?;
    let [session, other, deleter] = db.sessions().await?;
    other.be_prompt().await?;
    session.run("SELECT queen_bind('#', 'q'), queen_bind('x', 'q'), queen_bind('x', 'r')").await?;
    assert_eq!(publish(&other, "x").await?, ["q", "r"]);
    session.run("BEGIN; SELECT queen_unbind('x', 'q')").await?;
    let pid = deleter.pid();
    let deletion = tokio::spawn(async move { deleter.run("SELECT queen_delete_queue('q')").await });
    let waits = format!("SELECT count(*) FROM pg_locks WHERE pid = {pid} AND NOT granted");
    eventually("deletion that waits", Duration::from_secs(20), async || {
        Ok((other.count(&waits).await? > 0).then_some(()))
    })
    .await?;
    assert_eq!(publish(&other, "y").await?, ["q"]);
    session.run("ROLLBACK").await?;
    deletion.await??;
    assert_eq!(publish(&other, "x").await?, ["r"]);
    assert_eq!(other.count("SELECT count(*) FROM queen_bindings").await?, 1);
    assert_eq!(other.count("SELECT count(*) FROM queen_queues WHERE queue = 'q'").await?, 0);
    Ok(())
}

/// A session that has published before reads no row of the table again.
#[tokio::test(flavor = "multi_thread")]
async fn a_publish_reads_no_bindings_again() -> Result<()> {
    let cluster = Cluster::start_new()?;
    let db = TestDb::create(&cluster.config()).await?;
    let [session, watcher] = db.sessions().await?;
    session
        .run("SELECT count(queen_bind('t.' || k, 'q' || k % 10)) FROM generate_series(1, 2000) k")
        .await?;
    // The first publish to each queue creates it. A new queue makes sessions read all again.
    for topic in 1..=10 {
        publish(&session, &format!("t.{topic}")).await?;
    }
    publish(&session, "t.7").await?;
    let reads = "SELECT pg_stat_force_next_flush()::text, pg_stat_clear_snapshot()::text";
    let scans = "SELECT seq_scan + idx_scan FROM pg_stat_user_tables WHERE relname = 'binding'";
    session.run(reads).await?;
    let before = watcher.count(scans).await?;
    for topic in 1..50 {
        assert_eq!(publish(&session, &format!("t.{topic}")).await?, [format!("q{}", topic % 10)]);
    }
    session.run(reads).await?;
    assert_eq!(watcher.count(scans).await?, before);
    drop(db);
    drop(cluster);
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn bindings_come_with_a_dump() -> Result<()> {
    let [old, new] = [Cluster::start_new()?, Cluster::start_new()?];
    let db = TestDb::create(&old.config()).await?;
    let session = db.session().await?;
    session.run("SELECT queen_bind('orders.*', 'q'), queen_bind('#', 'later')").await?;
    let file = old.file("dump");
    old.dump(db.name(), &file)?;
    let restored = TestDb::create_empty(&new.config()).await?;
    new.restore(restored.name(), &file)?;
    let session = restored.session().await?;
    assert_eq!(publish(&session, "orders.new").await?, ["later", "q"]);
    drop((db, restored));
    Ok(())
}
