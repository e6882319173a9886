//! Groups without order: pops that wait.

use std::time::{Duration, Instant};

use anyhow::{Result, ensure};
use queen_tests::unordered::{pop, prepared, push};
use queen_tests::{Ack, Fails, Message, Push, Session, complete, counts, n, numbers, sorted};
use tokio_postgres::SimpleQueryMessage;
use uuid::Uuid;

/// Far longer than a wake-up takes on a busy machine, and shorter than the longest sleep of a
/// waiter.
const AWAKE: Duration = Duration::from_millis(1500);

/// Let `waiter` wait while `act` runs. Returns what came, and how long after the end of `act`.
async fn woken(
    waiter: &Session,
    act: impl Future<Output = Result<()>>,
) -> Result<(Vec<Message>, Duration)> {
    let pop = pop().wait("20 s");
    let acting = async {
        tokio::time::sleep(Duration::from_millis(60)).await;
        act.await.map(|()| Instant::now())
    };
    let waiting = async { pop.run(waiter).await.map(|came| (came, Instant::now())) };
    let (came, acted) = tokio::join!(waiting, acting);
    let (came, at) = came?;
    Ok((came, at.saturating_duration_since(acted?)))
}

#[tokio::test(flavor = "multi_thread")]
async fn a_waiting_pop_is_woken_by_a_push_a_retry_and_an_expiry() -> Result<()> {
    let (db, [other]) = prepared(", retry_delay => '300 ms'", 1).await?;
    let other = &other;
    let waiter = &db.session().await?;
    // The other session holds a message of the partition all the time.
    let held = pop().lease("1 h").one(other).await?;
    let (came, delay) = woken(waiter, async {
        Push::new("q", n(2)).run(other).await?;
        Ok(())
    })
    .await?;
    ensure!(numbers(&came) == [2] && delay < AWAKE, "{came:?} after {delay:?}");

    let lease: Uuid = came[0].lease()?;
    let failing = async {
        assert_eq!(Ack::all(lease).failed("no").run(other).await?, counts(1, 0, true));
        Ok(())
    };
    let (came, delay) = woken(waiter, failing).await?;
    ensure!(numbers(&came) == [2] && came[0].delivery_attempt == 2, "{came:?}");
    ensure!(delay < Duration::from_millis(300) + AWAKE, "after {delay:?}");
    ensure!(delay >= Duration::from_millis(200), "after {delay:?}");

    let lease = came[0].lease()?;
    let retrying = async {
        assert_eq!(Ack::all(lease).status("retry").run(other).await?, counts(1, 0, true));
        Ok(())
    };
    let (came, delay) = woken(waiter, retrying).await?;
    ensure!(numbers(&came) == [2] && delay < AWAKE, "{came:?} after {delay:?}");
    complete(waiter, &came).await?;

    push(other, "Default", 3, 3).await?;
    let short = pop().lease("400 ms").one(other).await?;
    let began = Instant::now();
    let came = pop().wait("20 s").run(waiter).await?;
    ensure!(numbers(&came) == [3] && began.elapsed() < AWAKE, "{:?}", began.elapsed());
    Ack::all(short.lease()?).run(other).await.fails_with("QN002")?;
    complete(waiter, &came).await?;

    // Each waiting pop gets a single message of the batch.
    let second = &db.session().await?;
    let pushing = async {
        push(other, "Default", 4, 5).await?;
        Ok(())
    };
    let waiting = pop().wait("20 s");
    let (first, woken) = tokio::join!(waiting.run(second), woken(waiter, pushing));
    let (first, second) = (first?, woken?.0);
    assert_eq!(sorted(&[first.clone(), second.clone()].concat()), [4, 5]);
    complete(other, &first).await?;
    complete(other, &second).await?;

    let sql = "CALL queen_wait('q', 'g', '20 s')";
    let (ready, pushed) = tokio::join!(waiter.simple_query(sql), async {
        tokio::time::sleep(Duration::from_millis(60)).await;
        Push::new("q", n(6)).run(other).await
    });
    pushed?;
    let is_ready = ready?.iter().any(|message| match message {
        SimpleQueryMessage::Row(row) => row.get(0) == Some("t"),
        _ => false,
    });
    assert!(is_ready);
    assert_eq!(numbers(&pop().run(waiter).await?), [6]);
    complete(other, &[held]).await
}
