//! Hostile JSON: what has not the documented shape is refused and leaves nothing; what is accepted
//! (odd names and ids, payloads, headers, markers) comes back as it was.

use anyhow::{Context, Result, ensure};
use queen_tests::{
    Ack, Fails, Message, Pop, Push, Session, TestDb, complete, marker, put_if_absent, settle,
};
use serde_json::{Value, json};

/// JSON that is no array of objects, or of objects that say nothing.
const SHAPES: &[&str] = &[
    "null",
    "1",
    "\"x\"",
    "true",
    "{}",
    "[null]",
    "[1]",
    "[\"x\"]",
    "[[]]",
    "[{}]",
    "[{\"x\":1}]",
    "[[{}],{}]",
    "{\"0\":{}}",
    "[{\"$serde_json::private::RawValue\":\"1\"}]",
];

/// Where such an array goes.
const ARRAYS: &[&str] = &[
    "queen_push_items(@)",
    "queen_settle('LEASE', @)",
    "queen_tx_commit(@)",
    "queen_tx_commit(kv => @)",
    "queen_tx_commit(timers => @)",
];

/// Objects (separated by ` | ` or by lines) with fields that are missing, unknown, of the wrong
/// type, out of range or in conflict.
const MALFORMED: &[(&str, &str)] = &[
    ("queen_push_items(@)", "NULL"),
    ("queen_tx_commit(@)", " | NULL | '[]', '[]', '[]' | '[]', '{}' | '[]', NULL, '1'"),
    ("queen_tx_commit(kv => @)", "NULL | '[]'"),
    (
        "queen_tx_commit(kv => (SELECT jsonb_agg(jsonb_build_object('op', 'get', 'ns', 'ns', 'key', \
         i::text)) FROM generate_series(1, @) i))",
        "65 | 100000",
    ),
    (
        "queen_tx_commit(kv => jsonb_build_array(jsonb_build_object('op', 'getMany', 'ns', 'ns', \
         'keys', (SELECT jsonb_agg(i::text) FROM generate_series(1, @) i))))",
        "257 | 100000",
    ),
    (
        r#"queen_push_items('[{"queue":"j","payload":1}, {"queue":"j",@}]')"#,
        r#""partition":"a" | "payload":1,"extra":1 | "payload":1,"Partition":"a"
           "payload":1,"partition":1 | "payload":1,"transactionId":7
           "payload":1,"transaction_id":"a" | "payload":1,"transactionId":[]
           "payload":1,"delay":"1 s" | "payload":1,"queue":7 | "payload":1,"":0
           "payload":1,"partition":["a"] | "payload":1,"headers":1,"header":2"#,
    ),
    (
        "queen_settle('LEASE', '[{@}]')",
        r#""messageId":1 | "status":"completed" | "messageId":1,"status":"done"
           "messageId":"1","status":"retry" | "messageId":1.5,"status":"retry"
           "messageId":9223372036854775808,"status":"retry" | "messageId":1e3000,"status":"retry"
           "messageId":1,"status":null | "messageId":1,"transactionId":"a","status":"retry"
           "transactionId":5,"status":"retry" | "messageId":1,"status":"retry","x":1
           "messageId":1,"status":"failed","error":{} | "messageid":1,"status":"retry"
           "messageId":HELD,"status":"retry"},{"messageId":HELD,"status":"failed""#,
    ),
    (
        r#"queen_tx_commit('[{"type":"push","queue":"j","payload":1}, {@}]')"#,
        r#""type":"ack" | "type":"push" | "type":"pop","queue":"j" | "type":1
           "type":"push","queue":"j" | "type":"push","payload":1 | "type":null
           "type":"push","queue":"j","payload":1,"status":"completed"
           "type":"push","queue":"j","payload":1,"delay":1 | "op":"push"
           "type":"ack","leaseId":"x" | "type":"ack","leaseId":1
           "type":"ack","leaseId":"","messageId":1 | "type":"ack","leaseId":null
           "type":"ack","leaseId":"LEASE","messageId":1,"transactionId":"a"
           "type":"ack","leaseId":"LEASE","status":"ok"
           "type":"ack","leaseId":"LEASE","messageId":[1]
           "type":"ack","leaseId":"LEASE","messageId":9223372036854775808
           "type":"ack","leaseId":"LEASE","payload":1 | "type":"ack","leaseId":"LEASE","queue":"j"
           "type":"ack","leaseId":"LEASE","lease_id":"LEASE""#,
    ),
    (
        r#"queen_tx_commit('[{"type":"push","queue":"j","payload":1}]', '[{"ns":"ns",@}]')"#,
        r#""key":"k" | "op":"swap","key":"k" | "op":"put","key":"k","value":1
           "op":"put","key":"k","forever":true | "op":"put","value":1,"forever":true
           "op":"put","key":"k","value":1,"forever":false
           "op":"put","key":"k","value":1,"forever":"true"
           "op":"put","key":"k","value":1,"forever":true,"ttlSeconds":1
           "op":"put","key":"k","value":1,"ttlSeconds":0
           "op":"put","key":"k","value":1,"ttlSeconds":-1
           "op":"put","key":"k","value":1,"ttlSeconds":"1"
           "op":"put","key":"k","value":1,"ttlSeconds":1e3000
           "op":"put","key":"k","value":1,"ttlSeconds":1,"delta":1
           "op":"put","key":7,"value":1,"ttlSeconds":1
           "op":"put","keys":["k"],"value":1,"ttlSeconds":1
           "op":"putIfAbsent","key":"k","value":1,"ttlSeconds":1,"expect":0
           "op":"put","key":"k","value":1,"ttlSeconds":1,"expect":"0"
           "op":"put","key":"k","value":1,"ttlSeconds":1,"expect":9223372036854775808
           "op":"put","key":"k","value":1,"ttlSeconds":1,"required":1
           "op":"put","key":"k","value":1,"ttlSeconds":1},{"op":"delete","ns":"ns","key":"k"
           "op":"incr","key":"i","ttlSeconds":1,"delta":"1"
           "op":"incr","key":"i","ttlSeconds":1,"delta":{}
           "op":"incr","key":"i","ttlSeconds":1,"min":[]
           "op":"incr","key":"i","ttlSeconds":1,"max":true
           "op":"incr","key":"i","ttlSeconds":1,"value":1 | "op":"incr","key":"i"
           "op":"delete","key":"k","ttlSeconds":1 | "op":"check","key":"k"
           "op":"check","key":"k","expect":null | "op":"get" | "op":"getMany"
           "op":"get","key":"k","required":true | "op":"get","keys":["k"]
           "op":"getMany","keys":"k" | "op":"getMany","keys":[1] | "op":"getMany","keys":[null]
           "op":"getMany","keys":[["k"]]"#,
    ),
    (
        r#"queen_tx_commit(timers => '[{"queue":"j",@}]')"#,
        r#""timerKey":"k" | "op":"stop","timerKey":"k" | "op":"schedule"
           "op":"schedule","timerKey":"k","payload":1 | "op":"schedule","timerKey":"k","delayMs":1
           "op":"schedule","timerKey":"k","payload":1,"delayMs":-1
           "op":"schedule","timerKey":"k","payload":1,"delayMs":"1"
           "op":"schedule","timerKey":"k","payload":1,"delayMs":1e12
           "op":"schedule","timerKey":"k","payload":1,"delayMs":1e3000
           "op":"schedule","timerKey":"k","payload":1,"deliverAt":"infinity"
           "op":"schedule","timerKey":"k","payload":1,"deliverAt":"2999-01-01T00:00:00Z"
           "op":"schedule","timerKey":"k","payload":1,"deliverAt":"soon"
           "op":"schedule","timerKey":"k","payload":1,"deliverAt":""
           "op":"schedule","timerKey":"k","payload":1,"deliverAt":"2026-13-45"
           "op":"schedule","timerKey":"k","payload":1,"deliverAt":1
           "op":"schedule","timerKey":"k","payload":1,"delayMs":1,"deliverAt":"epoch"
           "op":"schedule","timerKey":7,"payload":1,"delayMs":1
           "op":"schedule","timerKey":"k","payload":1,"delayMs":1,"delay":1
           "op":"cancel","timerKey":"k","payload":1 | "op":"cancel"
           "op":"cancel","timerKey":"k","delayMs":1 | "op":"cancel","timerKey":null
           "op":"cancel","timerKey":"k"},{"op":"cancel","queue":"j","timerKey":"k""#,
    ),
];

/// What the contract leaves open: done, or refused with 22023.
const OPEN: &[(&str, &str)] = &[
    (
        r#"queen_tx_commit(kv => '[{"ns":"ns",@}]')"#,
        r#""op":"put","key":"k","value":1,"ttlSeconds":1e-9
           "op":"put","key":"k","value":1,"ttlSeconds":1e12
           "op":"put","key":"k","value":1,"ttlSeconds":1e300
           "op":"put","key":"k","value":1,"ttlSeconds":1,"expect":-1
           "op":"put","key":"k","value":1,"ttlSeconds":1,"expect":1.0
           "op":"put","key":"k","value":1,"ttlSeconds":1,"expect":null,"required":null
           "op":"incr","key":"i","ttlSeconds":100,"delta":9e131070
           "op":"incr","key":"i","ttlSeconds":100,"delta":9e131070
           "op":"incr","key":"i","ttlSeconds":100,"delta":9e131071
           "op":"incr","key":"i","ttlSeconds":100,"min":2,"max":1 | "op":"getMany","keys":[]
           "op":"getMany","keys":["k","k"]"#,
    ),
    (
        r#"queen_tx_commit(timers => '[{"op":"schedule","queue":"open","payload":1,@}]')"#,
        r#""timerKey":"a","deliverAt":"-infinity" | "timerKey":"b","deliverAt":"now"
           "timerKey":"c","delayMs":0.0001 | "timerKey":"d","deliverAt":"1 BC"
           "timerKey":"e","deliverAt":"J2451545"
           "timerKey":"f","delayMs":1,"deliverAt":null,"headers":null"#,
    ),
    (
        r#"queen_push_items('[{"queue":"open","payload":1,@}]')"#,
        r#""partition":null | "transactionId":null | "headers":null"#,
    ),
    (
        r#"queen_tx_commit('[{"type":"ack","leaseId":"@"}]')"#,
        "00000000000000000000000000000000 | {FFFFFFFF-FFFF-FFFF-FFFF-FFFFFFFFFFFF}",
    ),
];

/// Legal as names, as ids and as everything else, however odd. The two é are different.
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

/// Jsonb that loses something if it is read as anything else.
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

/// The ways of a payload, with headers, into the queue.
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

/// The ways of a value into and out of a marker.
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

fn calls(table: &[(&str, &str)]) -> Vec<String> {
    let of = |(template, values): &(&str, &str)| -> Vec<String> {
        let values = values.lines().flat_map(|line| line.split(" | "));
        values.map(|value| template.replace('@', value.trim())).collect()
    };
    table.iter().flat_map(of).collect()
}

/// Malformed calls are refused, in transactions and in savepoints, and nothing comes of them.
#[tokio::test(flavor = "multi_thread")]
async fn malformed_json_is_refused_and_leaves_nothing() -> Result<()> {
    let db = TestDb::fresh().await?;
    let session = db.session().await?;
    Push::new("held", json!(1)).run(&session).await?;
    let held = Pop::new("held").lease("1 hour").one(&session).await?;
    let mut malformed = calls(MALFORMED);
    let quoted: Vec<String> = SHAPES.iter().map(|shape| format!("'{shape}'")).collect();
    for array in ARRAYS {
        malformed.extend(quoted.iter().map(|shape| array.replace('@', shape)));
    }
    ensure!(malformed.len() > 150, "only {} calls", malformed.len());
    let (lease, id) = (held.lease()?.to_string(), held.message_id.to_string());
    let mut faults = Vec::new();
    for in_savepoints in [false, true] {
        session.run(if in_savepoints { "BEGIN" } else { "" }).await?;
        for call in &malformed {
            let call =
                format!("SELECT * FROM {}", call.replace("LEASE", &lease).replace("HELD", &id));
            session.run(if in_savepoints { "SAVEPOINT call" } else { "" }).await?;
            if let Err(fault) = session.run(&call).await.fails_with("22023") {
                faults.push(format!("{call}\n    {fault:.200}"));
            }
            session.run(if in_savepoints { "ROLLBACK TO call" } else { "" }).await?;
        }
        session.run(if in_savepoints { "COMMIT" } else { "" }).await?;
    }
    let left = "SELECT (SELECT count(*) FROM queen_messages WHERE queue <> 'held') \
                + (SELECT count(*) FROM queen_kv_list('ns')) + (SELECT count(*) FROM queen_timers)";
    assert_eq!(session.count(left).await?, 0);
    complete(&session, &[held]).await?;
    ensure!(faults.is_empty(), "{} faults:\n{}", faults.len(), faults.join("\n"));
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn what_is_left_open_is_done_or_refused() -> Result<()> {
    let db = TestDb::fresh().await?;
    let session = db.session().await?;
    for call in calls(OPEN) {
        let outcome = session.run(&format!("SELECT * FROM {call}")).await;
        if outcome.is_err() {
            outcome.fails_with("22023").context(call)?;
        }
    }
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn any_json_comes_back_by_every_way() -> Result<()> {
    let db = TestDb::fresh().await?;
    let session = db.session().await?;
    // JSON null among the headers of an item may be no headers.
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

/// A key takes anything, and a list is in the order of its bytes.
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

/// Whatever a worker says of its failure is kept, up to 8 KiB of it, and the longest ids work.
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
        // Of a long one the first 8 KiB, in whole characters: the last may be one too many.
        let fits = error.len() <= 8192;
        assert!(kept == error || (!fits && error.starts_with(&kept)), "{kept}");
        assert!(fits || (8189..=8192).contains(&kept.len()), "{}", kept.len());
    }
    Ok(())
}

/// How many rows of a view have this name in all these columns.
async fn shown(session: &Session, view: &str, columns: &str, name: &str) -> Result<i64> {
    let sql = format!("SELECT count(*) FROM {view} WHERE $1 = ALL (ARRAY[{columns}])");
    Ok(session.query_one(&sql, &[&name]).await?.get(0))
}

/// The one message has this name everywhere.
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
        ("queen_messages", "queue, partition, transaction_id, payload #>> '{}'"),
    ] {
        assert_eq!(shown(session, view, columns, name).await?, 1, "{view}");
    }
    let metrics = shown(session, "queen_metrics()", "labels ->> 'queue'", name).await?;
    assert!(metrics > 0, "no metrics");
    let label = name.replace('\\', "\\\\").replace('"', "\\\"");
    let text: String = session.query_one("SELECT queen_prometheus()", &[]).await?.get(0);
    assert!(text.contains(&format!("queue=\"{label}\"")), "not in the exposition");

    // To the dead letters, and back.
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

    // By a timer, under another id: this one is known.
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
