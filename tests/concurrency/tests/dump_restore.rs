//! A dump is restored into a cluster whose transaction ids are lower, and its consumers go on where
//! they were.

use std::time::Duration;

use anyhow::{Result, ensure};
use queen_tests::cluster::Cluster;
use queen_tests::{
    Ack, Fails, Message, Pop, Push, PushBatch, Session, TestDb, complete, drain, marker, n,
    numbers, put_if_absent,
};
use serde_json::json;

const SOON: Duration = Duration::from_secs(10);

fn pop(partition: &str) -> Pop {
    Pop::new("q").group("g").mode("all").batch(100).partition(partition)
}

/// What the restored database is compared with.
struct Dumped {
    /// Messages 3 (completed) and 4 (not) of partition a, in a lease that was live.
    held: Vec<Message>,
    /// The message with the transaction_id `once`.
    once: i64,
    largest_id: i64,
    version: Option<i64>,
    dead_letters: i64,
}

/// Use up transaction ids, so that those of the other cluster are lower.
async fn grow_old(session: &Session) -> Result<()> {
    let sql = "DO $$ BEGIN FOR n IN 1..5000 LOOP PERFORM pg_current_xact_id(); COMMIT; END LOOP; \
               END $$";
    Ok(session.run(sql).await?)
}

async fn xid(session: &Session) -> Result<i64> {
    Ok(session.count("SELECT pg_current_xact_id()::text::bigint").await?)
}

/// Make every state that a dump may contain.
async fn live(session: &Session, open: &Session) -> Result<Dumped> {
    session.run("SELECT queen_configure('q', retry_limit => 1, lease_time => '1 hour')").await?;
    session.run("SELECT queen_subscribe('q', 'all along', mode => 'all')").await?;
    // Partition a: 1 and 2 completed, 3 and 4 leased with 3 completed, 5 and 6 not delivered.
    let push = PushBatch::new("q", (1..=6).map(n).collect()).partition("a");
    let mut ids = vec![None; 6];
    ids[0] = Some("once".to_owned());
    let pushed = push.ids(ids).run(session).await?;
    let came = pop("a").batch(2).run(session).await?;
    complete(session, &came).await?;
    let held = pop("a").batch(2).run(session).await?;
    Ack::messages(held[0].lease()?, [held[0].message_id]).run(session).await?;
    // Partition b: 11 has failed once.
    PushBatch::new("q", vec![n(11), n(12)]).partition("b").run(session).await?;
    let failed = pop("b").batch(1).one(session).await?;
    Ack::all(failed.lease()?).failed("once").run(session).await?;
    // Partition c: consumed beyond a transaction that is open during the dump.
    Push::new("q", n(21)).partition("c").run(session).await?;
    open.run("BEGIN").await?;
    Push::new("q", n(22)).partition("c").run(open).await?;
    Push::new("q", n(23)).partition("c").run(session).await?;
    let came = pop("c").run(session).await?;
    assert_eq!(numbers(&came), [21, 23]);
    complete(session, &came).await?;
    // Partition d: a dead letter.
    Push::new("q", n(31)).partition("d").run(session).await?;
    let dead = pop("d").one(session).await?;
    Ack::all(dead.lease()?).status("dead_letter").run(session).await?;
    // Groups that have seen nothing yet. The queue of one of them does not exist yet.
    session.run("SELECT queen_subscribe('q', 'from now on', mode => 'new')").await?;
    Pop::new("later").group("g").run(session).await?;
    // A queue and a group that are paused.
    session.run("SELECT queen_configure('still', delivery => 'latest', notify => true)").await?;
    session.run("SELECT queen_subscribe('still', 'g'), queen_pause('still')").await?;
    session.run("SELECT queen_pause('still', 'g')").await?;
    let kept = put_if_absent(session, "dump", "kept", &json!({ "a": [1] }), "1 day").await?;
    session
        .run("SELECT queen_kv_put_if_absent('dump', 'forever', 'null', forever => true)")
        .await?;
    // The sweep counts what has arrived and stores the count.
    session.run("SELECT queen_sweep()").await?;
    Ok(Dumped {
        held,
        once: pushed[0].message_id,
        largest_id: session.count("SELECT max(message_id) FROM queen_messages").await?,
        version: kept.version,
        dead_letters: session.count("SELECT count(*) FROM queen_dead_letters").await?,
    })
}

/// Check that markers, ids and dead letters are there.
async fn keeps_its_records(session: &Session, dumped: &Dumped) -> Result<()> {
    assert_eq!(marker(session, "dump", "kept").await?, Some(json!({ "a": [1] })));
    assert_eq!(marker(session, "dump", "forever").await?, Some(json!(null)));
    let again = put_if_absent(session, "dump", "kept", &json!(2), "1 day").await?;
    assert_eq!((again.applied, again.version), (false, dumped.version));
    let twin = Push::new("q", n(100)).partition("a").id("once").run(session).await?;
    assert_eq!((twin.status.as_str(), twin.message_id), ("duplicate", dumped.once));
    let dead = session.count("SELECT count(*) FROM queen_dead_letters").await?;
    assert_eq!(dead, dumped.dead_letters);
    let still = "SELECT count(*) FROM queen_queues AS q JOIN queen_groups AS g USING (queue)
                 WHERE q.queue = 'still' AND q.paused AND g.paused
                     AND q.options @> '{\"delivery\": \"latest\", \"notify\": true}'";
    assert_eq!(session.count(still).await?, 1);
    let resumed = session.query_one("SELECT queen_resume('still', 'g')", &[]).await?;
    ensure!(resumed.get::<_, bool>(0), "the group was not paused by itself");
    Ok(())
}

/// Check that late commits are found in the restored database.
async fn late_commits_arrive(db: &TestDb, session: &Session, from: i64) -> Result<()> {
    let open = db.session().await?;
    open.run("BEGIN").await?;
    Push::new("q", n(from)).partition("e").run(&open).await?;
    Push::new("q", n(from + 1)).partition("e").run(session).await?;
    let came = pop("e").run(session).await?;
    assert_eq!(numbers(&came), [from + 1]);
    complete(session, &came).await?;
    open.run("COMMIT").await?;
    let came = pop("e").run(session).await?;
    assert_eq!(numbers(&came), [from]);
    complete(session, &came).await
}

fn of(messages: &[Message], partition: &str) -> Vec<i64> {
    let part: Vec<Message> =
        messages.iter().filter(|one| one.partition == partition).cloned().collect();
    numbers(&part)
}

/// What stands in the view queen_blocked.
async fn blocked(session: &Session) -> Result<String> {
    let blocked = "SELECT string_agg(concat_ws(' ', partition, state, failures, last_error), ', '
                   ORDER BY partition) FROM queen_blocked";
    Ok(session.query_one(blocked, &[]).await?.get(0))
}

#[tokio::test(flavor = "multi_thread")]
async fn a_dump_is_consumed_on_in_another_cluster() -> Result<()> {
    let (old, new) = (Cluster::start_new()?, Cluster::start_new()?);
    let source = TestDb::create(&old.config()).await?;
    let [ref session, ref open] = source.sessions().await?;
    grow_old(session).await?;
    let dumped = live(session, open).await?;
    let file = old.file("first.dump");
    old.dump(source.name(), &file)?;
    let old_xid = xid(session).await?;

    let target = TestDb::create_empty(&new.config()).await?;
    new.restore(target.name(), &file)?;
    let session = &target.session().await?;
    ensure!(xid(session).await? < old_xid, "the other cluster is to be younger");
    keeps_its_records(session, &dumped).await?;
    assert_eq!(blocked(session).await?, "a retrying 0, b retrying 1 once");

    // The lease counts as expired; what it completed stays completed.
    let lease = dumped.held[0].lease()?;
    Ack::messages(lease, [dumped.held[1].message_id]).run(session).await.fails_with("QN001")?;
    // New messages come after the restored ones.
    for (partition, number) in [("a", 7), ("b", 13), ("c", 24)] {
        let pushed = Push::new("q", n(number)).partition(partition).run(session).await?;
        ensure!(pushed.message_id > dumped.largest_id, "{pushed:?} <= {}", dumped.largest_id);
    }
    let came = pop("a").run(session).await?;
    assert_eq!(numbers(&came), [4, 5, 6, 7]);
    let attempts: Vec<i32> = came.iter().map(|one| one.delivery_attempt).collect();
    assert_eq!(attempts, [2, 1, 1, 1]);
    Ack::messages(lease, [dumped.held[1].message_id]).run(session).await.fails_with("QN002")?;
    complete(session, &came).await?;

    // Message 11 had failed before; its second failure exhausts it.
    let came = pop("b").run(session).await?;
    assert_eq!(numbers(&came), [11, 12, 13]);
    assert_eq!(came[0].delivery_attempt, 2);
    let settled =
        Ack::messages(came[0].lease()?, [came[0].message_id]).failed("twice").run(session).await?;
    assert_eq!(settled.dead_lettered, 1);
    let came = pop("b").run(session).await?;
    assert_eq!(numbers(&came), [12, 13]);
    complete(session, &came).await?;
    // What was open during the dump is missing; what is pushed now comes.
    let came = pop("c").run(session).await?;
    assert_eq!(numbers(&came), [24]);
    complete(session, &came).await?;
    assert_eq!(pop("d").run(session).await?, []);
    late_commits_arrive(&target, session, 41).await?;

    let all = Pop::new("q").group("all along").batch(7).partitions(3);
    let came = drain(session, &all, 16, SOON).await?;
    assert_eq!(of(&came, "a"), [1, 2, 3, 4, 5, 6, 7]);
    assert_eq!(of(&came, "b"), [11, 12, 13]);
    assert_eq!(of(&came, "c"), [21, 23, 24]);
    assert_eq!(of(&came, "d"), [31]);
    let late = of(&came, "e");
    assert!(late == [41, 42] || late == [42, 41], "{late:?}");
    let new_ones = Pop::new("q").group("from now on").batch(7).partitions(3);
    let mut came = numbers(&drain(session, &new_ones, 5, SOON).await?);
    came.sort_unstable();
    assert_eq!(came, [7, 13, 24, 41, 42]);
    let pending = "SELECT sum(pending)::bigint FROM queen_groups WHERE queue = 'q'";
    assert_eq!(session.count(pending).await?, 0);
    Push::new("later", n(51)).run(session).await?;
    let later = Pop::new("later").group("g").one(session).await?;
    assert_eq!(later.payload, n(51));
    open.run("COMMIT").await?;
    Ok(())
}

/// A dump goes to another cluster and back: the ids of the first cluster are higher, then lower,
/// then higher.
#[tokio::test(flavor = "multi_thread")]
async fn a_dump_of_a_restored_database_can_be_restored() -> Result<()> {
    let (old, new) = (Cluster::start_new()?, Cluster::start_new()?);
    let source = TestDb::create(&old.config()).await?;
    let [ref session, ref open] = source.sessions().await?;
    grow_old(session).await?;
    let dumped = live(session, open).await?;
    let (first, second) = (old.file("first.dump"), old.file("second.dump"));
    old.dump(source.name(), &first)?;

    let middle = TestDb::create_empty(&new.config()).await?;
    new.restore(middle.name(), &first)?;
    let session = &middle.session().await?;
    Push::new("q", n(7)).partition("a").run(session).await?;
    let came = pop("a").batch(2).run(session).await?;
    assert_eq!(numbers(&came), [4, 5]);
    complete(session, &came).await?;
    late_commits_arrive(&middle, session, 41).await?;
    // Again a transaction is open during the dump, and the cursor is beyond it.
    let open = middle.session().await?;
    open.run("BEGIN").await?;
    Push::new("q", n(43)).partition("e").run(&open).await?;
    Push::new("q", n(44)).partition("e").run(session).await?;
    let came = pop("e").run(session).await?;
    assert_eq!(numbers(&came), [44]);
    complete(session, &came).await?;
    new.dump(middle.name(), &second)?;

    let target = TestDb::create_empty(&old.config()).await?;
    old.restore(target.name(), &second)?;
    let session = &target.session().await?;
    keeps_its_records(session, &dumped).await?;
    Push::new("q", n(8)).partition("a").run(session).await?;
    let came = pop("a").run(session).await?;
    assert_eq!(numbers(&came), [6, 7, 8]);
    complete(session, &came).await?;
    late_commits_arrive(&target, session, 45).await?;
    let all = Pop::new("q").group("all along").batch(100).partitions(10);
    let came = drain(session, &all, 18, SOON).await?;
    assert_eq!(of(&came, "a"), [1, 2, 3, 4, 5, 6, 7, 8]);
    assert_eq!(of(&came, "c"), [21, 23]);
    let new_ones = Pop::new("q").group("from now on").batch(100).partitions(10);
    let mut came = numbers(&drain(session, &new_ones, 7, SOON).await?);
    came.sort_unstable();
    assert_eq!(came, [7, 8, 41, 42, 44, 45, 46]);
    Ok(())
}
