//! Pops try partitions first that have just been pushed to. What no hint is about is found as well.

use std::collections::BTreeSet;
use std::time::Duration;

use anyhow::{Result, ensure};
use queen_tests::{Pop, Push, Session, TestDb, complete, n, numbers};

fn pop(group: &str) -> Pop {
    Pop::new("q").group(group).mode("all")
}

async fn push_in_one(session: &Session, queue: &str, from: i64, to: i64) -> Result<()> {
    let sql = format!(
        "SELECT count(*) FROM (SELECT queen_push('{queue}', jsonb_build_object('n', i), 'p' || i)
             FROM generate_series({from}, {to}) AS i) AS pushed"
    );
    ensure!(session.count(&sql).await? == to - from + 1);
    Ok(())
}

/// All messages that single pops get until one gets none.
async fn drain(session: &Session, pop: &Pop) -> Result<Vec<i64>> {
    let mut all = Vec::new();
    loop {
        let came = pop.run(session).await?;
        if came.is_empty() {
            all.sort_unstable();
            return Ok(all);
        }
        all.extend(numbers(&came));
        complete(session, &came).await?;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn every_group_gets_every_message_of_more_partitions_than_there_are_hints() -> Result<()> {
    let db = TestDb::fresh().await?;
    let [ref pusher, ref consumer] = db.sessions().await?;
    for ordering in ["partition", "none"] {
        pusher.run(&format!("SELECT queen_configure('q', ordering => '{ordering}')")).await?;
        let groups = [format!("{ordering}-a"), format!("{ordering}-b")];
        for group in &groups {
            pusher.run(&format!("SELECT queen_subscribe('q', '{group}', 'new')")).await?;
            // The first pop asks for hints.
            assert_eq!(pop(group).run(consumer).await?, []);
        }
        push_in_one(pusher, "q", 1, 400).await?;
        for i in 401..=450 {
            Push::new("q", n(i)).partition(format!("p{i}")).run(pusher).await?;
        }
        for group in &groups {
            assert_eq!(drain(consumer, &pop(group)).await?, Vec::from_iter(1..=450), "{group}");
        }
    }
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn what_a_rolled_back_pop_was_given_is_popped_again() -> Result<()> {
    let db = TestDb::fresh().await?;
    let [ref pusher, ref one, ref other] = db.sessions().await?;
    pusher.run("SELECT queen_subscribe('q', 'g', 'new'), queen_configure('q')").await?;
    assert_eq!(pop("g").run(other).await?, []);
    for round in 0..40 {
        Push::new("q", n(round)).partition(format!("p{round}")).run(pusher).await?;
        one.run("BEGIN").await?;
        assert_eq!(numbers(&pop("g").run(one).await?), [round]);
        assert_eq!(pop("g").run(other).await?, []);
        one.run("ROLLBACK").await?;
        let came = pop("g").run(other).await?;
        assert_eq!(numbers(&came), [round]);
        complete(other, &came).await?;
    }
    Ok(())
}

/// How many of `old` messages, in partitions of their own, are left after so many turns in which a
/// new message is pushed and one is popped.
async fn left_of_old(old: i64, turns: i64) -> Result<usize> {
    let db = TestDb::fresh().await?;
    let [ref pusher, ref consumer] = db.sessions().await?;
    pusher.run("SELECT queen_configure('q'), queen_subscribe('q', 'g', 'all')").await?;
    assert_eq!(pop("g").run(consumer).await?, []);
    push_in_one(pusher, "q", 1, old).await?;
    // What has waited for less than a second is no backlog.
    tokio::time::sleep(Duration::from_millis(1100)).await;
    // More than there are hints, so that none is left for the old ones.
    for i in 0..150 {
        Push::new("q", n(5000 + i)).partition("new").run(pusher).await?;
    }
    let mut left: BTreeSet<i64> = (1..=old).collect();
    for turn in 0..turns {
        if left.is_empty() {
            break;
        }
        Push::new("q", n(10_000 + turn)).partition("new").run(pusher).await?;
        let came = pop("g").run(consumer).await?;
        left.remove(&numbers(&came)[0]);
        complete(consumer, &came).await?;
    }
    Ok(left.len())
}

/// Messages that wait from before are not put off for ever by those that keep coming.
#[tokio::test(flavor = "multi_thread")]
async fn old_messages_have_their_turn_while_new_ones_come() -> Result<()> {
    // One pop in 64 searches first.
    assert_eq!(left_of_old(3, 3000).await?, 0);
    Ok(())
}

/// With a backlog, pops go on with what has waited for longest.
#[tokio::test(flavor = "multi_thread")]
async fn a_backlog_is_worked_off_while_new_messages_come() -> Result<()> {
    let left = left_of_old(400, 1000).await?;
    ensure!(left < 150, "{left} of 400 old messages are left after 1000 turns");
    Ok(())
}
