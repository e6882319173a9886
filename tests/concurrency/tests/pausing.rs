//! `queen_pause` and `queen_resume`: pops find nothing meanwhile, and all else goes on.

use std::time::Duration;

use anyhow::{Result, ensure};
use queen_tests::waiting::{are_asleep, is_ready, wait_in_task};
use queen_tests::{Ack, Fails, Pop, Push, Session, TestDb, complete, n, numbers};

fn pop(group: &str) -> Pop {
    Pop::new("q").group(group).mode("all")
}

async fn changes(session: &Session, call: &str) -> Result<bool> {
    Ok(session.query_one(&format!("SELECT {call}"), &[]).await?.get(0))
}

#[tokio::test(flavor = "multi_thread")]
async fn other_sessions_hear_of_it_at_once_and_what_they_hold_goes_on() -> Result<()> {
    let db = TestDb::fresh().await?;
    let [ref admin, ref consumer] = db.sessions().await?;
    for partition in ["a", "b", "c"] {
        Push::new("q", n(1)).partition(partition).run(admin).await?;
    }
    // The session remembers queue and group.
    let held = pop("g").one(consumer).await?;
    let given = pop("g").one(consumer).await?;
    for (pause, resume) in [
        ("queen_pause('q', 'g')", "queen_resume('q', 'g')"),
        ("queen_pause('q')", "queen_resume('q')"),
    ] {
        ensure!(changes(admin, pause).await?, "{pause}");
        ensure!(!changes(consumer, pause).await?, "{pause}, again");
        assert_eq!(pop("g").run(consumer).await?, []);
        assert_eq!(Push::new("q", n(2)).partition("d").run(consumer).await?.status, "queued");
        let of_group = changes(consumer, "(SELECT bool_or(paused) FROM queen_groups)").await?;
        ensure!(of_group, "the view says nothing");
        ensure!(changes(consumer, resume).await?, "{resume}");
        ensure!(!changes(admin, resume).await?, "{resume}, again");
    }
    admin.run("SELECT queen_pause('q')").await?;
    consumer.row("SELECT queen_extend($1)", &[&held.lease()?]).await?;
    complete(consumer, &[held]).await?;
    Ack::all(given.lease()?).failed("no").run(consumer).await?;
    assert_eq!(pop("g").run(consumer).await?, []);
    // Until the commit, others go by what is committed.
    admin.run("BEGIN; SELECT queen_resume('q')").await?;
    assert_eq!(pop("g").run(consumer).await?, []);
    assert_eq!(pop("g").run(admin).await?.len(), 1);
    admin.run("ROLLBACK").await?;
    assert_eq!(pop("g").run(admin).await?, []);
    admin.run("SELECT queen_resume('q')").await?;
    assert_eq!(pop("g").batch(9).partitions(9).run(consumer).await?.len(), 4);
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn a_pop_that_waits_goes_on_waiting_until_the_resume() -> Result<()> {
    let db = TestDb::fresh().await?;
    let [admin, first, second] = db.sessions().await?;
    for (pause, resume) in [
        ("SELECT queen_pause('q', 'g')", "SELECT queen_resume('q', 'g')"),
        ("SELECT queen_pause('q')", "SELECT queen_resume('q')"),
    ] {
        admin.run("SELECT queen_configure('q'), queen_subscribe('q', 'g')").await?;
        let waiting = wait_in_task(db.session().await?, pop("g").wait("30 s"));
        are_asleep(&admin, 1).await?;
        admin.run(pause).await?;
        // Neither a push nor a timer that is due ends the wait.
        Push::new("q", n(1)).run(&admin).await?;
        admin.run("SELECT queen_schedule('q', 'k', '{\"n\": 2}', delay => '1 ms')").await?;
        ensure!(!is_ready(&first, "100 ms").await?, "queen_wait is ready");
        assert_eq!(pop("g").wait("100 ms").run(&second).await?, []);
        ensure!(!waiting.is_finished(), "the wait is over");
        admin.run(resume).await?;
        let (came, ..) = tokio::time::timeout(Duration::from_secs(20), waiting).await???;
        ensure!(numbers(&came) == [1] || numbers(&came) == [2], "{came:?}");
        admin.run("SELECT queen_delete_queue('q')").await?;
    }
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn one_group_alone_or_all_that_there_are_and_will_be() -> Result<()> {
    let db = TestDb::fresh().await?;
    let session = db.session().await?;
    session.run("SELECT queen_pause('q')").await.fails_with("42704")?;
    Push::new("q", n(1)).run(&session).await?;
    session.run("SELECT queen_pause('q', 'g')").await.fails_with("42704")?;
    session.run("SELECT queen_subscribe('q', 'g', 'all')").await?;
    session.run("SELECT queen_pause('q', 'g')").await?;
    assert_eq!(pop("g").run(&session).await?, []);
    complete(&session, &[pop("other").one(&session).await?]).await?;
    complete(&session, &[Pop::new("q").one(&session).await?]).await?;
    // The whole queue: a group that comes later, and queue mode.
    session.run("SELECT queen_pause('q')").await?;
    Push::new("q", n(2)).run(&session).await?;
    for pop in [pop("g"), pop("other"), pop("new"), Pop::new("q")] {
        assert_eq!(pop.run(&session).await?, []);
    }
    session.run("SELECT queen_resume('q')").await?;
    assert_eq!(pop("new").batch(9).run(&session).await?.len(), 2);
    assert_eq!(pop("g").run(&session).await?, [], "it was paused by itself");
    // Neither a seek, nor a change of ordering, which give the group a new id, resumes it.
    session.run("SELECT queen_configure_group('q', 'g', ordering => 'none')").await?;
    session.run("SELECT queen_seek('q', 'g', 'start')").await?;
    assert_eq!(pop("g").run(&session).await?, []);
    session.run("SELECT queen_resume('q', 'g')").await?;
    assert_eq!(pop("g").batch(9).run(&session).await?.len(), 2);
    Ok(())
}
