//! What a role finds that makes up ids of leases in queues on which it has no right: nothing, and
//! it holds nothing up.

use std::time::Duration;

use anyhow::{Context, Result, ensure};
use queen_tests::cluster::Cluster;
use queen_tests::{Fails, Pop, Push, Session, TestDb, eventually, n};
use uuid::Uuid;

const SOON: Duration = Duration::from_secs(20);

/// What a bundle does.
const PUSH: &str = r#"[{"type": "push", "queue": "mine", "payload": 1}]"#;

/// A server of its own, since roles belong to all databases of a server, with a role that may do
/// everything with the queue `mine`.
async fn place() -> Result<(Cluster, TestDb, Session)> {
    let cluster = Cluster::start_with("fsync = off")?;
    let db = TestDb::create(&cluster.config()).await?;
    let admin = db.session().await?;
    admin
        .run(
            "CREATE ROLE app LOGIN;
             SELECT queen_grant('app', p, 'mine')
             FROM unnest('{push,pop,manage,monitor}'::text[]) AS p",
        )
        .await?;
    Ok((cluster, db, admin))
}

/// Where this waits for a row, it is error 55P03.
async fn app(db: &TestDb) -> Result<Session> {
    let mut config = db.config().clone();
    config.user("app");
    let session = Session::open(&config).await?;
    session.run("SET lock_timeout = '2s'").await?;
    Ok(session)
}

/// An id of the layout of lease ids that names what this lease is on, and is not this lease.
fn made_up(lease: Uuid) -> Uuid {
    Uuid::from_u128(lease.as_u128() ^ 0x5a5)
}

/// The statements that take the id of a lease.
fn calls(lease: Uuid) -> [String; 9] {
    [
        format!("queen_ack('{lease}')"),
        format!("queen_ack('{lease}', NULL, 'failed', 'no')"),
        format!("queen_ack('{lease}', transaction_ids => '{{t}}')"),
        format!("queen_settle('{lease}', '[{{\"messageId\": 1, \"status\": \"retry\"}}]')"),
        format!(
            "queen_settle('{lease}', '[{{\"transactionId\": \"t\", \"status\": \"failed\"}}]')"
        ),
        format!("queen_extend('{lease}')"),
        format!("queen_extend('{lease}', '1 h')"),
        format!("queen_tx_commit('[{{\"type\": \"ack\", \"leaseId\": \"{lease}\"}}]')"),
        format!("queen_tx_commit('{PUSH}', required_leases => '{{{lease}}}')"),
    ]
}

/// What each of these says of a lease: its SQLSTATE, or the answer of the bundle, without the id.
async fn said(session: &Session, lease: Uuid) -> Result<Vec<String>> {
    let mut said = Vec::new();
    for call in calls(lease) {
        session.run("SAVEPOINT s").await?;
        let text = match session.query_one(&format!("SELECT {call}::text"), &[]).await {
            Ok(row) => row.get::<_, String>(0),
            Err(error) => {
                let error = error.as_db_error().with_context(|| call.clone())?;
                format!("{} {} {:?}", error.code().code(), error.message(), error.detail())
            }
        };
        session.run("ROLLBACK TO s").await?;
        said.push(text.replace(&lease.to_string(), "it"));
    }
    Ok(said)
}

/// A kind of what a lease may be on: how its queue is configured, what is popped at once, and what
/// happens then.
struct HeldKind {
    options: &'static str,
    messages: i32,
    then: &'static str,
    /// The statement that locks it all.
    lock: &'static str,
}

const KINDS: &[HeldKind] = &[
    // A cursor; several; a claim; several.
    HeldKind { options: "", messages: 1, then: "", lock: "queen_extend" },
    HeldKind { options: "", messages: 2, then: "", lock: "queen_extend" },
    HeldKind { options: ", ordering => 'none'", messages: 1, then: "", lock: "queen_extend" },
    HeldKind { options: ", ordering => 'none'", messages: 2, then: "", lock: "queen_extend" },
    // A cursor of a group that is gone.
    HeldKind {
        options: "",
        messages: 1,
        then: "SELECT queen_ack('{lease}'); SELECT queen_unsubscribe('{queue}', 'g')",
        lock: "queen_ack",
    },
    // The lease has ended, and its receipt is there.
    HeldKind { options: "", messages: 1, then: "SELECT queen_ack('{lease}')", lock: "queen_ack" },
];

#[tokio::test(flavor = "multi_thread")]
async fn a_made_up_lease_is_unknown_and_waits_for_nothing() -> Result<()> {
    let (_cluster, db, admin) = place().await?;
    let owner = db.session().await?;
    for isolation in ["READ COMMITTED", "REPEATABLE READ"] {
        for (number, held) in KINDS.iter().enumerate() {
            let case = format!("{isolation}, kind {number}");
            let queue = format!("q{number}of{}", isolation.len());
            let app = app(&db).await?;
            app.run(&format!("BEGIN ISOLATION LEVEL {isolation}; SELECT 1")).await?;
            admin.run(&format!("SELECT queen_configure('{queue}'{})", held.options)).await?;
            for message in 0..held.messages {
                let push = Push::new(&queue, n(message.into())).partition(format!("p{message}"));
                push.run(&admin).await?;
            }
            let pop = Pop::new(&queue).group("g").mode("all").batch(2).partitions(2).lease("1 h");
            let lease = pop.run(&admin).await?[0].lease()?;
            let then = held.then.replace("{lease}", &lease.to_string());
            admin.run(&then.replace("{queue}", &queue)).await?;
            owner.run(&format!("BEGIN; SELECT {}('{lease}')", held.lock)).await?;
            // No cursor or set has this number.
            let names_nothing = Uuid::from_u128(lease.as_u128() ^ 0xff_ffff_0000_0000);
            let unknown = said(&app, names_nothing).await?;
            ensure!(unknown[0].starts_with("QN003"), "{case}: {unknown:?}");
            assert_eq!(said(&app, made_up(lease)).await?, unknown, "{case}");
            // A lease that there is: the right is missing, and this does not wait, either. Of a
            // group that is gone, the queue is not known.
            if !held.then.contains("unsubscribe") {
                for text in said(&app, lease).await? {
                    let is_refused = text.starts_with("42501") && text.contains(&queue);
                    // Of several, the list is younger than the snapshot.
                    let is_younger = isolation != "READ COMMITTED" && text.starts_with("40001");
                    ensure!(is_refused || is_younger, "{case}: {text}");
                }
            }
            owner.run("ROLLBACK").await?;
        }
    }
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn a_made_up_lease_in_a_bundle_locks_nothing() -> Result<()> {
    let (_cluster, db, admin) = place().await?;
    Push::new("theirs", n(1)).run(&admin).await?;
    let theirs = Pop::new("theirs").mode("all").one(&admin).await?.lease()?;
    // The younger cursor: bundles lock ascending.
    Push::new("mine", n(1)).run(&admin).await?;
    let [app, second] = [app(&db).await?, app(&db).await?];
    app.run("SET lock_timeout = 0").await?;
    let mine = Pop::new("mine").mode("all").one(&app).await?.lease()?;
    second.run(&format!("BEGIN; SELECT queen_extend('{mine}')")).await?;
    let leases = format!("{{{},{mine}}}", made_up(theirs));
    let bundle = format!("SELECT queen_tx_commit('{PUSH}', required_leases => '{leases}')::text");
    let bundling = async { anyhow::Ok(app.query_one(&bundle, &[]).await?.get::<_, String>(0)) };
    let looking = async {
        let waits = format!(
            "SELECT count(*) FROM pg_stat_activity WHERE pid = {} AND wait_event_type = 'Lock'",
            app.pid()
        );
        eventually("bundle that waits for the other session", SOON, async || {
            Ok((admin.count(&waits).await? == 1).then_some(()))
        })
        .await?;
        let extended = admin
            .run(&format!("SET lock_timeout = '2s'; SELECT queen_extend('{theirs}')"))
            .await
            .context("the holder of the lease");
        let acked = admin.run(&format!("SELECT queen_ack('{theirs}')")).await;
        second.run("ROLLBACK").await?;
        extended?;
        anyhow::Ok(acked?)
    };
    let (bundled, looked) = tokio::join!(bundling, looking);
    looked?;
    ensure!(bundled?.contains("false"));
    Ok(())
}

/// The lease of a set is known by its whole id, to the owner as well.
#[tokio::test(flavor = "multi_thread")]
async fn the_number_of_a_set_is_no_lease() -> Result<()> {
    let db = TestDb::fresh().await?;
    let session = db.session().await?;
    for partition in ["a", "b"] {
        Push::new("q", n(1)).partition(partition).run(&session).await?;
    }
    let held = Pop::new("q").group("g").mode("all").batch(2).partitions(2).run(&session).await?;
    let lease = held[0].lease()?;
    let made_up = made_up(lease);
    let other = db.session().await?;
    other.run(&format!("BEGIN; SELECT queen_extend('{lease}')")).await?;
    session.run("SET lock_timeout = '2s'").await?;
    session.run(&format!("SELECT queen_ack('{made_up}')")).await.fails_with("QN003")?;
    Ok(())
}

/// Ids of dead letters are numbers, and easy to guess.
#[tokio::test(flavor = "multi_thread")]
async fn a_dead_letter_of_another_queue_is_not_there_and_is_not_waited_for() -> Result<()> {
    let (_cluster, db, admin) = place().await?;
    let app = app(&db).await?;
    for queue in ["mine", "theirs"] {
        Push::new(queue, n(1)).run(&admin).await?;
        let lease = Pop::new(queue).mode("all").one(&admin).await?.lease()?;
        admin.run(&format!("SELECT queen_ack('{lease}', NULL, 'dead_letter')")).await?;
    }
    let id = "SELECT dead_letter_id FROM queen_dead_letters WHERE queue = ";
    let mine = admin.count(&format!("{id}'mine'")).await?;
    let theirs = admin.count(&format!("{id}'theirs'")).await?;
    let replay = |id: i64| format!("SELECT queen_dead_letter_replay({id})");
    let told = async |id: i64, state: &str| {
        let error = app.run(&replay(id)).await.fails_with(state)?;
        let text = format!("{} {:?} {:?}", error.message(), error.detail(), error.hint());
        anyhow::Ok(text.replace(&id.to_string(), "it"))
    };
    // The owner holds both rows.
    let owner = db.session().await?;
    owner.run(&format!("BEGIN; {}; {}", replay(mine), replay(theirs))).await?;
    assert_eq!(told(theirs, "42704").await?, told(1_000_000, "42704").await?);
    told(mine, "55P03").await?;
    owner.run("ROLLBACK").await?;
    // With `pop` the role sees the letter, and may not replay it.
    admin.run("SELECT queen_grant('app', 'pop', 'theirs')").await?;
    owner.run(&format!("BEGIN; {}", replay(theirs))).await?;
    let seen = told(theirs, "42501").await?;
    ensure!(seen.contains("\\\"manage\\\" on queue \\\"theirs\\\""), "{seen}");
    owner.run("ROLLBACK").await?;
    app.run(&replay(mine)).await?;
    admin.run("SELECT queen_grant('app', 'manage', 'theirs')").await?;
    app.run(&replay(theirs)).await?;
    Ok(())
}
