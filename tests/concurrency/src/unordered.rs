//! What the tests of groups without order share: the queue `q`, its group `g`, and what both leave
//! behind.

use std::time::Duration;

use anyhow::Result;
use tokio_postgres::Error;

use crate::expect::eventually;
use crate::queen::{Pop, PushBatch, figures_of};
use crate::{Session, TestDb};

/// The deadline of what should happen at once, on a busy machine.
pub const SOON: Duration = Duration::from_secs(10);

/// A message for the group.
pub fn pop() -> Pop {
    Pop::new("q").group("g").mode("all")
}

/// All there is for the group, up to a hundred from as many partitions.
pub fn pop_all() -> Pop {
    pop().batch(100).partitions(100)
}

/// The queue, with further options, its group, and messages 1, 2, … in one push.
pub async fn prepared<const N: usize>(
    options: &str,
    messages: i64,
) -> Result<(TestDb, [Session; N])> {
    let db = TestDb::fresh().await?;
    let sessions: [Session; N] = db.sessions().await?;
    let session = &sessions[0];
    session.run(&format!("SELECT queen_configure('q', ordering => 'none'{options})")).await?;
    session.run("SELECT queen_subscribe('q', 'g', 'all')").await?;
    push(session, "Default", 1, messages).await?;
    Ok((db, sessions))
}

/// Messages with these numbers, in one push.
pub async fn push(session: &Session, partition: &str, from: i64, to: i64) -> Result<(), Error> {
    PushBatch::numbers("q", from..=to).partition(partition).run(session).await.map(drop)
}

/// pending, in_flight and retrying of the group.
pub async fn figures(session: &Session) -> Result<(i64, i64, i64), Error> {
    figures_of(session, "q", "g").await
}

/// Several times: what one task of a sweep has done is work for another.
pub async fn sweep(session: &Session) -> Result<(), Error> {
    for _ in 0..4 {
        session.run("SELECT queen_sweep(1000)").await?;
    }
    Ok(())
}

/// How many messages are remembered one by one.
pub async fn claims(session: &Session) -> Result<i64, Error> {
    session.count("SELECT count(*) FROM queen_mq.claim").await
}

/// Sweep until none is.
pub async fn swept_claims(session: &Session) -> Result<()> {
    eventually("end of the claims", SOON, async || {
        session.run("SELECT queen_sweep(1000)").await?;
        Ok((claims(session).await? == 0).then_some(()))
    })
    .await
}
