//! From the commit to the delivery, over many rounds: no wake-up is lost, and none comes late.

use std::time::{Duration, Instant};

use anyhow::{Result, ensure};
use queen_tests::{Message, Pop, Push, Session, TestDb, complete, eventually, n, numbers};
use serde_json::json;

const SOON: Duration = Duration::from_millis(1500);

fn pop() -> Pop {
    Pop::new("q").group("g").mode("all")
}

type Waiting = tokio::task::JoinHandle<Result<(Vec<Message>, Instant, Session)>>;

fn wait_in_task(session: Session, pop: Pop) -> Waiting {
    tokio::spawn(async move {
        let came = pop.run(&session).await?;
        Ok((came, Instant::now(), session))
    })
}

async fn are_asleep(admin: &Session, count: i64) -> Result<()> {
    let sql = "SELECT count(*) FROM pg_stat_activity
               WHERE datname = current_database() AND wait_event = 'Extension'";
    eventually("sleeping sessions", Duration::from_secs(20), async || {
        Ok((admin.count(sql).await? == count).then_some(()))
    })
    .await
}

fn show(what: &str, mut all: Vec<Duration>) -> Duration {
    all.sort_unstable();
    let worst = all.last().copied().unwrap_or_default();
    eprintln!(
        "{what}: {} rounds, median {:?}, p95 {:?}, worst {:?}, over 80 ms: {}",
        all.len(),
        all[all.len() / 2],
        all[all.len() * 95 / 100],
        worst,
        all.iter().filter(|t| **t > Duration::from_millis(80)).count()
    );
    worst
}

/// How the transaction ends that has what the waiter wants.
#[tokio::test(flavor = "multi_thread")]
async fn ends_of_transactions_wake_at_once() -> Result<()> {
    let db = TestDb::alone().await?;
    let ends =
        ["ROLLBACK", "ROLLBACK TO SAVEPOINT a", "ROLLBACK TO SAVEPOINT b", "COMMIT AND CHAIN"];
    for ordering in ["partition", "none"] {
        let [ref holder, ref admin, mut waiter] = db.sessions().await?;
        admin.run(&format!("SELECT queen_configure('q', ordering => '{ordering}')")).await?;
        admin.run("SELECT queen_subscribe('q', 'g', 'all')").await?;
        for end in ends {
            let mut all = Vec::new();
            for round in 0..25 {
                let partition = format!("{end}{round}");
                if end == "COMMIT AND CHAIN" {
                    holder.run("BEGIN").await?;
                    Push::new("q", n(1)).partition(&partition).run(holder).await?;
                } else {
                    Push::new("q", n(1)).partition(&partition).run(admin).await?;
                    holder.run("BEGIN; SAVEPOINT a; SELECT queen_kv_put('x', 'y', '1')").await.ok();
                    holder.run("ROLLBACK; BEGIN; SAVEPOINT a").await?;
                    holder.run("SAVEPOINT b").await?;
                    assert_eq!(numbers(&pop().run(holder).await?), [1]);
                    if end.ends_with(" a") {
                        holder.run("RELEASE SAVEPOINT b").await?;
                    }
                }
                let waiting = wait_in_task(waiter, pop().wait("20 s"));
                are_asleep(admin, 1).await?;
                let began = Instant::now();
                holder.run(end).await?;
                let (came, at, session) = waiting.await??;
                assert_eq!(numbers(&came), [1]);
                all.push(at - began);
                complete(&session, &came).await?;
                holder.run("ROLLBACK").await?;
                waiter = session;
            }
            let worst = show(&format!("J {ordering} {end}"), all);
            ensure!(worst < SOON);
        }
        admin.run("SELECT queen_delete_queue('q')").await?;
    }
    Ok(())
}

/// A registration that is rolled back by a savepoint: the waiter registers the group.
#[tokio::test(flavor = "multi_thread")]
async fn a_registration_that_is_rolled_back_wakes_at_once() -> Result<()> {
    let db = TestDb::alone().await?;
    let [ref holder, ref admin, mut waiter] = db.sessions().await?;
    for end in ["ROLLBACK", "ROLLBACK TO SAVEPOINT a"] {
        let mut all = Vec::new();
        for round in 0..25 {
            let group = format!("{end} {round}");
            Push::new("q", n(1)).run(admin).await?;
            let pop = Pop::new("q").group(&group).mode("all").batch(100);
            holder.run("BEGIN; SAVEPOINT a").await?;
            holder.run(&format!("SELECT queen_subscribe('q', '{group}', 'all')")).await?;
            let waiting = wait_in_task(waiter, pop.wait("20 s"));
            are_asleep(admin, 1).await?;
            // Not at the moment at which the waiter looks again.
            tokio::time::sleep(Duration::from_millis(17)).await;
            let began = Instant::now();
            holder.run(end).await?;
            let (came, at, session) = waiting.await??;
            ensure!(!came.is_empty());
            all.push(at - began);
            holder.run("ROLLBACK").await?;
            waiter = session;
        }
        show(&format!("J registration {end}"), all);
    }
    Ok(())
}

/// Many wait, few push: each message is delivered soon after its commit.
#[tokio::test(flavor = "multi_thread")]
async fn each_message_is_delivered_soon() -> Result<()> {
    for (ordering, partitions, choosy) in
        [("partition", 40, 0), ("none", 3, 0), ("partition", 12, 6), ("none", 12, 6)]
    {
        let db = TestDb::alone().await?;
        let admin = db.session().await?;
        admin.run(&format!("SELECT queen_configure('q', ordering => '{ordering}')")).await?;
        admin.run("SELECT queen_subscribe('q', 'g', 'all')").await?;
        let start = Instant::now();
        let stop = start + Duration::from_secs(12);
        let mut consumers = Vec::new();
        for (i, session) in db.crowd(20).await?.into_iter().enumerate() {
            let pop = if i < choosy { pop().partition(format!("p{i}")) } else { pop() };
            consumers.push(tokio::spawn(async move {
                let mut all = Vec::new();
                while Instant::now() < stop {
                    let came = pop.clone().wait("3 s").run(&session).await?;
                    let now = start.elapsed();
                    for message in &came {
                        let at = message.payload["at"].as_u64().unwrap_or(0);
                        all.push(now.saturating_sub(Duration::from_micros(at)));
                    }
                    complete(&session, &came).await?;
                }
                anyhow::Ok(all)
            }));
        }
        let mut pushers = Vec::new();
        for (k, session) in db.crowd(3).await?.into_iter().enumerate() {
            pushers.push(tokio::spawn(async move {
                let mut i = k as u64 * 7919;
                while Instant::now() + Duration::from_secs(4) < stop {
                    i += 1;
                    let partition = format!("p{}", i.wrapping_mul(2654435761) % partitions);
                    let at = start.elapsed().as_micros() as u64;
                    let payload = json!({ "at": at });
                    Push::new("q", payload).partition(partition).run(&session).await?;
                    tokio::time::sleep(Duration::from_millis(i % 40)).await;
                }
                anyhow::Ok(())
            }));
        }
        for pusher in pushers {
            pusher.await??;
        }
        let mut all = Vec::new();
        for consumer in consumers {
            all.extend(consumer.await??);
        }
        show(&format!("K {ordering} {partitions} partitions {choosy} choosy"), all);
    }
    Ok(())
}

/// The queue is deleted and created again, the group removed, moved, renumbered, while three wait.
#[tokio::test(flavor = "multi_thread")]
async fn waiters_follow_their_queue_and_group() -> Result<()> {
    let db = TestDb::alone().await?;
    for ordering in ["partition", "none"] {
        for change in [
            "SELECT queen_delete_queue('q'); SELECT queen_subscribe('q', 'g', 'all')",
            "SELECT queen_unsubscribe('q', 'g'); SELECT queen_subscribe('q', 'g', 'all')",
            "SELECT queen_seek('q', 'g', 'end')",
            "SELECT queen_seek('q', 'g', 'start')",
            "SELECT queen_purge('q')",
            "SELECT queen_configure('q', ordering => CASE '{ordering}' WHEN 'none' THEN 'partition' ELSE 'none' END)",
        ] {
            let admin = db.session().await?;
            admin.run(&format!("SELECT queen_configure('q', ordering => '{ordering}')")).await?;
            admin.run("SELECT queen_subscribe('q', 'g', 'all')").await?;
            let mut waiting = Vec::new();
            for session in db.crowd(3).await? {
                waiting.push(wait_in_task(session, pop().wait("20 s")));
            }
            are_asleep(&admin, 3).await?;
            admin.run(&change.replace("{ordering}", ordering)).await?;
            are_asleep(&admin, 3).await?;
            let mut worst = Duration::ZERO;
            for i in 0..3 {
                let began = Instant::now();
                Push::new("q", n(i)).partition(format!("n{i}")).run(&admin).await?;
                let found = eventually("served", Duration::from_secs(15), async || {
                    Ok(waiting.iter().position(tokio::task::JoinHandle::is_finished))
                });
                let (came, at, session) = waiting.remove(found.await?).await??;
                assert_eq!(numbers(&came), [i]);
                worst = worst.max(at - began);
                complete(&session, &came).await?;
            }
            eprintln!("N {ordering} {change}: worst {worst:?}");
            admin.run("SELECT queen_delete_queue('q')").await?;
        }
    }
    Ok(())
}

/// Many queues, more than there are rings of hints, many groups, long names.
#[tokio::test(flavor = "multi_thread")]
async fn many_queues_groups_and_long_names_lose_nothing() -> Result<()> {
    let db = TestDb::alone().await?;
    let [ref a, ref b] = db.sessions().await?;
    let long = ["ä".repeat(127), "x".repeat(255), format!("y{}", "é".repeat(127)), "z".repeat(1)];
    for q in 0..40 {
        b.run(&format!("SELECT queen_subscribe('q{q}', 'g', 'all')")).await?;
    }
    let mut got = 0;
    for round in 0..4 {
        for q in 0..40 {
            for name in &long {
                Push::new(format!("q{q}"), n(round)).partition(name).run(a).await?;
            }
        }
        for q in 0..40 {
            for _ in 0..4 {
                let came = Pop::new(format!("q{q}")).group("g").mode("all").run(b).await?;
                ensure!(numbers(&came) == [round], "q{q} round {round}: {came:?}");
                complete(b, &came).await?;
                got += 1;
            }
        }
    }
    assert_eq!(got, 640);
    for g in 0..300 {
        b.run(&format!("SELECT queen_subscribe('q0', 'h{g}', 'new')")).await?;
    }
    for round in 0..2 {
        for g in 0..300 {
            let came = Pop::new("q0").group(format!("h{g}")).run(b).await?;
            ensure!(came.len() == usize::from(round > 0), "{round} {g}");
        }
        Push::new("q0", n(7)).partition(&long[0]).run(a).await?;
    }
    Ok(())
}

/// What a prepared transaction holds comes back when another session rolls it back.
#[tokio::test(flavor = "multi_thread")]
async fn ends_of_prepared_transactions_are_noticed() -> Result<()> {
    let db = TestDb::alone().await?;
    for ordering in ["partition", "none"] {
        let [ref holder, ref admin, mut waiter] = db.sessions().await?;
        admin.run(&format!("SELECT queen_configure('q', ordering => '{ordering}')")).await?;
        admin.run("SELECT queen_subscribe('q', 'g', 'all')").await?;
        let mut all = Vec::new();
        for round in 0..10 {
            Push::new("q", n(1)).partition(format!("{round}")).run(admin).await?;
            holder.run("BEGIN").await?;
            assert_eq!(numbers(&pop().run(holder).await?), [1]);
            let gid = format!("{}-{round}", db.name());
            holder.run(&format!("PREPARE TRANSACTION '{gid}'")).await?;
            let waiting = wait_in_task(waiter, pop().wait("20 s"));
            are_asleep(admin, 1).await?;
            let began = Instant::now();
            admin.run(&format!("ROLLBACK PREPARED '{gid}'")).await?;
            let (came, at, session) = waiting.await??;
            all.push(at - began);
            complete(&session, &came).await?;
            waiter = session;
        }
        show(&format!("M {ordering} ROLLBACK PREPARED"), all);
        admin.run("SELECT queen_delete_queue('q')").await?;
    }
    Ok(())
}

/// Bursts for a crowd, of which sessions are ended all the time.
#[tokio::test(flavor = "multi_thread")]
async fn bursts_are_served_while_sessions_are_ended() -> Result<()> {
    for ordering in ["partition", "none"] {
        let db = TestDb::alone().await?;
        let admin = db.session().await?;
        admin.run(&format!("SELECT queen_configure('q', ordering => '{ordering}')")).await?;
        admin.run("SELECT queen_subscribe('q', 'g', 'all')").await?;
        let start = Instant::now();
        let stop = start + Duration::from_secs(16);
        let mut consumers = Vec::new();
        for i in 0..24 {
            let config = db.config().clone();
            consumers.push(tokio::spawn(async move {
                let mut all = Vec::new();
                let mut session = Session::open(&config).await?;
                while Instant::now() < stop {
                    let pop = match i {
                        0..4 => pop().partition(format!("p{i}")),
                        4..8 => pop().batch(3).partitions(2),
                        _ => pop(),
                    };
                    match pop.lease("60 s").auto_ack().wait("4 s").run(&session).await {
                        Ok(came) => {
                            let now = start.elapsed();
                            for message in &came {
                                let at = message.payload["at"].as_u64().unwrap_or(0);
                                all.push(now.saturating_sub(Duration::from_micros(at)));
                            }
                        }
                        Err(_) if session.run("SELECT 1").await.is_err() => {
                            session = Session::open(&config).await?;
                        }
                        Err(_) => {}
                    }
                }
                anyhow::Ok(all)
            }));
        }
        let mut i = 0_u64;
        let mut pushed = 0;
        while Instant::now() + Duration::from_secs(6) < stop {
            i += 1;
            let at = start.elapsed().as_micros();
            let count = 1 + i % 5;
            let ended = (i % 3 == 0).then(|| {
                let function = ["pg_cancel_backend", "pg_terminate_backend"][(i / 3 % 2) as usize];
                format!(
                    "SELECT count({function}(pid)) FROM (SELECT pid FROM pg_stat_activity
                     WHERE datname = current_database() AND wait_event = 'Extension'
                     ORDER BY random() LIMIT 3) AS p"
                )
            });
            admin
                .run(&format!(
                    "SELECT queen_push('q', jsonb_build_object('at', {at}), 'p' || (i * {i}) % 9)
                     FROM generate_series(1, {count}) AS i; {}",
                    ended.unwrap_or_default()
                ))
                .await?;
            pushed += count;
            tokio::time::sleep(Duration::from_millis(i % 60)).await;
        }
        let mut all = Vec::new();
        for consumer in consumers {
            all.extend(consumer.await??);
        }
        eprintln!("P pushed {pushed} came {}", all.len());
        show(&format!("P {ordering}"), all);
    }
    Ok(())
}
