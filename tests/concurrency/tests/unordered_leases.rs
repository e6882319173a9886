//! Leases in groups without order: they run out, are fenced, are extended, and are settled message
//! by message.

use std::collections::BTreeSet;
use std::slice;
use std::time::Duration;

use anyhow::{Context, Result};
use chrono::{DateTime, TimeDelta, Utc};
use queen_tests::unordered::{claims, figures, pop_all, prepared, sweep};
use queen_tests::{
    Ack, Fails, Push, PushBatch, complete, counts, expiry, marker, n, numbers, settle, sorted,
};
use serde_json::{Value, json};
use tokio::task::JoinSet;
use uuid::Uuid;

#[tokio::test(flavor = "multi_thread")]
async fn what_a_lost_lease_held_comes_to_another_message_by_message() -> Result<()> {
    let (db, [first]) = prepared("", 3).await?;
    let second = db.session().await?;
    for is_swept in [false, true] {
        let lost = pop_all().lease("150 ms").run(&first).await?;
        assert_eq!(lost.len(), 3);
        let lease = lost[0].lease()?;
        let id = |index: usize| lost[index].message_id;
        let of = |index: usize| Ack::messages(lease, [id(index)]);
        expiry(&first, &lost[0]).await?;
        if is_swept {
            sweep(&first).await?;
        }
        // The ack is late, though no consumer has popped since.
        for ack in [Ack::all(lease), of(0), Ack::ids(lease, [&lost[1].transaction_id])] {
            for status in ["completed", "failed", "retry", "dead_letter"] {
                ack.clone().status(status).run(&first).await.fails_with("QN001")?;
            }
        }
        first.query("SELECT queen_extend($1)", &[&lease]).await.fails_with("QN001")?;

        // A refused client gets its error a moment before its transaction's locks are released.
        let again = pop_all().batch(1).wait("5 s").one(&second).await?;
        let moved = lost.iter().position(|one| one.message_id == again.message_id);
        let moved = moved.expect("one of those");
        assert_eq!(again.delivery_attempt, lost[moved].delivery_attempt + 1);
        for status in ["completed", "failed", "retry", "dead_letter"] {
            of(moved).status(status).run(&first).await.fails_with("QN002")?;
            Ack::all(lease).status(status).run(&first).await.fails_with("QN002")?;
        }
        // The other messages are as they were.
        let left = (moved + 1) % 3;
        of(left).run(&first).await.fails_with("QN001")?;
        Ack::messages(lease, [id(left), id(moved)]).run(&first).await.fails_with("QN002")?;
        if is_swept {
            complete(&second, slice::from_ref(&again)).await?;
            sweep(&second).await?;
            // Another lease completed the message: the ack must not succeed silently.
            of(moved).run(&first).await.fails_with("QN002")?;
            let rest = pop_all().run(&second).await?;
            assert_eq!(rest.len(), 2);
            complete(&second, &rest).await?;
            Ack::all(lease).run(&first).await.fails_with("QN002")?;
        } else {
            assert_eq!(Ack::all(again.lease()?).status("retry").run(&second).await?.settled, 1);
        }
    }
    assert_eq!(figures(&first).await?.0, 0);
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn a_repeated_ack_counts_in_already_also_after_sweeps() -> Result<()> {
    let (_db, [session]) = prepared("", 0).await?;
    for (from, size) in [(1, 1), (2, 1), (3, 6), (9, 6)] {
        let ids = (0..size).map(|k| (k % 2 == 0).then(|| format!("t{}", from + k)));
        let batch = PushBatch::new("q", (from..from + size).map(n).collect()).ids(ids.collect());
        batch.run(&session).await?;
        let held = pop_all().lease("2 s").run(&session).await?;
        let (lease, total) = (held[0].lease()?, size as i32);
        assert_eq!(held.len(), size as usize);
        let by_id = Ack::messages(lease, held.iter().map(|one| one.message_id));
        let by_name = Ack::ids(lease, held.iter().map(|one| &one.transaction_id));
        let (ack, is_swept) = match from {
            1 | 3 => (&by_name, false),
            _ => (&by_id, true),
        };
        if is_swept {
            // Also while the lease is live.
            sweep(&session).await?;
        }
        if size > 1 {
            let first = Ack::ids(lease, [&held[0].transaction_id]);
            assert_eq!(first.run(&session).await?, counts(1, 0, false));
            sweep(&session).await?;
            assert_eq!(first.run(&session).await?, counts(0, 1, false));
            assert_eq!(ack.run(&session).await?, counts(total - 1, 1, true));
        } else {
            assert_eq!(ack.run(&session).await?, counts(1, 0, true));
        }
        let repeated = counts(0, total, true);
        for round in 0..3 {
            for ack in [&by_id, &by_name, &Ack::all(lease)] {
                assert_eq!(ack.run(&session).await?, repeated, "round {round}");
            }
            by_id.clone().failed("no").run(&session).await.fails_with("QN005")?;
            sweep(&session).await?;
        }
        Ack::ids(lease, ["never"]).run(&session).await.fails_with("QN004")?;
        // Long after, when the group has gone on.
        expiry(&session, &held[0]).await?;
        Push::new("q", n(100)).run(&session).await?;
        complete(&session, &pop_all().run(&session).await?).await?;
        sweep(&session).await?;
        assert_eq!(by_id.run(&session).await?, repeated);
        assert_eq!(Ack::all(lease).run(&session).await?, repeated);
    }
    assert_eq!(claims(&session).await?, 0);
    Ok(())
}

/// Also when the messages themselves are deleted.
#[tokio::test(flavor = "multi_thread")]
async fn a_repeated_ack_is_answered_when_the_log_has_been_cut() -> Result<()> {
    let (_db, [session]) = prepared(", completed_retention => '1 us'", 3).await?;
    let held = pop_all().run(&session).await?;
    let lease = held[0].lease()?;
    complete(&session, &held).await?;
    sweep(&session).await?;
    assert_eq!(session.count("SELECT count(*) FROM queen_messages").await?, 0);
    assert_eq!(Ack::all(lease).run(&session).await?, counts(0, 3, true));
    let by_id = Ack::messages(lease, held.iter().map(|one| one.message_id));
    assert_eq!(by_id.run(&session).await?, counts(0, 3, true));
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn an_id_that_two_messages_have_settles_both() -> Result<()> {
    let (_db, [session]) = prepared(", dedup_window => '0'", 0).await?;
    for is_swept in [false, true] {
        for (number, id) in [(1, "x"), (2, "y"), (3, "x")] {
            assert_eq!(Push::new("q", n(number)).id(id).run(&session).await?.status, "queued");
        }
        let held = pop_all().run(&session).await?;
        assert_eq!(numbers(&held), [1, 2, 3]);
        let lease = held[0].lease()?;
        if is_swept {
            sweep(&session).await?;
        }
        let both = Ack::ids(lease, ["x"]);
        assert_eq!(both.run(&session).await?, counts(2, 0, false));
        assert_eq!(both.run(&session).await?, counts(0, 2, false));
        if is_swept {
            sweep(&session).await?;
        }
        assert_eq!(Ack::ids(lease, ["x", "y"]).run(&session).await?, counts(1, 2, true));
        assert_eq!(both.run(&session).await?, counts(0, 2, true));
        assert_eq!(figures(&session).await?.0, 0);
    }
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn foreign_and_unknown_leases_are_refused() -> Result<()> {
    let (_db, [session]) = prepared("", 4).await?;
    let mine = pop_all().batch(2).run(&session).await?;
    let theirs = pop_all().batch(1).one(&session).await?;
    let lease = mine[0].lease()?;
    for foreign in [theirs.message_id, theirs.message_id + 1, i64::from(i32::MAX)] {
        let ack = Ack::messages(lease, [mine[0].message_id, foreign]);
        ack.run(&session).await.fails_with("QN004")?;
    }
    Ack::ids(lease, [&theirs.transaction_id]).run(&session).await.fails_with("QN004")?;
    Ack::all(lease).partition("other").run(&session).await.fails_with("QN004")?;
    Ack::all(Uuid::new_v4()).run(&session).await.fails_with("QN003")?;
    Ack::messages(Uuid::new_v4(), [theirs.message_id]).run(&session).await.fails_with("QN003")?;
    complete(&session, &mine).await?;
    complete(&session, &[theirs]).await?;
    assert_eq!(figures(&session).await?.0, 1);
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn an_extended_lease_holds_all_that_is_left_in_it() -> Result<()> {
    let (_db, [session]) = prepared(", retry_delay => '1 hour'", 10).await?;
    let held = pop_all().lease("800 ms").run(&session).await?;
    assert_eq!(held.len(), 10);
    let lease = held[0].lease()?;
    let id = |index: usize| held[index].message_id;
    Ack::messages(lease, [id(0)]).run(&session).await?;
    Ack::messages(lease, [id(1)]).failed("no").run(&session).await?;
    let extend = async |time: &str| -> Result<DateTime<Utc>> {
        let sql = format!("SELECT queen_extend($1, '{time}')");
        Ok(session.query_one(&sql, &[&lease]).await?.get(0))
    };
    let until = extend("30 s").await?;
    assert!(until > held[0].expires_at()? + Duration::from_secs(20));
    assert_eq!(extend("1 ms").await?, until, "it never shortens");
    expiry(&session, &held[0]).await?;
    assert_eq!(pop_all().run(&session).await?, []);
    let sql =
        "SELECT count(*) FROM queen_leases WHERE messages = 8 AND expires_at > clock_timestamp()";
    assert_eq!(session.count(sql).await?, 1);
    sweep(&session).await?;
    assert_eq!(pop_all().run(&session).await?, []);
    let rest = Ack::all(lease).run(&session).await?;
    assert_eq!((rest.settled, rest.lease_released), (8, true));
    session.query("SELECT queen_extend($1)", &[&lease]).await.fails_with("QN004")?;
    assert_eq!(figures(&session).await?.0, 1);
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn an_extended_lease_ends_when_it_was_said_to() -> Result<()> {
    let (_db, [session]) = prepared("", 10).await?;
    let held = pop_all().lease("100 ms").run(&session).await?;
    let mut last = held[9].clone();
    let lease = last.lease()?;
    let sql = "SELECT queen_extend($1, '400 ms')";
    last.lease_expires_at = Some(session.query_one(sql, &[&lease]).await?.get(0));
    expiry(&session, &last).await?;
    session.query(sql, &[&lease]).await.fails_with("QN001")?;
    let again = pop_all().run(&session).await?;
    assert_eq!(sorted(&again), (1..=10).collect::<Vec<_>>());
    assert!(again.iter().all(|one| one.delivery_attempt == 2));
    session.query(sql, &[&lease]).await.fails_with("QN002")?;
    complete(&session, &again).await
}

#[tokio::test(flavor = "multi_thread")]
async fn a_mixed_set_is_settled_as_one_and_the_rest_stays() -> Result<()> {
    let (_db, [session]) = prepared(", retry_limit => 1", 7).await?;
    let held = pop_all().run(&session).await?;
    let lease = held[0].lease()?;
    let id = |number: usize| held[number - 1].message_id;
    let results = json!([
        { "messageId": id(1), "status": "completed" },
        { "messageId": id(2), "status": "failed", "error": "two" },
        { "messageId": id(3), "status": "retry" },
        { "messageId": id(4), "status": "dead_letter", "error": "four" },
        { "transactionId": held[4].transaction_id, "status": "completed" },
    ]);
    // One foreign message makes the whole call fail.
    let mut spoilt = results.clone();
    spoilt[0]["messageId"] = json!(id(7) + 1);
    settle(&session, lease, &spoilt).await.fails_with("QN004")?;
    assert_eq!(pop_all().run(&session).await?, []);

    let outcomes = settle(&session, lease, &results).await?;
    let mut outcomes: Vec<(i64, String)> =
        outcomes.into_iter().map(|row| (row.message_id, row.outcome)).collect();
    outcomes.sort_unstable();
    let expected = ["completed", "failed", "retry", "dead_lettered", "completed"];
    let expected: Vec<(i64, String)> =
        expected.iter().enumerate().map(|(n, what)| (id(n + 1), (*what).to_owned())).collect();
    assert_eq!(outcomes, expected);
    let repeated = json!([{ "messageId": id(1), "status": "completed" }]);
    assert_eq!(settle(&session, lease, &repeated).await?[0].outcome, "already");

    let back = pop_all().run(&session).await?;
    assert_eq!(sorted(&back), [2, 3]);
    assert!(back.iter().all(|one| one.delivery_attempt == 2));
    assert_eq!(Ack::all(lease).run(&session).await?.settled, 2, "6 and 7");
    let all: Vec<Value> = back
        .iter()
        .map(|one| json!({ "messageId": one.message_id, "status": "failed", "error": "again" }))
        .collect();
    let outcomes = settle(&session, back[0].lease()?, &Value::Array(all)).await?;
    // It is the second failure of message 2 and the first one of 3.
    for row in outcomes {
        let expected = if row.message_id == id(2) { "dead_lettered" } else { "failed" };
        assert_eq!(row.outcome, expected);
    }
    let last = pop_all().one(&session).await?;
    assert_eq!((&last.payload, last.delivery_attempt), (&n(3), 3));
    complete(&session, &[last]).await?;
    let sql = "SELECT array_agg(error ORDER BY message_id) FROM queen_dead_letters";
    let errors: Vec<String> = session.query_one(sql, &[]).await?.get(0);
    assert_eq!(errors, ["again", "four"]);
    assert_eq!(figures(&session).await?.0, 0);
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn a_bundle_settles_and_is_fenced() -> Result<()> {
    let (_db, [session]) = prepared(", retry_delay => '1 hour'", 4).await?;
    let held = pop_all().run(&session).await?;
    let lease = held[0].lease()?.to_string();
    let commit = async |operations: &Value| -> Result<Value> {
        let kv = json!([{ "op": "put", "ns": "unordered", "key": "effect", "value": operations,
                          "forever": true }]);
        let sql = "SELECT queen_tx_commit($1, $2)";
        Ok(session.query_one(sql, &[operations, &kv]).await?.get(0))
    };
    let mixed = json!([
        { "type": "ack", "leaseId": lease, "messageId": held[0].message_id },
        { "type": "push", "queue": "next", "payload": 1 },
        { "type": "ack", "leaseId": lease, "transactionId": held[1].transaction_id,
          "status": "failed", "error": "no" },
    ]);
    let answer = commit(&mixed).await?;
    assert_eq!(answer["success"], true, "{answer}");
    for index in [0, 2] {
        let result = &answer["results"][index];
        let got = [&result["settled"], &result["already"], &result["leaseReleased"]];
        assert_eq!(got, [&json!(1), &json!(0), &json!(false)], "{answer}");
    }
    assert_eq!(marker(&session, "unordered", "effect").await?, Some(mixed));
    assert_eq!(pop_all().run(&session).await?, [], "2 waits, 3 and 4 are held");

    let foreign = json!([{ "type": "ack", "leaseId": lease, "messageId": held[1].message_id }]);
    assert_eq!(commit(&foreign).await?["reason"], "message_not_in_lease");
    let rest = json!([{ "type": "ack", "leaseId": lease }]);
    let answer = commit(&rest).await?;
    let result = &answer["results"][0];
    assert_eq!([&result["settled"], &result["leaseReleased"]], [&json!(2), &json!(true)]);

    Push::new("q", n(5)).run(&session).await?;
    let short = pop_all().lease("100 ms").one(&session).await?;
    expiry(&session, &short).await?;
    let late = json!([{ "type": "ack", "leaseId": short.lease()?.to_string() }]);
    assert_eq!(commit(&late).await?["reason"], "lease_expired");
    let again = pop_all().one(&session).await?;
    assert_eq!(commit(&late).await?["reason"], "lease_superseded");
    assert_eq!(marker(&session, "unordered", "effect").await?, Some(rest), "nothing else happened");
    complete(&session, &[again]).await?;
    assert_eq!(figures(&session).await?.0, 1);
    Ok(())
}

/// A pop that began before a lease ended does not claim its messages, however late it gets to them.
#[tokio::test(flavor = "multi_thread")]
async fn the_leases_of_a_message_never_overlap() -> Result<()> {
    const MESSAGES: usize = 60;
    let (db, [_]) = prepared("", MESSAGES as i64).await?;
    let mut workers = JoinSet::new();
    for worker in 0..6 {
        let session = db.session().await?;
        workers.spawn(async move {
            let mut leases = Vec::new();
            for round in 0..150 {
                let length = TimeDelta::milliseconds(20 + (worker * 31 + round * 7) % 40);
                let lease = format!("{} ms", length.num_milliseconds());
                for one in pop_all().batch(20).lease(lease).run(&session).await? {
                    let end = one.lease_expires_at.context("a lease has an end")?;
                    leases.push((one.message_id, end - length, end, one.delivery_attempt));
                }
            }
            anyhow::Ok(leases)
        });
    }
    let mut leases = Vec::new();
    while let Some(worker) = workers.join_next().await {
        leases.extend(worker??);
    }
    leases.sort_unstable();
    let messages: BTreeSet<i64> = leases.iter().map(|lease| lease.0).collect();
    assert_eq!(messages.len(), MESSAGES);
    for pair in leases.windows(2) {
        let [(message, _, end, attempt), (next, start, _, again)] = pair else { continue };
        if message == next {
            assert!(start >= end, "message {message} was leased until {end} and from {start}");
            assert_eq!(*again, attempt + 1);
        }
    }
    Ok(())
}
