//! A server without memory: a call that needs more memory than there is raises an ERROR and leaves
//! nothing behind. Other sessions are not affected.

use anyhow::{Context, Result, ensure};
use queen_tests::memory::{MIB, allow, allow_all, figure};
use queen_tests::{Fails, Session, TestDb};
use tokio_postgres::Error;

/// Counts the messages of the calls below that succeeded; there must be no others.
const PUSHED: &str = "SELECT count(*) FROM queen_messages WHERE queue = 'pushed'";

/// Each call returns one number: how many messages it pushed to the queue `pushed`.
const CALLS: &[&str] = &[
    "SELECT count(*) FROM queen_push_batch('pushed', ARRAY(SELECT to_jsonb(i)
        FROM generate_series(1, 30000) i),
         transaction_ids => ARRAY(SELECT 'a' || gen_random_uuid() FROM generate_series(1, 30000)))",
    "SELECT count(*) FROM queen_push_batch('pushed', ARRAY(SELECT to_jsonb(repeat('x', 4000000)) \
        FROM generate_series(1, 6)))",
    "SELECT count(*) FROM queen_push_items((SELECT jsonb_agg(jsonb_build_object('queue', 'pushed',
         'payload', i, 'partition', 'p' || i % 5)) FROM generate_series(1, 20000) i))",
    "SELECT count(*) FROM queen_push_items((SELECT jsonb_agg(jsonb_build_object('queue',
         'pushed', 'payload', repeat('x', 4000000))) FROM generate_series(1, 6)))",
    "SELECT count(*) FROM queen_push('pushed', to_jsonb(repeat('x', 10000000)))",
    "SELECT jsonb_array_length(queen_tx_commit(operations =>
        (SELECT jsonb_agg(jsonb_build_object('type', 'push', 'queue', 'pushed',
         'payload', repeat('y', 100))) FROM generate_series(1, 5000)))->'results')::bigint",
    "SELECT count(*) FROM queen_push_items((SELECT jsonb_agg(jsonb_build_object('queue', 'pushed',
         'payload', i, repeat('z', 8000000), 1)) FROM generate_series(1, 2) i))",
];

/// Calls that push nothing. Each returns one number.
const OTHERS: &[&str] = &[
    "SELECT queen_ack('00000000-0000-7000-8000-000000000000',
        message_ids => ARRAY(SELECT generate_series(1, 100000)::bigint),
         status => 'failed', error => repeat('x', 5000000)) IS NULL",
    "SELECT queen_ack('00000000-0000-7000-8000-000000000000',
        transaction_ids => ARRAY(SELECT repeat('i', 1000) || i
         FROM generate_series(1, 50000) i)) IS NULL",
    "SELECT count(*) FROM queen_settle('00000000-0000-7000-8000-000000000000',
        (SELECT jsonb_agg(jsonb_build_object('messageId', i, 'status', 'failed',
         'error', repeat('e', 500))) FROM generate_series(1, 20000) i))",
    "SELECT queen_ack('00000000-0000-7000-8000-000000000000', \
        status => repeat('s', 20000000)) IS NULL",
    "SELECT count(*) FROM queen_pop('large', 'g', batch => 12, subscription_mode => 'all')",
    "SELECT count(*) FROM queen_pop('large', 'a', batch => 12, auto_ack => true, \
        subscription_mode => 'all')",
    "SELECT count(*) FROM queen_pop('small', 'g', batch => 10000, subscription_mode => 'all')",
    "SELECT count(*) FROM queen_pop('small', 'u', batch => 2000, subscription_mode => 'all')",
    "SELECT count(*) FROM queen_kv_get_many('m', ARRAY(SELECT 'k' || i \
        FROM generate_series(1, 10000) i))",
    "SELECT count(*) FROM queen_kv_list('m', prefix => repeat('k', 20000000), max_rows => 1000)",
    "SELECT count(*) FROM queen_kv_put('m', 'k1', to_jsonb(repeat('v', 9000000)), forever => true)",
    "SELECT jsonb_array_length(queen_tx_commit(kv => (SELECT jsonb_agg(jsonb_build_object('op',
         'put', 'ns', 'm', 'key', 'k' || i, 'value', repeat('v', 60000), 'forever', true))
             FROM generate_series(1, 64) i))->'results')::bigint",
    "SELECT count(*) FROM queen_schedule('timers', 'one', to_jsonb(repeat('x', 10000000)), \
        delay => '1 hour')",
    "SELECT count(*) FROM queen_configure('other', unset => ARRAY[repeat('x', 20000000)])",
    "SELECT count(*) FROM queen_configure('other', on_exhausted => repeat('x', 20000000))",
    "SELECT count(*) FROM queen_subscribe('small', 's', mode => repeat('x', 20000000))",
    "SELECT queen_seek('small', 'g', to_position => repeat('x', 20000000)) IS NULL",
    "SELECT count(*) FROM queen_metrics()",
    "SELECT count(*) FROM queen_groups",
    "SELECT count(*) FROM queen_sweep(100)",
];

const UNKNOWN_LEASE: &str = "QN003";

/// What the call returned. None if it was refused as it may be.
fn outcome(call: &str, result: Result<i64, Error>) -> Result<Option<i64>> {
    let error = match result {
        Ok(number) => return Ok(Some(number)),
        Err(error) => error,
    };
    let report = error.as_db_error().with_context(|| format!("{call}: {error:?}"))?;
    ensure!(report.severity() == "ERROR", "{call}: {report:?}");
    let code = report.code().code();
    ensure!(["53200", "22023", "54000", UNKNOWN_LEASE].contains(&code), "{call}: {report:?}");
    Ok(None)
}

/// Runs a call that returns one number, with the simple protocol: nothing is prepared or kept from
/// one call to the next.
async fn number(session: &Session, call: &str) -> Result<i64, Error> {
    use tokio_postgres::SimpleQueryMessage::Row;
    let answer = session.simple_query(call).await?;
    let row =
        answer.iter().find_map(|message| if let Row(row) = message { Some(row) } else { None });
    Ok(row.and_then(|row| row.get(0)?.parse().ok()).unwrap_or(0))
}

async fn fill(session: &Session) -> Result<()> {
    session
        .run(
            "SELECT queen_push('large', to_jsonb(repeat('x', 4000000))) FROM generate_series(1, 12);
             SELECT count(*) FROM queen_push_batch('small',
                 ARRAY(SELECT to_jsonb(i) FROM generate_series(1, 10000) i));
             SELECT queen_subscribe('small', 'u', mode => 'all', ordering => 'none');
             SELECT queen_kv_put('m', 'k' || i, to_jsonb(repeat('v', 60000)), forever => true)
                 FROM generate_series(1, 500) i;
             SELECT queen_push('pushed', '0')",
        )
        .await?;
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn a_call_without_memory_is_an_error_of_its_own_and_leaves_nothing() -> Result<()> {
    let db = TestDb::fresh().await?;
    let observer = db.session().await?;
    let started = "SELECT extract(epoch FROM pg_postmaster_start_time())::bigint";
    let began = observer.count(started).await?;
    fill(&observer).await?;
    let mut pushed = 1;
    // Some calls fail inside PostgreSQL, some in Rust, some between the two.
    for more in [1, 4, 14, 64, 256] {
        let session = db.session().await?;
        for (call, pushes) in
            CALLS.iter().map(|call| (call, true)).chain(OTHERS.iter().map(|call| (call, false)))
        {
            session.run("BEGIN; SAVEPOINT before").await?;
            allow(&session, more * MIB)?;
            let result = number(&session, call).await;
            allow_all(&session)?;
            let given = outcome(call, result).with_context(|| format!("{more} MiB more"))?;
            // The session works as before, and other calls find what is stored.
            if given.is_none() {
                session.run("ROLLBACK TO before").await?;
            }
            match pushes {
                true => session.run("COMMIT").await?,
                false => session.run("ROLLBACK").await?,
            }
            pushed += if pushes { given.unwrap_or(0) } else { 0 };
        }
        assert_eq!(session.count(PUSHED).await?, pushed, "with {more} MiB more");
    }
    assert!(pushed > 50_000, "with much memory the calls succeed: {pushed}");
    assert_eq!(
        observer
            .count(
                "SELECT count(*) FROM queen_pop('small', 'g', batch => 10000, \
        subscription_mode => 'all')"
            )
            .await?,
        10_000
    );
    assert_eq!(observer.count(started).await?, began, "the server has not been restarted");
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn a_pop_has_one_message_in_memory_at_a_time() -> Result<()> {
    let db = TestDb::fresh().await?;
    let [producer, consumer] = db.sessions().await?;
    producer
        .run(
            "SELECT queen_push('big', to_jsonb(repeat('x', 5000000))) FROM generate_series(1, 60);
             SELECT queen_push('warm', '1')",
        )
        .await?;
    consumer
        .count("SELECT count(*) FROM queen_pop('warm', 'b', subscription_mode => 'all')")
        .await?;
    let before = figure(&consumer, "VmHWM")?;
    let bytes = "SELECT sum(length(payload #>> '{}')) FROM queen_pop('big', 'b', batch => 60, \
        subscription_mode => 'all')";
    assert_eq!(consumer.count(bytes).await?, 300_000_000);
    let grown = figure(&consumer, "VmHWM")? - before;
    assert!(grown < 40 * MIB, "{} MiB", grown / MIB);
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn timers_that_are_due_together_are_moved_one_message_at_a_time() -> Result<()> {
    let db = TestDb::fresh().await?;
    let [producer, consumer] = db.sessions().await?;
    producer
        .run(
            "SELECT queen_schedule('late', 't' || i, to_jsonb(repeat('x', 5000000)), delay => '0')
                 FROM generate_series(1, 20) i;
             SELECT queen_push('warm', '1')",
        )
        .await?;
    consumer
        .count("SELECT count(*) FROM queen_pop('warm', 'b', subscription_mode => 'all')")
        .await?;
    let before = figure(&consumer, "VmHWM")?;
    let pop =
        "SELECT count(*) FROM queen_pop('late', 'b', batch => 100, subscription_mode => 'all')";
    assert_eq!(consumer.count(pop).await?, 20);
    let grown = figure(&consumer, "VmHWM")? - before;
    assert!(grown < 40 * MIB, "{} MiB", grown / MIB);
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn a_lease_of_large_messages_is_settled_by_their_names_without_their_payloads() -> Result<()>
{
    let db = TestDb::fresh().await?;
    let [producer, consumer, other] = db.sessions().await?;
    producer
        .run(
            "SELECT queen_push('big', to_jsonb(repeat('x', 5000000)), transaction_id => 't' || i)
                 FROM generate_series(1, 20) i;",
        )
        .await?;
    let pop = "SELECT DISTINCT lease_id::text FROM queen_pop('big', 'b', batch => 20, \
        subscription_mode => 'all')";
    let lease: String = consumer.query_one(pop, &[]).await?.get(0);
    // This session has not handled anything large yet.
    other.count("SELECT count(*) FROM queen_groups").await?;
    let before = figure(&other, "VmHWM")?;
    let ack = format!(
        "SELECT settled::bigint FROM queen_ack('{lease}', transaction_ids => ARRAY(SELECT 't' || i \
            FROM generate_series(1, 20) i))"
    );
    assert_eq!(other.count(&ack).await?, 20);
    let grown = figure(&other, "VmHWM")? - before;
    assert!(grown < 20 * MIB, "{} MiB", grown / MIB);
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn popped_messages_are_whole_whatever_becomes_of_the_log_meanwhile() -> Result<()> {
    let db = TestDb::fresh().await?;
    let [session, other] = db.sessions().await?;
    for isolation in ["READ COMMITTED", "REPEATABLE READ"] {
        session
            .run(
                "SELECT queen_push('q', jsonb_build_object('i', i, 'x',
                    repeat(md5(i::text), 30000)))
                     FROM generate_series(1, 5) i;
                 CREATE OR REPLACE FUNCTION reader() RETURNS SETOF jsonb LANGUAGE plpgsql STABLE AS
                     $$ DECLARE one record; BEGIN
                        FOR one IN SELECT payload FROM queen_messages WHERE queue = 'q' LOOP
                            RETURN NEXT one.payload; END LOOP; END $$",
            )
            .await?;
        session.run(&format!("BEGIN ISOLATION LEVEL {isolation}")).await?;
        session
            .run(
                "DECLARE held CURSOR FOR SELECT * FROM queen_pop('q', 'g', batch => 5,
                    subscription_mode => 'all');
                 FETCH 1 FROM held",
            )
            .await?;
        // The deletion does not wait until the pop's rows have been read: all of them have been
        // made. It may wait for the pop's transaction.
        session.run("SAVEPOINT s").await?;
        session.run("SELECT queen_purge('q')").await?;
        let rest = session.query("FETCH ALL FROM held", &[]).await?;
        assert_eq!(rest.len(), 4);
        for (row, i) in rest.iter().zip(2..) {
            let payload: serde_json::Value = row.get("payload");
            assert_eq!(
                (payload["i"].as_i64(), payload["x"].as_str().map(str::len)),
                (Some(i), Some(960_000))
            );
        }
        session.run("COMMIT").await?;
        other.run("VACUUM queen_mq.segment").await?;
    }
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn what_is_beyond_the_bounds_is_refused_and_an_error_text_is_cut() -> Result<()> {
    let db = TestDb::fresh().await?;
    let session = db.session().await?;
    let too_much = [
        "SELECT queen_ack('00000000-0000-7000-8000-000000000000', \
            message_ids => ARRAY(SELECT generate_series(1, 100001)::bigint))",
        "SELECT queen_settle('00000000-0000-7000-8000-000000000000', \
            (SELECT jsonb_agg('{\"messageId\": 1, \"status\": \"retry\"}'::jsonb) \
                FROM generate_series(1, 100001)))",
        "SELECT queen_push_batch('q', ARRAY(SELECT '1'::jsonb FROM generate_series(1, 1000001)))",
        "SELECT queen_push_batch('q', ARRAY(SELECT large \
            FROM to_jsonb(repeat('x', 15000000)) large, generate_series(1, 18)))",
        "SELECT queen_push_items((SELECT jsonb_agg(jsonb_build_object('queue', 'q', 'payload', \
            repeat('x', 14000000))) FROM generate_series(1, 5)))",
        "SELECT queen_tx_commit(kv => (SELECT jsonb_agg(jsonb_build_object('op', 'get', 'ns', 'm', \
            'key', repeat('x', 1000000))) FROM generate_series(1, 9)))",
        "SELECT queen_tx_commit(required_leases => ARRAY(SELECT gen_random_uuid() \
            FROM generate_series(1, 10001)))",
        "SELECT queen_kv_get_many('m', ARRAY(SELECT 'k' || i FROM generate_series(1, 10001) i))",
        "SELECT queen_configure('q', unset => ARRAY(SELECT 'delay' FROM generate_series(1, 101)))",
    ];
    for call in too_much {
        let refused = session.run(call).await;
        refused.fails_with("22023").with_context(|| call.to_owned())?;
    }
    session.run("SELECT queen_push('q', '1'); SELECT queen_push('q', '2')").await?;
    let pop = "SELECT DISTINCT lease_id::text FROM queen_pop('q', 'g', batch => 2, \
        subscription_mode => 'all')";
    let lease: String = session.query_one(pop, &[]).await?.get(0);
    session
        .run(&format!(
            "SELECT queen_ack('{lease}', status => 'dead_letter', \
            error => 'x' || repeat('é', 100000))"
        ))
        .await?;
    let kept = session
        .query("SELECT octet_length(error), error ~ '^xé*$' FROM queen_dead_letters", &[])
        .await?;
    assert_eq!(kept.len(), 2);
    for row in &kept {
        assert_eq!((row.get(0), row.get(1)), (8191, true));
    }
    Ok(())
}
