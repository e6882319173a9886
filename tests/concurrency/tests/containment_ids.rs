//! Ids last for a hundred years at 100,000 a second, and the last ids work like the first.

use anyhow::{Result, ensure};
use chrono::{DateTime, Utc};
use queen_tests::{
    Ack, Fails, Message, Pop, PushBatch, Session, TestDb, complete, counts, n, numbers, settle,
};
use serde_json::json;

const DRAWS_A_SECOND: f64 = 100_000.0;
const SECONDS_A_YEAR: f64 = 365.25 * 86_400.0;

/// Message ids stay below this value: up to here a number in JSON is exact.
const END_OF_MESSAGE_IDS: i64 = 1 << 53;

#[tokio::test(flavor = "multi_thread")]
async fn every_sequence_outlives_a_hundred_years() -> Result<()> {
    let db = TestDb::fresh().await?;
    let session = db.session().await?;
    let sequences = session
        .query(
            "SELECT sequencename::text, start_value, increment_by, max_value, cycle
             FROM pg_sequences WHERE schemaname = 'queen_mq' ORDER BY sequencename",
            &[],
        )
        .await?;
    ensure!(sequences.len() >= 5, "the schema has only {} sequences", sequences.len());
    for row in sequences {
        let (name, start, step, last, cycles): (String, i64, i64, i64, bool) =
            (row.get(0), row.get(1), row.get(2), row.get(3), row.get(4));
        let draws = (last - start) as f64 / step as f64;
        let years = draws / DRAWS_A_SECOND / SECONDS_A_YEAR;
        ensure!(years >= 100.0, "{name} lasts for {years:.1} years");
        ensure!(!cycles, "{name} gives out ids twice");
    }
    Ok(())
}

/// A database in which only this many ids of segments, cursors, claims and lease sets are left.
async fn near_the_end(left: i64) -> Result<(TestDb, Session)> {
    let db = TestDb::fresh().await?;
    let session = db.session().await?;
    session
        .query(
            "SELECT setval(format('queen_mq.%I', sequencename)::regclass, max_value - $1)
             FROM pg_sequences WHERE schemaname = 'queen_mq'
               AND sequencename IN ('segment_id', 'cursor_id_seq', 'lease_set_id_seq')",
            &[&left],
        )
        .await?;
    Ok((db, session))
}

/// Push so many messages to each of the partitions `a`, `b` and `c`, in turn.
async fn push(session: &Session, queue: &str, each: i64) -> Result<()> {
    for (place, partition) in (0..).zip(["a", "b", "c"]) {
        let payloads = (0..each).map(|at| n(place * each + at)).collect();
        let pushed = PushBatch::new(queue, payloads).partition(partition).run(session).await?;
        for message in pushed {
            let id = message.message_id;
            ensure!((1 << 52..END_OF_MESSAGE_IDS).contains(&id), "message id {id}");
        }
    }
    Ok(())
}

fn pop(queue: &str) -> Pop {
    Pop::new(queue).group("g").mode("all")
}

fn ids(messages: &[Message]) -> Vec<i64> {
    messages.iter().map(|message| message.message_id).collect()
}

/// The message ids and transaction_ids that the view shows, in order.
async fn retained(session: &Session) -> Result<Vec<(i64, String)>> {
    let rows = session
        .query("SELECT message_id, transaction_id FROM queen_messages ORDER BY message_id", &[])
        .await?;
    Ok(rows.iter().map(|row| (row.get(0), row.get(1))).collect())
}

#[tokio::test(flavor = "multi_thread")]
async fn the_last_ids_are_popped_settled_and_shown_in_order() -> Result<()> {
    let (_db, session) = near_the_end(6).await?;
    // Every 40 messages need two segments: they get the last segment ids.
    push(&session, "q", 40).await?;
    Pop::new("q").run(&session).await?;
    let several = pop("q").batch(100).partitions(3).run(&session).await?;
    assert_eq!(several.len(), 100);
    assert_eq!(session.count("SELECT count(*) FROM queen_leases").await?, 4);
    let lease = several[0].lease()?;
    assert!(several.iter().all(|message| message.lease_id == Some(lease)));
    let before = several[0].expires_at()?;
    let extended = session.query_one("SELECT queen_extend($1, '1 hour')", &[&lease]).await?;
    assert!(extended.get::<_, DateTime<Utc>>(0) > before);

    let acked = Ack::messages(lease, ids(&several[..40])).run(&session).await?;
    assert_eq!(acked, counts(40, 0, false));
    let again = Ack::messages(lease, ids(&several[..40])).run(&session).await?;
    assert_eq!(again, counts(0, 40, false));
    let outcomes = settle(
        &session,
        lease,
        &json!([{"messageId": several[40].message_id, "status": "dead_letter", "error": "late"}]),
    )
    .await?;
    assert_eq!(outcomes[0].outcome, "dead_lettered");
    assert_eq!(outcomes[0].transaction_id, format!("msg-{}", several[40].message_id));
    let rest = Ack::all(lease).run(&session).await?;
    assert_eq!(rest, counts(59, 40, true));
    let late = Ack::messages(lease, [several[99].message_id]).status("failed").run(&session).await;
    late.fails_with("QN005")?;

    let left = pop("q").batch(100).partitions(3).run(&session).await?;
    complete(&session, &left).await?;
    let mut came = [numbers(&several), numbers(&left)].concat();
    came.sort_unstable();
    assert_eq!(came, (0..120).collect::<Vec<_>>());
    let shown = retained(&session).await?;
    assert_eq!(shown.len(), 120);
    assert!(shown.iter().all(|(id, name)| name == &format!("msg-{id}")));
    assert!(shown.windows(2).all(|two| two[0].0 < two[1].0));
    assert!(shown[119].0 > END_OF_MESSAGE_IDS - 28 && shown[119].0 < END_OF_MESSAGE_IDS);

    let buried = session.query_one("SELECT message_id FROM queen_dead_letters", &[]).await?;
    assert_eq!(buried.get::<_, i64>(0), several[40].message_id);
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn the_last_claims_of_a_group_without_order_are_told_apart() -> Result<()> {
    let (_db, session) = near_the_end(60).await?;
    session.run("SELECT queen_configure('q', ordering => 'none')").await?;
    push(&session, "q", 10).await?;
    let mut leases = Vec::new();
    for _ in 0..5 {
        let one = pop("q").run(&session).await?;
        leases.push((one[0].lease()?, one[0].message_id));
    }
    for (lease, message) in &leases {
        let ack = || Ack::messages(*lease, [*message]);
        assert_eq!(ack().run(&session).await?, counts(1, 0, true));
        assert_eq!(ack().run(&session).await?, counts(0, 1, true));
    }
    let rest = pop("q").batch(25).partitions(3).run(&session).await?;
    assert_eq!(rest.len(), 25);
    let lease = rest[0].lease()?;
    let failed = Ack::messages(lease, [rest[3].message_id]).failed("once").run(&session).await?;
    assert_eq!(failed, counts(1, 0, false));
    assert_eq!(Ack::all(lease).run(&session).await?, counts(24, 0, true));
    let back = pop("q").run(&session).await?;
    assert_eq!((back[0].message_id, back[0].delivery_attempt), (rest[3].message_id, 2));
    complete(&session, &back).await?;
    assert_eq!(session.count("SELECT sum(pending)::bigint FROM queen_groups").await?, 0);
    Ok(())
}

/// An id that does not exist is an error, and is never mistaken for another one.
#[tokio::test(flavor = "multi_thread")]
async fn a_push_after_the_last_id_is_an_error() -> Result<()> {
    let (_db, session) = near_the_end(1).await?;
    PushBatch::new("q", vec![n(1)]).run(&session).await?;
    PushBatch::new("q", vec![n(2)]).run(&session).await.fails_with("2200H")?;
    assert_eq!(numbers(&pop("q").batch(10).run(&session).await?), [1]);
    Ok(())
}
