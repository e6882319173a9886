//! What comes to many partitions at one moment serves as many waiting sessions at once.

use std::time::{Duration, Instant};

use anyhow::{Result, ensure};
use queen_tests::waiting::{SOON, Waiting, are_asleep, first_served, wait_in_task};
use queen_tests::{Message, Pop, Session, TestDb};

fn pop() -> Pop {
    Pop::new("q").group("g").mode("all")
}

/// What comes at one moment: it is there for pops again, or ripe.
#[derive(Clone, Copy, Debug, PartialEq)]
enum What {
    Seek,
    Delay,
    Retry,
    Timer,
    Lease,
}

/// What comes to many partitions at one moment serves as many sessions.
#[tokio::test(flavor = "multi_thread")]
async fn what_comes_at_one_moment_serves_all_that_wait() -> Result<()> {
    for ordering in ["partition", "none"] {
        for what in [What::Seek, What::Delay, What::Retry, What::Timer, What::Lease] {
            for count in [2, 7] {
                let spread = spread(ordering, what, count).await?;
                ensure!(spread < SOON, "{ordering} {what:?} {count}: {spread:?}");
            }
        }
    }
    Ok(())
}

/// The time between the first and the last of `count` sessions that are served.
async fn spread(ordering: &str, what: What, count: i32) -> Result<Duration> {
    let db = TestDb::alone().await?;
    let [admin, holder] = db.sessions().await?;
    let delay = if what == What::Delay { "1 s" } else { "0" };
    let configure = format!(
        "SELECT queen_configure('q', ordering => '{ordering}', delay => '{delay}',
                                retry_delay => '1 s')"
    );
    admin.run(&configure).await?;
    admin.run("SELECT queen_subscribe('q', 'g', 'all')").await?;
    let held = prepare(what, count, &admin, &holder).await?;
    let mut waiting = Vec::new();
    for session in db.crowd(count as usize + 2).await? {
        waiting.push(wait_in_task(session, pop().lease("60 s").wait("20 s")));
    }
    if what != What::Lease {
        are_asleep(&admin, i64::from(count) + 2).await?;
        bring(what, count, &admin, &holder, &held).await?;
    }
    let mut times: Vec<Instant> = Vec::new();
    for _ in 0..count {
        let (came, at, _) = first_served(&mut waiting).await?;
        ensure!(came.len() == 1, "{what:?}: {came:?}");
        times.push(at);
    }
    waiting.iter().for_each(Waiting::abort);
    let ends = times.iter().max().copied().zip(times.iter().min().copied());
    Ok(ends.map_or(Duration::ZERO, |(last, first)| last - first))
}

/// Before the sessions wait: messages that are held, or a seek that has not committed.
async fn prepare(
    what: What,
    count: i32,
    admin: &Session,
    holder: &Session,
) -> Result<Vec<Message>> {
    if what == What::Seek {
        holder.run("BEGIN; SELECT queen_seek('q', 'g', 'end')").await?;
    }
    if what != What::Retry && what != What::Lease {
        return Ok(Vec::new());
    }
    push(count, admin).await?;
    let held = pop().batch(count).partitions(count).lease("1500 ms").run(holder).await?;
    assert_eq!(held.len(), count as usize);
    Ok(held)
}

async fn push(count: i32, admin: &Session) -> Result<()> {
    let sql = "SELECT queen_push('q', '{\"n\": 1}', 'p' || i) FROM generate_series(1, COUNT) AS i";
    admin.run(&sql.replace("COUNT", &count.to_string())).await?;
    Ok(())
}

/// While all sessions sleep.
async fn bring(
    what: What,
    count: i32,
    admin: &Session,
    holder: &Session,
    held: &[Message],
) -> Result<()> {
    match what {
        What::Seek => {
            push(count, admin).await?;
            tokio::time::sleep(Duration::from_millis(300)).await;
            holder.run("ROLLBACK").await?;
        }
        What::Delay => push(count, admin).await?,
        What::Retry => {
            let lease = held[0].lease()?;
            holder.run(&format!("SELECT queen_ack('{lease}', status => 'failed')")).await?;
        }
        What::Timer => {
            let sql = format!(
                "SELECT queen_schedule('q', 't' || i, '{{\"n\": 1}}', delay => '1 s',
                                       partition => 'p' || i)
                 FROM generate_series(1, {count}) AS i"
            );
            admin.run(&sql).await?;
        }
        What::Lease => (),
    }
    Ok(())
}
