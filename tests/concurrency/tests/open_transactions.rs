//! Open transactions make no other call wait. Whatever they have pushed, popped, acked or created,
//! other pushes and pops of the queue answer at once, and what was pushed comes with the commit.
//!
//! In every test `open` has an open transaction, and each statement of `other` must answer within
//! half a second.

use std::time::Duration;

use anyhow::Result;
use queen_tests::{Ack, Pop, Push, Session, TestDb, complete, n, numbers, sorted};

async fn sessions(db: &TestDb) -> Result<(Session, Session)> {
    let (open, other) = (db.session().await?, db.session().await?);
    // The first calls of a session load the library and make plans, which is not measured.
    Push::new("warm", n(0)).partition("w").id("w").run(&other).await?;
    let warm = Pop::new("warm").group("w").mode("all").one(&other).await?;
    Ack::all(warm.lease()?).run(&other).await?;
    other.be_prompt().await?;
    Ok((open, other))
}

/// A pop of everything there is for group `g`, from any number of partitions.
fn pop_all(queue: &str) -> Pop {
    Pop::new(queue).group("g").mode("all").batch(100).partitions(100)
}

#[tokio::test(flavor = "multi_thread")]
async fn an_open_push() -> Result<()> {
    let db = TestDb::fresh().await?;
    let (open, other) = sessions(&db).await?;
    open.run("BEGIN").await?;
    Push::new("shared", n(1)).partition("a").id("one").run(&open).await?;
    // A second push may wait for the one that makes the queue's first row, so make that row before.
    open.run("COMMIT; BEGIN").await?;
    Push::new("shared", n(2)).partition("a").id("two").run(&open).await?;
    Push::new("shared", n(3)).partition("c").run(&open).await?;

    Push::new("shared", n(4)).partition("a").id("four").run(&other).await?;
    Push::new("shared", n(5)).partition("b").run(&other).await?;
    Push::new("shared", n(6)).partition("c").run(&other).await?;
    let came = pop_all("shared").run(&other).await?;
    assert_eq!(sorted(&came), [1, 4, 5, 6]);
    complete(&other, &came).await?;
    assert_eq!(pop_all("shared").run(&other).await?, []);

    open.run("COMMIT").await?;
    let came = pop_all("shared").run(&other).await?;
    assert_eq!(sorted(&came), [2, 3]);
    complete(&other, &came).await
}

/// Partitions that the group has consumed before, so that it has cursors in them.
async fn consumed_before(session: &Session) -> Result<()> {
    for partition in ["a", "b", "c"] {
        Push::new("shared", n(0)).partition(partition).run(session).await?;
    }
    let came = pop_all("shared").run(session).await?;
    assert_eq!(numbers(&came), [0, 0, 0]);
    complete(session, &came).await
}

#[tokio::test(flavor = "multi_thread")]
async fn an_open_pop() -> Result<()> {
    let db = TestDb::fresh().await?;
    let (open, other) = sessions(&db).await?;
    consumed_before(&other).await?;
    while_a_pop_is_open(&open, &other).await
}

#[tokio::test(flavor = "multi_thread")]
async fn an_open_pop_that_is_the_first_of_its_group() -> Result<()> {
    let db = TestDb::fresh().await?;
    let (open, other) = sessions(&db).await?;
    open.run("SELECT queen_subscribe('shared', 'g', mode => 'all')").await?;
    while_a_pop_is_open(&open, &other).await
}

async fn while_a_pop_is_open(open: &Session, other: &Session) -> Result<()> {
    Push::new("shared", n(1)).partition("a").run(other).await?;
    Push::new("shared", n(2)).partition("b").run(other).await?;
    open.run("BEGIN").await?;
    let held = pop_all("shared").partition("a").one(open).await?;
    assert_eq!(held.payload, n(1));

    Push::new("shared", n(3)).partition("a").run(other).await?;
    let came = pop_all("shared").run(other).await?;
    assert_eq!(numbers(&came), [2]);
    complete(other, &came).await?;
    assert_eq!(pop_all("shared").run(other).await?, []);
    assert_eq!(pop_all("shared").partition("a").run(other).await?, []);
    // Another group has cursors of its own.
    let came = pop_all("shared").group("h").partition("a").run(other).await?;
    assert!(numbers(&came).ends_with(&[1, 3]));
    let came = Pop::new("shared").batch(100).partition("a").run(other).await?;
    assert!(numbers(&came).ends_with(&[1, 3]));

    open.run("COMMIT").await?;
    assert_eq!(pop_all("shared").run(other).await?, [], "the lease holds after the commit");
    complete(open, &[held]).await?;
    let came = pop_all("shared").run(other).await?;
    assert_eq!(numbers(&came), [3]);
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn an_open_ack() -> Result<()> {
    let db = TestDb::fresh().await?;
    let (open, other) = sessions(&db).await?;
    consumed_before(&other).await?;
    Push::new("shared", n(1)).partition("a").run(&other).await?;
    Push::new("shared", n(2)).partition("b").run(&other).await?;
    let held = pop_all("shared").partition("a").one(&open).await?;
    open.run("BEGIN").await?;
    complete(&open, &[held]).await?;

    Push::new("shared", n(3)).partition("a").run(&other).await?;
    let came = pop_all("shared").run(&other).await?;
    assert_eq!(numbers(&came), [2]);
    complete(&other, &came).await?;

    open.run("COMMIT").await?;
    let came = pop_all("shared").run(&other).await?;
    assert_eq!(numbers(&came), [3]);
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn an_open_creation_of_a_queue_and_a_partition() -> Result<()> {
    let db = TestDb::fresh().await?;
    let (open, other) = sessions(&db).await?;
    Push::new("shared", n(1)).partition("a").run(&other).await?;
    let came = pop_all("shared").run(&other).await?;
    complete(&other, &came).await?;
    open.run("BEGIN; SELECT queen_configure('configured', lease_time => '5 s')").await?;
    Push::new("configured", n(10)).run(&open).await?;
    Push::new("pushed", n(20)).run(&open).await?;
    Push::new("shared", n(2)).partition("new").run(&open).await?;

    Push::new("shared", n(3)).partition("a").run(&other).await?;
    Push::new("shared", n(4)).partition("new").run(&other).await?;
    let came = pop_all("shared").run(&other).await?;
    assert_eq!(sorted(&came), [3, 4]);
    complete(&other, &came).await?;
    // No message is there yet, but the group is registered from here on.
    for queue in ["configured", "pushed"] {
        assert_eq!(Pop::new(queue).group("g").run(&other).await?, []);
        assert_eq!(Pop::new(queue).run(&other).await?, []);
    }

    open.run("COMMIT").await?;
    let came = pop_all("shared").run(&other).await?;
    assert_eq!(numbers(&came), [2]);
    for (queue, number) in [("configured", 10), ("pushed", 20)] {
        assert_eq!(Pop::new(queue).group("g").one(&other).await?.payload, n(number));
        assert_eq!(Pop::new(queue).one(&other).await?.payload, n(number));
    }
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn an_open_change_of_options_holds_no_pop_up() -> Result<()> {
    let db = TestDb::fresh().await?;
    let (open, other) = sessions(&db).await?;
    Push::new("shared", n(1)).run(&other).await?;
    open.run("BEGIN; SELECT queen_configure('shared', lease_time => '5 s')").await?;
    let came = pop_all("shared").run(&other).await?;
    assert_eq!(numbers(&came), [1]);
    complete(&other, &came).await
}

#[tokio::test(flavor = "multi_thread")]
async fn an_open_first_pop_of_a_group() -> Result<()> {
    let db = TestDb::fresh().await?;
    let (open, other) = sessions(&db).await?;
    Push::new("shared", n(1)).partition("a").run(&other).await?;
    open.run("BEGIN").await?;
    let held = pop_all("shared").one(&open).await?;

    assert_eq!(pop_all("shared").run(&other).await?, [], "message 1 is held");
    Push::new("shared", n(2)).partition("b").run(&other).await?;
    let came = pop_all("shared").group("h").run(&other).await?;
    assert_eq!(sorted(&came), [1, 2]);

    open.run("COMMIT").await?;
    let came = pop_all("shared").run(&other).await?;
    assert_eq!(numbers(&came), [2]);
    complete(&other, &came).await?;
    complete(&open, &[held]).await?;
    assert_eq!(pop_all("shared").run(&other).await?, []);
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn a_first_pop_of_a_group_that_rolls_back() -> Result<()> {
    let db = TestDb::fresh().await?;
    let (open, other) = sessions(&db).await?;
    Push::new("shared", n(1)).run(&other).await?;
    open.run("BEGIN").await?;
    pop_all("shared").one(&open).await?;
    pop_all("shared").run(&other).await?;
    open.run("ROLLBACK").await?;
    let again = pop_all("shared").one(&other).await?;
    assert_eq!((again.payload, again.delivery_attempt), (n(1), 1));
    Ok(())
}

/// Mode `new` begins with the snapshot of the registering call, not with its commit.
#[tokio::test(flavor = "multi_thread")]
async fn a_group_registered_by_an_open_transaction_gets_what_was_pushed_since() -> Result<()> {
    let db = TestDb::fresh().await?;
    let (open, other) = sessions(&db).await?;
    let late = db.session().await?;
    let pop = Pop::new("shared").group("g").batch(100).partitions(100);
    Push::new("shared", n(1)).partition("a").run(&other).await?;
    late.run("BEGIN").await?;
    Push::new("shared", n(2)).partition("b").run(&late).await?;
    open.run("BEGIN").await?;
    assert_eq!(pop.run(&open).await?, []);

    Push::new("shared", n(3)).partition("a").run(&other).await?;
    assert_eq!(pop.run(&other).await?, []);
    late.run("COMMIT").await?;
    open.run("COMMIT").await?;
    let came = pop.run(&other).await?;
    assert_eq!(sorted(&came), [2, 3]);
    Ok(())
}

/// A due timer is left for later while another transaction pushes its transaction_id.
#[tokio::test(flavor = "multi_thread")]
async fn an_open_push_of_the_id_that_a_due_timer_has() -> Result<()> {
    let db = TestDb::fresh().await?;
    let (open, other) = sessions(&db).await?;
    let schedule = "SELECT queen_schedule('shared', 'k', '{\"n\": 1}', delay => '0', \
                    transaction_id => 'twin')";
    other.run(schedule).await?;
    open.run("BEGIN").await?;
    Push::new("shared", n(2)).id("twin").run(&open).await?;
    Push::new("shared", n(3)).partition("b").run(&other).await?;
    let came = pop_all("shared").run(&other).await?;
    assert_eq!(numbers(&came), [3]);
    complete(&other, &came).await?;
    other.run("SELECT queen_sweep()").await?;
    open.run("ROLLBACK").await?;
    let came = pop_all("shared").run(&other).await?;
    assert_eq!(numbers(&came), [1]);
    complete(&other, &came).await
}

/// The push of a duplicate keeps a lock on the stored id. The timer does not wait for it, either.
#[tokio::test(flavor = "multi_thread")]
async fn an_open_push_of_a_duplicate_of_what_a_due_timer_has() -> Result<()> {
    let db = TestDb::fresh().await?;
    let (open, other) = sessions(&db).await?;
    Push::new("shared", n(1)).id("twin").run(&other).await?;
    complete(&other, &[pop_all("shared").one(&other).await?]).await?;
    let schedule = "SELECT queen_schedule('shared', 'k', '{\"n\": 2}', delay => '0', \
                    transaction_id => 'twin')";
    other.run(schedule).await?;
    open.run("BEGIN").await?;
    Push::new("shared", n(3)).id("twin").run(&open).await?;
    assert!(pop_all("shared").run(&other).await?.is_empty());
    other.run("SELECT queen_sweep()").await?;
    open.run("COMMIT").await?;
    // The id is stored: the timer is a duplicate, and is removed.
    assert!(pop_all("shared").run(&other).await?.is_empty());
    assert_eq!(other.count("SELECT count(*) FROM queen_timers").await?, 0);
    Ok(())
}

/// The first delayed push of a queue makes no other one wait.
#[tokio::test(flavor = "multi_thread")]
async fn first_delayed_pushes_do_not_wait_for_each_other() -> Result<()> {
    let db = TestDb::fresh().await?;
    let [ref open, ref other] = db.sessions().await?;
    Push::new("q", n(0)).run(open).await?;
    other.be_prompt().await?;
    open.run("BEGIN; SELECT queen_push('q', '1', delay => '1 h')").await?;
    other.run("SELECT queen_push('q', '{\"n\": 2}', delay => '200 ms')").await?;
    other.run("BEGIN; SELECT queen_configure('q', lease_time => '1 min')").await?;
    open.run("SELECT queen_push('q', '3', delay => '1 h')").await?;
    other.run("ROLLBACK").await?;
    open.run("ROLLBACK").await?;
    tokio::time::sleep(Duration::from_millis(300)).await;
    let came = Pop::new("q").batch(9).run(other).await?;
    assert_eq!(numbers(&came), [0, 2]);
    Ok(())
}
