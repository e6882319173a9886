//! Assertions: SQLSTATEs, totals with a deadline, drained queues.

use std::fmt::Debug;
use std::future::Future;
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use tokio::sync::Barrier;
use tokio::time::sleep;
use tokio_postgres::Error;
use tokio_postgres::error::DbError;

use crate::Session;
use crate::queen::{Ack, Message, Pop};

/// How often [`eventually`] runs its probe.
const LOOK_EVERY: Duration = Duration::from_millis(10);

/// Wait until `probe` returns something, and return that. `what` names it in the error at the
/// deadline.
pub async fn eventually<T>(
    what: &str,
    deadline: Duration,
    mut probe: impl AsyncFnMut() -> Result<Option<T>>,
) -> Result<T> {
    let started = Instant::now();
    loop {
        if let Some(found) = probe().await.with_context(|| format!("waiting for {what}"))? {
            return Ok(found);
        }
        ensure!(started.elapsed() < deadline, "no {what} within {deadline:?}");
        sleep(LOOK_EVERY).await;
    }
}

/// The SQLSTATE of an error that the server raised.
pub fn sqlstate(error: &Error) -> Option<&str> {
    error.code().map(|state| state.code())
}

/// A result that must be an error.
pub trait Fails {
    /// The error that the server raised. It must have this SQLSTATE and a message and, for the
    /// extension's own SQLSTATEs, a DETAIL and a HINT.
    fn fails_with(self, sqlstate: &str) -> Result<DbError>;
}

impl<T: Debug> Fails for Result<T, Error> {
    fn fails_with(self, sqlstate: &str) -> Result<DbError> {
        let error = match self {
            Ok(value) => bail!("expected SQLSTATE {sqlstate}, but it succeeded with {value:?}"),
            Err(error) => error,
        };
        let Some(raised) = error.as_db_error() else {
            bail!("expected SQLSTATE {sqlstate}, but got {error:?}");
        };
        ensure!(
            raised.code().code() == sqlstate,
            "expected SQLSTATE {sqlstate}, but got {}: {raised:?}",
            raised.code().code()
        );
        ensure!(!raised.message().is_empty(), "{sqlstate} came without a message");
        if sqlstate.starts_with("QN") {
            ensure!(
                raised.detail().is_some_and(|text| !text.trim().is_empty()),
                "{sqlstate} came without a DETAIL: {raised:?}"
            );
            ensure!(
                raised.hint().is_some_and(|text| !text.trim().is_empty()),
                "{sqlstate} came without a HINT: {raised:?}"
            );
        }
        Ok(raised.clone())
    }
}

/// Run something in all sessions at once, as closely as tasks can start together. Returns the
/// results in the order of the sessions.
pub async fn at_once<T, F>(
    sessions: Vec<Session>,
    act: impl Fn(usize, Arc<Session>) -> F,
) -> Result<Vec<T>>
where
    T: Send + 'static,
    F: Future<Output = T> + Send + 'static,
{
    let barrier = Arc::new(Barrier::new(sessions.len()));
    let mut tasks = Vec::new();
    for (number, session) in sessions.into_iter().enumerate() {
        let (barrier, act) = (barrier.clone(), act(number, Arc::new(session)));
        tasks.push(tokio::spawn(async move {
            barrier.wait().await;
            act.await
        }));
    }
    let mut results = Vec::new();
    for task in tasks {
        results.push(task.await?);
    }
    Ok(results)
}

/// Wait until the lease of a message has run out by the server's clock.
pub async fn expiry(session: &Session, message: &Message) -> Result<()> {
    let end = message.expires_at()?;
    eventually("end of the lease", Duration::from_secs(20), async || {
        let row = session.row("SELECT clock_timestamp() > $1", &[&end]).await?;
        Ok(row.get::<_, bool>(0).then_some(()))
    })
    .await
}

/// Pop and complete until `total` messages have come, then check that no more come. Returns them in
/// the order of delivery.
pub async fn drain(
    session: &Session,
    pop: &Pop,
    total: usize,
    deadline: Duration,
) -> Result<Vec<Message>> {
    let mut all = Vec::with_capacity(total);
    let what = format!("{total} messages for {pop:?}");
    let drained = eventually(&what, deadline, async || {
        loop {
            let messages = pop.run(session).await?;
            if messages.is_empty() {
                return Ok((all.len() >= total).then_some(()));
            }
            complete(session, &messages).await?;
            all.extend(messages);
        }
    })
    .await;
    drained.with_context(|| format!("{} of {total} messages came", all.len()))?;
    ensure!(all.len() == total, "{} messages came instead of {total}: {}", all.len(), tail(&all));
    Ok(all)
}

/// Complete all messages of one pop.
pub async fn complete(session: &Session, messages: &[Message]) -> Result<()> {
    let Some(first) = messages.first() else { return Ok(()) };
    let settled = Ack::all(first.lease()?).run(session).await?;
    ensure!(
        settled.settled as usize == messages.len() && settled.lease_released,
        "completing {} messages gave {settled:?}",
        messages.len()
    );
    Ok(())
}

/// The last few messages, for an error message.
fn tail(messages: &[Message]) -> String {
    let from = messages.len().saturating_sub(5);
    format!("… {:?}", &messages[from..])
}
