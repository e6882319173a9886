//! Queen MQ's own tests of options, retention, delays and upgrades, written for the contract of
//! queen_mq. The number at the end of a name is that of the behaviour in the list that these tests
//! follow.

use std::time::Duration;

use anyhow::{Result, ensure};
use chrono::{DateTime, TimeDelta, Utc};
use queen_tests::{
    Ack, Fails, Pop, Push, PushBatch, Session, TestDb, complete, drain, eventually, marker, n,
    numbers, put_if_absent,
};
use serde_json::{Value, json};

const SOON: Duration = Duration::from_secs(10);

fn pop(queue: &str, group: &str) -> Pop {
    Pop::new(queue).group(group).mode("all").batch(100).partitions(100)
}

async fn messages(session: &Session, queue: &str) -> Result<i64> {
    let sql = format!("SELECT count(*) FROM queen_messages WHERE queue = '{queue}'");
    Ok(session.count(&sql).await?)
}

/// Sweep until none of the `total` messages of the queue is left, and check that none was deleted
/// before this time.
async fn swept(session: &Session, queue: &str, total: i64, time: DateTime<Utc>) -> Result<()> {
    eventually("end of what is old", SOON, async || {
        session.run("SELECT queen_sweep()").await?;
        let left = messages(session, queue).await?;
        let now: DateTime<Utc> = session.query_one("SELECT clock_timestamp()", &[]).await?.get(0);
        ensure!(now >= time || left == total, "{left} of {total} are left at {now}, before {time}");
        Ok((left == 0).then_some(()))
    })
    .await
}

/// When the last message of a queue was pushed.
async fn youngest(session: &Session, queue: &str) -> Result<DateTime<Utc>> {
    let sql = "SELECT max(created_at) FROM queen_messages WHERE queue = $1";
    Ok(session.query_one(sql, &[&queue]).await?.get(0))
}

/// The options in effect after this call, in the order of the arguments. Intervals are in seconds.
async fn configured(session: &Session, arguments: &str) -> Result<Value> {
    let sql = format!(
        "SELECT jsonb_build_array(extract(epoch FROM lease_time)::int, retry_limit, \
         extract(epoch FROM retry_delay)::int, retry_backoff, \
         extract(epoch FROM retry_delay_max)::int, max_deliveries, on_exhausted, \
         extract(epoch FROM dedup_window)::int, extract(epoch FROM delay)::int, \
         extract(epoch FROM retention)::int, extract(epoch FROM completed_retention)::int, \
         max_depth, ordering) FROM queen_configure('q'{arguments})"
    );
    Ok(session.query_one(&sql, &[]).await?.get(0))
}

#[tokio::test(flavor = "multi_thread")]
async fn options_are_merged_unset_and_reset_and_the_answer_is_what_is_stored_q69() -> Result<()> {
    let db = TestDb::fresh().await?;
    let [ref session, ref other] = db.sessions().await?;
    let defaults =
        json!([60, 3, 0, 1, 3600, null, "dead_letter", 3600, 0, null, 86_400, null, "partition"]);
    assert_eq!(configured(session, "").await?, defaults);
    let all = ", lease_time => '30 seconds', retry_limit => 5, retry_delay => '2 seconds', \
               retry_backoff => 1.5, retry_delay_max => '10 minutes', max_deliveries => 20, \
               on_exhausted => 'drop', dedup_window => '5 minutes', delay => '1 second', \
               retention => '7 days', completed_retention => '2 hours', max_depth => 1000";
    let set = json!([30, 5, 2, 1.5, 600, 20, "drop", 300, 1, 604_800, 7200, 1000, "partition"]);
    assert_eq!(configured(session, all).await?, set);
    // Another session reads what the call answered.
    assert_eq!(configured(other, "").await?, set);
    let stored = "SELECT options -> 'retry_limit' FROM queen_queues WHERE queue = 'q'";
    assert_eq!(other.query_one(stored, &[]).await?.get::<_, Value>(0), json!(5));

    let mut expected = set.clone();
    expected[1] = json!(7);
    assert_eq!(configured(session, ", retry_limit => 7, lease_time => NULL").await?, expected);
    (expected[0], expected[9]) = (defaults[0].clone(), Value::Null);
    let unset = ", unset => ARRAY['lease_time', 'retention']";
    assert_eq!(configured(session, unset).await?, expected);
    let mut expected = defaults.clone();
    expected[1] = json!(9);
    assert_eq!(configured(session, ", retry_limit => 9, reset => true").await?, expected);

    for bad in [", unset => ARRAY['priority']", ", on_exhausted => 'keep'", ", retry_limit => -1"] {
        let sql = format!("SELECT queen_configure('q'{bad})");
        session.query(&sql, &[]).await.fails_with("22023")?;
    }
    assert_eq!(configured(other, "").await?, expected, "what is refused changes nothing");
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn retention_takes_what_is_old_read_or_not_but_nothing_from_a_lease_q70() -> Result<()> {
    let db = TestDb::fresh().await?;
    let session = db.session().await?;
    for queue in ["held", "unread", "kept"] {
        PushBatch::new(queue, vec![n(1), n(2)]).run(&session).await?;
    }
    let held = pop("held", "g").run(&session).await?;
    let due = youngest(&session, "unread").await? + TimeDelta::milliseconds(400);
    for queue in ["held", "unread"] {
        let sql = format!("SELECT queen_configure('{queue}', retention => '400 milliseconds')");
        session.run(&sql).await?;
    }
    swept(&session, "unread", 2, due).await?;
    assert_eq!(pop("unread", "g").run(&session).await?, []);
    assert_eq!(messages(&session, "kept").await?, 2);
    // These messages are as old, but held in a lease.
    assert_eq!(messages(&session, "held").await?, 2);
    complete(&session, &held).await?;
    swept(&session, "held", 2, due).await
}

#[tokio::test(flavor = "multi_thread")]
async fn what_is_completed_goes_unless_a_group_has_not_got_there_q70() -> Result<()> {
    let db = TestDb::fresh().await?;
    let session = db.session().await?;
    session.run("SELECT queen_subscribe('pinned', 'slow', 'all')").await?;
    for queue in ["pinned", "no group", "done"] {
        PushBatch::new(queue, vec![n(1), n(2)]).run(&session).await?;
    }
    for queue in ["pinned", "done"] {
        drain(&session, &pop(queue, "g"), 2, SOON).await?;
    }
    let due = youngest(&session, "done").await? + TimeDelta::milliseconds(400);
    for queue in ["pinned", "no group", "done"] {
        let sql = format!("SELECT queen_configure('{queue}', completed_retention => '400 ms')");
        session.run(&sql).await?;
    }
    swept(&session, "done", 2, due).await?;
    // These messages are as old. One group has not completed those of `pinned`, and `no group` has
    // no group.
    assert_eq!(messages(&session, "pinned").await?, 2);
    assert_eq!(messages(&session, "no group").await?, 2);
    assert_eq!(numbers(&drain(&session, &pop("pinned", "slow"), 2, SOON).await?), [1, 2]);
    swept(&session, "pinned", 2, due).await?;
    Push::new("pinned", n(3)).run(&session).await?;
    assert_eq!(numbers(&drain(&session, &pop("pinned", "slow"), 1, SOON).await?), [3]);
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn a_delay_hides_messages_and_leaves_the_group_where_it_is_q71() -> Result<()> {
    let delay = TimeDelta::milliseconds(600);
    let db = TestDb::fresh().await?;
    let session = db.session().await?;
    session.run("SELECT queen_configure('q', delay => '600 milliseconds')").await?;
    for number in 1..=2 {
        Push::new("q", n(number)).run(&session).await?;
    }
    let mut came = Vec::new();
    let mut empty = 0;
    eventually("two messages", SOON, async || {
        let messages = pop("q", "g").run(&session).await?;
        empty += i32::from(messages.is_empty());
        complete(&session, &messages).await?;
        came.extend(messages);
        Ok((came.len() >= 2).then_some(()))
    })
    .await?;
    assert_eq!(numbers(&came), [1, 2]);
    for one in &came {
        assert_eq!(one.delivery_attempt, 1);
        let popped = one.expires_at()? - TimeDelta::seconds(60);
        ensure!(popped >= one.created_at + delay, "{one:?} came after {}", popped - one.created_at);
    }
    ensure!(empty > 0, "nothing was ever hidden");
    // Messages that are there follow the option as it is now.
    Push::new("q", n(3)).run(&session).await?;
    session.run("SELECT queen_configure('q', unset => ARRAY['delay'])").await?;
    assert_eq!(pop("q", "g").one(&session).await?.payload, n(3));
    Ok(())
}

/// Everything that the views show, except what changes with time.
async fn everything(session: &Session) -> Result<Value> {
    let sql = "
        SELECT jsonb_build_object(
            'queues', (SELECT jsonb_agg(to_jsonb(q) - 'oldest_age' ORDER BY queue)
                       FROM queen_queues AS q),
            'groups', (SELECT jsonb_agg(to_jsonb(g) - 'oldest_pending_age'
                                        ORDER BY queue, consumer_group)
                       FROM queen_groups AS g),
            'leases', (SELECT jsonb_agg(to_jsonb(l)) FROM queen_leases AS l),
            'messages', (SELECT jsonb_agg(to_jsonb(m) ORDER BY message_id)
                         FROM queen_messages AS m),
            'letters', (SELECT jsonb_agg(to_jsonb(d)) FROM queen_dead_letters AS d),
            'timers', (SELECT jsonb_agg(to_jsonb(t)) FROM queen_timers AS t),
            'markers', (SELECT jsonb_agg(to_jsonb(k)) FROM queen_kv_list('ns') AS k))";
    Ok(session.query_one(sql, &[]).await?.get(0))
}

#[tokio::test(flavor = "multi_thread")]
async fn to_install_or_update_again_changes_nothing_q72() -> Result<()> {
    let db = TestDb::fresh().await?;
    let session = db.session().await?;
    session.run("SELECT queen_configure('q', retry_limit => 7)").await?;
    for number in 1..=3 {
        Push::new("q", n(number)).id(format!("id {number}")).run(&session).await?;
    }
    let dead = pop("q", "g").batch(1).one(&session).await?;
    Ack::all(dead.lease()?).status("dead_letter").run(&session).await?;
    let held = pop("q", "g").batch(1).one(&session).await?;
    put_if_absent(&session, "ns", "k", &json!({ "a": 1 }), "1 hour").await?;
    session.run("SELECT queen_schedule('q', 't', '9', '1 hour')").await?;
    let before = everything(&session).await?;
    for kind in ["queues", "groups", "leases", "messages", "letters", "timers", "markers"] {
        ensure!(before[kind].is_array(), "there are no {kind} to lose: {before}");
    }

    session.run("CREATE EXTENSION IF NOT EXISTS queen_mq; ALTER EXTENSION queen_mq UPDATE").await?;
    session.run("CREATE EXTENSION queen_mq").await.fails_with("42710")?;
    let session = db.session().await?;
    assert_eq!(everything(&session).await?, before);
    complete(&session, &[held]).await?;
    assert_eq!(numbers(&drain(&session, &pop("q", "g"), 1, SOON).await?), [3]);
    assert_eq!(Push::new("q", n(4)).id("id 3").run(&session).await?.status, "duplicate");
    assert_eq!(marker(&session, "ns", "k").await?, Some(json!({ "a": 1 })));
    Ok(())
}
