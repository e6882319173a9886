//! Sweeps while other sessions push and pop: only what is settled or old is deleted, the counts
//! stay right, timers are moved once, and no call waits for an open sweep.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicI64, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Result, ensure};
use queen_tests::{
    Ack, Fails, Pop, Push, PushBatch, Session, TestDb, at_once, complete, drain, eventually,
    figures_of, n, numbers,
};
use tokio::task::JoinSet;

const DEADLINE: Duration = Duration::from_secs(60);

const PRODUCERS: i64 = 4;
const PER_PRODUCER: i64 = 300;

/// Push in transactions that overlap, come late and roll back; the numbers that were committed.
async fn produce(session: Session, producer: i64, pushed: Arc<AtomicI64>) -> Result<Vec<i64>> {
    let mut own = Vec::new();
    for round in 0..PER_PRODUCER {
        let number = producer * PER_PRODUCER + round;
        session.run("BEGIN").await?;
        let partition = format!("p{}", number % 7);
        Push::new("q", n(number)).partition(partition).run(&session).await?;
        if number % 10 == 3 {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
        if number % 5 == 4 {
            session.run("ROLLBACK").await?;
        } else {
            session.run("COMMIT").await?;
            pushed.fetch_add(1, Ordering::SeqCst);
            own.push(number);
        }
    }
    Ok(own)
}

/// Pop, and ack, fail or roll back; the numbers whose completion was committed.
async fn consume(
    session: Session,
    group: &str,
    consumer: i32,
    is_over: Arc<AtomicBool>,
) -> Result<Vec<i64>> {
    let mut completed = Vec::new();
    let pop = Pop::new("q").group(group).batch(3).partitions(2);
    for round in consumer.. {
        if is_over.load(Ordering::SeqCst) {
            break;
        }
        session.run("BEGIN").await?;
        let came = pop.run(&session).await?;
        let Some(first) = came.first() else {
            session.run("COMMIT").await?;
            tokio::time::sleep(Duration::from_millis(2)).await;
            continue;
        };
        let lease = first.lease()?;
        match round % 6 {
            0 => session.run("ROLLBACK").await?,
            1 => {
                Ack::all(lease).failed("no").run(&session).await?;
                session.run("COMMIT").await?;
            }
            _ => {
                complete(&session, &came).await?;
                session.run("COMMIT").await?;
                completed.extend(numbers(&came));
            }
        }
    }
    Ok(completed)
}

/// How many messages the sweeps of this session deleted.
async fn sweep(session: Session, is_over: Arc<AtomicBool>) -> Result<i64> {
    let mut removed = 0;
    while !is_over.load(Ordering::SeqCst) {
        let sql = "SELECT removed FROM queen_sweep() WHERE task = 'messages'";
        removed += session.row(sql, &[]).await?.get::<_, i64>(0);
    }
    Ok(removed)
}

/// Wait until both groups have completed everything, and the log is empty.
async fn settled_and_deleted(watcher: &Session) -> Result<()> {
    eventually("end of the work", DEADLINE, async || {
        let left = (figures_of(watcher, "q", "g").await?, figures_of(watcher, "q", "h").await?);
        Ok((left == ((0, 0, 0), (0, 0, 0))).then_some(()))
    })
    .await?;
    eventually("empty log", DEADLINE, async || {
        let left = watcher.count("SELECT count(*) FROM queen_messages").await?;
        Ok((left == 0).then_some(()))
    })
    .await
}

/// While producers and consumers work, sweeps delete at once what is settled.
#[tokio::test(flavor = "multi_thread")]
async fn what_is_settled_is_deleted_while_all_work_and_nothing_else() -> Result<()> {
    let db = TestDb::fresh().await?;
    let watcher = db.session().await?;
    watcher
        .run("SELECT queen_configure('q', completed_retention => '1 ms', retry_limit => 1000)")
        .await?;
    for group in ["g", "h"] {
        watcher.run(&format!("SELECT queen_subscribe('q', '{group}', 'all')")).await?;
    }
    let is_over = Arc::new(AtomicBool::new(false));
    let pushed = Arc::new(AtomicI64::new(0));
    let mut workers: JoinSet<Result<Vec<i64>>> = JoinSet::new();
    for producer in 0..PRODUCERS {
        workers.spawn(produce(db.session().await?, producer, pushed.clone()));
    }
    let mut consumers: JoinSet<Result<(String, Vec<i64>)>> = JoinSet::new();
    for (group, consumer) in [("g", 0), ("g", 1), ("h", 2), ("h", 3)] {
        let (session, is_over) = (db.session().await?, is_over.clone());
        consumers.spawn(async move {
            Ok((group.to_owned(), consume(session, group, consumer, is_over).await?))
        });
    }
    let mut sweepers: JoinSet<Result<i64>> = JoinSet::new();
    for _ in 0..2 {
        sweepers.spawn(sweep(db.session().await?, is_over.clone()));
    }

    let mut expected = Vec::new();
    while let Some(own) = workers.join_next().await {
        expected.extend(own??);
    }
    expected.sort_unstable();
    settled_and_deleted(&watcher).await?;
    is_over.store(true, Ordering::SeqCst);
    let mut completed: HashMap<String, Vec<i64>> = HashMap::new();
    while let Some(one) = consumers.join_next().await {
        let (group, numbers) = one??;
        completed.entry(group).or_default().extend(numbers);
    }
    for (group, mut numbers) in completed {
        numbers.sort_unstable();
        ensure!(numbers == expected, "group {group} completed something else than was pushed");
    }
    let mut removed = 0;
    while let Some(one) = sweepers.join_next().await {
        removed += one??;
    }
    assert_eq!(removed, pushed.load(Ordering::SeqCst));
    let row = watcher.row("SELECT depth, bytes, partitions FROM queen_queues", &[]).await?;
    assert_eq!((row.get::<_, i64>(0), row.get::<_, i64>(1), row.get::<_, i64>(2)), (0, 0, 0));
    Ok(())
}

/// Messages that are too old are deleted, read or not, and the groups' pending counts fall with
/// them.
#[tokio::test(flavor = "multi_thread")]
async fn what_is_old_is_taken_off_what_is_pending() -> Result<()> {
    let db = TestDb::fresh().await?;
    let [ref session, ref late] = db.sessions().await?;
    session.run("SELECT queen_configure('q', retention => '200 ms')").await?;
    for group in ["idle", "reader"] {
        session.run(&format!("SELECT queen_subscribe('q', '{group}', 'all')")).await?;
    }
    // The late push commits after the others were counted and swept.
    late.run("BEGIN").await?;
    PushBatch::new("q", vec![n(100), n(101)]).partition("a").run(late).await?;
    for partition in ["a", "b", "c"] {
        PushBatch::new("q", vec![n(1), n(2), n(3)]).partition(partition).run(session).await?;
    }
    let pop = Pop::new("q").group("reader").partition("a");
    let held = pop.run(session).await?;
    let completed = Pop::new("q").group("reader").partition("b").batch(2).run(session).await?;
    complete(session, &completed).await?;
    tokio::time::sleep(Duration::from_millis(300)).await;
    session.run("SELECT queen_sweep()").await?;
    // The segment with the held message stays, whole.
    assert_eq!(figures_of(session, "q", "idle").await?, (3, 0, 0));
    assert_eq!(figures_of(session, "q", "reader").await?, (3, 1, 0));
    late.run("COMMIT").await?;
    assert_eq!(figures_of(session, "q", "idle").await?, (5, 0, 0));
    complete(session, &held).await?;
    session.run("SELECT queen_sweep()").await?;
    session.run("SELECT queen_sweep()").await?;
    assert_eq!(figures_of(session, "q", "idle").await?, (0, 0, 0));
    assert_eq!(figures_of(session, "q", "reader").await?, (0, 0, 0));
    Push::new("q", n(7)).partition("a").run(session).await?;
    assert_eq!(numbers(&pop.run(session).await?), [7]);
    assert_eq!(figures_of(session, "q", "idle").await?, (1, 0, 0));
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn due_timers_are_moved_once_by_pops_and_sweeps() -> Result<()> {
    const TIMERS: i64 = 400;
    let db = TestDb::fresh().await?;
    let session = db.session().await?;
    session.run("SELECT queen_subscribe('q', 'g', 'all')").await?;
    let sql = format!(
        "SELECT queen_schedule('q', k::text, jsonb_build_object('n', k), delay => '0',
            partition => 'p' || k % 5)
         FROM generate_series(1, {TIMERS}) AS k"
    );
    session.run(&sql).await?;
    let started = Instant::now();
    let came = at_once(db.crowd(8).await?, |worker, session| async move {
        let pop = Pop::new("q").group("g").batch(50).partitions(5);
        let mut came = Vec::new();
        while started.elapsed() < Duration::from_secs(3) {
            if worker % 2 == 0 {
                session.run("SELECT queen_sweep()").await?;
            }
            // Some transactions roll back what they have moved.
            session.run("BEGIN").await?;
            let messages = pop.run(&session).await?;
            if (came.len() + messages.len()) % 3 == 1 && started.elapsed() < Duration::from_secs(1)
            {
                session.run("ROLLBACK").await?;
                continue;
            }
            complete(&session, &messages).await?;
            session.run("COMMIT").await?;
            came.extend(numbers(&messages));
        }
        Ok::<_, anyhow::Error>(came)
    })
    .await?;
    let mut all = Vec::new();
    for one in came {
        all.extend(one?);
    }
    all.sort_unstable();
    assert_eq!(all, (1..=TIMERS).collect::<Vec<_>>());
    assert_eq!(session.count("SELECT count(*) FROM queen_timers").await?, 0);
    Ok(())
}

/// The first transaction decides: a timer that is being moved cannot be cancelled, and one that is
/// being cancelled is not moved.
#[tokio::test(flavor = "multi_thread")]
async fn moving_and_cancelling_a_timer_exclude_each_other() -> Result<()> {
    let db = TestDb::fresh().await?;
    let [ref mover, ref canceller] = db.sessions().await?;
    let pop = Pop::new("q").group("g").mode("all");
    for (round, commits) in [(1, true), (2, false), (3, true)] {
        mover
            .run(&format!("SELECT queen_schedule('q', 'k', '{{\"n\": {round}}}', delay => '0')"))
            .await?;
        mover.run("BEGIN").await?;
        mover.run("SELECT queen_sweep()").await?;
        let cancelled = {
            let waiting = canceller.row("SELECT queen_cancel('q', 'k')", &[]);
            let end = async {
                tokio::time::sleep(Duration::from_millis(50)).await;
                mover.run(if commits { "COMMIT" } else { "ROLLBACK" }).await
            };
            let (cancelled, ended) = tokio::join!(waiting, end);
            ended?;
            cancelled?.get::<_, bool>(0)
        };
        assert_eq!(cancelled, !commits);
        let came = numbers(&pop.run(mover).await?);
        assert_eq!(came, if commits { vec![round] } else { vec![] });
        mover.run("SELECT queen_seek('q', 'g', 'end')").await?;
    }
    // In the other order, the timer is skipped while it is being cancelled, and is there when that
    // rolls back.
    mover.run("SELECT queen_schedule('q', 'k', '{\"n\": 4}', delay => '0')").await?;
    canceller.run("BEGIN").await?;
    canceller.run("SELECT queen_cancel('q', 'k')").await?;
    assert_eq!(pop.run(mover).await?, []);
    canceller.run("ROLLBACK").await?;
    assert_eq!(numbers(&pop.run(mover).await?), [4]);
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn of_two_that_replay_a_dead_letter_one_does() -> Result<()> {
    let db = TestDb::fresh().await?;
    let session = db.session().await?;
    Push::new("q", n(1)).run(&session).await?;
    let dead = Pop::new("q").group("g").mode("all").one(&session).await?;
    Ack::all(dead.lease()?).status("dead_letter").run(&session).await?;
    let replayed = at_once(db.crowd(8).await?, |_, session| async move {
        session.row("SELECT * FROM queen_dead_letter_replay(1)", &[]).await.map(|_| session)
    })
    .await?;
    let (done, refused): (Vec<_>, Vec<_>) = replayed.into_iter().partition(Result::is_ok);
    assert_eq!((done.len(), refused.len()), (1, 7));
    for refusal in refused {
        refusal.map(|_| ()).fails_with("42704")?;
    }
    let came = drain(&session, &Pop::new("q").group("g"), 1, DEADLINE).await?;
    assert_eq!((numbers(&came), came[0].delivery_attempt), (vec![1], 1));
    Ok(())
}

/// A sweep in a transaction that stays open: pushes and pops of other sessions answer at once, with
/// everything that the sweep has not locked.
#[tokio::test(flavor = "multi_thread")]
async fn an_open_sweep_keeps_no_call_waiting() -> Result<()> {
    let db = TestDb::fresh().await?;
    let [ref open, ref other] = db.sessions().await?;
    other
        .run("SELECT queen_configure('q', completed_retention => '1 ms', max_depth => 1000)")
        .await?;
    for number in 0..20 {
        Push::new("q", n(number))
            .partition(format!("p{}", number % 4))
            .id(format!("id{number}"))
            .run(other)
            .await?;
    }
    let pop = Pop::new("q").group("g").mode("all").batch(100).partitions(10);
    let came = pop.run(other).await?;
    complete(other, &came).await?;
    Push::new("q", n(20)).partition("p0").run(other).await?;
    let left = Pop::new("q").group("g").partition("p0").lease("1 ms").run(other).await?;
    assert_eq!(numbers(&left), [20]);
    other
        .run("SELECT queen_schedule('q', 'k', '{\"n\": 21}', delay => '0', partition => 'timer')")
        .await?;
    tokio::time::sleep(Duration::from_millis(20)).await;

    open.run("BEGIN").await?;
    open.run("SELECT queen_sweep()").await?;
    other.be_prompt().await?;
    Push::new("q", n(22)).partition("fresh").id("fresh").run(other).await?;
    PushBatch::new("q", vec![n(23), n(24)]).partition("p1").run(other).await?;
    let came = Pop::new("q").group("g").partition("fresh").run(other).await?;
    assert_eq!(numbers(&came), [22]);
    complete(other, &came).await?;
    pop.run(other).await?;
    other.run("SELECT queen_sweep()").await?;
    open.run("COMMIT").await?;
    // Messages 20, 21, 23 and 24 are pending, whichever session has them.
    let sql = "SELECT pending FROM queen_groups WHERE consumer_group = 'g'";
    assert_eq!(other.count(sql).await?, 4);
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn a_publication_of_all_tables_forbids_no_deletion() -> Result<()> {
    let db = TestDb::fresh().await?;
    let session = db.session().await?;
    session.run("CREATE PUBLICATION everything FOR ALL TABLES").await?;
    for number in 0..3 {
        Push::new("q", n(number)).id(number.to_string()).run(&session).await?;
    }
    let pop = Pop::new("q").group("g").mode("all").auto_ack();
    assert_eq!(numbers(&pop.run(&session).await?), [0]);
    session.run("SELECT queen_configure('q', retention => '1 us')").await?;
    session.run("SELECT queen_sweep(1000)").await?;
    assert_eq!(session.count("SELECT count(*) FROM queen_messages").await?, 0);
    session.run("SELECT queen_configure('q', unset => '{retention}')").await?;
    Push::new("q", n(4)).run(&session).await?;
    assert_eq!(session.count("SELECT queen_purge('q')").await?, 1);
    session.run("SELECT queen_delete_queue('q')").await?;
    assert_eq!(session.count("SELECT count(*) FROM queen_mq.segment").await?, 0);
    Ok(())
}
