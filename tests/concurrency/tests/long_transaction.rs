//! Transactions that stay open for a long time, while thousands of others begin and end.

use std::collections::HashSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicI64, AtomicUsize, Ordering};
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use queen_tests::{
    Ack, Message, Pop, Push, PushBatch, Session, TestDb, complete, drain, n, numbers,
};
use tokio::task::JoinSet;

const PARTITIONS: i64 = 4;
const PRODUCERS: i64 = 4;
const CONSUMERS: usize = 3;

fn pop() -> Pop {
    Pop::new("q").group("g").mode("all")
}

fn partition(number: i64) -> String {
    format!("p{}", number % PARTITIONS)
}

/// Push so many single messages, numbered from `from`, and consume until as many have been
/// completed.
async fn traffic(db: &TestDb, from: i64, many: usize) -> Result<Vec<i64>> {
    let next = Arc::new(AtomicI64::new(from));
    let until = from + many as i64;
    let completed = Arc::new(AtomicUsize::new(0));
    let mut producers = JoinSet::new();
    for session in db.crowd(PRODUCERS as usize).await? {
        let next = next.clone();
        producers.spawn(async move {
            loop {
                let number = next.fetch_add(1, Ordering::Relaxed);
                if number >= until {
                    return Ok(());
                }
                Push::new("q", n(number)).partition(partition(number)).run(&session).await?;
            }
        });
    }
    let mut consumers = JoinSet::new();
    for session in db.crowd(CONSUMERS).await? {
        let completed = completed.clone();
        consumers.spawn(consume(session, completed, many));
    }
    while let Some(producer) = producers.join_next().await {
        let done: Result<(), tokio_postgres::Error> = producer?;
        done?;
    }
    let mut all = Vec::new();
    while let Some(consumer) = consumers.join_next().await {
        all.extend(consumer??);
    }
    all.sort_unstable();
    Ok(all)
}

async fn consume(session: Session, completed: Arc<AtomicUsize>, many: usize) -> Result<Vec<i64>> {
    let mut mine = Vec::new();
    let pop = pop().batch(4).partitions(2);
    let started = tokio::time::Instant::now();
    while completed.load(Ordering::Relaxed) < many {
        ensure!(started.elapsed() < Duration::from_secs(60), "{} completed here", mine.len());
        session.run("BEGIN").await?;
        let came = pop.run(&session).await?;
        complete(&session, &came).await?;
        session.run("COMMIT").await?;
        completed.fetch_add(came.len(), Ordering::Relaxed);
        mine.extend(numbers(&came));
    }
    Ok(mine)
}

#[tokio::test(flavor = "multi_thread")]
async fn a_transaction_held_open_through_thousands_of_others_loses_nothing() -> Result<()> {
    const TRAFFIC: usize = 2000;
    let db = TestDb::alone().await?;
    let [ref long, ref session] = db.sessions().await?;
    // The messages that the long transaction consumes, in a partition of their own.
    PushBatch::new("q", vec![n(-1), n(-2), n(-3)]).partition("own").run(session).await?;
    let earlier = pop().partition("own").one(session).await?;

    long.run("BEGIN").await?;
    for number in 0..8 {
        let push = Push::new("q", n(1_000_000 + number)).partition(partition(number));
        push.run(long).await?;
    }
    Push::new("q", n(2_000_000)).partition("born").run(long).await?;
    complete(long, &[earlier]).await?;
    let held = pop().partition("own").one(long).await?;
    assert_eq!(held.payload, n(-2));

    let came = traffic(&db, 0, TRAFFIC).await?;
    assert!(came.into_iter().eq(0..TRAFFIC as i64), "each once, and none of the open transaction");
    // The group is registered while the transaction is open, so the messages of that transaction
    // come later.
    session.run("SELECT queen_subscribe('q', 'late', mode => 'new')").await?;
    long.run("COMMIT").await?;

    let wanted = [1_000_000, 1_000_001, 1_000_002, 1_000_003, 1_000_004, 1_000_005, 1_000_006];
    let wanted: Vec<i64> = [&wanted[..], &[1_000_007, 2_000_000]].concat();
    for group in ["g", "late"] {
        let pop = pop().group(group).batch(3).partitions(2);
        let came = drain(session, &pop, wanted.len(), Duration::from_secs(20)).await?;
        for partition in ["p0", "p1", "p2", "p3"] {
            let of_partition: Vec<Message> =
                came.iter().filter(|one| one.partition == partition).cloned().collect();
            assert!(numbers(&of_partition).is_sorted(), "{partition}: {of_partition:?}");
        }
        let mut came = numbers(&came);
        came.sort_unstable();
        assert_eq!(came, wanted, "group {group}");
    }
    complete(session, &[held]).await?;
    assert_eq!(pop().one(session).await?.payload, n(-3));
    Ok(())
}

/// Two transactions push more than a pop returns, and the second commits while messages of the
/// first are still being delivered.
#[tokio::test(flavor = "multi_thread")]
async fn late_commits_of_many_messages_are_caught_up_with_in_pieces() -> Result<()> {
    let db = TestDb::fresh().await?;
    let [ref first, ref second, ref session] = db.sessions().await?;
    session.run("SELECT queen_configure('q')").await?;
    first.run("BEGIN").await?;
    second.run("BEGIN").await?;
    let mut expected = HashSet::new();
    let batch = |from: i64, many: i64| PushBatch::new("q", (from..from + many).map(n).collect());
    for round in 0..10 {
        batch(10_000 + round * 60, 60).run(first).await?;
        batch(20_000 + round * 30, 30).run(second).await?;
        batch(round * 20, 20).run(session).await?;
    }
    expected.extend((10_000..10_600).chain(20_000..20_300).chain(0..200));
    let before = drain(session, &pop().batch(50), 200, Duration::from_secs(10)).await?;
    assert!(numbers(&before).into_iter().eq(0..200));

    let mut came = numbers(&before);
    first.run("COMMIT").await?;
    let mut round = 0;
    while came.len() < expected.len() {
        ensure!(round < 2000, "{} of {} messages came", came.len(), expected.len());
        if round == 20 {
            second.run("COMMIT").await?;
        }
        if round < 40 {
            Push::new("q", n(30_000 + round)).run(session).await?;
            expected.insert(30_000 + round);
        }
        session.run("BEGIN").await?;
        let batch = pop().batch(7).run(session).await?;
        complete(session, &batch).await?;
        // Every third pop is rolled back.
        if round % 3 == 2 {
            session.run("ROLLBACK").await?;
        } else {
            session.run("COMMIT").await?;
            came.extend(numbers(&batch));
        }
        round += 1;
    }
    assert_eq!(pop().run(session).await?, []);
    let distinct: HashSet<i64> = came.iter().copied().collect();
    assert_eq!((came.len(), &distinct), (expected.len(), &expected));
    for from in [10_000, 20_000, 30_000] {
        let part: Vec<_> = came.iter().filter(|one| (from..from + 10_000).contains(*one)).collect();
        assert!(part.is_sorted(), "each transaction in its order: {part:?}");
    }
    Ok(())
}

/// There are more subtransactions than a snapshot lists.
#[tokio::test(flavor = "multi_thread")]
async fn pushes_in_many_savepoints_come_with_the_commit() -> Result<()> {
    let db = TestDb::fresh().await?;
    let [ref long, ref session] = db.sessions().await?;
    session.run("SELECT queen_configure('q')").await?;
    long.run("BEGIN").await?;
    let mut wanted = Vec::new();
    for number in 0..150 {
        long.run("SAVEPOINT s").await?;
        Push::new("q", n(number)).run(long).await?;
        if number % 3 == 0 {
            long.run("ROLLBACK TO SAVEPOINT s").await?;
        } else {
            wanted.push(number);
        }
        long.run("RELEASE SAVEPOINT s").await?;
    }
    for round in 0..30 {
        Push::new("q", n(1000 + round)).run(session).await?;
        let came = pop().one(session).await?;
        assert_eq!(came.payload, n(1000 + round));
        Ack::all(came.lease()?).run(session).await?;
    }
    long.run("COMMIT").await?;
    Push::new("q", n(2000)).run(session).await?;
    wanted.push(2000);
    let came = drain(session, &pop().batch(11), wanted.len(), Duration::from_secs(20)).await?;
    assert_eq!(numbers(&came), wanted);
    Ok(())
}

/// Transactions end in every order, and the others' consumers have read past each of them.
#[tokio::test(flavor = "multi_thread")]
async fn transactions_that_end_in_any_order_lose_nothing() -> Result<()> {
    const OPEN: usize = 12;
    let db = TestDb::fresh().await?;
    let session = db.session().await?;
    // The first push of all creates the queue, and others would wait for it.
    session.run("SELECT queen_configure('q')").await?;
    let sessions = db.crowd(OPEN).await?;
    let mut wanted = HashSet::new();
    for (number, open) in sessions.iter().enumerate() {
        open.run("BEGIN").await?;
        // Some transactions get their transaction id long before they push.
        if number % 2 == 0 {
            open.run("SELECT pg_current_xact_id()").await?;
        } else {
            Push::new("q", n(number as i64 * 100)).run(open).await?;
        }
    }
    let mut came = Vec::new();
    let mut consume = async || -> Result<()> {
        let messages = pop().batch(5).run(&session).await?;
        complete(&session, &messages).await?;
        came.extend(numbers(&messages));
        Ok(())
    };
    for (step, index) in [7, 0, 11, 3, 8, 5, 1, 10, 2, 6, 9, 4].into_iter().enumerate() {
        Push::new("q", n(100_000 + step as i64)).run(&session).await?;
        wanted.insert(100_000 + step as i64);
        consume().await?;
        let open = sessions.get(index).context("one session for each step")?;
        let base = index as i64 * 100;
        Push::new("q", n(base + 1)).run(open).await?;
        Push::new("q", n(base + 2)).partition("other").run(open).await?;
        if step % 4 == 3 {
            open.run("ROLLBACK").await?;
            continue;
        }
        open.run("COMMIT").await?;
        wanted.extend([base + 1, base + 2]);
        if index % 2 == 1 {
            wanted.insert(base);
        }
        consume().await?;
    }
    let left = wanted.len() - came.len();
    let rest = drain(&session, &pop().batch(2), left, Duration::from_secs(10)).await?;
    came.extend(numbers(&rest));
    let distinct: HashSet<i64> = came.iter().copied().collect();
    assert_eq!((came.len(), distinct), (wanted.len(), wanted));
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn a_lease_taken_and_run_out_behind_an_own_ack_is_found_again() -> Result<()> {
    let db = TestDb::fresh().await?;
    let [ref long, ref other] = db.sessions().await?;
    for number in 0..3 {
        Push::new("q", n(number)).run(long).await?;
    }
    let first = pop().lease("1 h").run(long).await?;
    // The deadline passes before any other transaction can see the lease, and other sessions have
    // popped meanwhile.
    long.run("BEGIN").await?;
    complete(long, &first).await?;
    let second = pop().lease("300 ms").run(long).await?;
    assert_eq!(numbers(&second), [1]);
    tokio::time::sleep(Duration::from_millis(500)).await;
    for number in 100..160 {
        Push::new("q", n(number)).partition(format!("p{number}")).run(other).await?;
    }
    // The first group stores how far it has looked, and the second session remembers it.
    let came = pop().batch(60).partitions(60).lease("1 h").run(other).await?;
    assert_eq!(came.len(), 60);
    assert!(pop().run(other).await?.is_empty());
    long.run("COMMIT").await?;
    let again = pop().run(other).await?;
    assert_eq!(numbers(&again), [1]);
    assert_eq!(again[0].delivery_attempt, 2);
    Ok(())
}

/// With a delay, what a long transaction pushed last is younger than what was pushed after it
/// began.
#[tokio::test(flavor = "multi_thread")]
async fn what_it_pushed_late_holds_back_nothing_older() -> Result<()> {
    let db = TestDb::fresh().await?;
    let [ref long, ref other] = db.sessions().await?;
    other.run("SELECT queen_configure('q', delay => '2 s')").await?;
    other.run("SELECT queen_subscribe('q', 'g', 'all')").await?;
    long.run("BEGIN; SELECT txid_current()").await?;
    Push::new("q", n(1)).partition("early").run(other).await?;
    tokio::time::sleep(Duration::from_millis(2100)).await;
    for number in 2..5 {
        Push::new("q", n(number)).partition(format!("late{number}")).run(long).await?;
    }
    long.run("COMMIT").await?;
    let committed = std::time::Instant::now();
    assert_eq!(numbers(&pop().run(other).await?), [1]);
    assert!(pop().run(other).await?.is_empty());
    ensure!(committed.elapsed() < Duration::from_secs(2), "too late to tell");
    tokio::time::sleep(Duration::from_secs(2)).await;
    let mut came = numbers(&pop().batch(9).partitions(9).run(other).await?);
    came.sort_unstable();
    assert_eq!(came, [2, 3, 4]);
    Ok(())
}
