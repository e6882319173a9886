//! Groups without order: how seeks, purges, removals and replays change leases and deliveries.

use anyhow::Result;
use chrono::{DateTime, Utc};
use queen_tests::unordered::{SOON, figures, pop_all, prepared, push, sweep, swept_claims};
use queen_tests::{
    Ack, Fails, Message, Pop, PushBatch, Session, TestDb, complete, drain, figures_of, n, numbers,
    sorted,
};

fn of(queue: &str) -> Pop {
    Pop::new(queue).group("g").mode("all")
}

async fn push_to(
    session: &Session,
    queue: &str,
    partition: &str,
    from: i64,
    to: i64,
) -> Result<()> {
    PushBatch::numbers(queue, from..=to).partition(partition).run(session).await?;
    Ok(())
}

/// The state before the group is moved. In partition a, 1 is completed, 2 is held, 3 has failed,
/// and 4, 5 and 6 were not delivered. In b, 7 and 8 are held, and 9 and 10 were not delivered.
struct Worked {
    a: Message,
    b: Vec<Message>,
    /// The time after 1, 2, 3, 7 and 8 were pushed.
    time: DateTime<Utc>,
}

async fn worked_on(session: &Session, queue: &str) -> Result<Worked> {
    let sql =
        format!("SELECT queen_configure('{queue}', ordering => 'none', retry_delay => '1 h')");
    session.run(&sql).await?;
    session.run(&format!("SELECT queen_subscribe('{queue}', 'g', 'all')")).await?;
    push_to(session, queue, "a", 1, 3).await?;
    push_to(session, queue, "b", 7, 8).await?;
    let time = session.now().await?;
    push_to(session, queue, "a", 4, 6).await?;
    push_to(session, queue, "b", 9, 10).await?;
    let a = of(queue).partition("a").batch(3).run(session).await?;
    let lease = a[0].lease()?;
    Ack::messages(lease, [a[0].message_id]).run(session).await?;
    Ack::messages(lease, [a[2].message_id]).failed("no").run(session).await?;
    let b = of(queue).partition("b").batch(2).run(session).await?;
    assert_eq!((numbers(&a), numbers(&b)), (vec![1, 2, 3], vec![7, 8]));
    assert_eq!(figures_of(session, queue, "g").await?, (9, 3, 1));
    Ok(Worked { a: a[1].clone(), b, time })
}

#[tokio::test(flavor = "multi_thread")]
async fn a_seek_takes_leases_away_and_brings_back_what_it_says() -> Result<()> {
    let db = TestDb::fresh().await?;
    let session = db.session().await?;
    let moves: [(&str, bool, &[i64]); 6] = [
        ("'start'", true, &[1, 2, 3, 4, 5, 6, 7, 8, 9, 10]),
        ("'end'", true, &[]),
        ("to_time => TIME", true, &[4, 5, 6, 9, 10]),
        ("'start', partition => 'a'", false, &[1, 2, 3, 4, 5, 6, 9, 10]),
        ("'end', partition => 'a'", false, &[9, 10]),
        ("to_time => TIME, partition => 'a'", false, &[4, 5, 6, 9, 10]),
    ];
    for (number, (to, is_whole, expected)) in moves.into_iter().enumerate() {
        for is_swept in [false, true] {
            let queue = format!("q{number}{is_swept}");
            let worked = worked_on(&session, &queue).await?;
            if is_swept {
                sweep(&session).await?;
            }
            let to = to.replace("TIME", &format!("'{}'", worked.time.to_rfc3339()));
            let sql = format!("SELECT queen_seek('{queue}', 'g', {to})");
            let moved: i32 = session.query_one(&sql, &[]).await?.get(0);
            assert_eq!(moved, if is_whole { 2 } else { 1 }, "{to}");
            let a = worked.a.lease()?;
            for ack in [Ack::all(a), Ack::messages(a, [worked.a.message_id])] {
                ack.run(&session).await.fails_with("QN002")?;
            }
            let total = expected.len() as i64;
            if is_whole {
                Ack::all(worked.b[0].lease()?).run(&session).await.fails_with("QN002")?;
            } else {
                assert_eq!(figures_of(&session, &queue, "g").await?, (total + 2, 2, 0), "{to}");
                complete(&session, &worked.b).await?;
            }
            if is_swept {
                sweep(&session).await?;
            }
            assert_eq!(figures_of(&session, &queue, "g").await?, (total, 0, 0), "{to}");
            let pop = of(&queue).batch(3).partitions(2);
            let came = drain(&session, &pop, expected.len(), SOON).await?;
            assert_eq!(sorted(&came), expected, "{to}");
            assert!(came.iter().all(|one| one.delivery_attempt == 1), "{to}: {came:?}");
            Ack::all(a).run(&session).await.fails_with("QN002")?;
            sweep(&session).await?;
            assert_eq!(figures_of(&session, &queue, "g").await?, (0, 0, 0), "{to}");
            push_to(&session, &queue, "a", 11, 11).await?;
            assert_eq!(numbers(&drain(&session, &pop, 1, SOON).await?), [11], "{to}");
        }
    }
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn a_seek_in_one_partition_takes_its_part_of_a_lease_and_resets_counts() -> Result<()> {
    let (_db, [session]) = prepared(", retry_limit => 1", 0).await?;
    push(&session, "a", 1, 2).await?;
    push(&session, "b", 3, 4).await?;
    let failed = pop_all().partition("a").batch(1).one(&session).await?;
    Ack::all(failed.lease()?).failed("no").run(&session).await?;
    let held = pop_all().run(&session).await?;
    assert_eq!(sorted(&held), [1, 2, 3, 4]);
    session.run("SELECT queen_seek('q', 'g', 'start', partition => 'a')").await?;
    let lease = held[0].lease()?;
    Ack::all(lease).run(&session).await.fails_with("QN002")?;
    Ack::all(lease).partition("a").run(&session).await.fails_with("QN002")?;
    assert_eq!(Ack::all(lease).partition("b").run(&session).await?.settled, 2);
    let again = pop_all().run(&session).await?;
    assert_eq!(numbers(&again), [1, 2]);
    assert!(again.iter().all(|one| one.delivery_attempt == 1));
    // The failure before the seek is not counted, so the message survives one more.
    let ack = Ack::messages(again[0].lease()?, [again[0].message_id]).failed("no");
    assert_eq!(ack.run(&session).await?.dead_lettered, 0);
    let back = pop_all().one(&session).await?;
    assert_eq!((&back.payload, back.delivery_attempt), (&n(1), 2));
    let dead = Ack::all(back.lease()?).failed("no").run(&session).await?;
    assert_eq!((dead.settled, dead.dead_lettered), (1, 1));
    Ack::all(again[0].lease()?).run(&session).await?;
    assert_eq!(figures(&session).await?, (0, 0, 0));
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn purged_unsubscribed_and_deleted_leases_are_gone() -> Result<()> {
    let db = TestDb::fresh().await?;
    let session = db.session().await?;
    let refused = async |worked: &Worked, sqlstate: &str| -> Result<()> {
        for held in [&worked.a, &worked.b[0]] {
            let lease = held.lease()?;
            for ack in [Ack::all(lease), Ack::messages(lease, [held.message_id]).failed("no")] {
                ack.run(&session).await.fails_with(sqlstate)?;
            }
        }
        Ok(())
    };
    for is_swept in [false, true] {
        let [purged, left, deleted] =
            ["purged", "left", "deleted"].map(|q| format!("{q}{is_swept}"));
        let all = |queue: &str| of(queue).batch(100).partitions(100);

        let worked = worked_on(&session, &purged).await?;
        if is_swept {
            sweep(&session).await?;
        }
        assert_eq!(session.count(&format!("SELECT queen_purge('{purged}')")).await?, 10);
        refused(&worked, "QN002").await?;
        assert_eq!(figures_of(&session, &purged, "g").await?, (0, 0, 0));
        assert_eq!(all(&purged).run(&session).await?, []);
        push_to(&session, &purged, "a", 11, 12).await?;
        sweep(&session).await?;
        refused(&worked, "QN002").await?;
        assert_eq!(figures_of(&session, &purged, "g").await?, (2, 0, 0));
        let came = drain(&session, &all(&purged), 2, SOON).await?;
        assert_eq!((numbers(&came), came[0].delivery_attempt), (vec![11, 12], 1));

        let worked = worked_on(&session, &left).await?;
        if is_swept {
            sweep(&session).await?;
        }
        session.run(&format!("SELECT queen_unsubscribe('{left}', 'g')")).await?;
        refused(&worked, "QN002").await?;
        let came = drain(&session, &all(&left), 10, SOON).await?;
        assert_eq!(sorted(&came), (1..=10).collect::<Vec<_>>());
        assert!(came.iter().all(|one| one.delivery_attempt == 1));
        refused(&worked, "QN002").await?;
        assert_eq!(figures_of(&session, &left, "g").await?, (0, 0, 0));

        let worked = worked_on(&session, &deleted).await?;
        if is_swept {
            sweep(&session).await?;
        }
        assert_eq!(session.count(&format!("SELECT queen_delete_queue('{deleted}')")).await?, 10);
        refused(&worked, "QN003").await?;
        push_to(&session, &deleted, "a", 11, 12).await?;
        let came = drain(&session, &all(&deleted), 2, SOON).await?;
        assert_eq!((numbers(&came), came[0].delivery_attempt), (vec![11, 12], 1));
        refused(&worked, "QN003").await?;
    }
    // In the end nothing is left of all that.
    session.run("UPDATE queen_mq.receipt SET ended_at = ended_at - interval '2 h'").await?;
    session.run("UPDATE queen_mq.claim SET deadline = deadline - interval '2 h'").await?;
    session
        .run(
            "UPDATE queen_mq.progress
             SET due_at = due_at - interval '2 h', ended_at = ended_at - interval '2 h'",
        )
        .await?;
    swept_claims(&session).await
}

#[tokio::test(flavor = "multi_thread")]
async fn a_replayed_dead_letter_comes_to_its_own_group_alone() -> Result<()> {
    let (_db, [session]) = prepared(", retry_limit => 0", 0).await?;
    session.run("SELECT queen_subscribe('q', 'h', 'all')").await?;
    push(&session, "a", 1, 3).await?;
    let held = pop_all().run(&session).await?;
    Ack::messages(held[0].lease()?, [held[1].message_id]).failed("no").run(&session).await?;
    session.run("SELECT queen_dead_letter_replay(dead_letter_id) FROM queen_dead_letters").await?;
    assert_eq!(figures(&session).await?, (3, 2, 0));
    sweep(&session).await?;
    let again = pop_all().one(&session).await?;
    assert_eq!((&again.payload, again.delivery_attempt), (&n(2), 1));
    complete(&session, &[again]).await?;
    assert_eq!(Ack::all(held[0].lease()?).run(&session).await?.settled, 2);
    assert_eq!(numbers(&drain(&session, &pop_all().group("h"), 3, SOON).await?), [1, 2, 3]);
    assert_eq!(figures(&session).await?, (0, 0, 0));
    let others = "SELECT pending FROM queen_groups WHERE consumer_group = 'h'";
    assert_eq!(session.count(others).await?, 0);
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn a_group_may_begin_now_or_at_a_time() -> Result<()> {
    let (db, [session]) = prepared("", 0).await?;
    let late = db.session().await?;
    push(&session, "a", 1, 2).await?;
    let time = session.now().await?;
    push(&session, "a", 3, 4).await?;
    late.run("BEGIN").await?;
    push(&late, "a", 5, 6).await?;
    session.run("SELECT queen_subscribe('q', 'new')").await?;
    let sql = "SELECT queen_subscribe('q', 'from', start_at => $1)";
    session.query(sql, &[&time]).await?;
    late.run("COMMIT").await?;
    push(&session, "b", 7, 7).await?;
    for (group, expected) in [("new", vec![5, 6, 7]), ("from", vec![3, 4, 5, 6, 7])] {
        let sql = format!("SELECT pending FROM queen_groups WHERE consumer_group = '{group}'");
        assert_eq!(session.count(&sql).await?, expected.len() as i64, "{group}");
        let came = drain(&session, &pop_all().group(group).batch(2), expected.len(), SOON).await?;
        assert_eq!(sorted(&came), expected, "{group}");
        sweep(&session).await?;
        assert_eq!(session.count(&sql).await?, 0, "{group}");
    }
    Ok(())
}
