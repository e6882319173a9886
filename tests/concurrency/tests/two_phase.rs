//! PREPARE TRANSACTION with push, pop and ack: nothing happens before COMMIT PREPARED, nothing
//! happens after ROLLBACK PREPARED, and no other session waits in between.

use anyhow::{Result, ensure};
use queen_tests::{
    Ack, Fails, Pop, Push, PushBatch, Session, TestDb, complete, marker, n, numbers, put_if_absent,
};

fn pop() -> Pop {
    Pop::new("q").group("g").mode("all").batch(100).partitions(100)
}

/// Commits or rolls back the prepared transaction.
async fn end(db: &TestDb, session: &Session, how: &str) -> Result<()> {
    // All databases of a server share the names of prepared transactions.
    Ok(session.run(&format!("{how} PREPARED '{}'", db.name())).await?)
}

async fn prepare(db: &TestDb, session: &Session) -> Result<()> {
    Ok(session.run(&format!("PREPARE TRANSACTION '{}'", db.name())).await?)
}

async fn sessions(db: &TestDb) -> Result<(Session, Session)> {
    let (first, second) = (db.session().await?, db.session().await?);
    pop().run(&second).await?;
    second.be_prompt().await?;
    Ok((first, second))
}

#[tokio::test(flavor = "multi_thread")]
async fn a_prepared_push_arrives_with_its_commit() -> Result<()> {
    let db = TestDb::fresh().await?;
    let (first, second) = sessions(&db).await?;
    Push::new("q", n(1)).run(&second).await?;
    first.run("BEGIN").await?;
    PushBatch::new("q", vec![n(2), n(3)]).run(&first).await?;
    prepare(&db, &first).await?;
    // Order counts from COMMIT PREPARED: this message may be delivered before it.
    Push::new("q", n(4)).run(&second).await?;
    let came = pop().run(&second).await?;
    assert_eq!(numbers(&came), [1, 4]);
    complete(&second, &came).await?;
    assert_eq!(pop().run(&second).await?, []);
    drop(first);
    end(&db, &second, "COMMIT").await?;
    let came = pop().run(&second).await?;
    assert_eq!(numbers(&came), [2, 3]);
    complete(&second, &came).await
}

#[tokio::test(flavor = "multi_thread")]
async fn a_prepared_push_that_rolls_back_never_arrives() -> Result<()> {
    let db = TestDb::fresh().await?;
    let (first, second) = sessions(&db).await?;
    first.run("BEGIN").await?;
    Push::new("q", n(100)).id("x").run(&first).await?;
    prepare(&db, &first).await?;
    end(&db, &second, "ROLLBACK").await?;
    assert_eq!(Push::new("q", n(1)).id("x").run(&second).await?.status, "queued");
    let came = pop().run(&second).await?;
    assert_eq!(numbers(&came), [1]);
    complete(&second, &came).await
}

#[tokio::test(flavor = "multi_thread")]
async fn a_prepared_pop_holds_until_it_is_decided() -> Result<()> {
    let db = TestDb::fresh().await?;
    let (first, second) = sessions(&db).await?;
    Push::new("q", n(1)).partition("a").run(&second).await?;
    Push::new("q", n(2)).partition("b").run(&second).await?;

    first.run("BEGIN").await?;
    let undone = pop().partition("a").one(&first).await?;
    prepare(&db, &first).await?;
    let came = pop().run(&second).await?;
    assert_eq!(numbers(&came), [2]);
    complete(&second, &came).await?;
    assert_eq!(pop().run(&second).await?, []);
    end(&db, &second, "ROLLBACK").await?;
    Ack::all(undone.lease()?).run(&second).await.fails_with("QN003")?;

    first.run("BEGIN").await?;
    let held = pop().one(&first).await?;
    assert_eq!((&held.payload, held.delivery_attempt), (&n(1), 1));
    prepare(&db, &first).await?;
    assert_eq!(pop().run(&second).await?, []);
    end(&db, &second, "COMMIT").await?;
    assert_eq!(pop().run(&second).await?, []);
    complete(&second, &[held]).await
}

#[tokio::test(flavor = "multi_thread")]
async fn a_prepared_ack_takes_effect_with_its_commit() -> Result<()> {
    let db = TestDb::fresh().await?;
    let (first, second) = sessions(&db).await?;
    PushBatch::new("q", vec![n(1), n(2)]).run(&second).await?;
    let held = pop().batch(1).one(&second).await?;
    for how in ["ROLLBACK", "COMMIT"] {
        first.run("BEGIN").await?;
        put_if_absent(&first, "two-phase", "effect", &n(1), "1 hour").await?;
        complete(&first, std::slice::from_ref(&held)).await?;
        prepare(&db, &first).await?;
        assert_eq!(marker(&second, "two-phase", "effect").await?, None);
        assert_eq!(pop().run(&second).await?, []);
        end(&db, &second, how).await?;
    }
    assert_eq!(marker(&second, "two-phase", "effect").await?, Some(n(1)));
    let settled = Ack::all(held.lease()?).run(&second).await?;
    assert_eq!((settled.settled, settled.already), (0, 1));
    let came = pop().run(&second).await?;
    assert_eq!(numbers(&came), [2]);
    complete(&second, &came).await
}

/// Push, pop and ack in one transaction, prepared by a session that ends before the decision.
#[tokio::test(flavor = "multi_thread")]
async fn a_whole_step_can_be_prepared() -> Result<()> {
    let db = TestDb::fresh().await?;
    let (_, second) = sessions(&db).await?;
    Push::new("q", n(1)).run(&second).await?;
    for (how, left) in [("ROLLBACK", 1), ("COMMIT", 0)] {
        let first = db.session().await?;
        first.run("BEGIN").await?;
        let came = pop().run(&first).await?;
        assert_eq!(numbers(&came), [1]);
        complete(&first, &came).await?;
        Push::new("next", n(10)).run(&first).await?;
        prepare(&db, &first).await?;
        drop(first);
        assert_eq!(pop().run(&second).await?, []);
        end(&db, &second, how).await?;
        let next = second.count("SELECT count(*) FROM queen_messages WHERE queue = 'next'").await?;
        assert_eq!(next, 1 - left, "after {how}");
    }
    assert_eq!(pop().run(&second).await?, []);
    Ok(())
}

/// A transaction may be made READ ONLY when it has acknowledged.
#[tokio::test(flavor = "multi_thread")]
async fn a_transaction_that_may_not_write_any_more_is_prepared() -> Result<()> {
    let db = TestDb::fresh().await?;
    let (first, second) = sessions(&db).await?;
    Push::new("q", n(1)).run(&second).await?;
    let came = pop().run(&second).await?;
    first.run("BEGIN").await?;
    complete(&first, &came).await?;
    first.run("SET TRANSACTION READ ONLY").await?;
    prepare(&db, &first).await?;
    end(&db, &second, "COMMIT").await?;
    assert_eq!(Ack::all(came[0].lease()?).run(&second).await?.already, 1);
    Ok(())
}

/// A sweep writes to the states of a prepared ack when it first sees them. It may be part of a long
/// transaction.
#[tokio::test(flavor = "multi_thread")]
async fn a_sweep_beside_consumers_loses_no_receipt_of_a_prepared_ack() -> Result<()> {
    let db = TestDb::fresh().await?;
    let (first, second) = sessions(&db).await?;
    let sweeper = db.session().await?;
    PushBatch::numbers("q", 1..=400).partition("p").run(&second).await?;
    let pop = pop().batch(1);
    let held = pop.one(&first).await?;
    first.run("BEGIN").await?;
    Ack::all(held.lease()?).run(&first).await?;
    prepare(&db, &first).await?;
    end(&db, &second, "COMMIT").await?;
    sweeper.run("BEGIN; SELECT queen_sweep()").await?;
    let mut rounds = 0;
    for turn in 0..1000 {
        if turn == 200 {
            sweeper.run("COMMIT").await?;
        }
        // While the sweep has the partition locked, the consumer gets nothing.
        let came = pop.run(&second).await?;
        complete(&second, &came).await?;
        rounds += came.len();
        if rounds >= 150 && turn > 200 {
            break;
        }
    }
    ensure!(rounds >= 150, "{rounds} messages came");
    let again = Ack::all(held.lease()?).run(&second).await?;
    assert_eq!((again.settled, again.already), (0, 1));
    Ok(())
}
