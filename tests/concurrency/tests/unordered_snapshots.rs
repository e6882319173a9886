//! Groups without order in REPEATABLE READ: an older snapshot never delivers a message twice.

use anyhow::{Result, ensure};
use queen_tests::unordered::{SOON, figures, pop_all, prepared, push, sweep};
use queen_tests::{Ack, Fails, Push, complete, counts, drain, n, numbers, sorted};

#[tokio::test(flavor = "multi_thread")]
async fn a_step_in_repeatable_read_works_without_a_conflict() -> Result<()> {
    let (_db, [session, other]) = prepared("", 3).await?;
    session.begin_snapshot().await?;
    Push::new("q", n(4)).run(&other).await?;
    let came = pop_all().run(&session).await?;
    assert_eq!(numbers(&came), [1, 2, 3], "as the snapshot shows");
    let counts = counts(1, 0, false);
    let ack = Ack::messages(came[0].lease()?, [came[0].message_id]);
    assert_eq!(ack.run(&session).await?, counts);
    let ack = Ack::messages(came[0].lease()?, [came[1].message_id]).failed("no");
    assert_eq!(ack.run(&session).await?, counts);
    Push::new("q", n(5)).run(&session).await?;
    // Meanwhile another session pops the rest.
    let next = pop_all().run(&other).await?;
    assert_eq!(numbers(&next), [4]);
    session.run("COMMIT").await?;
    assert_eq!(sorted(&pop_all().run(&other).await?), [2, 5]);
    assert_eq!(figures(&other).await?, (4, 4, 0));
    Ok(())
}

/// The pop gets another message, nothing, or a conflict, but never a message that was given to
/// another session since.
#[tokio::test(flavor = "multi_thread")]
async fn an_older_snapshot_delivers_nothing_twice() -> Result<()> {
    let (_db, [session, other]) = prepared(", retry_delay => '1 hour'", 0).await?;
    let (mut completed, mut failed) = (Vec::new(), 0);
    for round in 0..24 {
        let base = 4 * round + 1;
        if round % 2 == 0 {
            push(&other, "Default", base, base + 3).await?;
        } else {
            for number in base..base + 4 {
                Push::new("q", n(number)).run(&other).await?;
            }
        }
        session.begin_snapshot().await?;
        let popped = pop_all().batch(2).run(&other).await?;
        assert_eq!(popped.len(), 2, "round {round}");
        let lease = popped[0].lease()?;
        let second = Ack::messages(lease, [popped[1].message_id]);
        Ack::messages(lease, [popped[0].message_id]).run(&other).await?;
        completed.push(numbers(&popped)[0]);
        match round % 4 {
            0 => second.clone().failed("no").run(&other).await.map(|_| failed += 1)?,
            1 => second.clone().status("retry").run(&other).await.map(drop)?,
            2 => second.run(&other).await.map(|_| completed.push(numbers(&popped)[1]))?,
            _ => {}
        }
        if round % 3 == 0 {
            sweep(&other).await?;
        }
        match pop_all().batch(3).run(&session).await {
            Ok(came) => {
                let twice = came
                    .iter()
                    .find(|one| popped.iter().any(|other| other.message_id == one.message_id));
                ensure!(twice.is_none(), "round {round}: {twice:?} was delivered since");
                complete(&session, &came).await?;
                session.run("COMMIT").await?;
                completed.extend(numbers(&came));
            }
            Err(error) => {
                Err::<(), _>(error).fails_with("40001")?;
                session.run("ROLLBACK").await?;
            }
        }
        if round % 4 == 3 {
            second.run(&other).await?;
            completed.push(numbers(&popped)[1]);
        }
    }
    let left = 4 * 24 - completed.len() - failed;
    completed.extend(numbers(&drain(&other, &pop_all(), left, SOON).await?));
    completed.sort_unstable();
    let distinct = completed.windows(2).all(|pair| pair[0] < pair[1]);
    assert!(distinct && completed.len() == 4 * 24 - failed, "{completed:?}");
    assert_eq!(figures(&other).await?, (failed as i64, 0, failed as i64));
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn two_old_snapshots_share_nothing() -> Result<()> {
    let (db, [first, other]) = prepared("", 6).await?;
    let second = db.session().await?;
    first.begin_snapshot().await?;
    second.begin_snapshot().await?;
    let mine = pop_all().batch(2).run(&first).await?;
    assert_eq!(numbers(&mine), [1, 2]);
    // While that transaction is open, and after it.
    for is_open in [true, false] {
        second.run("SAVEPOINT s").await?;
        match pop_all().batch(10).run(&second).await {
            Ok(came) => {
                let all = sorted(&[mine.clone(), came].concat());
                ensure!(all.windows(2).all(|pair| pair[0] < pair[1]), "{all:?}");
            }
            Err(error) => {
                Err::<(), _>(error).fails_with("40001")?;
            }
        }
        second.run("ROLLBACK TO SAVEPOINT s").await?;
        if is_open {
            complete(&first, &mine).await?;
            first.run("COMMIT").await?;
        }
    }
    second.run("ROLLBACK").await?;
    let rest = drain(&other, &pop_all(), 4, SOON).await?;
    assert_eq!(numbers(&rest), [3, 4, 5, 6]);
    assert_eq!(figures(&other).await?, (0, 0, 0));
    Ok(())
}

/// All consumers use REPEATABLE READ. There is no sweep, and there are always more messages.
#[tokio::test(flavor = "multi_thread")]
async fn what_a_rollback_gives_back_comes_again_before_the_end() -> Result<()> {
    const MESSAGES: i64 = 4000;
    let (_db, consumers) = prepared::<8>("", 0).await?;
    let admin = &consumers[0];
    let sql = format!(
        "SELECT count(*) FROM generate_series(1, {MESSAGES}) AS i, \
         queen_push('q', pg_catalog.jsonb_build_object('n', i))"
    );
    assert_eq!(admin.count(&sql).await?, MESSAGES);
    let pop = pop_all().batch(1).auto_ack();
    let (mut order, mut given_back) = (Vec::new(), Vec::new());
    while order.len() < MESSAGES as usize {
        let before = order.len();
        // One consumer holds a message while the others go on past it.
        let gives_back = order.len() > 300 && given_back.len() < 4;
        if gives_back {
            consumers[0].begin_snapshot().await?;
            given_back.push((pop.one(&consumers[0]).await?.message_id, order.len()));
        }
        for consumer in &consumers[1..] {
            for _ in 0..4 {
                consumer.begin_snapshot().await?;
                order.extend(pop.run(consumer).await?.iter().map(|one| one.message_id));
                consumer.run("COMMIT").await?;
            }
        }
        if gives_back {
            consumers[0].run("ROLLBACK").await?;
        }
        ensure!(order.len() > before, "something did not come: {before} of {MESSAGES}");
    }
    for (message, at) in given_back {
        let place = order.iter().position(|id| *id == message).expect("it came");
        // One pop in 256 moves the cursor forward.
        assert!(place < at + 3000, "given back at {at}, and delivered at {place}");
    }
    Ok(())
}
