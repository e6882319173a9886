//! Queen MQ's own tests of pushes, written for the contract of queen_mq. The number at the end of a
//! name is that of the behaviour in the list that these tests follow.

use std::time::Duration;

use anyhow::{Result, ensure};
use chrono::{DateTime, TimeDelta, Utc};
use queen_tests::{
    Fails, Item, Pop, Push, PushBatch, Pushed, TestDb, at_once, drain, eventually, n, numbers,
};
use serde_json::{Value, json};

const SOON: Duration = Duration::from_secs(10);

fn pop(queue: &str) -> Pop {
    Pop::new(queue).group("g").mode("all").batch(100).partitions(100)
}

fn statuses(rows: &[Pushed]) -> Vec<&str> {
    rows.iter().map(|row| row.status.as_str()).collect()
}

fn ids<const N: usize>(ids: [&str; N]) -> Vec<Option<String>> {
    ids.map(|id| Some(id.to_owned())).to_vec()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_hundred_come_in_the_order_of_their_pushes_q1() -> Result<()> {
    let db = TestDb::fresh().await?;
    let session = db.session().await?;
    let mut pushed = Vec::new();
    for number in 1..=100 {
        pushed.push(Push::new("q", n(number)).partition("p").run(&session).await?.message_id);
    }
    assert!(pushed.is_sorted_by(|one, next| one < next), "{pushed:?}");
    let came = drain(&session, &pop("q").batch(7), 100, SOON).await?;
    assert!(numbers(&came).into_iter().eq(1..=100), "{:?}", numbers(&came));
    assert!(came.iter().map(|one| one.message_id).eq(pushed));
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn the_second_push_of_an_id_is_a_duplicate_with_the_first_ones_message_id_q2() -> Result<()> {
    let db = TestDb::fresh().await?;
    let session = db.session().await?;
    let first = Push::new("q", n(1)).id("order-1").run(&session).await?;
    assert_eq!((first.status.as_str(), first.transaction_id.as_str()), ("queued", "order-1"));
    // Payloads are not compared.
    let second = Push::new("q", n(2)).id("order-1").run(&session).await?;
    assert_eq!((second.status.as_str(), second.transaction_id.as_str()), ("duplicate", "order-1"));
    assert_eq!(second.message_id, first.message_id);
    let came = drain(&session, &pop("q"), 1, SOON).await?;
    assert_eq!((numbers(&came), came[0].message_id), (vec![1], first.message_id));
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn of_two_equal_ids_in_one_call_the_first_is_queued_whatever_the_window_q3() -> Result<()> {
    let db = TestDb::fresh().await?;
    let session = db.session().await?;
    session.run("SELECT queen_configure('off', dedup_window => '0')").await?;
    for queue in ["on", "off"] {
        let batch = PushBatch::new(queue, vec![n(1), n(2), n(3)]).ids(ids(["x", "x", "y"]));
        let rows = batch.run(&session).await?;
        assert_eq!(statuses(&rows), ["queued", "duplicate", "queued"], "{queue}");
        assert_eq!(rows[1].message_id, rows[0].message_id, "{queue}");
        assert_ne!(rows[2].message_id, rows[0].message_id, "{queue}");
        let item = |number| Item {
            queue: queue.into(),
            payload: n(number),
            partition: "Default".into(),
            transaction_id: Some("z".into()),
        };
        let rows = Item::push(&[item(4), item(5)], &session).await?;
        assert_eq!(statuses(&rows), ["queued", "duplicate"], "{queue}");
        assert_eq!(rows[1].message_id, rows[0].message_id, "{queue}");
        let came = drain(&session, &pop(queue), 3, SOON).await?;
        assert_eq!(numbers(&came), [1, 3, 4], "{queue}");
    }
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn eight_sessions_pushing_one_id_queue_it_once_q4() -> Result<()> {
    let db = TestDb::fresh().await?;
    let session = db.session().await?;
    let rows = at_once(db.crowd(8).await?, |worker, session| async move {
        Push::new("q", n(worker as i64)).id("once").run(&session).await
    })
    .await?
    .into_iter()
    .collect::<Result<Vec<_>, _>>()?;
    let winners: Vec<usize> = (0..8).filter(|worker| rows[*worker].status == "queued").collect();
    let [winner] = winners[..] else { anyhow::bail!("{winners:?} of {rows:?} were queued") };
    let duplicates = rows.iter().filter(|row| row.status == "duplicate").count();
    assert_eq!(duplicates, 7, "{rows:?}");
    assert!(rows.iter().all(|row| row.message_id == rows[winner].message_id), "{rows:?}");
    let came = drain(&session, &pop("q"), 1, SOON).await?;
    assert_eq!(numbers(&came), [winner as i64]);
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn one_id_in_two_partitions_is_queued_in_both_q5() -> Result<()> {
    let db = TestDb::fresh().await?;
    let session = db.session().await?;
    let mut pushed = Vec::new();
    for (number, partition) in [(1, "a"), (2, "b")] {
        let row = Push::new("q", n(number)).partition(partition).id("x").run(&session).await?;
        assert_eq!(row.status, "queued");
        pushed.push(row.message_id);
    }
    assert_ne!(pushed[0], pushed[1]);
    for (partition, number) in [("a", 1), ("b", 2)] {
        let came = drain(&session, &pop("q").partition(partition), 1, SOON).await?;
        assert_eq!((numbers(&came), came[0].transaction_id.as_str()), (vec![number], "x"));
    }
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn an_id_is_accepted_again_after_the_window_and_not_before_q6() -> Result<()> {
    let window = TimeDelta::milliseconds(600);
    let db = TestDb::fresh().await?;
    let session = db.session().await?;
    session.run("SELECT queen_configure('q', dedup_window => '600 milliseconds')").await?;
    let first = Push::new("q", n(1)).id("x").run(&session).await?;
    let second = eventually("end of the window", SOON, async || {
        let row = Push::new("q", n(2)).id("x").run(&session).await?;
        Ok((row.status == "queued").then_some(row))
    })
    .await?;
    assert_ne!(second.message_id, first.message_id);
    let came = drain(&session, &pop("q"), 2, SOON).await?;
    assert_eq!(numbers(&came), [1, 2]);
    let between = came[1].created_at - came[0].created_at;
    ensure!(between >= window, "accepted again after {between}");
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn one_call_serves_several_queues_and_answers_in_the_order_of_its_items_q7() -> Result<()> {
    let db = TestDb::fresh().await?;
    let session = db.session().await?;
    let old = Push::new("r", n(0)).partition("b").id("old").run(&session).await?;
    let item = |queue: &str, partition: &str, id: &str, number| Item {
        queue: queue.into(),
        payload: n(number),
        partition: partition.into(),
        transaction_id: Some(id.into()),
    };
    let items = [
        item("q", "a", "1", 1),
        item("r", "b", "old", 2),
        item("r", "b", "3", 3),
        item("q", "b", "1", 4),
        item("q", "a", "1", 5),
        item("q", "a", "6", 6),
    ];
    let rows = Item::push(&items, &session).await?;
    let expected = ["queued", "duplicate", "queued", "queued", "duplicate", "queued"];
    assert_eq!(statuses(&rows), expected);
    assert!(rows.iter().map(|row| row.ordinal).eq(1..=6), "{rows:?}");
    let given = items.iter().filter_map(|item| item.transaction_id.as_deref());
    assert!(rows.iter().map(|row| row.transaction_id.as_str()).eq(given), "{rows:?}");
    assert_eq!((rows[1].message_id, rows[4].message_id), (old.message_id, rows[0].message_id));
    for (queue, partition, expected) in
        [("q", "a", vec![1, 6]), ("q", "b", vec![4]), ("r", "b", vec![0, 3])]
    {
        let pop = pop(queue).partition(partition);
        let came = drain(&session, &pop, expected.len(), SOON).await?;
        assert_eq!(numbers(&came), expected, "{queue}, {partition}");
    }
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn a_push_to_a_queue_that_is_missing_creates_it_with_the_defaults_q8() -> Result<()> {
    let db = TestDb::fresh().await?;
    let session = db.session().await?;
    let exists = "SELECT count(*) FROM queen_queues WHERE queue = 'q'";
    assert_eq!(session.count(exists).await?, 0);
    Push::new("q", n(1)).run(&session).await?;
    assert_eq!(session.count(exists).await?, 1);
    let pushed: DateTime<Utc> = session.query_one("SELECT clock_timestamp()", &[]).await?.get(0);
    // queen_configure without options shows the options in effect.
    let row = session
        .query_one(
            "SELECT created_at, jsonb_build_array(queue, extract(epoch FROM lease_time)::int, \
             retry_limit, extract(epoch FROM retry_delay)::int, retry_backoff, \
             extract(epoch FROM retry_delay_max)::int, max_deliveries, on_exhausted, \
             extract(epoch FROM dedup_window)::int, extract(epoch FROM delay)::int, retention, \
             extract(epoch FROM completed_retention)::int, max_depth, ordering) \
             FROM queen_configure('q')",
            &[],
        )
        .await?;
    let expected = json!([
        "q",
        60,
        3,
        0,
        1,
        3600,
        null,
        "dead_letter",
        3600,
        0,
        null,
        86_400,
        null,
        "partition"
    ]);
    assert_eq!(row.get::<_, Value>(1), expected);
    assert!(row.get::<_, DateTime<Utc>>(0) <= pushed, "the push created it");
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn payloads_come_back_as_they_were_pushed_q9() -> Result<()> {
    let payloads = vec![
        Value::Null,
        json!(true),
        json!(-12.5),
        json!(9_007_199_254_740_993_i64),
        json!(""),
        json!("Grüße, 世界 🐘 \u{202e}rtl"),
        json!("quotes \" ' `, a backslash \\, a tab \t, a line\nbreak, \u{1}, $1, %s, \\u0041"),
        json!([]),
        json!({}),
        json!([1, [2, [3, [null, { "deep": [[]] }]]]]),
        json!({ "": 1, "ключ": { "a\"b": null }, "n": { "n": { "n": [false] } } }),
    ];
    let db = TestDb::fresh().await?;
    let session = db.session().await?;
    let headers = json!({ "trace": "ü\"\\" });
    for payload in &payloads {
        Push::new("one", payload.clone()).headers(headers.clone()).run(&session).await?;
    }
    PushBatch::new("batch", payloads.clone()).run(&session).await?;
    let items: Vec<Item> = payloads
        .iter()
        .map(|payload| Item {
            queue: "items".into(),
            payload: payload.clone(),
            partition: "Default".into(),
            transaction_id: None,
        })
        .collect();
    Item::push(&items, &session).await?;
    for queue in ["one", "batch", "items"] {
        let came = drain(&session, &pop(queue), payloads.len(), SOON).await?;
        for (message, pushed) in came.iter().zip(&payloads) {
            assert_eq!(&message.payload, pushed, "{queue}");
            let expected = (queue == "one").then_some(&headers);
            assert_eq!(message.headers.as_ref(), expected, "{queue}");
        }
    }
    // JSON null is a payload; SQL NULL is not.
    session.query("SELECT queen_push('one', NULL)", &[]).await.fails_with("22023")?;
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn ids_and_names_that_are_too_long_or_have_control_characters_are_refused_q10() -> Result<()>
{
    let db = TestDb::fresh().await?;
    let session = db.session().await?;
    let longest_name = "é".repeat(127) + "x";
    let longest_id = "é".repeat(512);
    for bad in [longest_id.clone() + "x", String::new(), "a\nb".into(), "\u{7f}".into()] {
        Push::new("q", n(1)).id(bad.clone()).run(&session).await.fails_with("22023")?;
        let batch = PushBatch::new("q", vec![n(1), n(2)]).ids(vec![Some("good".into()), Some(bad)]);
        batch.run(&session).await.fails_with("22023")?;
    }
    for bad in [longest_name.clone() + "x", String::new(), "a\tb".into(), "\u{1b}[0m".into()] {
        Push::new("q", n(1)).partition(bad.clone()).run(&session).await.fails_with("22023")?;
        Push::new(bad, n(1)).run(&session).await.fails_with("22023")?;
    }
    assert_eq!(session.count("SELECT count(*) FROM queen_messages").await?, 0);

    // Names of the greatest length come back whole, and two that differ only at their ends are two.
    let twin = "é".repeat(511) + "xy";
    let mut expected = Vec::new();
    for id in [&longest_id, &twin] {
        let push = Push::new(&longest_name, n(1)).partition(&longest_name).id(id);
        assert_eq!(push.run(&session).await?.status, "queued");
        expected.push((longest_name.clone(), longest_name.clone(), id.clone()));
    }
    let came = drain(&session, &pop(&longest_name), 2, SOON).await?;
    let came: Vec<_> =
        came.into_iter().map(|one| (one.queue, one.partition, one.transaction_id)).collect();
    assert_eq!(came, expected);
    Ok(())
}
