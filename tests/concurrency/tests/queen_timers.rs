//! Queen MQ's own tests of timers, written for the contract of queen_mq. The number at the end of a
//! name is that of the behaviour in the list that these tests follow.

use std::time::Duration;

use anyhow::{Result, ensure};
use chrono::{DateTime, TimeDelta, Utc};
use queen_tests::{Fails, Message, Pop, Push, Session, TestDb, drain, n, numbers};
use serde_json::{Value, json};
use tokio_postgres::{Error, Row};

const SOON: Duration = Duration::from_secs(10);

fn pop() -> Pop {
    Pop::new("q").group("g").mode("all").batch(100).partitions(100)
}

/// `queen_schedule` with a number as payload, and these further arguments.
async fn schedule(session: &Session, key: &str, number: i64, when: &str) -> Result<Row, Error> {
    let sql = format!(
        "SELECT status, transaction_id, deliver_at FROM queen_schedule('q', $1, $2, {when})"
    );
    session.query_one(&sql, &[&key, &n(number)]).await
}

async fn cancel(session: &Session, key: &str) -> Result<bool> {
    Ok(session.row("SELECT queen_cancel('q', $1)", &[&key]).await?.get(0))
}

async fn pending(session: &Session) -> Result<i64> {
    Ok(session.count("SELECT count(*) FROM queen_timers").await?)
}

/// Pop and complete this many messages, in order.
async fn came(session: &Session, total: usize) -> Result<Vec<Message>> {
    drain(session, &pop(), total, SOON).await
}

#[tokio::test(flavor = "multi_thread")]
async fn a_timer_fires_at_its_time_and_a_past_one_at_once_q61() -> Result<()> {
    let db = TestDb::fresh().await?;
    let session = db.session().await?;
    let before = session.now().await?;
    let row = schedule(&session, "later", 1, "delay => '500 milliseconds'").await?;
    let after = session.now().await?;
    let (status, made_up): (String, String) = (row.get(0), row.get(1));
    let deliver_at: DateTime<Utc> = row.get(2);
    assert_eq!(status, "scheduled");
    let delay = TimeDelta::milliseconds(500);
    assert!((before + delay..=after + delay).contains(&deliver_at), "{deliver_at}");
    assert_eq!(session.count("SELECT count(*) FROM queen_messages").await?, 0);
    let past = "deliver_at => now() - interval '1 day', partition => 'p', \
                transaction_id => 'promised', headers => '{\"h\": 1}'";
    schedule(&session, "past", 2, past).await?;

    let first = pop().one(&session).await?;
    assert_eq!((&first.payload, first.partition.as_str()), (&n(2), "p"));
    assert_eq!(first.transaction_id, "promised");
    assert_eq!(first.headers, Some(json!({ "h": 1 })));
    // created_at is the time at which the message entered the log.
    assert!(first.created_at >= after, "{first:?}");
    let second = came(&session, 1).await?.remove(0);
    assert_eq!((&second.payload, &second.transaction_id), (&n(1), &made_up));
    assert!(second.created_at >= deliver_at, "{second:?} came before {deliver_at}");
    assert_eq!(pending(&session).await?, 0);
    Ok(())
}

/// Also the pop that registers its group.
#[tokio::test(flavor = "multi_thread")]
async fn a_pop_that_waits_gets_a_timer_at_its_time_q61() -> Result<()> {
    let db = TestDb::fresh().await?;
    let session = db.session().await?;
    session.run("SELECT queen_subscribe('q', 'registered', 'all')").await?;
    for pop in [
        Pop::new("q").group("registered"),
        Pop::new("q").group("first").mode("all"),
        Pop::new("q").group("first, from now on"),
        Pop::new("q"),
    ] {
        session.run("SELECT queen_purge(queue) FROM queen_queues").await?;
        let row = schedule(&session, "k", 1, "delay => '400 milliseconds'").await?;
        let pop = pop.wait("5 seconds");
        let came = pop.one(&session).await?;
        let waited = came.expires_at()? - TimeDelta::seconds(60) - row.get::<_, DateTime<Utc>>(2);
        ensure!(waited >= TimeDelta::zero(), "it came too early, by {waited}: {pop:?}");
        // The limit is generous: the machine may be busy.
        ensure!(waited < TimeDelta::seconds(2), "it came {waited} after its time: {pop:?}");
    }
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn a_cancelled_timer_never_fires_and_an_unknown_one_is_none_q62() -> Result<()> {
    let db = TestDb::fresh().await?;
    let session = db.session().await?;
    schedule(&session, "cancelled", 1, "delay => '300 milliseconds'").await?;
    schedule(&session, "later", 2, "delay => '600 milliseconds'").await?;
    assert!(cancel(&session, "cancelled").await?);
    assert!(!cancel(&session, "cancelled").await?);
    assert!(!cancel(&session, "never").await?);
    // When the later timer has fired, the cancelled one would have fired, too.
    assert_eq!(numbers(&came(&session, 1).await?), [2]);
    assert!(!cancel(&session, "later").await?, "it has fired");
    assert_eq!(pop().run(&session).await?, []);
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn a_timer_of_the_same_key_replaces_the_other_q63() -> Result<()> {
    let db = TestDb::fresh().await?;
    let session = db.session().await?;
    schedule(&session, "k", 1, "delay => '400 milliseconds', transaction_id => 'first'").await?;
    let row = schedule(&session, "k", 2, "delay => '700 milliseconds'").await?;
    let (status, transaction_id): (String, String) = (row.get(0), row.get(1));
    assert_eq!(status, "rescheduled");
    assert_ne!(transaction_id, "first");
    let sql = "SELECT queue, timer_key, partition, transaction_id, deliver_at, payload \
               FROM queen_timers";
    let shown = session.query_one(sql, &[]).await?;
    let names: Vec<String> = (0..4).map(|column| shown.get(column)).collect();
    assert_eq!(names, ["q", "k", "Default", &transaction_id]);
    assert_eq!(shown.get::<_, DateTime<Utc>>(4), row.get::<_, DateTime<Utc>>(2));
    assert_eq!(shown.get::<_, Value>(5), n(2));
    let came = came(&session, 1).await?;
    assert_eq!((numbers(&came), &came[0].transaction_id), (vec![2], &transaction_id));
    // The key is free again, and the id of the replaced timer was never pushed.
    let row = schedule(&session, "k", 3, "delay => '1 hour'").await?;
    assert_eq!(row.get::<_, String>(0), "scheduled");
    assert_eq!(Push::new("q", n(4)).id("first").run(&session).await?.status, "queued");
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn a_timer_of_a_bundle_is_there_after_its_commit_only_q64() -> Result<()> {
    let db = TestDb::fresh().await?;
    let [ref session, ref other] = db.sessions().await?;
    let timers = |number: i64| {
        json!([
            { "op": "schedule", "queue": "q", "timerKey": "k", "payload": n(number),
              "delayMs": 600, "transactionId": "promised" },
            { "op": "cancel", "queue": "q", "timerKey": "none" },
        ])
    };
    let sql = "SELECT queen_tx_commit(kv => $1, timers => $2)";
    // One bundle meets its condition, and one does not.
    let gate = |value: i64| {
        json!([{ "op": "putIfAbsent", "ns": "ns", "key": "k", "value": value, "forever": true,
                 "required": true }])
    };
    session.run("BEGIN").await?;
    session.query_one(sql, &[&gate(1), &timers(1)]).await?;
    assert_eq!((pending(session).await?, pending(other).await?), (1, 0));
    session.run("ROLLBACK").await?;
    assert_eq!(pending(session).await?, 0);

    session.run("BEGIN").await?;
    let answer: Value = session.query_one(sql, &[&gate(2), &timers(2)]).await?.get(0);
    session.run("COMMIT").await?;
    let results = &answer["results"];
    let statuses = [&results[1]["status"], &results[2]["status"]];
    assert_eq!(statuses, [&json!("scheduled"), &json!("absent")], "{answer}");
    assert_eq!(results[1]["transactionId"], json!("promised"));
    assert_eq!(pending(other).await?, 1);
    let lost: Value = session.query_one(sql, &[&gate(3), &timers(3)]).await?.get(0);
    assert_eq!((&lost["success"], &lost["reason"]), (&json!(false), &json!("kv_precondition")));
    // The refused bundle has not rescheduled the timer.
    let came = came(session, 1).await?;
    assert_eq!((numbers(&came), came[0].transaction_id.as_str()), (vec![2], "promised"));
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn timers_are_listed_and_fields_of_the_server_are_refused_q65() -> Result<()> {
    let db = TestDb::fresh().await?;
    let session = db.session().await?;
    for number in 1..=5 {
        let partition = format!("delay => '1 hour', partition => 'p{}'", number % 2);
        schedule(&session, &format!("remind:{number}"), number, &partition).await?;
    }
    schedule(&session, "other", 6, "delay => '1 hour'").await?;
    let sql = "SELECT array_agg(timer_key ORDER BY timer_key) FROM queen_timers \
               WHERE queue = 'q' AND starts_with(timer_key, 'remind:') AND partition = 'p1'";
    let keys: Vec<String> = session.query_one(sql, &[]).await?.get(0);
    assert_eq!(keys, ["remind:1", "remind:3", "remind:5"]);
    assert_eq!(pending(&session).await?, 6);
    for (field, value) in [
        ("messageId", json!(1)),
        ("status", json!("scheduled")),
        ("createdAt", json!("2020-01-01T00:00:00Z")),
        ("tenant", json!("t")),
    ] {
        let mut timer = json!({ "op": "schedule", "queue": "q", "timerKey": "forged",
                                "payload": n(1), "delayMs": 0 });
        timer[field] = value;
        let sql = "SELECT queen_tx_commit(timers => $1)";
        session.query(sql, &[&json!([timer])]).await.fails_with("22023")?;
    }
    // A timer needs exactly one time, within a year.
    for when in ["", ", delay => '1 hour', deliver_at => now()", ", delay => '367 days'"] {
        let sql = format!("SELECT queen_schedule('q', 'forged', '1'{when})");
        session.query(&sql, &[]).await.fails_with("22023")?;
    }
    assert_eq!(pending(&session).await?, 6);
    assert_eq!(pop().run(&session).await?, []);
    Ok(())
}
