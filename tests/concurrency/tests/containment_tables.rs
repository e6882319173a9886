//! Triggers and constraints that an administrator adds to the tables of the extension work as for
//! any statement, or are refused with a plain error. An error undoes only the call.

use std::time::Duration;

use anyhow::{Context, Result, ensure};
use queen_tests::cluster::Cluster;
use queen_tests::{Ack, Fails, Pop, Push, PushBatch, Session, TestDb, eventually, n, numbers};

/// A table of messages or markers, and calls that write it. `first` is what gives the table rows.
struct Writer {
    table: &'static str,
    first: &'static str,
    call: &'static str,
}

const LEASED: &str = "SELECT queen_push('q', '1'), queen_push('q', '2', partition => 'b');
    CREATE TABLE held AS SELECT * FROM queen_pop('q', 'g', 9, partitions => 9,
        subscription_mode => 'all')";
const UNORDERED: &str = "SELECT queen_configure('q', ordering => 'none'), queen_push('q', '1')";
const SETTLED: &str = "SELECT queen_configure('q', ordering => 'none'), queen_push('q', '1');
    SELECT queen_ack(lease_id) FROM queen_pop('q', 'g', subscription_mode => 'all')";
const PUSHED: &str = "SELECT queen_push('q', '1'), queen_push('q', '2', partition => 'b')";
const POP: &str = "PERFORM queen_pop('q', 'g', 9, partitions => 9, subscription_mode => 'all')";

const fn writer(table: &'static str, first: &'static str, call: &'static str) -> Writer {
    Writer { table, first, call }
}

const WRITERS: [Writer; 18] = [
    writer("queue", "SELECT", "PERFORM queen_push('q', '1')"),
    writer("segment", "SELECT", "PERFORM queen_push('q', '1')"),
    writer("segment", "SELECT queen_push('q', '1')", "PERFORM queen_push_batch('q', '{1,2}')"),
    writer("admission", "SELECT", "PERFORM queen_push('q', '1', transaction_id => 'x')"),
    writer("consumer_group", PUSHED, "PERFORM queen_subscribe('q', 'g')"),
    writer("cursor", PUSHED, POP),
    writer("progress", PUSHED, POP),
    writer("discovery", PUSHED, POP),
    writer("lease_set", PUSHED, POP),
    writer("claim", UNORDERED, POP),
    writer("progress", LEASED, "PERFORM queen_ack((SELECT lease_id FROM public.held LIMIT 1))"),
    writer("receipt", SETTLED, "PERFORM queen_sweep()"),
    writer(
        "dead_letter",
        LEASED,
        "PERFORM queen_ack((SELECT lease_id FROM public.held LIMIT 1), status => 'dead_letter')",
    ),
    writer("timer", "SELECT", "PERFORM queen_schedule('q', 'k', '1', delay => '1 h')"),
    writer("timer", "SELECT", "PERFORM queen_every('q', 'k', '@daily', '1')"),
    writer("binding", "SELECT", "PERFORM queen_bind('#', 'q')"),
    writer("marker", "SELECT", "PERFORM queen_kv_put('n', 'k', '1', forever => true)"),
    writer("tally", PUSHED, "PERFORM queen_purge('q')"),
];

/// The tables of messages and markers.
const TABLES: [&str; 15] = [
    "queue",
    "segment",
    "admission",
    "consumer_group",
    "cursor",
    "progress",
    "discovery",
    "lease_set",
    "claim",
    "receipt",
    "dead_letter",
    "timer",
    "binding",
    "marker",
    "tally",
];

/// The contents of these tables, for comparison.
async fn contents(session: &Session) -> Result<String> {
    let hash = |table| {
        format!(
            "SELECT '{table} ' || coalesce(md5(string_agg(r::text, ',' ORDER BY r::text)), '')
             FROM queen_mq.{table} AS r"
        )
    };
    let hashes = TABLES.map(hash).join(" UNION ALL ");
    let all = format!("SELECT string_agg(held, ',' ORDER BY held) FROM ({hashes}) AS t (held)");
    Ok(session.query_one(&all, &[]).await?.get(0))
}

async fn started(session: &Session) -> Result<String> {
    let sql = "SELECT pg_postmaster_start_time()::text";
    Ok(session.query_one(sql, &[]).await?.get(0))
}

/// The call in a PL/pgSQL block.
fn block(call: &str) -> String {
    format!("DO $$ BEGIN {call}; END $$")
}

#[tokio::test(flavor = "multi_thread")]
async fn a_check_that_fails_undoes_the_call_and_nothing_else() -> Result<()> {
    for Writer { table, first, call } in WRITERS {
        let db = TestDb::fresh().await?;
        let session = db.session().await?;
        let began = started(&session).await?;
        session.run(first).await?;
        session.run("CREATE TABLE other (i int)").await?;
        let add = format!("ALTER TABLE queen_mq.{table} ADD CONSTRAINT no CHECK (false) NOT VALID");
        session.run(&add).await?;
        let before = contents(&session).await?;
        let about = format!("{table}: {call}");
        // In autocommit.
        let failed = session.run(&block(call)).await.fails_with("23514");
        let failed = failed.with_context(|| about.clone())?;
        assert_eq!(failed.table(), None, "pgrx drops it; the message has it");
        ensure!(failed.message().contains(table), "{failed:?}");
        // In a handler, where the transaction goes on.
        let caught = format!(
            "DO $$ BEGIN INSERT INTO other VALUES (1); BEGIN {call};
             EXCEPTION WHEN check_violation THEN INSERT INTO other VALUES (2); END; END $$"
        );
        session.run(&caught).await.with_context(|| about.clone())?;
        // After a savepoint.
        session.run("BEGIN; INSERT INTO other VALUES (3); SAVEPOINT s").await?;
        session.run(&block(call)).await.fails_with("23514").with_context(|| about.clone())?;
        session.run("ROLLBACK TO s; INSERT INTO other VALUES (4); COMMIT").await?;
        assert_eq!(session.count("SELECT sum(i) FROM other").await?, 10, "{about}");
        assert_eq!(contents(&session).await?, before, "{about}");
        // Without the constraint the call works as before.
        session.run(&format!("ALTER TABLE queen_mq.{table} DROP CONSTRAINT no")).await?;
        session.run(&block(call)).await.with_context(|| about.clone())?;
        assert_ne!(contents(&session).await?, before, "{about}");
        assert_eq!(started(&session).await?, began, "{about}");
    }
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn an_error_of_a_users_function_arrives_as_it_was_raised() -> Result<()> {
    let db = TestDb::fresh().await?;
    let session = db.session().await?;
    Push::new("q", n(1)).run(&session).await?;
    session
        .run(
            "CREATE FUNCTION raises() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN
                 RAISE 'not today' USING ERRCODE = 'MY001', DETAIL = 'a fact', HINT = 'a way';
             END $$;
             CREATE TRIGGER raises AFTER INSERT ON queen_mq.segment
                 FOR EACH ROW EXECUTE FUNCTION raises()",
        )
        .await?;
    let push = "SELECT queen_push('q', '2')";
    for _ in 0..2 {
        let raised = session.run(push).await.fails_with("MY001")?;
        assert_eq!(raised.message(), "not today");
        assert_eq!(raised.detail(), Some("a fact"));
        assert_eq!(raised.hint(), Some("a way"));
    }
    session
        .run(
            "DO $$ BEGIN PERFORM queen_push('q', '2'); RAISE 'not raised';
             EXCEPTION WHEN SQLSTATE 'MY001' THEN NULL; END $$",
        )
        .await?;
    // Later errors of the extension keep their own SQLSTATEs.
    session.run("SELECT queen_push('q', NULL)").await.fails_with("22023")?;
    session.run("SELECT queen_ack(gen_random_uuid())").await.fails_with("QN003")?;
    // The error also arrives from a bundle, in a session of its own.
    let bundle = "SELECT queen_tx_commit('[{\"type\":\"push\",\"queue\":\"q\",\"payload\":1}]')";
    db.session().await?.run(bundle).await.fails_with("MY001")?;
    assert_eq!(session.count("SELECT count(*) FROM queen_messages").await?, 1);
    Ok(())
}

/// Triggers of every kind on a table, which note what they see.
const NOTE: &str = "
    CREATE TABLE noted (tab text, at text, ids bigint[]);
    CREATE FUNCTION note() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN
        INSERT INTO public.noted VALUES (TG_TABLE_NAME, TG_WHEN || ' ' || TG_OP || ' ' || TG_LEVEL,
            CASE TG_LEVEL WHEN 'ROW' THEN ARRAY[
                (coalesce(to_jsonb(NEW), to_jsonb(OLD)) ->> TG_ARGV[0])::bigint] END);
        RETURN coalesce(NEW, OLD);
    END $$;
    CREATE FUNCTION note_all() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN
        EXECUTE format('INSERT INTO public.noted
            SELECT %L, ''NEW TABLE'', array_agg(%I) FROM fresh', TG_TABLE_NAME, TG_ARGV[0]);
        RETURN NULL;
    END $$;";

async fn note(session: &Session, table: &str, id: &str) -> Result<()> {
    for (at, level) in
        [("BEFORE", "ROW"), ("AFTER", "ROW"), ("BEFORE", "STATEMENT"), ("AFTER", "STATEMENT")]
    {
        let trigger = format!(
            "CREATE TRIGGER note_{at}_{level} {at} INSERT OR DELETE ON queen_mq.{table}
             FOR EACH {level} EXECUTE FUNCTION note('{id}')"
        );
        session.run(&trigger).await?;
    }
    let trigger = format!(
        "CREATE TRIGGER note_all AFTER INSERT ON queen_mq.{table}
         REFERENCING NEW TABLE AS fresh FOR EACH STATEMENT EXECUTE FUNCTION note_all('{id}')"
    );
    Ok(session.run(&trigger).await?)
}

#[tokio::test(flavor = "multi_thread")]
async fn triggers_fire_once_for_each_row_with_what_is_written() -> Result<()> {
    let db = TestDb::fresh().await?;
    let session = db.session().await?;
    session.run(NOTE).await?;
    session.run("SELECT queen_configure('u', ordering => 'none')").await?;
    let tables = [
        ("segment", "id"),
        ("cursor", "id"),
        ("claim", "message_id"),
        ("progress", "revision"),
        ("receipt", "cursor_id"),
    ];
    for (table, id) in tables {
        note(&session, table, id).await?;
    }
    for queue in ["q", "u"] {
        PushBatch::numbers(queue, 1..=3).run(&session).await?;
        let held = Pop::new(queue).group("g").mode("all").batch(10).run(&session).await?;
        assert_eq!(numbers(&held), [1, 2, 3]);
        Ack::all(held[0].lease()?).run(&session).await?;
    }
    // The claims are folded, and their receipts are put into a row of their own.
    session.run("SELECT queen_sweep()").await?;
    for (table, id) in tables {
        // The rows that were inserted, as each trigger saw them: BEFORE ROW, AFTER ROW, the
        // transition table, and per statement.
        for at in ["BEFORE INSERT ROW", "AFTER INSERT ROW", "NEW TABLE"] {
            let differ = format!(
                "SELECT count(*) FROM (
                     SELECT unnest(ids) FROM noted WHERE tab = '{table}' AND at = '{at}'
                     EXCEPT ALL SELECT unnest(ids) FROM noted
                         WHERE tab = '{table}' AND at = 'BEFORE INSERT ROW') x"
            );
            assert_eq!(session.count(&differ).await?, 0, "{table} {at}");
        }
        let count =
            |at: &str| format!("SELECT count(*) FROM noted WHERE tab = '{table}' AND at = '{at}'");
        let rows = session.count(&count("BEFORE INSERT ROW")).await?;
        let stored = session.count(&format!("SELECT count({id}) FROM queen_mq.{table}")).await?;
        let deleted = session.count(&count("AFTER DELETE ROW")).await?;
        ensure!(rows > 0, "{table} was not written");
        assert_eq!(rows - deleted, stored, "{table}");
        for at in ["AFTER INSERT ROW", "BEFORE INSERT STATEMENT", "AFTER INSERT STATEMENT"] {
            assert_eq!(session.count(&count(at)).await?, rows, "{table} {at}");
        }
    }
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn a_trigger_may_push_itself() -> Result<()> {
    let db = TestDb::fresh().await?;
    let session = db.session().await?;
    session
        .run(
            "CREATE FUNCTION alert() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN
                 IF NEW.partition <> 'alert' THEN
                     PERFORM public.queen_push('alerts', '1', partition => 'alert');
                 END IF;
                 RETURN NEW;
             END $$;
             CREATE TRIGGER before BEFORE INSERT ON queen_mq.segment
                 FOR EACH ROW EXECUTE FUNCTION alert();
             CREATE TRIGGER after AFTER INSERT ON queen_mq.segment
                 FOR EACH ROW EXECUTE FUNCTION alert()",
        )
        .await?;
    Push::new("q", n(1)).run(&session).await?;
    let alerts = "SELECT count(*) FROM queen_messages WHERE queue = 'alerts'";
    assert_eq!(session.count(alerts).await?, 2);
    assert_eq!(session.count("SELECT count(*) FROM queen_messages").await?, 3);
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn a_trigger_that_suppresses_a_row_is_refused() -> Result<()> {
    for Writer { table, first, call } in WRITERS {
        let db = TestDb::fresh().await?;
        let session = db.session().await?;
        session.run(first).await?;
        session
            .run(&format!(
                "CREATE FUNCTION skip() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN
                     RETURN NULL; END $$;
                 CREATE TRIGGER skip BEFORE INSERT OR UPDATE ON queen_mq.{table}
                     FOR EACH ROW EXECUTE FUNCTION skip();
                 SET statement_timeout = '10s'"
            ))
            .await?;
        let before = contents(&session).await?;
        let failed = session.run(&block(call)).await.fails_with("0A000");
        let failed = failed.with_context(|| format!("{table}: {call}"))?;
        ensure!(failed.message().contains(&format!("queen_mq.{table}")), "{failed:?}");
        assert_eq!(contents(&session).await?, before, "{table}: {call}");
    }
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn the_worker_warns_of_what_it_cannot_write_and_goes_on() -> Result<()> {
    let settings = "queen_mq.databases = ''\nqueen_mq.sweep_interval = '200ms'";
    let cluster = Cluster::start_with(settings)?;
    let db = TestDb::create(&cluster.config()).await?;
    let session = db.session().await?;
    let began = started(&session).await?;
    Push::new("q", n(1)).run(&session).await?;
    let pop = Pop::new("q").group("g").mode("all").lease("1 s");
    assert_eq!(pop.run(&session).await?.len(), 1);
    session.run("ALTER TABLE queen_mq.progress ADD CONSTRAINT no CHECK (false) NOT VALID").await?;
    eventually("warning of the worker", Duration::from_secs(20), async || {
        let is_told = |line: &str| line.contains("WARNING") && line.contains("check constraint");
        Ok(cluster.logged()?.lines().any(is_told).then_some(()))
    })
    .await?;
    // The worker does its other work meanwhile.
    session.run("SELECT queen_kv_put('n', 'k', '1', ttl => '1 ms')").await?;
    eventually("sweep of markers", Duration::from_secs(20), async || {
        let count = session.count("SELECT count(*) FROM queen_mq.marker").await?;
        Ok((count == 0).then_some(()))
    })
    .await?;
    session.run("ALTER TABLE queen_mq.progress DROP CONSTRAINT no").await?;
    eventually("redelivery", Duration::from_secs(20), async || {
        Ok((pop.run(&session).await?.len() == 1).then_some(()))
    })
    .await?;
    assert_eq!(started(&session).await?, began);
    let leaks = |line: &&str| line.contains("leak") || line.contains("was terminated by signal");
    assert_eq!(cluster.logged()?.lines().filter(leaks).count(), 0);
    Ok(())
}
