//! Queen MQ's own tests of its transactions, written for the contract of queen_mq. The number at
//! the end of a name is that of the behaviour in the list that these tests follow.

use std::time::Duration;

use anyhow::Result;
use queen_tests::{
    Fails, Message, Pop, Push, PushBatch, Session, TestDb, complete, drain, expiry, marker, n,
    numbers, put_if_absent,
};
use serde_json::{Value, json};
use tokio_postgres::Error;
use uuid::Uuid;

const SOON: Duration = Duration::from_secs(10);

fn pop(queue: &str) -> Pop {
    Pop::new(queue).group("g").mode("all").batch(100).partitions(100)
}

/// `queen_tx_commit` without timers.
async fn commit(
    session: &Session,
    operations: &Value,
    kv: &Value,
    required_leases: &[Uuid],
) -> Result<Value, Error> {
    let sql = "SELECT queen_tx_commit($1, $2, required_leases => $3)";
    Ok(session.row(sql, &[operations, kv, &required_leases]).await?.get(0))
}

fn ack(lease: Uuid) -> Value {
    json!({ "type": "ack", "leaseId": lease.to_string() })
}

fn push(queue: &str, number: i64, id: &str) -> Value {
    json!({ "type": "push", "queue": queue, "payload": n(number), "transactionId": id })
}

/// Check that a bundle was done and has an answer for each of its parts.
fn done(answer: &Value, results: usize) -> Result<&Vec<Value>> {
    anyhow::ensure!(answer["success"] == json!(true), "{answer}");
    match answer["results"].as_array() {
        Some(all) if all.len() == results => Ok(all),
        _ => anyhow::bail!("not {results} results: {answer}"),
    }
}

fn refused(answer: &Value, reason: &str) {
    assert_eq!(answer["success"], json!(false), "{answer}");
    assert_eq!((&answer["reason"], &answer["results"]), (&json!(reason), &json!([])), "{answer}");
}

async fn messages(session: &Session, queue: &str) -> Result<i64> {
    let sql = format!("SELECT count(*) FROM queen_messages WHERE queue = '{queue}'");
    Ok(session.count(&sql).await?)
}

/// Pop the only message of the queue, with a lease.
async fn held(session: &Session, queue: &str) -> Result<Message> {
    Push::new(queue, n(1)).run(session).await?;
    pop(queue).one(session).await
}

#[tokio::test(flavor = "multi_thread")]
async fn ack_and_push_are_done_together_or_not_at_all_q41() -> Result<()> {
    let db = TestDb::fresh().await?;
    let session = db.session().await?;
    let one = held(&session, "in").await?;
    let lease = one.lease()?;
    let bogus = json!({ "type": "ack", "leaseId": lease.to_string(), "transactionId": "never" });
    for (operations, reason) in [
        (json!([push("out", 1, "x"), ack(Uuid::new_v4())]), "lease_unknown"),
        (json!([push("out", 1, "x"), bogus]), "message_not_in_lease"),
    ] {
        refused(&commit(&session, &operations, &json!([]), &[]).await?, reason);
        assert_eq!(messages(&session, "out").await?, 0, "{reason}");
    }
    let operations = json!([ack(lease), push("out", 1, "x")]);
    let answer = commit(&session, &operations, &json!([]), &[]).await?;
    let results = done(&answer, 2)?;
    assert_eq!((&results[0]["settled"], &results[1]["status"]), (&json!(1), &json!("queued")));
    let out = drain(&session, &pop("out"), 1, SOON).await?;
    assert_eq!(
        (numbers(&out), json!(out[0].message_id)),
        (vec![1], results[1]["messageId"].clone())
    );
    assert_eq!(pop("in").run(&session).await?, []);
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn a_lost_gate_leaves_nothing_and_says_who_won_q42() -> Result<()> {
    let db = TestDb::fresh().await?;
    let session = db.session().await?;
    let one = held(&session, "in").await?;
    let winner = json!({ "chargeId": "ch_1" });
    let won = put_if_absent(&session, "billing", "charge:1", &winner, "1 hour").await?;
    let operations = json!([push("out", 1, "x"), ack(one.lease()?)]);
    let kv = json!([
        { "op": "put", "ns": "billing", "key": "other", "value": 1, "forever": true },
        { "op": "putIfAbsent", "ns": "billing", "key": "charge:1", "value": "ch_2",
          "ttlSeconds": 3600, "required": true },
    ]);
    let answer = commit(&session, &operations, &kv, &[]).await?;
    refused(&answer, "kv_precondition");
    let told = [&answer["kvReason"], &answer["failedIndex"], &answer["value"], &answer["version"]];
    assert_eq!(told, [&json!("exists"), &json!(3), &winner, &json!(won.version)], "{answer}");
    assert_eq!(messages(&session, "out").await?, 0);
    assert_eq!(marker(&session, "billing", "other").await?, None);
    assert_eq!(marker(&session, "billing", "charge:1").await?, Some(winner));
    // The message is still in the lease: ack it without the rest.
    complete(&session, &[one]).await
}

#[tokio::test(flavor = "multi_thread")]
async fn a_stored_duplicate_undoes_the_bundle_and_one_inside_does_not_q43() -> Result<()> {
    let db = TestDb::fresh().await?;
    let session = db.session().await?;
    let one = held(&session, "in").await?;
    let stored = Push::new("out", n(1)).id("stored").run(&session).await?;
    let operations = json!([ack(one.lease()?), push("out", 2, "fresh"), push("out", 3, "stored")]);
    let answer = commit(&session, &operations, &json!([]), &[]).await?;
    refused(&answer, "duplicate");
    let told = (&answer["failedIndex"], &answer["messageId"]);
    assert_eq!(told, (&json!(2), &json!(stored.message_id)), "{answer}");
    assert_eq!(messages(&session, "out").await?, 1);

    let operations = json!([ack(one.lease()?), push("out", 4, "twin"), push("out", 5, "twin")]);
    let answer = commit(&session, &operations, &json!([]), &[]).await?;
    let results = done(&answer, 3)?;
    let statuses = [&results[1]["status"], &results[2]["status"]];
    assert_eq!(statuses, [&json!("queued"), &json!("duplicate")], "{answer}");
    assert_eq!(results[1]["messageId"], results[2]["messageId"]);
    assert_eq!(numbers(&drain(&session, &pop("out"), 2, SOON).await?), [1, 4]);
    assert_eq!(pop("in").run(&session).await?, []);
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn riders_alone_are_a_bundle_and_nothing_at_all_is_not_q44() -> Result<()> {
    let db = TestDb::fresh().await?;
    let session = db.session().await?;
    let kv = json!([{ "op": "put", "ns": "ns", "key": "k", "value": 1, "forever": true }]);
    done(&commit(&session, &json!([]), &kv, &[]).await?, 1)?;
    assert_eq!(marker(&session, "ns", "k").await?, Some(json!(1)));
    let sql = "SELECT queen_tx_commit(timers => $1)";
    let timers = json!([{
        "op": "schedule", "queue": "q", "timerKey": "t", "payload": n(1), "delayMs": 3_600_000,
    }]);
    let answer: Value = session.row(sql, &[&timers]).await?.get(0);
    done(&answer, 1)?;
    assert_eq!(session.count("SELECT count(*) FROM queen_timers").await?, 1);
    commit(&session, &json!([]), &json!([]), &[]).await.fails_with("22023")?;
    session.query("SELECT queen_tx_commit()", &[]).await.fails_with("22023")?;
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn several_queues_and_partitions_and_leases_fan_in_q45() -> Result<()> {
    let db = TestDb::fresh().await?;
    let session = db.session().await?;
    let (a, b) = (held(&session, "a").await?, held(&session, "b").await?);
    for partition in ["left", "right"] {
        Push::new("c", n(1)).partition(partition).run(&session).await?;
    }
    let c = pop("c").run(&session).await?;
    assert_eq!((c.len(), c[0].lease_id), (2, c[1].lease_id));
    let leases = [a.lease()?, b.lease()?, c[0].lease()?];
    let operations = json!([
        ack(leases[0]),
        ack(leases[1]),
        { "type": "ack", "leaseId": leases[2].to_string(), "partition": "left",
          "messageId": c.iter().find(|one| one.partition == "left").map(|one| one.message_id) },
        { "type": "ack", "leaseId": leases[2].to_string(), "partition": "right" },
        push("out", 7, "joined"),
    ]);
    let answer = commit(&session, &operations, &json!([]), &leases[..2]).await?;
    let results = done(&answer, 5)?;
    for (index, result) in results[..4].iter().enumerate() {
        let got = (&result["index"], &result["settled"], &result["leaseReleased"]);
        assert_eq!(got, (&json!(index), &json!(1), &json!(true)), "{answer}");
    }
    for queue in ["a", "b", "c"] {
        assert_eq!(pop(queue).run(&session).await?, [], "{queue}");
    }
    assert_eq!(
        session.count("SELECT coalesce(sum(pending), 0)::bigint FROM queen_groups").await?,
        0
    );
    assert_eq!(numbers(&drain(&session, &pop("out"), 1, SOON).await?), [7]);
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn one_expired_lease_of_two_refuses_the_bundle_q46() -> Result<()> {
    let db = TestDb::fresh().await?;
    let session = db.session().await?;
    let live = held(&session, "live").await?;
    Push::new("late", n(1)).run(&session).await?;
    let late = pop("late").lease("120 milliseconds").one(&session).await?;
    expiry(&session, &late).await?;
    let (live_lease, late_lease) = (live.lease()?, late.lease()?);
    for (operations, required) in [
        (json!([ack(live_lease), ack(late_lease), push("out", 1, "x")]), vec![]),
        (json!([ack(live_lease), push("out", 1, "x")]), vec![live_lease, late_lease]),
    ] {
        let answer = commit(&session, &operations, &json!([]), &required).await?;
        refused(&answer, "lease_expired");
        assert_eq!(messages(&session, "out").await?, 0);
    }
    // The holder of each lease settles it on its own.
    complete(&session, &[live]).await?;
    let again = pop("late").one(&session).await?;
    let operations = json!([ack(late_lease), push("out", 1, "x")]);
    refused(&commit(&session, &operations, &json!([]), &[]).await?, "lease_superseded");
    let operations = json!([ack(again.lease()?), push("out", 1, "x")]);
    done(&commit(&session, &operations, &json!([]), &[]).await?, 2)?;
    assert_eq!(numbers(&drain(&session, &pop("out"), 1, SOON).await?), [1]);
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn a_bundle_may_give_back_and_bury_q47() -> Result<()> {
    let db = TestDb::fresh().await?;
    let session = db.session().await?;
    session.run("SELECT queen_configure('q', retry_limit => 0)").await?;
    PushBatch::new("q", vec![n(1), n(2), n(3)]).run(&session).await?;
    let came = pop("q").run(&session).await?;
    let say = |index: usize, status: &str| {
        json!({ "type": "ack", "leaseId": came[index].lease_id.map(|id| id.to_string()),
                "messageId": came[index].message_id, "status": status, "error": status })
    };
    let operations = json!([say(0, "dead_letter"), say(1, "retry"), push("out", 1, "x")]);
    let answer = commit(&session, &operations, &json!([]), &[]).await?;
    let results = done(&answer, 3)?;
    let got = [&results[0]["deadLettered"], &results[1]["deadLettered"]];
    assert_eq!(got, [&json!(1), &json!(0)], "{answer}");
    let sql = "SELECT message_id, error, failures FROM queen_dead_letters";
    let letter = session.query_one(sql, &[]).await?;
    let got: (i64, String, i32) = (letter.get(0), letter.get(1), letter.get(2));
    assert_eq!(got, (came[0].message_id, "dead_letter".to_owned(), 0));
    let again = pop("q").run(&session).await?;
    assert_eq!(numbers(&again), [2, 3]);
    assert_eq!(messages(&session, "out").await?, 1);
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn a_prefix_cannot_be_read_in_a_bundle_q48() -> Result<()> {
    let db = TestDb::fresh().await?;
    let session = db.session().await?;
    for op in ["getPrefix", "list"] {
        let kv = json!([
            { "op": "put", "ns": "ns", "key": "k", "value": 1, "forever": true },
            { "op": op, "ns": "ns", "prefix": "k" },
        ]);
        let operations = json!([push("out", 1, "x")]);
        commit(&session, &operations, &kv, &[]).await.fails_with("22023")?;
        assert_eq!(marker(&session, "ns", "k").await?, None);
        assert_eq!(messages(&session, "out").await?, 0);
    }
    Ok(())
}

/// There is no trace id among the fields: what belongs to a message but not to its payload goes
/// into its headers.
#[tokio::test(flavor = "multi_thread")]
async fn a_trace_id_travels_in_the_headers_of_a_bundled_push_q49() -> Result<()> {
    let db = TestDb::fresh().await?;
    let session = db.session().await?;
    let mut traced = push("out", 1, "x");
    traced["traceId"] = json!("trace-1");
    commit(&session, &json!([traced]), &json!([]), &[]).await.fails_with("22023")?;
    let mut traced = push("out", 1, "x");
    traced["headers"] = json!({ "traceId": "trace-1" });
    done(&commit(&session, &json!([traced]), &json!([]), &[]).await?, 1)?;
    let came = drain(&session, &pop("out"), 1, SOON).await?;
    assert_eq!(came[0].headers, Some(json!({ "traceId": "trace-1" })));
    Ok(())
}
