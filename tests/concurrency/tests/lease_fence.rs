//! The fence: an ack with a lease that is gone raises an error, which undoes the rest of its
//! transaction. A repeated ack does not.

use std::slice;
use std::time::Duration;

use anyhow::Result;
use queen_tests::{
    Ack, Fails, Message, Pop, Push, PushBatch, Session, Settled, TestDb, complete, counts,
    eventually, expiry, marker, n, numbers, put_if_absent, settle,
};
use serde_json::{Value, json};
use tokio_postgres::Error;
use tokio_postgres::error::DbError;
use uuid::Uuid;

fn pop() -> Pop {
    Pop::new("q").group("g").mode("all").batch(100).partitions(100)
}

async fn prepared(payloads: Vec<Value>) -> Result<(TestDb, Session)> {
    let db = TestDb::fresh().await?;
    let session = db.session().await?;
    session.run("CREATE TABLE charges (worker text)").await?;
    PushBatch::new("q", payloads).run(&session).await?;
    Ok((db, session))
}

/// What an application does: the charge, its marker and the ack in one transaction.
async fn charge(session: &Session, worker: &str, ack: &Ack) -> Result<Settled, Error> {
    session.run("BEGIN").await?;
    session.run(&format!("INSERT INTO charges VALUES ('{worker}')")).await?;
    put_if_absent(session, "billing", worker, &json!(worker), "1 hour").await?;
    let settled = ack.run(session).await;
    session.run(if settled.is_ok() { "COMMIT" } else { "ROLLBACK" }).await?;
    settled
}

/// Check that the charge raises an error, and nothing of it is left.
async fn refused(session: &Session, ack: &Ack, sqlstate: &str) -> Result<DbError> {
    let error = charge(session, "refused", ack).await.fails_with(sqlstate)?;
    assert_eq!(marker(session, "billing", "refused").await?, None, "after {sqlstate}");
    let charges = "SELECT count(*) FROM charges WHERE worker = 'refused'";
    assert_eq!(session.count(charges).await?, 0, "after {sqlstate}");
    Ok(error)
}

async fn popped_briefly(session: &Session) -> Result<Vec<Message>> {
    let held = pop().lease("150 milliseconds").run(session).await?;
    expiry(session, &held[0]).await?;
    Ok(held)
}

#[tokio::test(flavor = "multi_thread")]
async fn a_live_lease_charges_once() -> Result<()> {
    let (_db, session) = prepared(vec![n(1)]).await?;
    let held = pop().one(&session).await?;
    let settled = charge(&session, "live", &Ack::all(held.lease()?)).await?;
    assert_eq!(settled, counts(1, 0, true));
    assert_eq!(marker(&session, "billing", "live").await?, Some(json!("live")));
    assert_eq!(session.count("SELECT count(*) FROM charges").await?, 1);
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn an_expired_lease_is_refused_though_no_consumer_popped_since() -> Result<()> {
    let (_db, session) = prepared(vec![n(1), n(2)]).await?;
    let held = popped_briefly(&session).await?;
    let lease = held[0].lease()?;
    refused(&session, &Ack::all(lease), "QN001").await?;
    refused(&session, &Ack::messages(lease, [held[1].message_id]), "QN001").await?;
    refused(&session, &Ack::ids(lease, [&held[0].transaction_id]), "QN001").await?;
    refused(&session, &Ack::all(lease).failed("late"), "QN001").await?;
    refused(&session, &Ack::all(lease).status("retry"), "QN001").await?;
    session.query("SELECT queen_extend($1)", &[&lease]).await.fails_with("QN001")?;
    let result = json!([{ "messageId": held[0].message_id, "status": "completed" }]);
    settle(&session, lease, &result).await.fails_with("QN001")?;
    let again = pop().run(&session).await?;
    assert_eq!(numbers(&again), [1, 2]);
    assert!(again.iter().all(|one| one.delivery_attempt == 2));
    complete(&session, &again).await
}

#[tokio::test(flavor = "multi_thread")]
async fn a_superseded_lease_is_refused_before_and_after_the_other_completes() -> Result<()> {
    let (_db, session) = prepared(vec![n(1)]).await?;
    let lease = popped_briefly(&session).await?[0].lease()?;
    let other = pop().one(&session).await?;
    assert_eq!(other.delivery_attempt, 2);
    refused(&session, &Ack::all(lease), "QN002").await?;
    session.query("SELECT queen_extend($1)", &[&lease]).await.fails_with("QN002")?;
    charge(&session, "other", &Ack::all(other.lease()?)).await?;
    // Another lease completed the message: the ack must not succeed silently.
    refused(&session, &Ack::all(lease), "QN002").await?;
    refused(&session, &Ack::messages(lease, [other.message_id]), "QN002").await?;
    assert_eq!(session.count("SELECT count(*) FROM charges").await?, 1);
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn an_unknown_lease_is_refused() -> Result<()> {
    let (_db, session) = prepared(vec![n(1)]).await?;
    let held = pop().one(&session).await?;
    refused(&session, &Ack::all(Uuid::new_v4()), "QN003").await?;
    refused(&session, &Ack::messages(Uuid::new_v4(), [held.message_id]), "QN003").await?;
    session.query("SELECT queen_extend($1)", &[&Uuid::new_v4()]).await.fails_with("QN003")?;
    session.run("SELECT queen_delete_queue('q')").await?;
    refused(&session, &Ack::all(held.lease()?), "QN003").await?;
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn a_foreign_message_is_refused() -> Result<()> {
    let (_db, session) = prepared(vec![n(1), n(2), n(3)]).await?;
    Push::new("q", n(10)).partition("b").id("ten").run(&session).await?;
    let held = pop().partition("Default").batch(2).run(&session).await?;
    let lease = held[0].lease()?;
    let foreign = pop().partition("b").one(&session).await?;
    refused(&session, &Ack::messages(lease, [foreign.message_id]), "QN004").await?;
    refused(&session, &Ack::ids(lease, ["ten"]), "QN004").await?;
    refused(&session, &Ack::ids(lease, ["never pushed"]), "QN004").await?;
    refused(&session, &Ack::all(lease).partition("b"), "QN004").await?;
    // One foreign message makes the whole ack fail.
    let both = [held[0].message_id, foreign.message_id];
    refused(&session, &Ack::messages(lease, both), "QN004").await?;
    // A message that the lease has given back does so, too.
    Ack::messages(lease, [held[0].message_id]).status("retry").run(&session).await?;
    refused(&session, &Ack::messages(lease, [held[1].message_id]), "QN004").await?;
    complete(&session, &[foreign]).await
}

#[tokio::test(flavor = "multi_thread")]
async fn what_is_completed_cannot_fail_any_more() -> Result<()> {
    let (_db, session) = prepared(vec![n(1), n(2)]).await?;
    let held = pop().run(&session).await?;
    let lease = held[0].lease()?;
    Ack::messages(lease, [held[0].message_id]).run(&session).await?;
    for status in ["failed", "retry", "dead_letter"] {
        let ack = Ack::messages(lease, [held[0].message_id]).status(status);
        refused(&session, &ack, "QN005").await?;
    }
    let settled = Ack::all(lease).run(&session).await?;
    assert_eq!((settled.settled, settled.lease_released), (1, true));
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn a_repeated_ack_counts_in_already() -> Result<()> {
    let (db, session) = prepared(vec![n(1), n(2), n(3)]).await?;
    let held = pop().lease("3 seconds").run(&session).await?;
    let lease = held[0].lease()?;
    let id = |index: usize| held[index].message_id;
    let first_two = Ack::messages(lease, [id(0), id(1)]);
    assert_eq!(first_two.run(&session).await?, counts(2, 0, false));
    // The reply was lost with the connection: another session repeats the ack.
    let session = { db.session().await? };
    assert_eq!(first_two.run(&session).await?, counts(0, 2, false));
    let last_two = Ack::messages(lease, [id(1), id(2)]);
    assert_eq!(last_two.run(&session).await?, counts(1, 1, true));
    assert_eq!(last_two.run(&session).await?, counts(0, 2, true));
    assert_eq!(Ack::all(lease).run(&session).await?, counts(0, 3, true));

    // Long after, when the group has gone on.
    expiry(&session, &held[0]).await?;
    Push::new("q", n(4)).run(&session).await?;
    let next = pop().run(&session).await?;
    assert_eq!(numbers(&next), [4]);
    complete(&session, &next).await?;
    assert_eq!(first_two.run(&session).await?, counts(0, 2, true));
    assert_eq!(Ack::all(lease).run(&session).await?, counts(0, 3, true));
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn of_two_workers_one_charges() -> Result<()> {
    let db = TestDb::fresh().await?;
    let [ref first, ref second] = db.sessions().await?;
    first.run("CREATE TABLE charges (worker text)").await?;
    for round in 1..=10 {
        Push::new("q", n(round)).run(first).await?;
        let lost = popped_briefly(first).await?[0].lease()?;
        let won = pop().one(second).await?.lease()?;
        let (lost_ack, won_ack) = (Ack::all(lost), Ack::all(won));
        let worker = format!("worker {round}");
        let (lost, won) =
            tokio::join!(charge(first, &worker, &lost_ack), charge(second, &worker, &won_ack));
        lost.fails_with("QN002")?;
        assert_eq!(won?.settled, 1);
        assert_eq!(first.count("SELECT count(*) FROM charges").await?, round);
        assert_eq!(marker(first, "billing", &worker).await?, Some(json!(worker)));
    }
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn an_extended_lease_lives_on() -> Result<()> {
    let (_db, session) = prepared(vec![n(1)]).await?;
    let held = pop().lease("1 second").one(&session).await?;
    let sql = "SELECT queen_extend($1, '30 seconds'), queen_extend($1, '1 millisecond')";
    let row = session.query_one(sql, &[&held.lease()?]).await?;
    let (extended, shortened): (chrono::DateTime<chrono::Utc>, chrono::DateTime<chrono::Utc>) =
        (row.get(0), row.get(1));
    assert!(extended > held.expires_at()? + Duration::from_secs(20));
    assert_eq!(extended, shortened, "it never shortens");
    expiry(&session, &held).await?;
    assert_eq!(pop().run(&session).await?, []);
    charge(&session, "extended", &Ack::all(held.lease()?)).await?;
    Ok(())
}

/// Where an ack raises an error, a bundle returns an answer: nothing of it happens, and the
/// transaction goes on.
#[tokio::test(flavor = "multi_thread")]
async fn a_bundle_under_a_lost_lease_changes_nothing() -> Result<()> {
    let (_db, session) = prepared(vec![n(1)]).await?;
    let expired = popped_briefly(&session).await?[0].lease()?;
    let bundle = async |lease: Uuid, reason: Option<&str>| -> Result<()> {
        session.run("BEGIN; INSERT INTO charges VALUES ('around')").await?;
        let operations = json!([
            { "type": "push", "queue": "receipts", "payload": 1 },
            { "type": "ack", "leaseId": lease.to_string() },
        ]);
        let kv = json!([{ "op": "putIfAbsent", "ns": "billing", "key": "bundle", "value": 1,
                          "forever": true }]);
        let sql = "SELECT queen_tx_commit($1, $2)";
        let answer: Value = session.query_one(sql, &[&operations, &kv]).await?.get(0);
        assert_eq!(answer["success"], json!(reason.is_none()), "{answer}");
        assert_eq!(answer.get("reason").and_then(Value::as_str), reason);
        session.run("COMMIT").await?;
        let left = reason.is_none();
        let receipts = "SELECT count(*) FROM queen_messages WHERE queue = 'receipts'";
        assert_eq!(session.count(receipts).await?, i64::from(left));
        assert_eq!(marker(&session, "billing", "bundle").await?.is_some(), left);
        Ok(())
    };
    bundle(expired, Some("lease_expired")).await?;
    bundle(Uuid::new_v4(), Some("lease_unknown")).await?;
    let held = pop().one(&session).await?;
    bundle(expired, Some("lease_superseded")).await?;
    bundle(held.lease()?, None).await?;
    assert_eq!(session.count("SELECT count(*) FROM charges").await?, 4);
    Ok(())
}

/// The session that popped may be gone: every session that knows the lease may settle it.
#[tokio::test(flavor = "multi_thread")]
async fn a_lease_outlives_its_session() -> Result<()> {
    let (db, session) = prepared(vec![n(1)]).await?;
    let popper = db.session().await?;
    let held = pop().one(&popper).await?;
    let pid = popper.pid();
    drop(popper);
    eventually("end of the backend", Duration::from_secs(10), async || {
        let sql = format!("SELECT count(*) FROM pg_stat_activity WHERE pid = {pid}");
        Ok((session.count(&sql).await? == 0).then_some(()))
    })
    .await?;
    assert_eq!(pop().run(&session).await?, []);
    complete(&session, slice::from_ref(&held)).await
}

#[tokio::test(flavor = "multi_thread")]
async fn a_queue_that_is_removed_beside_a_first_pop_is_gone_for_its_lease() -> Result<()> {
    let db = TestDb::fresh().await?;
    let [ref popping, ref removing] = db.sessions().await?;
    Push::new("q", n(1)).run(popping).await?;
    popping.run("SELECT queen_subscribe('q', 'g', 'all')").await?;
    popping.run("BEGIN").await?;
    let came = Pop::new("q").group("g").one(popping).await?;
    let commit = async {
        tokio::time::sleep(Duration::from_millis(200)).await;
        popping.run("COMMIT").await
    };
    let (removed, committed) =
        tokio::join!(removing.count("SELECT queen_delete_queue('q')"), commit);
    committed?;
    assert_eq!(removed?, 1);
    Ack::all(came.lease()?).run(popping).await.fails_with("QN003")?;
    Ok(())
}

/// The lease loses any of its partitions, and each kind of call is tried.
#[tokio::test(flavor = "multi_thread")]
async fn a_lease_that_lost_a_part_to_another_consumer_is_superseded() -> Result<()> {
    let db = TestDb::fresh().await?;
    let [first, second] = db.sessions().await?;
    for gone in ["p1", "p2", "p3"] {
        for partition in ["p1", "p2", "p3"] {
            Push::new("q", n(1)).partition(partition).run(&first).await?;
        }
        let lost = popped_briefly(&first).await?;
        assert_eq!(lost.len(), 3);
        let lease = lost[0].lease()?;
        first.query("SELECT queen_extend($1)", &[&lease]).await.fails_with("QN001")?;
        let again = pop().partition(gone).wait("5 s").run(&second).await?;
        assert_eq!(again.len(), 1);
        first.query("SELECT queen_extend($1)", &[&lease]).await.fails_with("QN002")?;
        Ack::all(lease).run(&first).await.fails_with("QN002")?;
        complete(&second, &again).await?;
        let rest = pop().wait("5 s").run(&second).await?;
        assert_eq!(rest.len(), 2);
        complete(&second, &rest).await?;
    }
    Ok(())
}
