//! A pop that finds nothing gets no transaction id and writes nothing.

use anyhow::{Result, ensure};
use queen_tests::{Ack, Pop, Push, Session, TestDb, n};

/// A worker may be sweeping at the same moment. An empty pop that writes does so in every try.
const TRIES: usize = 5;

fn pop() -> Pop {
    Pop::new("q").group("g").mode("all").batch(10).partitions(10)
}

/// Check that pops that find nothing leave no trace.
async fn leaves_no_trace(session: &Session, pop: &Pop) -> Result<()> {
    session.run("BEGIN").await?;
    assert_eq!(pop.run(session).await?, []);
    let sql = "SELECT pg_current_xact_id_if_assigned()::text";
    let xid: Option<String> = session.query_one(sql, &[]).await?.get(0);
    assert_eq!(xid, None, "{pop:?} took a transaction id");
    session.run("COMMIT").await?;
    let mut seen = Vec::new();
    for _ in 0..TRIES {
        let before = everything(session).await?;
        for _ in 0..10 {
            assert_eq!(pop.run(session).await?, []);
        }
        let after = everything(session).await?;
        if before == after {
            return Ok(());
        }
        seen = before.into_iter().zip(after).filter(|(before, after)| before != after).collect();
    }
    anyhow::bail!("{pop:?} wrote: {seen:?}")
}

/// Of each row in the tables and sequences of the extension: where it is, which transaction wrote
/// it, and its contents.
async fn everything(session: &Session) -> Result<Vec<(String, i64, i64)>> {
    let relations = session
        .query(
            "SELECT c.oid::regclass::text, c.relkind = 'S' FROM pg_class c \
             JOIN pg_namespace n ON n.oid = c.relnamespace \
             WHERE n.nspname = 'queen_mq' AND c.relkind IN ('r', 'S') ORDER BY 1",
            &[],
        )
        .await?;
    ensure!(!relations.is_empty(), "the schema queen_mq holds no state");
    let mut all = Vec::new();
    for row in relations {
        let (name, sequence): (String, bool) = (row.get(0), row.get(1));
        let state = if sequence {
            "last_value, is_called::int::bigint"
        } else {
            "count(*), coalesce(sum(hashtext(concat(ctid, xmin, xmax, t))::bigint), 0)::bigint"
        };
        let state = session.query_one(&format!("SELECT {state} FROM {name} t"), &[]).await?;
        all.push((name, state.get(0), state.get(1)));
    }
    Ok(all)
}

#[tokio::test(flavor = "multi_thread")]
async fn of_a_queue_that_does_not_exist() -> Result<()> {
    let db = TestDb::fresh().await?;
    let session = db.session().await?;
    // The first pop registers the group, and may write.
    pop().run(&session).await?;
    leaves_no_trace(&session, &pop()).await?;
    let queue_mode = Pop::new("q");
    queue_mode.run(&session).await?;
    leaves_no_trace(&session, &queue_mode).await
}

#[tokio::test(flavor = "multi_thread")]
async fn of_a_queue_that_is_consumed() -> Result<()> {
    let db = TestDb::fresh().await?;
    let session = db.session().await?;
    for partition in ["a", "b", "c"] {
        Push::new("q", n(1)).partition(partition).run(&session).await?;
    }
    let came = pop().run(&session).await?;
    assert_eq!(came.len(), 3);
    Ack::all(came[0].lease()?).run(&session).await?;
    // The first look may write down what it has found.
    pop().run(&session).await?;
    leaves_no_trace(&session, &pop()).await?;
    leaves_no_trace(&session, &pop().partition("a")).await?;
    leaves_no_trace(&session, &pop().partition("never")).await
}

#[tokio::test(flavor = "multi_thread")]
async fn of_partitions_that_are_leased() -> Result<()> {
    let db = TestDb::fresh().await?;
    let session = db.session().await?;
    for partition in ["a", "b"] {
        Push::new("q", n(1)).partition(partition).run(&session).await?;
        Push::new("q", n(2)).partition(partition).run(&session).await?;
    }
    assert_eq!(pop().batch(2).run(&session).await?.len(), 2);
    assert_eq!(pop().batch(2).run(&session).await?.len(), 2);
    pop().run(&session).await?;
    leaves_no_trace(&session, &pop()).await?;
    leaves_no_trace(&session, &pop().partition("a")).await
}

#[tokio::test(flavor = "multi_thread")]
async fn of_messages_that_wait_for_a_retry() -> Result<()> {
    let db = TestDb::fresh().await?;
    let session = db.session().await?;
    session.run("SELECT queen_configure('q', retry_delay => '1 hour')").await?;
    Push::new("q", n(1)).run(&session).await?;
    Push::new("q", n(2)).run(&session).await?;
    let held = pop().batch(1).one(&session).await?;
    Ack::all(held.lease()?).failed("not yet").run(&session).await?;
    pop().run(&session).await?;
    leaves_no_trace(&session, &pop()).await
}

#[tokio::test(flavor = "multi_thread")]
async fn of_partitions_that_an_open_transaction_has_popped() -> Result<()> {
    let db = TestDb::fresh().await?;
    let [ref session, ref open] = db.sessions().await?;
    Push::new("q", n(1)).run(session).await?;
    session.run("SELECT queen_subscribe('q', 'g', mode => 'all')").await?;
    open.run("BEGIN").await?;
    pop().one(open).await?;
    for _ in 0..10 {
        // A lock that was busy is no reason to write.
        assert_eq!(pop().run(session).await?, []);
    }
    open.run("ROLLBACK").await?;
    assert_eq!(pop().one(session).await?.delivery_attempt, 1);
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn that_waited_in_vain() -> Result<()> {
    let db = TestDb::fresh().await?;
    let session = db.session().await?;
    pop().run(&session).await?;
    leaves_no_trace(&session, &pop().wait("20 milliseconds")).await
}
