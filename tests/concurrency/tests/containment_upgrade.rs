//! pg_upgrade with the library preloaded in both clusters. The extension writes nothing while it
//! runs, and afterwards everything is there exactly once.

use std::collections::BTreeSet;
use std::time::Duration;

use anyhow::{Result, ensure};
use queen_tests::cluster::Cluster;
use queen_tests::{
    Ack, Fails, Message, Pop, Push, PushBatch, Session, TestDb, complete, drain, eventually,
    expiry, n, numbers,
};

const BUSY: &str = "queen_mq.databases = ''\nqueen_mq.sweep_interval = 100ms";
const TIMERS: i64 = 3_000;
/// The time in which the timers come due, in milliseconds. The worker moves them before the
/// upgrade, and would do so during it.
const WINDOW: i64 = 10_000;

/// The state before the upgrade.
struct Before {
    /// Messages 1 and 2 of partition a, in a lease of one hour.
    live: Vec<Message>,
    /// Message 11 of partition b, in a lease that has expired.
    expired: Vec<Message>,
}

fn pop(partition: &str) -> Pop {
    Pop::new("q").group("g").mode("all").batch(100).partition(partition)
}

async fn fill(session: &Session) -> Result<Before> {
    let timers = format!(
        "SELECT count(*) FROM generate_series(1, {TIMERS}) AS k, \
         LATERAL queen_schedule('timers ' || k % 20, k::text, jsonb_build_object('n', k), \
             deliver_at => clock_timestamp() \
                 + make_interval(secs => k * {WINDOW} / {TIMERS} / 1000.0))"
    );
    session.run(&timers).await?;
    PushBatch::new("q", (1..=6).map(n).collect()).partition("a").run(session).await?;
    PushBatch::new("q", vec![n(11), n(12)]).partition("b").run(session).await?;
    let live = pop("a").batch(2).lease("1 hour").run(session).await?;
    let expired = pop("b").batch(1).lease("50 milliseconds").run(session).await?;
    expiry(session, &expired[0]).await?;
    eventually("message of a timer", Duration::from_secs(20), async || {
        let arrived = "SELECT count(*) FROM queen_messages WHERE queue LIKE 'timers %'";
        Ok((session.count(arrived).await? > 0).then_some(()))
    })
    .await?;
    Ok(Before { live, expired })
}

/// Check that the extension does nothing in a server that is started as pg_upgrade starts it.
async fn does_nothing_under_binary_upgrade(cluster: &Cluster, database: &str) -> Result<()> {
    cluster.start_as("-b")?;
    let mut config = cluster.config();
    config.dbname(database);
    let session = Session::open(&config).await?;
    for call in [
        "queen_push('q', '1')",
        "queen_pop('q', 'g')",
        "queen_sweep()",
        "queen_worker_start()",
        "queen_kv_put('ns', 'k', '1', forever => true)",
    ] {
        session.run(&format!("SELECT {call}")).await.fails_with("55000")?;
    }
    let ours = "SELECT count(*) FROM pg_stat_activity WHERE backend_type LIKE 'queen_mq%'";
    assert_eq!(session.count(ours).await?, 0);
    drop(session);
    cluster.stop()
}

async fn goes_on(session: &Session, before: &Before) -> Result<()> {
    // The live lease holds and can be settled; the expired one cannot.
    assert_eq!(pop("a").run(session).await?, []);
    Ack::all(before.expired[0].lease()?).run(session).await.fails_with("QN001")?;
    complete(session, &before.live).await?;
    Push::new("q", n(7)).partition("a").run(session).await?;
    let came = pop("a").run(session).await?;
    assert_eq!(numbers(&came), [3, 4, 5, 6, 7]);
    complete(session, &came).await?;
    let came = pop("b").run(session).await?;
    assert_eq!(numbers(&came), [11, 12]);
    assert_eq!(came[0].delivery_attempt, 2);
    complete(session, &came).await?;

    let all = Duration::from_millis(WINDOW as u64) + Duration::from_secs(10);
    let mut seen = BTreeSet::new();
    eventually("messages of all timers", all, async || {
        let left = session.count("SELECT count(*) FROM queen_timers").await?;
        Ok((left == 0).then_some(()))
    })
    .await?;
    for queue in 0..20 {
        let each = Pop::new(format!("timers {queue}")).batch(1000);
        let came = numbers(&drain(session, &each, (TIMERS / 20) as usize, all).await?);
        ensure!(came.is_sorted(), "out of order: {came:?}");
        seen.extend(came);
    }
    assert_eq!(seen.len() as i64, TIMERS);
    Ok(())
}

/// Check that no row is damaged or has a transaction id that the cluster has not given out yet.
async fn is_sound(session: &Session) -> Result<()> {
    let has_amcheck = "SELECT count(*) FROM pg_available_extensions WHERE name = 'amcheck'";
    if session.count(has_amcheck).await? == 0 {
        eprintln!("amcheck is not installed beside this server: its tables are not verified");
        return Ok(());
    }
    session.run("CREATE EXTENSION amcheck").await?;
    let damage = "SELECT format('%s (%s, %s): %s', c.oid::regclass, found.blkno, found.offnum, \
                      found.msg) \
                  FROM pg_class AS c, LATERAL verify_heapam(c.oid, check_toast => true) AS found \
                  WHERE c.relkind IN ('r', 'm', 't')";
    let damage: Vec<String> =
        session.query(damage, &[]).await?.iter().map(|row| row.get(0)).collect();
    assert_eq!(damage, Vec::<String>::new());
    Ok(())
}

async fn survives_pg_upgrade(options: &[&str]) -> Result<()> {
    let old = Cluster::start_with(BUSY)?;
    let db = TestDb::create(&old.config()).await?;
    let session = db.session().await?;
    let before = fill(&session).await?;
    let own = "SELECT id FROM queen_mq.installation";
    let installation = session.count(own).await?;
    drop(session);
    old.stop()?;
    let next = old.next_xid()?;
    does_nothing_under_binary_upgrade(&old, db.name()).await?;
    assert_eq!(old.next_xid()?, next);

    let new = Cluster::init_with(BUSY)?;
    old.upgrade_into(&new, options)?;
    // A cluster whose files were linked must not be started again, so nothing is asked of it.
    if options.is_empty() {
        assert_eq!(old.next_xid()?, next);
    }
    new.start()?;
    let mut config = new.config();
    config.dbname(db.name());
    let session = &Session::open(&config).await?;
    // The installation's number came along, and there is no second one.
    assert_eq!(session.count(own).await?, installation);
    goes_on(session, &before).await?;
    let rebased = "SELECT count(*) FROM queen_mq.identity WHERE xid_offset > 0";
    assert_eq!(session.count(rebased).await?, 0);
    is_sound(session).await?;
    ensure!(!new.logged()?.contains("queen_mq worker,"), "{}", new.logged()?);
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn everything_is_there_once_after_an_upgrade_that_copies() -> Result<()> {
    survives_pg_upgrade(&[]).await
}

#[tokio::test(flavor = "multi_thread")]
async fn everything_is_there_once_after_an_upgrade_that_links() -> Result<()> {
    survives_pg_upgrade(&["--link"]).await
}
