//! Queen MQ's own tests of pops, written for the contract of queen_mq. The number at the end of a
//! name is that of the behaviour in the list that these tests follow.

use std::collections::{HashMap, HashSet};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use anyhow::{Result, ensure};
use chrono::TimeDelta;
use queen_tests::{
    Ack, Message, Pop, Push, PushBatch, Session, TestDb, at_once, complete, drain, eventually,
    expiry, n, numbers,
};

const SOON: Duration = Duration::from_secs(10);

fn pop() -> Pop {
    Pop::new("q").group("g").mode("all").batch(100).partitions(100)
}

/// Push so many messages, numbered from 1, to each of these partitions.
async fn push_into(session: &Session, partitions: &[&str], messages: i64) -> Result<()> {
    for partition in partitions {
        PushBatch::numbers("q", 1..=messages).partition(*partition).run(session).await?;
    }
    Ok(())
}

fn partitions(messages: &[Message]) -> HashSet<&str> {
    messages.iter().map(|one| one.partition.as_str()).collect()
}

fn leases(messages: &[Message]) -> Result<HashSet<uuid::Uuid>> {
    messages.iter().map(Message::lease).collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn batch_is_the_total_over_all_partitions_q11() -> Result<()> {
    let db = TestDb::fresh().await?;
    let session = db.session().await?;
    push_into(&session, &["a", "b", "c"], 20).await?;
    let came = pop().batch(10).partitions(3).run(&session).await?;
    assert_eq!(came.len(), 10);
    complete(&session, &came).await?;
    let rest = drain(&session, &pop().batch(10).partitions(3), 50, SOON).await?;
    let mut all: Vec<(String, i64)> = came
        .iter()
        .chain(&rest)
        .map(|one| (one.partition.clone(), one.payload["n"].as_i64().unwrap_or_default()))
        .collect();
    all.sort_unstable();
    let expected = ["a", "b", "c"].into_iter();
    assert!(all.into_iter().eq(expected.flat_map(|p| (1..=20).map(move |k| (p.to_owned(), k)))));
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn a_pop_takes_one_partition_or_up_to_so_many_under_one_lease_q12() -> Result<()> {
    let db = TestDb::fresh().await?;
    let session = db.session().await?;
    push_into(&session, &["a", "b", "c", "d", "e", "f"], 2).await?;
    let one = Pop::new("q").group("g").mode("all").batch(100).run(&session).await?;
    assert_eq!((partitions(&one).len(), numbers(&one)), (1, vec![1, 2]));
    let three = pop().partitions(3).run(&session).await?;
    assert_eq!((partitions(&three).len(), three.len()), (3, 6));
    let rest = pop().partitions(100).run(&session).await?;
    assert_eq!((partitions(&rest).len(), rest.len()), (2, 4));
    let mut all = HashSet::new();
    for held in [&one, &three, &rest] {
        let lease = leases(held)?;
        assert_eq!(lease.len(), 1, "{held:?}");
        all.extend(lease);
        complete(&session, held).await?;
    }
    assert_eq!(all.len(), 3, "each pop has a lease of its own");
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn auto_ack_gives_no_lease_and_nothing_is_delivered_again_q13() -> Result<()> {
    let db = TestDb::fresh().await?;
    let session = db.session().await?;
    push_into(&session, &["a"], 5).await?;
    let first = pop().batch(2).auto_ack().run(&session).await?;
    assert_eq!(numbers(&first), [1, 2]);
    assert!(first.iter().all(|one| one.lease_id.is_none() && one.lease_expires_at.is_none()));
    assert_eq!(session.count("SELECT count(*) FROM queen_leases").await?, 0);
    // The next pop gets the next message at once, and then no more come.
    let second = pop().auto_ack().run(&session).await?;
    assert_eq!(numbers(&second), [3, 4, 5]);
    assert_eq!(pop().run(&session).await?, []);
    let row = session.query_one("SELECT pending, in_flight FROM queen_groups", &[]).await?;
    assert_eq!((row.get::<_, i64>(0), row.get::<_, i64>(1)), (0, 0));
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn a_waiting_pop_returns_soon_after_a_commit_and_empty_at_its_timeout_q15() -> Result<()> {
    let db = TestDb::alone().await?;
    let [ref watcher, ref pusher] = db.sessions().await?;
    // The first call of a session is slower.
    Push::new("q", n(0)).run(pusher).await?;
    drain(watcher, &pop(), 1, SOON).await?;

    let popper = db.session().await?;
    let pid = popper.pid();
    let waiting = tokio::spawn(async move {
        let came = pop().wait("20 seconds").run(&popper).await;
        (Instant::now(), came)
    });
    let sql = format!(
        "SELECT count(*) FROM pg_stat_activity WHERE pid = {pid} AND state = 'active' \
         AND query LIKE '%queen_pop%' \
         AND clock_timestamp() - query_start > interval '300 milliseconds'"
    );
    eventually(
        "pop that waits",
        SOON,
        async || Ok((watcher.count(&sql).await? == 1).then_some(())),
    )
    .await?;
    pusher.run("BEGIN").await?;
    Push::new("q", n(1)).run(pusher).await?;
    pusher.run("COMMIT").await?;
    let committed = Instant::now();
    let (returned, came) = waiting.await?;
    assert_eq!(numbers(&came?), [1]);
    let took = returned.saturating_duration_since(committed);
    ensure!(took < Duration::from_millis(300), "it returned {took:?} after the commit");

    let started = Instant::now();
    assert_eq!(pop().wait("500 milliseconds").run(watcher).await?, []);
    let took = started.elapsed();
    ensure!(took >= Duration::from_millis(500), "it gave up after {took:?}");
    ensure!(took < Duration::from_secs(2), "it gave up only after {took:?}");
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn each_group_gets_everything_and_its_consumers_share_it_q16() -> Result<()> {
    const PER_PARTITION: i64 = 15;
    const TOTAL: usize = 60;
    let db = TestDb::fresh().await?;
    let session = db.session().await?;
    push_into(&session, &["a", "b", "c", "d"], PER_PARTITION).await?;
    let shares = at_once(db.crowd(4).await?, |worker, session| async move {
        let group = if worker % 2 == 0 { "even" } else { "odd" };
        let pop = Pop::new("q").group(group).mode("all").batch(4).partitions(2);
        // The group may not exist yet: the other consumer is registering it.
        let left = format!(
            "SELECT coalesce(sum(pending), 1)::bigint FROM queen_groups \
             WHERE consumer_group = '{group}'"
        );
        let mut share = Vec::new();
        let started = Instant::now();
        loop {
            let came = pop.run(&session).await?;
            complete(&session, &came).await?;
            if came.is_empty() {
                if session.count(&left).await? == 0 {
                    break;
                }
                // The other consumer holds the partition.
                tokio::time::sleep(Duration::from_millis(2)).await;
            }
            share.extend(came);
            ensure!(started.elapsed() < SOON, "{} came to one of {group}", share.len());
        }
        Ok::<_, anyhow::Error>(share)
    })
    .await?;
    let shares = shares.into_iter().collect::<Result<Vec<_>>>()?;
    for (group, own) in [("even", [0, 2]), ("odd", [1, 3])] {
        let both: Vec<&Message> = own.iter().flat_map(|worker| &shares[*worker]).collect();
        assert!(both.iter().all(|one| one.consumer_group.as_deref() == Some(group)));
        let ids: HashSet<i64> = both.iter().map(|one| one.message_id).collect();
        assert_eq!((both.len(), ids.len()), (TOTAL, TOTAL), "group {group}");
    }
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn a_leased_partition_is_passed_by_and_the_others_are_served_q17() -> Result<()> {
    let db = TestDb::fresh().await?;
    let [ref first, ref second] = db.sessions().await?;
    push_into(first, &["a", "b"], 3).await?;
    let held = pop().partition("a").batch(1).one(first).await?;
    let came = pop().run(second).await?;
    assert_eq!((partitions(&came), numbers(&came)), (HashSet::from(["b"]), vec![1, 2, 3]));
    assert_eq!(pop().partition("a").run(second).await?, []);
    // The lease does not concern the other group.
    let other = pop().group("h").partition("a").run(second).await?;
    assert_eq!(numbers(&other), [1, 2, 3]);
    complete(first, &[held]).await?;
    assert_eq!(numbers(&pop().run(second).await?), [2, 3]);
    Ok(())
}

/// Which partitions are held, and what has come from each.
#[derive(Default)]
struct Hands {
    held: HashSet<String>,
    came: HashMap<String, Vec<i64>>,
    count: usize,
}

impl Hands {
    fn hold(&mut self, came: &[Message]) -> Result<()> {
        let Some(first) = came.first() else { return Ok(()) };
        ensure!(partitions(came).len() == 1, "{came:?} are of several partitions");
        let partition = first.partition.clone();
        ensure!(self.held.insert(partition.clone()), "{partition} is in two hands");
        self.came.entry(partition).or_default().extend(numbers(came));
        Ok(())
    }

    /// Call this before the lease ends. Returns how many messages have come until now.
    fn give_back(&mut self, came: &[Message]) -> usize {
        if let Some(first) = came.first() {
            self.held.remove(&first.partition);
        }
        self.count += came.len();
        self.count
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn no_partition_is_in_two_hands_while_six_drain_thirty_q18() -> Result<()> {
    const PER_PARTITION: i64 = 10;
    const TOTAL: usize = 300;
    let db = TestDb::fresh().await?;
    let session = db.session().await?;
    let names: Vec<String> = (0..30).map(|number| format!("p{number}")).collect();
    let all: Vec<&str> = names.iter().map(String::as_str).collect();
    push_into(&session, &all, PER_PARTITION).await?;
    let hands = Arc::new(Mutex::new(Hands::default()));
    let results = at_once(db.crowd(6).await?, |_, session| {
        let hands = hands.clone();
        async move {
            let pop = pop().batch(3).partitions(1);
            let started = Instant::now();
            loop {
                let came = pop.run(&session).await?;
                hands.lock().unwrap_or_else(PoisonError::into_inner).hold(&came)?;
                tokio::time::sleep(Duration::from_millis(1)).await;
                let count = hands.lock().unwrap_or_else(PoisonError::into_inner).give_back(&came);
                complete(&session, &came).await?;
                if count >= TOTAL {
                    return Ok(());
                }
                ensure!(started.elapsed() < SOON, "{count} of {TOTAL} came");
            }
        }
    })
    .await?;
    results.into_iter().collect::<Result<()>>()?;
    let hands = hands.lock().unwrap_or_else(PoisonError::into_inner);
    assert_eq!((hands.count, hands.came.len()), (TOTAL, 30));
    for (partition, came) in &hands.came {
        assert!(came.iter().copied().eq(1..=PER_PARTITION), "{partition}: {came:?}");
    }
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn pops_that_find_a_lease_do_not_lose_what_is_behind_it_q19() -> Result<()> {
    let db = TestDb::fresh().await?;
    let [ref first, ref second] = db.sessions().await?;
    push_into(first, &["a"], 5).await?;
    let held = pop().batch(2).run(first).await?;
    assert_eq!(numbers(&held), [1, 2]);
    for _ in 0..20 {
        assert_eq!(pop().run(second).await?, []);
        assert_eq!(pop().run(first).await?, []);
    }
    complete(first, &held).await?;
    let rest = drain(second, &pop(), 3, SOON).await?;
    assert_eq!(numbers(&rest), [3, 4, 5]);
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn the_delivery_attempt_counts_deliveries_of_a_message_to_a_group_q20() -> Result<()> {
    let db = TestDb::fresh().await?;
    let session = db.session().await?;
    push_into(&session, &["a"], 4).await?;
    let briefly = pop().lease("150 milliseconds");
    let attempts = |messages: &[Message]| -> Vec<(i64, i32)> {
        let attempts = messages.iter().map(|one| one.delivery_attempt);
        numbers(messages).into_iter().zip(attempts).collect()
    };
    let held = briefly.clone().batch(3).run(&session).await?;
    assert_eq!(attempts(&held), [(1, 1), (2, 1), (3, 1)]);
    expiry(&session, &held[0]).await?;
    let held = pop().batch(3).lease("2 seconds").run(&session).await?;
    assert_eq!(attempts(&held), [(1, 2), (2, 2), (3, 2)]);
    // After a partial ack, the rest of the batch has been delivered before, and what follows it has
    // not.
    Ack::messages(held[0].lease()?, [held[0].message_id]).run(&session).await?;
    Ack::messages(held[0].lease()?, [held[1].message_id]).status("retry").run(&session).await?;
    let held = briefly.run(&session).await?;
    assert_eq!(attempts(&held), [(2, 3), (3, 3), (4, 1)]);
    expiry(&session, &held[0]).await?;
    let other = pop().group("h").run(&session).await?;
    assert_eq!(attempts(&other), [(1, 1), (2, 1), (3, 1), (4, 1)]);
    let at_once = pop().group("at once").auto_ack().run(&session).await?;
    assert_eq!(attempts(&at_once), [(1, 1), (2, 1), (3, 1), (4, 1)]);
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn a_pop_may_name_another_lease_time_than_the_queue_has_q21() -> Result<()> {
    let db = TestDb::fresh().await?;
    let session = db.session().await?;
    session.run("SELECT queen_configure('q', lease_time => '1 hour')").await?;
    push_into(&session, &["a", "b"], 1).await?;
    for (partition, lease_time, expected) in [
        ("a", None, TimeDelta::hours(1)),
        ("b", Some("300 milliseconds"), TimeDelta::milliseconds(300)),
    ] {
        let mut pop = pop().partition(partition);
        if let Some(lease_time) = lease_time {
            pop = pop.lease(lease_time);
        }
        let before = session.now().await?;
        let held = pop.one(&session).await?;
        let given = (before + expected)..=(session.now().await? + expected);
        ensure!(given.contains(&held.expires_at()?), "{held:?} was not given {expected}");
        if lease_time.is_some() {
            expiry(&session, &held).await?;
            assert_eq!(pop.one(&session).await?.delivery_attempt, 2);
        }
    }
    assert_eq!(pop().partition("a").run(&session).await?, []);
    Ok(())
}
