//! A transaction_id is admitted once per queue and partition within the window.

use std::collections::HashMap;
use std::time::Duration;

use anyhow::{Result, ensure};
use chrono::{DateTime, TimeDelta, Utc};
use queen_tests::expect::sqlstate;
use queen_tests::{
    Item, Pop, Push, PushBatch, Pushed, Session, TestDb, at_once, drain, eventually, n, numbers,
};

const CROWD: usize = 8;

fn pop() -> Pop {
    Pop::new("q").group("g").mode("all").batch(100).partitions(100)
}

fn statuses(rows: &[Pushed]) -> Vec<&str> {
    rows.iter().map(|row| row.status.as_str()).collect()
}

async fn twins(sessions: Vec<Session>, id: &'static str) -> Result<Vec<Pushed>> {
    let rows = at_once(sessions, |worker, session| async move {
        Push::new("q", n(worker as i64)).id(id).run(&session).await
    })
    .await?;
    Ok(rows.into_iter().collect::<Result<_, _>>()?)
}

/// Check that one row is queued and the others are its duplicates. Returns the place of the queued
/// one.
fn one_queued(rows: &[Pushed]) -> Result<usize> {
    let queued: Vec<usize> = (0..rows.len()).filter(|n| rows[*n].status == "queued").collect();
    let [first] = queued[..] else { anyhow::bail!("{queued:?} of {rows:?} were queued") };
    for row in rows {
        ensure!(row.message_id == rows[first].message_id, "{rows:?}");
        ensure!(row.status == "queued" || row.status == "duplicate", "{row:?}");
        ensure!(row.transaction_id == rows[first].transaction_id, "{row:?}");
    }
    Ok(first)
}

#[tokio::test(flavor = "multi_thread")]
async fn of_eight_that_push_one_id_one_is_queued() -> Result<()> {
    let db = TestDb::fresh().await?;
    let session = db.session().await?;
    let mut expected = Vec::new();
    for id in ["one", "two", "three", "four", "five"] {
        let rows = twins(db.crowd(CROWD).await?, id).await?;
        expected.push(one_queued(&rows)? as i64);
    }
    let came = drain(&session, &pop(), expected.len(), Duration::from_secs(10)).await?;
    assert_eq!(numbers(&came), expected);
    Ok(())
}

/// Other pushes of the id wait for the outcome of an open push.
#[tokio::test(flavor = "multi_thread")]
async fn twins_wait_for_an_open_push() -> Result<()> {
    let db = TestDb::fresh().await?;
    let [ref session, ref open] = db.sessions().await?;
    Push::new("q", n(100)).run(session).await?;
    for (id, how) in [("kept", "COMMIT"), ("undone", "ROLLBACK")] {
        open.run("BEGIN").await?;
        let first = Push::new("q", n(101)).id(id).run(open).await?;
        let crowd = db.crowd(CROWD - 1).await?;
        let racing = tokio::spawn(twins(crowd, id));
        waiting(session, CROWD - 1).await?;
        // A push of another id does not wait.
        session.be_prompt().await?;
        Push::new("q", n(102)).id(format!("not {id}")).run(session).await?;
        open.run(how).await?;
        let rows = racing.await??;
        if how == "COMMIT" {
            assert!(rows.iter().all(|row| row.status == "duplicate"), "{rows:?}");
            assert!(rows.iter().all(|row| row.message_id == first.message_id), "{rows:?}");
        } else {
            one_queued(&rows)?;
        }
    }
    Ok(())
}

/// Wait until so many sessions have been waiting in a push for a while.
async fn waiting(session: &Session, crowd: usize) -> Result<()> {
    let sql = "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() \
               AND state = 'active' AND query LIKE '%queen_push%' AND pid <> pg_backend_pid() \
               AND clock_timestamp() - query_start > interval '200 milliseconds'";
    eventually("crowd that waits", Duration::from_secs(20), async || {
        Ok((session.count(sql).await? == crowd as i64).then_some(()))
    })
    .await
}

#[tokio::test(flavor = "multi_thread")]
async fn another_partition_or_queue_admits_the_id_again() -> Result<()> {
    let db = TestDb::fresh().await?;
    let session = db.session().await?;
    let mut ids = Vec::new();
    for (queue, partition) in [("q", "a"), ("q", "b"), ("r", "a")] {
        let push = Push::new(queue, n(1)).partition(partition).id("x");
        let first = push.run(&session).await?;
        assert_eq!(first.status, "queued");
        let again = push.run(&session).await?;
        assert_eq!((again.status.as_str(), again.message_id), ("duplicate", first.message_id));
        ids.push(first.message_id);
    }
    ids.sort_unstable();
    ids.dedup();
    assert_eq!(ids.len(), 3, "message ids are unique in the database");
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn a_duplicate_writes_nothing_also_after_the_first_was_consumed() -> Result<()> {
    let db = TestDb::fresh().await?;
    let session = db.session().await?;
    let first = Push::new("q", n(1)).id("x").run(&session).await?;
    drain(&session, &pop(), 1, Duration::from_secs(5)).await?;
    let again = Push::new("q", n(2)).id("x").run(&session).await?;
    assert_eq!((again.status.as_str(), again.message_id), ("duplicate", first.message_id));
    assert_eq!(pop().run(&session).await?, []);
    assert_eq!(session.count("SELECT count(*) FROM queen_messages").await?, 1);
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn an_id_is_free_again_after_the_window() -> Result<()> {
    let db = TestDb::fresh().await?;
    let session = db.session().await?;
    session.run("SELECT queen_configure('q', dedup_window => '700 milliseconds')").await?;
    let push = Push::new("q", n(1)).id("x");
    let first = push.run(&session).await?;
    let second = eventually("end of the window", Duration::from_secs(20), async || {
        let row = push.run(&session).await?;
        Ok((row.status == "queued").then_some(row))
    })
    .await?;
    assert!(second.message_id > first.message_id);
    let third = push.run(&session).await?;
    assert_eq!((third.status.as_str(), third.message_id), ("duplicate", second.message_id));
    let came = drain(&session, &pop(), 2, Duration::from_secs(5)).await?;
    let between: TimeDelta = came[1].created_at - came[0].created_at;
    ensure!(between >= TimeDelta::milliseconds(700), "the second was queued after {between}");
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn without_a_window_only_one_call_knows_duplicates() -> Result<()> {
    let db = TestDb::fresh().await?;
    let session = db.session().await?;
    session.run("SELECT queen_configure('q', dedup_window => '0')").await?;
    for _ in 0..2 {
        assert_eq!(Push::new("q", n(1)).id("x").run(&session).await?.status, "queued");
    }
    let ids = ["x", "y", "x"].map(|id| Some(id.to_owned())).to_vec();
    let batch = PushBatch::new("q", vec![n(2), n(3), n(4)]).ids(ids);
    let rows = batch.run(&session).await?;
    assert_eq!(statuses(&rows), ["queued", "queued", "duplicate"]);
    assert_eq!(rows[2].message_id, rows[0].message_id);
    let came = drain(&session, &pop(), 4, Duration::from_secs(5)).await?;
    assert_eq!(numbers(&came), [1, 1, 2, 3]);
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn equal_ids_in_one_call_leave_the_first() -> Result<()> {
    let db = TestDb::fresh().await?;
    let session = db.session().await?;
    let old = Push::new("q", n(0)).partition("a").id("old").run(&session).await?;
    let item = |partition: &str, id: Option<&str>, number| Item {
        queue: "q".into(),
        payload: n(number),
        partition: partition.into(),
        transaction_id: id.map(Into::into),
    };
    let items = [
        item("a", Some("x"), 1),
        item("b", Some("x"), 2),
        item("a", Some("old"), 3),
        item("a", Some("x"), 4),
        item("a", None, 5),
        item("a", None, 6),
        item("a", Some("y"), 7),
    ];
    let rows = Item::push(&items, &session).await?;
    let expected = ["queued", "queued", "duplicate", "duplicate", "queued", "queued", "queued"];
    assert_eq!(statuses(&rows), expected);
    assert_eq!(rows[2].message_id, old.message_id);
    assert_eq!(rows[3].message_id, rows[0].message_id);
    assert!(rows.iter().map(|row| row.ordinal).eq(1..=7));
    let a = drain(&session, &pop().partition("a"), 5, Duration::from_secs(5)).await?;
    assert_eq!(numbers(&a), [0, 1, 5, 6, 7]);
    let b = drain(&session, &pop(), 1, Duration::from_secs(5)).await?;
    assert_eq!(numbers(&b), [2]);
    Ok(())
}

/// Batches that overlap in any order admit each id once. Two of them may deadlock: then one has to
/// be run again.
#[tokio::test(flavor = "multi_thread")]
async fn overlapping_batches_admit_each_id_once() -> Result<()> {
    const IDS: i64 = 40;
    let db = TestDb::fresh().await?;
    let session = db.session().await?;
    let started: DateTime<Utc> = session.query_one("SELECT clock_timestamp()", &[]).await?.get(0);
    let rows = at_once(db.crowd(CROWD).await?, |worker, session| async move {
        let mut order: Vec<i64> = (0..IDS).collect();
        order.rotate_left(worker * 5);
        if worker % 2 == 1 {
            order.reverse();
        }
        let ids = order.iter().map(|id| Some(format!("id {id}"))).collect();
        let batch = PushBatch::new("q", order.iter().map(|id| n(*id)).collect()).ids(ids);
        loop {
            match batch.run(&session).await {
                Err(error) if sqlstate(&error) == Some("40P01") => {}
                done => return done,
            }
        }
    })
    .await?;
    let mut ids: HashMap<String, (usize, i64)> = HashMap::new();
    for row in rows.into_iter().collect::<Result<Vec<_>, _>>()?.into_iter().flatten() {
        let known = ids.entry(row.transaction_id).or_insert((0, row.message_id));
        assert_eq!(known.1, row.message_id);
        known.0 += usize::from(row.status == "queued");
    }
    assert_eq!(ids.len(), IDS as usize);
    assert!(ids.values().all(|(queued, _)| *queued == 1), "{ids:?}");
    let came = drain(&session, &pop(), IDS as usize, Duration::from_secs(10)).await?;
    assert!(came.iter().all(|one| one.created_at >= started));
    let mut came = numbers(&came);
    came.sort_unstable();
    assert!(came.into_iter().eq(0..IDS));
    Ok(())
}
