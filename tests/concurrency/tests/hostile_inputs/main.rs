//! Hostile arguments: every public function is called with what no application should send. A call
//! succeeds or is refused with an SQLSTATE of the contract. Nothing crashes, a refused call leaves
//! nothing behind, and the queues go on working. JSON is in `hostile_json`.

mod calls;
mod schedules;
mod several_queues;

use std::collections::HashSet;

use anyhow::{Context, Result, ensure};
use queen_tests::expect::sqlstate;
use queen_tests::{Fails, Message, Pop, Push, Session, TestDb, complete, n};
use serde_json::json;
use tokio_postgres::Error;

use calls::{
    BAD, CONTRACT, CONTROLS, Expected, Fine, IDS, INPUT, KEYS, NAMES, NAMESPACES, ODD, Open,
    Refused, VALUES,
};
use schedules::SCHEDULES;
use several_queues::SEVERAL_QUEUES;

/// A queue with a live lease ('held'), one with messages for every group ('s'), and one without
/// room ('full').
const SETUP: &str = "
    SELECT queen_push_batch('held', '{1,2,3}', transaction_ids => '{a,b,c}');
    SELECT queen_subscribe('held', 'reader', 'all');
    SELECT queen_push_batch('s', '{1,2,3}');
    SELECT queen_subscribe('s', 'g', 'all');
    SELECT queen_configure('full', max_depth => 1);
    SELECT queen_push_batch('full', '{1,2,3}');
    SELECT queen_bind('for s', 's');
";

/// All legal odd names, including the longest.
fn odd_names() -> Vec<String> {
    let longest = ["x".repeat(255), "é".repeat(127), "🐘".repeat(63) + "\u{7ff}x"];
    ODD.iter().map(|name| (*name).to_owned()).chain(longest).collect()
}

/// An empty text, and texts that are one byte too long.
fn of_no_length(max: usize) -> Vec<String> {
    vec![String::new(), "x".repeat(max + 1), "é".repeat(max / 2 + 1)]
}

fn owned(texts: &[&str]) -> Vec<String> {
    texts.iter().map(|text| (*text).to_owned()).collect()
}

/// A call with this text in place of its `@` (as SQL) or its `#` (as JSON).
fn with(template: &str, text: Option<&str>) -> String {
    let quoted = |text: &str| text.replace('\'', "''");
    if template.contains('#') {
        template.replace('#', &quoted(&json!(text).to_string()))
    } else {
        template.replace('@', &text.map_or("NULL".into(), |text| format!("'{}'", quoted(text))))
    }
}

/// All calls with all their arguments.
fn calls() -> Vec<(Expected, String)> {
    let mut calls = Vec::new();
    let mut add = |expected, template: &str, texts: Vec<String>| {
        calls.extend(texts.iter().map(|text| (expected, with(template, Some(text)))));
    };
    for (template, odd, _) in NAMES {
        add(*odd, template, odd_names());
        add(BAD, template, [owned(CONTROLS), of_no_length(255)].concat());
    }
    for (template, odd, _) in IDS {
        add(*odd, template, [odd_names(), vec!["x".repeat(1024), "é".repeat(512)]].concat());
        add(BAD, template, [owned(CONTROLS), of_no_length(1024)].concat());
    }
    for template in NAMESPACES {
        add(Fine, template, owned(&["0", "a._-z", &"a".repeat(64)]));
        add(BAD, template, owned(&["", "A", "-a", ".a", "_a", "a b", "a/b", "é", "a\n", "a'%"]));
        add(BAD, template, vec!["a".repeat(65)]);
    }
    for template in KEYS {
        add(Fine, template, [owned(ODD), owned(CONTROLS), vec!["é".repeat(256)]].concat());
        add(BAD, template, of_no_length(512));
    }
    for (template, _, null) in NAMES.iter().chain(IDS) {
        calls.push((*null, with(template, None)));
    }
    calls.extend(NAMESPACES.iter().chain(KEYS).map(|template| (BAD, with(template, None))));
    for (expected, template, values) in VALUES.iter().chain(SCHEDULES).chain(SEVERAL_QUEUES) {
        calls.extend(values.split(" | ").map(|value| (*expected, template.replace('@', value))));
    }
    calls
}

fn judge(expected: Expected, outcome: Result<(), Error>) -> Result<()> {
    let Err(error) = outcome else {
        ensure!(!matches!(expected, Refused(_)), "it succeeds");
        return Ok(());
    };
    let code = sqlstate(&error).unwrap_or_default().to_owned();
    let allowed = match expected {
        Fine => &[],
        Refused(codes) => codes,
        Open => CONTRACT,
    };
    let said = error.as_db_error().map_or("no answer", |raised| raised.message());
    ensure!(allowed.contains(&code.as_str()), "{code}: {said:.100}");
    let raised = Err::<(), _>(error).fails_with(&code)?;
    let is_told = raised.detail().is_some() && raised.hint().is_some();
    ensure!(is_told || INPUT.contains(&code.as_str()), "without DETAIL or HINT: {raised:?}");
    Ok(())
}

/// Make all calls, each in a transaction or a savepoint of its own. Reports all faults at once.
async fn call_all(session: &Session, held: &[Message], in_savepoints: bool) -> Result<()> {
    let calls = calls();
    let distinct = calls.iter().map(|(_, call)| call).collect::<HashSet<_>>().len();
    ensure!(distinct >= 300, "only {distinct} calls");
    let lease = held.first().context("nothing is held")?.lease()?.to_string();
    let mut faults = Vec::new();
    for (expected, call) in &calls {
        let call = format!("SELECT * FROM {}", call.replace("LEASE", &lease));
        if in_savepoints {
            session.run("SAVEPOINT call").await?;
        }
        let outcome = session.run(&call).await;
        let shown: String = call.replace(char::is_control, "·").chars().take(160).collect();
        ensure!(!session.is_closed(), "the connection was lost: {shown}");
        if in_savepoints {
            session.run(if outcome.is_ok() { "RELEASE call" } else { "ROLLBACK TO call" }).await?;
        }
        if let Err(fault) = judge(*expected, outcome) {
            faults.push(format!("{shown}\n    {expected:?}, but {fault:#}"));
        }
    }
    ensure!(faults.is_empty(), "{} of {}:\n{}", faults.len(), calls.len(), faults.join("\n"));
    Ok(())
}

async fn prepared() -> Result<(TestDb, Session, Vec<Message>)> {
    let db = TestDb::fresh().await?;
    let session = db.session().await?;
    session.run(SETUP).await?;
    let pop = Pop::new("held").group("holder").mode("all").batch(10).lease("12 hours");
    let held = pop.run(&session).await?;
    Ok((db, session, held))
}

/// Check that the lease from before is whole, and that messages can be pushed to and popped from
/// old and new queues with any name.
async fn work_on(session: &Session, held: &[Message]) -> Result<()> {
    complete(session, held).await?;
    for name in odd_names().into_iter().chain(["held".into(), "fresh".into()]) {
        Push::new(&name, n(7)).partition(&name).run(session).await?;
        let pop = Pop::new(&name).group(&name).mode("all").partition(&name);
        let message = pop.one(session).await.context(name)?;
        assert_eq!(message.payload, n(7));
        complete(session, &[message]).await?;
    }
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn each_call_is_fine_or_refused_as_documented() -> Result<()> {
    let (_db, session, held) = prepared().await?;
    let called = call_all(&session, &held, false).await;
    work_on(&session, &held).await.with_context(|| format!("after {called:?}"))?;
    called
}

#[tokio::test(flavor = "multi_thread")]
async fn all_calls_in_savepoints_of_one_transaction_leave_nothing() -> Result<()> {
    let (_db, session, held) = prepared().await?;
    session.run("BEGIN").await?;
    let called = call_all(&session, &held, true).await;
    session.run("ROLLBACK").await.with_context(|| format!("after {called:?}"))?;
    let others = "SELECT count(*) FROM queen_queues WHERE queue NOT IN ('held', 's', 'full')";
    assert_eq!(session.count(others).await?, 0);
    let markers = "SELECT count(*) FROM queen_kv_list('ns')";
    assert_eq!(session.count(markers).await?, 0);
    work_on(&session, &held).await.with_context(|| format!("after {called:?}"))?;
    called
}
