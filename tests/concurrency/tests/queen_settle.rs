//! Queen MQ's own tests of acks and leases, written for the contract of queen_mq. The number at the
//! end of a name is that of the behaviour in the list that these tests follow.

use std::time::Duration;

use anyhow::Result;
use chrono::{DateTime, Utc};
use queen_tests::{
    Ack, Fails, Message, Pop, Push, PushBatch, Session, Settled, TestDb, complete, counts,
    dead_letters, drain, eventually, expiry, n, numbers, settle,
};
use serde_json::{Value, json};
use uuid::Uuid;

const SOON: Duration = Duration::from_secs(10);

fn pop() -> Pop {
    Pop::new("q").group("g").mode("all").batch(100).partitions(100)
}

/// Create the queue `q` with these options, and push messages 1, 2, …
async fn prepared(options: &str, messages: i64) -> Result<(TestDb, Session)> {
    let db = TestDb::fresh().await?;
    let session = db.session().await?;
    session.run(&format!("SELECT queen_configure('q', {options})")).await?;
    PushBatch::numbers("q", 1..=messages).run(&session).await?;
    Ok((db, session))
}

/// Pop, and let the lease run out.
async fn abandoned(session: &Session, batch: i32) -> Result<Vec<Message>> {
    let held = pop().batch(batch).lease("120 milliseconds").run(session).await?;
    expiry(session, &held[0]).await?;
    Ok(held)
}

/// A name for the return type that leaves room for a long name of a test.
type Done = Result<()>;

/// Pop one message, and settle it with this status.
async fn pop_and(session: &Session, status: &str) -> Result<(Message, Settled)> {
    let held = pop().batch(1).one(session).await?;
    let settled = Ack::all(held.lease()?).status(status).run(session).await?;
    Ok((held, settled))
}

#[tokio::test(flavor = "multi_thread")]
async fn the_last_ack_releases_the_lease_and_an_ack_of_the_last_message_is_not_it_q22() -> Done {
    let (_db, session) = prepared("retry_limit => 3", 3).await?;
    let held = pop().run(&session).await?;
    let lease = held[0].lease()?;
    // An ack settles the messages it names, not those before them.
    let last = Ack::messages(lease, [held[2].message_id]).run(&session).await?;
    assert_eq!(last, counts(1, 0, false));
    assert_eq!(pop().run(&session).await?, []);
    let first =
        Ack::messages(lease, [held[0].message_id, held[1].message_id]).run(&session).await?;
    assert_eq!(first, counts(2, 0, true));
    Push::new("q", n(4)).run(&session).await?;
    assert_eq!(numbers(&pop().run(&session).await?), [4]);
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn an_ack_in_the_middle_keeps_the_lease_and_redelivery_begins_above_it_q23() -> Result<()> {
    let (_db, session) = prepared("retry_limit => 3", 5).await?;
    let held = pop().lease("1 second").run(&session).await?;
    let up_to_three = held[..3].iter().map(|one| one.message_id);
    let middle = Ack::messages(held[0].lease()?, up_to_three).run(&session).await?;
    assert_eq!(middle, counts(3, 0, false));
    assert_eq!(pop().run(&session).await?, []);
    assert_eq!(session.count("SELECT messages::bigint FROM queen_leases").await?, 2);
    expiry(&session, &held[0]).await?;
    let again = pop().run(&session).await?;
    assert_eq!(numbers(&again), [4, 5]);
    complete(&session, &again).await
}

#[tokio::test(flavor = "multi_thread")]
async fn completing_what_is_completed_does_nothing_and_failing_it_is_refused_q24() -> Result<()> {
    let (_db, session) = prepared("retry_limit => 0", 2).await?;
    let held = pop().run(&session).await?;
    let first = Ack::messages(held[0].lease()?, [held[0].message_id]);
    assert_eq!(first.run(&session).await?, counts(1, 0, false));
    let noop = counts(0, 1, false);
    assert_eq!(first.run(&session).await?, noop);
    for status in ["failed", "retry", "dead_letter"] {
        first.clone().status(status).run(&session).await.fails_with("QN005")?;
    }
    assert_eq!(dead_letters(&session).await?, 0);
    let rest = Ack::all(held[0].lease()?).run(&session).await?;
    assert_eq!((rest.settled, rest.lease_released), (1, true));
    assert_eq!(pop().run(&session).await?, []);
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn a_failure_commits_what_is_before_it_in_one_call_and_in_two_q25() -> Result<()> {
    let (_db, session) = prepared("retry_limit => 3", 6).await?;
    let one_call = pop().group("one call").run(&session).await?;
    let id = |messages: &[Message], number: usize| messages[number - 1].message_id;
    let results = json!([
        { "messageId": id(&one_call, 1), "status": "completed" },
        { "messageId": id(&one_call, 2), "status": "completed" },
        { "messageId": id(&one_call, 3), "status": "failed", "error": "no" },
    ]);
    let outcomes = settle(&session, one_call[0].lease()?, &results).await?;
    let outcomes: Vec<_> = outcomes.iter().map(|row| row.outcome.as_str()).collect();
    assert_eq!(outcomes, ["completed", "completed", "failed"]);

    let two_calls = pop().group("two calls").run(&session).await?;
    let lease = two_calls[0].lease()?;
    let before = [id(&two_calls, 1), id(&two_calls, 2)];
    assert_eq!(Ack::messages(lease, before).run(&session).await?, counts(2, 0, false));
    let failed = Ack::messages(lease, [id(&two_calls, 3)]).failed("no").run(&session).await?;
    assert!(failed.lease_released && failed.dead_lettered == 0, "{failed:?}");

    for group in ["one call", "two calls"] {
        let again = pop().group(group).run(&session).await?;
        assert_eq!(numbers(&again), [3, 4, 5, 6], "{group}");
        assert!(again.iter().all(|one| one.delivery_attempt == 2), "{group}");
    }
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn six_retries_are_free_and_then_limit_plus_one_failures_are_deadly_q26() -> Result<()> {
    const LIMIT: i32 = 2;
    let (_db, session) = prepared(&format!("retry_limit => {LIMIT}"), 1).await?;
    for attempt in 1..=6 {
        let (held, given_back) = pop_and(&session, "retry").await?;
        assert_eq!(held.delivery_attempt, attempt);
        assert_eq!(given_back, counts(1, 0, true));
    }
    for failure in 1..=LIMIT + 1 {
        let (held, failed) = pop_and(&session, "failed").await?;
        assert_eq!(held.delivery_attempt, 6 + failure);
        assert_eq!(failed.dead_lettered, i32::from(failure > LIMIT), "failure {failure}");
        assert_eq!(dead_letters(&session).await?, i64::from(failure > LIMIT), "failure {failure}");
    }
    let row = session.query_one("SELECT failures, deliveries FROM queen_dead_letters", &[]).await?;
    assert_eq!((row.get::<_, i32>(0), row.get::<_, i32>(1)), (LIMIT + 1, 6 + LIMIT + 1));
    assert_eq!(pop().run(&session).await?, []);
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn without_retries_a_failure_is_deadly_at_once_also_in_a_bundle_q27() -> Result<()> {
    let (_db, session) = prepared("retry_limit => 0", 2).await?;
    let (_, failed) = pop_and(&session, "failed").await?;
    assert_eq!(failed, Settled { dead_lettered: 1, ..counts(1, 0, true) });
    let held = pop().one(&session).await?;
    let operations = json!([{
        "type": "ack", "leaseId": held.lease()?.to_string(), "status": "failed", "error": "bundled",
    }]);
    let answer: Value =
        session.query_one("SELECT queen_tx_commit($1)", &[&operations]).await?.get(0);
    let result = &answer["results"][0];
    let got = [&answer["success"], &result["deadLettered"], &result["leaseReleased"]];
    assert_eq!(got, [&json!(true), &json!(1), &json!(true)], "{answer}");
    let sql = "SELECT array_agg(error ORDER BY message_id) FROM queen_dead_letters";
    let errors: Vec<Option<String>> = session.query_one(sql, &[]).await?.get(0);
    assert_eq!(errors, [None, Some("bundled".to_owned())]);
    assert_eq!(pop().run(&session).await?, []);
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn a_dead_letter_is_written_at_once_with_what_it_was_and_the_next_flows_q28() -> Result<()> {
    let (_db, session) = prepared("retry_limit => 3", 2).await?;
    let held = pop().batch(1).one(&session).await?;
    let result = json!([{
        "messageId": held.message_id, "status": "dead_letter", "error": "no such customer",
    }]);
    let outcomes = settle(&session, held.lease()?, &result).await?;
    assert_eq!(outcomes[0].outcome, "dead_lettered");
    let letter = session.query_one("SELECT * FROM queen_dead_letters", &[]).await?;
    let group: Option<String> = letter.get("consumer_group");
    let error: Option<String> = letter.get("error");
    assert_eq!((group.as_deref(), error.as_deref()), (Some("g"), Some("no such customer")));
    assert_eq!(letter.get::<_, Value>("payload"), n(1));
    assert_eq!(letter.get::<_, i64>("message_id"), held.message_id);
    let next = pop().one(&session).await?;
    assert_eq!((next.payload, next.delivery_attempt), (n(2), 1));
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn expiries_are_not_charged_q29() -> Result<()> {
    let (_db, session) = prepared("retry_limit => 2", 1).await?;
    for attempt in 1..=4 {
        assert_eq!(abandoned(&session, 1).await?[0].delivery_attempt, attempt);
    }
    // The whole budget of failures is left.
    for (attempt, dead_lettered) in [(5, 0), (6, 0), (7, 1)] {
        assert_eq!(dead_letters(&session).await?, 0);
        let (held, failed) = pop_and(&session, "failed").await?;
        assert_eq!((held.delivery_attempt, failed.dead_lettered), (attempt, dead_lettered));
    }
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn an_id_that_is_not_in_the_lease_is_refused_and_the_lease_survives_q30() -> Result<()> {
    let (_db, session) = prepared("retry_limit => 0", 2).await?;
    Push::new("q", n(3)).partition("other").run(&session).await?;
    let held = pop().partition("Default").run(&session).await?;
    let other = pop().one(&session).await?;
    let lease = held[0].lease()?;
    for status in ["completed", "failed", "retry", "dead_letter"] {
        for foreign in [other.message_id, i64::from(i32::MAX)] {
            // Together with an id that the lease holds, too: the ack does all or nothing.
            let ack = Ack::messages(lease, [held[0].message_id, foreign]).status(status);
            ack.run(&session).await.fails_with("QN004")?;
        }
        Ack::ids(lease, ["never"]).status(status).run(&session).await.fails_with("QN004")?;
    }
    assert_eq!(dead_letters(&session).await?, 0);
    assert_eq!(Ack::all(lease).run(&session).await?, counts(2, 0, true));
    assert_eq!(Ack::all(other.lease()?).run(&session).await?, counts(1, 0, true));
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn an_expired_or_foreign_lease_settles_nothing_q31() -> Result<()> {
    let (_db, session) = prepared("retry_limit => 0", 2).await?;
    let expired = abandoned(&session, 100).await?[0].lease()?;
    // No consumer has popped since, and the lease is expired all the same.
    for status in ["completed", "failed", "retry", "dead_letter"] {
        Ack::all(expired).status(status).run(&session).await.fails_with("QN001")?;
    }
    let again = pop().run(&session).await?;
    assert_eq!(numbers(&again), [1, 2]);
    for status in ["completed", "failed", "retry", "dead_letter"] {
        Ack::all(expired).status(status).run(&session).await.fails_with("QN002")?;
        Ack::all(Uuid::new_v4()).status(status).run(&session).await.fails_with("QN003")?;
    }
    assert_eq!(dead_letters(&session).await?, 0);
    complete(&session, &again).await
}

/// Queen MQ allows an ack without a lease.
#[tokio::test(flavor = "multi_thread")]
async fn an_ack_needs_a_lease_q32() -> Result<()> {
    let (_db, session) = prepared("retry_limit => 0", 1).await?;
    let held = abandoned(&session, 1).await?.remove(0);
    for call in [
        "queen_ack(NULL, ARRAY[$1])",
        "queen_settle(NULL, jsonb_build_array(jsonb_build_object('messageId', $1, 'status', \
         'completed')))",
        "queen_tx_commit(jsonb_build_array(jsonb_build_object('type', 'ack', 'messageId', $1)))",
    ] {
        let sql = format!("SELECT {}", call.replace("$1", &held.message_id.to_string()));
        session.query(&sql, &[]).await.fails_with("22023")?;
    }
    assert_eq!(pop().one(&session).await?.delivery_attempt, 2);
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn the_next_message_has_its_whole_budget_q33() -> Result<()> {
    let (_db, session) = prepared("retry_limit => 2", 2).await?;
    for _ in 0..2 {
        assert_eq!(pop_and(&session, "failed").await?.0.payload, n(1));
    }
    let (first, completed) = pop_and(&session, "completed").await?;
    assert_eq!((first.payload, completed), (n(1), counts(1, 0, true)));
    for dead_lettered in [0, 0, 1] {
        let (second, failed) = pop_and(&session, "failed").await?;
        assert_eq!((second.payload, failed.dead_lettered), (n(2), dead_lettered));
    }
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn an_exhausted_message_may_be_dropped_and_the_queue_flows_q34() -> Result<()> {
    let (_db, session) = prepared("retry_limit => 1, on_exhausted => 'drop'", 2).await?;
    for _ in 0..2 {
        let (held, failed) = pop_and(&session, "failed").await?;
        assert_eq!((held.payload, failed.dead_lettered), (n(1), 0));
    }
    let rest = drain(&session, &pop(), 1, SOON).await?;
    assert_eq!(numbers(&rest), [2]);
    assert_eq!(dead_letters(&session).await?, 0);
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn what_was_purged_cannot_be_settled_and_an_empty_partition_is_done_q35() -> Result<()> {
    let (_db, session) = prepared("retry_limit => 3", 2).await?;
    let held = pop().batch(1).one(&session).await?;
    assert_eq!(session.count("SELECT queen_purge('q')").await?, 2);
    for ack in [Ack::all(held.lease()?), Ack::messages(held.lease()?, [held.message_id])] {
        ack.run(&session).await.fails_with("QN002")?;
    }
    let pending = "SELECT pending FROM queen_groups";
    assert_eq!(session.count(pending).await?, 0);
    // Messages that retention deletes are not pending, and what follows is delivered.
    PushBatch::new("q", vec![n(3), n(4)]).run(&session).await?;
    assert_eq!(session.count(pending).await?, 2);
    session.run("SELECT queen_configure('q', retention => '300 milliseconds')").await?;
    eventually("empty partition", SOON, async || {
        session.run("SELECT queen_sweep()").await?;
        Ok((session.count(pending).await? == 0).then_some(()))
    })
    .await?;
    assert_eq!(pop().run(&session).await?, []);
    Push::new("q", n(5)).run(&session).await?;
    assert_eq!(numbers(&drain(&session, &pop(), 1, SOON).await?), [5]);
    Ok(())
}

/// The record of ids for duplicates is not used for settling.
#[tokio::test(flavor = "multi_thread")]
async fn an_id_settles_its_message_also_when_its_window_has_passed_q35() -> Result<()> {
    let (_db, session) = prepared("dedup_window => '100 milliseconds'", 0).await?;
    Push::new("q", n(1)).id("x").run(&session).await?;
    let held = pop().one(&session).await?;
    eventually("end of the window", SOON, async || {
        session.run("SELECT queen_sweep()").await?;
        let again = Push::new("q", n(2)).partition("other").id("x").run(&session).await?;
        let sql = "SELECT clock_timestamp() - $1 > interval '200 milliseconds'";
        let passed: bool = session.query_one(sql, &[&held.created_at]).await?.get(0);
        Ok((passed && again.status == "queued").then_some(()))
    })
    .await?;
    assert_eq!(Push::new("q", n(3)).id("x").run(&session).await?.status, "queued");
    assert_eq!(Ack::ids(held.lease()?, ["x"]).run(&session).await?, counts(1, 0, true));
    assert_eq!(pop().partition("Default").one(&session).await?.payload, n(3));
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn a_partition_of_delayed_messages_is_not_taken_for_empty_q35() -> Result<()> {
    let (_db, session) = prepared("delay => '800 milliseconds'", 2).await?;
    for _ in 0..3 {
        assert_eq!(pop().run(&session).await?, []);
        assert_eq!(session.count("SELECT pending FROM queen_groups").await?, 2);
    }
    assert_eq!(numbers(&drain(&session, &pop(), 2, SOON).await?), [1, 2]);
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn an_extended_lease_holds_all_its_partitions_and_never_shortens_q36() -> Result<()> {
    let (_db, session) = prepared("lease_time => '600 milliseconds'", 1).await?;
    Push::new("q", n(2)).partition("other").run(&session).await?;
    let held = pop().run(&session).await?;
    let lease = held[0].lease()?;
    let extend = async |lease_time: &str| -> Result<DateTime<Utc>> {
        let sql = format!("SELECT queen_extend($1, '{lease_time}')");
        Ok(session.query_one(&sql, &[&lease]).await?.get(0))
    };
    let until = extend("2 seconds").await?;
    assert!(until > held[0].expires_at()? + Duration::from_millis(1000));
    assert_eq!(extend("1 millisecond").await?, until);
    expiry(&session, &held[0]).await?;
    assert_eq!(session.count("SELECT count(*) FROM queen_leases").await?, 2);
    assert_eq!(pop().run(&session).await?, []);
    // The extended lease ends at its time in both partitions.
    let again = drain(&session, &pop(), 2, SOON).await?;
    assert!(again.iter().all(|one| one.delivery_attempt == 2), "{again:?}");
    let popped = again.iter().map(Message::expires_at).collect::<Result<Vec<_>>>()?;
    assert!(popped.iter().all(|end| *end >= until + Duration::from_millis(600)), "{popped:?}");
    session.query("SELECT queen_extend($1)", &[&lease]).await.fails_with("QN002")?;
    session.query("SELECT queen_extend($1)", &[&Uuid::new_v4()]).await.fails_with("QN003")?;
    Push::new("q", n(3)).run(&session).await?;
    let expired = abandoned(&session, 1).await?;
    session.query("SELECT queen_extend($1)", &[&expired[0].lease()?]).await.fails_with("QN001")?;
    Ok(())
}
