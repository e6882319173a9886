//! What rolls back has not happened: pops, pushes and acks, as a whole or to a savepoint.

use anyhow::Result;
use queen_tests::{Ack, Fails, Pop, Push, PushBatch, TestDb, complete, counts, expiry, n, numbers};

fn pop() -> Pop {
    Pop::new("q").group("g").mode("all").batch(100).partitions(100)
}

#[tokio::test(flavor = "multi_thread")]
async fn a_rolled_back_pop_leaves_the_messages_free_at_once() -> Result<()> {
    let db = TestDb::fresh().await?;
    let [ref first, ref second] = db.sessions().await?;
    let messages = PushBatch::new("q", vec![n(1), n(2), n(3)]);
    messages.run(first).await?;
    for round in 0..20 {
        if round == 10 {
            // From here on the group has a cursor in the partition.
            let came = pop().run(first).await?;
            complete(first, &came).await?;
            messages.run(first).await?;
        }
        first.run("BEGIN").await?;
        let held = pop().run(first).await?;
        assert_eq!(numbers(&held), [1, 2, 3], "round {round}");
        // The other session finds the partition locked, and must find it again later.
        assert_eq!(pop().run(second).await?, []);
        first.run("ROLLBACK").await?;
        Ack::all(held[0].lease()?).run(second).await.fails_with("QN003")?;
        second.run("BEGIN").await?;
        let came = pop().run(second).await?;
        assert_eq!(numbers(&came), [1, 2, 3], "round {round}");
        assert!(came.iter().all(|one| one.delivery_attempt == 1));
        second.run("ROLLBACK").await?;
    }
    let came = pop().run(second).await?;
    assert_eq!(numbers(&came), [1, 2, 3]);
    complete(second, &came).await
}

#[tokio::test(flavor = "multi_thread")]
async fn a_partition_found_locked_is_found_again_among_others() -> Result<()> {
    let db = TestDb::fresh().await?;
    let [ref first, ref second] = db.sessions().await?;
    Push::new("q", n(1)).partition("a").run(first).await?;
    Push::new("q", n(2)).partition("b").run(first).await?;
    first.run("SELECT queen_subscribe('q', 'g', mode => 'all')").await?;
    first.run("BEGIN").await?;
    pop().partition("a").one(first).await?;
    let came = pop().run(second).await?;
    assert_eq!(numbers(&came), [2]);
    complete(second, &came).await?;
    assert_eq!(pop().run(second).await?, []);
    first.run("ROLLBACK").await?;
    let came = pop().run(second).await?;
    assert_eq!(numbers(&came), [1]);
    assert_eq!(came[0].delivery_attempt, 1);
    Ok(())
}

/// What a session remembers of its own transaction goes with the rollback.
#[tokio::test(flavor = "multi_thread")]
async fn a_session_that_found_its_own_lease_finds_the_messages_after_the_rollback() -> Result<()> {
    let db = TestDb::fresh().await?;
    let session = db.session().await?;
    session.run("SELECT queen_configure('q', retry_delay => '1 hour')").await?;
    PushBatch::new("q", vec![n(1), n(2)]).run(&session).await?;
    for (begin, undo) in [
        ("BEGIN", "ROLLBACK"),
        ("BEGIN; SAVEPOINT s", "ROLLBACK TO SAVEPOINT s"),
        // The transaction of the round before is still open.
        ("SAVEPOINT s", "ROLLBACK"),
    ] {
        session.run(begin).await?;
        assert_eq!(numbers(&pop().run(&session).await?), [1, 2]);
        assert_eq!(pop().run(&session).await?, [], "it holds them itself");
        assert_eq!(pop().run(&session).await?, []);
        session.run(undo).await?;
    }
    let held = pop().batch(1).lease("2 seconds").one(&session).await?;
    assert_eq!((&held.payload, held.delivery_attempt), (&n(1), 1));

    // A failure that is rolled back, and then an ack.
    session.run("BEGIN").await?;
    Ack::all(held.lease()?).failed("undone").run(&session).await?;
    assert_eq!(pop().run(&session).await?, [], "it waits for its retry");
    session.run("ROLLBACK; BEGIN").await?;
    Ack::all(held.lease()?).run(&session).await?;
    assert_eq!(numbers(&pop().run(&session).await?), [2]);
    assert_eq!(pop().run(&session).await?, []);
    session.run("ROLLBACK").await?;
    assert_eq!(pop().run(&session).await?, []);
    expiry(&session, &held).await?;
    let again = pop().run(&session).await?;
    assert_eq!(numbers(&again), [1, 2]);
    assert_eq!((again[0].delivery_attempt, again[1].delivery_attempt), (2, 1));
    complete(&session, &again).await?;

    // A push that is rolled back.
    session.run("BEGIN").await?;
    Push::new("q", n(100)).run(&session).await?;
    Push::new("q", n(101)).partition("new").run(&session).await?;
    assert_eq!(pop().run(&session).await?.len(), 2);
    assert_eq!(pop().run(&session).await?, []);
    session.run("ROLLBACK").await?;
    Push::new("q", n(3)).run(&session).await?;
    Push::new("q", n(3)).partition("new").run(&session).await?;
    assert_eq!(numbers(&pop().run(&session).await?), [3, 3]);
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn a_pop_with_an_ack_that_rolls_back_completes_nothing() -> Result<()> {
    let db = TestDb::fresh().await?;
    let session = db.session().await?;
    PushBatch::new("q", vec![n(1), n(2)]).run(&session).await?;
    session.run("BEGIN").await?;
    let came = pop().run(&session).await?;
    complete(&session, &came).await?;
    session.run("ROLLBACK").await?;
    let came = pop().run(&session).await?;
    assert_eq!(numbers(&came), [1, 2]);
    complete(&session, &came).await
}

#[tokio::test(flavor = "multi_thread")]
async fn a_savepoint_undoes_exactly_the_pushes_after_it() -> Result<()> {
    let db = TestDb::fresh().await?;
    let session = db.session().await?;
    session.run("BEGIN").await?;
    Push::new("q", n(1)).id("one").run(&session).await?;
    session.run("SAVEPOINT s").await?;
    Push::new("q", n(100)).id("two").run(&session).await?;
    Push::new("q", n(101)).partition("gone").run(&session).await?;
    Push::new("gone", n(102)).run(&session).await?;
    session.run("ROLLBACK TO SAVEPOINT s").await?;
    Push::new("q", n(2)).run(&session).await?;
    // The id of a push that was rolled back is free.
    assert_eq!(Push::new("q", n(3)).id("two").run(&session).await?.status, "queued");
    assert_eq!(Push::new("q", n(103)).id("one").run(&session).await?.status, "duplicate");
    session.run("SAVEPOINT s; RELEASE SAVEPOINT s; SAVEPOINT t").await?;
    Push::new("q", n(4)).run(&session).await?;
    session.run("RELEASE SAVEPOINT t; COMMIT").await?;

    let came = pop().run(&session).await?;
    assert_eq!(numbers(&came), [1, 2, 3, 4]);
    assert_eq!(came[2].transaction_id, "two");
    complete(&session, &came).await?;
    session.query("SELECT queen_delete_queue('gone')", &[]).await.fails_with("42704")?;
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn a_savepoint_undoes_exactly_the_acks_after_it() -> Result<()> {
    let db = TestDb::fresh().await?;
    let session = db.session().await?;
    PushBatch::new("q", vec![n(1), n(2), n(3), n(4)]).run(&session).await?;
    let came = pop().run(&session).await?;
    let lease = came[0].lease()?;
    let id = |index: usize| came[index].message_id;

    session.run("BEGIN").await?;
    Ack::messages(lease, [id(0)]).run(&session).await?;
    session.run("SAVEPOINT s").await?;
    Ack::messages(lease, [id(1)]).run(&session).await?;
    Ack::messages(lease, [id(2)]).failed("undone").run(&session).await?;
    session.run("ROLLBACK TO SAVEPOINT s").await?;
    let settled = Ack::messages(lease, [id(2)]).run(&session).await?;
    assert_eq!(settled, counts(1, 0, false));
    session.run("COMMIT").await?;

    // Messages 1 and 3 are completed; 2 and 4 are in the lease as before.
    let settled = Ack::messages(lease, [id(0), id(2)]).run(&session).await?;
    assert_eq!(settled, counts(0, 2, false));
    let settled = Ack::messages(lease, [id(1)]).run(&session).await?;
    assert_eq!((settled.settled, settled.already), (1, 0));
    Ack::messages(lease, [id(3)]).status("retry").run(&session).await?;
    let again = pop().run(&session).await?;
    assert_eq!(numbers(&again), [4]);
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn a_savepoint_undoes_a_pop_and_the_registration_of_its_group() -> Result<()> {
    let db = TestDb::fresh().await?;
    let [ref session, ref other] = db.sessions().await?;
    PushBatch::new("q", vec![n(1), n(2)]).run(session).await?;
    session.run("BEGIN; SAVEPOINT s").await?;
    let undone = pop().batch(1).one(session).await?;
    session.run("ROLLBACK TO SAVEPOINT s").await?;
    let came = pop().batch(1).one(session).await?;
    assert_eq!((&came.payload, came.delivery_attempt), (&n(1), 1));
    Ack::all(undone.lease()?).run(session).await.fails_with("QN003")?;
    session.run("ROLLBACK").await?;

    session.run("BEGIN; SAVEPOINT s").await?;
    let undone = pop().batch(1).one(session).await?;
    session.run("ROLLBACK TO SAVEPOINT s").await?;
    // Nothing is held any more, though the transaction is still open.
    let came = pop().run(other).await?;
    assert_eq!(numbers(&came), [1, 2]);
    assert_ne!(came[0].lease_id, undone.lease_id);
    complete(other, &came).await?;
    session.run("COMMIT").await?;
    assert_eq!(pop().run(session).await?, []);
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn an_exception_block_undoes_what_it_did() -> Result<()> {
    let db = TestDb::fresh().await?;
    let session = db.session().await?;
    session
        .run(
            r#"DO $$
            DECLARE
                lease uuid;
            BEGIN
                PERFORM queen_push('q', '{"n": 1}');
                PERFORM queen_push('q', '{"n": 2}');
                BEGIN
                    PERFORM queen_push('q', '{"n": 100}', transaction_id => 'x');
                    RAISE division_by_zero;
                EXCEPTION WHEN division_by_zero THEN
                    PERFORM queen_push('q', '{"n": 3}', transaction_id => 'x');
                END;
            END $$;
            DO $$
            DECLARE
                lease uuid;
            BEGIN
                SELECT lease_id INTO lease
                FROM queen_pop('q', consumer_group => 'g', subscription_mode => 'all', batch => 1);
                BEGIN
                    PERFORM queen_ack(lease);
                    RAISE division_by_zero;
                EXCEPTION WHEN division_by_zero THEN
                    PERFORM queen_ack(lease, status => 'retry');
                END;
            END $$"#,
        )
        .await?;
    let came = pop().run(&session).await?;
    assert_eq!(numbers(&came), [1, 2, 3]);
    assert_eq!(came[0].delivery_attempt, 2);
    complete(&session, &came).await
}
