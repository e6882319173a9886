//! In REPEATABLE READ a conflict raises 40001 and never gives an outdated answer.

use std::slice;
use std::time::Duration;

use anyhow::Result;
use queen_tests::{
    Ack, Fails, Pop, Push, PushBatch, TestDb, complete, marker, n, numbers, put_if_absent, sorted,
};

fn pop() -> Pop {
    Pop::new("q").group("g").mode("all").batch(100).partitions(100)
}

#[tokio::test(flavor = "multi_thread")]
async fn a_whole_step_works_without_a_conflict() -> Result<()> {
    let db = TestDb::fresh().await?;
    let [ref session, ref other] = db.sessions().await?;
    Push::new("q", n(1)).run(session).await?;
    session.begin_snapshot().await?;
    // Pushes and other partitions are no conflict.
    Push::new("q", n(2)).run(other).await?;
    Push::new("q", n(3)).partition("b").run(other).await?;
    let came = pop().run(session).await?;
    assert_eq!(numbers(&came), [1], "the snapshot shows the first message alone");
    complete(session, &came).await?;
    Push::new("q", n(4)).run(session).await?;
    put_if_absent(session, "rr", "key", &n(1), "1 hour").await?;
    session.run("COMMIT").await?;
    assert_eq!(sorted(&pop().run(session).await?), [2, 3, 4]);
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn an_ack_behind_another_sessions_ack_is_a_conflict() -> Result<()> {
    let db = TestDb::fresh().await?;
    let [ref session, ref other] = db.sessions().await?;
    PushBatch::new("q", vec![n(1), n(2), n(3)]).run(session).await?;
    let held = pop().run(session).await?;
    let lease = held[0].lease()?;
    for (mine, theirs) in [(0, 0), (1, 1)] {
        session.begin_snapshot().await?;
        put_if_absent(session, "rr", "effect", &n(1), "1 hour").await?;
        Ack::messages(lease, [held[theirs].message_id]).run(other).await?;
        let ack = Ack::messages(lease, [held[mine].message_id]);
        ack.run(session).await.fails_with("40001")?;
        session.run("ROLLBACK").await?;
        assert_eq!(marker(session, "rr", "effect").await?, None);
    }
    session.begin_snapshot().await?;
    let settled = Ack::all(lease).run(session).await?;
    assert_eq!((settled.settled, settled.lease_released), (1, true));
    session.run("COMMIT").await?;
    assert_eq!(pop().run(other).await?, []);
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn a_pop_never_delivers_what_another_took_meanwhile() -> Result<()> {
    let db = TestDb::fresh().await?;
    let [ref session, ref other] = db.sessions().await?;
    session.run("SELECT queen_subscribe('q', 'g', mode => 'all')").await?;
    for round in 0..20 {
        let numbers = [4 * round, 4 * round + 1];
        PushBatch::new("q", numbers.map(n).to_vec()).run(session).await?;
        // In the first round the snapshot does not show the cursor, later it does.
        session.begin_snapshot().await?;
        let popped = pop().batch(1).one(other).await?;
        assert_eq!(popped.payload, n(numbers[0]));
        let completes = round % 2 == 0;
        if completes {
            complete(other, slice::from_ref(&popped)).await?;
        }
        match pop().run(session).await {
            // The pop may also skip the partition, which the other consumer may hold.
            Ok(came) => assert_eq!(came, [], "round {round}"),
            Err(error) => {
                Err::<(), _>(error).fails_with("40001")?;
            }
        }
        session.run("ROLLBACK").await?;
        if !completes {
            complete(other, &[popped]).await?;
        }
        let rest = pop().one(other).await?;
        assert_eq!((&rest.payload, rest.delivery_attempt), (&n(numbers[1]), 1));
        complete(other, &[rest]).await?;
    }
    assert_eq!(pop().run(session).await?, []);
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn a_pop_never_delivers_what_another_has_failed_meanwhile() -> Result<()> {
    let db = TestDb::fresh().await?;
    let [ref session, ref other] = db.sessions().await?;
    Push::new("q", n(1)).run(session).await?;
    let held = pop().one(other).await?;
    session.run("SELECT queen_configure('q', retry_delay => '1 hour')").await?;
    session.begin_snapshot().await?;
    Ack::all(held.lease()?).failed("later").run(other).await?;
    match pop().run(session).await {
        Ok(came) => assert_eq!(came, []),
        Err(error) => {
            Err::<(), _>(error).fails_with("40001")?;
        }
    }
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn a_marker_written_meanwhile_is_a_conflict() -> Result<()> {
    let db = TestDb::fresh().await?;
    let [ref session, ref other] = db.sessions().await?;
    session.begin_snapshot().await?;
    assert!(put_if_absent(other, "rr", "key", &n(1), "1 hour").await?.applied);
    put_if_absent(session, "rr", "key", &n(2), "1 hour").await.fails_with("40001")?;
    session.run("ROLLBACK").await?;
    let answer = put_if_absent(session, "rr", "key", &n(2), "1 hour").await?;
    assert_eq!((answer.applied, answer.value), (false, Some(n(1))));
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn a_twin_pushed_meanwhile_is_a_conflict() -> Result<()> {
    let db = TestDb::fresh().await?;
    let [ref session, ref other] = db.sessions().await?;
    Push::new("q", n(0)).run(session).await?;
    session.begin_snapshot().await?;
    let first = Push::new("q", n(1)).id("twin").run(other).await?;
    Push::new("q", n(2)).id("twin").run(session).await.fails_with("40001")?;
    session.run("ROLLBACK").await?;
    let second = Push::new("q", n(2)).id("twin").run(session).await?;
    assert_eq!((second.status.as_str(), second.message_id), ("duplicate", first.message_id));
    Ok(())
}

/// A lease that was given after the snapshot, in a partition that was new to the group, is not
/// visible. The answer is a plain conflict, never "unknown".
#[tokio::test(flavor = "multi_thread")]
async fn a_lease_given_after_the_snapshot_is_a_conflict() -> Result<()> {
    let db = TestDb::fresh().await?;
    let [ref frozen, ref other] = db.sessions().await?;
    for partition in ["a", "b", "c"] {
        Push::new("q", n(1)).partition(partition).run(other).await?;
    }
    frozen.run("BEGIN ISOLATION LEVEL REPEATABLE READ; SELECT 1").await?;
    let pop = Pop::new("q").group("g").mode("all");
    let one = pop.clone().partition("a").one(other).await?;
    let several = pop.batch(2).partitions(2).run(other).await?;
    for lease in [one.lease()?, several[0].lease()?] {
        frozen.run("SAVEPOINT s").await?;
        Ack::all(lease).run(frozen).await.fails_with("40001")?;
        frozen.run("ROLLBACK TO s").await?;
    }
    frozen.run("ROLLBACK").await?;
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn a_purge_behind_a_count_is_a_conflict() -> Result<()> {
    let db = TestDb::fresh().await?;
    let [ref session, ref other] = db.sessions().await?;
    session.run("SELECT queen_configure('q', max_depth => 1000000)").await?;
    session.run("SELECT queen_push('q', '1') FROM generate_series(1, 400)").await?;
    session.begin_snapshot().await?;
    // The stored depth is counted anew when it is older than a second.
    tokio::time::sleep(Duration::from_millis(1500)).await;
    Push::new("q", n(400)).run(other).await?;
    session.run("SELECT queen_purge('q')").await.fails_with("40001")?;
    session.run("ROLLBACK").await?;
    assert_eq!(session.count("SELECT queen_purge('q')").await?, 401);
    Ok(())
}
