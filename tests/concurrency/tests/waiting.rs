//! A waiting pop is woken by every event it waits for, and can always be cancelled.

use std::time::{Duration, Instant};

use anyhow::{Result, ensure};
use queen_tests::{
    Ack, Fails, Message, Pop, Push, Session, TestDb, complete, eventually, n, numbers,
};
use tokio_postgres::SimpleQueryMessage;

/// Far longer than a wake-up takes on a busy machine, and shorter than the longest sleep of a
/// waiter.
const SOON: Duration = Duration::from_millis(1500);

fn pop() -> Pop {
    Pop::new("q").group("g").mode("all")
}

/// Let `waiter` wait while `act` runs. Returns what came, and how long after the end of `act`.
async fn woken(
    waiter: &Session,
    act: impl Future<Output = Result<()>>,
) -> Result<(Vec<Message>, Duration)> {
    let pop = pop().wait("20 s");
    let waiting = pop.run(waiter);
    let acting = async {
        tokio::time::sleep(Duration::from_millis(60)).await;
        act.await.map(|()| Instant::now())
    };
    let (came, acted) = tokio::join!(async { waiting.await.map(|m| (m, Instant::now())) }, acting);
    let (came, at) = came?;
    Ok((came, at.saturating_duration_since(acted?)))
}

#[tokio::test(flavor = "multi_thread")]
async fn a_push_wakes_at_its_commit() -> Result<()> {
    let db = TestDb::fresh().await?;
    let [ref waiter, ref other] = db.sessions().await?;
    let mut delays = Vec::new();
    for round in 0..25 {
        let (came, delay) = woken(waiter, async {
            other.run("BEGIN").await?;
            Push::new("q", n(round)).partition(format!("p{round}")).run(other).await?;
            // Nothing is visible yet; the commit of another transaction wakes the pop in vain.
            tokio::time::sleep(Duration::from_millis(10)).await;
            Ok(other.run("COMMIT").await?)
        })
        .await?;
        assert_eq!(numbers(&came), [round]);
        complete(waiter, &came).await?;
        delays.push(delay);
    }
    delays.sort_unstable();
    // A pop that only looked again now and then would need 50 ms.
    ensure!(delays[12] < Duration::from_millis(30), "{delays:?}");
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn so_do_a_failure_an_ack_an_expiry_a_timer_and_a_seek() -> Result<()> {
    let db = TestDb::fresh().await?;
    let [ref waiter, ref other] = db.sessions().await?;
    Push::new("q", n(1)).run(other).await?;
    Push::new("q", n(2)).run(other).await?;
    let held = pop().one(other).await?;
    let failing = async {
        Ack::all(held.lease()?).failed("no").run(other).await?;
        Ok(())
    };
    let (came, delay) = woken(waiter, failing).await?;
    ensure!(numbers(&came) == [1] && delay < SOON, "{came:?} after {delay:?}");

    let lease = came[0].lease()?;
    let acking = async {
        Ack::all(lease).run(other).await?;
        Ok(())
    };
    let (came, delay) = woken(waiter, acking).await?;
    ensure!(numbers(&came) == [2] && delay < SOON, "{came:?} after {delay:?}");
    Ack::all(came[0].lease()?).status("retry").run(waiter).await?;

    let short = pop().lease("400 ms").one(other).await?;
    let began = Instant::now();
    let came = pop().wait("20 s").run(waiter).await?;
    ensure!(numbers(&came) == [2] && began.elapsed() < SOON, "{:?}", began.elapsed());
    Ack::all(short.lease()?).run(other).await.fails_with("QN002")?;
    complete(waiter, &came).await?;

    let scheduling = async {
        let sql = "SELECT queen_schedule('q', 'k', '{\"n\": 3}', delay => '300 ms')";
        Ok(other.run(sql).await?)
    };
    let (came, delay) = woken(waiter, scheduling).await?;
    ensure!(numbers(&came) == [3] && delay < SOON, "{came:?} after {delay:?}");
    complete(waiter, &came).await?;

    let seeking = async { Ok(other.run("SELECT queen_seek('q', 'g', 'start')").await?) };
    let (came, delay) = woken(waiter, seeking).await?;
    ensure!(numbers(&came) == [1] && delay < SOON, "{came:?} after {delay:?}");
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn a_prepared_push_is_seen_when_it_commits_and_a_rolled_back_one_never() -> Result<()> {
    let db = TestDb::fresh().await?;
    let [ref waiter, ref other] = db.sessions().await?;
    let (came, delay) = woken(waiter, async {
        other.run("BEGIN").await?;
        Push::new("q", n(1)).run(other).await?;
        other.run("ROLLBACK").await?;
        other.run("BEGIN").await?;
        Push::new("q", n(2)).run(other).await?;
        other.run(&format!("PREPARE TRANSACTION '{}'", db.name())).await?;
        Ok(other.run(&format!("COMMIT PREPARED '{}'", db.name())).await?)
    })
    .await?;
    ensure!(numbers(&came) == [2] && delay < Duration::from_secs(8), "{came:?} after {delay:?}");
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn a_wait_can_be_cancelled_ended_and_timed_out() -> Result<()> {
    let db = TestDb::fresh().await?;
    let [ref waiter, ref other] = db.sessions().await?;
    let began = Instant::now();
    waiter.run("SET statement_timeout = '200 ms'").await?;
    pop().wait("20 s").run(waiter).await.fails_with("57014")?;
    waiter.run("RESET statement_timeout").await?;
    assert_eq!(pop().wait("200 ms").run(waiter).await?, []);
    let long = pop().wait("20 s");
    let cancel = format!("SELECT pg_cancel_backend({})", waiter.pid());
    let (cancelled, done) = tokio::join!(long.run(waiter), async {
        tokio::time::sleep(Duration::from_millis(100)).await;
        other.run(&cancel).await
    });
    done?;
    cancelled.fails_with("57014")?;
    let terminate = format!("SELECT pg_terminate_backend({})", waiter.pid());
    let (ended, done) = tokio::join!(long.run(waiter), async {
        tokio::time::sleep(Duration::from_millis(100)).await;
        other.run(&terminate).await
    });
    done?;
    ended.fails_with("57P01")?;
    ensure!(began.elapsed() < Duration::from_secs(10), "{:?}", began.elapsed());
    // The next waiting pop is woken nevertheless.
    let another = db.session().await?;
    let (came, delay) = woken(&another, async {
        Push::new("q", n(1)).run(other).await?;
        Ok(())
    })
    .await?;
    ensure!(numbers(&came) == [1] && delay < SOON, "{came:?} after {delay:?}");
    Ok(())
}

/// CALL queen_wait: what it returns.
async fn call(session: &Session, timeout: &str) -> Result<bool, tokio_postgres::Error> {
    let sql = format!("CALL queen_wait('q', 'g', '{timeout}')");
    let messages = session.simple_query(&sql).await?;
    Ok(messages.iter().any(|message| match message {
        SimpleQueryMessage::Row(row) => row.get(0) == Some("t"),
        _ => false,
    }))
}

#[tokio::test(flavor = "multi_thread")]
async fn queen_wait_holds_nothing_while_it_waits() -> Result<()> {
    let db = TestDb::fresh().await?;
    let [ref waiter, ref other] = db.sessions().await?;
    let began = Instant::now();
    assert!(!call(waiter, "200 ms").await?);
    ensure!(began.elapsed() >= Duration::from_millis(200), "{:?}", began.elapsed());
    // queen_wait registers the group, as a pop does.
    assert_eq!(other.count("SELECT count(*) FROM queen_groups").await?, 1);

    let (ready, looked) = tokio::join!(call(waiter, "20 s"), async {
        let sql = format!(
            "SELECT count(*) FROM pg_stat_activity WHERE pid = {} AND state = 'active'
             AND backend_xmin IS NULL AND backend_xid IS NULL AND wait_event = 'Extension'",
            waiter.pid()
        );
        eventually("quiet wait", Duration::from_secs(10), async || {
            Ok((other.count(&sql).await? == 1).then_some(()))
        })
        .await?;
        Push::new("q", n(1)).run(other).await?;
        Ok::<_, anyhow::Error>(Instant::now())
    });
    let pushed = looked?;
    assert!(ready?);
    ensure!(pushed.elapsed() < SOON, "{:?}", pushed.elapsed());
    // queen_wait pops nothing, so a second call returns true at once.
    assert!(call(waiter, "0").await?);
    assert_eq!(numbers(&pop().run(waiter).await?), [1]);
    assert!(!call(waiter, "0").await?);
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn queen_wait_is_for_itself_and_can_be_cancelled() -> Result<()> {
    let db = TestDb::fresh().await?;
    let [ref waiter, ref other] = db.sessions().await?;
    waiter.run("BEGIN").await?;
    call(waiter, "1 s").await.fails_with("25001")?;
    waiter.run("ROLLBACK").await?;
    call(waiter, "61 min").await.fails_with("22023")?;
    call(waiter, "-1 s").await.fails_with("22023")?;
    waiter.run("SET queen_mq.auto_create = off").await?;
    call(waiter, "1 s").await.fails_with("42704")?;
    waiter.run("RESET queen_mq.auto_create; SET statement_timeout = '200 ms'").await?;
    call(waiter, "20 s").await.fails_with("57014")?;
    waiter.run("RESET statement_timeout").await?;
    // queen_wait returns for a timer, and for a lease that runs out.
    other.run("SELECT queen_schedule('q', 'k', '{\"n\": 1}', delay => '300 ms')").await?;
    assert!(call(waiter, "20 s").await?);
    pop().lease("300 ms").one(other).await?;
    let began = Instant::now();
    assert!(call(waiter, "20 s").await?);
    ensure!(began.elapsed() < SOON, "{:?}", began.elapsed());
    Ok(())
}

/// A pop that waits with locks on timers would keep all other sessions from them until its end.
#[tokio::test(flavor = "multi_thread")]
async fn a_pop_that_waits_keeps_no_timers_of_others() -> Result<()> {
    let db = TestDb::fresh().await?;
    let [ref waiter, ref other] = db.sessions().await?;
    other.run("SELECT queen_subscribe('q', 'g', 'all')").await?;
    Push::new("q", n(0)).partition("mine").run(other).await?;
    complete(other, &pop().partition("mine").run(other).await?).await?;
    let waiting = async { pop().partition("mine").wait("20 s").run(waiter).await };
    let acting = async {
        tokio::time::sleep(Duration::from_millis(100)).await;
        other
            .run(
                "SELECT queen_schedule('q', 'k', '{\"n\": 1}', partition => 'theirs', \
                delay => '200 ms')",
            )
            .await?;
        let began = Instant::now();
        let came = pop().wait("10 s").run(other).await?;
        Ok::<_, anyhow::Error>((came, began.elapsed()))
    };
    let (mine, theirs) = tokio::join!(waiting, acting);
    let (came, took) = theirs?;
    assert_eq!((numbers(&came), mine?.len()), (vec![1], 0));
    ensure!(took < Duration::from_secs(2), "{took:?}");
    Ok(())
}

/// A due timer that an open transaction has locked is not looked at again and again.
#[tokio::test(flavor = "multi_thread")]
async fn a_pop_that_waits_for_a_timer_another_session_holds_is_idle() -> Result<()> {
    let db = TestDb::fresh().await?;
    let [ref waiter, ref holder, ref other] = db.sessions().await?;
    other.run("SELECT queen_subscribe('q', 'g', 'all'), queen_configure('q')").await?;
    holder.run("SELECT queen_schedule('q', 'k', '{\"n\": 1}', delay => '100 ms')").await?;
    holder.run("BEGIN; SELECT queen_schedule('q', 'k', '{\"n\": 2}', delay => '0')").await?;
    tokio::time::sleep(Duration::from_millis(200)).await;
    let waiting = async { pop().wait("20 s").run(waiter).await };
    let looking = async {
        let sql = "SELECT idx_scan FROM pg_stat_user_indexes WHERE indexrelname = 'timer_due'";
        let before = other.count(sql).await?;
        tokio::time::sleep(Duration::from_secs(3)).await;
        holder.run("COMMIT").await?;
        Ok::<_, anyhow::Error>(before)
    };
    let (came, looked) = tokio::join!(waiting, looking);
    let (came, before) = (came?, looked?);
    assert_eq!(numbers(&came), [2]);
    // The statistics arrive when the transaction has ended. There are about fifty looks a second.
    let sql = "SELECT pg_stat_clear_snapshot(), idx_scan FROM pg_stat_user_indexes
               WHERE indexrelname = 'timer_due'";
    let after: i64 = eventually("statistics", Duration::from_secs(10), async || {
        let after: i64 = other.row(sql, &[]).await?.get(1);
        Ok((after > before + 3).then_some(after))
    })
    .await?;
    ensure!(after - before < 1000, "{} looks in three seconds", after - before);
    Ok(())
}
