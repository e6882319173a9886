//! Queen MQ's own tests of many markers in one call, written for the contract of queen_mq. The
//! number at the end of a name is that of the behaviour in the list that these tests follow.

use anyhow::Result;
use queen_tests::{Fails, Session, TestDb, marker, n, put_if_absent};
use serde_json::{Value, json};
use tokio_postgres::Error;

/// The keys that `queen_kv_list` returns with these arguments after the namespace.
async fn listed(session: &Session, arguments: &str) -> Result<Vec<String>, Error> {
    let sql = format!("SELECT key FROM queen_kv_list('ns', {arguments})");
    Ok(session.query(&sql, &[]).await?.iter().map(|row| row.get(0)).collect())
}

#[tokio::test(flavor = "multi_thread")]
async fn many_markers_are_read_by_their_keys_or_by_a_literal_prefix_q57() -> Result<()> {
    let db = TestDb::fresh().await?;
    let session = db.session().await?;
    for key in ["a%b", "a%c", "aXb", "a_b", "B", "a", "ä", "b"] {
        put_if_absent(&session, "ns", key, &json!(key), "1 hour").await?;
    }
    put_if_absent(&session, "other", "a%b", &json!("other"), "1 hour").await?;
    let many = session
        .query(
            "SELECT found, key, value FROM queen_kv_get_many('ns', $1)",
            &[&vec!["b", "none", "a", "b"]],
        )
        .await?;
    let many: Vec<(bool, String, Option<Value>)> =
        many.iter().map(|row| (row.get(0), row.get(1), row.get(2))).collect();
    let found = |key: &str| (true, key.to_owned(), Some(json!(key)));
    assert_eq!(many, [found("b"), (false, "none".to_owned(), None), found("a"), found("b")]);
    // In a bundle the markers are sorted by key, and the missing keys are in the order of the call.
    let kv = json!([{ "op": "getMany", "ns": "ns", "keys": ["ö", "b", "none", "B", "a"] }]);
    let answer: Value = session.query_one("SELECT queen_tx_commit(kv => $1)", &[&kv]).await?.get(0);
    let result = &answer["results"][0];
    let keys: Vec<_> =
        result["rows"].as_array().into_iter().flatten().map(|row| &row["key"]).collect();
    assert_eq!(keys, ["B", "a", "b"], "{answer}");
    assert_eq!(result["missing"], json!(["ö", "none"]));

    assert_eq!(listed(&session, "''").await?, ["B", "a", "a%b", "a%c", "aXb", "a_b", "b", "ä"]);
    assert_eq!(listed(&session, "'a%'").await?, ["a%b", "a%c"]);
    assert_eq!(listed(&session, "'a_'").await?, ["a_b"]);
    assert_eq!(listed(&session, "'a', after => 'a%b', max_rows => 2").await?, ["a%c", "aXb"]);
    assert_eq!(listed(&session, "'a', after => 'a_b'").await?, [""; 0]);
    for rows in [0, 1001] {
        listed(&session, &format!("'', max_rows => {rows}")).await.fails_with("22023")?;
    }
    let sql = "SELECT count(*) FROM generate_series(1, 101) AS k, \
               queen_kv_put('ns', 'n' || k, '1', forever => true)";
    assert_eq!(session.count(sql).await?, 101);
    assert_eq!(listed(&session, "'n'").await?.len(), 100);
    assert_eq!(listed(&session, "'n', max_rows => 1000").await?.len(), 101);
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn one_bad_operation_spoils_the_call_and_a_key_is_written_once_q58() -> Result<()> {
    let db = TestDb::fresh().await?;
    let session = db.session().await?;
    let put = |ns: &str, key: &str| -> Value {
        json!({ "op": "put", "ns": ns, "key": key, "value": 1, "forever": true })
    };
    let bad = [
        put("No Namespace", "k"),
        put("ns", ""),
        put("ns", &"k".repeat(513)),
        put("ns", "a"),
        json!({ "op": "delete", "ns": "ns", "key": "a" }),
        json!({ "op": "rename", "ns": "ns", "key": "k" }),
        json!({ "op": "get", "ns": "ns", "key": "k", "tenant": "t" }),
        json!({ "op": "putIfAbsent", "ns": "ns", "key": "k", "value": 1 }),
    ];
    for bad in bad {
        for kv in [json!([put("ns", "a"), bad]), json!([bad, put("ns", "a")])] {
            let push = json!([{ "type": "push", "queue": "q", "payload": n(1) }]);
            let sql = "SELECT queen_tx_commit($1, $2)";
            let answer = session.query(sql, &[&push, &kv]).await;
            answer.fails_with("22023").map_err(|error| error.context(kv.to_string()))?;
        }
    }
    assert_eq!(session.count("SELECT count(*) FROM queen_kv_list('ns')").await?, 0);
    assert_eq!(session.count("SELECT count(*) FROM queen_messages").await?, 0);
    // A key of another namespace is another key.
    let kv = json!([put("ns", "a"), put("other", "a")]);
    let answer: Value = session.query_one("SELECT queen_tx_commit(kv => $1)", &[&kv]).await?.get(0);
    assert_eq!(answer["success"], json!(true), "{answer}");
    assert_eq!(marker(&session, "other", "a").await?, Some(json!(1)));
    Ok(())
}
