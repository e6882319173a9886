//! Groups without order beside open transactions: a pop skips exactly the messages that other
//! transactions hold, waits for none of them, and finds again what was rolled back or ran out
//! meanwhile.

use std::time::{Duration, Instant};

use anyhow::{Result, ensure};
use queen_tests::unordered::{SOON, figures, pop_all, push, sweep};
use queen_tests::{
    Ack, Fails, Push, Session, TestDb, complete, drain, eventually, expiry, n, numbers, sorted,
};

/// A queue without order, with these options, and messages 1, 2, … in one push. The second session
/// has popped before, and must be answered within half a second.
async fn prepared(options: &str, messages: i64) -> Result<(TestDb, Session, Session)> {
    let db = TestDb::fresh().await?;
    let [open, other] = db.sessions().await?;
    other.run(&format!("SELECT queen_configure('q', ordering => 'none'{options})")).await?;
    Push::new("q", n(0)).run(&other).await?;
    complete(&other, &pop_all().run(&other).await?).await?;
    push(&other, "Default", 1, messages).await?;
    other.run("SELECT * FROM queen_groups, queen_leases; SELECT queen_sweep(1000)").await?;
    other.be_prompt().await?;
    Ok((db, open, other))
}

#[tokio::test(flavor = "multi_thread")]
async fn an_open_pop_hides_what_it_took_and_nothing_else() -> Result<()> {
    let (_db, open, other) = prepared("", 10).await?;
    open.run("BEGIN").await?;
    let held = pop_all().batch(3).run(&open).await?;
    assert_eq!(numbers(&held), [1, 2, 3]);
    let came = pop_all().run(&other).await?;
    assert_eq!(numbers(&came), (4..=10).collect::<Vec<_>>());
    assert_eq!(pop_all().run(&other).await?, []);
    Push::new("q", n(11)).run(&other).await?;
    let next = pop_all().run(&other).await?;
    assert_eq!(numbers(&next), [11]);
    // Another group has its own deliveries.
    assert_eq!(pop_all().group("h").run(&other).await?.len(), 12);
    complete(&other, &next).await?;
    other.run("SELECT queen_sweep(1000)").await?;
    open.run("COMMIT").await?;
    assert_eq!(pop_all().run(&other).await?, [], "the lease holds after the commit");
    complete(&open, &held).await?;
    complete(&other, &came).await?;
    assert_eq!(figures(&other).await?, (0, 0, 0));
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn an_open_ack_holds_no_pop_up() -> Result<()> {
    let (_db, open, other) = prepared("", 6).await?;
    let held = pop_all().batch(4).lease("1 h").run(&open).await?;
    let lease = held[0].lease()?;
    for end in ["ROLLBACK", "COMMIT"] {
        open.run("BEGIN").await?;
        for (message, status) in held.iter().zip(["completed", "failed", "retry", "dead_letter"]) {
            let ack = Ack::messages(lease, [message.message_id]).status(status);
            assert_eq!(ack.run(&open).await?.settled, 1);
        }
        if end == "ROLLBACK" {
            assert_eq!(numbers(&pop_all().batch(1).auto_ack().run(&other).await?), [5]);
        }
        Push::new("q", n(7)).run(&other).await?;
        let came = pop_all().run(&other).await?;
        assert_eq!(numbers(&came), if end == "COMMIT" { vec![7] } else { vec![6, 7] });
        assert_eq!(figures(&other).await?.0, 4 + came.len() as i64);
        other.run("SELECT queen_sweep(1000)").await?;
        assert_eq!(pop_all().run(&other).await?, []);
        open.run(end).await?;
        complete(&other, &came).await?;
    }
    let back = pop_all().run(&other).await?;
    assert_eq!(sorted(&back), [2, 3]);
    assert!(back.iter().all(|one| one.delivery_attempt == 2));
    complete(&other, &back).await?;
    assert_eq!(figures(&other).await?, (0, 0, 0));
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn an_open_sweep_holds_no_pop_up() -> Result<()> {
    let (_db, open, other) = prepared(", completed_retention => '1 us'", 20).await?;
    let done = pop_all().batch(5).run(&other).await?;
    complete(&other, &done).await?;
    let held = pop_all().batch(2).run(&other).await?;
    let lapsed = pop_all().batch(3).lease("1 ms").run(&other).await?;
    expiry(&other, &lapsed[0]).await?;
    open.run("BEGIN").await?;
    sweep(&open).await?;
    let came = pop_all().batch(10).run(&other).await?;
    ensure!(!came.is_empty(), "nothing came beside an open sweep");
    Push::new("q", n(21)).run(&other).await?;
    open.run("COMMIT").await?;
    complete(&other, &held).await?;
    complete(&other, &came).await?;
    let rest = drain(&other, &pop_all(), 14 - came.len(), SOON).await?;
    assert_eq!(sorted(&[came, rest].concat()), (8..=21).collect::<Vec<_>>());
    assert_eq!(figures(&other).await?, (0, 0, 0));
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn a_rolled_back_pop_leaves_its_messages_free_at_once() -> Result<()> {
    let (_db, open, other) = prepared("", 3).await?;
    let to_savepoint = "ROLLBACK TO SAVEPOINT s";
    for (begin, undo, is_open) in [
        ("BEGIN", "ROLLBACK", false),
        ("BEGIN; SAVEPOINT s", to_savepoint, true),
        ("SAVEPOINT s", to_savepoint, true),
        ("SAVEPOINT s; SAVEPOINT t", "RELEASE SAVEPOINT t; ROLLBACK TO SAVEPOINT s", true),
        ("SAVEPOINT s", "ROLLBACK", false),
    ] {
        open.run(begin).await?;
        let held = pop_all().batch(2).run(&open).await?;
        assert_eq!(numbers(&held), [1, 2], "{begin}");
        let rest = pop_all().run(&open).await?;
        assert_eq!(numbers(&rest), [3], "it holds the others itself");
        Ack::all(rest[0].lease()?).failed("undone").run(&open).await?;
        Ack::messages(held[0].lease()?, [held[0].message_id]).run(&open).await?;
        assert_eq!(pop_all().run(&other).await?, []);
        open.run(undo).await?;
        Ack::all(held[0].lease()?).run(&other).await.fails_with("QN003")?;
        // The messages are free for the other session, and for the session itself.
        for (session, is_open) in [(&other, false), (&open, is_open)] {
            session.run(if is_open { "SAVEPOINT again" } else { "BEGIN" }).await?;
            let again = pop_all().run(session).await?;
            assert_eq!(numbers(&again), [1, 2, 3], "{begin}");
            assert!(again.iter().all(|one| one.delivery_attempt == 1), "{begin}");
            session.run(if is_open { "ROLLBACK TO SAVEPOINT again" } else { "ROLLBACK" }).await?;
        }
    }
    let came = pop_all().run(&other).await?;
    assert_eq!(numbers(&came), [1, 2, 3]);
    complete(&other, &came).await?;
    assert_eq!(pop_all().run(&open).await?, []);
    Ok(())
}

/// A later delivery that rolls back changes nothing in what is known of a message that was given
/// back.
#[tokio::test(flavor = "multi_thread")]
async fn a_rolled_back_redelivery_is_not_counted() -> Result<()> {
    let (_db, open, other) = prepared("", 2).await?;
    let first = pop_all().run(&other).await?;
    Ack::all(first[0].lease()?).status("retry").run(&other).await?;
    for undo in ["ROLLBACK", "ROLLBACK TO SAVEPOINT s; COMMIT"] {
        open.run("BEGIN; SAVEPOINT s").await?;
        let again = pop_all().run(&open).await?;
        assert_eq!(sorted(&again), [1, 2]);
        assert!(again.iter().all(|one| one.delivery_attempt == 2));
        Ack::messages(again[0].lease()?, [again[0].message_id]).run(&open).await?;
        assert_eq!(pop_all().run(&other).await?, []);
        open.run(undo).await?;
    }
    let again = pop_all().run(&other).await?;
    assert_eq!(sorted(&again), [1, 2]);
    assert!(again.iter().all(|one| one.delivery_attempt == 2));
    complete(&other, &again).await
}

#[tokio::test(flavor = "multi_thread")]
async fn a_killed_backend_frees_what_it_had_popped() -> Result<()> {
    let (db, victim, other) = prepared("", 5).await?;
    victim.run("BEGIN").await?;
    assert_eq!(numbers(&pop_all().batch(3).run(&victim).await?), [1, 2, 3]);
    let rest = pop_all().run(&other).await?;
    assert_eq!(numbers(&rest), [4, 5]);
    assert_eq!(pop_all().run(&other).await?, []);
    let pid = victim.pid();
    other.query("SELECT pg_terminate_backend($1)", &[&pid]).await?;
    eventually("end of the backend", SOON, async || {
        let sql = format!("SELECT count(*) FROM pg_stat_activity WHERE pid = {pid}");
        Ok((other.count(&sql).await? == 0).then_some(()))
    })
    .await?;
    let again = pop_all().run(&db.session().await?).await?;
    assert_eq!(numbers(&again), [1, 2, 3]);
    assert!(again.iter().all(|one| one.delivery_attempt == 1));
    complete(&other, &again).await?;
    complete(&other, &rest).await
}

#[tokio::test(flavor = "multi_thread")]
async fn a_prepared_pop_holds_until_it_is_decided() -> Result<()> {
    let (db, open, other) = prepared("", 4).await?;
    for (how, left) in [("ROLLBACK", vec![1, 2, 3, 4]), ("COMMIT", vec![3, 4])] {
        open.run("BEGIN").await?;
        let held = pop_all().batch(2).run(&open).await?;
        assert_eq!(numbers(&held), [1, 2]);
        assert!(held.iter().all(|one| one.delivery_attempt == 1));
        open.run(&format!("PREPARE TRANSACTION '{}'", db.name())).await?;
        other.run("BEGIN").await?;
        assert_eq!(numbers(&pop_all().run(&other).await?), [3, 4]);
        assert_eq!(pop_all().run(&other).await?, []);
        other.run("ROLLBACK; SELECT queen_sweep(1000)").await?;
        other.run(&format!("{how} PREPARED '{}'", db.name())).await?;
        other.run("BEGIN").await?;
        assert_eq!(numbers(&pop_all().run(&other).await?), left, "after {how}");
        other.run("ROLLBACK").await?;
        let ack = Ack::all(held[0].lease()?);
        if how == "ROLLBACK" {
            ack.run(&other).await.fails_with("QN003")?;
            continue;
        }
        // An ack and a failure can be prepared, too.
        open.run("BEGIN").await?;
        Ack::messages(held[0].lease()?, [held[0].message_id]).run(&open).await?;
        Ack::messages(held[0].lease()?, [held[1].message_id]).failed("no").run(&open).await?;
        open.run(&format!("PREPARE TRANSACTION '{}'", db.name())).await?;
        complete(&other, &pop_all().run(&other).await?).await?;
        assert_eq!(pop_all().run(&other).await?, []);
        other.run(&format!("COMMIT PREPARED '{}'", db.name())).await?;
    }
    let back = pop_all().one(&other).await?;
    assert_eq!((&back.payload, back.delivery_attempt), (&n(2), 2));
    complete(&other, &[back]).await?;
    assert_eq!(figures(&other).await?, (0, 0, 0));
    Ok(())
}

/// The lease is over before any other transaction can see it, and other sessions have popped
/// everywhere meanwhile.
#[tokio::test(flavor = "multi_thread")]
async fn a_lease_that_ran_out_before_its_commit_is_found_again() -> Result<()> {
    for is_busy in [false, true] {
        let (_db, open, other) = prepared("", 5).await?;
        open.run("BEGIN").await?;
        let held = pop_all().batch(1).lease("100 ms").one(&open).await?;
        assert_eq!(held.payload, n(1));
        // One message that is settled in time, and one whose lease is extended.
        complete(&open, &pop_all().batch(1).lease("100 ms").run(&open).await?).await?;
        let extended = pop_all().batch(1).lease("100 ms").one(&open).await?;
        open.query("SELECT queen_extend($1, '1 h')", &[&extended.lease()?]).await?;
        expiry(&other, &extended).await?;
        let rest = pop_all().run(&other).await?;
        assert_eq!(numbers(&rest), [4, 5]);
        complete(&other, &rest).await?;
        assert_eq!(pop_all().run(&other).await?, []);
        if is_busy {
            for round in 0..20 {
                push(&other, "Default", 100, 109).await?;
                Push::new("q", n(110)).partition(format!("p{round}")).run(&other).await?;
                drain(&other, &pop_all().batch(4).partitions(2), 11, SOON).await?;
                if round % 5 == 4 {
                    sweep(&other).await?;
                }
            }
            assert_eq!(pop_all().run(&other).await?, []);
        }
        assert_eq!(figures(&other).await?.0, 3);
        open.run("COMMIT").await?;
        // The lease is over, and no other lease has the message.
        Ack::all(held.lease()?).run(&other).await.fails_with("QN001")?;
        let again = pop_all().one(&other).await?;
        assert_eq!((&again.payload, again.delivery_attempt), (&n(1), 2));
        Ack::all(held.lease()?).run(&open).await.fails_with("QN002")?;
        complete(&other, &[again]).await?;
        assert_eq!(figures(&other).await?, (1, 1, 0));
        complete(&open, &[extended]).await?;
        sweep(&other).await?;
        assert_eq!((pop_all().run(&other).await?, figures(&other).await?), (vec![], (0, 0, 0)));
    }
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn a_failure_that_fell_due_before_its_commit_is_found_again() -> Result<()> {
    let (_db, open, other) = prepared(", retry_delay => '100 ms'", 3).await?;
    let held = pop_all().lease("1 h").run(&open).await?;
    let lease = held[0].lease()?;
    open.run("BEGIN").await?;
    Ack::messages(lease, [held[0].message_id]).failed("no").run(&open).await?;
    Ack::messages(lease, [held[1].message_id]).status("retry").run(&open).await?;
    let began = Instant::now();
    while began.elapsed() < Duration::from_millis(300) {
        push(&other, "Default", 10, 12).await?;
        assert_eq!(drain(&other, &pop_all(), 3, SOON).await?.len(), 3);
    }
    sweep(&other).await?;
    assert_eq!(pop_all().run(&other).await?, []);
    open.run("COMMIT").await?;
    let again = pop_all().run(&other).await?;
    assert_eq!(sorted(&again), [1, 2]);
    assert!(again.iter().all(|one| one.delivery_attempt == 2));
    complete(&other, &again).await?;
    assert_eq!(figures(&other).await?, (1, 1, 0));
    Ok(())
}

/// Where more messages always follow, consumers go on past what others hold, and still come back to
/// it.
#[tokio::test(flavor = "multi_thread")]
async fn what_commits_late_comes_soon_though_there_is_always_more() -> Result<()> {
    const CONSUMERS: i64 = 8;
    const LATE: usize = 3;
    // A consumer looks back once in 17 pops.
    const SOON_ENOUGH: i64 = 18 * CONSUMERS;
    let (db, _, admin) = prepared("", 0).await?;
    let pop = pop_all().batch(1);
    let mut late = Vec::new();
    for number in 1..=LATE as i64 {
        let session = db.session().await?;
        session.run("BEGIN").await?;
        push(&session, "Default", -number, -number).await?;
        late.push(session);
    }
    for number in 1..=720 {
        push(&admin, "Default", number, number).await?;
    }
    let mut consumers = Vec::new();
    for _ in 0..CONSUMERS {
        consumers.push(db.session().await?);
    }
    let mut came = Vec::new();
    // Each consumer is behind the others when it pops again.
    for _ in 0..30 {
        for consumer in &consumers {
            came.extend(numbers(&[pop.one(consumer).await?]));
        }
    }
    assert_eq!(came, (1..=30 * CONSUMERS).collect::<Vec<_>>());
    for (session, number) in late.iter().zip(1..) {
        session.run("COMMIT").await?;
        // The worker sweeps every second, and a pop does so now and then.
        sweep(&admin).await?;
        let mut came = Vec::new();
        for turn in 0..SOON_ENOUGH {
            let consumer = &consumers[(turn % CONSUMERS) as usize];
            came.extend(numbers(&[pop.one(consumer).await?]));
        }
        assert_eq!(came.iter().filter(|one| **one < 0).collect::<Vec<_>>(), [&-number]);
    }
    Ok(())
}
