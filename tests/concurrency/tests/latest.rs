//! `delivery => 'latest'`: of each partition, consumers get the newest state, and never an older
//! one after a newer one.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use anyhow::{Result, ensure};
use queen_tests::waiting::{are_asleep, is_ready, wait_in_task};
use queen_tests::{
    Ack, Fails, Item, Message, Pop, Push, PushBatch, Session, TestDb, complete, eventually, expiry,
    n, numbers,
};

const KEYS: usize = 100;
/// How long updates come.
const LONG: Duration = Duration::from_secs(4);
const SOON: Duration = Duration::from_secs(20);

fn pop() -> Pop {
    Pop::new("q").group("g").mode("all")
}

async fn latest(db: &TestDb) -> Result<Session> {
    let session = db.session().await?;
    session.run("SELECT queen_configure('q', delivery => 'latest')").await?;
    Ok(session)
}

async fn pending(session: &Session) -> Result<i64> {
    Ok(session.count("SELECT pending FROM queen_groups WHERE queue = 'q'").await?)
}

fn update(key: usize, number: i64) -> Item {
    let (queue, partition) = ("q".to_owned(), format!("key {}", key % KEYS));
    Item { queue, payload: n(number), partition, transaction_id: None }
}

/// Push updates until `over`, ten in a transaction. `open`: for how long it stays open after that.
/// Some transactions are rolled back.
async fn push(session: Session, seed: usize, open: u64, over: Arc<AtomicBool>) -> Result<()> {
    for round in 0.. {
        if over.load(Ordering::Relaxed) {
            break;
        }
        let key = |at: usize| seed + round * 37 + at * 13;
        let items: Vec<Item> = (0..10).map(|at| update(key(at), round as i64)).collect();
        session.run("BEGIN").await?;
        Item::push(&items, &session).await?;
        tokio::time::sleep(Duration::from_millis(open * (round as u64 % 4))).await;
        let commits = round % 11 != 10;
        session.run(if commits { "COMMIT" } else { "ROLLBACK" }).await?;
        tokio::time::sleep(Duration::from_millis(36)).await;
    }
    Ok(())
}

/// The newest message that was delivered of each partition.
type Seen = Arc<Mutex<BTreeMap<String, i64>>>;

/// Note what came. A message may come again, and none may be older than one before.
fn note(seen: &Seen, messages: &[Message]) -> Result<()> {
    let mut seen = seen.lock().unwrap_or_else(PoisonError::into_inner);
    for one in messages {
        let before = seen.insert(one.partition.clone(), one.message_id).unwrap_or(0);
        ensure!(before <= one.message_id, "{before} came before {one:?}");
    }
    Ok(())
}

/// Consume slowly until `over`. Some deliveries fail.
async fn consume(session: Session, seen: Seen, over: Arc<AtomicBool>) -> Result<()> {
    let mut count = 0;
    while !over.load(Ordering::Relaxed) {
        let came = pop().batch(5).partitions(5).run(&session).await?;
        note(&seen, &came)?;
        count += came.len();
        tokio::time::sleep(Duration::from_millis(60)).await;
        if let Some(first) = came.first() {
            match count % 7 {
                6 => drop(Ack::all(first.lease()?).failed("again").run(&session).await?),
                _ => complete(&session, &came).await?,
            }
        }
    }
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn a_slow_consumer_sees_the_newest_state_of_each_key_and_never_goes_back() -> Result<()> {
    let db = TestDb::alone().await?;
    let session = latest(&db).await?;
    let (over, seen) = (Arc::new(AtomicBool::new(false)), Seen::default());
    let mut pushing = Vec::new();
    // About a thousand updates a second, and transactions that commit late.
    for (number, pusher) in db.crowd(6).await?.into_iter().enumerate() {
        let open = if number < 4 { 0 } else { 60 };
        pushing.push(tokio::spawn(push(pusher, number * 17, open, over.clone())));
    }
    let mut consuming = Vec::new();
    for consumer in db.crowd(2).await? {
        consuming.push(tokio::spawn(consume(consumer, seen.clone(), over.clone())));
    }
    eventually("the group", SOON, async || {
        let groups = session.count("SELECT count(*) FROM queen_groups").await?;
        Ok((groups == 1).then_some(()))
    })
    .await?;
    let began = Instant::now();
    while began.elapsed() < LONG {
        let pending = pending(&session).await?;
        ensure!(pending <= KEYS as i64, "{pending} messages are pending for {KEYS} keys");
        tokio::time::sleep(Duration::from_millis(200)).await;
    }
    over.store(true, Ordering::Relaxed);
    for task in pushing {
        task.await??;
    }
    for task in consuming {
        task.await??;
    }

    // What is left is one delivery for each key at most.
    let mut left = 0;
    eventually("an end", SOON, async || {
        let came = pop().batch(100).partitions(100).run(&session).await?;
        note(&seen, &came)?;
        complete(&session, &came).await?;
        left += came.len();
        Ok((pending(&session).await? == 0).then_some(()))
    })
    .await?;
    ensure!(left <= KEYS, "{left} deliveries were left for {KEYS} keys");
    let newest = "SELECT partition, max(message_id) FROM queen_messages GROUP BY partition";
    let newest: BTreeMap<String, i64> =
        session.query(newest, &[]).await?.iter().map(|row| (row.get(0), row.get(1))).collect();
    assert_eq!(*seen.lock().unwrap_or_else(PoisonError::into_inner), newest);
    ensure!(!newest.is_empty(), "nothing was pushed");
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn what_commits_late_and_is_older_is_completed_unseen() -> Result<()> {
    let db = TestDb::fresh().await?;
    let session = latest(&db).await?;
    let late = db.session().await?;
    late.run("BEGIN").await?;
    PushBatch::new("q", vec![n(1), n(2)]).run(&late).await?;
    Push::new("q", n(3)).run(&session).await?;
    let held = pop().one(&session).await?;
    assert_eq!(held.payload, n(3));
    late.run("COMMIT").await?;
    // While 3 is held, and after it has failed: 3 stays the newest.
    assert_eq!(pop().run(&session).await?, []);
    Ack::all(held.lease()?).failed("once").run(&session).await?;
    let again = pop().one(&session).await?;
    assert_eq!((&again.payload, again.delivery_attempt), (&n(3), 2));
    complete(&session, &[again]).await?;
    assert_eq!(pop().run(&session).await?, []);
    assert_eq!(pending(&session).await?, 0);
    // An older one that comes when all is settled is no message to wait for, either.
    late.run("BEGIN").await?;
    Push::new("q", n(4)).run(&late).await?;
    Push::new("q", n(5)).run(&session).await?;
    complete(&session, &[pop().one(&session).await?]).await?;
    late.run("COMMIT").await?;
    ensure!(!is_ready(&session, "0").await?, "a pop would deliver nothing");
    assert_eq!(pop().run(&session).await?, []);
    // The log is what it was: another group, which begins there, gets the newest.
    let other = pop().group("other").batch(100).run(&session).await?;
    assert_eq!(numbers(&other), [5]);
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn a_pop_that_waits_goes_on_waiting_for_a_newer_one() -> Result<()> {
    let db = TestDb::fresh().await?;
    let session = latest(&db).await?;
    let late = db.session().await?;
    late.run("BEGIN").await?;
    Push::new("q", n(1)).run(&late).await?;
    Push::new("q", n(2)).run(&session).await?;
    complete(&session, &[pop().one(&session).await?]).await?;
    let waiting = wait_in_task(db.session().await?, pop().wait("30 s"));
    are_asleep(&session, 1).await?;
    // This wakes the pop, which finds nothing that it could deliver.
    late.run("COMMIT").await?;
    Push::new("q", n(3)).run(&session).await?;
    let (came, ..) = tokio::time::timeout(SOON, waiting).await???;
    assert_eq!(numbers(&came), [3]);
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn an_older_one_does_not_come_back_when_the_newer_one_is_deleted() -> Result<()> {
    let db = TestDb::fresh().await?;
    let session = latest(&db).await?;
    session.run("SELECT queen_configure('q', completed_retention => '1 ms')").await?;
    let late = db.session().await?;
    late.run("BEGIN").await?;
    Push::new("q", n(1)).run(&late).await?;
    Push::new("q", n(2)).run(&session).await?;
    complete(&session, &[pop().one(&session).await?]).await?;
    eventually("deletion of 2", SOON, async || {
        session.run("SELECT queen_sweep()").await?;
        let left = session.count("SELECT count(*) FROM queen_messages").await?;
        Ok((left == 0).then_some(()))
    })
    .await?;
    late.run("COMMIT").await?;
    assert_eq!(pop().run(&session).await?, []);
    Push::new("q", n(3)).run(&session).await?;
    assert_eq!(pop().one(&session).await?.payload, n(3));
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn who_was_too_slow_hears_that_a_newer_message_has_come() -> Result<()> {
    let db = TestDb::fresh().await?;
    let session = latest(&db).await?;
    Push::new("q", n(1)).run(&session).await?;
    let slow = pop().lease("1 ms").one(&session).await?;
    expiry(&session, &slow).await?;
    Push::new("q", n(2)).run(&session).await?;
    let newer = pop().one(&session).await?;
    assert_eq!((&newer.payload, newer.delivery_attempt), (&n(2), 1));
    Ack::all(slow.lease()?).run(&session).await.fails_with("QN002")?;
    // 1 was completed by the pop, and is not part of its lease.
    let named = Ack::messages(newer.lease()?, [slow.message_id]);
    named.run(&session).await.fails_with("QN004")?;
    complete(&session, &[newer]).await?;
    assert_eq!(pop().run(&session).await?, []);
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn a_pop_that_is_rolled_back_completes_nothing() -> Result<()> {
    let db = TestDb::fresh().await?;
    let session = latest(&db).await?;
    PushBatch::new("q", vec![n(1), n(2)]).run(&session).await?;
    session.run("BEGIN").await?;
    assert_eq!(pop().one(&session).await?.payload, n(2));
    session.run("ROLLBACK; SELECT queen_configure('q', unset => ARRAY['delivery'])").await?;
    assert_eq!(numbers(&pop().batch(9).run(&session).await?), [1, 2]);
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn it_does_not_go_with_groups_without_order_whichever_comes_later() -> Result<()> {
    const LATEST: &str = "SELECT queen_configure('q', delivery => 'latest')";
    const GROUP: &str = "SELECT queen_subscribe('q', 'loose', ordering => 'none')";
    let db = TestDb::fresh().await?;
    let [ref session, ref other] = db.sessions().await?;
    session.run("SELECT queen_configure('q')").await?;
    // Of two transactions that contradict each other, the second waits for the first.
    for (first, second) in [(LATEST, GROUP), (GROUP, LATEST)] {
        session.run("BEGIN").await?;
        session.run(first).await?;
        let refused = async { other.run(second).await.fails_with("22023").map(drop) };
        let committed = async {
            eventually("a session that waits", SOON, async || {
                let sql = "SELECT cardinality(pg_blocking_pids($1))::bigint";
                let waits = session.query_one(sql, &[&other.pid()]).await?.get::<_, i64>(0);
                Ok((waits == 1).then_some(()))
            })
            .await?;
            Ok::<_, anyhow::Error>(session.run("COMMIT").await?)
        };
        let (refused, committed) = tokio::join!(refused, committed);
        refused?;
        committed?;
        session.run("SELECT queen_unsubscribe('q', 'loose')").await?;
        session.run("SELECT queen_configure('q', reset => true)").await?;
    }
    Ok(())
}

/// A message is pending that was pushed before the group was registered, and committed after it.
#[tokio::test(flavor = "multi_thread")]
async fn a_message_that_commits_after_the_registration_is_pending() -> Result<()> {
    let db = TestDb::fresh().await?;
    let session = latest(&db).await?;
    let late = db.session().await?;
    late.run("BEGIN").await?;
    Push::new("q", n(1)).run(&late).await?;
    session.run("SELECT queen_subscribe('q', 'g')").await?;
    assert_eq!(pending(&session).await?, 0);
    late.run("COMMIT").await?;
    assert_eq!(pending(&session).await?, 1);
    assert_eq!(session.count("SELECT depth FROM queen_queues WHERE queue = 'q'").await?, 1);
    complete(&session, &[pop().one(&session).await?]).await?;
    assert_eq!(pending(&session).await?, 0);
    Ok(())
}
