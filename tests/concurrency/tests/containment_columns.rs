//! When an administrator has altered a table of the extension, calls work or are refused with a
//! plain error.

use anyhow::{Context, Result, ensure};
use queen_tests::{Ack, Fails, Pop, Push, PushBatch, TestDb, n, numbers};

/// The tables whose rows calls read or write.
const TABLES: [&str; 16] = [
    "queue",
    "segment",
    "admission",
    "consumer_group",
    "cursor",
    "claim",
    "progress",
    "discovery",
    "tally",
    "timer",
    "binding",
    "marker",
    "receipt",
    "lease_set",
    "dead_letter",
    "replay",
];

/// Each alteration is made to every table, one after the other.
const ALTERATIONS: [&str; 4] = [
    "ADD COLUMN x int",
    "DROP COLUMN x, ADD COLUMN y text DEFAULT 'as said', ADD COLUMN z int DEFAULT 3 NOT NULL",
    "ADD COLUMN g text GENERATED ALWAYS AS (y || '!') STORED, ADD CHECK (z = 3)",
    "DROP COLUMN y CASCADE, DROP COLUMN z",
];

#[tokio::test(flavor = "multi_thread")]
async fn columns_may_be_added_and_dropped_again() -> Result<()> {
    let db = TestDb::fresh().await?;
    let [session, old] = db.sessions().await?;
    session.run("SELECT queen_configure('u', ordering => 'none')").await?;
    for (round, alteration) in ALTERATIONS.into_iter().enumerate() {
        for table in TABLES {
            session.run(&format!("ALTER TABLE queen_mq.{table} {alteration}")).await?;
        }
        for session in [&session, &old] {
            for queue in ["q", "u"] {
                let id = format!("{round} {}", session.pid());
                let pushed = Push::new(queue, n(1)).id(id).run(session).await?;
                assert_eq!(pushed.status, "queued");
                Push::new(queue, n(2)).partition("b").run(session).await?;
                let pop = Pop::new(queue).group("g").mode("all").batch(9).partitions(9);
                let held = pop.run(session).await?;
                assert_eq!(held.len(), 2, "{alteration}");
                let lease = held[0].lease()?;
                Ack::messages(lease, [held[0].message_id])
                    .status("dead_letter")
                    .run(session)
                    .await?;
                Ack::all(lease).run(session).await?;
            }
            session
                .run(
                    "SELECT queen_schedule('q', 'k', '1', delay => '1 h');
                     SELECT queen_kv_incr('n', 'k', 1, forever => true);
                     SELECT queen_sweep(); SELECT count(*) FROM queen_queues",
                )
                .await?;
        }
        if round == 2 {
            let filled =
                "SELECT count(*) FROM queen_mq.segment WHERE g IS DISTINCT FROM 'as said!'";
            assert_eq!(session.count(filled).await?, 0);
        }
    }
    assert_eq!(session.count("SELECT count(*) FROM queen_dead_letters").await?, 16);
    // A column that needs a value and has no default.
    session
        .run("DELETE FROM queen_mq.lease_set; ALTER TABLE queen_mq.lease_set ADD must int NOT NULL")
        .await?;
    Push::new("q", n(3)).run(&session).await?;
    let pop = Pop::new("q").group("g").batch(2).partitions(2);
    pop.run(&session).await.fails_with("23502")?;
    session.run("ALTER TABLE queen_mq.lease_set DROP must").await?;
    let held = pop.run(&session).await?;
    Ack::all(held[0].lease()?).run(&session).await?;
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn a_table_that_is_not_what_it_was_is_refused_and_taken_back() -> Result<()> {
    let cases = [
        ("RENAME COLUMN xid TO x", "RENAME COLUMN x TO xid", "55000"),
        ("ALTER COLUMN n TYPE int", "ALTER COLUMN n TYPE smallint", "55000"),
        (
            "ENABLE ROW LEVEL SECURITY, FORCE ROW LEVEL SECURITY",
            "NO FORCE ROW LEVEL SECURITY",
            "0A000",
        ),
        ("RENAME TO other", "", "55000"),
    ];
    let db = TestDb::fresh().await?;
    let [session, old] = db.sessions().await?;
    Push::new("q", n(0)).run(&old).await?;
    let pop = "SELECT queen_pop('q', 'g', subscription_mode => 'all')";
    for (alter, back, state) in cases {
        session.run(&format!("ALTER TABLE queen_mq.segment {alter}")).await?;
        for session in [&session, &old] {
            for call in ["SELECT queen_push('q', '1')", pop] {
                let failed = session.run(call).await.fails_with(state).with_context(|| alter)?;
                ensure!(failed.message().contains("queen_mq.segment"), "{failed:?}");
            }
        }
        match back {
            "" => session.run("ALTER TABLE queen_mq.other RENAME TO segment").await?,
            back => session.run(&format!("ALTER TABLE queen_mq.segment {back}")).await?,
        }
        Push::new("q", n(1)).run(&old).await?;
    }
    for (alter, back) in [
        (
            "CREATE RULE r AS ON INSERT TO queen_mq.segment DO ALSO NOTIFY x",
            "DROP RULE r ON queen_mq.segment",
        ),
        (
            "CREATE TABLE child () INHERITS (queen_mq.segment)",
            "DROP TABLE child; ANALYZE queen_mq.segment",
        ),
    ] {
        session.run(alter).await?;
        old.run("SELECT queen_push('q', '1')").await.fails_with("0A000").with_context(|| alter)?;
        session.run(back).await?;
        Push::new("q", n(1)).run(&old).await?;
    }
    for (alter, back) in [
        (
            "ALTER INDEX queen_mq.segment_news RENAME TO another",
            "ALTER INDEX queen_mq.another RENAME TO segment_news",
        ),
        (
            "ALTER INDEX queen_mq.segment_news RENAME TO another;
             CREATE INDEX segment_news ON queen_mq.segment (partition, queue_id, xid, id)",
            "DROP INDEX queen_mq.segment_news; ALTER INDEX queen_mq.another RENAME TO segment_news",
        ),
        (
            "UPDATE pg_index SET indisvalid = false
             WHERE indexrelid = 'queen_mq.segment_news'::regclass",
            "REINDEX INDEX queen_mq.segment_news",
        ),
    ] {
        session.run(alter).await?;
        let fresh = db.session().await?;
        fresh.run(pop).await.fails_with("55000").with_context(|| alter)?;
        session.run(back).await?;
        fresh.run(pop).await?;
    }
    let came = Pop::new("q").group("all").mode("all").batch(99).run(&old).await?;
    assert_eq!(numbers(&came), [0, 1, 1, 1, 1, 1, 1]);
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn constraints_and_indexes_of_others_hold() -> Result<()> {
    let db = TestDb::fresh().await?;
    let session = db.session().await?;
    session.run("SELECT queen_configure('u', ordering => 'none')").await?;
    PushBatch::numbers("u", 1..=3).run(&session).await?;
    let pop = "SELECT queen_pop('u', 'g', 3, subscription_mode => 'all')";
    for constraint in ["", "DEFERRABLE INITIALLY IMMEDIATE", "DEFERRABLE INITIALLY DEFERRED"] {
        for kind in ["UNIQUE (group_id)", "EXCLUDE USING btree (group_id WITH =)"] {
            let add = format!("ALTER TABLE queen_mq.claim ADD CONSTRAINT one {kind} {constraint}");
            session.run(&add).await?;
            let state = match (constraint, kind) {
                // At the commit the constraint would run with the caller's rights, which PostgreSQL
                // refuses.
                ("DEFERRABLE INITIALLY DEFERRED", _) => "42501",
                (_, "UNIQUE (group_id)") => "23505",
                _ => "23P01",
            };
            session.run(pop).await.fails_with(state).with_context(|| add)?;
            session.run("ALTER TABLE queen_mq.claim DROP CONSTRAINT one").await?;
        }
    }
    let id = session.count("SELECT id FROM queen_mq.queue").await?;
    session.run("CREATE TABLE known (id bigint PRIMARY KEY)").await?;
    for (deferred, state) in [("", "23503"), ("DEFERRABLE INITIALLY DEFERRED", "42501")] {
        let add = format!(
            "ALTER TABLE queen_mq.segment ADD CONSTRAINT fk FOREIGN KEY (queue_id)
             REFERENCES known {deferred} NOT VALID"
        );
        session.run(&add).await?;
        session.run("SELECT queen_push('u', '4')").await.fails_with(state)?;
        if deferred.is_empty() {
            let known = format!("INSERT INTO known VALUES ({id}); SELECT queen_push('u', '4')");
            session.run(&known).await?;
        }
        session.run("ALTER TABLE queen_mq.segment DROP CONSTRAINT fk; DELETE FROM known").await?;
    }
    session
        .run(
            "CREATE FUNCTION boom(text) RETURNS text IMMUTABLE LANGUAGE plpgsql AS $$ BEGIN
                 IF $1 = 'b' THEN RAISE 'boom' USING ERRCODE = 'MY002'; END IF; RETURN $1; END $$;
             CREATE INDEX expression ON queen_mq.segment (public.boom(partition))",
        )
        .await?;
    session.run("SELECT queen_push('u', '5', partition => 'b')").await.fails_with("MY002")?;
    // A table that is unlogged, clustered or rewritten works as before.
    session
        .run(
            "ALTER TABLE queen_mq.segment SET UNLOGGED;
             CLUSTER queen_mq.segment USING segment_in_order;
             REINDEX TABLE queen_mq.claim;
             ALTER TABLE queen_mq.claim REPLICA IDENTITY FULL",
        )
        .await?;
    session.run("VACUUM FULL queen_mq.claim").await?;
    let held = Pop::new("u").group("g").mode("all").batch(9).run(&session).await?;
    assert_eq!(held.len(), 4);
    Ok(())
}
