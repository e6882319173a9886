//! `pending` stays exact when a transaction does several things, or two transactions do something
//! at once.

use std::time::{Duration, Instant};

use anyhow::Result;
use queen_tests::{Ack, Fails, Pop, Push, Session, TestDb, complete, n, numbers};

async fn pending(session: &Session, group: &str) -> Result<i64> {
    let sql = "SELECT pending FROM queen_groups WHERE consumer_group = $1";
    Ok(session.row(sql, &[&group]).await?.get(0))
}

async fn push(session: &Session, count: i64) -> Result<()> {
    for number in 1..=count {
        Push::new("q", n(number)).run(session).await?;
    }
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn a_group_moved_in_a_partition_it_has_never_read() -> Result<()> {
    let db = TestDb::fresh().await?;
    let session = db.session().await?;
    push(&session, 5).await?;
    session.run("SELECT queen_subscribe('q', 'g'), queen_subscribe('q', 'h')").await?;
    session.run("SELECT queen_seek('q', 'g', 'start', partition => 'Default')").await?;
    session.run("SELECT queen_seek('q', 'h', 'end', partition => 'Default')").await?;
    assert_eq!((pending(&session, "g").await?, pending(&session, "h").await?), (5, 0));
    push(&session, 1).await?;
    assert_eq!((pending(&session, "g").await?, pending(&session, "h").await?), (6, 1));
    let of_g = Pop::new("q").group("g").batch(9).auto_ack().run(&session).await?;
    let of_h = Pop::new("q").group("h").batch(9).auto_ack().run(&session).await?;
    assert_eq!((numbers(&of_g), numbers(&of_h)), (vec![1, 2, 3, 4, 5, 1], vec![1]));
    assert_eq!((pending(&session, "g").await?, pending(&session, "h").await?), (0, 0));
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn a_purge_of_what_the_transaction_has_pushed_itself() -> Result<()> {
    let db = TestDb::fresh().await?;
    let session = db.session().await?;
    session.run("SELECT queen_subscribe('q', 'g', 'all')").await?;
    push(&session, 3).await?;
    session.run("BEGIN").await?;
    push(&session, 2).await?;
    session.run("SELECT queen_purge('q')").await?;
    assert_eq!(pending(&session, "g").await?, 0);
    session.run("COMMIT").await?;
    assert_eq!(pending(&session, "g").await?, 0);
    push(&session, 1).await?;
    assert_eq!(pending(&session, "g").await?, 1);
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn a_sweep_beside_a_seek_neither_waits_for_it_nor_undoes_it() -> Result<()> {
    let db = TestDb::fresh().await?;
    let [ref seeking, ref sweeping] = db.sessions().await?;
    sweeping.be_prompt().await?;
    push(seeking, 5).await?;
    seeking.run("SELECT queen_subscribe('q', 'g')").await?;
    seeking.run("SELECT queen_configure('q', completed_retention => '1 us')").await?;
    seeking.run("BEGIN; SELECT queen_seek('q', 'g', 'start')").await?;
    sweeping.run("SELECT queen_sweep(1000)").await?;
    seeking.run("COMMIT").await?;
    assert_eq!(pending(seeking, "g").await?, 5);
    let came = Pop::new("q").group("g").batch(9).auto_ack().run(seeking).await?;
    assert_eq!(numbers(&came), [1, 2, 3, 4, 5]);
    sweeping.run("SELECT queen_sweep(1000)").await?;
    assert_eq!(sweeping.count("SELECT count(*) FROM queen_messages").await?, 0);
    assert_eq!(pending(seeking, "g").await?, 0);
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn a_purge_waits_for_the_first_pop_of_a_partition_and_takes_its_lease() -> Result<()> {
    let db = TestDb::fresh().await?;
    let [ref popping, ref purging] = db.sessions().await?;
    for group in [Some("g"), None] {
        push(popping, 3).await?;
        if group.is_some() {
            popping.run("SELECT queen_subscribe('q', 'g', 'all')").await?;
        }
        let mut pop = Pop::new("q").batch(3);
        if let Some(name) = group {
            pop = pop.group(name);
        }
        popping.run("BEGIN").await?;
        let came = pop.run(popping).await?;
        assert_eq!(numbers(&came), [1, 2, 3]);
        let purge = async {
            let purged = purging.count("SELECT queen_purge('q')").await;
            purged.map(|count| (count, Instant::now()))
        };
        let commit = async {
            tokio::time::sleep(Duration::from_millis(300)).await;
            popping.run("COMMIT").await.map(|()| Instant::now())
        };
        let (purged, committed) = tokio::join!(purge, commit);
        let ((count, at), committed) = (purged?, committed?);
        assert!(count == 3 && at + Duration::from_millis(100) > committed, "{count}");
        Ack::all(came[0].lease()?).run(popping).await.fails_with("QN002")?;
        push(popping, 4).await?;
        let sql = "SELECT pending FROM queen_groups WHERE consumer_group IS NOT DISTINCT FROM $1";
        assert_eq!(popping.row(sql, &[&group]).await?.get::<_, i64>(0), 4);
        popping.run("SELECT queen_purge('q')").await?;
    }
    Ok(())
}

/// Also when the messages are removed before the registration is visible, and its snapshot is older
/// than the removal.
#[tokio::test(flavor = "multi_thread")]
async fn a_group_that_is_registered_while_messages_are_removed() -> Result<()> {
    let db = TestDb::fresh().await?;
    let [ref session, ref other] = db.sessions().await?;
    push(session, 3).await?;
    session.begin_snapshot().await?;
    other.run("SELECT queen_purge('q')").await?;
    session.run("SELECT queen_subscribe('q', 'g', 'all'); COMMIT").await?;
    assert_eq!(pending(session, "g").await?, 0);
    push(other, 2).await?;
    assert_eq!(pending(session, "g").await?, 2);

    // Removed by age, while the registration is open.
    session.run("SELECT queen_configure('q', retention => '1 us')").await?;
    session.run("BEGIN; SELECT queen_subscribe('q', 'h', 'all')").await?;
    other.run("SELECT queen_sweep(1000)").await?;
    session.run("COMMIT").await?;
    other.run("SELECT queen_sweep(1000)").await?;
    assert_eq!(session.count("SELECT count(*) FROM queen_messages").await?, 0);
    assert_eq!((pending(session, "g").await?, pending(session, "h").await?), (0, 0));
    session.run("SELECT queen_configure('q', unset => '{retention}')").await?;
    push(other, 2).await?;
    other.run("SELECT queen_sweep(1000)").await?;
    assert_eq!((pending(session, "g").await?, pending(session, "h").await?), (2, 2));
    let came = Pop::new("q").group("h").batch(9).auto_ack().run(session).await?;
    assert_eq!(numbers(&came), [1, 2]);
    assert_eq!(pending(session, "h").await?, 0);
    Ok(())
}

/// The pop's snapshot is older than the removal of the messages it sees.
#[tokio::test(flavor = "multi_thread")]
async fn what_has_been_removed_is_not_delivered_to_an_older_snapshot() -> Result<()> {
    let db = TestDb::fresh().await?;
    let [ref session, ref other] = db.sessions().await?;
    for partition in ["read before", "never read"] {
        session.run("SELECT queen_subscribe('q', 'g', 'all')").await?;
        let pop = Pop::new("q").group("g").partition(partition).batch(9);
        for number in [1, 2] {
            Push::new("q", n(number)).partition(partition).run(session).await?;
        }
        if partition == "read before" {
            complete(session, &pop.clone().batch(1).run(session).await?).await?;
        }
        session.run("BEGIN ISOLATION LEVEL REPEATABLE READ").await?;
        session.count("SELECT count(*) FROM pg_class").await?;
        other.run("SELECT queen_configure('q', retention => '1 us')").await?;
        other.run("SELECT queen_sweep(1000)").await?;
        assert_eq!(other.count("SELECT count(*) FROM queen_messages").await?, 0);
        pop.run(session).await.fails_with("40001")?;
        session.run("ROLLBACK").await?;
        assert!(pop.run(session).await?.is_empty());
        other.run("SELECT queen_configure('q', unset => '{retention}')").await?;
        Push::new("q", n(3)).partition(partition).run(session).await?;
        assert_eq!(pending(session, "g").await?, 1);
        complete(session, &pop.run(session).await?).await?;
        assert_eq!(pending(session, "g").await?, 0);
    }
    Ok(())
}

/// A message that commits behind what its group has read is the oldest one that waits.
#[tokio::test(flavor = "multi_thread")]
async fn a_message_that_commits_late_has_its_age() -> Result<()> {
    for ordering in ["partition", "none"] {
        let db = TestDb::fresh().await?;
        let [ref session, ref late] = db.sessions().await?;
        session.run(&format!("SELECT queen_configure('q', ordering => '{ordering}')")).await?;
        let pop = Pop::new("q").group("g").mode("all").batch(9);
        late.run("BEGIN").await?;
        push(late, 1).await?;
        push(session, 3).await?;
        complete(session, &pop.run(session).await?).await?;
        // Claims are counted in the cursor.
        session.run("SELECT queen_sweep(); SELECT queen_sweep()").await?;
        let waits = "SELECT count(oldest_pending_age) FROM queen_groups";
        assert_eq!(session.count(waits).await?, 0, "{ordering}");
        late.run("COMMIT").await?;
        assert_eq!(session.count(waits).await?, 1, "{ordering}");
        tokio::time::sleep(Duration::from_millis(300)).await;
        push(session, 1).await?;
        let is_its_own = "SELECT count(*) FROM queen_groups g, queen_messages m
                          WHERE m.message_id = (SELECT min(message_id) FROM queen_messages)
                          AND g.oldest_pending_age >= now() - m.created_at";
        assert_eq!(session.count(is_its_own).await?, 1, "{ordering}");
        complete(session, &pop.run(session).await?).await?;
        session.run("SELECT queen_sweep(); SELECT queen_sweep()").await?;
        assert_eq!(session.count(waits).await?, 0, "{ordering}");
    }
    Ok(())
}
