//! `queen_message_status` and `queen_blocked`: what they cost, and what they say while others work.

use std::time::Duration;

use anyhow::{Context, Result, ensure};
use queen_tests::{Ack, Pop, Push, Session, TestDb, expiry, n};
use serde_json::Value;

/// How many buffers a query touches.
async fn buffers(session: &Session, sql: &str) -> Result<i64> {
    let explain = format!("EXPLAIN (ANALYZE, BUFFERS, FORMAT JSON) {sql}");
    let plan: Value = session.query_one(&explain, &[]).await?.get(0);
    let count = |name: &str| plan[0]["Plan"][name].as_i64().context("no buffers");
    Ok(count("Shared Hit Blocks")? + count("Shared Read Blocks")?)
}

/// A queue with 25,000 messages in 5,000 partitions, 1,000 dead letters, 1,000 timers, and two
/// groups; 500 messages have been completed.
const BACKLOG: &str = "
    SELECT queen_subscribe('q', 'g', 'all'), queen_subscribe('q', 'other', 'all');
    SELECT count(*) FROM generate_series(1, 5000) AS p, queen_push_batch('q',
        '{1,2,3,4,5}', 'p' || p, ARRAY(SELECT p || '-' || i FROM generate_series(1, 5) AS i));
    SELECT count(*) FROM generate_series(1, 1000) AS i, queen_schedule('q', 'k' || i, '1', '1 h');
    DO $$
    BEGIN
        FOR i IN 1 .. 10 LOOP
            PERFORM queen_ack(lease_id, status => 'dead_letter', error => 'bad')
            FROM (SELECT DISTINCT lease_id FROM queen_pop('q', 'g', 100, partitions => 100)) AS l;
            PERFORM queen_ack(lease_id)
            FROM (SELECT DISTINCT lease_id FROM queen_pop('q', 'g', 50, partitions => 50)) AS l;
        END LOOP;
    END $$;
    ANALYZE";

#[tokio::test(flavor = "multi_thread")]
async fn both_cost_a_few_look_ups_with_any_backlog() -> Result<()> {
    let db = TestDb::alone().await?;
    let [ref session, ref fresh] = db.sessions().await?;
    session.run("SET statement_timeout = '300 s'").await?;
    session.run(BACKLOG).await?;
    let held = Pop::new("q").group("g").partition("p4999").lease("1 h").one(session).await?;
    let failed = Pop::new("q").group("g").partition("p5000").one(session).await?;
    Ack::all(failed.lease()?).failed("no network").run(session).await?;
    for sql in [
        // Leased, failed, never popped, dead, scheduled, derived, unknown.
        format!("SELECT * FROM queen_message_status('q', '{}', 'p4999')", held.transaction_id),
        "SELECT * FROM queen_message_status('q', '5000-1', 'p5000')".into(),
        "SELECT * FROM queen_message_status('q', '4000-5', 'p4000')".into(),
        "SELECT * FROM queen_message_status('q', (SELECT 'timer'), 'p1')".into(),
        "SELECT * FROM queen_message_status('q', 'msg-2800', 'p20')".into(),
        "SELECT * FROM queen_message_status('q', 'nothing', 'p7')".into(),
    ] {
        // The first call of a session reads the catalogue.
        buffers(session, &sql).await?;
        let cost = buffers(session, &sql).await?;
        ensure!(cost < 120, "{sql} touches {cost} buffers");
    }
    let dead = session
        .query_one(
            "SELECT transaction_id, partition FROM queen_dead_letters
                                  ORDER BY dead_letter_id OFFSET 700 LIMIT 1",
            &[],
        )
        .await?;
    let (id, partition): (String, String) = (dead.get(0), dead.get(1));
    let sql = format!("SELECT * FROM queen_message_status('q', '{id}', '{partition}')");
    buffers(session, &sql).await?;
    let cost = buffers(session, &sql).await?;
    ensure!(cost < 120, "{sql} touches {cost} buffers");
    let rows = session.query(&sql, &[]).await?;
    let states: Vec<(String, String)> =
        rows.iter().map(|row| (row.get("consumer_group"), row.get("state"))).collect();
    let expected = [("g", "dead_letter"), ("other", "pending")];
    assert_eq!(states, expected.map(|(group, state)| (group.to_owned(), state.to_owned())));

    // The leases of the last minute have been settled, and their partitions count as looked at.
    let blocked = "SELECT partition, state, last_error FROM queen_blocked WHERE queue = 'q'
                   ORDER BY partition";
    buffers(fresh, blocked).await?;
    let cost = buffers(fresh, blocked).await?;
    // 300 partitions have had a lease of late, 5,000 have messages.
    ensure!(cost < 8_000, "queen_blocked touches {cost} buffers");
    let rows = fresh.query(blocked, &[]).await?;
    let rows: Vec<(String, String, Option<String>)> =
        rows.iter().map(|row| (row.get(0), row.get(1), row.get(2))).collect();
    let row = |partition: &str, state: &str, error: Option<&str>| {
        (partition.to_owned(), state.to_owned(), error.map(str::to_owned))
    };
    let leased = row("p4999", "leased", None);
    assert_eq!(rows, [leased, row("p5000", "retrying", Some("no network"))]);
    Ok(())
}

/// Of partitions that were popped from and settled an hour ago, a look at what is blocked reads
/// none.
#[tokio::test(flavor = "multi_thread")]
async fn what_is_blocked_costs_by_the_leases_not_by_the_partitions() -> Result<()> {
    let db = TestDb::alone().await?;
    let session = &db.session().await?;
    session.run("SET statement_timeout = '300 s'").await?;
    // Each in a transaction of its own, as consumers work.
    for sql in [
        "SELECT queen_subscribe('q', 'g', 'all'), queen_configure('q', lease_time => '1 s')",
        "SELECT count(*) FROM generate_series(1, 5000) AS p, queen_push('q', '1', 'p' || p)",
        "DO $$
         BEGIN
             FOR i IN 1 .. 50 LOOP
                 PERFORM queen_ack(lease_id) FROM (
                     SELECT DISTINCT lease_id
                     FROM queen_pop('q', 'g', 100, partitions => 100, lease_time => '1 min')) l;
                 COMMIT;
             END LOOP;
         END $$",
        "SELECT count(*) FROM generate_series(1, 100) AS p, queen_push('q', '2', 'q' || p)",
        "SELECT count(*) FROM queen_pop('q', 'g', lease_time => '1 h')",
        "SELECT count(*) FROM queen_pop('q', 'g', 60, partitions => 60, auto_ack => true)",
        "SELECT count(*) FROM queen_sweep(5000)",
        "VACUUM queen_mq.progress",
    ] {
        session.run(sql).await.context(sql)?;
    }
    let held = Pop::new("q").group("g").partition("q99").lease("1 h").run(session).await?;
    ensure!(held.len() <= 1, "{held:?}");
    let sql = "SELECT * FROM queen_blocked";
    buffers(session, sql).await?;
    let rows = session.query(sql, &[]).await?.len() as i64;
    let cost = buffers(session, sql).await?;
    ensure!((1..=2).contains(&rows), "{rows} rows");
    ensure!(cost < 2_500, "{rows} rows touch {cost} buffers");
    Ok(())
}

async fn blocked(session: &Session) -> Result<Vec<(String, String, i32, Option<String>, bool)>> {
    let rows = session
        .query(
            "SELECT partition, state, failures, last_error, due_at <= clock_timestamp()
             FROM queen_blocked ORDER BY partition",
            &[],
        )
        .await?;
    Ok(rows.iter().map(|r| (r.get(0), r.get(1), r.get(2), r.get(3), r.get(4))).collect())
}

#[tokio::test(flavor = "multi_thread")]
async fn what_is_blocked_follows_pops_failures_expiry_and_the_sweep() -> Result<()> {
    let db = TestDb::fresh().await?;
    let [ref one, ref two] = db.sessions().await?;
    one.run("SELECT queen_subscribe('q', 'g', 'all'), queen_configure('q', retry_limit => 9)")
        .await?;
    for partition in ["a", "b", "c"] {
        Push::new("q", n(1)).partition(partition).run(one).await?;
        Push::new("q", n(2)).partition(partition).run(one).await?;
    }
    let pop = |partition: &str| Pop::new("q").group("g").partition(partition);
    let row = |partition: &str, state: &str, failures, error: Option<&str>, is_due| {
        (partition.to_owned(), state.to_owned(), failures, error.map(str::to_owned), is_due)
    };
    // An open transaction shows its own pop to itself alone.
    one.run("BEGIN").await?;
    let held = pop("a").one(one).await?;
    assert_eq!(blocked(one).await?, [row("a", "leased", 0, None, false)]);
    assert_eq!(blocked(two).await?, []);
    one.run("COMMIT").await?;
    assert_eq!(blocked(two).await?, [row("a", "leased", 0, None, false)]);
    Ack::all(held.lease()?).failed("first").run(one).await?;
    let short = pop("b").lease("100 ms").one(one).await?;
    expiry(one, &short).await?;
    let expected =
        [row("a", "retrying", 1, Some("first"), true), row("b", "retrying", 0, None, true)];
    assert_eq!(blocked(two).await?, expected);
    // The sweep puts back what the lease held, and a pop of another partition searches past it.
    two.run("SELECT count(*) FROM queen_sweep(1000)").await?;
    assert_eq!(blocked(two).await?, expected);
    for _ in 0..3 {
        let came = Pop::new("q").group("g").batch(1).run(two).await?;
        ensure!(came.len() == 1, "{came:?}");
    }
    let states: Vec<_> = blocked(one).await?.into_iter().map(|(p, state, ..)| (p, state)).collect();
    assert_eq!(states, ["a", "b", "c"].map(|p| (p.to_owned(), "leased".to_owned())));
    two.run("SELECT queen_ack(lease_id) FROM queen_leases").await?;
    assert_eq!(blocked(one).await?, []);
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn the_status_follows_a_message_through_the_transactions_of_others() -> Result<()> {
    let db = TestDb::fresh().await?;
    let [ref one, ref two] = db.sessions().await?;
    let status = async |session: &Session| -> Result<Option<String>> {
        let row = session.query_opt("SELECT state FROM queen_message_status('q', 'x')", &[]);
        Ok(row.await?.map(|row| row.get(0)))
    };
    let is = |state: &str| Some(state.to_owned());
    one.run("SELECT queen_subscribe('q', 'g', 'all'); BEGIN").await?;
    Push::new("q", n(1)).id("x").run(one).await?;
    assert_eq!((status(one).await?, status(two).await?), (is("pending"), None));
    one.run("COMMIT").await?;
    two.begin_snapshot().await?;
    let held = Pop::new("q").group("g").one(one).await?;
    // In REPEATABLE READ as of the transaction's snapshot.
    assert_eq!((status(one).await?, status(two).await?), (is("leased"), is("pending")));
    two.run("COMMIT; BEGIN READ ONLY").await?;
    assert_eq!(status(two).await?, is("leased"));
    two.run("COMMIT").await?;
    one.run("BEGIN").await?;
    Ack::all(held.lease()?).run(one).await?;
    assert_eq!((status(one).await?, status(two).await?), (is("completed"), is("leased")));
    one.run("ROLLBACK").await?;
    assert_eq!(status(one).await?, is("leased"));
    one.run(&format!("BEGIN; SELECT queen_ack('{}')", held.lease()?)).await?;
    one.run(&format!("PREPARE TRANSACTION '{}'", db.name())).await?;
    assert_eq!(status(one).await?, is("leased"));
    one.run(&format!("COMMIT PREPARED '{}'", db.name())).await?;
    assert_eq!(status(two).await?, is("completed"));
    tokio::time::sleep(Duration::from_millis(1)).await;
    Ok(())
}
