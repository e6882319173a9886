//! A consumer's loop in one transaction for each message: ack what it holds, pop the next. All
//! messages are in one partition, so the pop finds something only if the ack before it has released
//! the partition within the transaction.

use std::slice;
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use queen_tests::{
    Ack, Fails, Message, Pop, Push, PushBatch, Session, TestDb, at_once, complete, counts,
    eventually, n, numbers,
};

const BEGIN: [&str; 2] =
    ["BEGIN ISOLATION LEVEL READ COMMITTED", "BEGIN ISOLATION LEVEL REPEATABLE READ"];
/// With order, and without.
const ORDERINGS: [&str; 2] = ["partition", "none"];

fn pop() -> Pop {
    Pop::new("q").group("g")
}

async fn push(session: &Session, number: i64) -> Result<()> {
    Push::new("q", n(number)).run(session).await?;
    Ok(())
}

/// Two sessions, and a group that has everything of the queue `q`.
async fn prepared(ordering: &str) -> Result<(TestDb, Session, Session)> {
    let db = TestDb::fresh().await?;
    let [consumer, other] = db.sessions().await?;
    consumer
        .run(&format!(
            "SELECT queen_configure('q', ordering => '{ordering}');
             SELECT queen_subscribe('q', 'g', 'all')"
        ))
        .await?;
    Ok((db, consumer, other))
}

async fn ack(session: &Session, message: &Message) -> Result<()> {
    let settled = Ack::all(message.lease()?).run(session).await?;
    ensure!(settled == counts(1, 0, true), "{settled:?}");
    Ok(())
}

async fn pops_nothing(session: &Session) -> Result<()> {
    let came = pop().run(session).await?;
    ensure!(came.is_empty(), "{came:?}");
    Ok(())
}

/// What is popped is this message, for the first time.
fn is_first(message: &Message, number: i64) -> Result<()> {
    ensure!(message.payload == n(number) && message.delivery_attempt == 1, "{message:?}");
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn an_ack_releases_the_partition_for_the_pop_behind_it() -> Result<()> {
    for ordering in ORDERINGS {
        let (_db, consumer, other) = prepared(ordering).await?;
        push(&other, 1).await?;
        let mut held = pop().one(&consumer).await?;
        for (next, begin) in (2..).zip(BEGIN.iter().cycle().take(6)) {
            push(&other, next).await?;
            consumer.run(begin).await?;
            ack(&consumer, &held).await?;
            held = pop().one(&consumer).await.context(*begin)?;
            is_first(&held, next)?;
            pops_nothing(&other).await?;
            consumer.run("COMMIT").await?;
            pops_nothing(&other).await?;
        }
        ack(&other, &held).await?;
        pops_nothing(&other).await?;
    }
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn a_backlog_of_one_partition_comes_in_order() -> Result<()> {
    const MESSAGES: i64 = 70;
    for begin in BEGIN {
        let (_db, consumer, other) = prepared("partition").await?;
        PushBatch::numbers("q", 1..=MESSAGES).run(&other).await?;
        let mut held = pop().one(&consumer).await?;
        for number in 2..=MESSAGES {
            consumer.run(begin).await?;
            ack(&consumer, &held).await?;
            held = pop().one(&consumer).await?;
            consumer.run("COMMIT").await?;
            is_first(&held, number)?;
        }
        consumer.run(begin).await?;
        ack(&consumer, &held).await?;
        pops_nothing(&consumer).await?;
        consumer.run("COMMIT").await?;
        pops_nothing(&other).await?;
    }
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn a_rollback_gives_back_both() -> Result<()> {
    for ordering in ORDERINGS {
        for begin in BEGIN {
            let (_db, consumer, other) = prepared(ordering).await?;
            push(&other, 1).await?;
            let first = pop().one(&consumer).await?;
            push(&other, 2).await?;
            consumer.run(begin).await?;
            ack(&consumer, &first).await?;
            let second = pop().one(&consumer).await?;
            consumer.run("ROLLBACK").await?;
            // The lease of the pop has never been, and the lease before it holds what it held.
            Ack::all(second.lease()?).run(&other).await.fails_with("QN003")?;
            if ordering == "partition" {
                pops_nothing(&other).await?;
            }
            ack(&other, &first).await?;
            let second = pop().one(&other).await?;
            is_first(&second, 2)?;
            complete(&other, &[second]).await?;
        }
    }
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn a_savepoint_undoes_the_pop_or_both() -> Result<()> {
    for (ordering, begin) in
        ORDERINGS.into_iter().zip(BEGIN).chain(ORDERINGS.into_iter().zip(BEGIN.into_iter().rev()))
    {
        let (_db, consumer, other) = prepared(ordering).await?;
        push(&other, 1).await?;
        let first = pop().one(&consumer).await?;
        push(&other, 2).await?;

        consumer.run(begin).await?;
        consumer.run("SAVEPOINT ack_and_pop").await?;
        ack(&consumer, &first).await?;
        is_first(&pop().one(&consumer).await?, 2)?;
        consumer.run("ROLLBACK TO ack_and_pop").await?;
        if ordering == "partition" {
            pops_nothing(&consumer).await?;
        }
        ack(&consumer, &first).await?;
        consumer.run("SAVEPOINT pop").await?;
        let undone = pop().one(&consumer).await?;
        is_first(&undone, 2)?;
        consumer.run("ROLLBACK TO pop").await?;
        let second = pop().one(&consumer).await?;
        is_first(&second, 2)?;
        pops_nothing(&other).await?;
        consumer.run("COMMIT").await?;

        Ack::all(undone.lease()?).run(&other).await.fails_with("QN003")?;
        assert_eq!(Ack::all(first.lease()?).run(&other).await?, counts(0, 1, true));
        ack(&other, &second).await?;
    }
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn a_prepared_transaction_decides_both() -> Result<()> {
    for ordering in ORDERINGS {
        let (db, consumer, other) = prepared(ordering).await?;
        for decision in ["COMMIT", "ROLLBACK"] {
            push(&other, 1).await?;
            let first = pop().one(&consumer).await?;
            push(&other, 2).await?;
            consumer.run("BEGIN").await?;
            ack(&consumer, &first).await?;
            let second = pop().one(&consumer).await?;
            is_first(&second, 2)?;
            consumer.run(&format!("PREPARE TRANSACTION '{}'", db.name())).await?;
            pops_nothing(&other).await?;
            other.run(&format!("{decision} PREPARED '{}'", db.name())).await?;
            if decision == "COMMIT" {
                pops_nothing(&other).await?;
                ack(&other, &second).await?;
            } else {
                Ack::all(second.lease()?).run(&other).await.fails_with("QN003")?;
                ack(&other, &first).await?;
                let second = pop().one(&other).await?;
                is_first(&second, 2)?;
                ack(&other, &second).await?;
            }
        }
        pops_nothing(&other).await?;
    }
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn a_pop_with_wait_does_not_wait_for_its_own_ack() -> Result<()> {
    for ordering in ORDERINGS {
        let (_db, consumer, other) = prepared(ordering).await?;
        push(&other, 1).await?;
        let first = pop().one(&consumer).await?;
        push(&other, 2).await?;
        let began = Instant::now();
        consumer.run("BEGIN").await?;
        ack(&consumer, &first).await?;
        let second = pop().wait("30 s").one(&consumer).await?;
        ensure!(began.elapsed() < Duration::from_secs(20), "{:?}", began.elapsed());
        is_first(&second, 2)?;
        consumer.run("COMMIT").await?;

        // It is woken by a push that commits while the transaction with the ack is open.
        consumer.run("BEGIN").await?;
        ack(&consumer, &second).await?;
        let waiting = tokio::spawn(async move {
            let third = pop().wait("30 s").one(&consumer).await?;
            consumer.run("COMMIT").await?;
            anyhow::Ok(third)
        });
        eventually("session that sleeps", Duration::from_secs(20), async || {
            let sql = "SELECT count(*) FROM pg_stat_activity \
                       WHERE datname = current_database() AND wait_event_type = 'Extension'";
            Ok((other.count(sql).await? > 0).then_some(()))
        })
        .await?;
        push(&other, 3).await?;
        let third = waiting.await??;
        is_first(&third, 3)?;
        ack(&other, &third).await?;
        ensure!(began.elapsed() < Duration::from_secs(40), "{:?}", began.elapsed());
    }
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn the_pop_may_acknowledge_by_itself() -> Result<()> {
    for ordering in ORDERINGS {
        for begin in BEGIN {
            let (_db, consumer, other) = prepared(ordering).await?;
            PushBatch::numbers("q", 1..=3).run(&other).await?;
            let first = pop().one(&consumer).await?;
            consumer.run(begin).await?;
            ack(&consumer, &first).await?;
            is_first(&pop().auto_ack().one(&consumer).await?, 2)?;
            let third = pop().one(&consumer).await?;
            is_first(&third, 3)?;
            pops_nothing(&other).await?;
            consumer.run("COMMIT").await?;
            ack(&other, &third).await?;
            pops_nothing(&other).await?;
        }
    }
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn what_failed_comes_again_in_the_same_transaction() -> Result<()> {
    for ordering in ORDERINGS {
        for begin in BEGIN {
            let (_db, consumer, other) = prepared(ordering).await?;
            push(&other, 1).await?;
            let first = pop().one(&consumer).await?;
            consumer.run(begin).await?;
            let failed = Ack::all(first.lease()?).failed("no").run(&consumer).await?;
            assert_eq!(failed, counts(1, 0, true));
            let again = pop().one(&consumer).await?;
            assert_eq!((&again.payload, again.delivery_attempt), (&n(1), 2));
            pops_nothing(&other).await?;
            consumer.run("COMMIT").await?;
            ack(&other, &again).await?;
        }
    }
    Ok(())
}

/// Each takes a lease and returns the number of the next message with its lease.
const ONE_STATEMENT: [&str; 3] = [
    "SELECT (payload->>'n')::bigint, lease_id
     FROM queen_ack($1) AS done, queen_pop('q', 'g', batch => least(1 + done.settled, 1))",
    "WITH done AS MATERIALIZED (SELECT settled FROM queen_ack($1))
     SELECT (payload->>'n')::bigint, lease_id
     FROM done, queen_pop('q', 'g', batch => least(1 + done.settled, 1))",
    "SELECT number, lease_id FROM ack_and_pop($1)",
];
const ACK_AND_POP: &str = "
    CREATE FUNCTION ack_and_pop(done uuid, OUT number bigint, OUT lease_id uuid)
    RETURNS SETOF record LANGUAGE plpgsql AS $$
    BEGIN
        PERFORM queen_ack(done);
        RETURN QUERY SELECT (p.payload->>'n')::bigint, p.lease_id FROM queen_pop('q', 'g') AS p;
    END $$";

#[tokio::test(flavor = "multi_thread")]
async fn one_statement_can_do_both() -> Result<()> {
    for ordering in ORDERINGS {
        for isolation in ["read committed", "repeatable read"] {
            let (_db, consumer, other) = prepared(ordering).await?;
            consumer.run(ACK_AND_POP).await?;
            let set = format!("SET default_transaction_isolation = '{isolation}'");
            consumer.run(&set).await?;
            push(&other, 1).await?;
            let mut lease = pop().one(&consumer).await?.lease()?;
            for (next, sql) in (2..).zip(ONE_STATEMENT.into_iter().cycle().take(6)) {
                push(&other, next).await?;
                let rows = consumer.rows(sql, &[&lease]).await?;
                let [row] = rows.as_slice() else { anyhow::bail!("{isolation}, {sql}: {rows:?}") };
                assert_eq!(row.get::<_, i64>(0), next);
                lease = row.get(1);
                pops_nothing(&other).await?;
            }
            assert_eq!(Ack::all(lease).run(&other).await?, counts(1, 0, true));
            pops_nothing(&other).await?;
        }
    }
    Ok(())
}

/// A refused ack takes the pop with it, also in one statement.
#[tokio::test(flavor = "multi_thread")]
async fn a_refused_ack_pops_nothing() -> Result<()> {
    let (_db, consumer, other) = prepared("partition").await?;
    consumer.run(ACK_AND_POP).await?;
    push(&other, 1).await?;
    let lost = pop().lease("1 ms").one(&consumer).await?;
    queen_tests::expiry(&other, &lost).await?;
    for sql in ONE_STATEMENT {
        consumer.rows(sql, &[&lost.lease()?]).await.fails_with("QN001")?;
    }
    // A sweep may be at work in the partition: it puts back what the lease held.
    let again = pop().wait("30 s").one(&other).await?;
    assert_eq!((&again.payload, again.delivery_attempt), (&n(1), 2));
    ack(&other, &again).await
}

const EACH: i64 = 40;
const PARTITIONS: i64 = 4;

/// Eight consumers, four partitions: with order each partition comes in order, and either way each
/// message is completed once.
#[tokio::test(flavor = "multi_thread")]
async fn many_loops_share_partitions() -> Result<()> {
    for ordering in ORDERINGS {
        let (db, admin, _) = prepared(ordering).await?;
        admin.run("CREATE TABLE done (id bigserial, partition text, number bigint)").await?;
        for partition in 0..PARTITIONS {
            let push = PushBatch::numbers("q", 1..=EACH).partition(format!("p{partition}"));
            push.run(&admin).await?;
        }
        let loops = at_once(db.crowd(8).await?, |_, session| consume(session)).await?;
        loops.into_iter().collect::<Result<Vec<()>>>()?;
        let sql = "SELECT array_agg(number ORDER BY id), array_agg(number ORDER BY number) \
                   FROM done GROUP BY partition";
        let rows = admin.rows(sql, &[]).await?;
        assert_eq!(rows.len() as i64, PARTITIONS);
        let all: Vec<i64> = (1..=EACH).collect();
        for row in rows {
            assert_eq!(row.get::<_, Vec<i64>>(1), all);
            if ordering == "partition" {
                assert_eq!(row.get::<_, Vec<i64>>(0), all);
            }
        }
    }
    Ok(())
}

/// Completes message by message, each with the pop of the next, until all are done.
async fn consume(session: Arc<Session>) -> Result<()> {
    let mut held: Option<Message> = None;
    let began = Instant::now();
    loop {
        ensure!(began.elapsed() < Duration::from_secs(50), "messages are missing");
        session.run("BEGIN").await?;
        if let Some(message) = &held {
            let sql = "INSERT INTO done (partition, number) VALUES ($1, $2)";
            let number = numbers(slice::from_ref(message))[0];
            session.rows(sql, &[&message.partition, &number]).await?;
            ack(&session, message).await?;
        }
        held = pop().run(&session).await?.pop();
        session.run("COMMIT").await?;
        let done = session.count("SELECT count(*) FROM done").await?;
        if held.is_none() && done >= EACH * PARTITIONS {
            return Ok(());
        }
    }
}
