//! What the worker costs other sessions, and what its absence costs.

use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use queen_tests::cluster::Cluster;
use queen_tests::{Ack, Pop, Push, Session, TestDb, eventually, n};

/// A loaded machine may miss the limit by accident; a worker that disturbs others misses it every
/// time.
const TRIES: usize = 3;
const DEADLINE: Duration = Duration::from_secs(180);

/// Push, pop and ack for this time. Returns how long each push and each pop took.
async fn load(session: &Session, time: Duration) -> Result<Vec<Duration>> {
    let (mut taken, begun) = (Vec::new(), Instant::now());
    let pop = Pop::new("q").group("g").mode("all");
    while begun.elapsed() < time {
        let push = Instant::now();
        Push::new("q", n(1)).run(session).await?;
        taken.push(push.elapsed());
        let looking = Instant::now();
        // A sweep that is deleting messages of the partition locks it for a moment.
        let came = loop {
            let came = pop.run(session).await?;
            if !came.is_empty() {
                break came;
            }
            ensure!(looking.elapsed() < DEADLINE, "nothing came");
        };
        taken.push(looking.elapsed());
        ensure!(Ack::all(came[0].lease()?).run(session).await?.settled == 1, "{came:?}");
    }
    Ok(taken)
}

/// The time that ninety-nine of a hundred calls did not exceed.
fn p99(mut taken: Vec<Duration>) -> Duration {
    taken.sort();
    taken[(taken.len() - 1) * 99 / 100]
}

async fn set(session: &Session, databases: &str) -> Result<()> {
    session.run(&format!("ALTER SYSTEM SET queen_mq.databases = '{databases}'")).await?;
    Ok(session.run("SELECT pg_reload_conf()").await?)
}

async fn has_worker(session: &Session, expected: i64) -> Result<()> {
    let sql = "SELECT count(*) FROM pg_stat_activity
               WHERE backend_type = 'queen_mq worker' AND datname = current_database()";
    let so = async || Ok((session.count(sql).await? == expected).then_some(()));
    eventually("change of workers", Duration::from_secs(20), so).await
}

const MILLION: &str =
    "INSERT INTO queen_mq.marker (version, expires_at, created_at, updated_at, ns, key, value)
     SELECT k, now() - interval '1 s', now(), now(), 'old', k::text, '1'
     FROM generate_series(1, 1000000) AS k";
const ANY: &str = "SELECT count(*) FROM (SELECT FROM queen_mq.marker LIMIT 1) AS one";

#[tokio::test(flavor = "multi_thread")]
async fn a_million_expired_markers_go_while_pushes_and_pops_keep_their_latency() -> Result<()> {
    // This test measures time: no other test may run meanwhile.
    let _alone = TestDb::alone().await?;
    let cluster = Cluster::start_with("queen_mq.databases = ''")?;
    let db = TestDb::create(&cluster.config()).await?;
    let [ref session, ref admin] = db.sessions().await?;
    let mut seen = Vec::new();
    for _ in 0..TRIES {
        set(admin, "").await?;
        has_worker(admin, 1).await?;
        load(session, Duration::from_millis(500)).await?;
        let idle = p99(load(session, Duration::from_secs(4)).await?);

        set(admin, "none").await?;
        has_worker(admin, 0).await?;
        admin.run(MILLION).await?;
        set(admin, "").await?;
        has_worker(admin, 1).await?;
        let (mut beside, begun) = (Vec::new(), Instant::now());
        while admin.count(ANY).await? > 0 {
            ensure!(begun.elapsed() < DEADLINE, "the markers are still there");
            beside.extend(load(session, Duration::from_secs(1)).await?);
        }
        ensure!(!beside.is_empty(), "they were gone before any call was measured");
        let beside = p99(beside);
        println!("p99 {idle:.2?}, beside the sweep {beside:.2?}, {:.1?}", begun.elapsed());
        if beside <= idle * 3 {
            return Ok(());
        }
        seen.push((idle, beside));
    }
    bail!("p99 without and beside the sweep: {seen:.2?}")
}

#[tokio::test(flavor = "multi_thread")]
async fn without_it_work_goes_on_as_fast_and_one_start_catches_up() -> Result<()> {
    // This test measures time: no other test may run meanwhile.
    let _alone = TestDb::alone().await?;
    let cluster = Cluster::start_with("queen_mq.databases = 'served'")?;
    let maintenance = Session::open(&cluster.config()).await?;
    let mut sessions = Vec::new();
    for name in ["served", "alone"] {
        maintenance.run(&format!("CREATE DATABASE {name}")).await?;
        let session = Session::open(cluster.config().dbname(name)).await?;
        session.run("CREATE EXTENSION queen_mq; SET synchronous_commit = off").await?;
        session.run("SELECT queen_configure('q', completed_retention => '1 s')").await?;
        load(&session, Duration::from_millis(500)).await?;
        sessions.push(session);
    }
    let [served, alone] = &sessions[..] else { bail!("two sessions") };
    has_worker(served, 1).await?;
    has_worker(alone, 0).await?;
    let (mut seen, mut kept) = (Vec::new(), false);
    for _ in 0..TRIES {
        let mut done = [0, 0];
        // In turns, so that both run on the machine in one state.
        for _ in 0..20 {
            done[0] += load(served, Duration::from_millis(500)).await?.len();
            done[1] += load(alone, Duration::from_millis(500)).await?.len();
        }
        println!("with a worker {}, without {}", done[0], done[1]);
        kept = done[1] as f64 >= 0.9 * done[0] as f64;
        seen.push(done);
        if kept {
            break;
        }
    }
    ensure!(kept, "done with a worker and without: {seen:?}");

    let rows = "SELECT (SELECT count(*) FROM queen_mq.progress)
                       + (SELECT count(*) FROM queen_mq.segment)";
    // A slow machine does less in this time.
    for _ in 0..100 {
        if alone.count(rows).await? <= 1000 {
            load(alone, Duration::from_millis(500)).await?;
        }
    }
    let before = alone.count(rows).await?;
    ensure!(before > 1000, "only {before} rows have come together");
    set(&maintenance, "served, alone").await?;
    // The last states of the cursor stay for an hour, up to 128: they have the receipts.
    let so = async || Ok((alone.count(rows).await? <= 150).then_some(()));
    eventually("work caught up with", DEADLINE, so).await?;
    load(alone, Duration::from_millis(100)).await?;
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn without_preload_a_waiting_pop_is_late_by_a_tenth_of_a_second_at_most() -> Result<()> {
    // This test measures time: no other test may run meanwhile.
    let _alone = TestDb::alone().await?;
    let cluster = Cluster::start_with("shared_preload_libraries = ''")?;
    let db = TestDb::create(&cluster.config()).await?;
    let [ref waiter, ref other] = db.sessions().await?;
    let pop = Pop::new("q").group("g").mode("all").wait("20 s").auto_ack();
    let mut seen = Vec::new();
    for _ in 0..TRIES {
        let mut late = Vec::new();
        for round in 0..100 {
            // At another point of the waiter's sleep each time.
            let before = Duration::from_millis(50 + 7 * round % 100);
            let waiting = async { pop.run(waiter).await.map(|came| (came.len(), Instant::now())) };
            let pushing = async {
                tokio::time::sleep(before).await;
                Push::new("q", n(1)).run(other).await.map(|_| Instant::now())
            };
            let (came, pushed) = tokio::join!(waiting, pushing);
            let (count, at) = came?;
            assert_eq!(count, 1);
            late.push(at.saturating_duration_since(pushed?));
        }
        let p99 = p99(late);
        println!("p99 {p99:.2?}");
        if p99 < Duration::from_millis(110) {
            return Ok(());
        }
        seen.push(p99);
    }
    bail!("p99 {seen:.2?}")
}

/// The processor time that the sessions of this database have used so far, in hundredths of a
/// second.
async fn processor_time(session: &Session) -> Result<u64> {
    let sql = "SELECT pid FROM pg_stat_activity
               WHERE datname = current_database() AND backend_type = 'client backend'";
    let mut all = 0;
    for row in session.rows(sql, &[]).await? {
        let stat = std::fs::read_to_string(format!("/proc/{}/stat", row.get::<_, i32>(0)))?;
        // The fields follow the name in parentheses; user and system time are the 14th and 15th of
        // all.
        let fields = stat.rsplit(')').next().unwrap_or_default().split_whitespace();
        all += fields.skip(11).take(2).map(|field| field.parse().unwrap_or(0)).sum::<u64>();
    }
    Ok(all)
}

#[tokio::test(flavor = "multi_thread")]
async fn two_hundred_waiting_sessions_cost_next_to_nothing() -> Result<()> {
    // This test measures time: no other test may run meanwhile.
    let _alone = TestDb::alone().await?;
    let cluster = Cluster::start_with("max_connections = 250")?;
    let db = TestDb::create(&cluster.config()).await?;
    let session = db.session().await?;
    Push::new("other", n(1)).run(&session).await?;
    let mut waiting = tokio::task::JoinSet::new();
    for waiter in db.crowd(200).await? {
        waiting.spawn(async move {
            Pop::new("q").group("g").mode("all").wait("60 s").run(&waiter).await
        });
    }
    let all = "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database()
               AND state = 'active' AND wait_event_type IS NOT NULL";
    let so = async || Ok((session.count(all).await? >= 200).then_some(()));
    eventually("200 waiting sessions", Duration::from_secs(30), so).await?;
    tokio::time::sleep(Duration::from_secs(1)).await;
    let before = processor_time(&session).await?;
    tokio::time::sleep(Duration::from_secs(10)).await;
    let spent = processor_time(&session).await? - before;
    println!("{spent} hundredths of a second in ten seconds");
    ensure!(spent < 50, "{spent} hundredths of a second in ten seconds: 5 % of a core are 50");
    // They are waiting, and are woken.
    Push::new("q", n(1)).run(&session).await?;
    let came = eventually("message", Duration::from_secs(20), async || {
        let done = waiting.join_next().await.context("no session waits any more")?;
        Ok((!done??.is_empty()).then_some(()))
    });
    came.await?;
    Ok(())
}
