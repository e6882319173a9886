//! Watching.

use tokio_postgres::Error;

use crate::Session;

/// The figures pending, in_flight and retrying of a group.
pub async fn figures_of(
    session: &Session,
    queue: &str,
    group: &str,
) -> Result<(i64, i64, i64), Error> {
    let row = session
        .row(
            "SELECT pending, in_flight, retrying FROM queen_groups \
             WHERE queue = $1 AND consumer_group = $2",
            &[&queue, &group],
        )
        .await?;
    Ok((row.get("pending"), row.get("in_flight"), row.get("retrying")))
}

/// How many dead letters there are in all groups.
pub async fn dead_letters(session: &Session) -> Result<i64, Error> {
    session.count("SELECT count(*) FROM queen_dead_letters").await
}
