//! Groups without order: the sweep folds claims into the cursor while consumers work.

use std::time::{Duration, Instant};

use anyhow::{Result, ensure};
use queen_tests::unordered::{claims, figures, pop, prepared, push, sweep};
use queen_tests::{
    Ack, Fails, Push, Settled, complete, counts, eventually, expiry, n, numbers, sorted,
};

const SWEEP: &str = "SELECT queen_sweep(1000)";

/// The sweep deletes claims of settled messages; other messages of the lease may not be settled.
#[tokio::test(flavor = "multi_thread")]
async fn an_ack_waits_for_no_sweep_that_is_open() -> Result<()> {
    let (_db, [session, open]) = prepared("", 0).await?;
    push(&session, "Default", 1, 9).await?;
    let held = pop().batch(3).run(&session).await?;
    let lease = held[0].lease()?;
    Ack::messages(lease, [held[0].message_id]).run(&session).await?;
    open.run("BEGIN").await?;
    open.run(SWEEP).await?;
    assert_eq!(claims(&open).await?, 2);
    assert_eq!(claims(&session).await?, 3);
    session.be_prompt().await?;
    // One message by its id, the rest without, and all of them again.
    let second = Ack::messages(lease, [held[1].message_id]).run(&session).await?;
    assert!(!second.lease_released);
    let rest = Ack::all(lease).run(&session).await?;
    assert_eq!((rest.settled, rest.already, rest.lease_released), (1, 2, true));
    let again = counts(0, 3, true);
    assert_eq!(Ack::all(lease).run(&session).await?, again);
    assert_eq!(numbers(&pop().batch(2).run(&session).await?), [4, 5]);
    open.run("COMMIT").await?;
    assert_eq!(Ack::all(lease).run(&session).await?, again);
    sweep(&session).await?;
    assert_eq!(Ack::all(lease).run(&session).await?, again);
    assert_eq!((figures(&session).await?, claims(&session).await?), ((6, 2, 0), 2));
    Ok(())
}

/// What the session learned from its own work goes with the rollback.
#[tokio::test(flavor = "multi_thread")]
async fn a_session_that_rolls_back_a_pop_and_a_fold_gets_everything_again() -> Result<()> {
    for is_known in [false, true] {
        let (_db, [session, other]) = prepared("", 0).await?;
        if is_known {
            push(&session, "Default", 0, 0).await?;
            complete(&session, &pop().run(&session).await?).await?;
            session.run(SWEEP).await?;
        }
        push(&session, "Default", 1, 5).await?;
        session.run("BEGIN").await?;
        assert_eq!(numbers(&pop().run(&session).await?), [1]);
        session.run("SAVEPOINT s").await?;
        assert_eq!(numbers(&pop().run(&session).await?), [2]);
        session.run(SWEEP).await?;
        assert_eq!(numbers(&pop().run(&session).await?), [3]);
        session.run("ROLLBACK TO SAVEPOINT s").await?;
        assert_eq!(numbers(&pop().run(&session).await?), [2]);
        session.run("ROLLBACK").await?;
        session.run("BEGIN").await?;
        assert_eq!(numbers(&pop().batch(9).run(&session).await?), [1, 2, 3, 4, 5]);
        assert_eq!(numbers(&pop().batch(9).run(&other).await?), [] as [i64; 0]);
        session.run("ROLLBACK").await?;
        let came = pop().batch(9).run(&other).await?;
        assert_eq!(numbers(&came), [1, 2, 3, 4, 5]);
        complete(&other, &came).await?;
        assert_eq!(figures(&session).await?, (0, 0, 0));
    }
    Ok(())
}

/// Other sessions have looked for the ends of leases past its end, and the fold has passed its
/// claim.
#[tokio::test(flavor = "multi_thread")]
async fn a_lease_that_was_over_before_its_commit_is_found_after_a_fold() -> Result<()> {
    let (db, [session, late]) = prepared("", 0).await?;
    Push::new("q", n(1)).partition("late").run(&session).await?;
    late.run("BEGIN").await?;
    let held = pop().lease("100 ms").one(&late).await?;
    for number in 2..=61 {
        Push::new("q", n(number)).partition(format!("p{number}")).run(&session).await?;
    }
    expiry(&session, &held).await?;
    let others = pop().batch(100).partitions(100).run(&db.session().await?).await?;
    assert_eq!(others.len(), 60);
    late.run("COMMIT").await?;
    session.run(SWEEP).await?;
    let again = pop().one(&db.session().await?).await?;
    assert_eq!((numbers(std::slice::from_ref(&again)), again.delivery_attempt), (vec![1], 2));
    assert_eq!(figures(&session).await?, (61, 61, 0));
    Ok(())
}

/// Not even a pop with auto_ack, after which no ack could be refused.
#[tokio::test(flavor = "multi_thread")]
async fn an_old_snapshot_takes_nothing_from_a_group_that_was_moved_or_reordered() -> Result<()> {
    let change = |to: &str| format!("SELECT queen_configure('q', ordering => '{to}')");
    let seek = "SELECT queen_seek('q', 'g', 'start')".to_owned();
    for (from, has_read, by) in [
        ("partition", false, change("none")),
        ("partition", true, change("none")),
        ("none", false, change("partition")),
        ("none", true, change("partition")),
        ("none", false, seek.clone()),
        ("none", true, seek),
    ] {
        let (_db, [session, old]) = prepared("", 0).await?;
        session.run(&change(from)).await?;
        push(&session, "Default", 1, 3).await?;
        if has_read {
            let failed = pop().one(&session).await?;
            Ack::all(failed.lease()?).failed("no").run(&session).await?;
        }
        old.begin_snapshot().await?;
        session.run(&by).await?;
        pop().batch(3).auto_ack().run(&old).await.fails_with("40001")?;
        old.run("ROLLBACK").await?;
        let came = pop().batch(3).auto_ack().run(&session).await?;
        assert_eq!(sorted(&came), [1, 2, 3]);
        assert_eq!(pop().batch(3).auto_ack().run(&old).await?, []);
        assert_eq!(figures(&session).await?, (0, 0, 0));
    }
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn what_was_deleted_by_age_does_not_come_between() -> Result<()> {
    for is_rolled_back in [false, true] {
        let (_db, [session, other]) = prepared("", 0).await?;
        for number in 1..=40 {
            Push::new("q", n(number)).run(&other).await?;
        }
        session.run("BEGIN").await?;
        assert_eq!(numbers(&pop().auto_ack().run(&session).await?), [1]);
        session.run(if is_rolled_back { "ROLLBACK" } else { "COMMIT" }).await?;
        other.run("SELECT queen_configure('q', retention => '1 us')").await?;
        sweep(&other).await?;
        assert_eq!(other.count("SELECT count(*) FROM queen_messages").await?, 0);
        other.run("SELECT queen_configure('q', unset => '{retention}')").await?;
        for number in 41..=45 {
            Push::new("q", n(number)).run(&other).await?;
            assert_eq!(numbers(&pop().auto_ack().run(&session).await?), [number]);
        }
        let sql =
            "SELECT (last_pop_at > now() - interval '1 minute')::int::bigint FROM queen_groups";
        assert_eq!((other.count(sql).await?, figures(&other).await?), (1, (0, 0, 0)));
    }
    Ok(())
}

/// Without sweeps, pops of any session fold now and then.
#[tokio::test(flavor = "multi_thread")]
async fn claims_do_not_pile_up_without_sweeps() -> Result<()> {
    let (_db, [session]) = prepared("", 0).await?;
    push(&session, "Default", 1, 500).await?;
    for round in 0..8 {
        push(&session, "Default", 501 + round * 500, 1000 + round * 500).await?;
        session
            .run(
                "DO $$ BEGIN FOR i IN 1..500 LOOP
                     PERFORM queen_pop('q', 'g', auto_ack => true); COMMIT; END LOOP; END $$",
            )
            .await?;
    }
    let left = claims(&session).await?;
    ensure!(left < 3500, "{left} of 4000");
    assert_eq!(figures(&session).await?, (500, 0, 0));
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn a_large_lease_is_settled_message_by_message() -> Result<()> {
    let (_db, [session]) = prepared("", 0).await?;
    push(&session, "Default", 1, 1000).await?;
    let held = pop().batch(1000).run(&session).await?;
    let lease = held[0].lease()?;
    let began = Instant::now();
    for one in &held[..500] {
        let settled = Ack::messages(lease, [one.message_id]).run(&session).await?;
        assert_eq!((settled.settled, settled.lease_released), (1, false));
    }
    let one_by_one = began.elapsed();
    session.run(SWEEP).await?;
    let transactions: Vec<String> =
        held[500..].iter().map(|one| one.transaction_id.clone()).collect();
    let rest = Ack::ids(lease, transactions).run(&session).await?;
    assert_eq!((rest.settled, rest.already, rest.lease_released), (500, 0, true));
    // The cost of each ack does not depend on the size of the lease: some milliseconds, with
    // assertions on.
    ensure!(one_by_one < Duration::from_secs(10), "{one_by_one:?}");
    Ok(())
}

/// One of its messages is settled, and its claim folded, while the ack waits for another one.
#[tokio::test(flavor = "multi_thread")]
async fn what_is_folded_while_an_ack_waits_is_settled_all_the_same() -> Result<()> {
    let (_db, [session, open, sweeper]) = prepared("", 0).await?;
    push(&session, "Default", 1, 2).await?;
    let held = pop().batch(2).run(&session).await?;
    let lease = held[0].lease()?;
    Ack::messages(lease, [held[0].message_id]).run(&session).await?;
    open.run("BEGIN").await?;
    Ack::messages(lease, [held[1].message_id]).run(&open).await?;
    let pid = session.pid();
    let acking = async { Ok(Ack::all(lease).run(&session).await?) };
    let folding = async {
        eventually("wait", Duration::from_secs(10), async || {
            let sql = format!("SELECT count(*) FROM pg_locks WHERE pid = {pid} AND NOT granted");
            Ok((sweeper.count(&sql).await? > 0).then_some(()))
        })
        .await?;
        sweeper.run(SWEEP).await?;
        assert_eq!(claims(&sweeper).await?, 1);
        open.run("ROLLBACK").await?;
        anyhow::Ok(())
    };
    let (settled, folded): (Result<Settled>, _) = tokio::join!(acking, folding);
    folded?;
    let settled = settled?;
    assert_eq!((settled.settled, settled.already, settled.lease_released), (1, 1, true));
    session.run(SWEEP).await?;
    assert_eq!((figures(&session).await?, claims(&session).await?), ((0, 0, 0), 0));
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn a_session_that_rolls_back_a_redelivery_gets_it_again() -> Result<()> {
    let (_db, [session, late, other]) = prepared("", 0).await?;
    push(&session, "Default", 1, 1).await?;
    late.run("BEGIN").await?;
    let held = pop().lease("100 ms").one(&late).await?;
    for number in 2..=61 {
        Push::new("q", n(number)).partition(format!("p{number}")).run(&session).await?;
    }
    expiry(&session, &held).await?;
    let others = pop().batch(100).partitions(100).run(&other).await?;
    assert_eq!(others.len(), 60);
    late.run("COMMIT").await?;
    for _ in 0..3 {
        session.run("BEGIN").await?;
        let again = pop().one(&session).await?;
        assert_eq!((numbers(std::slice::from_ref(&again)), again.delivery_attempt), (vec![1], 2));
        session.run("ROLLBACK").await?;
    }
    complete(&session, &pop().run(&session).await?).await?;
    assert_eq!(figures(&session).await?, (60, 60, 0));
    Ok(())
}

/// A pop beside it gets no transaction id, either.
#[tokio::test(flavor = "multi_thread")]
async fn a_pop_beside_an_open_deletion_by_age_writes_nothing() -> Result<()> {
    let (_db, [session, open]) = prepared("", 0).await?;
    push(&session, "Default", 1, 3).await?;
    session.run("SELECT queen_configure('q', retention => '1 us')").await?;
    open.run("BEGIN").await?;
    open.run(SWEEP).await?;
    assert_eq!(open.count("SELECT count(*) FROM queen_messages").await?, 0);
    session.run("BEGIN").await?;
    assert_eq!(pop().run(&session).await?, []);
    let sql = "SELECT count(pg_current_xact_id_if_assigned())";
    assert_eq!(session.count(sql).await?, 0);
    session.run("COMMIT").await?;
    open.run("ROLLBACK").await?;
    assert_eq!(numbers(&pop().run(&session).await?), [1]);
    Ok(())
}
