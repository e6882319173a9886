//! A worker that finds nothing to do costs nothing, and comes in time for what is due.

use std::time::{Duration, Instant};

use anyhow::{Result, ensure};
use queen_tests::cluster::Cluster;
use queen_tests::{Ack, Pop, Push, Session, TestDb, complete, eventually, n};

const SOON: Duration = Duration::from_secs(60);
/// Nothing but the worker writes WAL in such a server.
const QUIET: &str = "queen_mq.databases = ''\nautovacuum = off\ncheckpoint_timeout = '1h'\n\
                     wal_level = minimal\nmax_wal_senders = 0";

/// What a server has used up so far.
#[derive(Clone, Copy, Debug)]
struct Used {
    xids: i64,
    wal: i64,
    transactions: i64,
}

/// What the database `name` has used up; `outside` is a session in another one.
async fn used(outside: &Session, name: &str) -> Result<Used> {
    let sql = "SELECT pg_snapshot_xmax(pg_current_snapshot())::text::bigint,
                      (pg_current_wal_insert_lsn() - '0/0')::bigint,
                      xact_commit + xact_rollback
               FROM pg_stat_database WHERE datname = $1";
    let row = outside.row(sql, &[&name]).await?;
    Ok(Used { xids: row.get(0), wal: row.get(1), transactions: row.get(2) })
}

/// The worker is there and has come to rest: in ten seconds it takes no transaction id, writes
/// nothing, and has few transactions.
async fn comes_to_rest(cluster: &Cluster, session: &Session) -> Result<()> {
    // A session that is idle tells its transactions to the statistics seconds later.
    session.run("SELECT pg_stat_force_next_flush()").await?;
    let name: String = session.row("SELECT current_database()::text", &[]).await?.get(0);
    let outside = Session::open(&cluster.config()).await?;
    let workers = "SELECT count(*) FROM pg_stat_activity
                   WHERE backend_type = 'queen_mq worker' AND datname = current_database()";
    let there = async || Ok((session.count(workers).await? == 1).then_some(()));
    eventually("worker", SOON, there).await?;
    // Where it has looked for long, it comes back up to half a minute later.
    eventually("rest", 3 * SOON, async || {
        let before = used(&outside, &name).await?;
        tokio::time::sleep(Duration::from_secs(10)).await;
        let after = used(&outside, &name).await?;
        let transactions = after.transactions - before.transactions;
        let rests = after.xids == before.xids && after.wal == before.wal && transactions <= 20;
        Ok(rests.then_some(()))
    })
    .await
}

/// Wait until a query counts so many; returns how long that took.
async fn counts(session: &Session, sql: &str, expected: i64) -> Result<Duration> {
    let began = Instant::now();
    let what = format!("{expected} from {sql}");
    eventually(&what, SOON, async || Ok((session.count(sql).await? == expected).then_some(())))
        .await?;
    Ok(began.elapsed())
}

/// A round comes each second, and what is due in it is done in a moment. The rest of this limit is
/// for a machine that is busy; it is shorter than the longest rest of a worker.
fn is_in_time(what: &str, took: Duration, due: Duration) -> Result<()> {
    ensure!(took < due + Duration::from_secs(15), "{what}: {took:?}, due after {due:?}");
    Ok(())
}

const SECOND: Duration = Duration::from_secs(1);
const MESSAGES: &str = "SELECT count(*) FROM queen_messages WHERE queue = 'q'";

#[tokio::test(flavor = "multi_thread")]
async fn an_idle_database_takes_no_transaction_id_and_what_is_due_comes_in_time() -> Result<()> {
    let cluster = Cluster::start_with(QUIET)?;
    let db = TestDb::create(&cluster.config()).await?;
    let session = db.session().await?;
    for queue in 0..200 {
        let queue = format!("q{queue}");
        Push::new(&queue, n(1)).id("a").run(&session).await?;
        let timer = format!("SELECT queen_schedule('{queue}', 'k', '2', delay => '1 day')");
        session.run(&timer).await?;
        let pop = Pop::new(&queue).group("g").mode("all");
        complete(&session, &pop.run(&session).await?).await?;
        Push::new(&queue, n(3)).run(&session).await?;
        pop.lease("1 hour").run(&session).await?;
    }
    session.run("SELECT queen_configure('none', ordering => 'none')").await?;
    Push::new("none", n(1)).run(&session).await?;
    Pop::new("none").group("g").mode("all").auto_ack().run(&session).await?;
    session.run("SELECT queen_kv_put('ns', 'key', '1', ttl => '1 hour')").await?;
    comes_to_rest(&cluster, &session).await?;

    // Messages that are over, settled or not.
    session.run("SELECT queen_configure('q', retention => '2 s', dedup_window => '2 s')").await?;
    session.run("SELECT queen_subscribe('q', 'g', 'all')").await?;
    Push::new("q", n(1)).id("x").run(&session).await?;
    let took = counts(&session, MESSAGES, 0).await?;
    is_in_time("retention", took, 2 * SECOND)?;
    let admissions = "SELECT count(*) FROM queen_mq.admission a
                      JOIN queen_mq.queue q ON q.id = a.queue_id WHERE q.name = 'q'";
    is_in_time("dedup_window", counts(&session, admissions, 0).await?, SECOND)?;
    session
        .run(
            "SELECT queen_configure('q', completed_retention => '2 s',
                unset => '{retention,dedup_window}')",
        )
        .await?;
    Push::new("q", n(1)).run(&session).await?;
    let pop = Pop::new("q").group("g");
    complete(&session, &pop.run(&session).await?).await?;
    is_in_time("completed_retention", counts(&session, MESSAGES, 0).await?, 2 * SECOND)?;

    // A lease, a timer and a marker.
    Push::new("q", n(2)).run(&session).await?;
    pop.lease("2 s").run(&session).await?;
    let reclaimed = "SELECT count(r.ended_at) FROM queen_mq.progress r JOIN queen_mq.cursor c
                         ON c.id = r.cursor_id JOIN queen_mq.consumer_group g ON g.id = c.group_id
                     WHERE g.queue = 'q'";
    let before = session.count(reclaimed).await?;
    is_in_time("lease", counts(&session, reclaimed, before + 1).await?, 2 * SECOND)?;
    session.run("SELECT queen_schedule('q', 'k', '{\"n\": 3}', delay => '2 s')").await?;
    is_in_time("timer", counts(&session, MESSAGES, 2).await?, 2 * SECOND)?;
    session.run("SELECT queen_kv_put('ns', 'other', '1', ttl => '2 s')").await?;
    let markers = "SELECT count(*) FROM queen_mq.marker";
    is_in_time("marker", counts(&session, markers, 1).await?, 2 * SECOND)?;
    comes_to_rest(&cluster, &session).await
}

#[tokio::test(flavor = "multi_thread")]
async fn an_abandoned_group_takes_no_transaction_id_and_its_end_is_noticed() -> Result<()> {
    let cluster = Cluster::start_with(QUIET)?;
    let db = TestDb::create(&cluster.config()).await?;
    let session = db.session().await?;
    session.run("SELECT queen_configure('q', completed_retention => '1 s')").await?;
    for group in ["gone", "here"] {
        session.run(&format!("SELECT queen_subscribe('q', '{group}', 'all')")).await?;
    }
    for partition in 0..10 {
        let sql = format!(
            "SELECT count(*) FROM generate_series(1, 2000) AS k,
             queen_push('q', to_jsonb(k), partition => 'p{partition}')"
        );
        session.run(&sql).await?;
    }
    comes_to_rest(&cluster, &session).await?;
    // What one group settles is kept for the other.
    let pop = Pop::new("q").group("here").batch(100).partition("p0");
    complete(&session, &pop.run(&session).await?).await?;
    comes_to_rest(&cluster, &session).await?;
    let messages = "SELECT count(*) FROM queen_messages";
    assert_eq!(session.count(messages).await?, 20_000);
    // The group comes back, to the oldest messages of the queue, then goes for good.
    let held = Pop::new("q").group("gone").batch(100).partition("p0").run(&session).await?;
    let left = 20_000 - held.len() as i64;
    Ack::all(held[0].lease()?).run(&session).await?;
    let fewer = "SELECT (count(*) < 20000)::int::bigint FROM queen_mq.segment";
    is_in_time("settlement", counts(&session, fewer, 1).await?, 2 * SECOND)?;
    ensure!(session.count(messages).await? >= left - 100, "too many are gone");
    session.run("SELECT queen_unsubscribe('q', 'gone')").await?;
    let settled = session.count("SELECT pending FROM queen_groups").await?;
    counts(&session, messages, settled).await?;
    comes_to_rest(&cluster, &session).await
}
