//! What the figures of queues and groups cost, and which moment they show.

use std::time::Duration;

use anyhow::{Context, Result, ensure};
use queen_tests::cluster::Cluster;
use queen_tests::{Ack, Pop, Push, Session, TestDb, eventually, n};
use serde_json::Value;

const SOON: Duration = Duration::from_secs(20);

/// How many buffers a query touches.
async fn buffers(session: &Session, sql: &str) -> Result<i64> {
    let explain = format!("EXPLAIN (ANALYZE, BUFFERS, FORMAT JSON) {sql}");
    let plan: Value = session.query_one(&explain, &[]).await?.get(0);
    let count = |name: &str| plan[0]["Plan"][name].as_i64().context("no buffers");
    Ok(count("Shared Hit Blocks")? + count("Shared Read Blocks")?)
}

/// A queue with a group, and with so many partitions of one message each, of which every second
/// one was popped and acked.
async fn queue_of(session: &Session, queue: &str, ordering: &str, partitions: i64) -> Result<()> {
    let half = partitions / 2;
    session
        .run(&format!(
            "SELECT queen_configure('{queue}', ordering => '{ordering}');
             SELECT queen_subscribe('{queue}', 'g', 'all');
             SELECT queen_push_items((SELECT jsonb_agg(jsonb_build_object(
                 'queue', '{queue}', 'partition', 'p' || k, 'payload', k))
             FROM generate_series(1, {partitions}) AS k));
             SELECT queen_ack(lease_id) FROM (SELECT DISTINCT lease_id FROM queen_pop(
                 '{queue}', 'g', batch => {half}, partitions => {half})) AS popped"
        ))
        .await?;
    Ok(())
}

async fn pending(session: &Session, queue: &str) -> Result<i64> {
    let sql = format!("SELECT pending FROM queen_groups WHERE queue = '{queue}'");
    Ok(session.count(&sql).await?)
}

#[tokio::test(flavor = "multi_thread")]
async fn the_first_look_costs_by_the_partitions_and_the_next_by_what_has_changed() -> Result<()> {
    for ordering in ["partition", "none"] {
        let mut costs = Vec::new();
        for partitions in [400, 800] {
            let db = TestDb::fresh().await?;
            let [ref session, ref watching] = db.sessions().await?;
            queue_of(session, "q", ordering, partitions).await?;
            // What the first call of a session reads of the catalogue, and hints of the first look.
            pending(session, "q").await?;
            watching
                .run("SELECT queen_prometheus() WHERE false; SELECT * FROM queen_kv_get('n', 'k')")
                .await?;
            let sql = "SELECT * FROM queen_groups";
            let first = buffers(watching, sql).await?;
            let second = buffers(watching, sql).await?;
            let shared = buffers(watching, "SELECT * FROM queen_queues, queen_metrics()").await?;
            for number in 1..=5 {
                Push::new("q", n(number)).partition(format!("p{number}")).run(session).await?;
            }
            let third = buffers(watching, sql).await?;
            assert_eq!(pending(watching, "q").await?, partitions / 2 + 5);
            costs.push((first, second, shared, third));
        }
        let [(small, ..), (large, second, shared, third)] = costs[..] else { return Ok(()) };
        ensure!(large < small * 5 / 2, "{ordering}: {costs:?}");
        let rest = [second, shared, third];
        ensure!(rest.iter().all(|cost| *cost < large / 4), "{ordering}: {costs:?}");
    }
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn only_what_a_query_asks_for_is_looked_at() -> Result<()> {
    let db = TestDb::fresh().await?;
    let [ref session, ref admin] = db.sessions().await?;
    queue_of(session, "large", "partition", 600).await?;
    queue_of(session, "small", "partition", 2).await?;
    session.run("SELECT queen_subscribe('small', 'h', 'all')").await?;
    queue_of(session, "tiny", "partition", 2).await?;
    admin
        .run(
            "CREATE TABLE one AS SELECT 'small' AS queue;
             CREATE TABLE other AS SELECT 'tiny' AS queue;
             ANALYZE one, other, queen_mq.queue, queen_mq.consumer_group",
        )
        .await?;
    for view in ["queen_groups", "queen_queues", "queen_leases"] {
        for condition in [
            "WHERE queue = 'small'",
            "WHERE queue IN ('small', 'none')",
            "JOIN one USING (queue)",
            "WHERE queue = (SELECT queue FROM one)",
        ] {
            let sql = format!("SELECT * FROM {view} {condition}");
            // In a session of its own, which remembers nothing but what it has asked for.
            let session = db.session().await?;
            buffers(&session, &sql.replace("'small'", "'tiny'").replace("one", "other")).await?;
            let cost = buffers(&session, &sql).await?;
            ensure!(cost < 150, "{sql} touches {cost} buffers");
        }
    }
    let of_group = "SELECT * FROM queen_groups WHERE queue = 'small' AND consumer_group = 'h'";
    let plan = session.query(&format!("EXPLAIN (ANALYZE, FORMAT JSON) {of_group}"), &[]).await?;
    let plan: Value = plan[0].get(0);
    // Two groups are on the queue.
    assert_eq!(calls_of("group_figures", &plan), 1, "{plan}");
    Ok(())
}

/// How often a plan has called this function.
fn calls_of(function: &str, plan: &Value) -> i64 {
    let here = match plan["Function Name"] == function {
        true => plan["Actual Loops"].as_i64().unwrap_or(0),
        false => 0,
    };
    let below: i64 = match plan {
        Value::Array(all) => all.iter().map(|one| calls_of(function, one)).sum(),
        Value::Object(fields) => fields.values().map(|one| calls_of(function, one)).sum(),
        _ => 0,
    };
    here + below
}

#[tokio::test(flavor = "multi_thread")]
async fn the_figures_are_those_of_the_statements_snapshot() -> Result<()> {
    let db = TestDb::fresh().await?;
    let [ref session, ref other] = db.sessions().await?;
    queue_of(session, "q", "partition", 400).await?;
    assert_eq!(pending(session, "q").await?, 200);
    // A statement does not see what it does itself.
    let sql = "WITH pushed AS MATERIALIZED (SELECT queen_push('q', '1', 'p1'))
               SELECT pending FROM pushed CROSS JOIN queen_groups";
    assert_eq!(session.count(sql).await?, 200);
    assert_eq!(pending(session, "q").await?, 201);

    session.begin_snapshot().await?;
    assert_eq!(pending(session, "q").await?, 201);
    Push::new("q", n(1)).partition("p2").run(other).await?;
    assert_eq!(pending(other, "q").await?, 202);
    assert_eq!(pending(session, "q").await?, 201);
    session.run("COMMIT").await?;
    assert_eq!(pending(session, "q").await?, 202);
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn an_older_snapshot_shows_older_figures_and_spoils_no_newer_ones() -> Result<()> {
    let db = TestDb::fresh().await?;
    let [ref session, ref other] = db.sessions().await?;
    queue_of(other, "q", "partition", 400).await?;
    other.begin_snapshot().await?;
    let id: String = other.query_one("SELECT pg_export_snapshot()", &[]).await?.get(0);
    queue_of(session, "q", "partition", 400).await?;
    let now = pending(session, "q").await?;
    assert_eq!(now, 400);
    session
        .run(&format!("BEGIN ISOLATION LEVEL REPEATABLE READ; SET TRANSACTION SNAPSHOT '{id}'"))
        .await?;
    assert_eq!(pending(session, "q").await?, 200);
    session.run("COMMIT").await?;
    assert_eq!(pending(session, "q").await?, now);
    other.run("COMMIT").await?;
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn a_transaction_sees_its_own_writes_until_they_are_rolled_back() -> Result<()> {
    let db = TestDb::fresh().await?;
    let session = db.session().await?;
    queue_of(&session, "q", "partition", 400).await?;
    let in_flight = "SELECT in_flight FROM queen_groups WHERE queue = 'q'";
    assert_eq!(pending(&session, "q").await?, 200);
    session.run("BEGIN").await?;
    Push::new("q", n(1)).partition("p1").run(&session).await?;
    assert_eq!(pending(&session, "q").await?, 201);
    session.run("SAVEPOINT one").await?;
    Push::new("q", n(2)).partition("p1").run(&session).await?;
    Pop::new("q").group("g").batch(3).partitions(3).run(&session).await?;
    let now = (pending(&session, "q").await?, session.count(in_flight).await?);
    assert_eq!(now, (202, 3));
    session.run("ROLLBACK TO SAVEPOINT one").await?;
    let now = (pending(&session, "q").await?, session.count(in_flight).await?);
    assert_eq!(now, (201, 0));
    session.run("ROLLBACK").await?;
    assert_eq!(pending(&session, "q").await?, 200);
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn a_prepared_transaction_of_the_session_counts_when_it_commits() -> Result<()> {
    let db = TestDb::fresh().await?;
    let session = db.session().await?;
    queue_of(&session, "q", "partition", 400).await?;
    assert_eq!(pending(&session, "q").await?, 200);
    session.run("BEGIN").await?;
    Push::new("q", n(1)).partition("p1").run(&session).await?;
    assert_eq!(pending(&session, "q").await?, 201);
    session.run(&format!("PREPARE TRANSACTION '{}'", db.name())).await?;
    assert_eq!(pending(&session, "q").await?, 200);
    Push::new("q", n(1)).partition("p2").run(&session).await?;
    assert_eq!(pending(&session, "q").await?, 201);
    session.run(&format!("COMMIT PREPARED '{}'", db.name())).await?;
    assert_eq!(pending(&session, "q").await?, 202);
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn an_extension_that_was_created_anew_begins_anew() -> Result<()> {
    let db = TestDb::fresh().await?;
    let session = db.session().await?;
    queue_of(&session, "q", "partition", 400).await?;
    assert_eq!(pending(&session, "q").await?, 200);
    session.run("DROP EXTENSION queen_mq CASCADE; CREATE EXTENSION queen_mq").await?;
    queue_of(&session, "q", "partition", 300).await?;
    assert_eq!(pending(&session, "q").await?, 150);
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn partitions_go_with_their_last_message() -> Result<()> {
    let db = TestDb::fresh().await?;
    let [ref session, ref watching] = db.sessions().await?;
    // The messages of ten partitions, which are acked, are a day old in some seconds.
    session
        .run(
            "SELECT queen_push('q', '1', 'old' || k) FROM generate_series(1, 10) AS k;
             SELECT queen_pop('q', 'g', 10, partitions => 10, auto_ack => true,
                              subscription_mode => 'all');
             UPDATE queen_mq.segment
             SET created_at = now() - interval '1 day' + interval '4 s'",
        )
        .await?;
    queue_of(session, "q", "partition", 400).await?;
    let partitions = "SELECT partitions FROM queen_queues";
    watching.count(partitions).await?;
    eventually("end of ten partitions", SOON, async || {
        session.run("SELECT queen_sweep()").await?;
        let left = watching.count(partitions).await?;
        ensure!(left >= 400, "{left} partitions");
        Ok((left == 400).then_some(()))
    })
    .await?;
    // What comes, and is removed before the next look, has arrived all the same.
    session.run("SELECT queen_configure('q', completed_retention => '1 us')").await?;
    let arrived = "SELECT value::bigint FROM queen_metrics()
                   WHERE name = 'queen_queue_messages_pushed_total'";
    for number in 0..3 {
        eventually("end of what is settled", SOON, async || {
            session.run("SELECT queen_sweep()").await?;
            let left = session.count("SELECT count(*) FROM queen_messages").await?;
            Ok((left == 200).then_some(()))
        })
        .await?;
        assert_eq!(watching.count(arrived).await?, 410 + number);
        assert_eq!((watching.count(partitions).await?, pending(watching, "q").await?), (200, 200));
        Push::new("q", n(number)).partition("new").run(session).await?;
        Pop::new("q").group("g").partition("new").auto_ack().one(session).await?;
    }
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn a_standby_shows_what_has_been_replayed_and_goes_on_after_its_promotion() -> Result<()> {
    let cluster = Cluster::start_with("")?;
    let db = TestDb::create(&cluster.config()).await?;
    let [ref session, ref other] = db.sessions().await?;
    queue_of(session, "q", "partition", 400).await?;
    let standby = cluster.standby()?;
    let mut config = standby.config();
    let there = Session::open(config.dbname(db.name())).await?;
    let shows = async |expected: i64| {
        eventually("replayed messages", SOON, async || {
            let shown = pending(&there, "q").await.unwrap_or(0);
            ensure!(shown <= expected, "{shown} instead of {expected}");
            Ok((shown == expected).then_some(()))
        })
        .await
    };
    shows(200).await?;
    other.run("BEGIN").await?;
    Push::new("q", n(1)).partition("p1").run(other).await?;
    Push::new("q", n(2)).partition("p2").run(session).await?;
    shows(201).await?;
    other.run("COMMIT").await?;
    shows(202).await?;
    standby.promote()?;
    eventually("promotion", SOON, async || {
        Ok(Push::new("q", n(3)).partition("p3").run(&there).await.is_ok().then_some(()))
    })
    .await?;
    shows(203).await?;
    Push::new("q", n(4)).partition("p4").run(&there).await?;
    shows(204).await
}

/// A session follows a large group, and forgets it when others are asked for 64 times.
#[tokio::test(flavor = "multi_thread")]
async fn a_group_that_was_forgotten_is_counted_again() -> Result<()> {
    let db = TestDb::fresh().await?;
    let [session, watching] = db.sessions().await?;
    queue_of(&session, "large", "partition", 600).await?;
    Push::new("small", n(0)).run(&session).await?;
    session.run("SELECT queen_subscribe('small', 'g')").await?;
    let figures = "SELECT pending || ' ' || (last_pop_at IS NOT NULL) || ' '
                   || (oldest_pending_age IS NOT NULL) FROM queen_groups WHERE queue = 'large'";
    let row = watching.query_one(figures, &[]).await?;
    assert_eq!(row.get::<_, &str>(0), "300 true true");
    for number in 1..=70 {
        Push::new("small", n(number)).run(&session).await?;
        assert_eq!(pending(&watching, "small").await?, number);
    }
    let row = watching.query_one(figures, &[]).await?;
    assert_eq!(row.get::<_, &str>(0), "300 true true");
    let popped = Pop::new("large").group("g").batch(7).partitions(7).run(&session).await?;
    assert_eq!(popped.len(), 7);
    Ack::all(popped[0].lease()?).run(&session).await?;
    assert_eq!(pending(&watching, "large").await?, 293);
    Ok(())
}

/// The session has counted a message that the purge did not see.
#[tokio::test(flavor = "multi_thread")]
async fn a_purge_beside_a_push_is_noticed() -> Result<()> {
    let db = TestDb::fresh().await?;
    let [purging, session, watching] = db.sessions().await?;
    queue_of(&session, "q", "partition", 300).await?;
    let partitions = "SELECT partitions FROM queen_queues WHERE queue = 'q'";
    purging.run("BEGIN").await?;
    assert_eq!(purging.count("SELECT queen_purge('q')").await?, 300);
    Push::new("q", n(1)).partition("x").run(&session).await?;
    assert_eq!(watching.count(partitions).await?, 301);
    purging.run("COMMIT").await?;
    assert_eq!(watching.count(partitions).await?, 1);
    assert_eq!(pending(&watching, "q").await?, 1);
    Ok(())
}
