//! What the tests of groups without order share: the queue `q` and its group `g`.

use std::time::Duration;

use anyhow::Result;
use tokio_postgres::Error;

use crate::expect::eventually;
use crate::queen::{Pop, PushBatch, figures_of};
use crate::{Session, TestDb};

/// The deadline for what should happen at once. It allows for a busy machine.
pub const SOON: Duration = Duration::from_secs(10);

/// A pop of one message for the group.
pub fn pop() -> Pop {
    Pop::new("q").group("g").mode("all")
}

/// A pop of everything for the group, up to a hundred messages from as many partitions.
pub fn pop_all() -> Pop {
    pop().batch(100).partitions(100)
}

/// Create the queue with these options and its group, and push messages 1, 2, … in one call.
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

/// Push messages with these numbers in one call.
pub async fn push(session: &Session, partition: &str, from: i64, to: i64) -> Result<(), Error> {
    PushBatch::numbers("q", from..=to).partition(partition).run(session).await.map(drop)
}

/// The figures pending, in_flight and retrying of the group.
pub async fn figures(session: &Session) -> Result<(i64, i64, i64), Error> {
    figures_of(session, "q", "g").await
}

/// Sweep several times: what one task of a sweep does may be work for another.
pub async fn sweep(session: &Session) -> Result<(), Error> {
    for _ in 0..4 {
        session.run("SELECT queen_sweep(1000)").await?;
    }
    Ok(())
}

/// How many claims are stored.
pub async fn claims(session: &Session) -> Result<i64, Error> {
    session.count("SELECT count(*) FROM queen_mq.claim").await
}

/// Sweep until no claim is stored.
pub async fn swept_claims(session: &Session) -> Result<()> {
    eventually("end of the claims", SOON, async || {
        session.run("SELECT queen_sweep(1000)").await?;
        Ok((claims(session).await? == 0).then_some(()))
    })
    .await
}
