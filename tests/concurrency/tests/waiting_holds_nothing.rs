//! Waiting pops hold no lock. Pops that race do not wait for each other, and do not fail because an
//! index is being built.

use std::time::{Duration, Instant};

use anyhow::{Result, ensure};
use queen_tests::waiting::are_asleep;
use queen_tests::{TestDb, eventually};

const SOON: Duration = Duration::from_secs(10);

/// Counts the object locks of a session.
const HOLDS: &str = "SELECT count(*) FROM pg_locks WHERE pid = $1 AND locktype = 'object'";

async fn a_pop_that_waits_holds_nothing(ordering: &str) -> Result<()> {
    let db = TestDb::fresh().await?;
    let [setup, first, waiting, watcher] = db.sessions().await?;
    setup
        .run(&format!(
            "SELECT queen_configure('q', ordering => '{ordering}');
             SELECT queen_subscribe('q', 'g', 'all');
             SELECT queen_push('q', '1')"
        ))
        .await?;
    // The first session reads first; the other one finds a message, and comes too late for it.
    first.run("BEGIN; SELECT queen_pop('q', 'g')").await?;
    let pid = waiting.pid();
    let task = tokio::spawn(async move {
        waiting.count("SELECT count(*) FROM queen_pop('q', 'g', wait => '8 s')").await
    });
    tokio::time::sleep(Duration::from_millis(500)).await;
    first.run("COMMIT").await?;
    eventually("hold nothing", Duration::from_secs(3), async || {
        let held: i64 = watcher.row(HOLDS, &[&pid]).await?.get(0);
        Ok((held == 0).then_some(()))
    })
    .await?;
    let began = Instant::now();
    watcher.run("SELECT queen_seek('q', 'g', 'end')").await?;
    ensure!(began.elapsed() < Duration::from_secs(3), "the seek waited for a pop that waits");
    task.await??;
    Ok(())
}

#[tokio::test]
async fn a_pop_that_waits_keeps_no_seek_waiting_in_an_ordered_group() -> Result<()> {
    a_pop_that_waits_holds_nothing("partition").await
}

#[tokio::test]
async fn a_pop_that_waits_keeps_no_seek_waiting_in_a_group_without_order() -> Result<()> {
    a_pop_that_waits_holds_nothing("none").await
}

/// REINDEX CONCURRENTLY has a second unique index on the key for a while, and leaves one behind
/// when it is interrupted.
#[tokio::test]
async fn pops_that_race_go_by_each_index_of_the_key() -> Result<()> {
    let db = TestDb::fresh().await?;
    let setup = db.session().await?;
    setup
        .run(
            "CREATE UNIQUE INDEX left_behind ON queen_mq.claim (group_id, partition, message_id);
             SELECT queen_configure('q', ordering => 'none');
             SELECT queen_subscribe('q', 'g', 'all')",
        )
        .await?;
    let mut tasks = Vec::new();
    for session in db.crowd(8).await? {
        tasks.push(tokio::spawn(async move {
            let mut popped = 0;
            while popped < 1 << 30 {
                let pop = "SELECT count(*) FROM queen_pop('q', 'g', wait => '2 s') AS p,
                                LATERAL queen_ack(p.lease_id)";
                match session.count(pop).await? {
                    0 => break,
                    n => popped += n,
                }
            }
            Ok::<_, anyhow::Error>(popped)
        }));
    }
    for _ in 0..400 {
        setup.run("SELECT queen_push('q', '1')").await?;
    }
    let mut popped = 0;
    for task in tasks {
        popped += tokio::time::timeout(6 * SOON, task).await???;
    }
    ensure!(popped == 400, "{popped} of 400 were popped");
    Ok(())
}

/// A pop that is too late for a partition has taken its lock. It must not keep the lock while it
/// waits for the next message: no ack of the partition would get done in time.
#[tokio::test]
async fn a_pop_that_was_late_and_waits_keeps_no_ack_waiting() -> Result<()> {
    let db = TestDb::fresh().await?;
    let setup = db.session().await?;
    setup.run("SELECT queen_subscribe('q', 'g', 'all')").await?;
    let until = Instant::now() + Duration::from_secs(10);
    let mut tasks = Vec::new();
    for session in db.crowd(16).await? {
        tasks.push(tokio::spawn(async move {
            let mut slowest = Duration::ZERO;
            while Instant::now() < until {
                let pop = "SELECT lease_id::text FROM queen_pop('q', 'g', wait => '9 s')";
                for row in session.rows(pop, &[]).await? {
                    let began = Instant::now();
                    session.run(&format!("SELECT queen_ack('{}')", row.get::<_, &str>(0))).await?;
                    slowest = slowest.max(began.elapsed());
                }
            }
            Ok::<_, anyhow::Error>(slowest)
        }));
    }
    while Instant::now() < until {
        setup.run("SELECT queen_push('q', '1', partition => 'p' || (random() * 2)::int)").await?;
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    for task in tasks {
        let slowest = task.await??;
        ensure!(slowest < Duration::from_secs(3), "an ack took {slowest:?}");
    }
    Ok(())
}

/// The message for a new group is still delayed: the group is not registered before it can be
/// delivered.
#[tokio::test]
async fn a_pop_that_waits_for_a_delay_holds_no_registration() -> Result<()> {
    let db = TestDb::fresh().await?;
    let [setup, waiting, other] = db.sessions().await?;
    setup.run("SELECT queen_configure('q', delay => '5 s'); SELECT queen_push('q', '1')").await?;
    let pop =
        "SELECT count(*) FROM queen_pop('q', 'g', wait => '20 s', subscription_mode => 'all')";
    let task = tokio::spawn(async move { waiting.count(pop).await });
    tokio::time::sleep(Duration::from_secs(1)).await;
    let began = Instant::now();
    other.run("SELECT queen_subscribe('q', 'g', 'all'); SELECT queen_purge('other')").await.ok();
    ensure!(began.elapsed() < Duration::from_secs(2), "to subscribe took {:?}", began.elapsed());
    ensure!(task.await?? == 1, "the message did not come");
    Ok(())
}

/// The transaction that was registering the group is rolled back.
#[tokio::test]
async fn a_pop_that_waits_registers_a_group_whose_registration_was_rolled_back() -> Result<()> {
    let db = TestDb::fresh().await?;
    let [setup, first, waiting] = db.sessions().await?;
    setup.run("SELECT queen_push('q', '1')").await?;
    first.run("BEGIN; SELECT queen_subscribe('q', 'g', 'all')").await?;
    let pop =
        "SELECT count(*) FROM queen_pop('q', 'g', wait => '20 s', subscription_mode => 'all')";
    let task = tokio::spawn(async move { waiting.count(pop).await });
    tokio::time::sleep(Duration::from_secs(1)).await;
    first.run("ROLLBACK").await?;
    setup.run("SELECT queen_push('q', '2')").await?;
    ensure!(task.await?? == 1, "the message did not come");
    Ok(())
}

/// A group that is removed while a pop waits is registered anew, from then on.
#[tokio::test]
async fn a_pop_that_waits_registers_a_group_that_was_removed() -> Result<()> {
    let db = TestDb::fresh().await?;
    let setup = db.session().await?;
    for removal in ["queen_unsubscribe('q', 'g')", "queen_delete_queue('q')"] {
        let waiting = db.session().await?;
        setup.run("SELECT queen_configure('q'); SELECT queen_subscribe('q', 'g', 'all')").await?;
        let pop = "SELECT count(*) \
                   FROM queen_pop('q', 'g', wait => '20 s', subscription_mode => 'all')";
        let task = tokio::spawn(async move { waiting.count(pop).await });
        are_asleep(&setup, 1).await?;
        setup.run(&format!("SELECT {removal}")).await?;
        setup.run("SELECT queen_push('q', '1')").await?;
        ensure!(task.await?? == 1, "the message did not come after {removal}");
        assert_eq!(setup.count("SELECT in_flight FROM queen_groups WHERE queue = 'q'").await?, 1);
        setup.run("SELECT queen_delete_queue('q')").await?;
    }
    Ok(())
}

/// The queue comes to be between the two looks of a pop that waits: for the queue, and for what the
/// group is to read.
#[tokio::test]
async fn a_pop_that_waits_finds_what_comes_while_it_prepares_a_group() -> Result<()> {
    let db = TestDb::fresh().await?;
    let [setup, waiting, pushing] = db.sessions().await?;
    // Where there is no queue, a call reads this table.
    pushing.run("BEGIN; LOCK TABLE queen_mq.identity").await?;
    let pop = "SELECT count(*) \
               FROM queen_pop('q', 'g', wait => '30 s', subscription_mode => 'all')";
    let task = tokio::spawn(async move { waiting.count(pop).await.map(|n| (n, Instant::now())) });
    eventually("a pop that waits for the table", Duration::from_secs(20), async || {
        let waits = "SELECT count(*) FROM pg_locks WHERE NOT granted \
                     AND relation = 'queen_mq.identity'::regclass";
        Ok((setup.count(waits).await? == 1).then_some(()))
    })
    .await?;
    pushing.run("SELECT queen_push('q', '1'); COMMIT").await?;
    let committed = Instant::now();
    let (popped, at) = task.await??;
    ensure!(popped == 1, "the message did not come");
    let late = at.saturating_duration_since(committed);
    ensure!(late < Duration::from_secs(15), "it came {late:?} later");
    Ok(())
}

/// A seek that ends in an error gives back at once what it kept from other sessions.
#[tokio::test]
async fn a_pop_that_waits_is_woken_where_a_seek_ends_in_an_error() -> Result<()> {
    let db = TestDb::fresh().await?;
    let [setup, first, waiting, seeking] = db.sessions().await?;
    setup
        .run("SELECT queen_subscribe('q', 'g', 'all'); SELECT queen_push('q', '1', 'held')")
        .await?;
    first.run("BEGIN; SELECT queen_pop('q', 'g')").await?;
    let pop = "SELECT count(*) FROM queen_pop('q', 'g', wait => '20 s')";
    let task = tokio::spawn(async move { waiting.count(pop).await.map(|n| (n, Instant::now())) });
    tokio::time::sleep(Duration::from_millis(500)).await;
    seeking.run("SET lock_timeout = '95 ms'").await?;
    let seek = tokio::spawn(async move { seeking.run("SELECT queen_seek('q', 'g', 'end')").await });
    tokio::time::sleep(Duration::from_millis(40)).await;
    setup.run("SELECT queen_push('q', '2', 'free')").await?;
    ensure!(seek.await?.is_err(), "the seek did not wait for the first session");
    let ended = Instant::now();
    let (popped, at) = task.await??;
    ensure!(popped == 1, "the message did not come");
    let late = at.saturating_duration_since(ended);
    ensure!(late < Duration::from_secs(2), "it came {late:?} later");
    first.run("ROLLBACK").await?;
    Ok(())
}

async fn a_seek_wakes_who_waits(ordering: &str) -> Result<()> {
    let db = TestDb::fresh().await?;
    let [setup, waiting] = db.sessions().await?;
    setup
        .run(&format!(
            "SELECT queen_configure('q', ordering => '{ordering}');
             SELECT queen_subscribe('q', 'g', 'all'); SELECT queen_push('q', '1')"
        ))
        .await?;
    let pop = "SELECT count(*) FROM queen_pop('q', 'g', wait => '20 s', auto_ack => true)";
    ensure!(waiting.count(pop).await? == 1, "the message did not come");
    let mut slowest = Duration::ZERO;
    for _ in 0..10 {
        let woken = async { waiting.count(pop).await.map(|n| (n, Instant::now())) };
        let moved = async {
            tokio::time::sleep(Duration::from_millis(100)).await;
            setup.run("SELECT queen_seek('q', 'g', 'start')").await.map(|()| Instant::now())
        };
        let (woken, moved) = tokio::join!(woken, moved);
        let ((popped, at), moved) = (woken?, moved?);
        ensure!(popped == 1, "the message did not come again");
        slowest = slowest.max(at.saturating_duration_since(moved));
    }
    ensure!(slowest < Duration::from_secs(2), "it came {slowest:?} later");
    Ok(())
}

#[tokio::test]
async fn a_pop_that_waits_is_woken_by_a_seek_in_an_ordered_group() -> Result<()> {
    a_seek_wakes_who_waits("partition").await
}

/// After the seek the group has another id, which the session learns when the transaction ends.
#[tokio::test]
async fn a_pop_that_waits_is_woken_by_a_seek_in_a_group_without_order() -> Result<()> {
    a_seek_wakes_who_waits("none").await
}
