//! Every message has a budget of failures of its own.

use std::time::Duration;

use anyhow::{Result, ensure};
use chrono::{DateTime, TimeDelta, Utc};
use queen_tests::{
    Ack, Message, Pop, Push, PushBatch, Session, Settled, TestDb, complete, dead_letters,
    eventually, find, n, numbers, settle,
};
use serde_json::{Value, json};

fn pop() -> Pop {
    Pop::new("q").group("g").mode("all").batch(100).partitions(100)
}

async fn prepared(options: &str) -> Result<(TestDb, Session)> {
    let db = TestDb::fresh().await?;
    let session = db.session().await?;
    session.run(&format!("SELECT queen_configure('q', {options})")).await?;
    Ok((db, session))
}

/// Pop all messages, and fail this one.
async fn fail(session: &Session, number: i64) -> Result<Settled> {
    let came = pop().run(session).await?;
    let one = find(&came, number)?;
    let ack = Ack::messages(one.lease()?, [one.message_id]).failed(format!("failed {number}"));
    Ok(ack.run(session).await?)
}

#[tokio::test(flavor = "multi_thread")]
async fn failures_of_one_do_not_count_against_another() -> Result<()> {
    let (_db, session) = prepared("retry_limit => 3").await?;
    PushBatch::new("q", vec![n(1), n(2), n(3)]).run(&session).await?;
    let mut deliveries = 0;
    for _ in 0..2 {
        assert_eq!(fail(&session, 1).await?.dead_lettered, 0);
        deliveries += 1;
    }
    let came = pop().run(&session).await?;
    deliveries += 1;
    assert_eq!(numbers(&came), [1, 2, 3]);
    let lease = came[0].lease()?;
    Ack::messages(lease, [came[0].message_id]).run(&session).await?;
    Ack::messages(lease, [came[1].message_id]).failed("failed 2").run(&session).await?;
    // The second message survives three failures, whatever happened to the first one.
    for _ in 0..2 {
        assert_eq!(fail(&session, 2).await?.dead_lettered, 0);
        deliveries += 1;
        assert_eq!(dead_letters(&session).await?, 0);
    }
    let last = fail(&session, 2).await?;
    deliveries += 1;
    assert_eq!(last.dead_lettered, 1);
    let sql = "SELECT message_id, failures, deliveries, error FROM queen_dead_letters";
    let letter = session.query_one(sql, &[]).await?;
    let (id, failures, counted): (i64, i32, i32) = (letter.get(0), letter.get(1), letter.get(2));
    assert_eq!((id, failures, counted), (came[1].message_id, 4, deliveries));
    assert_eq!(letter.get::<_, String>(3), "failed 2");

    let rest = pop().run(&session).await?;
    assert_eq!(numbers(&rest), [3]);
    assert_eq!(rest[0].delivery_attempt, deliveries + 1);
    complete(&session, &rest).await?;
    assert_eq!(pop().run(&session).await?, []);
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn a_retry_is_never_charged() -> Result<()> {
    let (_db, session) = prepared("retry_limit => 0, retry_delay => '1 hour'").await?;
    Push::new("q", n(1)).run(&session).await?;
    for attempt in 1..=10 {
        // The retry is neither charged nor delayed.
        let held = pop().one(&session).await?;
        assert_eq!(held.delivery_attempt, attempt);
        let settled = Ack::all(held.lease()?).status("retry").run(&session).await?;
        assert_eq!((settled.settled, settled.dead_lettered), (1, 0));
    }
    let settled = fail(&session, 1).await?;
    assert_eq!((settled.settled, settled.dead_lettered), (1, 1));
    let row = session.query_one("SELECT failures, deliveries FROM queen_dead_letters", &[]).await?;
    assert_eq!((row.get::<_, i32>(0), row.get::<_, i32>(1)), (1, 11));
    assert_eq!(pop().run(&session).await?, []);
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn without_retries_the_first_failure_exhausts_and_the_rest_flows() -> Result<()> {
    let (_db, session) = prepared("retry_limit => 0").await?;
    let headers = json!({ "trace": "abc" });
    Push::new("q", n(1)).partition("p").run(&session).await?;
    let bad = Push::new("q", json!({ "n": 2, "deep": [1, null, "x"] })).partition("p");
    bad.id("bad").headers(headers.clone()).run(&session).await?;
    Push::new("q", n(3)).partition("p").run(&session).await?;
    Push::new("q", n(4)).partition("other").run(&session).await?;
    let came = pop().partition("p").run(&session).await?;
    assert_eq!(numbers(&came), [1, 2, 3]);
    let settled = Ack::ids(came[0].lease()?, ["bad"]).failed("card declined").run(&session).await?;
    assert_eq!((settled.dead_lettered, settled.lease_released), (1, true));

    let letter = session.query_one("SELECT * FROM queen_dead_letters", &[]).await?;
    assert_eq!(letter.get::<_, String>("queue"), "q");
    assert_eq!(letter.get::<_, Option<String>>("consumer_group").as_deref(), Some("g"));
    assert_eq!(letter.get::<_, String>("partition"), "p");
    assert_eq!(letter.get::<_, i64>("message_id"), came[1].message_id);
    assert_eq!(letter.get::<_, String>("transaction_id"), "bad");
    assert_eq!(letter.get::<_, Value>("payload"), came[1].payload);
    assert_eq!(letter.get::<_, Option<Value>>("headers"), Some(headers));
    assert_eq!(letter.get::<_, Option<String>>("error").as_deref(), Some("card declined"));
    assert_eq!(letter.get::<_, i32>("failures"), 1);
    assert_eq!(letter.get::<_, i32>("deliveries"), 1);
    assert_eq!(letter.get::<_, DateTime<Utc>>("created_at"), came[1].created_at);
    assert!(letter.get::<_, DateTime<Utc>>("failed_at") > came[1].created_at);

    let rest = pop().partition("p").run(&session).await?;
    assert_eq!(numbers(&rest), [1, 3]);
    assert!(rest.iter().all(|one| one.delivery_attempt == 2));
    complete(&session, &rest).await?;
    let other = pop().run(&session).await?;
    assert_eq!(numbers(&other), [4]);
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn an_exhausted_message_can_be_dropped_instead() -> Result<()> {
    let (_db, session) = prepared("retry_limit => 0, on_exhausted => 'drop'").await?;
    PushBatch::new("q", vec![n(1), n(2)]).run(&session).await?;
    let came = pop().run(&session).await?;
    let result = json!([{ "messageId": came[0].message_id, "status": "failed", "error": "no" }]);
    let outcomes = settle(&session, came[0].lease()?, &result).await?;
    assert_eq!(outcomes.len(), 1);
    assert_eq!(outcomes[0].outcome, "dropped");
    assert_eq!(dead_letters(&session).await?, 0);
    let rest = pop().run(&session).await?;
    assert_eq!(numbers(&rest), [2]);
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn a_dead_letter_is_made_at_once_and_the_lease_goes_on() -> Result<()> {
    let (_db, session) = prepared("retry_limit => 3").await?;
    PushBatch::new("q", vec![n(1), n(2), n(3)]).run(&session).await?;
    let came = pop().run(&session).await?;
    let lease = came[0].lease()?;
    let ack = Ack::messages(lease, [came[1].message_id]).status("dead_letter");
    let settled = ack.run(&session).await?;
    let expected = Settled { settled: 1, already: 0, dead_lettered: 1, lease_released: false };
    assert_eq!(settled, expected);
    assert_eq!(dead_letters(&session).await?, 1);
    let settled = Ack::all(lease).run(&session).await?;
    assert_eq!((settled.settled, settled.lease_released), (2, true));
    assert_eq!(pop().run(&session).await?, []);
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn a_mixed_set_is_settled_as_one() -> Result<()> {
    let (_db, session) = prepared("retry_limit => 1").await?;
    PushBatch::numbers("q", 1..=6).run(&session).await?;
    assert_eq!(fail(&session, 4).await?.dead_lettered, 0);
    let came = pop().run(&session).await?;
    assert_eq!(numbers(&came), [1, 2, 3, 4, 5, 6]);
    // The second failure of message 4 exhausts it; the first failure of 2 does not. Above it, 5 is
    // completed.
    let id = |number| find(&came, number).map(|one| one.message_id);
    let results = json!([
        { "messageId": id(1)?, "status": "completed" },
        { "messageId": id(2)?, "status": "failed", "error": "two" },
        { "messageId": id(4)?, "status": "failed", "error": "four" },
        { "transactionId": came[4].transaction_id, "status": "completed" },
        { "messageId": id(6)?, "status": "dead_letter", "error": "six" },
    ]);
    let mut outcomes: Vec<(i64, String)> = settle(&session, came[0].lease()?, &results)
        .await?
        .into_iter()
        .map(|row| (row.message_id, row.outcome))
        .collect();
    outcomes.sort_unstable();
    let expected = [
        (1, "completed"),
        (2, "failed"),
        (4, "dead_lettered"),
        (5, "completed"),
        (6, "dead_lettered"),
    ];
    let expected = expected.map(|(number, outcome)| Ok((id(number)?, outcome.to_owned())));
    assert_eq!(outcomes, expected.into_iter().collect::<Result<Vec<_>>>()?);
    let again = pop().run(&session).await?;
    assert_eq!(numbers(&again), [2, 3]);
    let sql = "SELECT array_agg(error ORDER BY message_id) FROM queen_dead_letters";
    let errors: Vec<String> = session.query_one(sql, &[]).await?.get(0);
    assert_eq!(errors, ["four", "six"]);
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn groups_have_budgets_of_their_own() -> Result<()> {
    let (_db, session) = prepared("retry_limit => 0").await?;
    Push::new("q", n(1)).run(&session).await?;
    let other = pop().group("h").one(&session).await?;
    assert_eq!(fail(&session, 1).await?.dead_lettered, 1);
    complete(&session, &[other]).await?;
    let sql = "SELECT count(*) FROM queen_dead_letters WHERE consumer_group = 'g'";
    assert_eq!((session.count(sql).await?, dead_letters(&session).await?), (1, 1));
    Ok(())
}

/// A failure that is rolled back is not counted.
#[tokio::test(flavor = "multi_thread")]
async fn a_rolled_back_failure_is_not_charged() -> Result<()> {
    let (_db, session) = prepared("retry_limit => 0").await?;
    Push::new("q", n(1)).run(&session).await?;
    let held = pop().one(&session).await?;
    session.run("BEGIN").await?;
    let settled = Ack::all(held.lease()?).failed("undone").run(&session).await?;
    assert_eq!(settled.dead_lettered, 1);
    assert_eq!(dead_letters(&session).await?, 1);
    session.run("ROLLBACK").await?;
    assert_eq!(dead_letters(&session).await?, 0);
    complete(&session, &[held]).await
}

/// Returns the next message, and the server's clock in the pop that found it.
async fn next(session: &Session) -> Result<(DateTime<Utc>, Message)> {
    let lease = TimeDelta::seconds(30);
    let pop = pop().partition("p").batch(1).lease("30 seconds");
    let message = eventually("redelivery", Duration::from_secs(30), async || {
        Ok(pop.run(session).await?.pop())
    })
    .await?;
    Ok((message.expires_at()? - lease, message))
}

#[tokio::test(flavor = "multi_thread")]
async fn a_failed_message_waits_ever_longer_up_to_a_limit() -> Result<()> {
    let options = "retry_limit => 10, retry_delay => '200 milliseconds', retry_backoff => 3, \
                   retry_delay_max => '1 second'";
    let (_db, session) = prepared(options).await?;
    Push::new("q", n(1)).partition("p").run(&session).await?;
    Push::new("q", n(2)).partition("p").run(&session).await?;
    Push::new("q", n(3)).partition("other").run(&session).await?;
    let (_, mut held) = next(&session).await?;
    for (failures, delay) in [(1, 200), (2, 600), (3, 1000), (4, 1000)] {
        let before = session.now().await?;
        Ack::all(held.lease()?).failed("again").run(&session).await?;
        let after = session.now().await?;
        // The second message waits behind the first one: next() returns the first.
        let (at, again) = next(&session).await?;
        assert_eq!((&again.payload, again.delivery_attempt), (&n(1), failures + 1));
        let due = TimeDelta::milliseconds(delay);
        ensure!(at >= before + due, "failure {failures}: after {} of {delay} ms", at - before);
        // The limit is generous: the machine may be busy.
        let late = TimeDelta::seconds(3);
        ensure!(at <= after + due + late, "failure {failures}: only after {}", at - after);
        held = again;
        if failures == 1 {
            let other = pop().partition("other").one(&session).await?;
            complete(&session, &[other]).await?;
        }
    }
    complete(&session, &[held]).await?;
    let (_, second) = next(&session).await?;
    assert_eq!((second.payload, second.delivery_attempt), (n(2), 1));
    Ok(())
}

/// A partition that waits for a retry delays no other partition, and is delivered again by itself.
#[tokio::test(flavor = "multi_thread")]
async fn other_partitions_flow_while_one_waits() -> Result<()> {
    let (_db, session) = prepared("retry_delay => '700 milliseconds'").await?;
    Push::new("q", n(1)).partition("a").run(&session).await?;
    let held = pop().one(&session).await?;
    Ack::all(held.lease()?).failed("later").run(&session).await?;
    let failed_at = session.now().await?;
    let mut came = Vec::new();
    let back = eventually("redelivery", Duration::from_secs(30), async || {
        Push::new("q", n(10)).partition("b").run(&session).await?;
        let batch = pop().run(&session).await?;
        complete(&session, &batch).await?;
        came.extend(batch);
        Ok(came.iter().find(|one| one.partition == "a").cloned())
    })
    .await?;
    assert_eq!((back.payload, back.delivery_attempt), (n(1), 2));
    let waited = session.now().await? - failed_at;
    ensure!(waited >= TimeDelta::milliseconds(600), "it came after {waited}");
    let flowed = came.iter().filter(|one| one.partition == "b").count();
    ensure!(flowed >= 3, "only {flowed} messages of the other partition came meanwhile");
    Ok(())
}
