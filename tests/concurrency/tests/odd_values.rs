//! Odd names, ids, payloads, headers and markers come back as they went in.

use anyhow::{Context, Result, ensure};
use queen_tests::{Ack, Message, Pop, Push, Session, TestDb, marker, put_if_absent, settle};
use serde_json::{Value, json};

/// Odd texts that are legal as names, as ids and everywhere else. The two é are different.
const TEXTS: &[&str] = &[
    "it's; DROP TABLE queen_mq.queue; -- \"",
    "back\\slash \\u0041 \\' \\",
    "%s %n %% _ $1 :name {x} `id`",
    "naïve 名前 🐘 \u{10ffff}",
    "é",
    "e\u{301}",
    "\u{202e}rtl\u{200b}\u{feff} c1 \u{85}",
    " ",
    "NULL",
    "{\"$serde_json::private::RawValue\":1}",
];

/// Jsonb values that lose something when they are read as anything but text.
const VALUES: &[&str] = &[
    "'null'",
    "'\"\"'",
    "'{}'",
    "'[[], {}, null, true, \"\"]'",
    "'-0.0'",
    "'1.10'",
    "'123456789012345678901234567890.1234567890'",
    "'1e131071'",
    "'1e-16383'",
    r#"'"\u0001\u007f\u2028\ufeff\ud83d\udc18 \\ \" / '' @ 🐘"'"#,
    r#"'{"": {"": ""}, "b": 1, "aa": 2, " ": 3}'"#,
    r#"'{"$serde_json::private::RawValue": "1"}'"#,
    r#"'{"$serde_json::private::Number": "1"}'"#,
    "repeat('[', 1000) || repeat(']', 1000)",
    r#"repeat('{"a":', 1000) || '1' || repeat('}', 1000)"#,
    "'[' || repeat('null,', 4000) || 'null]'",
    r#"'{"' || repeat('k', 50000) || '": 1}'"#,
];

/// The calls that push a payload with headers.
const WAYS: &[&str] = &[
    "queen_push('way', @, headers => @)",
    "queen_push('way', @, headers => @, delay => '1 ms')",
    "queen_push_batch('way', ARRAY[@], headers => ARRAY[@])",
    "queen_push_items(jsonb_build_array(jsonb_build_object('queue', 'way', 'payload', @, \
     'headers', @)))",
    "queen_tx_commit(jsonb_build_array(jsonb_build_object('type', 'push', 'queue', 'way', \
     'payload', @, 'headers', @)))",
    "queen_tx_commit(timers => jsonb_build_array(jsonb_build_object('op', 'schedule', 'queue', \
     'way', 'timerKey', 'key', 'delayMs', 0, 'payload', @, 'headers', @)))",
    "queen_schedule('way', 'key', @, '0', headers => @)",
];

/// The calls that write or read the value of a marker.
const MARKED: &[&str] = &[
    "value FROM queen_kv_put('way', 'key', @, forever => true)",
    "value FROM queen_kv_get('way', 'key')",
    "value FROM queen_kv_get_many('way', '{key}')",
    "value FROM queen_kv_list('way')",
    "value FROM queen_kv_put_if_absent('way', 'key', '1', '1 hour')",
    "queen_tx_commit(kv => jsonb_build_array(jsonb_build_object('op', 'put', 'ns', 'way', 'key', \
     'key', 'value', @, 'ttlSeconds', 60))) #> '{results,0,value}'",
    "value FROM queen_kv_delete('way', 'key')",
];

#[tokio::test(flavor = "multi_thread")]
async fn any_json_comes_back_by_every_way() -> Result<()> {
    let db = TestDb::fresh().await?;
    let session = db.session().await?;
    // JSON null as the headers of an item may mean no headers.
    let pop = "SELECT count(*) FROM queen_pop('way', wait => '20 s', auto_ack => true) WHERE \
               payload::text = @::text AND (headers::text = @::text OR @ = 'null'::jsonb)";
    for value in VALUES {
        let value = format!("(({value})::jsonb)");
        for way in WAYS {
            let push = format!("SELECT * FROM {}", way.replace('@', &value));
            session.run(&push).await.with_context(|| push.clone())?;
            ensure!(session.count(&pop.replace('@', &value)).await? == 1, "changed by {push}");
        }
        for marked in MARKED {
            let sql = format!("SELECT {}", marked.replace('@', &value));
            let sql = format!(
                "SELECT count(*) FROM ({sql}) AS back (value) WHERE value::text = \
                               {value}::text"
            );
            let back = session.count(&sql).await.with_context(|| sql.clone())?;
            ensure!(back == 1, "changed by {sql}");
        }
    }
    let left = "SELECT count(*) FROM queen_pop('way', batch => 1000)";
    assert_eq!(session.count(left).await?, 0);
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn almost_16_mib_come_back() -> Result<()> {
    let db = TestDb::fresh().await?;
    let session = db.session().await?;
    session
        .run(
            "CREATE TABLE big AS SELECT to_jsonb(string_agg(md5(i::text), '')) AS value \
             FROM generate_series(1, 524286) AS i; \
             SELECT queen_push('big', value, headers => value) FROM big; \
             SELECT queen_push_batch('big', ARRAY[value, value]) FROM big; \
             SELECT queen_push_items(jsonb_build_array(jsonb_build_object('queue', 'big', \
             'payload', value))) FROM big;",
        )
        .await?;
    let same = "SELECT count(*) FROM queen_pop('big', batch => 10) AS popped, big \
                WHERE popped.payload = big.value";
    assert_eq!(session.count(same).await?, 4);
    Ok(())
}

/// A key may be any text, and a list is ordered by its bytes.
#[tokio::test(flavor = "multi_thread")]
async fn odd_keys_come_back() -> Result<()> {
    let db = TestDb::fresh().await?;
    let session = db.session().await?;
    let controls =
        ["\u{1}", "\u{1}\u{1}", "\u{7f}", "\n", "\r\n\t", "%", "\\", "\u{10ffff}\u{10ffff}"];
    let mut keys: Vec<String> =
        [TEXTS, &controls].concat().into_iter().map(str::to_owned).collect();
    keys.extend(["x".repeat(512), "é".repeat(256), "\u{10ffff}".repeat(128)]);
    for key in &keys {
        assert!(put_if_absent(&session, "odd", key, &json!({ key: key }), "1 hour").await?.applied);
    }
    for key in &keys {
        assert_eq!(marker(&session, "odd", key).await?, Some(json!({ key: key })), "{key:?}");
    }
    let many = "SELECT array_agg(key) FROM queen_kv_get_many('odd', $1) WHERE found";
    assert_eq!(session.row(many, &[&keys]).await?.get::<_, Vec<String>>(0), keys);
    keys.sort_unstable();
    let list = "SELECT array_agg(key) FROM queen_kv_list('odd', max_rows => 1000)";
    assert_eq!(session.row(list, &[]).await?.get::<_, Vec<String>>(0), keys);
    let list = "SELECT coalesce(array_agg(key), '{}') FROM queen_kv_list('odd', $1, $2)";
    for key in &keys {
        let expected: Vec<String> =
            keys.iter().filter(|other| other.starts_with(key) && *other > key).cloned().collect();
        let listed = session.row(list, &[key, key]).await?;
        assert_eq!(listed.get::<_, Vec<String>>(0), expected, "{key:?}");
    }
    Ok(())
}

/// The error text of a failure is kept, up to 8 KiB, and the longest ids work.
#[tokio::test(flavor = "multi_thread")]
async fn odd_errors_and_long_ids_come_back() -> Result<()> {
    let db = TestDb::fresh().await?;
    let session = db.session().await?;
    let errors = ["", " ", "\u{1}\n\u{7f}'\"\\", "%s $1", &"é🐘".repeat(50_000)];
    for (number, error) in (0_usize..).zip(errors) {
        let id = format!("{number}{}", "é".repeat(511));
        let push = Push::new("errors", json!(number)).id(&id);
        assert_eq!(push.run(&session).await?.transaction_id, id);
        let message = Pop::new("errors").one(&session).await?;
        assert_eq!(message.transaction_id, id);
        Ack::ids(message.lease()?, [&id]).failed(error).status("dead_letter").run(&session).await?;
        let sql = "SELECT error FROM queen_dead_letters WHERE transaction_id = $1";
        let kept: String = session.row(sql, &[&id]).await?.get(0);
        // Of a long text the first 8 KiB are kept, in whole characters; the last character may be
        // missing.
        let fits = error.len() <= 8192;
        assert!(kept == error || (!fits && error.starts_with(&kept)), "{kept}");
        assert!(fits || (8189..=8192).contains(&kept.len()), "{}", kept.len());
    }
    Ok(())
}

/// How many rows of a view have this name in all of these columns.
async fn shown(session: &Session, view: &str, columns: &str, name: &str) -> Result<i64> {
    let sql = format!("SELECT count(*) FROM {view} WHERE $1 = ALL (ARRAY[{columns}])");
    Ok(session.query_one(&sql, &[&name]).await?.get(0))
}

/// Pop the only message, and check that it has this name everywhere.
async fn named(session: &Session, name: &str) -> Result<Message> {
    let message = Pop::new(name).group(name).mode("all").one(session).await?;
    assert_eq!([&message.queue, &message.partition, &message.transaction_id], [name; 3]);
    assert_eq!(message.consumer_group.as_deref(), Some(name));
    assert_eq!((&message.payload, &message.headers), (&json!(name), &Some(json!({ name: name }))));
    Ok(message)
}

#[tokio::test(flavor = "multi_thread")]
async fn odd_names_come_back_from_everywhere() -> Result<()> {
    let db = TestDb::fresh().await?;
    let session = db.session().await?;
    for name in TEXTS {
        comes_back(&session, name).await.with_context(|| format!("{name:?}"))?;
    }
    Ok(())
}

async fn comes_back(session: &Session, name: &str) -> Result<()> {
    let push = Push::new(name, json!(name)).partition(name).id(name);
    let push = push.headers(json!({ name: name }));
    assert_eq!(push.run(session).await?.transaction_id, name);
    assert_eq!(push.run(session).await?.status, "duplicate");
    let lease = named(session, name).await?.lease()?;
    for (view, columns) in [
        ("queen_queues", "queue"),
        ("queen_groups", "queue, consumer_group"),
        ("queen_leases", "queue, consumer_group, partition"),
        ("queen_blocked", "queue, consumer_group, partition, transaction_id"),
        ("queen_messages", "queue, partition, transaction_id, payload #>> '{}'"),
    ] {
        assert_eq!(shown(session, view, columns, name).await?, 1, "{view}");
    }
    let metrics = shown(session, "queen_metrics()", "labels ->> 'queue'", name).await?;
    assert!(metrics > 0, "no metrics");
    let label = name.replace('\\', "\\\\").replace('"', "\\\"");
    let text: String = session.query_one("SELECT queen_prometheus()", &[]).await?.get(0);
    assert!(text.contains(&format!("queue=\"{label}\"")), "not in the exposition");

    // To the dead letters and back.
    let dead = Ack::ids(lease, [name]).partition(name).failed(name).status("dead_letter");
    assert_eq!(dead.run(session).await?.dead_lettered, 1);
    let columns = "queue, consumer_group, partition, transaction_id, error, payload #>> '{}'";
    assert_eq!(shown(session, "queen_dead_letters", columns, name).await?, 1);
    let replay = "SELECT replayed.transaction_id FROM queen_dead_letters AS dead, LATERAL \
                  queen_dead_letter_replay(dead_letter_id) AS replayed WHERE queue = $1";
    assert_eq!(session.row(replay, &[&name]).await?.get::<_, String>(0), name);
    let lease = named(session, name).await?.lease()?;
    let result = json!([{ "transactionId": name, "partition": name, "status": "completed" }]);
    let settled = settle(session, lease, &result).await?;
    assert_eq!((&*settled[0].transaction_id, &*settled[0].partition), (name, name));

    // With a timer, under another transaction_id, because this one is known.
    let sql = "SELECT transaction_id FROM queen_schedule($1, $1, to_jsonb($1::text), '1 hour', \
               partition => $1, transaction_id => $1 || $1)";
    let id: String = session.row(sql, &[&name]).await?.get(0);
    assert_eq!(id, name.repeat(2));
    let columns = "queue, timer_key, partition, payload #>> '{}', left(transaction_id, \
                   length(transaction_id) / 2)";
    assert_eq!(shown(session, "queen_timers", columns, name).await?, 1);
    let cancelled = session.row("SELECT queen_cancel($1, $1)", &[&name]).await?;
    assert!(cancelled.get::<_, bool>(0));

    // In a bundle.
    let push = json!([{ "type": "push", "queue": name, "partition": name, "payload": name }]);
    let kv = json!([{ "op": "put", "ns": "odd", "key": name, "value": name, "forever": true }]);
    let timers = json!([{ "op": "cancel", "queue": name, "timerKey": name }]);
    let answer = session.row("SELECT queen_tx_commit($1, $2, $3)", &[&push, &kv, &timers]).await?;
    let answer: Value = answer.get(0);
    let results = &answer["results"];
    for told in [
        &results[0]["queue"],
        &results[0]["partition"],
        &results[1]["key"],
        &results[1]["value"],
        &results[2]["queue"],
        &results[2]["timerKey"],
    ] {
        assert_eq!(told, name, "{answer}");
    }
    assert_eq!(marker(session, "odd", name).await?, Some(json!(name)));
    let deleted = session.row("SELECT queen_delete_queue($1)", &[&name]).await?;
    assert_eq!(deleted.get::<_, i64>(0), 3);
    assert_eq!(shown(session, "queen_queues", "queue", name).await?, 0);
    Ok(())
}
