//! Hostile JSON: what does not have the documented shape is refused and leaves nothing behind.
//! `odd_values` tests what is accepted and comes back.

use anyhow::{Context, Result, ensure};
use queen_tests::{Fails, Pop, Push, TestDb, complete};
use serde_json::json;

/// JSON that is not an array of objects, or an array of objects without fields.
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

/// Calls with such an array.
const ARRAYS: &[&str] = &[
    "queen_push_items(@)",
    "queen_settle('LEASE', @)",
    "queen_tx_commit(@)",
    "queen_tx_commit(kv => @)",
    "queen_tx_commit(timers => @)",
];

/// Calls with objects (separated by ` | ` or by lines) whose fields are missing, unknown, of a
/// wrong type, out of range or in conflict.
const MALFORMED: &[(&str, &str)] = &[
    ("queen_tx_commit(@)", " | NULL | '[]', '[]', '[]' | '[]', '{}' | '[]', NULL, '1'"),
    ("queen_tx_commit(kv => @)", "NULL | '[]'"),
    (
        "queen_tx_commit(kv => (SELECT jsonb_agg(jsonb_build_object('op', 'get', 'ns', \
         'ns', 'key', i::text)) FROM generate_series(1, @) i))",
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
           "messageId":"x","status":"retry" | "messageId":"","status":"retry"
           "messageId":1.5,"status":"retry"
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

/// Calls that the contract leaves open: done, or refused with 22023.
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

fn calls(table: &[(&str, &str)]) -> Vec<String> {
    let of = |(template, values): &(&str, &str)| -> Vec<String> {
        let values = values.lines().flat_map(|line| line.split(" | "));
        values.map(|value| template.replace('@', value.trim())).collect()
    };
    table.iter().flat_map(of).collect()
}

/// Malformed calls are refused, in transactions and in savepoints, and have no effect.
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
