//! All databases share the server's lock table. A call needs few entries of it, however much it
//! covers, and no lock that another role could take first.

use std::time::Duration;

use anyhow::Result;
use queen_tests::{Fails, Session, TestDb, eventually};

/// Enough for the relations of the extension, some more, and the object locks.
const FEW: i64 = 250;
/// The largest number of object locks in a transaction: those it can do without, and a few more.
const FEW_NAMED: i64 = 70;

/// The number of a session's locks, and how many of them are not on relations.
async fn locks_of(session: &Session, watcher: &Session) -> Result<(i64, i64)> {
    let sql =
        "SELECT count(*), count(*) FILTER (WHERE locktype = 'object') FROM pg_locks WHERE pid = $1";
    let row = watcher.row(sql, &[&session.pid()]).await?;
    Ok((row.get(0), row.get(1)))
}

async fn has_few_locks(what: &str, session: &Session, watcher: &Session) -> Result<()> {
    let (all, named) = locks_of(session, watcher).await?;
    assert!(all <= FEW && named <= FEW_NAMED, "{what}: {all} locks, {named} of them object locks");
    Ok(())
}

async fn push_to_partitions(session: &Session, queue: &str, partitions: i32) -> Result<()> {
    let pushed = session
        .count(&format!(
            "SELECT count(*) FROM queen_push_items((SELECT jsonb_agg(jsonb_build_object(
                 'queue', '{queue}', 'partition', 'p' || i, 'payload', i))
             FROM generate_series(1, {partitions}) i))"
        ))
        .await?;
    assert_eq!(pushed, i64::from(partitions));
    Ok(())
}

/// More than fit into the server's lock table.
const MANY: i32 = 16_000;

#[tokio::test(flavor = "multi_thread")]
async fn first_reads_of_many_partitions_leave_room_for_others() -> Result<()> {
    let db = TestDb::fresh().await?;
    let elsewhere = TestDb::fresh().await?;
    let [open, watcher] = db.sessions().await?;
    let neighbour = elsewhere.session().await?;
    open.run("SET statement_timeout = '300s'").await?;
    push_to_partitions(&open, "q", MANY).await?;
    open.run("SELECT queen_subscribe('q', 'g', 'all')").await?;
    open.run("BEGIN").await?;
    for _ in 0..MANY / 1000 {
        let popped = "SELECT count(*) FROM queen_pop('q', 'g', batch => 10000, partitions => 1000)";
        assert_eq!(open.count(popped).await?, 1000);
    }
    has_few_locks("pop", &open, &watcher).await?;
    neighbour.run("CREATE TABLE t (a int)").await?;
    open.run("COMMIT; BEGIN").await?;
    let moved = open.count("SELECT queen_seek('q', 'g', 'start')::bigint").await?;
    assert_eq!(moved, i64::from(MANY));
    has_few_locks("seek", &open, &watcher).await?;
    open.run("COMMIT; SELECT queen_subscribe('q', 'unread', 'all')").await?;
    open.run("BEGIN").await?;
    let moved = open.count("SELECT queen_seek('q', 'unread', 'start')::bigint").await?;
    assert_eq!(moved, i64::from(MANY));
    has_few_locks("seek of partitions not read before", &open, &watcher).await?;
    open.run("COMMIT").await?;
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn calls_over_many_partitions_take_few_locks() -> Result<()> {
    for ordering in ["partition", "none"] {
        let db = TestDb::fresh().await?;
        let [session, watcher] = db.sessions().await?;
        session
            .run(&format!(
                "SELECT queen_configure('q', ordering => '{ordering}', retention => '1 ms');
                 SELECT queen_subscribe('q', 'g', 'all')"
            ))
            .await?;
        push_to_partitions(&session, "q", 600).await?;
        let other = if ordering == "none" { "partition" } else { "none" };
        for call in [
            "SELECT queen_pop('q', 'g', batch => 300, partitions => 300, auto_ack => true)",
            "SELECT queen_pop('q', 'h', batch => 300, partitions => 300, \
                subscription_mode => 'all', auto_ack => true)",
            "SELECT queen_seek('q', 'g', 'start')",
            "SELECT queen_seek('q', 'h', 'end', partition => 'p7')",
            &format!("SELECT queen_configure('q', ordering => '{other}')"),
            "SELECT queen_sweep(2000)",
            "SELECT queen_unsubscribe('q', 'h')",
            "SELECT queen_purge('q')",
            "SELECT queen_delete_queue('q')",
        ] {
            session.run("BEGIN").await?;
            session.run(call).await?;
            has_few_locks(&format!("{ordering}: {call}"), &session, &watcher).await?;
            session.run("COMMIT").await?;
        }
    }
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn retention_without_order_removes_everything_in_the_end() -> Result<()> {
    let db = TestDb::fresh().await?;
    let session = db.session().await?;
    session.run("SELECT queen_configure('q', ordering => 'none', retention => '1 ms')").await?;
    session.run("SELECT queen_subscribe('q', 'g', 'all')").await?;
    session.run("SELECT queen_subscribe('q', 'h', 'all')").await?;
    push_to_partitions(&session, "q", 200).await?;
    eventually("end of the log", Duration::from_secs(30), async || {
        session.run("SELECT queen_sweep(1000)").await?;
        let left = session.count("SELECT count(*) FROM queen_messages").await?;
        Ok((left == 0).then_some(()))
    })
    .await?;
    // No group has read what was deleted, and no group has it pending.
    let pending = session.count("SELECT sum(pending)::bigint FROM queen_groups").await?;
    assert_eq!(pending, 0);
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn calls_over_many_queues_take_few_locks() -> Result<()> {
    let db = TestDb::fresh().await?;
    let [session, watcher] = db.sessions().await?;
    session
        .run(
            "DO $$ BEGIN FOR i IN 1..200 LOOP
                 PERFORM queen_configure('q' || i, max_depth => 1000000, retention => '1 ms',
                     ordering => CASE i % 2 WHEN 0 THEN 'none' END);
                 PERFORM queen_subscribe('q' || i, 'g', 'all');
             END LOOP; END $$",
        )
        .await?;
    // Every queue has a max_depth, so the pushes count what is pending.
    let push = "SELECT queen_push_items((SELECT jsonb_agg(jsonb_build_object('queue', 'q' || q,
                    'partition', 'p' || p, 'payload', 1)) FROM generate_series(1, 200) q,
                        generate_series(1, 5) p))";
    session.run("BEGIN").await?;
    session.run(push).await?;
    session.run(push).await?;
    has_few_locks("push", &session, &watcher).await?;
    session.run("COMMIT; BEGIN").await?;
    session.run("SELECT queen_sweep(10000)").await?;
    has_few_locks("sweep", &session, &watcher).await?;
    session.run("COMMIT").await?;
    eventually("empty logs", Duration::from_secs(50), async || {
        session.run("SELECT queen_sweep(5000)").await?;
        let left = session.count("SELECT count(*) FROM queen_messages").await?;
        Ok((left == 0).then_some(()))
    })
    .await
}

#[tokio::test(flavor = "multi_thread")]
async fn a_role_that_may_only_connect_stops_nothing() -> Result<()> {
    let db = TestDb::fresh().await?;
    let [admin, worker] = db.sessions().await?;
    let role = format!("{}_guest", db.name());
    admin.run(&format!("CREATE ROLE {role} LOGIN")).await?;
    let mut config = db.config().clone();
    config.user(&role);
    let guest = Session::open(&config).await?;
    let names = "SELECT count(pg_advisory_lock(hashtextextended(format(name, i), 0)))
                 FROM generate_series(1, 40) i,
                     unnest(ARRAY['queen_mq first reads %s', 'queen_mq tally %s',
                         'queen_mq discovery %s', 'queen_mq cursor %s Default',
                         'queen_mq takes %s Default']) name";
    guest.run(names).await?;
    guest.run("SELECT count(pg_advisory_lock(i)) FROM generate_series(0, 300) i").await?;
    guest
        .run(
            "SELECT count(pg_advisory_lock(c::int, i)) FROM generate_series(0, 60) i,
             (SELECT oid::bigint FROM pg_class
                 WHERE relnamespace = 'queen_mq'::regnamespace) AS t (c)",
        )
        .await?;
    for table in ["queue", "cursor", "claim", "tally", "consumer_group", "discovery"] {
        let lock = format!("BEGIN; LOCK TABLE queen_mq.{table} IN ACCESS SHARE MODE");
        guest.run(&lock).await.fails_with("42501")?;
        guest.run("ROLLBACK").await?;
    }
    worker.be_prompt().await?;
    worker.run("SELECT queen_configure('u', ordering => 'none')").await?;
    for queue in ["q", "u"] {
        worker
            .run(&format!("SELECT queen_push('{queue}', '1'), queen_push('{queue}', '2')"))
            .await?;
        for group in ["g", "h"] {
            let pop = format!(
                "SELECT count(*) FROM queen_pop('{queue}', '{group}', subscription_mode => 'all', \
                    auto_ack => true)"
            );
            assert_eq!(worker.count(&pop).await?, 1);
        }
        worker.run(&format!("SELECT queen_seek('{queue}', 'g', 'start')")).await?;
        worker.run(&format!("SELECT queen_purge('{queue}')")).await?;
        worker.run(&format!("SELECT queen_delete_queue('{queue}')")).await?;
    }
    drop(guest);
    admin.run(&format!("DROP ROLE {role}")).await?;
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn a_group_is_taken_care_of_whose_cursors_two_create_at_once() -> Result<()> {
    let db = TestDb::fresh().await?;
    let [open, other] = db.sessions().await?;
    other.be_prompt().await?;
    push_to_partitions(&open, "q", 2).await?;
    open.run("SELECT queen_subscribe('q', 'g', 'all')").await?;
    open.run("BEGIN; SAVEPOINT s").await?;
    let from_p1 = "SELECT count(*) FROM queen_pop('q', 'g', partition => 'p1', auto_ack => true)";
    assert_eq!(open.count(from_p1).await?, 1);
    assert_eq!(other.count(from_p1).await?, 0, "it is in the hands of the other");
    open.run("ROLLBACK TO s").await?;
    assert_eq!(other.count(from_p1).await?, 1, "what was rolled back is free");
    assert_eq!(open.count(from_p1).await?, 0);
    open.run("COMMIT").await?;
    let cursors = "SELECT count(*) FROM queen_mq.cursor WHERE partition = 'p1'";
    assert_eq!(other.count(cursors).await?, 1);
    Ok(())
}
