//! Queen MQ's own tests of dead letters, written for the contract of queen_mq. The number at the
//! end of a name is that of the behaviour in the list that these tests follow.

use std::time::Duration;

use anyhow::Result;
use chrono::{DateTime, Utc};
use queen_tests::{
    Ack, Fails, Message, Pop, Push, Session, TestDb, at_once, complete, drain, eventually, n,
    numbers,
};
use serde_json::{Value, json};

const SOON: Duration = Duration::from_secs(10);

fn pop(queue: &str, group: &str) -> Pop {
    Pop::new(queue).group(group).mode("all").batch(100).partitions(100)
}

/// Push a number, and let the group make it a dead letter at once.
async fn bury(session: &Session, queue: &str, group: &str, number: i64) -> Result<Message> {
    let push = Push::new(queue, n(number)).id(format!("id {number}"));
    push.headers(json!({ "number": number })).run(session).await?;
    let held = pop(queue, group).one(session).await?;
    let ack = Ack::all(held.lease()?).failed(format!("no {number}")).status("dead_letter");
    assert_eq!(ack.run(session).await?.dead_lettered, 1);
    Ok(held)
}

/// The numbers of the dead letters that meet a condition, the newest first.
async fn letters(session: &Session, condition: &str) -> Result<Vec<i64>> {
    let sql = format!(
        "SELECT (payload ->> 'n')::bigint FROM queen_dead_letters WHERE {condition} \
         ORDER BY failed_at DESC"
    );
    Ok(session.query(&sql, &[]).await?.iter().map(|row| row.get(0)).collect())
}

async fn letter_id(session: &Session, number: i64) -> Result<i64> {
    let sql = "SELECT dead_letter_id FROM queen_dead_letters WHERE payload = $1";
    Ok(session.query_one(sql, &[&n(number)]).await?.get(0))
}

#[tokio::test(flavor = "multi_thread")]
async fn dead_letters_are_filtered_and_purged_and_live_messages_are_none_q66() -> Result<()> {
    let db = TestDb::fresh().await?;
    let session = db.session().await?;
    for (queue, group, number) in [("q", "g", 1), ("q", "g", 2), ("r", "g", 3), ("r", "g", 4)] {
        bury(&session, queue, group, number).await?;
    }
    // For another group these two messages are like any others.
    let other = pop("q", "h").run(&session).await?;
    assert_eq!(numbers(&other), [1, 2]);
    let ack = Ack::messages(other[0].lease()?, [other[0].message_id]).status("dead_letter");
    ack.run(&session).await?;
    assert_eq!(letters(&session, "queue = 'q' AND consumer_group = 'g'").await?, [2, 1]);
    assert_eq!(letters(&session, "consumer_group = 'h'").await?, [1]);
    assert_eq!(letters(&session, "queue = 'r' AND error = 'no 3'").await?, [3]);
    let page = "queue = 'r' AND failed_at < (SELECT max(failed_at) FROM queen_dead_letters \
                WHERE queue = 'r')";
    assert_eq!(letters(&session, page).await?, [3]);

    let purge = async |arguments: &str| {
        session.count(&format!("SELECT queen_dead_letter_purge({arguments})")).await
    };
    assert_eq!(purge("'q', older_than => '1 hour'").await?, 0);
    assert_eq!(purge("'q', 'h'").await?, 1);
    assert_eq!(letters(&session, "true").await?, [4, 3, 2, 1]);
    assert_eq!(purge("'q'").await?, 2);
    assert_eq!(purge("'q'").await?, 0);
    assert_eq!(letters(&session, "true").await?, [4, 3]);
    // The message that the other group holds is alive.
    let settled = Ack::all(other[0].lease()?).run(&session).await?;
    assert_eq!((settled.settled, settled.lease_released), (1, true));
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn a_replay_moves_the_message_to_its_group_and_wakes_who_waits_q66() -> Result<()> {
    let db = TestDb::fresh().await?;
    let session = db.session().await?;
    let dead = bury(&session, "q", "g", 1).await?;
    drain(&session, &pop("q", "h"), 1, SOON).await?;
    let popper = db.session().await?;
    let pid = popper.pid();
    let waiting = tokio::spawn(async move { pop("q", "g").wait("20 seconds").run(&popper).await });
    let sql = format!(
        "SELECT count(*) FROM pg_stat_activity WHERE pid = {pid} AND state = 'active' \
         AND query LIKE '%queen_pop%' \
         AND clock_timestamp() - query_start > interval '200 milliseconds'"
    );
    eventually(
        "pop that waits",
        SOON,
        async || Ok((session.count(&sql).await? == 1).then_some(())),
    )
    .await?;
    let sql = "SELECT message_id, transaction_id, clock_timestamp() \
               FROM queen_dead_letter_replay($1)";
    let row = session.query_one(sql, &[&letter_id(&session, 1).await?]).await?;
    let (message_id, transaction_id): (i64, String) = (row.get(0), row.get(1));
    assert_eq!((letters(&session, "true").await?, transaction_id.as_str()), (vec![], "id 1"));
    let came = waiting.await??;
    assert_eq!((numbers(&came), came[0].message_id), (vec![1], message_id));
    assert_eq!((&came[0].headers, came[0].delivery_attempt), (&dead.headers, 1));
    let replayed: DateTime<Utc> = row.get(2);
    let lease = chrono::TimeDelta::seconds(60);
    assert!(came[0].expires_at()? < replayed + lease + Duration::from_secs(5), "{came:?}");
    complete(&session, &came).await?;
    // The other group has already completed the message and does not get it again.
    Push::new("q", n(2)).run(&session).await?;
    assert_eq!(numbers(&drain(&session, &pop("q", "h"), 1, SOON).await?), [2]);
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn of_two_replays_at_once_one_moves_the_message_q66() -> Result<()> {
    let db = TestDb::fresh().await?;
    let session = db.session().await?;
    for number in 1..=10 {
        bury(&session, "q", "g", number).await?;
        let id = letter_id(&session, number).await?;
        let replays = at_once(db.crowd(2).await?, |_, session| async move {
            session.row("SELECT * FROM queen_dead_letter_replay($1)", &[&id]).await
        })
        .await?;
        let (moved, gone): (Vec<_>, Vec<_>) = replays.into_iter().partition(Result::is_ok);
        assert_eq!((moved.len(), gone.len()), (1, 1));
        for one in gone {
            one.fails_with("42704")?;
        }
        let came = drain(&session, &pop("q", "g"), 1, SOON).await?;
        assert_eq!(numbers(&came), [number]);
    }
    assert_eq!(letters(&session, "true").await?, [0; 0]);
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn a_message_is_replayed_once_for_each_time_it_died_q67() -> Result<()> {
    let db = TestDb::fresh().await?;
    let session = db.session().await?;
    bury(&session, "q", "g", 1).await?;
    let first = letter_id(&session, 1).await?;
    let replay = async |id: i64| {
        session.row("SELECT message_id FROM queen_dead_letter_replay($1)", &[&id]).await
    };
    // After a rollback the dead letter is there again.
    session.run("BEGIN").await?;
    replay(first).await?;
    replay(first).await.fails_with("42704")?;
    session.run("ROLLBACK").await?;
    assert_eq!(letter_id(&session, 1).await?, first);
    replay(first).await?;
    replay(first).await.fails_with("42704")?;
    let held = pop("q", "g").one(&session).await?;
    Ack::all(held.lease()?).status("dead_letter").run(&session).await?;
    // The message has failed again, and is a new dead letter.
    let second = letter_id(&session, 1).await?;
    assert_ne!(second, first);
    replay(first).await.fails_with("42704")?;
    replay(second).await?;
    let came = drain(&session, &pop("q", "g"), 1, SOON).await?;
    assert_eq!((&came[0].payload, came[0].transaction_id.as_str()), (&n(1), "id 1"));
    let payloads: Vec<Value> = session
        .query("SELECT payload FROM queen_dead_letters", &[])
        .await?
        .iter()
        .map(|row| row.get(0))
        .collect();
    assert_eq!(payloads, [Value::Null; 0]);
    Ok(())
}
