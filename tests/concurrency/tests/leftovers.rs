//! Removed queues, removed groups and ended leases leave nothing behind.

use anyhow::Result;
use queen_tests::{Pop, Push, TestDb, complete, n, numbers};

/// Leases have ended two hours earlier.
const TWO_HOURS_LATER: &str =
    "UPDATE queen_mq.receipt SET ended_at = ended_at - interval '2 hours';
     UPDATE queen_mq.progress SET ended_at = ended_at - interval '2 hours'";

#[tokio::test(flavor = "multi_thread")]
async fn what_is_pushed_into_a_queue_that_goes_goes_too() -> Result<()> {
    let db = TestDb::fresh().await?;
    let [ref late, ref other] = db.sessions().await?;
    let pop = Pop::new("q").group("g").mode("all").auto_ack();
    Push::new("q", n(1)).run(other).await?;
    assert_eq!(numbers(&pop.run(other).await?), [1]);
    late.run("BEGIN").await?;
    Push::new("q", n(2)).run(late).await?;
    other.run("SELECT queen_delete_queue('q')").await?;
    late.run("COMMIT").await?;
    // The next queue of this name does not have the message.
    Push::new("q", n(3)).run(other).await?;
    assert_eq!(numbers(&pop.run(other).await?), [3]);
    other.run("SELECT queen_sweep(1000)").await?;
    assert_eq!(other.count("SELECT count(*) FROM queen_mq.segment").await?, 1);
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn a_lease_over_several_partitions_is_forgotten_once_nothing_is_held() -> Result<()> {
    let db = TestDb::fresh().await?;
    let session = db.session().await?;
    let sets = "SELECT count(*) FROM queen_mq.lease_set";
    for number in [1, 2] {
        Push::new("q", n(number)).partition(format!("p{number}")).run(&session).await?;
    }
    let pop = Pop::new("q").group("g").mode("all").batch(2).partitions(2);
    let came = pop.run(&session).await?;
    assert_eq!((came.len(), came[0].lease_id), (2, came[1].lease_id));
    session
        .run("UPDATE queen_mq.lease_set SET created_at = created_at - interval '2 hours'")
        .await?;
    session.run("SELECT queen_sweep(1000)").await?;
    assert_eq!(session.count(sets).await?, 1);
    complete(&session, &came).await?;
    // The lease ended just now, long after it was given, so a repeated ack must be answered.
    session.run("SELECT queen_sweep(1000)").await?;
    assert_eq!(session.count(sets).await?, 1);
    session.run(TWO_HOURS_LATER).await?;
    session.run("SELECT queen_sweep(1000)").await?;
    session.run("SELECT queen_sweep(1000)").await?;
    assert_eq!(session.count(sets).await?, 0);
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn what_groups_and_queues_that_are_gone_have_left_goes_after_an_hour() -> Result<()> {
    let db = TestDb::fresh().await?;
    let session = db.session().await?;
    let left =
        "SELECT (SELECT count(*) FROM queen_mq.cursor) + (SELECT count(*) FROM queen_mq.progress)
                       + (SELECT count(*) FROM queen_mq.receipt)";
    for queue in ["kept", "removed", "left"] {
        for partition in ["a", "b"] {
            Push::new(queue, n(1)).partition(partition).run(&session).await?;
            let came = Pop::new(queue).group("g").mode("all").run(&session).await?;
            complete(&session, &came).await?;
        }
    }
    session.run("SELECT queen_delete_queue('removed')").await?;
    session.run("SELECT queen_unsubscribe('left', 'g')").await?;
    // A repeated ack is still answered for the removed group, and for the removed queue it is not.
    session.run("SELECT queen_sweep(1000)").await?;
    assert_eq!(session.count("SELECT count(*) FROM queen_mq.cursor").await?, 4);
    session.run(TWO_HOURS_LATER).await?;
    for _ in 0..2 {
        session.run("SELECT queen_sweep(1000)").await?;
    }
    // Two cursors are left, each with its newest state.
    assert_eq!(session.count(left).await?, 4);
    assert!(Pop::new("kept").group("g").run(&session).await?.is_empty());
    assert_eq!(session.count("SELECT sum(pending)::bigint FROM queen_groups").await?, 0);
    Ok(())
}
