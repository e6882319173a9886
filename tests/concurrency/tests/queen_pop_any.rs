//! A pop from the first of several queues: which one it takes from while others push, and in
//! which queues its group is registered.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use anyhow::{Result, ensure};
use queen_tests::{Pop, Push, PushBatch, Session, TestDb, complete, n, numbers};

fn any(queues: &[&str]) -> Pop {
    Pop::any(queues).group("g").mode("all")
}

async fn register(session: &Session, queues: &[&str]) -> Result<()> {
    for queue in queues {
        session
            .run(&format!(
                "SELECT queen_configure('{queue}'), queen_subscribe('{queue}', 'g', 'all')"
            ))
            .await?;
    }
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn each_pop_takes_from_the_first_queue_that_has_something_while_others_push() -> Result<()> {
    let db = TestDb::fresh().await?;
    let [ref pusher, ref popper, ref watcher] = db.sessions().await?;
    register(pusher, &["urgent", "normal", "bulk"]).await?;
    PushBatch::numbers("bulk", 1..=300).run(pusher).await?;
    PushBatch::numbers("normal", 1..=300).run(pusher).await?;
    let pop = any(&["urgent", "normal", "bulk"]).batch(7).auto_ack();
    // Another session goes on pushing to the first queue. What had been committed when a pop began
    // comes before what is in the others.
    let pushing = async {
        for round in 0..200 {
            Push::new("urgent", n(round)).partition(format!("p{}", round % 5)).run(pusher).await?;
        }
        anyhow::Ok(())
    };
    let popping = async {
        let mut by_queue: BTreeMap<String, i64> = BTreeMap::new();
        let left = "SELECT coalesce(sum(pending) FILTER (WHERE queue = 'urgent'), 0)::bigint,
                        coalesce(sum(pending) FILTER (WHERE queue = 'normal'), 0)::bigint
                    FROM queen_groups WHERE consumer_group = 'g'";
        let began = Instant::now();
        while by_queue.values().sum::<i64>() < 800 {
            ensure!(began.elapsed() < Duration::from_secs(60), "{by_queue:?}");
            let before = watcher.query_one(left, &[]).await?;
            let (urgent, normal): (i64, i64) = (before.get(0), before.get(1));
            let came = pop.run(popper).await?;
            let Some(first) = came.first() else { continue };
            ensure!(came.iter().all(|one| one.queue == first.queue), "{came:?}");
            match first.queue.as_str() {
                "urgent" => (),
                "normal" => ensure!(urgent == 0, "{urgent} urgent ones were there"),
                _ => ensure!(urgent + normal == 0, "{urgent} and {normal} were there"),
            }
            *by_queue.entry(first.queue.clone()).or_default() += came.len() as i64;
        }
        Ok(by_queue)
    };
    let (pushed, popped) = tokio::join!(pushing, popping);
    pushed?;
    let expected = [("bulk", 300), ("normal", 300), ("urgent", 200)];
    assert_eq!(popped?, expected.map(|(queue, count)| (queue.to_owned(), count)).into());
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn what_another_transaction_holds_is_passed_by() -> Result<()> {
    let db = TestDb::fresh().await?;
    let [ref holder, ref popper] = db.sessions().await?;
    register(holder, &["first", "second"]).await?;
    Push::new("first", n(1)).run(holder).await?;
    Push::new("second", n(2)).run(holder).await?;
    let pop = any(&["first", "second"]);
    // Popped and not committed, leased, and pushed and not committed.
    holder.run("BEGIN").await?;
    assert_eq!(pop.one(holder).await?.queue, "first");
    popper.be_prompt().await?;
    popper.run("BEGIN").await?;
    assert_eq!(pop.one(popper).await?.queue, "second");
    popper.run("ROLLBACK").await?;
    holder.run("COMMIT; BEGIN").await?;
    Push::new("first", n(3)).partition("other").run(holder).await?;
    let second = pop.one(popper).await?;
    assert_eq!(second.queue, "second");
    holder.run("COMMIT").await?;
    let third = pop.one(popper).await?;
    assert_eq!((third.queue.as_str(), numbers(std::slice::from_ref(&third))), ("first", vec![3]));
    complete(popper, &[second]).await
}

#[tokio::test(flavor = "multi_thread")]
async fn the_first_pop_registers_the_group_in_all_queues_as_of_its_beginning() -> Result<()> {
    let db = TestDb::fresh().await?;
    let [ref popper, ref pusher, ref late] = db.sessions().await?;
    for queue in ["a", "b", "c"] {
        Push::new(queue, n(0)).run(pusher).await?;
    }
    pusher.run("SELECT queen_subscribe('a', 'young', 'all')").await?;
    // Pushed before the pop, and committed after it: new for the group.
    late.run("BEGIN").await?;
    Push::new("b", n(1)).partition("late").run(late).await?;
    let pop = Pop::any(&["a", "b", "c"]).group("young").batch(10);
    popper.run("BEGIN").await?;
    assert_eq!(pop.one(popper).await?.queue, "a");
    // Committed before the pop commits, but after its beginning.
    Push::new("c", n(2)).run(pusher).await?;
    late.run("COMMIT").await?;
    popper.run("COMMIT").await?;
    let came = pop.run(popper).await?;
    assert_eq!((came[0].queue.as_str(), numbers(&came)), ("b", vec![1]));
    let came = pop.run(popper).await?;
    assert_eq!((came[0].queue.as_str(), numbers(&came)), ("c", vec![2]));
    assert_eq!(pop.run(popper).await?, []);
    // A registration of another transaction that is open is not waited for, and missing nothing.
    let pop = Pop::any(&["a", "b"]).group("twin").mode("all");
    late.run("BEGIN; SELECT queen_subscribe('b', 'twin', 'all')").await?;
    popper.be_prompt().await?;
    assert_eq!(pop.one(popper).await?.queue, "a");
    late.run("ROLLBACK").await?;
    assert_eq!(pop.clone().batch(9).run(popper).await?[0].queue, "b");
    // An unsubscribed group is registered anew.
    pusher.run("SELECT queen_unsubscribe('b', 'twin')").await?;
    assert_eq!(pop.one(popper).await?.queue, "b");
    Ok(())
}

/// A pop of a list whose first queue has something costs little more than a plain one.
#[tokio::test(flavor = "multi_thread")]
async fn the_first_queue_of_many_costs_what_one_costs() -> Result<()> {
    let db = TestDb::alone().await?;
    let session = db.session().await?;
    let names: Vec<String> = (0..32).map(|i| format!("q{i}")).collect();
    let names: Vec<&str> = names.iter().map(String::as_str).collect();
    register(&session, &names).await?;
    PushBatch::numbers("q0", 1..=400).run(&session).await?;
    let (plain, several) = (Pop::new("q0").group("g").auto_ack(), any(&names).auto_ack());
    let buffers = async || -> Result<i64> {
        session.run("SELECT pg_stat_force_next_flush()").await?;
        let sql = "SELECT blks_hit + blks_read FROM pg_stat_database
                   WHERE datname = current_database()";
        Ok(session.count(sql).await?)
    };
    let mut costs = Vec::new();
    for pop in [&plain, &several, &plain, &several] {
        let before = buffers().await?;
        for _ in 0..90 {
            ensure!(pop.run(&session).await?.len() == 1, "a message");
        }
        costs.push(buffers().await? - before);
    }
    ensure!(costs[3] <= costs[2] * 13 / 10, "{costs:?} buffers");
    Ok(())
}
