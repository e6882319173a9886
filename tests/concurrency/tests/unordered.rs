//! Groups without order (`ordering => 'none'`): any number of consumers hold leases on one
//! partition at a time. A failed message is retried alone and holds no other message up.

use anyhow::{Context, Result, ensure};
use chrono::TimeDelta;
use queen_tests::unordered::{SOON, figures, pop, prepared, push};
use queen_tests::{
    Ack, Fails, Message, Pop, Push, Session, Settled, TestDb, complete, counts, dead_letters,
    drain, eventually, expiry, find, n, numbers, settle, sorted,
};
use serde_json::json;
use uuid::Uuid;

/// Complete what is left in a lease after some of it was settled.
async fn finish(session: &Session, lease: Uuid, left: i32) -> Result<()> {
    let rest = Ack::all(lease).run(session).await?;
    assert_eq!((rest.settled, rest.lease_released), (left, true));
    Ok(())
}

/// The failures and deliveries of the only dead letter.
async fn letter(session: &Session) -> Result<(i32, i32)> {
    let row = session.query_one("SELECT failures, deliveries FROM queen_dead_letters", &[]).await?;
    Ok((row.get(0), row.get(1)))
}

#[tokio::test(flavor = "multi_thread")]
async fn consumers_hold_leases_on_one_partition_side_by_side() -> Result<()> {
    let (db, [session]) = prepared("", 10).await?;
    let mut held = Vec::new();
    for consumer in db.crowd(5).await? {
        held.push(pop().batch(2).run(&consumer).await?);
    }
    assert!(held.iter().all(|messages| messages.len() == 2));
    assert_eq!(sorted(&held.concat()), (1..=10).collect::<Vec<_>>());
    assert_eq!(pop().run(&session).await?, []);
    assert_eq!(figures(&session).await?, (10, 10, 0));
    // Each lease ends before the others, the last one first.
    for (number, messages) in held.iter().enumerate().rev() {
        complete(&session, messages).await?;
        assert_eq!(figures(&session).await?, (number as i64 * 2, number as i64 * 2, 0));
    }
    assert_eq!(pop().run(&session).await?, []);
    Ok(())
}

/// Pop until so many messages have come, without settling them.
async fn pop_until(session: &Session, pop: &Pop, total: usize) -> Result<Vec<Message>> {
    let mut all = Vec::new();
    eventually("messages", SOON, async || {
        all.extend(pop.run(session).await?);
        Ok((all.len() >= total).then_some(()))
    })
    .await?;
    assert_eq!(pop.run(session).await?, []);
    assert_eq!(all.len(), total);
    Ok(all)
}

#[tokio::test(flavor = "multi_thread")]
async fn a_lone_consumer_gets_first_deliveries_in_order() -> Result<()> {
    let db = TestDb::fresh().await?;
    let [ref session, ref late] = db.sessions().await?;
    session.run("SELECT queen_configure('q', ordering => 'none')").await?;
    let consumers = [
        pop().group("acks 1"),
        pop().group("acks 7").batch(7),
        pop().group("holds 1"),
        pop().group("holds 7").batch(7),
        // Queue mode.
        Pop::new("q").batch(7),
    ];
    for consumer in &consumers {
        assert_eq!(consumer.run(session).await?, []);
    }
    for number in 1..=5 {
        Push::new("q", n(number)).run(session).await?;
    }
    push(session, "Default", 6, 20).await?;
    late.run("BEGIN").await?;
    push(late, "Default", 101, 103).await?;
    push(session, "Default", 21, 24).await?;

    let mut came = Vec::new();
    for (number, consumer) in consumers.iter().enumerate() {
        came.push(match number {
            2 | 3 => pop_until(session, consumer, 24).await?,
            _ => drain(session, consumer, 24, SOON).await?,
        });
    }
    Push::new("q", n(104)).run(late).await?;
    late.run("COMMIT").await?;
    push(session, "Default", 25, 40).await?;
    for number in 41..=45 {
        Push::new("q", n(number)).run(session).await?;
    }
    for (consumer, before) in consumers.iter().zip(came) {
        assert_eq!(numbers(&before), (1..=24).collect::<Vec<_>>(), "{consumer:?}");
        let rest = pop_until(session, consumer, 25).await?;
        assert!(before.iter().chain(&rest).all(|one| one.delivery_attempt == 1));
        let (late, rest): (Vec<i64>, _) = numbers(&rest).iter().partition(|one| **one > 100);
        assert_eq!(late, (101..=104).collect::<Vec<_>>(), "{consumer:?}");
        assert_eq!(rest, (25..=45).collect::<Vec<_>>(), "{consumer:?}");
    }
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn a_failed_message_waits_alone_and_the_lease_goes_on() -> Result<()> {
    let (_db, [session]) = prepared(", retry_delay => '1 hour'", 5).await?;
    let held = pop().batch(3).run(&session).await?;
    assert_eq!(numbers(&held), [1, 2, 3]);
    let lease = held[0].lease()?;
    let two = Ack::messages(lease, [held[1].message_id]);
    assert_eq!(two.clone().failed("no").run(&session).await?, counts(1, 0, false));
    assert_eq!(figures(&session).await?, (5, 2, 1));
    // The message is not in the lease any more.
    two.run(&session).await.fails_with("QN004")?;
    let others = pop().batch(10).run(&session).await?;
    assert_eq!(numbers(&others), [4, 5]);
    assert_eq!(figures(&session).await?, (5, 4, 1));
    let one = Ack::messages(lease, [held[0].message_id]).run(&session).await?;
    assert_eq!(one, counts(1, 0, false));
    finish(&session, lease, 1).await?;
    complete(&session, &others).await?;
    push(&session, "Default", 6, 6).await?;
    complete(&session, &[pop().batch(10).one(&session).await?]).await?;
    assert_eq!(figures(&session).await?, (1, 0, 1));
    let again = Ack::all(lease).run(&session).await?;
    assert_eq!((again.settled, again.already, again.lease_released), (0, 2, true));
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn a_failed_message_comes_back_after_its_delay_while_others_flow() -> Result<()> {
    let options = ", retry_limit => 10, retry_delay => '300 ms', retry_backoff => 2";
    let (_db, [session]) = prepared(options, 3).await?;
    let held = pop().batch(3).lease("1 h").run(&session).await?;
    let mut failing = find(&held, 2)?.clone();
    let mut flowed = 0;
    for (attempt, delay) in [(2, 300), (3, 600), (4, 1200)] {
        let before = session.now().await?;
        let ack = Ack::messages(failing.lease()?, [failing.message_id]).failed("again");
        let is_last = attempt > 2;
        assert_eq!(ack.run(&session).await?, counts(1, 0, is_last));
        let after = session.now().await?;
        let pop = pop().batch(100).lease("1 h");
        let (at, back) = eventually("redelivery", SOON, async || {
            push(&session, "Default", 10, 10).await?;
            let mut came = pop.run(&session).await?;
            let at = came.first().context("what was just pushed")?.expires_at()?;
            let (back, others): (Vec<_>, Vec<_>) =
                came.drain(..).partition(|one| one.payload == n(2));
            assert_eq!(others.len(), 1, "{others:?}");
            flowed += 1;
            let ids = others.iter().map(|one| one.message_id);
            Ack::messages(others[0].lease()?, ids).run(&session).await?;
            Ok(back.into_iter().next().map(|one| (at - TimeDelta::hours(1), one)))
        })
        .await?;
        assert_eq!(back.delivery_attempt, attempt);
        let due = TimeDelta::milliseconds(delay);
        ensure!(at >= before + due, "after {} of {delay} ms", at - before);
        // The limit is generous: the machine may be busy.
        ensure!(at <= after + due + TimeDelta::seconds(3), "only after {}", at - after);
        failing = back;
    }
    ensure!(flowed >= 6, "only {flowed} others came meanwhile");
    complete(&session, &[failing]).await?;
    finish(&session, held[0].lease()?, 2).await?;
    assert_eq!(figures(&session).await?, (0, 0, 0));
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn a_retry_comes_back_at_once_and_is_not_charged() -> Result<()> {
    let (_db, [session]) = prepared(", retry_limit => 0, retry_delay => '1 hour'", 3).await?;
    let held = pop().batch(3).run(&session).await?;
    let retry = Ack::messages(held[0].lease()?, [held[1].message_id]).status("retry");
    assert_eq!(retry.run(&session).await?, counts(1, 0, false));
    for attempt in 2..=6 {
        let again = pop().batch(10).one(&session).await?;
        assert_eq!((&again.payload, again.delivery_attempt), (&n(2), attempt));
        let ack = Ack::all(again.lease()?).status("retry");
        assert_eq!(ack.run(&session).await?, counts(1, 0, true));
    }
    let again = pop().batch(10).one(&session).await?;
    let failed = Ack::all(again.lease()?).failed("no").run(&session).await?;
    assert_eq!(failed, Settled { dead_lettered: 1, ..counts(1, 0, true) });
    assert_eq!(letter(&session).await?, (1, 7));
    finish(&session, held[0].lease()?, 2).await?;
    assert_eq!(figures(&session).await?, (0, 0, 0));
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn a_message_is_exhausted_by_its_own_failures() -> Result<()> {
    let (_db, [session]) = prepared(", retry_limit => 1", 3).await?;
    // Messages 1 and 2 fail once each: their failures do not add up.
    for (number, dead_lettered) in [(1, 0), (2, 0), (1, 1)] {
        let came = pop().batch(10).run(&session).await?;
        let one = find(&came, number)?;
        let ack = Ack::messages(one.lease()?, [one.message_id]).failed(format!("no {number}"));
        assert_eq!(ack.run(&session).await?.dead_lettered, dead_lettered, "{number}");
        assert_eq!(dead_letters(&session).await?, i64::from(dead_lettered));
        Ack::all(one.lease()?).status("retry").run(&session).await?;
    }
    let sql = "SELECT message_id, error, payload FROM queen_dead_letters";
    let row = session.query_one(sql, &[]).await?;
    assert_eq!(row.get::<_, String>("error"), "no 1");
    assert_eq!(row.get::<_, serde_json::Value>("payload"), n(1));
    assert_eq!(letter(&session).await?, (2, 3));
    let rest = pop().batch(10).run(&session).await?;
    assert_eq!(sorted(&rest), [2, 3]);
    assert!(rest.iter().all(|one| one.delivery_attempt == 4), "{rest:?}");
    // Making one message a dead letter ends nothing else.
    let two = find(&rest, 2)?;
    let ack = Ack::messages(two.lease()?, [two.message_id]).status("dead_letter");
    assert_eq!(ack.run(&session).await?, Settled { dead_lettered: 1, ..counts(1, 0, false) });
    finish(&session, two.lease()?, 1).await?;
    assert_eq!(figures(&session).await?, (0, 0, 0));
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn deliveries_that_come_to_nothing_exhaust_a_message_too() -> Result<()> {
    let (_db, [session]) = prepared(", max_deliveries => 2", 1).await?;
    for attempt in 1..=2 {
        let held = pop().lease("100 ms").one(&session).await?;
        assert_eq!(held.delivery_attempt, attempt);
        assert_eq!(dead_letters(&session).await?, 0);
        expiry(&session, &held).await?;
    }
    push(&session, "Default", 2, 2).await?;
    let mut came = Vec::new();
    eventually("dead letter", SOON, async || {
        came.extend(pop().batch(10).run(&session).await?);
        Ok((dead_letters(&session).await? == 1 && !came.is_empty()).then_some(()))
    })
    .await?;
    assert_eq!((numbers(&came), letter(&session).await?), (vec![2], (0, 2)));
    complete(&session, &came).await?;
    assert_eq!(pop().run(&session).await?, []);
    assert_eq!(figures(&session).await?, (0, 0, 0));
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn an_exhausted_message_may_be_dropped() -> Result<()> {
    let (_db, [session]) = prepared(", retry_limit => 0, on_exhausted => 'drop'", 2).await?;
    let held = pop().batch(2).run(&session).await?;
    let result = json!([{ "messageId": held[0].message_id, "status": "failed", "error": "no" }]);
    let outcomes = settle(&session, held[0].lease()?, &result).await?;
    assert_eq!((outcomes.len(), outcomes[0].outcome.as_str()), (1, "dropped"));
    assert_eq!(dead_letters(&session).await?, 0);
    finish(&session, held[0].lease()?, 1).await?;
    assert_eq!(pop().run(&session).await?, []);
    assert_eq!(figures(&session).await?, (0, 0, 0));
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn a_lease_covers_messages_of_several_partitions() -> Result<()> {
    let (_db, [session]) = prepared("", 0).await?;
    for (partition, from) in [("a", 1), ("b", 11), ("c", 21)] {
        push(&session, partition, from, from + 2).await?;
        let twin = Push::new("q", n(from + 3)).partition(partition).id("everywhere");
        twin.run(&session).await?;
    }
    let named = pop().partition("b").batch(2).run(&session).await?;
    assert_eq!(numbers(&named), [11, 12]);
    let several = pop().batch(100).partitions(100).run(&session).await?;
    let lease = several[0].lease()?;
    assert!(several.iter().all(|one| one.lease_id == Some(lease)));
    for (partition, expected) in [("a", 1..=4), ("b", 13..=14), ("c", 21..=24)] {
        let part = several.iter().filter(|one| one.partition == partition).cloned();
        assert_eq!(numbers(&part.collect::<Vec<_>>()), expected.collect::<Vec<_>>());
    }
    let sql = "SELECT partition, messages::bigint FROM queen_leases WHERE lease_id = $1 ORDER BY 1";
    let rows = session.query(sql, &[&lease]).await?;
    let rows: Vec<(String, i64)> = rows.iter().map(|row| (row.get(0), row.get(1))).collect();
    assert_eq!(rows, [("a", 4), ("b", 2), ("c", 4)].map(|(name, n)| (name.to_owned(), n)));

    let twins = Ack::ids(lease, ["everywhere"]);
    twins.run(&session).await.fails_with("22023")?;
    assert_eq!(twins.partition("b").run(&session).await?, counts(1, 0, false));
    Ack::messages(lease, [named[0].message_id]).run(&session).await.fails_with("QN004")?;
    assert_eq!(Ack::all(lease).partition("a").run(&session).await?, counts(4, 0, false));
    assert_eq!(Ack::all(lease).partition("c").status("retry").run(&session).await?.settled, 4);
    finish(&session, lease, 1).await?;
    complete(&session, &named).await?;
    let again = drain(&session, &pop().batch(3).partitions(2), 4, SOON).await?;
    assert_eq!(sorted(&again), [21, 22, 23, 24]);
    assert!(again.iter().all(|one| one.delivery_attempt == 2));
    assert_eq!(figures(&session).await?, (0, 0, 0));
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn what_is_acked_as_it_is_popped_leaves_no_lease() -> Result<()> {
    let (_db, [session]) = prepared("", 5).await?;
    let held = pop().one(&session).await?;
    session.run("BEGIN").await?;
    let undone = pop().batch(2).auto_ack().run(&session).await?;
    assert_eq!(numbers(&undone), [2, 3]);
    session.run("ROLLBACK").await?;
    let came = pop().batch(2).auto_ack().run(&session).await?;
    assert_eq!(numbers(&came), [2, 3]);
    assert!(came.iter().all(|one| one.lease_id.is_none() && one.delivery_attempt == 1));
    assert_eq!(figures(&session).await?, (3, 1, 0));
    session.run("SELECT queen_sweep(1000)").await?;
    assert_eq!(numbers(&pop().batch(9).auto_ack().run(&session).await?), [4, 5]);
    complete(&session, &[held]).await?;
    assert_eq!(pop().batch(9).run(&session).await?, []);
    assert_eq!(figures(&session).await?, (0, 0, 0));
    Ok(())
}
