//! The 32-bit transaction ids of the server begin again at 3. Stored ids do not.

use std::time::Duration;

use anyhow::{Result, ensure};
use queen_tests::cluster::Cluster;
use queen_tests::{Pop, Push, Session, complete, drain, n, numbers};

const SOON: Duration = Duration::from_secs(60);
/// A server can be moved on by less than half of all ids at a time.
const STEPS: [u32; 3] = [2_000_000_000, 4_000_000_000, u32::MAX - 300];

fn pop() -> Pop {
    Pop::new("q").group("g").mode("all")
}

async fn next_xid(session: &Session) -> Result<i64> {
    Ok(session.count("SELECT pg_current_xact_id()::text::bigint").await?)
}

#[tokio::test(flavor = "multi_thread")]
async fn a_queue_goes_on_where_transaction_ids_begin_again() -> Result<()> {
    let cluster = Cluster::start_new()?;
    let session = Session::open(&cluster.config()).await?;
    session
        .run("CREATE EXTENSION queen_mq; ALTER DATABASE template0 ALLOW_CONNECTIONS true")
        .await?;
    session.run("SELECT queen_subscribe('q', 'g', 'all'), queen_configure('q')").await?;
    Push::new("q", n(1)).partition("old").id("x").run(&session).await?;
    Push::new("q", n(2)).partition("old").run(&session).await?;
    let first = pop().run(&session).await?;
    assert_eq!(numbers(&first), [1]);
    drop(session);
    for next in STEPS {
        cluster.move_next_xid(next)?;
    }
    let session = Session::open(&cluster.config()).await?;
    let before = next_xid(&session).await?;
    ensure!(before > 4_294_960_000 && before < 1 << 32, "{before}");
    // A lease from before, a duplicate from before, and a push that stays open over the change.
    complete(&session, &first).await?;
    let again = Push::new("q", n(1)).partition("old").id("x").run(&session).await?;
    assert_eq!(again.status, "duplicate");
    let late = Session::open(&cluster.config()).await?;
    late.run("BEGIN").await?;
    Push::new("q", n(1_000)).partition("p0").run(&late).await?;
    let mut came = Vec::new();
    for number in 10..410 {
        Push::new("q", n(number)).partition(format!("p{}", number % 7)).run(&session).await?;
        if number % 3 == 0 {
            let popped = pop().run(&session).await?;
            complete(&session, &popped).await?;
            came.extend(popped);
        }
    }
    let after = next_xid(&session).await?;
    ensure!(after > 1 << 32, "{after}");
    late.run("COMMIT").await?;
    session.run("SELECT queen_sweep()").await?;
    came.extend(drain(&session, &pop(), 402 - came.len(), SOON).await?);
    for partition in 0..7 {
        let name = format!("p{partition}");
        let here: Vec<i64> = came
            .iter()
            .filter(|one| one.partition == name)
            .flat_map(|one| one.payload["n"].as_i64())
            .collect();
        let in_order: Vec<i64> = here.iter().copied().filter(|number| *number != 1_000).collect();
        let expected: Vec<i64> = (10..410).filter(|number| number % 7 == partition).collect();
        assert_eq!(in_order, expected, "{name}");
    }
    let mut all = numbers(&came);
    all.sort_unstable();
    assert_eq!(all, [vec![2], Vec::from_iter(10..410), vec![1_000]].concat());
    let sql = "SELECT pending + in_flight FROM queen_groups WHERE queue = 'q'";
    assert_eq!(session.count(sql).await?, 0);
    Ok(())
}
