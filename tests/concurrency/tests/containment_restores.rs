//! The difference between a restored dump and a copy of the files. A dump has transaction ids of
//! another cluster, and its leases do not hold. A copy goes on as it was.

use std::time::Duration;

use anyhow::{Context, Result, ensure};
use queen_tests::cluster::Cluster;
use queen_tests::{
    Ack, Fails, Message, Pop, Push, PushBatch, Session, TestDb, at_once, complete, drain,
    eventually, n, numbers,
};
use tokio_postgres::error::SqlState;

const SOON: Duration = Duration::from_secs(10);

fn pop() -> Pop {
    Pop::new("q").group("g").mode("all").batch(100).partitions(100)
}

/// Use up transaction ids.
async fn run_ahead(session: &Session) -> Result<()> {
    let sql = "DO $$ BEGIN FOR n IN 1..5000 LOOP PERFORM pg_current_xact_id(); COMMIT; END LOOP; \
               END $$";
    Ok(session.run(sql).await?)
}

/// Messages 1 to 30 in three partitions: 1 to 27 are settled, 28 to 30 are in a live lease. One
/// group has not read yet. Two groups were registered before their queue, and before any message.
async fn live(session: &Session) -> Result<Vec<Message>> {
    session.run("SELECT queen_subscribe('q', 'late', mode => 'new')").await?;
    session.run("SELECT queen_subscribe('not yet', 'g', mode => 'new')").await?;
    for (at, partition) in ["a", "b", "c"].into_iter().enumerate() {
        let numbers = (1..=10).map(|number| n(at as i64 * 10 + number)).collect();
        PushBatch::new("q", numbers).partition(partition).run(session).await?;
    }
    for partition in ["a", "b", "c"] {
        let came = pop().partition(partition).batch(if partition == "c" { 7 } else { 10 });
        complete(session, &came.run(session).await?).await?;
    }
    let held = Pop::new("q").group("g").batch(3).lease("1 hour").run(session).await?;
    ensure!(numbers(&held) == [28, 29, 30], "{held:?}");
    session.run("SELECT queen_sweep()").await?;
    session.run("SELECT queen_subscribe('q', 'newest', mode => 'new')").await?;
    Ok(held)
}

/// After `live` and a restore, all groups find five more messages without naming their partition.
/// The restored lease does not hold any more.
async fn goes_on(session: &Session, held: &[Message]) -> Result<()> {
    let batch = PushBatch::new("q", (31..=35).map(n).collect()).partition("a");
    batch.run(session).await?;
    Push::new("not yet", n(36)).run(session).await?;
    let refusal = Ack::all(held[0].lease()?).run(session).await.fails_with("QN001")?;
    let ended = refusal.detail().unwrap_or_default();
    ensure!(ended.contains("restored"), "the lease has an hour left: {ended}");
    let mut came = numbers(&drain(session, &pop(), 8, SOON).await?);
    came.sort_unstable();
    assert_eq!(came, [28, 29, 30, 31, 32, 33, 34, 35]);
    Ack::all(held[0].lease()?).run(session).await.fails_with("QN002")?;
    let newest = Pop::new("q").group("newest").batch(9);
    assert_eq!(numbers(&drain(session, &newest, 5, SOON).await?), [31, 32, 33, 34, 35]);
    let late = Pop::new("q").group("late").batch(50).partitions(9);
    assert_eq!(drain(session, &late, 35, SOON).await?.len(), 35);
    let not_yet = Pop::new("not yet").group("g");
    assert_eq!(numbers(&drain(session, &not_yet, 1, SOON).await?), [36]);
    let pending = "SELECT sum(pending)::bigint FROM queen_groups";
    assert_eq!(session.count(pending).await?, 0);
    Ok(())
}

/// A clone of a cluster that has used more transaction ids than its original, one database in both,
/// and a dump of the clone's.
struct AheadClone {
    original: Cluster,
    _clone: Cluster,
    source: TestDb,
    dump: std::path::PathBuf,
    held: Vec<Message>,
}

impl AheadClone {
    async fn run_ahead() -> Result<Self> {
        let original = Cluster::start_new()?;
        let source = TestDb::create(&original.config()).await?;
        Push::new("q", n(0)).id("before").run(&source.session().await?).await?;
        source.session().await?.run("SELECT queen_delete_queue('q')").await?;
        let clone = original.standby()?;
        clone.promote()?;
        let mut config = clone.config();
        config.dbname(source.name());
        let session = Session::open(&config).await?;
        run_ahead(&session).await?;
        let held = live(&session).await?;
        let dump = original.file("clone.dump");
        clone.dump(source.name(), &dump)?;
        Ok(Self { original, _clone: clone, source, dump, held })
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_dump_of_a_clone_that_ran_ahead_is_consumed_beside_its_original() -> Result<()> {
    let clone = AheadClone::run_ahead().await?;
    let target = TestDb::create_empty(&clone.original.config()).await?;
    clone.original.restore(target.name(), &clone.dump)?;
    goes_on(&target.session().await?, &clone.held).await
}

/// Restores the rows only: nothing but the ids tells that they come from elsewhere.
#[tokio::test(flavor = "multi_thread")]
async fn rows_of_a_clone_that_ran_ahead_are_consumed_in_the_tables_of_its_original() -> Result<()> {
    let clone = AheadClone::run_ahead().await?;
    let session = &clone.source.session().await?;
    let tables = "SELECT string_agg(oid::regclass::text, ', ') FROM pg_class \
                  WHERE relnamespace = 'queen_mq'::regnamespace AND relkind = 'r' \
                  AND relname NOT IN ('installation', 'sweep')";
    let tables: String = session.query_one(tables, &[]).await?.get(0);
    session.run(&format!("TRUNCATE {tables}")).await?;
    clone.original.restore_with(&["--data-only"], clone.source.name(), &clone.dump)?;
    goes_on(&clone.source.session().await?, &clone.held).await
}

/// In one cluster: a database, its dump, and a database into which the dump was restored.
struct Restored {
    cluster: Cluster,
    target: TestDb,
    held: Vec<Message>,
}

impl Restored {
    async fn new() -> Result<Self> {
        let cluster = Cluster::start_new()?;
        let source = TestDb::create(&cluster.config()).await?;
        let held = live(&source.session().await?).await?;
        let dump = cluster.file("dump");
        cluster.dump(source.name(), &dump)?;
        let target = TestDb::create_empty(&cluster.config()).await?;
        cluster.restore(target.name(), &dump)?;
        Ok(Self { cluster, target, held })
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_dump_restored_into_its_own_cluster_gives_no_lease_to_two() -> Result<()> {
    let Restored { cluster: _cluster, target, held } = Restored::new().await?;
    goes_on(&target.session().await?, &held).await
}

/// Restores only the rows into an installed extension: first those of one database and, when they
/// have been adopted, those of another.
#[tokio::test(flavor = "multi_thread")]
async fn dumps_loaded_one_after_the_other_are_both_consumed() -> Result<()> {
    let cluster = Cluster::start_new()?;
    let sources =
        [TestDb::create(&cluster.config()).await?, TestDb::create(&cluster.config()).await?];
    let [one, two] = &sources;
    let held = live(&one.session().await?).await?;
    let other = two.session().await?;
    // Its ids differ from the others, where they are keys.
    let apart = "SELECT max(setval(oid, 1000000)) FROM pg_class WHERE relkind = 'S' \
                 AND relnamespace = 'queen_mq'::regnamespace";
    other.run(apart).await?;
    PushBatch::new("r", (1..=5).map(n).collect()).run(&other).await?;
    let of_r = Pop::new("r").group("g").mode("all").batch(3);
    complete(&other, &of_r.run(&other).await?).await?;
    for source in &sources {
        cluster.dump(source.name(), &cluster.file(source.name()))?;
    }
    let target = TestDb::create(&cluster.config()).await?;
    let session = &target.session().await?;
    cluster.restore_with(&["--data-only"], target.name(), &cluster.file(one.name()))?;
    goes_on(session, &held).await?;
    cluster.restore_with(&["--data-only"], target.name(), &cluster.file(two.name()))?;
    Push::new("r", n(6)).run(session).await?;
    assert_eq!(numbers(&drain(session, &of_r, 3, SOON).await?), [4, 5, 6]);
    Push::new("q", n(40)).run(session).await?;
    assert_eq!(numbers(&drain(session, &pop(), 1, SOON).await?), [40]);
    assert_eq!(session.count("SELECT count(*) FROM queen_mq.identity").await?, 1);
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn many_sessions_at_once_adopt_a_restored_dump_once() -> Result<()> {
    let Restored { cluster: _cluster, target, .. } = Restored::new().await?;
    let pushed = at_once(target.crowd(20).await?, |at, session| async move {
        Push::new("q", n(100 + at as i64)).partition("many").run(&session).await
    });
    for pushed in pushed.await? {
        assert_eq!(pushed?.status, "queued");
    }
    let session = &target.session().await?;
    assert_eq!(session.count("SELECT count(*) FROM queen_mq.identity").await?, 1);
    let queue = "SELECT count(*) FROM queen_mq.queue AS q JOIN queen_mq.identity AS i \
                 USING (installation, xid_offset, restored_at)";
    assert_eq!(session.count(queue).await?, 1);
    let mut came = numbers(&drain(session, &pop(), 23, SOON).await?);
    came.sort_unstable();
    assert_eq!(came[3..], (100..120).collect::<Vec<i64>>());
    Ok(())
}

/// Wait until this many sessions wait for a lock.
async fn are_waiting(session: &Session, count: i64) -> Result<()> {
    let sql = "SELECT count(*) FROM pg_locks WHERE NOT granted";
    eventually("sessions that wait", SOON, async || {
        Ok((session.count(sql).await? == count).then_some(()))
    })
    .await
}

/// A pop that sets the identity ends the leases of the dump, for which it updates claims. An ack
/// that comes at the same time has locked none of them while it waits for the pop.
#[tokio::test(flavor = "multi_thread")]
async fn acks_and_pops_at_once_adopt_a_restored_dump_without_a_deadlock() -> Result<()> {
    let cluster = Cluster::start_new()?;
    let source = TestDb::create(&cluster.config()).await?;
    let session = source.session().await?;
    session.run("SELECT queen_configure('q', ordering => 'none')").await?;
    PushBatch::new("q", (1..=3).map(n).collect()).run(&session).await?;
    let held = pop().batch(1).lease("1 hour").one(&session).await?;
    cluster.dump(source.name(), &cluster.file("dump"))?;
    let ack = format!("SELECT queen_ack('{}')", held.lease()?);
    let bundle =
        format!(r#"SELECT queen_tx_commit('[{{"type":"ack","leaseId":"{}"}}]')"#, held.lease()?);
    for (settle, is_raised) in [(ack, true), (bundle, false)] {
        let target = TestDb::create_empty(&cluster.config()).await?;
        cluster.restore(target.name(), &cluster.file("dump"))?;
        let [holder, popping, settling] = target.sessions().await?;
        holder.run("BEGIN; LOCK TABLE queen_mq.identity IN ROW EXCLUSIVE MODE").await?;
        let popped = tokio::spawn(async move { pop().batch(2).run(&popping).await });
        are_waiting(&holder, 1).await?;
        let settled = tokio::spawn(async move { settling.run(&settle).await });
        are_waiting(&holder, 2).await?;
        holder.run("COMMIT").await?;
        popped.await??;
        // The pop may have got the message of the lease, or another one.
        let refusal = settled.await?.err().and_then(|error| error.code().cloned());
        let code = refusal.as_ref().map(SqlState::code);
        let is_as_expected =
            if is_raised { matches!(code, Some("QN001" | "QN002")) } else { code.is_none() };
        ensure!(is_as_expected, "the settlement ended with {code:?}");
    }
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn a_first_call_that_is_undone_leaves_the_restored_dump_to_the_next() -> Result<()> {
    let Restored { cluster: _cluster, target, held } = Restored::new().await?;
    let session = &target.session().await?;
    session.run("BEGIN; SELECT queen_push('q', '1'); SAVEPOINT s").await?;
    session.run("SELECT count(*) FROM queen_pop('q', 'g'); ROLLBACK").await?;
    session.run("BEGIN; SAVEPOINT s; SELECT queen_push('q', '1'); ROLLBACK TO s; COMMIT").await?;
    goes_on(session, &held).await
}

#[tokio::test(flavor = "multi_thread")]
async fn first_calls_in_repeatable_read_adopt_it_or_conflict() -> Result<()> {
    let Restored { cluster: _cluster, target, held } = Restored::new().await?;
    let [ref first, ref second] = target.sessions().await?;
    first.begin_snapshot().await?;
    second.begin_snapshot().await?;
    second.run("SELECT queen_configure('q', lease_time => '1 minute'); COMMIT").await?;
    Push::new("q", n(1)).run(first).await.fails_with("40001")?;
    first.run("ROLLBACK").await?;
    goes_on(first, &held).await
}

/// Reads show what a writing transaction would find; writes are refused as in any read-only
/// transaction.
async fn can_only_be_read(session: &Session) -> Result<()> {
    let live = session.count("SELECT count(*) FROM queen_leases").await?;
    let retrying = "SELECT retrying FROM queen_groups WHERE consumer_group = 'g' AND queue = 'q'";
    assert_eq!((live, session.count(retrying).await?), (0, 3));
    for call in ["queen_push('q', '1')", "queen_pop('q', 'g')"] {
        session.run("SAVEPOINT s").await?;
        let refused = session.run(&format!("SELECT {call}")).await;
        let refused = refused.err().context("it was not refused")?;
        assert_eq!(refused.code(), Some(&SqlState::READ_ONLY_SQL_TRANSACTION), "{refused:?}");
        session.run("ROLLBACK TO s").await?;
    }
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn a_restored_dump_can_be_looked_at_before_anything_can_be_written() -> Result<()> {
    let Restored { cluster, target, held } = Restored::new().await?;
    let standby = cluster.standby()?;
    let mut config = standby.config();
    config.dbname(target.name());
    let there = Session::open(&config).await?;
    there.run("BEGIN").await?;
    can_only_be_read(&there).await?;
    let session = &target.session().await?;
    session.run("BEGIN READ ONLY").await?;
    can_only_be_read(session).await?;
    session.run("COMMIT").await?;
    goes_on(session, &held).await
}

/// A rolled back CREATE EXTENSION is forgotten. After DROP EXTENSION the installation's number is
/// forgotten, too.
#[tokio::test(flavor = "multi_thread")]
async fn a_session_goes_by_the_extension_that_is_there() -> Result<()> {
    let db = TestDb::create_empty(&queen_tests::db::server()?).await?;
    let session = &db.session().await?;
    session.run("BEGIN; CREATE EXTENSION queen_mq; SELECT queen_push('q', '1'); ROLLBACK").await?;
    for _ in 0..2 {
        session.run("CREATE EXTENSION queen_mq").await?;
        Push::new("q", n(1)).run(session).await?;
        assert_eq!(numbers(&drain(session, &pop(), 1, SOON).await?), [1]);
        let own = "SELECT count(*) FROM queen_mq.identity JOIN queen_mq.installation ON id = \
                   installation WHERE xid_offset = 0 AND restored_at IS NULL";
        assert_eq!(session.count(own).await?, 1);
        session.run("DROP EXTENSION queen_mq").await?;
    }
    Ok(())
}

/// Rows as they are while a dump is being loaded. pg_restore loads the tables in the order of their
/// names: these rows are there before their queue and their group, and no sequence has been set
/// yet.
const HALF_LOADED: &str = "
    INSERT INTO queen_mq.admission VALUES (7, 'p', 't', 1, '2001-01-01');
    INSERT INTO queen_mq.cursor (id, group_id, partition) OVERRIDING SYSTEM VALUE
        VALUES (9, 5, 'p');
    INSERT INTO queen_mq.claim (id, group_id, partition, message_id, taken_at)
        VALUES (10, 5, 'p', 30, '2001-01-01');
    INSERT INTO queen_mq.progress (cursor_id, revision, group_id, state) VALUES (11, 1, 5, '');
    INSERT INTO queen_mq.segment (queue_id, id, xid, created_at, n, partition, payloads)
        VALUES (7, 1, 3, '2001-01-01', 1, 'p', ARRAY['1'::jsonb])";
const LOADED: &str = "
    SELECT setval('queen_mq.queue_id_seq', 7), setval('queen_mq.consumer_group_id_seq', 5),
           setval('queen_mq.cursor_id_seq', 11)";

#[tokio::test(flavor = "multi_thread")]
async fn a_sweep_beside_a_dump_that_is_being_loaded_deletes_none_of_it() -> Result<()> {
    let db = TestDb::fresh().await?;
    let session = &db.session().await?;
    session.run(HALF_LOADED).await?;
    let rows = "SELECT (SELECT count(*) FROM queen_mq.admission) \
                     + (SELECT count(*) FROM queen_mq.cursor) \
                     + (SELECT count(*) FROM queen_mq.claim) \
                     + (SELECT count(*) FROM queen_mq.progress) \
                     + (SELECT count(*) FROM queen_mq.segment)";
    for (set, left) in [("SELECT 1", 5), (LOADED, 0)] {
        session.run(set).await?;
        for _ in 0..3 {
            session.run("SELECT queen_sweep()").await?;
        }
        assert_eq!(session.count(rows).await?, left);
    }
    Ok(())
}
