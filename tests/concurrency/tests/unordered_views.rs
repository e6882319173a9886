//! Groups without order: what the views show, what retention deletes, and how little is stored of
//! what is settled.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Result, ensure};
use queen_tests::unordered::{SOON, figures, pop, pop_all, prepared, push, sweep, swept_claims};
use queen_tests::{
    Ack, Fails, Push, Session, TestDb, at_once, complete, dead_letters, drain, eventually, expiry,
    n, numbers, sorted,
};

async fn depth(session: &Session) -> Result<i64> {
    Ok(session.count("SELECT depth FROM queen_queues WHERE queue = 'q'").await?)
}

/// Sweep until so many messages of the queue are left.
async fn swept_to(session: &Session, left: i64) -> Result<()> {
    eventually("end of what is old", SOON, async || {
        sweep(session).await?;
        let count = session.count("SELECT count(*) FROM queen_messages WHERE queue = 'q'").await?;
        ensure!(count >= left, "{count} messages instead of {left}");
        Ok((count == left).then_some(()))
    })
    .await
}

#[tokio::test(flavor = "multi_thread")]
async fn the_views_show_each_lease_and_what_waits() -> Result<()> {
    let (_db, [session]) = prepared(", retry_delay => '1 hour'", 0).await?;
    push(&session, "a", 1, 10).await?;
    push(&session, "b", 11, 14).await?;
    let first = pop_all().partition("a").batch(3).run(&session).await?;
    let second = pop_all().partition("a").batch(2).run(&session).await?;
    let third = pop_all().partition("b").batch(3).run(&session).await?;
    assert_eq!([&first, &second, &third].map(Vec::len), [3, 2, 3]);
    let short = pop_all().partition("a").batch(1).lease("100 ms").one(&session).await?;
    expiry(&session, &short).await?;
    Ack::messages(first[0].lease()?, [first[0].message_id]).run(&session).await?;
    let failed = Ack::messages(second[0].lease()?, [second[0].message_id]).failed("no");
    failed.run(&session).await?;
    let mut expected = [("a", &first, 2), ("a", &second, 1), ("b", &third, 3)]
        .map(|(partition, held, messages)| (partition.to_owned(), held[0].lease_id, messages, 1));
    expected.sort_unstable();
    let sql = "SELECT partition, lease_id, messages::bigint, delivery_attempt FROM queen_leases
               WHERE queue = 'q' AND consumer_group = 'g' ORDER BY 1, 2";
    // Also after sweeps.
    for _ in 0..2 {
        let rows = session.query(sql, &[]).await?;
        let rows: Vec<(String, Option<uuid::Uuid>, i64, i32)> =
            rows.iter().map(|r| (r.get(0), Some(r.get(1)), r.get(2), r.get(3))).collect();
        assert_eq!(rows, expected);
        assert_eq!(figures(&session).await?, (13, 6, 2));
        assert_eq!(depth(&session).await?, 13);
        sweep(&session).await?;
    }
    let dead = Ack::messages(first[0].lease()?, [first[1].message_id]).status("dead_letter");
    dead.run(&session).await?;
    assert_eq!(figures(&session).await?, (12, 5, 2));
    let sql = "SELECT dead_letters, last_pop_at > now() - interval '1 min' AND
               oldest_pending_age >= interval '100 ms' FROM queen_groups";
    let row = session.query_one(sql, &[]).await?;
    assert_eq!((row.get::<_, i64>(0), row.get::<_, bool>(1)), (1, true));
    // The depth of the queue is that of its slowest group.
    session.run("SELECT queen_subscribe('q', 'slow', 'all')").await?;
    assert_eq!(depth(&session).await?, 14);
    session.run("SELECT queen_unsubscribe('q', 'slow')").await?;
    assert_eq!(depth(&session).await?, 12);

    // The message whose lease ran out, and those that were never delivered.
    let rest = drain(&session, &pop_all(), 6, SOON).await?;
    assert_eq!(sorted(&rest), [6, 7, 8, 9, 10, 14]);
    for held in [&first, &second, &third] {
        Ack::all(held[0].lease()?).run(&session).await?;
    }
    for _ in 0..2 {
        assert_eq!((figures(&session).await?, depth(&session).await?), ((1, 0, 1), 1));
        sweep(&session).await?;
    }
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn pushes_are_refused_while_too_much_is_pending() -> Result<()> {
    let (_db, [session]) = prepared(", max_depth => 10", 0).await?;
    let mut pushed = 0;
    let full = async |pushed: &mut i64| -> Result<()> {
        let refused = eventually("full queue", SOON, async || {
            match Push::new("q", n(*pushed)).run(&session).await {
                Ok(_) => *pushed += 1,
                Err(error) => return Ok(Some(error)),
            }
            Ok(None)
        })
        .await?;
        Err::<(), _>(refused).fails_with("QN020")?;
        Ok(())
    };
    full(&mut pushed).await?;
    let before = pushed;
    assert_eq!(figures(&session).await?.0, pushed);
    // A held message counts as before; a settled one does not.
    let held = pop_all().batch(6).run(&session).await?;
    full(&mut pushed).await?;
    complete(&session, &held).await?;
    sweep(&session).await?;
    eventually("room", SOON, async || {
        let pushing = Push::new("q", n(pushed)).run(&session).await;
        pushed += i64::from(pushing.is_ok());
        Ok((pushed > before + 3).then_some(()))
    })
    .await?;
    assert_eq!(figures(&session).await?.0, pushed - 6);
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn pending_is_right_whatever_was_settled_and_swept() -> Result<()> {
    let (_db, [session]) = prepared(", retry_delay => '1 hour'", 0).await?;
    let (mut pending, mut failed) = (0, 0);
    for round in 0..12 {
        if round % 2 == 0 {
            push(&session, "a", 1, 5).await?;
        } else {
            for number in 1..=5 {
                Push::new("q", n(number)).partition("a").run(&session).await?;
            }
        }
        pending += 5;
        let held = pop_all().batch(4).run(&session).await?;
        let lease = held[0].lease()?;
        let id = |index: usize| held[index].message_id;
        if round % 3 == 0 {
            sweep(&session).await?;
        }
        // Settle the last one first, and one in the middle not at all.
        Ack::messages(lease, [id(3)]).run(&session).await?;
        Ack::messages(lease, [id(1)]).failed("no").run(&session).await?;
        (pending, failed) = (pending - 1, failed + 1);
        assert_eq!(figures(&session).await?, (pending, 2, failed), "round {round}");
        sweep(&session).await?;
        assert_eq!(figures(&session).await?, (pending, 2, failed), "round {round}");
        Ack::messages(lease, [id(0)]).run(&session).await?;
        Ack::all(lease).status(["completed", "dead_letter"][round % 2]).run(&session).await?;
        pending -= 2;
        assert_eq!(figures(&session).await?, (pending, 0, failed), "round {round}");
        sweep(&session).await?;
        assert_eq!(figures(&session).await?, (pending, 0, failed), "round {round}");
    }
    let left = usize::try_from(pending - failed)?;
    assert_eq!(drain(&session, &pop_all(), left, SOON).await?.len(), 12);
    sweep(&session).await?;
    assert_eq!(figures(&session).await?, (12, 0, 12));
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn what_every_group_has_settled_is_deleted_and_nothing_else() -> Result<()> {
    let (_db, [session]) = prepared(", completed_retention => '1 us'", 0).await?;
    session.run("SELECT queen_subscribe('q', 'slow', 'all')").await?;
    push(&session, "a", 1, 4).await?;
    push(&session, "a", 5, 5).await?;
    push(&session, "a", 6, 9).await?;
    let held = pop_all().run(&session).await?;
    let third = held[2].clone();
    let others = held.iter().map(|one| one.message_id).filter(|id| *id != third.message_id);
    Ack::messages(third.lease()?, others).run(&session).await?;
    sweep(&session).await?;
    swept_to(&session, 9).await?;
    assert_eq!(pop_all().group("slow").auto_ack().run(&session).await?.len(), 9);
    // The segment with the unsettled message stays whole.
    swept_to(&session, 4).await?;
    assert_eq!(figures(&session).await?, (1, 1, 0));
    assert_eq!(Ack::all(third.lease()?).status("retry").run(&session).await?.settled, 1);
    sweep(&session).await?;
    assert_eq!(figures(&session).await?, (1, 0, 1));
    let again = pop_all().one(&session).await?;
    assert_eq!((&again.payload, again.delivery_attempt), (&n(3), 2));
    complete(&session, &[again]).await?;
    swept_to(&session, 0).await?;
    assert_eq!((figures(&session).await?, depth(&session).await?), ((0, 0, 0), 0));
    push(&session, "a", 10, 11).await?;
    assert_eq!(figures(&session).await?, (2, 0, 0));
    assert_eq!(numbers(&drain(&session, &pop_all(), 2, SOON).await?), [10, 11]);
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn what_is_old_goes_settled_or_not_but_nothing_from_a_lease() -> Result<()> {
    let (db, [session]) = prepared(", retry_delay => '1 hour'", 0).await?;
    let late = db.session().await?;
    for number in 1..=5 {
        Push::new("q", n(number)).run(&session).await?;
    }
    late.run("BEGIN").await?;
    Push::new("q", n(6)).run(&late).await?;
    // Message 1 is completed, 2 has failed, 3 is held, the lease of 4 has run out, and 5 was never
    // delivered.
    complete(&session, &pop_all().batch(1).run(&session).await?).await?;
    let failed = pop_all().batch(1).one(&session).await?;
    Ack::all(failed.lease()?).failed("no").run(&session).await?;
    let held = pop_all().batch(1).one(&session).await?;
    let lapsed = pop_all().batch(1).lease("50 ms").one(&session).await?;
    assert_eq!(numbers(&[held.clone(), lapsed.clone()]), [3, 4]);
    expiry(&session, &lapsed).await?;
    assert_eq!(figures(&session).await?, (4, 1, 2));
    session.run("SELECT queen_configure('q', retention => '1 us')").await?;
    swept_to(&session, 1).await?;
    assert_eq!(figures(&session).await?, (1, 1, 0));
    assert_eq!(pop_all().run(&session).await?, []);
    late.run("COMMIT").await?;
    assert_eq!(figures(&session).await?, (2, 1, 0));
    swept_to(&session, 1).await?;
    complete(&session, &[held]).await?;
    swept_to(&session, 0).await?;
    assert_eq!(figures(&session).await?, (0, 0, 0));
    session.run("SELECT queen_configure('q', unset => '{retention}')").await?;
    Push::new("q", n(7)).run(&session).await?;
    assert_eq!(figures(&session).await?, (1, 0, 0));
    assert_eq!(numbers(&drain(&session, &pop_all(), 1, SOON).await?), [7]);
    assert_eq!(dead_letters(&session).await?, 0);
    Ok(())
}

/// Pop and complete so many messages, one by one, in four sessions.
async fn consume_singly(db: &TestDb, total: usize) -> Result<Vec<i64>> {
    let done = Arc::new(AtomicUsize::new(0));
    let began = Instant::now();
    let shares = at_once(db.crowd(4).await?, |_, session| {
        let done = done.clone();
        async move {
            let mut own = Vec::new();
            while done.load(Ordering::SeqCst) < total {
                ensure!(began.elapsed() < Duration::from_secs(40), "{done:?} of {total}");
                let came = pop().run(&session).await?;
                complete(&session, &came).await?;
                done.fetch_add(came.len(), Ordering::SeqCst);
                own.extend(numbers(&came));
            }
            Ok(own)
        }
    })
    .await?;
    let mut all = Vec::new();
    for share in shares {
        all.extend(share?);
    }
    all.sort_unstable();
    Ok(all)
}

#[tokio::test(flavor = "multi_thread")]
async fn nothing_is_kept_of_what_is_settled() -> Result<()> {
    let (db, [session]) = prepared("", 0).await?;
    for (from, is_batch) in [(1, false), (2001, true)] {
        let to = from + 1999;
        if is_batch {
            for start in (from..to).step_by(100) {
                push(&session, "Default", start, start + 99).await?;
            }
        } else {
            let sql = format!(
                "SELECT queen_push('q', jsonb_build_object('n', k))
                 FROM generate_series({from}, {to}) AS k"
            );
            session.run(&sql).await?;
        }
        assert_eq!(consume_singly(&db, 2000).await?, (from..=to).collect::<Vec<_>>());
        assert_eq!(pop_all().run(&session).await?, []);
        swept_claims(&session).await?;
        assert_eq!(pop_all().run(&session).await?, []);
        assert_eq!(figures(&session).await?, (0, 0, 0));
    }
    // One message stays unsettled, and everything after it is settled.
    push(&session, "Default", 5000, 5199).await?;
    let held = pop().one(&session).await?;
    drain(&session, &pop_all().batch(3), 199, SOON).await?;
    sweep(&session).await?;
    assert_eq!(pop_all().run(&session).await?, []);
    assert_eq!(figures(&session).await?, (1, 1, 0));
    complete(&session, &[held]).await?;
    swept_claims(&session).await?;
    assert_eq!((pop_all().run(&session).await?, figures(&session).await?), (vec![], (0, 0, 0)));
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn pops_go_on_without_sweeps() -> Result<()> {
    let (db, [session]) = prepared("", 0).await?;
    for round in 0..4 {
        let (from, to) = (round * 500 + 1, round * 500 + 500);
        push(&session, "Default", from, to - 100).await?;
        for number in to - 99..=to {
            Push::new("q", n(number)).run(&session).await?;
        }
        assert_eq!(consume_singly(&db, 500).await?, (from..=to).collect::<Vec<_>>());
    }
    // Pops answer as quickly as before.
    session.be_prompt().await?;
    assert_eq!(pop_all().run(&session).await?, []);
    push(&session, "Default", 2001, 2003).await?;
    assert_eq!(figures(&session).await?, (3, 0, 0));
    assert_eq!(numbers(&drain(&session, &pop(), 3, SOON).await?), [2001, 2002, 2003]);
    assert_eq!(figures(&session).await?, (0, 0, 0));
    Ok(())
}
