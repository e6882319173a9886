//! Backlogs, pushed before the clock runs.

use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use anyhow::Result;
use tokio::task::JoinSet;
use tokio_postgres::types::ToSql;

use crate::db::{Db, Session};
use crate::job::System;
use crate::payload::{POOL, Payload, Payloads, Size};

const SESSIONS: usize = 4;
/// Messages per statement, each of which is a transaction.
const CHUNK: u64 = 1000;

/// A backlog: each call pushes `segment` messages, to one partition after the other.
#[derive(Clone, Copy, Debug)]
pub struct Backlog {
    pub messages: u64,
    pub partitions: u64,
    pub segment: u64,
}

const QUEEN: &str = "SELECT count(message_id) FROM generate_series($1::bigint, $2::bigint) AS call,
     LATERAL queen_push_batch($3,
         ($4::jsonb[])[1 + call * $5::bigint % $6::bigint : call * $5 % $6 + $5],
         'p' || call % $7::bigint)";
const PGMQ: &str = "SELECT count(*) FROM generate_series($1::bigint, $2::bigint) AS call,
     LATERAL pgmq.send_batch($3,
         ($4::jsonb[])[1 + call * $5::bigint % $6::bigint : call * $5 % $6 + $5])";
const TABLE: &str = "SELECT ($3::jsonb[])[1 + n % $4::bigint]
     FROM generate_series($1::bigint, $2::bigint) AS n";
const GRAPHILE: &str = "SELECT count(*) FROM graphile_worker.add_jobs(ARRAY(
         SELECT ('bench', (($3::jsonb[])[1 + n % $4::bigint])::json, NULL, NULL, NULL, NULL, NULL,
                 NULL)::graphile_worker.job_spec
         FROM generate_series($1::bigint, $2::bigint) AS n))";
/// pgmq stores messages alike however they were sent; this batch size is quick.
const PGMQ_BATCH: u64 = 100;

/// Pushes the backlog, and updates the planner's statistics.
pub async fn fill(
    db: &Db,
    system: System,
    queue: &str,
    backlog: Backlog,
    payloads: &Arc<Payloads>,
    size: Size,
) -> Result<()> {
    let next = Arc::new(AtomicU64::new(0));
    let mut tasks = JoinSet::new();
    for session in db.sessions(SESSIONS).await? {
        let (next, payloads, queue) = (next.clone(), payloads.clone(), queue.to_owned());
        tasks.spawn(async move {
            loop {
                let from = next.fetch_add(CHUNK, Ordering::Relaxed);
                if from >= backlog.messages {
                    return anyhow::Ok(());
                }
                let to = backlog.messages.min(from + CHUNK);
                chunk(&session, system, &queue, backlog, from..to, payloads.pool(size)).await?;
            }
        });
    }
    while let Some(done) = tasks.join_next().await {
        done??;
    }
    analyze(db, system, queue).await
}

/// Updates the statistics of a queue's tables, as autovacuum would.
pub async fn analyze(db: &Db, system: System, queue: &str) -> Result<()> {
    let session = db.session().await?;
    let tables = match system {
        System::Queen => queen_tables(&session).await?,
        System::Pgmq => format!("pgmq.q_{queue}"),
        System::Table => queue.to_owned(),
        System::Graphile => "graphile_worker._private_jobs".to_owned(),
    };
    session.batch_execute(&format!("ANALYZE {tables}")).await?;
    Ok(())
}

async fn queen_tables(session: &Session) -> Result<String> {
    let sql = "SELECT string_agg(format('queen_mq.%I', relname), ', ')
               FROM pg_catalog.pg_class
               WHERE relkind = 'r' AND relnamespace = 'queen_mq'::pg_catalog.regnamespace";
    Ok(session.row(sql, &[]).await?.get(0))
}

/// Pushes the messages of one transaction: a whole number of calls.
async fn chunk(
    session: &Session,
    system: System,
    queue: &str,
    backlog: Backlog,
    range: Range<u64>,
    pool: &[Payload],
) -> Result<()> {
    let pool_size = signed(POOL as u64)?;
    match system {
        System::Queen => {
            let (first, last, segment) = calls(range, backlog.segment)?;
            let partitions = signed(backlog.partitions)?;
            let params: [&(dyn ToSql + Sync); 7] =
                [&first, &last, &queue, &pool, &segment, &pool_size, &partitions];
            session.rows(QUEEN, &params).await?;
        }
        System::Pgmq => {
            let (first, last, segment) = calls(range, PGMQ_BATCH)?;
            let params: [&(dyn ToSql + Sync); 6] =
                [&first, &last, &queue, &pool, &segment, &pool_size];
            session.rows(PGMQ, &params).await?;
        }
        System::Table => {
            let (first, last, _) = calls(range, 1)?;
            let sql = format!("INSERT INTO {queue} (payload) {TABLE}");
            session.rows(&sql, &[&first, &last, &pool, &pool_size]).await?;
        }
        System::Graphile => {
            let (first, last, _) = calls(range, 1)?;
            session.rows(GRAPHILE, &[&first, &last, &pool, &pool_size]).await?;
        }
    }
    Ok(())
}

/// The numbers of the first and the last call that push these messages, and the size of each call.
fn calls(range: Range<u64>, size: u64) -> Result<(i64, i64, i64)> {
    Ok((signed(range.start / size)?, signed(range.end / size)? - 1, signed(size)?))
}

fn signed(n: u64) -> Result<i64> {
    Ok(i64::try_from(n)?)
}
