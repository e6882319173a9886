//! Receipts: what an ended lease has settled is known for an hour, wherever the receipt lies by
//! then: in a state of the cursor or claim, in a block of many, or in the block of a lease set.

use std::time::Duration;

use anyhow::{Result, ensure};
use queen_tests::unordered::{claims, prepared, sweep};
use queen_tests::{Ack, Fails, Message, Pop, PushBatch, Session, TestDb, complete, counts};
use serde_json::Value;
use uuid::Uuid;

fn pop() -> Pop {
    Pop::new("q").group("g").mode("all")
}

/// A database with so many messages in one partition, and a group that reads them in order.
async fn ordered(messages: i64) -> Result<(TestDb, Session)> {
    let db = TestDb::fresh().await?;
    let session = db.session().await?;
    PushBatch::numbers("q", 1..=messages).run(&session).await?;
    Ok((db, session))
}

/// What an ended lease is to answer: to this status of these messages, `already`, or a refusal.
struct Past {
    lease: Uuid,
    named: Vec<i64>,
    status: &'static str,
    refusal: Option<&'static str>,
}

impl Past {
    async fn check(&self, session: &Session) -> Result<()> {
        let ack = Ack::messages(self.lease, self.named.clone()).status(self.status);
        let answer = ack.run(session).await;
        match self.refusal {
            Some(code) => drop(answer.fails_with(code)?),
            None => assert_eq!(answer?, counts(0, self.named.len() as i32, true)),
        }
        Ok(())
    }
}

fn ids(messages: &[Message]) -> Vec<i64> {
    messages.iter().map(|message| message.message_id).collect()
}

async fn pop_and_complete(session: &Session, past: &mut Vec<Past>, pop: &Pop) -> Result<()> {
    let held = pop.run(session).await?;
    let lease = held[0].lease()?;
    complete(session, &held).await?;
    past.push(Past { lease, named: ids(&held), status: "completed", refusal: None });
    Ok(())
}

/// End a lease in the way of this number, and note what it is to answer once its messages have been
/// settled by others.
async fn end_a_lease(session: &Session, way: usize, past: &mut Vec<Past>) -> Result<()> {
    let briefly = if way == 0 { "1 ms" } else { "1 min" };
    let held = pop().batch(1 + way as i32 % 3).lease(briefly).run(session).await?;
    let (lease, named) = (held[0].lease()?, ids(&held));
    let mut note = |named: &[i64], status: &'static str, refusal: Option<&'static str>| {
        past.push(Past { lease, named: named.to_vec(), status, refusal });
    };
    let all = Ack::all(lease);
    match way {
        // The next pop finds that its time is over.
        0 => {
            tokio::time::sleep(Duration::from_millis(3)).await;
            note(&named, "completed", Some("QN002"));
        }
        1 => {
            all.clone().status("dead_letter").run(session).await?;
            note(&named, "dead_letter", None);
            note(&named, "completed", Some("QN004"));
            note(&named, "failed", Some("QN004"));
        }
        // Between the pop and the end of the lease, other revisions are written.
        2 => {
            for _ in 0..5 {
                session.row("SELECT queen_extend($1)", &[&lease]).await?;
            }
            for one in &named {
                Ack::messages(lease, [*one]).run(session).await?;
            }
            note(&named, "completed", None);
        }
        3 => {
            all.run(session).await?;
            note(&named, "completed", None);
            note(&named, "failed", Some("QN005"));
        }
        4 => {
            Ack::messages(lease, [named[0]]).run(session).await?;
            all.status("retry").run(session).await?;
            note(&named[..1], "completed", None);
            note(&named[1..], "retry", None);
            note(&named[1..], "completed", Some("QN002"));
        }
        // One of them may be exhausted by this.
        _ => {
            Ack::messages(lease, [named[0]]).status("dead_letter").run(session).await?;
            Ack::messages(lease, [named[1]]).status("failed").run(session).await?;
            note(&named[..1], "dead_letter", None);
            note(&named[..1], "failed", Some("QN004"));
            note(&named[1..2], "failed", None);
            note(&named[2..], "failed", Some("QN002"));
        }
    }
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn each_lease_of_many_is_known_however_it_ended_and_wherever_its_receipt_is() -> Result<()> {
    let (_db, session) = ordered(400).await?;
    let mut past = Vec::new();
    for round in 0..150 {
        end_a_lease(&session, round % 6, &mut past).await?;
    }
    complete(&session, &pop().batch(100).run(&session).await?).await?;
    let revision = session.count("SELECT max(revision) FROM queen_mq.progress").await?;
    ensure!(revision > 5 * 64, "{revision} revisions are too few for blocks");
    // All but the last two runs of 64 have been deleted, and their receipts have moved.
    let states = session.count("SELECT count(*) FROM queen_mq.progress").await?;
    let blocks = session.count("SELECT count(*) FROM queen_mq.receipt").await?;
    assert_eq!((states, blocks), (64 + revision % 64, revision / 64 - 1));
    for one in &past {
        one.check(&session).await?;
    }
    // An id that differs in one bit is known of nothing.
    for one in past.iter().step_by(7) {
        let other = Uuid::from_u128(one.lease.as_u128() ^ 1);
        Ack::messages(other, one.named.clone()).run(&session).await.fails_with("QN003")?;
    }
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn a_savepoint_that_is_rolled_back_takes_its_receipts_and_no_others() -> Result<()> {
    for isolation in ["READ COMMITTED", "REPEATABLE READ"] {
        let (_db, session) = ordered(300).await?;
        let (mut kept, mut lost) = (Vec::new(), Vec::new());
        session.run(&format!("BEGIN ISOLATION LEVEL {isolation}")).await?;
        for _ in 0..60 {
            pop_and_complete(&session, &mut kept, &pop()).await?;
        }
        session.run("SAVEPOINT s").await?;
        for _ in 0..90 {
            pop_and_complete(&session, &mut lost, &pop()).await?;
        }
        for one in kept.iter().chain(&lost) {
            one.check(&session).await?;
        }
        session.run("ROLLBACK TO s").await?;
        for _ in 0..90 {
            pop_and_complete(&session, &mut kept, &pop()).await?;
        }
        session.run("COMMIT").await?;
        for one in &kept {
            one.check(&session).await?;
        }
        for one in lost {
            Past { refusal: Some("QN003"), ..one }.check(&session).await?;
        }
    }
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn a_lease_over_several_partitions_is_known_in_each() -> Result<()> {
    let (db, session) = ordered(0).await?;
    for partition in ["a", "b", "c"] {
        PushBatch::numbers("q", 1..=250).partition(partition).run(&session).await?;
    }
    let mut past = Vec::new();
    for round in 0..250 {
        match round % 50 {
            // One message of each partition.
            0 => {
                for _ in 0..3 {
                    pop_and_complete(&session, &mut past, &pop().batch(3).partitions(3)).await?;
                }
            }
            _ => {
                for partition in ["a", "b"] {
                    pop_and_complete(&session, &mut past, &pop().partition(partition)).await?;
                }
            }
        }
        if past.len() > 300 {
            break;
        }
    }
    let sets = "SELECT count(*) FROM queen_mq.lease_set WHERE revisions IS NOT NULL";
    ensure!(session.count(sets).await? > 3, "leases over several partitions");
    ensure!(session.count("SELECT count(*) FROM queen_mq.receipt").await? >= 4, "blocks");
    for session in [&session, &db.session().await?] {
        for one in &past {
            one.check(session).await?;
        }
    }
    Ok(())
}

/// Both before the claims are folded, and after it.
#[tokio::test(flavor = "multi_thread")]
async fn without_order_a_lease_leaves_one_receipt_and_not_one_for_each_message() -> Result<()> {
    let (_db, [session]) = prepared("", 200).await?;
    let mut past = Vec::new();
    for _ in 0..3 {
        pop_and_complete(&session, &mut past, &pop().batch(50)).await?;
    }
    pop_and_complete(&session, &mut past, &pop()).await?;
    // Settled in two parts, between which the first is folded.
    let held = pop().batch(20).run(&session).await?;
    let (lease, named) = (held[0].lease()?, ids(&held));
    Ack::messages(lease, named[..10].to_vec()).run(&session).await?;
    Ack::messages(lease, [named[10]]).status("dead_letter").run(&session).await?;
    for is_folded in [false, true] {
        if is_folded {
            sweep(&session).await?;
        }
        for one in &past {
            one.check(&session).await?;
        }
        let first = Ack::messages(lease, named[..10].to_vec());
        assert_eq!(first.run(&session).await?, counts(0, 10, false));
    }
    Ack::messages(lease, named[11..].to_vec()).run(&session).await?;
    sweep(&session).await?;
    assert_eq!(claims(&session).await?, 0);
    past.push(Past { lease, named: named[..10].to_vec(), status: "completed", refusal: None });
    past.push(Past { lease, named: named[11..].to_vec(), status: "completed", refusal: None });
    past.push(Past { lease, named: vec![named[10]], status: "dead_letter", refusal: None });
    past.push(Past { lease, named: vec![named[10]], status: "completed", refusal: Some("QN004") });
    for one in &past {
        one.check(&session).await?;
    }
    // Five leases, one of which was folded in two parts.
    assert_eq!(session.count("SELECT count(*) FROM queen_mq.receipt").await?, 6);
    Ok(())
}

async fn passes(session: &Session, time: &str) -> Result<()> {
    for table in ["receipt", "progress"] {
        let sql = format!("UPDATE queen_mq.{table} SET ended_at = ended_at - interval '{time}'");
        session.run(&sql).await?;
    }
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn receipts_are_kept_for_an_hour_and_then_go_with_and_without_a_sweep() -> Result<()> {
    for is_swept in [true, false] {
        let (_db, session) = ordered(700).await?;
        let (mut past, mut since) = (Vec::new(), Vec::new());
        for _ in 0..160 {
            pop_and_complete(&session, &mut past, &pop()).await?;
        }
        passes(&session, "59 min").await?;
        let more = async |past: &mut Vec<Past>, times: usize| {
            for _ in 0..times {
                pop_and_complete(&session, past, &pop()).await?;
            }
            if is_swept {
                session.run("SELECT queen_sweep(); SELECT queen_sweep()").await?;
            }
            anyhow::Ok(())
        };
        more(&mut since, 32).await?;
        for one in &past {
            one.check(&session).await?;
        }
        passes(&session, "2 min").await?;
        more(&mut since, 160).await?;
        for one in &past {
            let refusal = Some("QN003");
            let Past { lease, named, status, .. } = one;
            Past { lease: *lease, named: named.clone(), status, refusal }.check(&session).await?;
        }
        for one in &since {
            one.check(&session).await?;
        }
        let old = "SELECT (SELECT count(*) FROM queen_mq.receipt
                           WHERE ended_at < clock_timestamp() - interval '1 hour')
                        + (SELECT count(*) FROM queen_mq.progress
                           WHERE ended_at < clock_timestamp() - interval '1 hour')";
        assert_eq!(session.count(old).await?, 0, "swept: {is_swept}");
    }
    Ok(())
}

/// What the cursor wrote in an hour and more, as copies of one block: so many of them.
const DEAD: i64 = 5000;

/// Pages that a call looks at, as PostgreSQL counts them.
async fn buffers(session: &Session, call: &str) -> Result<i64> {
    let explain = format!("EXPLAIN (ANALYZE, BUFFERS, FORMAT JSON) SELECT * FROM {call}");
    let plan: Value = session.query_one(&explain, &[]).await?.get(0);
    let of = |what: &str| plan[0]["Plan"][what].as_i64().unwrap_or(0);
    Ok(of("Shared Hit Blocks") + of("Shared Read Blocks"))
}

/// The buffers of each of so many acks, in order.
async fn acks(session: &Session, times: usize) -> Result<Vec<i64>> {
    let mut all = Vec::new();
    for _ in 0..times {
        let lease = pop().one(session).await?.lease()?;
        all.push(buffers(session, &format!("queen_ack('{lease}')")).await?);
    }
    Ok(all)
}

#[tokio::test(flavor = "multi_thread")]
async fn an_ack_reads_no_more_where_an_hour_of_receipts_has_died_under_a_snapshot() -> Result<()> {
    let (db, session) = ordered(900).await?;
    let mut past = Vec::new();
    for _ in 0..100 {
        pop_and_complete(&session, &mut past, &pop()).await?;
    }
    // The cursor goes on at a later revision, as if it had written all those blocks.
    let hour = format!(
        "UPDATE queen_mq.progress SET revision = revision + {DEAD} * 64;
         INSERT INTO queen_mq.receipt
             SELECT b.cursor_id, b.revision + i * 64, b.ended_at, 0, b.body
             FROM queen_mq.receipt b, generate_series(3, {DEAD} - 2) AS i WHERE b.revision = 64;
         UPDATE queen_mq.receipt SET ended_at = ended_at - interval '1 hour'"
    );
    session.run(&hour).await?;
    let early = past.remove(0);
    early.check(&session).await?;
    let before = acks(&session, 64).await?;
    let old = db.session().await?;
    old.run("BEGIN ISOLATION LEVEL REPEATABLE READ").await?;
    old.count("SELECT count(*) FROM queen_mq.receipt").await?;
    let blocks = "SELECT count(*) FROM queen_mq.receipt";
    ensure!(session.count(blocks).await? >= DEAD - 20, "{}", session.count(blocks).await?);
    while session.count(blocks).await? > 10 {
        session.run("SELECT queen_sweep()").await?;
    }
    // Each dead row is passed once more, by the next ack that writes a block.
    acks(&session, 64).await?;
    let after = acks(&session, 192).await?;
    let sum = |all: &[i64]| all.iter().sum::<i64>() as f64 / all.len() as f64;
    let worst = after.iter().copied().max().unwrap_or(0);
    println!("a mean of {:.1} buffers, then {:.1}, at most {worst}", sum(&before), sum(&after));
    ensure!(sum(&after) < 1.3 * sum(&before), "{before:?}, then {after:?}");
    // An ack that writes a block deletes 64 states, and finds 64 receipts in them.
    ensure!(worst < 64 * 10, "{after:?}");
    // Nor does an ack that repeats an old one: it reads 128 states, and one block.
    let repeated = format!("queen_ack('{}')", early.lease);
    let refused = "CREATE FUNCTION again(lease uuid) RETURNS text LANGUAGE plpgsql AS $$ BEGIN
            PERFORM queen_ack(lease); RETURN 'answered';
        EXCEPTION WHEN SQLSTATE 'QN003' THEN RETURN 'unknown'; END $$";
    session.run(refused).await?;
    let late = buffers(&session, &repeated.replace("queen_ack", "again")).await?;
    println!("a late ack reads {late} buffers");
    ensure!(late < 128 * 3, "{late} buffers");
    old.run("COMMIT").await?;
    Ok(())
}
