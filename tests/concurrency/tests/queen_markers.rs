//! Queen MQ's own tests of its key/value store, written for the contract of queen_mq. The number at
//! the end of a name is that of the behaviour in the list that these tests follow.

use std::time::Duration;

use anyhow::Result;
use chrono::{DateTime, TimeDelta, Utc};
use queen_tests::{
    Applied, Fails, Push, Session, TestDb, at_once, eventually, marker, n, put_if_absent,
};
use serde_json::{Value, json};
use tokio_postgres::Error;

const SOON: Duration = Duration::from_secs(10);

/// A write: this call, with its arguments.
async fn write(session: &Session, call: &str) -> Result<Applied, Error> {
    let sql = format!("SELECT applied, value, version, reason FROM {call}");
    let row = session.query_one(&sql, &[]).await?;
    Ok(Applied {
        applied: row.get("applied"),
        value: row.get("value"),
        version: row.get("version"),
        reason: row.get("reason"),
    })
}

async fn incr(session: &Session, key: &str, how: &str) -> Result<Applied, Error> {
    write(session, &format!("queen_kv_incr('ns', '{key}', {how})")).await
}

async fn expires_at(session: &Session, key: &str) -> Result<Option<DateTime<Utc>>> {
    Ok(session.row("SELECT expires_at FROM queen_kv_get('ns', $1)", &[&key]).await?.get(0))
}

/// Check that a write was not applied, for this reason, with this value.
fn refused(answer: &Applied, reason: &str, value: Option<Value>) {
    assert!(!answer.applied, "{answer:?}");
    assert_eq!((answer.reason.as_deref(), &answer.value), (Some(reason), &value), "{answer:?}");
    assert_eq!(answer.version.is_some(), value.is_some(), "{answer:?}");
}

async fn is_gone(session: &Session, key: &str) -> Result<()> {
    eventually("end of the marker", SOON, async || {
        Ok(marker(session, "ns", key).await?.is_none().then_some(()))
    })
    .await
}

#[tokio::test(flavor = "multi_thread")]
async fn what_is_put_is_there_until_it_is_deleted_q50() -> Result<()> {
    let db = TestDb::fresh().await?;
    let session = db.session().await?;
    for value in [json!({ "a": [1, null, "ü"] }), json!(null), json!(0)] {
        let put = put_if_absent(&session, "ns", "k", &value, "1 hour").await?;
        assert!(put.applied && put.value.as_ref() == Some(&value), "{put:?}");
        let row = session.query_one("SELECT * FROM queen_kv_get('ns', 'k')", &[]).await?;
        assert!(row.get::<_, bool>("found"), "{value}");
        assert_eq!(row.get::<_, Option<Value>>("value"), Some(value.clone()));
        assert_eq!(row.get::<_, Option<i64>>("version"), put.version);
        let deleted = write(&session, "queen_kv_delete('ns', 'k')").await?;
        let expected =
            Applied { applied: true, value: Some(value), version: put.version, reason: None };
        assert_eq!(deleted, expected);
        refused(&write(&session, "queen_kv_delete('ns', 'k')").await?, "absent", None);
        assert_eq!(marker(&session, "ns", "k").await?, None);
    }
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn one_of_sixteen_wins_and_the_losers_are_told_who_q51() -> Result<()> {
    let db = TestDb::fresh().await?;
    let session = db.session().await?;
    let answers = at_once(db.crowd(16).await?, |worker, session| async move {
        put_if_absent(&session, "ns", "k", &json!({ "worker": worker }), "1 hour").await
    })
    .await?
    .into_iter()
    .collect::<Result<Vec<_>, _>>()?;
    let winners: Vec<usize> = (0..16).filter(|worker| answers[*worker].applied).collect();
    let [winner] = winners[..] else { anyhow::bail!("{winners:?} of {answers:?} won") };
    let value = json!({ "worker": winner });
    for (worker, answer) in answers.iter().enumerate() {
        let reason = (worker != winner).then_some("exists");
        assert_eq!((answer.reason.as_deref(), answer.value.as_ref()), (reason, Some(&value)));
        assert_eq!(answer.version, answers[winner].version, "{answers:?}");
    }
    assert_eq!(marker(&session, "ns", "k").await?, Some(value));
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn an_expected_version_is_met_exactly_and_creates_nothing_q52() -> Result<()> {
    let db = TestDb::fresh().await?;
    let session = db.session().await?;
    let put = async |value: i32, expect: i64| {
        let call =
            format!("queen_kv_put('ns', 'k', '{value}', forever => true, expect => {expect})");
        write(&session, &call).await
    };
    refused(&put(1, 4711).await?, "absent", None);
    assert_eq!(marker(&session, "ns", "k").await?, None);
    let mut versions = Vec::new();
    let mut expect = 0;
    for value in 1..=4 {
        let answer = put(value, expect).await?;
        assert!(answer.applied && answer.reason.is_none(), "{answer:?}");
        let stale = expect;
        expect = answer.version.unwrap_or_default();
        versions.push(expect);
        let reason = if stale == 0 { "exists" } else { "version" };
        refused(&put(99, stale).await?, reason, Some(json!(value)));
    }
    for call in ["queen_kv_delete", "queen_kv_check"] {
        let stale = format!("{call}('ns', 'k', {})", versions[0]);
        refused(&write(&session, &stale).await?, "version", Some(json!(4)));
    }
    let check = write(&session, &format!("queen_kv_check('ns', 'k', {expect})")).await?;
    assert!(check.applied && check.version == Some(expect), "{check:?}");
    // Without an expected version it changes the marker as well.
    let call = "queen_kv_put('ns', 'k', '4', forever => true)";
    versions.extend(write(&session, call).await?.version);
    versions.sort_unstable();
    versions.dedup();
    assert_eq!(versions.len(), 5, "a version was used again");
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn a_ceiling_admits_three_and_refuses_the_fourth_q53() -> Result<()> {
    let db = TestDb::fresh().await?;
    let session = db.session().await?;
    for sum in 1..=3 {
        let answer = incr(&session, "k", "ttl => '1 hour', max => 3").await?;
        assert!(answer.applied && answer.value == Some(json!(sum)), "{answer:?}");
    }
    let fourth = incr(&session, "k", "ttl => '1 hour', max => 3").await?;
    refused(&fourth, "limit", Some(json!(3)));
    let below = incr(&session, "k", "-4, ttl => '1 hour', min => 0").await?;
    refused(&below, "limit", Some(json!(3)));
    // The limit also holds for the first increment.
    refused(&incr(&session, "first", "4, ttl => '1 hour', max => 3").await?, "limit", None);
    assert_eq!(marker(&session, "ns", "first").await?, None);

    put_if_absent(&session, "ns", "text", &json!("3"), "150 milliseconds").await?;
    let answer = incr(&session, "text", "ttl => '1 hour'").await?;
    refused(&answer, "type", Some(json!("3")));
    is_gone(&session, "text").await?;
    let answer = incr(&session, "text", "5, ttl => '1 hour'").await?;
    assert!(answer.applied && answer.value == Some(json!(5)), "{answer:?}");
    Ok(())
}

/// The marker is never committed, so only the clock can remove it.
#[tokio::test(flavor = "multi_thread")]
async fn an_expired_marker_is_gone_for_every_session_before_any_sweep_q54() -> Result<()> {
    let db = TestDb::fresh().await?;
    let session = db.session().await?;
    for key in ["a", "b", "c", "d"] {
        session.run("BEGIN").await?;
        let old = put_if_absent(&session, "ns", key, &json!("old"), "100 milliseconds").await?;
        is_gone(&session, key).await?;
        let listed = "SELECT count(*) FROM queen_kv_list('ns', '') WHERE value = '\"old\"'";
        assert_eq!(session.count(listed).await?, 0);
        let many = "SELECT count(*) FROM queen_kv_get_many('ns', ARRAY['a', 'b', 'c', 'd']) \
                    WHERE found";
        assert_eq!(session.count(many).await?, 0);
        let version = old.version.unwrap_or_default();
        let call = format!("queen_kv_check('ns', '{key}', {version})");
        refused(&write(&session, &call).await?, "absent", None);
        refused(
            &write(&session, &format!("queen_kv_delete('ns', '{key}')")).await?,
            "absent",
            None,
        );
        let before: DateTime<Utc> =
            session.query_one("SELECT clock_timestamp()", &[]).await?.get(0);
        let answer = match key {
            "a" => put_if_absent(&session, "ns", key, &json!("new"), "1 hour").await?,
            "b" => {
                write(&session, "queen_kv_put('ns', 'b', '\"new\"', ttl => '1 hour', expect => 0)")
                    .await?
            }
            "c" => write(&session, "queen_kv_put('ns', 'c', '\"new\"', ttl => '1 hour')").await?,
            _ => incr(&session, "d", "ttl => '1 hour'").await?,
        };
        assert!(answer.applied && answer.version != old.version, "{key}: {answer:?}");
        let sql = "SELECT updated_at FROM queen_kv_get('ns', $1)";
        let updated: DateTime<Utc> = session.query_one(sql, &[&key]).await?.get(0);
        assert!(updated >= before, "{key}: {updated} is before {before}");
        session.run("ROLLBACK").await?;
    }
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn an_increment_does_not_prolong_what_it_found_q55() -> Result<()> {
    let db = TestDb::fresh().await?;
    let session = db.session().await?;
    incr(&session, "k", "ttl => '1 hour'").await?;
    let ends = expires_at(&session, "k").await?;
    let now: DateTime<Utc> = session.query_one("SELECT clock_timestamp()", &[]).await?.get(0);
    let around = (now + TimeDelta::minutes(59))..=(now + TimeDelta::hours(1));
    assert!(ends.is_some_and(|ends| around.contains(&ends)), "{ends:?}");
    for how in ["ttl => '1 day'", "ttl => '1 minute'", "forever => true"] {
        assert!(incr(&session, "k", how).await?.applied);
        assert_eq!(expires_at(&session, "k").await?, ends, "{how}");
    }
    incr(&session, "stays", "forever => true").await?;
    incr(&session, "stays", "ttl => '1 hour'").await?;
    assert_eq!(expires_at(&session, "stays").await?, None);
    // A put sets the expiry.
    write(&session, "queen_kv_put('ns', 'k', '1', ttl => '1 day')").await?;
    assert!(expires_at(&session, "k").await? > ends);
    write(&session, "queen_kv_put('ns', 'k', '1', forever => true)").await?;
    assert_eq!(expires_at(&session, "k").await?, None);
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn a_write_says_once_how_long_it_lasts_q56() -> Result<()> {
    let db = TestDb::fresh().await?;
    let session = db.session().await?;
    let writes = [
        "queen_kv_put('ns', 'k', '1'",
        "queen_kv_put_if_absent('ns', 'k', '1'",
        "queen_kv_incr('ns', 'k', 1",
    ];
    for expiry in [
        "",
        ", forever => false",
        ", ttl => '1 hour', forever => true",
        ", ttl => '0'",
        ", ttl => '-1 hour'",
    ] {
        for call in writes {
            let call = format!("{call}{expiry})");
            let first = write(&session, &call).await.fails_with("22023")?;
            let second = write(&session, &call).await.fails_with("22023")?;
            assert_eq!(first.message(), second.message(), "{call}");
            assert_eq!((first.detail(), first.hint()), (second.detail(), second.hint()), "{call}");
        }
    }
    for expiry in
        [json!({}), json!({ "ttlSeconds": 0 }), json!({ "ttlSeconds": 1, "forever": true })]
    {
        let mut op = json!({ "op": "put", "ns": "ns", "key": "k", "value": 1 });
        for (name, value) in expiry.as_object().into_iter().flatten() {
            op[name] = value.clone();
        }
        let sql = "SELECT queen_tx_commit(kv => $1)";
        session.query(sql, &[&json!([op])]).await.fails_with("22023")?;
    }
    assert_eq!(marker(&session, "ns", "k").await?, None);
    Ok(())
}

/// An effect that happens once: the first call returns true, every later one false.
#[tokio::test(flavor = "multi_thread")]
async fn once_is_true_and_then_false_q60() -> Result<()> {
    let db = TestDb::fresh().await?;
    let [ref first, ref second] = db.sessions().await?;
    let once = async |session: &Session| -> Result<bool, Error> {
        let call = "queen_kv_put_if_absent('ns', 'mail:1', 'true', ttl => '1 hour')";
        Ok(write(session, call).await?.applied)
    };
    assert!(once(first).await?);
    assert!(!once(first).await? && !once(second).await?);
    // After a rollback it has not happened.
    write(first, "queen_kv_delete('ns', 'mail:1')").await?;
    first.run("BEGIN").await?;
    assert!(once(first).await?);
    Push::new("mails", n(1)).run(first).await?;
    first.run("ROLLBACK").await?;
    assert!(once(second).await? && !once(first).await?);
    Ok(())
}

/// There are no functions for locks. A marker with a ttl is a lock, its version is the token, and
/// queen_kv_check guards the work.
#[tokio::test(flavor = "multi_thread")]
async fn a_lock_made_of_a_marker_has_one_holder_and_a_stale_one_commits_nothing_q68() -> Result<()>
{
    let db = TestDb::fresh().await?;
    let [ref first, ref second] = db.sessions().await?;
    let stale = put_if_absent(first, "ns", "lock", &json!("first"), "300 milliseconds").await?;
    let denied = put_if_absent(second, "ns", "lock", &json!("second"), "1 hour").await?;
    refused(&denied, "exists", Some(json!("first")));
    is_gone(first, "lock").await?;
    let held = put_if_absent(second, "ns", "lock", &json!("second"), "1 hour").await?;
    assert!(held.applied && held.version != stale.version, "{held:?}");
    for (session, token, is_guarded) in [(first, &stale, false), (second, &held, true)] {
        session.run("BEGIN").await?;
        Push::new("work", n(1)).run(session).await?;
        let token = token.version.unwrap_or_default();
        let guard = format!("queen_kv_check('ns', 'lock', {token}, required => true)");
        let checked = write(session, &guard).await;
        if is_guarded {
            assert!(checked?.applied);
            session.run("COMMIT").await?;
        } else {
            checked.fails_with("QN010")?;
            session.run("ROLLBACK").await?;
        }
        let messages = session.count("SELECT count(*) FROM queen_messages").await?;
        assert_eq!(messages, i64::from(is_guarded));
    }
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn a_semaphore_made_of_a_counter_is_never_above_its_limit_q68() -> Result<()> {
    let db = TestDb::fresh().await?;
    let session = db.session().await?;
    let answers = at_once(db.crowd(10).await?, |_, session| async move {
        incr(&session, "permits", "ttl => '1 hour', max => 3").await
    })
    .await?
    .into_iter()
    .collect::<Result<Vec<_>, _>>()?;
    let admitted = answers.iter().filter(|answer| answer.applied).count();
    assert_eq!(admitted, 3, "{answers:?}");
    for answer in answers.iter().filter(|answer| !answer.applied) {
        refused(answer, "limit", Some(json!(3)));
    }
    // After one permit is given back, one more is admitted.
    assert!(incr(&session, "permits", "-1, ttl => '1 hour', min => 0").await?.applied);
    assert!(incr(&session, "permits", "ttl => '1 hour', max => 3").await?.applied);
    assert!(!incr(&session, "permits", "ttl => '1 hour', max => 3").await?.applied);
    Ok(())
}
