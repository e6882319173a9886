//! From the commit to the delivery, over many rounds: no wake-up is lost, and none comes late.

use std::time::{Duration, Instant};

use anyhow::{Result, ensure};
use queen_tests::waiting::{SOON, are_asleep, first_served, wait_in_task};
use queen_tests::{Pop, Push, TestDb, complete, n, numbers};

fn pop() -> Pop {
    Pop::new("q").group("g").mode("all")
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
            for round in 0..8 {
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
            ensure!(all.iter().max() < Some(&SOON), "{ordering}, {end}: {all:?}");
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
        for round in 0..8 {
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
        ensure!(all.iter().max() < Some(&SOON), "{all:?}");
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
            "SELECT queen_configure('q',
                 ordering => CASE '{ordering}' WHEN 'none' THEN 'partition' ELSE 'none' END)",
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
            for i in 0..3 {
                let began = Instant::now();
                Push::new("q", n(i)).partition(format!("n{i}")).run(&admin).await?;
                let (came, at, session) = first_served(&mut waiting).await?;
                assert_eq!(numbers(&came), [i]);
                ensure!(at - began < SOON, "{change}: {:?}", at - began);
                complete(&session, &came).await?;
            }
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
    let long =
        ["ä".repeat(127), "x".repeat(255), format!("y{}", "é".repeat(127)), String::from("z")];
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
        ensure!(all.iter().max() < Some(&SOON), "{all:?}");
        admin.run("SELECT queen_delete_queue('q')").await?;
    }
    Ok(())
}
