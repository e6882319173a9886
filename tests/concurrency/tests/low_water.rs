//! What has been deleted while another transaction holds an old snapshot costs later calls nothing:
//! readers begin above it. Measured in buffers, beside a database in which vacuum could remove it.

use std::time::Duration;

use anyhow::{Context, Result, ensure};
use queen_tests::cluster::Cluster;
use queen_tests::{Pop, Push, Session, TestDb, complete, eventually, n, numbers};

const SOON: Duration = Duration::from_secs(60);
/// Segments of a retention's worth, in transactions of so many.
const SEGMENTS: i64 = 8_000;
const EACH: i64 = 400;

/// What a statement costs, in buffers.
async fn buffers(session: &Session, sql: &str) -> Result<i64> {
    let plan = session.query(&format!("EXPLAIN (ANALYZE, BUFFERS, COSTS off) {sql}"), &[]).await?;
    let lines = plan.iter().map(|row| row.get::<_, String>(0));
    let mut of_plan = lines.take_while(|line| !line.starts_with("Planning"));
    let line = of_plan.find(|line| line.contains("Buffers: ")).context("no buffers")?;
    let number = |word: &str| {
        let text = line.split(word).nth(1).and_then(|rest| rest.split(' ').next());
        text.and_then(|digits| digits.parse::<i64>().ok()).unwrap_or(0)
    };
    Ok(number("hit=") + number("read="))
}

/// The least of three, each by another statement: what a session looks up once is not to count.
async fn least(session: &Session, sql: [String; 3]) -> Result<i64> {
    let mut least = i64::MAX;
    for sql in sql {
        least = least.min(buffers(session, &sql).await?);
    }
    Ok(least)
}

async fn thrice(session: &Session, sql: &str) -> Result<i64> {
    least(session, [sql.to_owned(), sql.to_owned(), sql.to_owned()]).await
}

/// A database in which a retention's worth of messages has been deleted.
struct Shore {
    db: TestDb,
    session: Session,
    /// Holds a snapshot from before, unless vacuum has been there.
    old: Option<Session>,
}

impl Shore {
    async fn new(options: &str, is_old: bool) -> Result<Self> {
        let db = TestDb::fresh().await?;
        let [session, old] = db.sessions().await?;
        session.run("SET synchronous_commit = off").await?;
        session.run(&format!("SELECT queen_configure('q', {options})")).await?;
        session.run("SELECT queen_subscribe('q', 'g', 'all')").await?;
        if is_old {
            old.begin_snapshot().await?;
        }
        Ok(Self { db, session, old: is_old.then_some(old) })
    }

    /// Push a retention's worth of messages, pop them, and let the sweep delete them.
    async fn live_through_a_retention(&self) -> Result<()> {
        for first in (0..SEGMENTS).step_by(EACH as usize) {
            let sql = format!(
                "SELECT count(*) FROM generate_series({first}, {}) AS k,
                 queen_push('q', jsonb_build_object('n', k), partition => 'p' || k % 4)",
                first + EACH - 1
            );
            self.session.count(&sql).await?;
            self.sweep().await?;
        }
        let pop =
            "SELECT count(*) FROM queen_pop('q', 'g', 1000, partitions => 9, auto_ack => true)";
        while self.session.count(pop).await? > 0 {}
        eventually("an empty log", SOON, async || {
            self.sweep().await?;
            let log = "SELECT count(*) FROM queen_mq.segment";
            Ok((self.session.count(log).await? == 0).then_some(()))
        })
        .await?;
        // So that the worker's look meets nothing of a bookmark.
        self.sweep().await?;
        if self.old.is_none() {
            self.session.run("VACUUM").await?;
        }
        Ok(())
    }

    async fn sweep(&self) -> Result<()> {
        Ok(self.session.run("SELECT queen_sweep()").await?)
    }

    /// What the calls of a consumer, a producer and an administrator cost from here on.
    async fn costs(&self, round: i32) -> Result<Vec<(&'static str, i64)>> {
        let session = &self.session;
        let mut costs = Vec::new();
        let push = "SELECT queen_push('q', '{\"n\": 1}', partition => 'p1')";
        costs.push(("push", thrice(session, push).await?));
        let pop = "SELECT * FROM queen_pop('q', 'g', auto_ack => true)";
        costs.push(("pop", thrice(session, pop).await?));
        costs.push(("empty pop", thrice(session, pop).await?));
        let named = "SELECT * FROM queen_pop('q', 'g', partition => 'p2', auto_ack => true)";
        costs.push(("empty pop of a partition", thrice(session, named).await?));
        session.run(push).await?;
        let firsts = ["h", "i", "j"].map(|group| {
            let mode = "subscription_mode => 'all', batch => 9";
            format!("SELECT * FROM queen_pop('q', '{group}{round}', {mode})")
        });
        costs.push(("first pop of a group", least(session, firsts).await?));
        let new = self.db.session().await?;
        costs.push(("pop of a new session", buffers(&new, pop).await?));
        for view in ["queen_queues", "queen_groups", "queen_leases", "queen_blocked"] {
            costs.push((view, thrice(session, &format!("SELECT * FROM {view}")).await?));
        }
        let status = "SELECT * FROM queen_message_status('q', 'msg-28', 'p1')";
        costs.push(("status of a message", thrice(session, status).await?));
        costs.push(("sweep", thrice(session, "SELECT * FROM queen_sweep()").await?));
        Ok(costs)
    }
}

/// Compare the costs in a database with an old snapshot, and after its end, to those without one.
async fn cost_the_same(options: &str, prepare: impl AsyncFn(&Shore) -> Result<()>) -> Result<()> {
    let [without, with] = [Shore::new(options, false).await?, Shore::new(options, true).await?];
    for shore in [&without, &with] {
        prepare(shore).await?;
        shore.live_through_a_retention().await?;
    }
    let usual = without.costs(1).await?;
    are_alike(&usual, &with.costs(1).await?)?;
    if let Some(old) = &with.old {
        old.run("ROLLBACK").await?;
    }
    // One vacuum is enough: empty pages, which it does not give back, cost no reader anything.
    with.session.run("VACUUM").await?;
    are_alike(&usual, &with.costs(2).await?)
}

/// The costs with an old snapshot are about those without.
fn are_alike(without: &[(&str, i64)], with: &[(&str, i64)]) -> Result<()> {
    let pairs = without.iter().zip(with).map(|((what, without), (_, with))| (what, without, with));
    let mut dear = Vec::new();
    for (what, without, with) in pairs {
        println!("{what}: {without} buffers without, {with} with an old snapshot");
        if *with > 2 * *without + 40 {
            dear.push((what, without, with));
        }
    }
    ensure!(dear.is_empty(), "buffers without and with an old snapshot: {dear:?}");
    Ok(())
}

const SETTLED: &str = "completed_retention => '1 ms'";

#[tokio::test(flavor = "multi_thread")]
async fn a_retention_under_an_old_snapshot_costs_no_later_call_anything() -> Result<()> {
    cost_the_same(SETTLED, async |_| Ok(())).await
}

/// Also where the transaction that holds the snapshot has written something, and is a hole.
#[tokio::test(flavor = "multi_thread")]
async fn nor_under_one_of_a_transaction_that_writes() -> Result<()> {
    cost_the_same(SETTLED, async |shore| {
        if let Some(old) = &shore.old {
            old.run("SELECT pg_current_xact_id()").await?;
        }
        Ok(())
    })
    .await
}

#[tokio::test(flavor = "multi_thread")]
async fn nor_in_a_group_without_order() -> Result<()> {
    let mut both = Vec::new();
    for is_old in [false, true] {
        let shore = Shore::new("completed_retention => '1 ms', ordering => 'none'", is_old).await?;
        shore.live_through_a_retention().await?;
        // The figures of such a group are added up from all of its claims.
        let costs = shore.costs(1).await?.into_iter();
        both.push(costs.filter(|(what, _)| !what.starts_with("queen_")).collect::<Vec<_>>());
    }
    are_alike(&both[0], &both[1])
}

/// What a transaction pushed before all that was deleted, and commits after, is delivered in its
/// partition's order, to old groups and new ones, is counted, and is deleted in the end.
#[tokio::test(flavor = "multi_thread")]
async fn what_commits_below_the_floor_is_read_counted_and_deleted() -> Result<()> {
    let shore = Shore::new(SETTLED, true).await?;
    let late = shore.db.session().await?;
    late.run("BEGIN").await?;
    for number in [100, 101] {
        Push::new("q", n(number)).partition("p1").run(&late).await?;
    }
    Push::new("q", n(102)).partition("late").run(&late).await?;
    shore.live_through_a_retention().await?;
    let session = &shore.session;
    // A session that remembers the floor, and one that does not.
    assert_eq!(Pop::new("q").group("g").run(session).await?, []);
    late.run("COMMIT").await?;
    Push::new("q", n(103)).partition("p1").run(session).await?;
    let figures = session.row("SELECT partitions, depth FROM queen_queues", &[]).await?;
    assert_eq!((figures.get::<_, i64>(0), figures.get::<_, i64>(1)), (2, 4));
    for group in ["g", "h"] {
        let of =
            |partition: &str| Pop::new("q").group(group).mode("all").batch(9).partition(partition);
        let came = of("p1").run(session).await?;
        assert_eq!(numbers(&came), [100, 101, 103], "group {group}");
        complete(session, &came).await?;
    }
    // Without a name, the search has to find it.
    for group in ["g", "h"] {
        let came = Pop::new("q").group(group).batch(9).run(&shore.db.session().await?).await?;
        assert_eq!(numbers(&came), [102], "group {group}");
        complete(session, &came).await?;
    }
    eventually("an empty log", SOON, async || {
        shore.sweep().await?;
        Ok((session.count("SELECT count(*) FROM queen_mq.segment").await? == 0).then_some(()))
    })
    .await?;
    let figures = session.row("SELECT partitions, depth FROM queen_queues", &[]).await?;
    assert_eq!((figures.get::<_, i64>(0), figures.get::<_, i64>(1)), (0, 0));
    Ok(())
}

/// Messages that are pushed, popped from their partition and acked, each in a transaction.
fn rounds(queue: &str, count: i32) -> String {
    format!(
        "DO $$ DECLARE lease uuid; BEGIN
            FOR k IN 1..{count} LOOP
                PERFORM queen_push('{queue}', to_jsonb(k));
                SELECT lease_id INTO STRICT lease FROM queen_pop('{queue}', 'g',
                    partition => 'Default', subscription_mode => 'all');
                PERFORM queen_ack(lease);
                COMMIT;
            END LOOP;
        END $$"
    )
}

/// Settings of a server in which nothing but a worker, and what the test calls, reads anything.
const QUIET: &str = "queen_mq.databases = ''\nautovacuum = off\ncheckpoint_timeout = '1h'";

/// Buffers that the worker reads in a round, while transactions end in another database.
async fn of_a_round(is_old: bool) -> Result<i64> {
    let cluster = Cluster::start_with(QUIET)?;
    let db = TestDb::create(&cluster.config()).await?;
    let [session, old] = db.sessions().await?;
    let outside = Session::open(&cluster.config()).await?;
    session.run("SET synchronous_commit = off").await?;
    if is_old {
        old.begin_snapshot().await?;
    }
    // A message that a group never settles: what is deleted behind it is above the floor.
    let options = "completed_retention => '1 ms', dedup_window => '0'";
    session.run(&format!("SELECT queen_configure('stuck', {options})")).await?;
    session.run("SELECT queen_subscribe('stuck', 'g', 'all')").await?;
    session.run("SELECT queen_push('stuck', '0', partition => 'p')").await?;
    for queue in ["gone", "q"] {
        session
            .run(&format!(
                "SELECT queen_configure('{queue}', retention => '1 ms', dedup_window => '0')"
            ))
            .await?;
        session.run(&format!("SELECT queen_subscribe('{queue}', 'idle', 'all')")).await?;
    }
    for first in (0..SEGMENTS).step_by(EACH as usize) {
        let of = format!("FROM generate_series({first}, {}) AS k,", first + EACH - 1);
        for call in [
            "queen_push('gone', '1', partition => 'p' || k % 4)",
            "queen_push('q', '1', partition => 'p' || k % 4)",
            "queen_push('stuck', '1')",
            "queen_schedule('q', 'k' || k, '1', delay => '0')",
            "queen_kv_put('ns', 'k' || k, '1', ttl => '1 ms')",
        ] {
            session.count(&format!("SELECT count(*) {of} {call}")).await?;
        }
    }
    // Leases that end are found by their moments, which no search has passed.
    session.run(&rounds("leased", 2000)).await?;
    session.run("SELECT queen_delete_queue('gone')").await?;
    let pop = "SELECT count(*) FROM queen_pop('stuck', 'g', 1000, 'Default', auto_ack => true)";
    while session.count(pop).await? > 0 {}
    let left = "SELECT (SELECT count(*) - 1 FROM queen_mq.segment
                 WHERE queue_id IN (SELECT id FROM queen_mq.queue WHERE name <> 'leased'))
                     + (SELECT count(*) FROM queen_mq.timer)
                     + (SELECT count(*) FROM queen_mq.marker)";
    let is_swept = async || Ok((session.count(left).await? == 0).then_some(()));
    eventually("the end of the sweep", SOON, is_swept).await?;
    if !is_old {
        session.run("VACUUM").await?;
    }
    let read = "SELECT pg_stat_clear_snapshot()::text, blks_hit + blks_read FROM pg_stat_database
                WHERE datname = $1";
    let mut rounds = Vec::new();
    for _ in 0..9 {
        session.run("SELECT pg_stat_force_next_flush()").await?;
        let before: i64 = outside.row(read, &[&db.name()]).await?.get(1);
        outside.run("SELECT pg_current_xact_id()").await?;
        tokio::time::sleep(Duration::from_secs(1)).await;
        rounds.push(outside.row(read, &[&db.name()]).await?.get::<_, i64>(1) - before);
    }
    println!("{rounds:?}");
    // Some rounds see more than one transaction of the test, or of the worker itself.
    rounds.sort_unstable();
    Ok(rounds[rounds.len() / 2])
}

#[tokio::test(flavor = "multi_thread")]
async fn a_round_of_the_worker_does_not_walk_over_what_has_died() -> Result<()> {
    let (without, with) = (of_a_round(false).await?, of_a_round(true).await?);
    // How many tasks fall into the second of a round differs. A walk reads thousands of buffers.
    ensure!(with <= 2 * without + 500, "{without} buffers without, {with} with an old snapshot");
    Ok(())
}

/// Timers of a retention's worth are set, moved into the log, and popped.
async fn live_through_timers(shore: &Shore) -> Result<()> {
    for first in (0..SEGMENTS).step_by(EACH as usize) {
        let sql = format!(
            "SELECT count(*) FROM generate_series({first}, {}) AS k,
             queen_schedule('q', 'k' || k, jsonb_build_object('n', k), delay => '0')",
            first + EACH - 1
        );
        shore.session.count(&sql).await?;
        shore.sweep().await?;
    }
    let pop = "SELECT count(*) FROM queen_pop('q', 'g', 1000, auto_ack => true)";
    while shore.session.count(pop).await? > 0 {}
    if shore.old.is_none() {
        shore.session.run("VACUUM").await?;
    }
    // The floor of timers stays a second behind the clock, and is raised in two steps. A session
    // looks for it once a second.
    for _ in 0..2 {
        tokio::time::sleep(Duration::from_millis(1100)).await;
        shore.sweep().await?;
    }
    tokio::time::sleep(Duration::from_millis(1100)).await;
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn timers_that_were_moved_under_an_old_snapshot_cost_no_later_pop_anything() -> Result<()> {
    let mut both = Vec::new();
    for is_old in [false, true] {
        let shore = Shore::new("lease_time => '1 minute'", is_old).await?;
        live_through_timers(&shore).await?;
        let (session, fresh) = (&shore.session, shore.db.session().await?);
        let pop = "SELECT * FROM queen_pop('q', 'g')";
        let mut costs = vec![("pop", thrice(session, pop).await?)];
        buffers(&fresh, "SELECT * FROM queen_kv_get('a', 'b')").await?;
        costs.push(("pop of a new session", buffers(&fresh, pop).await?));
        let push = "SELECT queen_push('q', '1', delay => '1 hour')";
        costs.push(("delayed push", thrice(session, push).await?));
        costs.push(("queen_queues", thrice(session, "SELECT * FROM queen_metrics()").await?));
        both.push(costs);
    }
    are_alike(&both[0], &both[1])
}

/// A timer that was set before those that have been moved, and commits after, is moved as well.
#[tokio::test(flavor = "multi_thread")]
async fn a_timer_that_commits_below_the_floor_is_moved() -> Result<()> {
    let shore = Shore::new("lease_time => '1 minute'", true).await?;
    let [ref late, ref past] = shore.db.sessions().await?;
    late.run("BEGIN").await?;
    late.run("SELECT queen_schedule('q', 'late', '{\"n\": -1}', delay => '0')").await?;
    live_through_timers(&shore).await?;
    let floor = "SELECT count(*) FROM queen_mq.tally";
    ensure!(shore.session.count(floor).await? > 0, "no floor was written");
    let pop = Pop::new("q").group("g");
    assert_eq!(pop.run(&shore.session).await?, []);
    late.run("COMMIT").await?;
    let came = pop.run(&shore.session).await?;
    assert_eq!(numbers(&came), [-1]);
    complete(&shore.session, &came).await?;
    let at = "deliver_at => now() - interval '1 day'";
    past.run(&format!("SELECT queen_schedule('q', 'past', '{{\"n\": -2}}', {at})")).await?;
    assert_eq!(numbers(&pop.run(past).await?), [-2]);
    Ok(())
}

/// What a pop in vain, which has to know the next moment, costs after so many leases whose end lies
/// ahead.
async fn of_a_wait(leases: i32) -> Result<i64> {
    let shore = Shore::new("lease_time => '1 hour'", true).await?;
    shore.session.run(&rounds("q", leases)).await?;
    thrice(&shore.session, "SELECT * FROM queen_pop('q', 'g', wait => '1 ms')").await
}

#[tokio::test(flavor = "multi_thread")]
async fn a_wait_does_not_walk_over_moments_of_states_that_are_gone() -> Result<()> {
    let (few, many) = (of_a_wait(300).await?, of_a_wait(6000).await?);
    println!("a wait: {few} buffers after 300 leases, {many} after 6000");
    ensure!(many < few + 60, "{few} buffers after 300 leases, {many} after 6000");
    Ok(())
}
