//! Settlements that are repeated because the reply was lost: whatever the status was, they are
//! known for an hour from the commit.

use anyhow::Result;
use queen_tests::clock::ServerClock;
use queen_tests::cluster::Cluster;
use queen_tests::unordered::{claims, prepared, sweep};
use queen_tests::{Ack, Fails, Message, Pop, PushBatch, Session, complete, counts};

fn pop() -> Pop {
    Pop::new("q").group("g").mode("all")
}

fn ids(messages: &[Message]) -> Vec<i64> {
    messages.iter().map(|message| message.message_id).collect()
}

/// Each message of one lease is settled in another way. What was said of it may be said again:
/// while it waits, while another consumer holds it, after that one has completed it, and when the
/// claims are folded. Nothing else may be said.
#[tokio::test(flavor = "multi_thread")]
async fn without_order_each_status_is_known_of_its_message_whatever_comes_of_it() -> Result<()> {
    let (_db, [session]) = prepared(", retry_limit => 5", 4).await?;
    let held = pop().batch(4).run(&session).await?;
    let (lease, named) = (held[0].lease()?, ids(&held));
    let said = ["failed", "retry", "dead_letter", "completed"];
    let ack = |message: i64, status| Ack::messages(lease, [message]).status(status);
    for (message, status) in named.iter().zip(said) {
        assert_eq!(ack(*message, status).run(&session).await?.settled, 1);
    }
    let check = async |of_given_back: &str| {
        for (message, before) in named.iter().zip(said) {
            for status in said {
                let answer = ack(*message, status).run(&session).await;
                let refusal = match before {
                    _ if before == status => {
                        assert_eq!(answer?, counts(0, 1, true));
                        continue;
                    }
                    "completed" => "QN005",
                    "dead_letter" => "QN004",
                    _ => of_given_back,
                };
                answer.fails_with(refusal)?;
            }
        }
        anyhow::Ok(())
    };
    check("QN004").await?;
    let others = pop().batch(4).run(&session).await?;
    let mut again = ids(&others);
    again.sort_unstable();
    assert_eq!(again, named[..2]);
    check("QN002").await?;
    complete(&session, &others).await?;
    check("QN002").await?;
    sweep(&session).await?;
    assert_eq!(claims(&session).await?, 0);
    check("QN002").await?;
    assert_eq!(session.count("SELECT count(*) FROM queen_dead_letters").await?, 1);
    Ok(())
}

/// Two leases on one cursor end in a transaction that commits two hours later.
async fn known_after_a_late_commit(is_prepared: bool) -> Result<()> {
    let clock = ServerClock::new(if is_prepared { "prepared" } else { "open" })?;
    let settings =
        "queen_mq.databases = 'none of these'\nfsync = off\nmax_prepared_transactions = 2";
    let cluster = Cluster::start_in(clock.environment()?, settings)?;
    let session = Session::open(&cluster.config()).await?;
    let late = Session::open(&cluster.config()).await?;
    session.run("CREATE EXTENSION queen_mq").await?;
    PushBatch::numbers("q", 1..=3).run(&session).await?;
    late.run("BEGIN").await?;
    let mut acks = Vec::new();
    for status in ["completed", "dead_letter"] {
        let held = pop().one(&late).await?;
        let ack = Ack::messages(held.lease()?, [held.message_id]).status(status);
        assert_eq!(ack.run(&late).await?.settled, 1);
        acks.push(ack);
    }
    if is_prepared {
        late.run("PREPARE TRANSACTION 'late'").await?;
    }
    clock.set(2)?;
    late.run(if is_prepared { "COMMIT PREPARED 'late'" } else { "COMMIT" }).await?;
    // The cursor goes on, and a sweep deletes what is old.
    pop().one(&session).await?;
    sweep(&session).await?;
    for ack in &acks {
        assert_eq!(ack.run(&session).await?, counts(0, 1, true));
    }
    clock.set(3)?;
    sweep(&session).await?;
    for ack in &acks {
        ack.run(&session).await.fails_with("QN003")?;
    }
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn receipts_of_a_transaction_that_stayed_open_are_kept_from_its_end() -> Result<()> {
    known_after_a_late_commit(false).await
}

#[tokio::test(flavor = "multi_thread")]
async fn receipts_of_a_prepared_transaction_are_kept_for_an_hour_from_its_commit() -> Result<()> {
    known_after_a_late_commit(true).await
}
