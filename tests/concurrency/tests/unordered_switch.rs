//! Changing the ordering of a queue or a group, in both directions, and restoring into another
//! cluster: what is settled stays settled, and what is not is delivered with all that is known of
//! it.

use anyhow::{Result, ensure};
use queen_tests::cluster::Cluster;
use queen_tests::expect::sqlstate;
use queen_tests::unordered::{SOON, figures, pop_all, push, sweep};
use queen_tests::{
    Ack, Fails, Message, Push, Session, Settled, TestDb, complete, counts, drain, expiry, find, n,
    numbers, sorted,
};

/// The numbers and attempts of messages, sorted by number.
fn attempts(messages: &[Message]) -> Vec<(i64, i32)> {
    let attempts = messages.iter().map(|one| one.delivery_attempt);
    let mut all: Vec<_> = numbers(messages).into_iter().zip(attempts).collect();
    all.sort_unstable();
    all
}

async fn ack(session: &Session, came: &[Message], number: i64, status: &str) -> Result<Settled> {
    let one = find(came, number)?;
    let ack = Ack::messages(one.lease()?, [one.message_id]).status(status);
    Ok(ack.run(session).await?)
}

async fn configure(session: &Session, arguments: &str) -> Result<(), tokio_postgres::Error> {
    session.query(&format!("SELECT queen_configure('q', {arguments})"), &[]).await.map(drop)
}

/// The ordering and the retry_limit of the queue.
async fn options(session: &Session) -> Result<(String, String)> {
    let sql = "SELECT options ->> 'ordering', options ->> 'retry_limit' FROM queen_queues";
    let row = session.query_one(sql, &[]).await?;
    Ok((row.get(0), row.get(1)))
}

#[tokio::test(flavor = "multi_thread")]
async fn ordering_does_not_change_while_leases_are_live() -> Result<()> {
    let db = TestDb::fresh().await?;
    let session = db.session().await?;
    let shown = |ordering: &str, limit: &str| (ordering.to_owned(), limit.to_owned());
    push(&session, "a", 1, 5).await?;
    let held = pop_all().batch(2).run(&session).await?;
    configure(&session, "ordering => 'none'").await.fails_with("55000")?;
    configure(&session, "retry_limit => 7, ordering => 'none'").await.fails_with("55000")?;
    assert_eq!(options(&session).await?, shown("partition", "3"));
    // Naming the ordering that the queue has is no change.
    configure(&session, "retry_limit => 4, ordering => 'partition'").await?;
    Ack::messages(held[0].lease()?, [held[0].message_id]).run(&session).await?;
    configure(&session, "ordering => 'none'").await.fails_with("55000")?;
    Ack::all(held[0].lease()?).run(&session).await?;
    configure(&session, "ordering => 'none'").await?;
    assert_eq!(options(&session).await?, shown("none", "4"));

    let first = pop_all().batch(1).one(&session).await?;
    let second = pop_all().batch(1).one(&session).await?;
    for held in [first, second] {
        for arguments in ["ordering => 'partition'", "unset => '{ordering}'", "reset => true"] {
            configure(&session, arguments).await.fails_with("55000")?;
        }
        configure(&session, "reset => true, ordering => 'none', retry_limit => 5").await?;
        assert_eq!(options(&session).await?, shown("none", "5"));
        complete(&session, &[held]).await?;
    }
    configure(&session, "unset => '{ordering}'").await?;
    assert_eq!(options(&session).await?, shown("partition", "5"));
    configure(&session, "ordering => 'none'").await?;
    configure(&session, "reset => true").await?;
    assert_eq!(options(&session).await?, shown("partition", "3"));
    configure(&session, "ordering => 'fifo'").await.fails_with("22023")?;
    assert_eq!(numbers(&drain(&session, &pop_all(), 1, SOON).await?), [5]);
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn what_is_unsettled_is_kept_there_and_back() -> Result<()> {
    for is_swept in [false, true] {
        let db = TestDb::fresh().await?;
        let session = db.session().await?;
        let swept = async || if is_swept { sweep(&session).await } else { Ok(()) };
        configure(&session, "retry_limit => 2").await?;
        push(&session, "p", 1, 6).await?;
        push(&session, "c", 21, 22).await?;
        // In p, 1 and 3 are completed, 2 has failed once, and 4 was given back with it.
        let held = pop_all().partition("p").batch(4).run(&session).await?;
        ack(&session, &held, 1, "completed").await?;
        ack(&session, &held, 3, "completed").await?;
        ack(&session, &held, 2, "failed").await?;
        // In c, 21 waits for an hour, and 22 waits behind it.
        configure(&session, "retry_delay => '1 hour'").await?;
        let waiting = pop_all().partition("c").batch(1).run(&session).await?;
        ack(&session, &waiting, 21, "failed").await?;
        assert_eq!(pop_all().partition("c").run(&session).await?, []);
        swept().await?;
        configure(&session, "unset => '{retry_delay}', ordering => 'none'").await?;
        for _ in 0..2 {
            assert_eq!(figures(&session).await?, (6, 0, 3));
            swept().await?;
        }
        let came = pop_all().run(&session).await?;
        assert_eq!(attempts(&came), [(2, 2), (4, 2), (5, 1), (6, 1), (22, 1)]);
        assert_eq!(ack(&session, &came, 2, "failed").await?.dead_lettered, 0);
        ack(&session, &came, 4, "retry").await?;
        for number in [6, 22, 5] {
            ack(&session, &came, number, "completed").await?;
        }
        push(&session, "p", 7, 7).await?;
        push(&session, "c", 23, 23).await?;
        swept().await?;
        assert_eq!(figures(&session).await?, (5, 0, 3));
        configure(&session, "unset => '{ordering}'").await?;
        for _ in 0..2 {
            assert_eq!(figures(&session).await?, (5, 0, 3));
            swept().await?;
        }

        let came = pop_all().run(&session).await?;
        assert_eq!(numbers(&came), [2, 4, 7], "in order again, and c waits for 21");
        assert_eq!(attempts(&came), [(2, 3), (4, 3), (7, 1)]);
        // The message survived two failures.
        assert_eq!(ack(&session, &came, 2, "failed").await?.dead_lettered, 1);
        let sql = "SELECT failures, deliveries FROM queen_dead_letters";
        let letter = session.query_one(sql, &[]).await?;
        assert_eq!((letter.get::<_, i32>(0), letter.get::<_, i32>(1)), (3, 3));
        let came = pop_all().run(&session).await?;
        assert_eq!(attempts(&came), [(4, 4), (7, 2)]);
        complete(&session, &came).await?;
        assert_eq!((pop_all().run(&session).await?, figures(&session).await?), (vec![], (2, 0, 1)));
        swept().await?;
        configure(&session, "ordering => 'none'").await?;
        assert_eq!(numbers(&drain(&session, &pop_all(), 1, SOON).await?), [23]);
        assert_eq!(figures(&session).await?, (1, 0, 1));
        push(&session, "p", 8, 9).await?;
        assert_eq!(numbers(&drain(&session, &pop_all(), 2, SOON).await?), [8, 9]);
    }
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn leases_from_before_the_switch_are_answered_as_ever() -> Result<()> {
    for (from, to, is_swept) in [
        ("partition", "none", false),
        ("partition", "none", true),
        ("none", "partition", false),
        ("none", "partition", true),
    ] {
        let db = TestDb::fresh().await?;
        let session = db.session().await?;
        let swept = async || if is_swept { sweep(&session).await } else { Ok(()) };
        configure(&session, &format!("ordering => '{from}'")).await?;
        push(&session, "a", 1, 4).await?;
        let done = pop_all().batch(1).run(&session).await?;
        complete(&session, &done).await?;
        // This lease runs out, and is not live any more.
        let lost = pop_all().batch(2).lease("100 ms").run(&session).await?;
        assert_eq!((numbers(&done), numbers(&lost)), (vec![1], vec![2, 3]));
        expiry(&session, &lost[0]).await?;
        swept().await?;
        configure(&session, &format!("ordering => '{to}'")).await?;
        swept().await?;
        assert_eq!(figures(&session).await?, (3, 0, 2));
        // The switch released what the lease held.
        let late = Ack::all(lost[0].lease()?);
        late.run(&session).await.fails_with("QN002")?;
        let again = pop_all().run(&session).await?;
        assert_eq!(attempts(&again), [(2, 2), (3, 2), (4, 1)]);
        if to == "partition" {
            assert_eq!(numbers(&again), [2, 3, 4]);
        }
        late.run(&session).await.fails_with("QN002")?;
        let repeated = Ack::all(done[0].lease()?).run(&session).await?;
        let expected = counts(0, 1, true);
        assert_eq!(repeated, expected);
        complete(&session, &again).await?;
        late.run(&session).await.fails_with("QN002")?;
        assert_eq!(figures(&session).await?, (0, 0, 0));
    }
    Ok(())
}

/// The lease of an open transaction is not visible yet. The switch waits for it, is refused, or is
/// made, and in no case is the message delivered twice.
#[tokio::test(flavor = "multi_thread")]
async fn a_switch_beside_an_open_pop_delivers_nothing_twice() -> Result<()> {
    for (from, to) in [("partition", "none"), ("none", "partition")] {
        for is_known in [false, true] {
            let db = TestDb::fresh().await?;
            let [ref open, ref other] = db.sessions().await?;
            configure(other, &format!("ordering => '{from}'")).await?;
            other.run("SELECT queen_subscribe('q', 'g', 'all')").await?;
            if is_known {
                push(other, "a", 0, 0).await?;
                complete(other, &pop_all().run(other).await?).await?;
            }
            push(other, "a", 1, 4).await?;
            open.run("BEGIN").await?;
            let held = pop_all().batch(1).one(open).await?;
            assert_eq!(held.payload, n(1));
            other.run("SET statement_timeout = '1 s'").await?;
            if let Err(error) = configure(other, &format!("ordering => '{to}'")).await {
                let code = sqlstate(&error).unwrap_or_default().to_owned();
                ensure!(["55000", "57014", "55P03"].contains(&code.as_str()), "{error:?}");
            }
            other.run("RESET statement_timeout").await?;
            let mut came = pop_all().batch(2).run(other).await?;
            complete(other, &came).await?;
            open.run("COMMIT").await?;
            let next = pop_all().batch(1).run(other).await?;
            complete(other, &next).await?;
            came.extend(next);
            complete(open, &[held]).await?;
            let rest = drain(other, &pop_all(), 3 - came.len(), SOON).await?;
            assert_eq!(sorted(&[came, rest].concat()), [2, 3, 4], "{from} to {to}");
            assert_eq!(figures(other).await?, (0, 0, 0));
        }
    }
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn a_group_may_have_an_ordering_of_its_own() -> Result<()> {
    let db = TestDb::fresh().await?;
    let session = db.session().await?;
    configure(&session, "retry_limit => 3").await?;
    for (group, ordering) in [("loose", "'none'"), ("strict", "'partition'"), ("g", "NULL")] {
        let sql = format!("SELECT queen_subscribe('q', '{group}', 'all', ordering => {ordering})");
        assert!(session.query_one(&sql, &[]).await?.get::<_, bool>(0));
        // The group is registered; another call changes nothing.
        let again = "SELECT queen_subscribe('q', $1, 'all', ordering => $2)";
        let other = if group == "loose" { "partition" } else { "none" };
        assert!(!session.query_one(again, &[&group, &other]).await?.get::<_, bool>(0));
    }
    let bad = "SELECT queen_subscribe('q', 'bad', ordering => 'fifo')";
    session.query(bad, &[]).await.fails_with("22023")?;
    push(&session, "a", 1, 8).await?;
    let of = |group: &str| pop_all().group(group).batch(1);
    let side_by_side = async |group: &str| -> Result<Vec<Message>> {
        let mut held = of(group).run(&session).await?;
        held.extend(of(group).run(&session).await?);
        Ok(held)
    };
    for (ordering, of_g) in [("partition", 1), ("none", 2), ("partition", 1)] {
        configure(&session, &format!("ordering => '{ordering}'")).await?;
        let loose = side_by_side("loose").await?;
        let strict = side_by_side("strict").await?;
        assert_eq!((loose.len(), strict.len()), (2, 1), "{ordering}");
        let held = side_by_side("g").await?;
        assert_eq!(held.len(), of_g, "{ordering}");
        for one in &held {
            complete(&session, std::slice::from_ref(one)).await?;
        }
        // The switch does not concern groups with an ordering of their own, so their leases do not
        // prevent it.
        let to = if ordering == "none" { "partition" } else { "none" };
        configure(&session, &format!("ordering => '{to}'")).await?;
        assert_eq!(side_by_side("strict").await?, []);
        for one in loose.iter().chain(&strict) {
            complete(&session, std::slice::from_ref(one)).await?;
        }
    }
    let pending =
        |group: &str| format!("SELECT pending FROM queen_groups WHERE consumer_group = '{group}'");
    for (group, left) in [("loose", 2), ("strict", 5), ("g", 4)] {
        assert_eq!(session.count(&pending(group)).await?, left, "{group}");
        let rest = drain(&session, &of(group), usize::try_from(left)?, SOON).await?;
        assert_eq!(numbers(&rest), (9 - left..=8).collect::<Vec<_>>(), "{group}");
    }
    Ok(())
}

/// What a dump finds in one partition, whose numbers begin after `base`: 1, 2 and 4 are completed,
/// 3 is held, 5 has failed once, 6 is a dead letter, and 7 was never delivered.
async fn dumped(session: &Session, partition: &str, base: i64) -> Result<Vec<Message>> {
    let pop = pop_all().partition(partition).batch(2);
    push(session, partition, base + 1, base + 4).await?;
    for number in base + 5..=base + 7 {
        Push::new("q", n(number)).partition(partition).run(session).await?;
    }
    complete(session, &pop.run(session).await?).await?;
    let held = pop.clone().lease("1 hour").run(session).await?;
    ack(session, &held, base + 4, "completed").await?;
    let bad = pop.run(session).await?;
    ack(session, &bad, base + 5, "failed").await?;
    ack(session, &bad, base + 6, "dead_letter").await?;
    Ok(held)
}

#[tokio::test(flavor = "multi_thread")]
async fn a_dump_is_consumed_on_in_another_cluster() -> Result<()> {
    let (old, new) = (Cluster::start_new()?, Cluster::start_new()?);
    let source = TestDb::create(&old.config()).await?;
    let [ref session, ref open] = source.sessions().await?;
    session
        .run(
            "DO $$ BEGIN FOR n IN 1..3000 LOOP PERFORM pg_current_xact_id(); COMMIT; \
            END LOOP; END $$",
        )
        .await?;
    configure(session, "ordering => 'none', retry_limit => 1").await?;
    session.run("SELECT queen_subscribe('q', 'all along', 'all', ordering => 'none')").await?;
    let mut held = vec![("swept", 0, dumped(session, "swept", 0).await?)];
    sweep(session).await?;
    held.push(("fresh", 100, dumped(session, "fresh", 100).await?));
    // During the dump another transaction has these messages.
    open.run("BEGIN").await?;
    Push::new("q", n(900)).partition("fresh").run(open).await?;
    pop_all().partition("swept").batch(1).one(open).await?;
    let largest = session.count("SELECT max(message_id) FROM queen_messages").await?;
    let before = figures(session).await?;
    assert_eq!(before, (6, 2, 2));
    let file = old.file("unordered.dump");
    old.dump(source.name(), &file)?;
    open.run("COMMIT").await?;

    let target = TestDb::create_empty(&new.config()).await?;
    new.restore(target.name(), &file)?;
    let [ref session, ref open] = target.sessions().await?;
    // The leases count as expired.
    assert_eq!(figures(session).await?, (6, 0, 4));
    assert_eq!(session.count("SELECT count(*) FROM queen_leases").await?, 0);
    for (partition, base, held) in &held {
        let three = Ack::messages(held[0].lease()?, [find(held, base + 3)?.message_id]);
        three.run(session).await.fails_with("QN001")?;
        let pushed = Push::new("q", n(base + 8)).partition(*partition).run(session).await?;
        ensure!(pushed.message_id > largest, "{pushed:?} <= {largest}");
        let came = pop_all().partition(*partition).run(session).await?;
        let expected = [(base + 3, 2), (base + 5, 2), (base + 7, 1), (base + 8, 1)];
        assert_eq!(attempts(&came), expected);
        three.run(session).await.fails_with("QN002")?;
        // Message 5 had failed before; its second failure exhausts it.
        assert_eq!(ack(session, &came, base + 5, "failed").await?.dead_lettered, 1);
        assert_eq!(Ack::all(came[0].lease()?).run(session).await?.settled, 3);
        assert_eq!(pop_all().partition(*partition).run(session).await?, []);
    }
    assert_eq!(figures(session).await?, (0, 0, 0));
    // Late commits are found in the restored database, too.
    open.run("BEGIN").await?;
    push(open, "fresh", 201, 202).await?;
    push(session, "fresh", 203, 204).await?;
    assert_eq!(numbers(&drain(session, &pop_all(), 2, SOON).await?), [203, 204]);
    open.run("COMMIT").await?;
    sweep(session).await?;
    assert_eq!(numbers(&drain(session, &pop_all(), 2, SOON).await?), [201, 202]);

    let all = pop_all().group("all along").batch(7).partitions(2);
    let came = sorted(&drain(session, &all, 20, SOON).await?);
    assert_eq!(came, (1..=8).chain(101..=108).chain(201..=204).collect::<Vec<_>>());
    assert_eq!(session.count("SELECT sum(pending)::bigint FROM queen_groups").await?, 0);
    Ok(())
}
