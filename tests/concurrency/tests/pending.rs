//! `pending` stays exact where a transaction does several things, or two do at once.

use anyhow::Result;
use queen_tests::{Pop, Push, Session, TestDb, n, numbers};

async fn pending(session: &Session, group: &str) -> Result<i64> {
    let sql = "SELECT pending FROM queen_groups WHERE consumer_group = $1";
    Ok(session.row(sql, &[&group]).await?.get(0))
}

async fn push(session: &Session, count: i64) -> Result<()> {
    for number in 1..=count {
        Push::new("q", n(number)).run(session).await?;
    }
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn a_group_moved_in_a_partition_it_has_never_read() -> Result<()> {
    let db = TestDb::fresh().await?;
    let session = db.session().await?;
    push(&session, 5).await?;
    session.run("SELECT queen_subscribe('q', 'g'), queen_subscribe('q', 'h')").await?;
    session.run("SELECT queen_seek('q', 'g', 'start', partition => 'Default')").await?;
    session.run("SELECT queen_seek('q', 'h', 'end', partition => 'Default')").await?;
    assert_eq!((pending(&session, "g").await?, pending(&session, "h").await?), (5, 0));
    push(&session, 1).await?;
    assert_eq!((pending(&session, "g").await?, pending(&session, "h").await?), (6, 1));
    let of_g = Pop::new("q").group("g").batch(9).auto_ack().run(&session).await?;
    let of_h = Pop::new("q").group("h").batch(9).auto_ack().run(&session).await?;
    assert_eq!((numbers(&of_g), numbers(&of_h)), (vec![1, 2, 3, 4, 5, 1], vec![1]));
    assert_eq!((pending(&session, "g").await?, pending(&session, "h").await?), (0, 0));
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn a_purge_of_what_the_transaction_has_pushed_itself() -> Result<()> {
    let db = TestDb::fresh().await?;
    let session = db.session().await?;
    session.run("SELECT queen_subscribe('q', 'g', 'all')").await?;
    push(&session, 3).await?;
    session.run("BEGIN").await?;
    push(&session, 2).await?;
    session.run("SELECT queen_purge('q')").await?;
    assert_eq!(pending(&session, "g").await?, 0);
    session.run("COMMIT").await?;
    assert_eq!(pending(&session, "g").await?, 0);
    push(&session, 1).await?;
    assert_eq!(pending(&session, "g").await?, 1);
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn a_sweep_beside_a_seek_neither_waits_for_it_nor_undoes_it() -> Result<()> {
    let db = TestDb::fresh().await?;
    let [ref seeking, ref sweeping] = db.sessions().await?;
    sweeping.be_prompt().await?;
    push(seeking, 5).await?;
    seeking.run("SELECT queen_subscribe('q', 'g')").await?;
    seeking.run("SELECT queen_configure('q', completed_retention => '1 us')").await?;
    seeking.run("BEGIN; SELECT queen_seek('q', 'g', 'start')").await?;
    sweeping.run("SELECT queen_sweep(1000)").await?;
    seeking.run("COMMIT").await?;
    assert_eq!(pending(seeking, "g").await?, 5);
    let came = Pop::new("q").group("g").batch(9).auto_ack().run(seeking).await?;
    assert_eq!(numbers(&came), [1, 2, 3, 4, 5]);
    sweeping.run("SELECT queen_sweep(1000)").await?;
    assert_eq!(sweeping.count("SELECT count(*) FROM queen_messages").await?, 0);
    assert_eq!(pending(seeking, "g").await?, 0);
    Ok(())
}
