//! Leases commit without waiting for the disk, and everything else waits as the session says. Each
//! test has a server of its own, on which nothing else flushes log records.

use std::slice;
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use queen_tests::cluster::Cluster;
use queen_tests::{
    Ack, Fails, Message, Pop, Push, Session, TestDb, complete, counts, eventually, n, sorted,
};
use tokio_postgres::SimpleQueryMessage;

/// The log is written by commits alone: the WAL writer looks every ten seconds.
const QUIET: &str = "
wal_writer_delay = 10s
wal_writer_flush_after = 1GB
autovacuum = off
bgwriter_lru_maxpages = 0
checkpoint_timeout = 1h
";

/// A queue with the messages 1 to `partitions`, each in its own partition, and a group for them.
async fn server(partitions: i32) -> Result<(Cluster, TestDb, Session)> {
    let cluster = Cluster::start_with(QUIET)?;
    let db = TestDb::create(&cluster.config()).await?;
    let session = db.session().await?;
    session.run("CREATE TABLE paid (message int); SELECT queen_subscribe('q', 'g', 'all')").await?;
    // A group's first pop learns what there is, and writes that down.
    Push::new("q", n(0)).run(&session).await?;
    complete(&session, &[pop().one(&session).await?]).await?;
    let push = "SELECT queen_push('q', jsonb_build_object('n', i), partition => 'p' || i) \
                FROM generate_series(1, $1) AS i";
    session.query(push, &[&partitions]).await?;
    Ok((cluster, db, session))
}

fn pop() -> Pop {
    Pop::new("q").group("g")
}

const POP: &str = "SELECT queen_pop('q', 'g');";
const PAY: &str = "INSERT INTO paid VALUES (1);";

/// Run `work`, which commits. Whether its log records are on disk then.
async fn is_flushed<T>(session: &Session, work: impl Future<Output = T>) -> Result<(bool, T)> {
    let before = session.query_one("SELECT pg_current_wal_insert_lsn()::text", &[]).await?;
    let value = work.await;
    let sql = "SELECT pg_current_wal_flush_lsn() > $1::text::pg_lsn,
                      pg_current_wal_insert_lsn() > $1::text::pg_lsn";
    let row = session.query_one(sql, &[&before.get::<_, String>(0)]).await?;
    ensure!(row.get::<_, bool>(1), "nothing was written");
    Ok((row.get(0), value))
}

async fn flushes(session: &Session, sql: &str) -> Result<bool> {
    let (is_flushed, ran) = is_flushed(session, session.run(sql)).await?;
    ran?;
    Ok(is_flushed)
}

/// Check that the commit in `sql` waits for the disk.
async fn waits(session: &Session, sql: &str) -> Result<()> {
    ensure!(flushes(session, sql).await?, "did not wait: {sql}");
    Ok(())
}

/// Check that the commit in `sql` waits for no disk. It is tried a few times, since the WAL writer
/// may look just then, and a page may be pruned.
async fn waits_not(session: &Session, sql: &str) -> Result<()> {
    for _ in 0..4 {
        if !flushes(session, sql).await? {
            return Ok(());
        }
    }
    bail!("waited each time: {sql}")
}

/// Pop until the disk knows nothing of a pop, complete the others, and crash at once. Returns the
/// message of the lost lease, and those that were completed.
async fn crash_after_a_pop(cluster: &Cluster, session: Session) -> Result<(Message, Vec<Message>)> {
    let mut completed = Vec::new();
    while completed.len() < 4 {
        let (is_flushed, popped) = is_flushed(&session, pop().one(&session)).await?;
        if !is_flushed {
            cluster.kill()?;
            return Ok((popped?, completed));
        }
        completed.push(popped?);
        complete(&session, &completed[completed.len() - 1..]).await?;
    }
    bail!("each pop was flushed")
}

#[tokio::test(flavor = "multi_thread")]
async fn most_pops_wait_for_no_disk_and_each_does_with_durable_leases() -> Result<()> {
    let (_cluster, _db, session) = server(150).await?;
    let mut flushed = 0;
    for _ in 0..50 {
        flushed += i32::from(flushes(&session, POP).await?);
    }
    println!("{flushed} of 50 pops were flushed");
    ensure!(flushed <= 10, "{flushed} of 50 pops were flushed");
    session.run("SET queen_mq.durable_lease = on").await.fails_with("42602")?;
    session.run("SET queen_mq.durable_leases = on").await?;
    for _ in 0..50 {
        waits(&session, POP).await?;
    }
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn leases_wait_for_no_disk_however_they_are_written() -> Result<()> {
    let (_cluster, _db, session) = server(100).await?;
    session.run("CREATE TEMP TABLE noted (message int)").await?;
    // A column that was added and dropped leaves a trace in the table, which runs no code.
    for table in ["progress", "cursor", "claim", "lease_set"] {
        let table = format!("ALTER TABLE queen_mq.{table}");
        session.run(&format!("{table} ADD COLUMN c int DEFAULT 7; {table} DROP COLUMN c")).await?;
    }
    session
        .run(
            "SELECT queen_configure('mails', ordering => 'none');
             SELECT queen_subscribe('mails', 'g', 'all');
             SELECT queen_push('mails', to_jsonb(i)) FROM generate_series(1, 100) AS i;
             SELECT queen_ack(lease_id) FROM queen_pop('mails', 'g')",
        )
        .await?;
    for sql in [
        POP,
        &format!("BEGIN; {POP} {POP} COMMIT"),
        &format!("BEGIN; SAVEPOINT s; {POP} RELEASE s; SELECT count(*) FROM paid; COMMIT"),
        &format!("BEGIN ISOLATION LEVEL REPEATABLE READ; {POP} COMMIT"),
        &format!("BEGIN; INSERT INTO noted VALUES (1); {POP} COMMIT"),
        &format!("BEGIN; SET LOCAL synchronous_commit = remote_apply; {POP} COMMIT"),
        "DO $$ BEGIN PERFORM queen_pop('q', 'g'); PERFORM queen_pop('q', 'g'); END $$",
        "DO $$ BEGIN PERFORM queen_pop('q', 'g'); COMMIT; PERFORM queen_pop('q', 'g'); END $$",
        "SELECT queen_pop('q', 'g', wait => '1 s')",
        "SELECT queen_pop('q', 'g', batch => 3, partitions => 3)",
        "SELECT queen_extend(lease_id) FROM queen_leases WHERE queue = 'q' LIMIT 1",
        // Twice among so many, superseded states are deleted.
        "SELECT queen_extend(lease_id) FROM generate_series(1, 128), LATERAL (
             SELECT lease_id FROM queen_leases WHERE queue = 'q' LIMIT 1) AS held",
        "SELECT queen_pop('mails', 'g')",
        "SELECT queen_pop('mails', 'g', batch => 3)",
    ] {
        waits_not(&session, sql).await?;
    }
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn what_else_is_written_waits() -> Result<()> {
    let (_cluster, _db, session) = server(100).await?;
    session
        .run(
            "CREATE SEQUENCE invoice;
             CREATE TEMP TABLE noted (message int);
             CREATE FUNCTION pay() RETURNS trigger LANGUAGE plpgsql AS
                 'BEGIN INSERT INTO public.paid VALUES (1); RETURN NULL; END';
             CREATE CONSTRAINT TRIGGER late AFTER INSERT ON noted DEFERRABLE INITIALLY DEFERRED
                 FOR EACH ROW EXECUTE FUNCTION pay();
             SELECT queen_configure('brief', lease_time => '100 ms', max_deliveries => 1);
             SELECT queen_subscribe('brief', 'g', 'all');
             SELECT queen_push('brief', '1')",
        )
        .await?;
    for sql in [
        &format!("BEGIN; {PAY} {POP} COMMIT"),
        &format!("BEGIN; {POP} {PAY} COMMIT"),
        &format!("BEGIN; {POP} {PAY} {POP} COMMIT"),
        &format!("BEGIN; {POP} SAVEPOINT s; {PAY} ROLLBACK TO s; COMMIT"),
        &format!("BEGIN; {POP} SAVEPOINT s; {PAY} ROLLBACK TO s; {POP} COMMIT"),
        &format!("BEGIN; SAVEPOINT s; {POP} RELEASE s; {PAY} COMMIT"),
        &format!("DO $$ BEGIN PERFORM queen_pop('q', 'g'); {PAY} END $$"),
        &format!("DO $$ BEGIN PERFORM queen_pop('q', 'g'); COMMIT; {PAY} END $$"),
        &format!("BEGIN; {POP} SELECT nextval('invoice'); COMMIT"),
        &format!("BEGIN; {POP} INSERT INTO noted VALUES (1); COMMIT"),
        &format!("BEGIN; {POP} SELECT queen_push('q2', '1'); COMMIT"),
        &format!("BEGIN; SELECT queen_push('q2', '1'); {POP} COMMIT"),
        &format!("BEGIN; {POP} SELECT queen_kv_put('n', 'k', '1', ttl => '1 h'); COMMIT"),
        "SELECT queen_ack(lease_id) FROM queen_pop('q', 'g')",
        // A consumer's loop.
        &format!("BEGIN; SELECT queen_ack(lease_id) FROM queen_leases LIMIT 1; {POP} COMMIT"),
        "SELECT queen_ack(lease_id, status => 'retry') FROM queen_pop('q', 'g')",
        "SELECT queen_pop('q', 'g', auto_ack => true)",
        "SELECT queen_pop('q', 'newcomer', subscription_mode => 'all')",
        &format!("BEGIN; SET LOCAL queen_mq.durable_leases = on; {POP} COMMIT"),
        &format!("BEGIN; {POP} SET LOCAL queen_mq.durable_leases = on; COMMIT"),
        "SELECT queen_schedule('q', 'k', '1', delay => '0 s')",
        "SELECT queen_pop('q', 'g', partition => 'Default')",
    ] {
        waits(&session, sql).await?;
    }
    session.run("SELECT queen_pop('brief', 'g'); SELECT pg_sleep(0.15)").await?;
    waits(&session, "SELECT queen_pop('brief', 'g')").await?;
    assert_eq!(session.count("SELECT count(*) FROM queen_dead_letters").await?, 1);
    session
        .run("CREATE TRIGGER audit AFTER INSERT ON queen_mq.progress EXECUTE FUNCTION pay()")
        .await?;
    waits(&session, POP).await
}

#[tokio::test(flavor = "multi_thread")]
async fn a_lease_that_a_crash_took_is_refused_and_its_message_comes_again() -> Result<()> {
    let (cluster, db, session) = server(20).await?;
    let done = pop().one(&session).await?;
    complete(&session, slice::from_ref(&done)).await?;
    Push::new("q", n(21)).partition("last").run(&session).await?;
    let (lost, completed) = crash_after_a_pop(&cluster, session).await?;

    let session = db.session().await?;
    Ack::all(lost.lease()?).run(&session).await.fails_with("QN003")?;
    let extended = session.query("SELECT queen_extend($1)", &[&lost.lease()?]).await;
    extended.fails_with("QN003")?;
    let came = pop().batch(100).partitions(100).run(&session).await?;
    let again = came.iter().find(|message| message.message_id == lost.message_id);
    assert_eq!(again.map(|message| message.delivery_attempt), Some(1));
    complete(&session, &came).await?;
    let all = [&came[..], &completed, slice::from_ref(&done)].concat();
    assert_eq!(sorted(&all), (1..=21).collect::<Vec<i64>>());
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn an_ack_outlives_a_crash_and_so_does_its_pop() -> Result<()> {
    let (cluster, db, session) = server(5).await?;
    let held = pop().one(&session).await?;
    let (is_flushed, acked) = is_flushed(&session, Ack::all(held.lease()?).run(&session)).await?;
    acked?;
    ensure!(is_flushed, "an ack must be on disk");
    cluster.kill()?;
    let session = db.session().await?;
    assert_eq!(Ack::all(held.lease()?).run(&session).await?, counts(0, 1, true));
    let left = pop().batch(100).partitions(100).run(&session).await?;
    assert_eq!(left.len(), 4);
    ensure!(
        left.iter().all(|message| message.message_id != held.message_id),
        "{held:?} came again"
    );
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn a_prepared_pop_is_on_disk() -> Result<()> {
    let (cluster, db, session) = server(10).await?;
    session.run("BEGIN").await?;
    let held = pop().one(&session).await?;
    waits(&session, "PREPARE TRANSACTION 'popped'").await?;
    // A transaction after it is not taken for its continuation.
    waits_not(&session, POP).await?;
    drop(session);
    cluster.kill()?;
    let session = db.session().await?;
    waits(&session, "COMMIT PREPARED 'popped'").await?;
    complete(&session, &[held]).await?;
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn a_pop_waits_for_no_standby_and_an_ack_does() -> Result<()> {
    let (_cluster, db, session) = server(20).await?;
    let [admin, watcher] = db.sessions().await?;
    wait_for_standby(&admin, "nobody_there").await?;
    let tried = pop_and_ack(&session, &watcher).await;
    // Dropping the database would wait, too.
    wait_for_standby(&admin, "").await?;
    tried
}

async fn pop_and_ack(session: &Session, watcher: &Session) -> Result<()> {
    session.be_prompt().await?;
    let held = pop().one(session).await?;
    for _ in 0..5 {
        session.run(POP).await?;
    }
    let ack = Ack::all(held.lease()?);
    let (settled, freed) = tokio::join!(ack.run(session), free(watcher, session));
    freed?;
    settled?;
    session.run("SET queen_mq.durable_leases = on").await?;
    let (popped, freed) = tokio::join!(session.run(POP), free(watcher, session));
    freed?;
    Ok(popped?)
}

/// The first push is there, but the standby may not have it: its client got no answer. An answer to
/// the second one says that the standby has both.
#[tokio::test(flavor = "multi_thread")]
async fn a_push_that_is_repeated_waits_for_the_standby_as_the_first_one_did() -> Result<()> {
    let (_cluster, db, session) = server(1).await?;
    let [admin, watcher] = db.sessions().await?;
    wait_for_standby(&admin, "nobody_there").await?;
    let push = Push::new("q", n(2)).id("again");
    for status in ["queued", "duplicate"] {
        let (pushed, freed) = tokio::join!(push.run(&session), free(&watcher, &session));
        freed?;
        assert_eq!(pushed?.status, status);
    }
    wait_for_standby(&admin, "").await
}

async fn wait_for_standby(admin: &Session, name: &str) -> Result<()> {
    admin.run(&format!("ALTER SYSTEM SET synchronous_standby_names = '{name}'")).await?;
    admin.run("SELECT pg_reload_conf()").await?;
    eventually("reload", Duration::from_secs(10), async || {
        let row = admin.query_one("SHOW synchronous_standby_names", &[]).await?;
        Ok((row.get::<_, String>(0) == name).then_some(()))
    })
    .await
}

/// Wait until the session waits for a standby, and end that wait.
async fn free(watcher: &Session, session: &Session) -> Result<()> {
    let sql = "SELECT count(pg_cancel_backend(pid)) FROM pg_stat_activity \
               WHERE pid = $1 AND wait_event = 'SyncRep'";
    eventually("wait for a standby", Duration::from_secs(10), async || {
        let freed: i64 = watcher.query_one(sql, &[&session.pid()]).await?.get(0);
        Ok((freed == 1).then_some(()))
    })
    .await
}

/// By the simple protocol: to prepare a statement is a transaction of its own, whose end would put
/// things right before SHOW looks.
async fn synchronous_commit(session: &Session) -> Result<String> {
    let shown = session.simple_query("SHOW synchronous_commit").await?;
    let value = shown.iter().find_map(|message| match message {
        SimpleQueryMessage::Row(row) => row.get(0).map(str::to_owned),
        _ => None,
    });
    value.context("no row")
}

#[tokio::test(flavor = "multi_thread")]
async fn the_session_keeps_its_synchronous_commit() -> Result<()> {
    let (_cluster, _db, session) = server(50).await?;
    assert_eq!(synchronous_commit(&session).await?, "on");
    waits_not(&session, POP).await?;
    assert_eq!(synchronous_commit(&session).await?, "on");
    waits(&session, PAY).await?;

    session.run("SET synchronous_commit = local").await?;
    waits_not(&session, POP).await?;
    waits_not(
        &session,
        &format!("BEGIN; SET LOCAL synchronous_commit = remote_write; {POP} COMMIT"),
    )
    .await?;
    assert_eq!(synchronous_commit(&session).await?, "local");
    session.run("RESET synchronous_commit").await?;
    assert_eq!(synchronous_commit(&session).await?, "on");
    waits(&session, PAY).await?;

    let deferred = "CREATE TEMP TABLE noted (message int UNIQUE DEFERRABLE INITIALLY DEFERRED)";
    session.run(deferred).await?;
    let sql = format!("BEGIN; {POP} INSERT INTO noted VALUES (1), (1); COMMIT");
    session.run(&sql).await.fails_with("23505")?;
    assert_eq!(synchronous_commit(&session).await?, "on");
    waits(&session, PAY).await
}

/// Deferred constraints are checked before a commit is made not to wait, conflicts of serializable
/// transactions after that.
#[tokio::test(flavor = "multi_thread")]
async fn a_late_failure_of_a_commit_leaves_synchronous_commit_alone() -> Result<()> {
    let (_cluster, db, session) = server(5).await?;
    let [reader, writer] = db.sessions().await?;
    waits_not(&session, POP).await?;
    for session in [&reader, &session, &writer] {
        session.run("BEGIN ISOLATION LEVEL SERIALIZABLE").await?;
    }
    session.run("SELECT count(*) FROM paid").await?;
    reader.run(&format!("SELECT count(*) FROM queen_mq.progress; {PAY}")).await?;
    session.run(POP).await?;
    writer.run(PAY).await?;
    writer.run("COMMIT").await?;
    session.run("COMMIT").await.fails_with("40001")?;
    assert_eq!(synchronous_commit(&session).await?, "on");
    waits(&session, PAY).await
}
