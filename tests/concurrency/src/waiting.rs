//! Sessions that wait in tasks of their own.

use std::time::{Duration, Instant};

use anyhow::Result;
use tokio_postgres::{Error, SimpleQueryMessage};

use crate::{Message, Pop, Session, eventually};

/// Far longer than a wake-up takes on a busy machine, and shorter than what the longest sleep of a
/// waiter, or a moment that is missed, costs.
pub const SOON: Duration = Duration::from_millis(3000);

/// A pop in a task: what came, when, and the session.
pub type Waiting = tokio::task::JoinHandle<Result<(Vec<Message>, Instant, Session)>>;

pub fn wait_in_task(session: Session, pop: Pop) -> Waiting {
    tokio::spawn(async move {
        let came = pop.run(&session).await?;
        Ok((came, Instant::now(), session))
    })
}

/// Wait until this many sessions of the database sleep in a pop.
pub async fn are_asleep(admin: &Session, count: i64) -> Result<()> {
    let sql = "SELECT count(*) FROM pg_stat_activity
               WHERE datname = current_database() AND wait_event = 'Extension'";
    eventually("sleeping sessions", Duration::from_secs(20), async || {
        Ok((admin.count(sql).await? == count).then_some(()))
    })
    .await
}

/// What the next of the waiting pops got that comes to its end.
pub async fn first_served(waiting: &mut Vec<Waiting>) -> Result<(Vec<Message>, Instant, Session)> {
    let found = eventually("a session that is served", Duration::from_secs(20), async || {
        Ok(waiting.iter().position(tokio::task::JoinHandle::is_finished))
    });
    let place = found.await?;
    waiting.remove(place).await?
}

/// What `queen_wait` says of group `g` of queue `q` after this time, or before.
pub async fn is_ready(session: &Session, timeout: &str) -> Result<bool, Error> {
    let sql = format!("CALL queen_wait('q', 'g', '{timeout}')");
    let messages = session.simple_query(&sql).await?;
    Ok(messages.iter().any(|message| match message {
        SimpleQueryMessage::Row(row) => row.get(0) == Some("t"),
        _ => false,
    }))
}
