//! Unusual databases: other encodings, standbys, defaults that forbid writes, and a library of
//! another version than the SQL. Each call works or gets a plain error.

use std::time::Duration;

use anyhow::{Context, Result, ensure};
use queen_tests::cluster::Cluster;
use queen_tests::containment::{CALLS, SETTINGS, Stage, statement};
use queen_tests::{Fails, Session, TestDb, eventually};

const SOON: Duration = Duration::from_secs(20);
/// A background worker in every database, with a short interval.
const SERVE_ALL: &str = "queen_mq.databases = ''\nqueen_mq.sweep_interval = '100ms'";

#[tokio::test(flavor = "multi_thread")]
async fn an_encoding_other_than_utf8_is_refused() -> Result<()> {
    let cluster = Cluster::start_with(SETTINGS)?;
    let maintenance = Session::open(&cluster.config()).await?;
    for encoding in ["LATIN1", "SQL_ASCII", "EUC_JP"] {
        let name = format!("in_{}", encoding.to_lowercase());
        maintenance
            .run(&format!(
                "CREATE DATABASE {name} ENCODING '{encoding}' LOCALE 'C' TEMPLATE template0"
            ))
            .await?;
        let mut config = cluster.config();
        let session = Session::open(config.dbname(&name)).await?;
        let refused = session.run("CREATE EXTENSION queen_mq").await;
        let refused = refused.fails_with("0A000").context(encoding)?;
        let text = format!("{refused:?}");
        ensure!(text.contains("UTF8") && text.contains(encoding), "no reason: {text}");
        assert_eq!(
            session.count("SELECT count(*) FROM pg_extension WHERE extname = 'queen_mq'").await?,
            0
        );
        assert_eq!(
            session.count("SELECT count(*) FROM pg_namespace WHERE nspname = 'queen_mq'").await?,
            0
        );
        // In such a database a function of the library is refused, too.
        session
            .run(
                "CREATE FUNCTION items(items jsonb) RETURNS TABLE (ordinal int, message_id bigint, \
                 transaction_id text, status text) LANGUAGE c AS 'queen_mq', \
                     'queen_push_items_wrapper'",
            )
            .await?;
        let call = r#"SELECT * FROM items('[{"queue": "q", "payload": 1}]')"#;
        session.run(call).await.fails_with("0A000").context(encoding)?;
    }
    let log = cluster.logged()?;
    ensure!(!log.contains("WARNING:") && !log.contains("terminated by signal"), "{log}");
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn a_hot_standby_reads_and_refuses_at_once_to_write() -> Result<()> {
    let stage =
        Stage::set_up(Cluster::start_with(&format!("{SETTINGS}\nwal_level = logical"))?).await?;
    let ready = stage.prepare().await?;
    let standby = stage.cluster.standby()?;
    let mut config = standby.config();
    config.dbname(stage.db.name());
    let prepared = stage.admin.query_one("SELECT pg_current_wal_lsn()::text", &[]).await?;
    let prepared: String = prepared.get(0);
    let mut wrong = Vec::new();
    // A superuser, and a role that has only rights on the functions.
    for role in ["app", "postgres"] {
        config.user(role);
        let mut there = Session::open(&config).await?;
        let replayed = format!("SELECT (pg_last_wal_replay_lsn() >= '{prepared}')::int::bigint");
        eventually("replay", SOON, async || Ok((there.count(&replayed).await? == 1).then_some(())))
            .await?;
        there.run("SET statement_timeout = '2s'").await?;
        for call in CALLS {
            let done = there.run(&statement(&ready.fill(call.sql))).await;
            let judged = match call.writes {
                true => done.fails_with("25006").map(drop),
                false => done.map_err(Into::into),
            };
            if let Err(error) = judged {
                wrong.push(format!("{} by {role}: {error:#}", call.name));
                there = Session::open(&config).await.context(call.name)?;
                there.run("SET statement_timeout = '2s'").await?;
            }
        }
        let start = there.run("SELECT queen_worker_start()").await.fails_with("25006");
        if let Err(error) = start {
            wrong.push(format!("queen_worker_start by {role}: {error:#}"));
        }
        there.run("SELECT 1").await?;
    }
    ensure!(wrong.is_empty(), "{} cases went wrong:\n{}", wrong.len(), wrong.join("\n"));
    let log = standby.logged()?;
    ensure!(!log.contains("WARNING:") && !log.contains("terminated by signal"), "{log}");
    Ok(())
}

/// Settings that a database can give to every new session.
const ODD: [&str; 10] = [
    "default_transaction_read_only = on",
    "default_transaction_isolation = 'serializable'",
    "default_transaction_deferrable = on",
    "statement_timeout = '1ms'",
    "idle_in_transaction_session_timeout = '1ms'",
    "row_security = off",
    "search_path = 'nowhere'",
    "session_replication_role = 'replica'",
    "role = 'plain_role'",
    "enable_indexscan = off",
];

#[tokio::test(flavor = "multi_thread")]
async fn the_worker_works_beside_any_default_of_its_database() -> Result<()> {
    let cluster = Cluster::start_with(&format!("{SETTINGS}\n{SERVE_ALL}"))?;
    let db = TestDb::create(&cluster.config()).await?;
    let [session, admin] = db.sessions().await?;
    admin.run("CREATE ROLE plain_role").await?;
    for (number, odd) in ODD.iter().enumerate() {
        admin.run(&format!("ALTER DATABASE {} SET {odd}", db.name())).await?;
        // End the worker: the next one starts with the setting.
        admin
            .run(
                "SELECT pg_terminate_backend(pid, 5000) FROM pg_stat_activity
                 WHERE backend_type = 'queen_mq worker'",
            )
            .await?;
        let queue = format!("timed {number}");
        session
            .run(&format!(
                "SELECT queen_schedule('{queue}', 'k', '1', delay => '100 ms');
                 SELECT queen_kv_put('w', '{number}', '1', ttl => '50 ms');
                 SELECT queen_configure('{queue} old', retention => '100 ms');
                 SELECT queen_push('{queue} old', '1')"
            ))
            .await?;
        let done = format!(
            "SELECT (SELECT count(*) FROM queen_messages WHERE queue = '{queue}')
                - (SELECT count(*) FROM queen_mq.marker WHERE ns = 'w')
                - (SELECT count(*) FROM queen_messages WHERE queue = '{queue} old')"
        );
        eventually("the worker's work", SOON, async || {
            Ok((session.count(&done).await? == 1).then_some(()))
        })
        .await
        .with_context(|| format!("{odd}: {}", cluster.logged().unwrap_or_default()))?;
        admin.run(&format!("ALTER DATABASE {} RESET ALL", db.name())).await?;
    }
    let log = cluster.logged()?;
    ensure!(!log.contains("WARNING:") && !log.contains("ERROR:"), "{log}");
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn a_worker_that_is_ended_in_its_sleep_leaves_its_place_to_the_next() -> Result<()> {
    let rarely = "queen_mq.databases = ''\nqueen_mq.sweep_interval = '10s'";
    let cluster = Cluster::start_with(&format!("{SETTINGS}\n{rarely}"))?;
    let db = TestDb::create(&cluster.config()).await?;
    let session = db.session().await?;
    let worker = "SELECT coalesce(max(pid), 0)::bigint FROM pg_stat_activity
        WHERE state IS DISTINCT FROM 'active'
                  AND backend_type = 'queen_mq worker' AND datname = current_database()";
    let mut last = 0;
    for round in 0..4 {
        session
            .run(&format!("SELECT queen_schedule('q', '{round}', '1', delay => '1 ms')"))
            .await?;
        let moved = format!("SELECT (count(*) = {round} + 1)::int::bigint FROM queen_messages");
        last = eventually("a message, and a worker at rest", SOON, async || {
            let pid = session.count(worker).await?;
            let is_new = pid != 0 && pid != last;
            Ok((is_new && session.count(&moved).await? == 1).then_some(pid))
        })
        .await
        .with_context(|| format!("round {round}: {}", cluster.logged().unwrap_or_default()))?;
        session.run(&format!("SELECT pg_terminate_backend({last}, 5000)")).await?;
    }
    let log = cluster.logged()?;
    ensure!(!log.contains("WARNING:") && !log.contains("ERROR:"), "{log}");
    Ok(())
}

/// For every C function of the extension, declarations with fewer, more or other arguments and
/// results, as another version of the SQL may have them.
const IMPOSTORS: &str = r"
DO $do$
DECLARE f record; body text; result text; args text; i int := 0;
BEGIN
    CREATE TABLE impostors (name text, shown text, passed text);
    FOR f IN
        SELECT p.oid, p.proname, p.prosrc, p.pronargs, p.prokind,
            pg_get_function_result(p.oid) AS result, ARRAY(SELECT format_type(t, NULL)
                FROM unnest(p.proargtypes) WITH ORDINALITY AS a(t, n) ORDER BY n) AS args
        FROM pg_proc p JOIN pg_depend d ON d.classid = 'pg_proc'::regclass AND d.objid = p.oid
            AND d.deptype = 'e'
        JOIN pg_extension e ON e.oid = d.refobjid AND e.extname = 'queen_mq'
        JOIN pg_language l ON l.oid = p.prolang AND l.lanname = 'c' WHERE p.prokind = 'f'
    LOOP
        FOR args, result IN
            -- one less, none, one more, another first and last type, another result
            SELECT array_to_string(f.args[:f.pronargs - 1], ','), f.result WHERE f.pronargs > 0
            UNION SELECT '', f.result WHERE f.pronargs > 0
            UNION SELECT array_to_string(f.args || 'int8'::text, ','), f.result
            UNION SELECT array_to_string('int2'::text || f.args[2:], ','), f.result
                WHERE f.pronargs > 0
            UNION SELECT array_to_string(f.args[:f.pronargs - 1] || 'int2'::text, ','), f.result
                WHERE f.pronargs > 0
            UNION SELECT array_to_string(f.args, ','),
                CASE WHEN f.result LIKE 'TABLE(%' THEN regexp_replace(f.result, '\)$',
                    ', one_more text)') ELSE 'uuid[]' END
            UNION SELECT array_to_string(f.args, ','), 'TABLE(a smallint, b uuid)'
            UNION SELECT array_to_string(f.args, ','), regexp_replace(f.result,
                '^(.*[(,] ?\S+) [^,]*\)$', '\1 smallint)')
                WHERE f.result LIKE 'TABLE(%'
            UNION SELECT array_to_string(f.args, ','), 'SETOF record'
        LOOP
            i := i + 1;
            EXECUTE format('CREATE FUNCTION impostor_%s(%s) RETURNS %s LANGUAGE c AS %L, %L', i,
                args, result, 'queen_mq', f.prosrc);
            INSERT INTO impostors VALUES (format('impostor_%s', i), format('%s(%s) %s', f.prosrc,
                args, result), (SELECT string_agg('NULL', ',')
                    FROM unnest(string_to_array(args, ','))));
        END LOOP;
    END LOOP;
END
$do$;";

#[tokio::test(flavor = "multi_thread")]
async fn a_function_that_was_declared_for_another_library_is_refused_plainly() -> Result<()> {
    let cluster = Cluster::start_with(SETTINGS)?;
    let db = TestDb::create(&cluster.config()).await?;
    let session = db.session().await?;
    session.run(IMPOSTORS).await?;
    let rows = session.rows("SELECT name, shown, coalesce(passed, '') FROM impostors", &[]).await?;
    ensure!(rows.len() > 200, "{} impostors", rows.len());
    let mut wrong = Vec::new();
    for row in rows {
        let (name, shown, passed): (String, String, String) = (row.get(0), row.get(1), row.get(2));
        let as_columns = if shown.ends_with("SETOF record") { " AS t(a text)" } else { "" };
        let done = session.run(&format!("SELECT * FROM {name}({passed}){as_columns}")).await;
        match done.fails_with("55000") {
            Ok(raised) => {
                let hint = raised.hint().unwrap_or_default();
                if !hint.contains("ALTER EXTENSION queen_mq UPDATE") {
                    wrong.push(format!("{shown}: the hint is {hint:?}"));
                }
            }
            Err(error) => wrong.push(format!("{shown}: {error:#}")),
        }
        session.run("SELECT 1").await.with_context(|| format!("the server is gone: {shown}"))?;
    }
    ensure!(wrong.is_empty(), "{} went wrong:\n{}", wrong.len(), wrong.join("\n"));
    session.run("SELECT queen_push('q', '1')").await?;
    Ok(())
}
