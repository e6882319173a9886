//! Queen MQ's own tests of consumer groups, written for the contract of queen_mq. The number at the
//! end of a name is that of the behaviour in the list that these tests follow.

use std::time::Duration;

use anyhow::Result;
use chrono::{DateTime, Utc};
use queen_tests::{
    Ack, Fails, Message, Pop, Push, PushBatch, Session, TestDb, complete, drain, eventually,
    expiry, n, numbers,
};

const SOON: Duration = Duration::from_secs(10);

fn pop(group: &str) -> Pop {
    Pop::new("q").group(group).batch(100).partitions(100)
}

async fn push(session: &Session, partition: &str, from: i64, to: i64) -> Result<()> {
    PushBatch::numbers("q", from..=to).partition(partition).run(session).await?;
    Ok(())
}

/// Pop for a new group that starts at this time.
async fn pop_from(session: &Session, group: &str, from: DateTime<Utc>) -> Result<Vec<Message>> {
    let sql = "SELECT * FROM queen_pop('q', $1, batch => 100, partitions => 100, \
               subscription_from => $2)";
    let rows = session.query(sql, &[&group, &from]).await?;
    Ok(rows.iter().map(Message::from).collect())
}

/// How many partitions a seek has moved.
async fn seek(session: &Session, group: Option<&str>, to: &str) -> Result<i32> {
    let sql = format!("SELECT queen_seek('q', $1, {to})");
    Ok(session.query_one(&sql, &[&group]).await?.get(0))
}

#[tokio::test(flavor = "multi_thread")]
async fn a_group_begins_now_at_the_beginning_or_at_a_time_q37() -> Result<()> {
    let db = TestDb::fresh().await?;
    let session = db.session().await?;
    push(&session, "a", 1, 2).await?;
    let time = session.now().await?;
    push(&session, "a", 3, 3).await?;
    push(&session, "a", 4, 4).await?;
    // Mode `new`, by default and by name.
    assert_eq!(pop("default").run(&session).await?, []);
    assert_eq!(pop("new").mode("new").run(&session).await?, []);
    let all = pop("all").mode("all").run(&session).await?;
    assert_eq!(numbers(&all), [1, 2, 3, 4]);
    let from = pop_from(&session, "from", time).await?;
    assert_eq!(numbers(&from), [3, 4]);
    // A message of exactly this time is included.
    let exactly = pop_from(&session, "exactly", from[1].created_at).await?;
    assert_eq!(numbers(&exactly), [4]);
    for held in [all, from, exactly] {
        complete(&session, &held).await?;
    }

    push(&session, "a", 5, 5).await?;
    push(&session, "born later", 6, 7).await?;
    for group in ["default", "new", "all", "from", "exactly"] {
        // The mode of a later call changes nothing for a registered group.
        let pop = pop(group).mode("all");
        let came = drain(&session, &pop.clone().partition("a"), 1, SOON).await?;
        assert_eq!(numbers(&came), [5], "{group}");
        let came = drain(&session, &pop, 2, SOON).await?;
        assert_eq!(numbers(&came), [6, 7], "{group}");
    }
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn a_single_push_is_seen_by_each_group_that_was_registered_before_it_q37() -> Result<()> {
    let db = TestDb::fresh().await?;
    let session = db.session().await?;
    // The groups are registered by name only: the queue does not exist yet.
    assert_eq!(pop("popped").run(&session).await?, []);
    session.run("SELECT queen_subscribe('q', 'subscribed')").await?;
    Push::new("q", n(1)).run(&session).await?;
    for group in ["popped", "subscribed"] {
        assert_eq!(numbers(&drain(&session, &pop(group), 1, SOON).await?), [1], "{group}");
    }
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn without_a_group_everything_comes_whatever_the_mode_q38() -> Result<()> {
    let db = TestDb::fresh().await?;
    let session = db.session().await?;
    push(&session, "a", 1, 2).await?;
    let came = Pop::new("q").batch(100).mode("new").run(&session).await?;
    assert_eq!(numbers(&came), [1, 2]);
    assert!(came.iter().all(|one| one.consumer_group.is_none()));
    complete(&session, &came).await?;
    push(&session, "a", 3, 3).await?;
    assert_eq!(numbers(&drain(&session, &Pop::new("q"), 1, SOON).await?), [3]);
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn a_group_that_is_removed_begins_anew_and_others_do_not_notice_q39() -> Result<()> {
    let db = TestDb::fresh().await?;
    let session = db.session().await?;
    push(&session, "a", 1, 2).await?;
    push(&session, "b", 1, 1).await?;
    for group in ["removed", "other"] {
        drain(&session, &pop(group).mode("all"), 3, SOON).await?;
    }
    push(&session, "b", 2, 2).await?;
    let held = pop("removed").one(&session).await?;
    let sql = "SELECT queen_unsubscribe('q', 'removed')";
    assert!(session.query_one(sql, &[]).await?.get::<_, bool>(0));
    assert!(!session.query_one(sql, &[]).await?.get::<_, bool>(0));
    Ack::all(held.lease()?).run(&session).await.fails_with("QN002")?;
    let a = drain(&session, &pop("removed").mode("all").partition("a"), 2, SOON).await?;
    let b = drain(&session, &pop("removed").mode("all").partition("b"), 2, SOON).await?;
    assert_eq!((numbers(&a), numbers(&b)), (vec![1, 2], vec![1, 2]));
    assert!(a.iter().chain(&b).all(|one| one.delivery_attempt == 1));
    assert_eq!(numbers(&drain(&session, &pop("other"), 1, SOON).await?), [2]);
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn a_seek_replays_or_skips_in_one_partition_or_in_all_q39() -> Result<()> {
    let db = TestDb::fresh().await?;
    let session = db.session().await?;
    for partition in ["a", "b"] {
        push(&session, partition, 1, 2).await?;
    }
    let all = pop("g").mode("all");
    drain(&session, &all, 4, SOON).await?;
    let time = session.now().await?;
    push(&session, "a", 3, 4).await?;
    assert_eq!(seek(&session, Some("g"), "to_time => '1970-01-01 00:00:00+00'").await?, 2);
    let replay = drain(&session, &all, 6, SOON).await?;
    assert!(replay.iter().all(|one| one.delivery_attempt == 1), "{replay:?}");
    assert_eq!(seek(&session, Some("g"), "'start', partition => 'a'").await?, 1);
    assert_eq!(numbers(&drain(&session, &all, 4, SOON).await?), [1, 2, 3, 4]);
    let to_time = format!("to_time => '{}', partition => 'a'", time.to_rfc3339());
    assert_eq!(seek(&session, Some("g"), &to_time).await?, 1);
    assert_eq!(numbers(&drain(&session, &all, 2, SOON).await?), [3, 4]);

    push(&session, "a", 5, 6).await?;
    push(&session, "b", 5, 6).await?;
    assert_eq!(seek(&session, Some("g"), "'end'").await?, 2);
    assert_eq!(all.run(&session).await?, []);
    push(&session, "a", 7, 7).await?;
    assert_eq!(numbers(&drain(&session, &all, 1, SOON).await?), [7]);
    // Queue mode is a group like any other.
    drain(&session, &Pop::new("q").batch(100), 11, SOON).await?;
    assert_eq!(seek(&session, None, "'start'").await?, 2);
    drain(&session, &Pop::new("q").batch(100), 11, SOON).await?;
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn a_seek_releases_leases_and_resets_counts_q39() -> Result<()> {
    let db = TestDb::fresh().await?;
    let session = db.session().await?;
    session.run("SELECT queen_configure('q', retry_limit => 1)").await?;
    push(&session, "a", 1, 2).await?;
    let all = pop("g").mode("all");
    for to in ["'start'", "to_time => '1970-01-01 00:00:00+00'"] {
        let failed = all.run(&session).await?;
        Ack::messages(failed[0].lease()?, [failed[0].message_id])
            .failed("no")
            .run(&session)
            .await?;
        let held = all.run(&session).await?;
        assert_eq!((numbers(&held), held[0].delivery_attempt), (vec![1, 2], 2));
        assert_eq!(seek(&session, Some("g"), to).await?, 1);
        assert_eq!(session.count("SELECT count(*) FROM queen_leases").await?, 0);
        Ack::all(held[0].lease()?).run(&session).await.fails_with("QN002")?;
    }
    // The failure before the seek is not counted, so the message survives one more.
    let held = all.run(&session).await?;
    assert!(held.iter().all(|one| one.delivery_attempt == 1), "{held:?}");
    let failed = Ack::all(held[0].lease()?).failed("no").run(&session).await?;
    assert_eq!((failed.settled, failed.dead_lettered), (2, 0));
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn a_seek_needs_one_place_to_go_to_and_a_group_that_exists_q39() -> Result<()> {
    let db = TestDb::fresh().await?;
    let session = db.session().await?;
    push(&session, "a", 1, 1).await?;
    drain(&session, &pop("g").mode("all"), 1, SOON).await?;
    for (arguments, sqlstate) in [
        ("'q', 'g'", "22023"),
        ("'q', 'g', 'start', now()", "22023"),
        ("'q', 'g', 'middle'", "22023"),
        ("'q', 'absent', 'start'", "42704"),
        ("'q', NULL, 'start'", "42704"),
        ("'nowhere', 'g', 'start'", "42704"),
    ] {
        let sql = format!("SELECT queen_seek({arguments})");
        session.query(&sql, &[]).await.fails_with(sqlstate)?;
    }
    assert_eq!(pop("g").run(&session).await?, []);
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn who_lags_behind_and_by_how_much_is_shown_q40() -> Result<()> {
    let db = TestDb::fresh().await?;
    let session = db.session().await?;
    for group in ["idle", "busy", "done"] {
        session.run(&format!("SELECT queen_subscribe('q', '{group}', 'all')")).await?;
    }
    push(&session, "a", 1, 4).await?;
    push(&session, "b", 1, 3).await?;
    let pushed = session.now().await?;
    drain(&session, &pop("done"), 7, SOON).await?;
    // Group `busy`: in a, one message is completed, one in flight, two not delivered; in b, all
    // three are given back.
    let a = pop("busy").partition("a").batch(2).run(&session).await?;
    Ack::messages(a[0].lease()?, [a[0].message_id]).run(&session).await?;
    let b = pop("busy").partition("b").lease("100 milliseconds").run(&session).await?;
    expiry(&session, &b[0]).await?;
    eventually("age", SOON, async || {
        Ok((session.now().await? - pushed > chrono::TimeDelta::milliseconds(300)).then_some(()))
    })
    .await?;
    let rows = session
        .query(
            "SELECT consumer_group, pending, in_flight, retrying, \
             oldest_pending_age > '300 milliseconds' FROM queen_groups WHERE queue = 'q' \
             ORDER BY pending",
            &[],
        )
        .await?;
    let rows: Vec<(String, i64, i64, i64, Option<bool>)> = rows
        .iter()
        .map(|row| (row.get(0), row.get(1), row.get(2), row.get(3), row.get(4)))
        .collect();
    let expected = [
        ("done".to_owned(), 0, 0, 0, None),
        ("busy".to_owned(), 6, 1, 3, Some(true)),
        ("idle".to_owned(), 7, 0, 0, Some(true)),
    ];
    assert_eq!(rows, expected);
    // The depth of a queue is that of its slowest group.
    assert_eq!(session.count("SELECT depth FROM queen_queues").await?, 7);
    session.run("SELECT queen_unsubscribe('q', 'idle')").await?;
    assert_eq!(session.count("SELECT depth FROM queen_queues").await?, 6);
    Ok(())
}
