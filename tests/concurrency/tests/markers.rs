//! Markers under concurrency: one writer wins, and all others learn which one.

use std::time::Duration;

use anyhow::{Result, ensure};
use queen_tests::{Applied, Fails, Session, TestDb, at_once, eventually, marker, put_if_absent};
use serde_json::{Value, json};

const CROWD: usize = 16;

/// Check that one answer won and the others report its value and version. Returns its place.
fn winner(answers: &[Applied]) -> Result<usize> {
    let winners: Vec<usize> = (0..answers.len()).filter(|n| answers[*n].applied).collect();
    let [winner] = winners[..] else { anyhow::bail!("{winners:?} of {answers:?} won") };
    told(answers, &json!({ "worker": winner }))?;
    ensure!(answers[winner].reason.is_none());
    Ok(winner)
}

/// Check that all answers report this value and one version, and that the losers say why they lost.
fn told(answers: &[Applied], value: &Value) -> Result<()> {
    let version = answers[0].version;
    ensure!(version.is_some(), "no version in {answers:?}");
    for answer in answers {
        ensure!(answer.value.as_ref() == Some(value), "{value} won, but {answer:?}");
        ensure!(answer.version == version, "{answers:?}");
        ensure!(answer.applied || answer.reason.as_deref() == Some("exists"), "{answer:?}");
    }
    Ok(())
}

async fn race(
    sessions: Vec<Session>,
    key: &'static str,
    ttl: &'static str,
) -> Result<Vec<Applied>> {
    let answers = at_once(sessions, |worker, session| async move {
        put_if_absent(&session, "race", key, &json!({ "worker": worker }), ttl).await
    })
    .await?;
    Ok(answers.into_iter().collect::<Result<_, _>>()?)
}

/// Wait until so many sessions have been waiting in a put for a while.
async fn waiting(session: &Session, crowd: usize) -> Result<()> {
    let sql = "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() \
               AND state = 'active' AND query LIKE '%queen_kv_put_if_absent%' \
               AND pid <> pg_backend_pid() \
               AND clock_timestamp() - query_start > interval '200 milliseconds'";
    eventually("crowd that waits", Duration::from_secs(20), async || {
        Ok((session.count(sql).await? == crowd as i64).then_some(()))
    })
    .await
}

#[tokio::test(flavor = "multi_thread")]
async fn of_sixteen_that_put_one_key_one_wins() -> Result<()> {
    let db = TestDb::fresh().await?;
    let session = db.session().await?;
    for key in ["one", "two", "three", "four", "five"] {
        let answers = race(db.crowd(CROWD).await?, key, "1 hour").await?;
        let winner = winner(&answers)?;
        assert_eq!(marker(&session, "race", key).await?, Some(json!({ "worker": winner })));
        // A later writer gets the winner's value, too.
        let late = put_if_absent(&session, "race", key, &json!("late"), "1 hour").await?;
        assert!(!late.applied);
        assert_eq!((&late.value, late.version), (&answers[0].value, answers[0].version));
    }
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn an_expired_marker_has_one_successor() -> Result<()> {
    let db = TestDb::fresh().await?;
    let session = db.session().await?;
    let old = put_if_absent(&session, "race", "key", &json!("old"), "100 milliseconds").await?;
    assert!(old.applied);
    eventually("expiry", Duration::from_secs(10), async || {
        Ok(marker(&session, "race", "key").await?.is_none().then_some(()))
    })
    .await?;
    let answers = race(db.crowd(CROWD).await?, "key", "1 hour").await?;
    winner(&answers)?;
    assert_ne!(answers[0].version, old.version, "a version is never reused");
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn all_wait_for_an_open_put_and_are_told_its_value_when_it_commits() -> Result<()> {
    let db = TestDb::fresh().await?;
    let [ref session, ref open] = db.sessions().await?;
    open.run("BEGIN").await?;
    let first = put_if_absent(open, "race", "key", &json!("first"), "1 hour").await?;
    assert!(first.applied);
    assert_eq!(marker(session, "race", "key").await?, None, "not committed yet");
    let crowd = db.crowd(CROWD - 1).await?;
    let racing = tokio::spawn(race(crowd, "key", "1 hour"));
    waiting(session, CROWD - 1).await?;
    open.run("COMMIT").await?;
    let answers = racing.await??;
    assert!(answers.iter().all(|answer| !answer.applied));
    told(&answers, &json!("first"))?;
    assert_eq!(answers[0].version, first.version);
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn when_an_open_put_rolls_back_the_next_wins() -> Result<()> {
    let db = TestDb::fresh().await?;
    let [ref session, ref open] = db.sessions().await?;
    open.run("BEGIN").await?;
    put_if_absent(open, "race", "key", &json!("first"), "1 hour").await?;
    let crowd = db.crowd(CROWD - 1).await?;
    let racing = tokio::spawn(race(crowd, "key", "1 hour"));
    waiting(session, CROWD - 1).await?;
    open.run("ROLLBACK").await?;
    let winner = winner(&racing.await??)?;
    assert_eq!(marker(session, "race", "key").await?, Some(json!({ "worker": winner })));
    Ok(())
}

/// A put may wait for an open delete or not; in both cases its answer must be consistent.
#[tokio::test(flavor = "multi_thread")]
async fn a_put_beside_an_open_delete_answers_as_if_before_or_after_it() -> Result<()> {
    let db = TestDb::fresh().await?;
    let [ref session, ref open] = db.sessions().await?;
    for round in 0..10 {
        let old = put_if_absent(session, "race", "key", &json!("old"), "1 hour").await?;
        open.run("BEGIN; SELECT queen_kv_delete('race', 'key')").await?;
        let racing = tokio::spawn(race(db.crowd(1).await?, "key", "1 hour"));
        let commits = round % 2 == 0;
        open.run(if commits { "COMMIT" } else { "ROLLBACK" }).await?;
        let answers = racing.await??;
        let value = marker(session, "race", "key").await?;
        if answers[0].applied {
            assert!(commits, "the marker was there all the time");
            told(&answers, &json!({ "worker": 0 }))?;
            assert_ne!(answers[0].version, old.version);
            assert_eq!(value, Some(json!({ "worker": 0 })));
        } else {
            told(&answers, &json!("old"))?;
            assert_eq!(answers[0].version, old.version);
            assert_eq!(value, (!commits).then(|| json!("old")));
        }
        session.run("SELECT queen_kv_delete('race', 'key')").await?;
    }
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn a_required_put_that_loses_raises_with_the_winner_in_its_detail() -> Result<()> {
    let db = TestDb::fresh().await?;
    let session = db.session().await?;
    let first = put_if_absent(&session, "race", "key", &json!({ "a": 1 }), "1 hour").await?;
    session.run("CREATE TABLE charges (n int)").await?;
    let sql = "BEGIN; INSERT INTO charges VALUES (1); \
               SELECT queen_kv_put_if_absent('race', 'key', '2', forever => true, \
                   required => true)";
    let error = session.run(sql).await.fails_with("QN010")?;
    session.run("ROLLBACK").await?;
    let detail: Value = serde_json::from_str(error.detail().unwrap_or_default())?;
    let expected = json!({
        "ns": "race", "key": "key", "reason": "exists", "version": first.version,
        "value": { "a": 1 },
    });
    assert_eq!(detail, expected);
    assert_eq!(session.count("SELECT count(*) FROM charges").await?, 0);
    Ok(())
}

/// A bundle writes its markers in the order of their keys, whatever their order in the call.
#[tokio::test(flavor = "multi_thread")]
async fn bundles_over_the_same_keys_do_not_deadlock() -> Result<()> {
    let db = TestDb::fresh().await?;
    let session = db.session().await?;
    let keys: Vec<String> = (0..20).map(|n| format!("key {n:02}")).collect();
    for round in 0..5 {
        let answers = at_once(db.crowd(8).await?, |worker, session| {
            let mut keys = keys.clone();
            keys.rotate_left(worker * 2);
            if worker % 2 == 0 {
                keys.reverse();
            }
            async move {
                let kv: Vec<Value> = keys
                    .iter()
                    .map(|key| {
                        json!({ "op": "putIfAbsent", "ns": format!("bundle{round}"), "key": key,
                                "value": worker, "ttlSeconds": 3600, "required": true })
                    })
                    .collect();
                session.query_one("SELECT queen_tx_commit(kv => $1)", &[&json!(kv)]).await
            }
        })
        .await?;
        let mut winners = Vec::new();
        for (worker, row) in answers.into_iter().enumerate() {
            let answer: Value = row?.get(0);
            match answer["success"].as_bool() {
                Some(true) => winners.push(worker),
                _ => assert_eq!(answer["reason"], "kv_precondition", "{answer}"),
            }
        }
        assert_eq!(winners.len(), 1, "round {round}");
        for key in &keys {
            let value = marker(&session, &format!("bundle{round}"), key).await?;
            assert_eq!(value, Some(json!(winners[0])));
        }
    }
    Ok(())
}
