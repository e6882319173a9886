//! What comes to many partitions at one moment serves as many waiting sessions at once.

use std::time::{Duration, Instant};

use anyhow::{Result, ensure};
use queen_tests::{Message, Pop, Session, TestDb, eventually};

/// Far longer than a wake-up takes on a busy machine, and shorter than what the longest sleep of a
/// waiter, or a moment that is missed, costs here.
const SOON: Duration = Duration::from_millis(1500);

fn pop() -> Pop {
    Pop::new("q").group("g").mode("all")
}

type Waiting = tokio::task::JoinHandle<Result<(Vec<Message>, Instant, Session)>>;

fn wait_in_task(session: Session, pop: Pop) -> Waiting {
    tokio::spawn(async move {
        let came = pop.run(&session).await?;
        Ok((came, Instant::now(), session))
    })
}

async fn are_asleep(admin: &Session, count: i64) -> Result<()> {
    let sql = "SELECT count(*) FROM pg_stat_activity
               WHERE datname = current_database() AND wait_event = 'Extension'";
    eventually("sleeping sessions", Duration::from_secs(20), async || {
        Ok((admin.count(sql).await? == count).then_some(()))
    })
    .await
}

async fn first_served(waiting: &mut Vec<Waiting>) -> Result<(Vec<Message>, Instant, Session)> {
    let found = eventually("a session that is served", Duration::from_secs(20), async || {
        Ok(waiting.iter().position(tokio::task::JoinHandle::is_finished))
    });
    let place = found.await?;
    waiting.remove(place).await?
}

/// Whatever comes to many partitions at one moment serves as many sessions.
#[tokio::test(flavor = "multi_thread")]
async fn what_comes_at_one_moment_serves_all_that_wait() -> Result<()> {
    let mut worst_of_all = Duration::ZERO;
    for ordering in ["partition", "none"] {
        for what in ["seek", "delay", "retry", "timer", "lease"] {
            for count in [2, 3, 4, 5, 9] {
                let db = TestDb::alone().await?;
                let [admin, holder] = db.sessions().await?;
                let delay = if what == "delay" { "1 s" } else { "0" };
                admin
                    .run(&format!(
                        "SELECT queen_configure('q', ordering => '{ordering}',
                             delay => '{delay}', retry_delay => '1 s')"
                    ))
                    .await?;
                admin.run("SELECT queen_subscribe('q', 'g', 'all')").await?;
                let push = format!(
                    "SELECT queen_push('q', '{{\"n\": 1}}', 'p' || i)
                     FROM generate_series(1, {count}) AS i"
                );
                let mut held = Vec::new();
                if what == "retry" || what == "lease" {
                    admin.run(&push).await?;
                    held =
                        pop().batch(count).partitions(count).lease("1500 ms").run(&holder).await?;
                    assert_eq!(held.len(), count as usize);
                }
                if what == "seek" {
                    holder.run("BEGIN; SELECT queen_seek('q', 'g', 'end')").await?;
                }
                let mut waiting = Vec::new();
                let began = Instant::now();
                for session in db.crowd(count as usize + 2).await? {
                    waiting.push(wait_in_task(session, pop().lease("60 s").wait("20 s")));
                }
                match what {
                    "seek" => {
                        are_asleep(&admin, i64::from(count) + 2).await?;
                        admin.run(&push).await?;
                        tokio::time::sleep(Duration::from_millis(300)).await;
                        holder.run("ROLLBACK").await?;
                    }
                    "delay" => {
                        are_asleep(&admin, i64::from(count) + 2).await?;
                        admin.run(&push).await?;
                    }
                    "retry" => {
                        are_asleep(&admin, i64::from(count) + 2).await?;
                        let lease = held[0].lease()?;
                        holder
                            .run(&format!("SELECT queen_ack('{lease}', status => 'failed')"))
                            .await?;
                    }
                    "timer" => {
                        are_asleep(&admin, i64::from(count) + 2).await?;
                        admin
                            .run(&format!(
                                "SELECT queen_schedule('q', 't' || i, '{{\"n\": 1}}',
                                     delay => '1 s', partition => 'p' || i)
                                 FROM generate_series(1, {count}) AS i"
                            ))
                            .await?;
                    }
                    _ => (),
                }
                let mut times = Vec::new();
                for _ in 0..count {
                    let (came, at, _) = first_served(&mut waiting).await?;
                    ensure!(came.len() == 1, "{what}: {came:?}");
                    times.push(at - began);
                }
                let (first, last) = (times.iter().min().copied(), times.iter().max().copied());
                let spread = last.unwrap_or_default() - first.unwrap_or_default();
                eprintln!("Q {ordering} {what} {count}: first {first:?} spread {spread:?}");
                worst_of_all = worst_of_all.max(spread);
                waiting.iter().for_each(Waiting::abort);
            }
        }
    }
    ensure!(worst_of_all < SOON, "{worst_of_all:?}");
    Ok(())
}
