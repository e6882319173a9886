//! The cost of a call depends on what it does, not on PostgreSQL's statistics. There are none after
//! a restore or in the transaction that loads rows, and they are outdated without ANALYZE.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use queen_tests::{Session, TestDb};
use serde_json::Value;

/// The rows of each large table, which is also less than the pages of the smallest one: a call that
/// reads a whole table is noticed.
const MANY: i64 = 60_000;
const A_WHOLE_TABLE: i64 = 300;

/// A few rows of each kind, with the states that the bulk rows are copied from.
const LITTLE: &str = "
    SELECT queen_configure('q', on_exhausted => 'dead_letter', retry_limit => 0);
    SELECT queen_configure('u', ordering => 'none');
    SELECT queen_configure('small'), queen_configure('limited', max_depth => 1000000);
    SELECT queen_subscribe(queue, 'g', 'all') FROM unnest('{q,u,small,limited}'::text[]) AS queue;
    SELECT queen_push(queue, '{}', part, 'id ' || part || i)
    FROM unnest('{q,u,small}'::text[]) AS queue, unnest('{p,o}'::text[]) AS part,
        generate_series(1, 20) AS i;
    SELECT queen_push('q', '{}', 'dead');
    SELECT queen_ack(lease_id, status => 'failed') FROM queen_pop('q', 'g', partition => 'dead');
    SELECT queen_ack(lease_id) FROM queen_pop('q', 'g', partition => 'p');
    SELECT queen_ack(lease_id) FROM queen_pop('u', 'g', partition => 'p');
    SELECT queen_ack(lease_id)
        FROM (SELECT DISTINCT lease_id FROM queen_pop('q', 'g', 4, partitions => 2)) AS l;
    SELECT queen_schedule('q', 'timer', '{}', delay => '1 day');
    SELECT queen_bind('b.*', 'q');
    SELECT queen_kv_put('n', 'key', '1', forever => true);";

/// Thousands of rows that a look-up has to step past: of the queue, the partition, the group, the
/// cursor or the namespace of the call. They are settled, or not due.
const BULK: &str = "
    CREATE TEMP TABLE it ON COMMIT DROP AS
        SELECT q.id AS q, u.id AS u, g.id AS g, h.id AS h, c.id AS c, q.installation
        FROM queen_mq.queue q, queen_mq.queue u, queen_mq.consumer_group g,
             queen_mq.consumer_group h, queen_mq.cursor c
        WHERE q.name = 'q' AND u.name = 'u' AND (g.queue, h.queue) = ('q', 'u')
          AND (c.group_id, c.partition) = (g.id, 'p');
    INSERT INTO queen_mq.queue (name, created_at, installation, xid_offset)
        SELECT 'queue ' || i, now(), installation, 0 FROM it, generate_series(1, $MANY) AS i;
    INSERT INTO queen_mq.consumer_group (queue, name, registered_at, start, initial, baseline)
        SELECT 'many', 'group ' || i, now(), start, 0, 0
        FROM it, queen_mq.consumer_group AS c, generate_series(1, $MANY) AS i WHERE c.id = g;
    INSERT INTO queen_mq.segment (queue_id, id, xid, created_at, n, partition, payloads)
        SELECT unnest(ARRAY[q, u]), nextval('queen_mq.segment_id'), 3, now(), 1, 'bulk', '{1}'
        FROM it, generate_series(1, $MANY) AS i;
    INSERT INTO queen_mq.admission
        SELECT q, 'p', 'bulk ' || i, i, now() FROM it, generate_series(1, $MANY) AS i;
    INSERT INTO queen_mq.cursor (id, group_id, partition) OVERRIDING SYSTEM VALUE
        SELECT nextval('queen_mq.cursor_id_seq'), g, 'bulk ' || i
            FROM it, generate_series(1, $MANY) AS i;
    INSERT INTO queen_mq.claim
        SELECT nextval('queen_mq.cursor_id_seq'), h, 'bulk', i * 28, now(), gen_random_uuid(),
            now() + '1 hour'
        FROM it, generate_series(1, $MANY) AS i;
    INSERT INTO queen_mq.progress
        SELECT b.id, 1, b.group_id, now() + '1 hour', NULL, p.state
        FROM (SELECT id, group_id FROM queen_mq.cursor WHERE partition LIKE 'bulk %'
              UNION ALL SELECT id, group_id FROM queen_mq.claim WHERE partition = 'bulk') AS b,
             (SELECT state FROM it, queen_mq.progress WHERE cursor_id = c
                 ORDER BY revision DESC LIMIT 1) AS p;
    INSERT INTO queen_mq.receipt
        SELECT c, -i, now(), -$MANY, p.receipts
        FROM it, generate_series(1, $MANY) AS i,
             (SELECT receipts FROM queen_mq.progress WHERE receipts IS NOT NULL LIMIT 1) AS p;
    INSERT INTO queen_mq.receipt
        SELECT -i, 1, now(), 0, p.receipts, h, 'p'
        FROM it, generate_series(1, $MANY) AS i,
             (SELECT receipts FROM queen_mq.progress WHERE receipts IS NOT NULL LIMIT 1) AS p;
    INSERT INTO queen_mq.lease_set (lease_id, cursor_ids, created_at)
        SELECT gen_random_uuid(), ARRAY[c], now() - interval '3 hours'
            FROM it, generate_series(1, $MANY);
    INSERT INTO queen_mq.dead_letter (queue, consumer_group, partition, message_id,
                                      transaction_id, payload, failures, deliveries,
                                      created_at, failed_at)
        SELECT 'q', 'g', 'bulk', i, i::text, '1', 1, 1, now(), now()
            FROM generate_series(1, $MANY) AS i;
    INSERT INTO queen_mq.timer (queue_id, timer_key, partition, transaction_id, deliver_at, payload)
        SELECT q, 'bulk ' || i, 'p', 'timer ' || i, now() + '1 day', '1'
            FROM it, generate_series(1, $MANY) AS i;
    INSERT INTO queen_mq.replay
        SELECT u, -i, 3, 'bulk', -1 FROM it, generate_series(1, $MANY) AS i;
    INSERT INTO queen_mq.marker (ns, key, value, version, expires_at, created_at, updated_at)
        SELECT 'n', 'bulk ' || i, '1', nextval('queen_mq.marker_version'), now() + '1 day', now(),
            now()
        FROM generate_series(1, $MANY) AS i;";

/// The name of a case, the statements before the call in its transaction, and the call.
struct Case(&'static str, &'static str, &'static str);

/// Public functions, some of them called in several ways. Left out are those that read everything:
/// the views, the metrics and the sweep.
const CASES: &[Case] = &[
    Case("configure", "", "queen_configure('q', retry_limit => 0)"),
    Case("configure a group", "", "queen_configure_group('q', 'g', retry_limit => 0)"),
    Case("to the newest alone", "", "queen_configure('small', delivery => 'latest')"),
    Case("pause", "", "queen_pause('q')"),
    Case("pause a group", "", "queen_pause('q', 'g')"),
    Case("to no order", "", "queen_configure('small', ordering => 'none')"),
    Case("push", "", "queen_push('q', '{}', 'p')"),
    Case("push with an id", "", "queen_push('q', '{}', 'p', 'new')"),
    Case("push a duplicate", "", "queen_push('q', '{}', 'p', 'id p3')"),
    Case("push with a delay", "", "queen_push('q', '{}', 'p', 'late', delay => '1 hour')"),
    Case("push below a limit", "", "queen_push('limited', '{}')"),
    Case(
        "push_batch",
        "",
        "queen_push_batch('q', '{1,2,3,4}', 'p', '{id p3,new,id p4,newer}'::text[])",
    ),
    Case(
        "push_items",
        "",
        r#"queen_push_items('[{"queue": "q", "payload": 1, "transactionId": "id p3",
                               "partition": "p"},
                              {"queue": "q", "payload": 1, "transactionId": "x",
                               "partition": "p"}]')"#,
    ),
    Case("pop", "", "queen_pop('q', 'g', 5, partitions => 2)"),
    Case("pop one partition", "", "queen_pop('q', 'g', 5, 'p')"),
    Case("pop without order", "", "queen_pop('u', 'g', 5, partitions => 2)"),
    Case("pop one without order", "", "queen_pop('u', 'g')"),
    Case("pop nothing", "SELECT queen_pop('q', 'g', 100, partitions => 10)", "queen_pop('q', 'g')"),
    Case("ack", POP, "queen_ack((SELECT lease_id FROM popped LIMIT 1))"),
    Case("ack several", POP_SEVERAL, "queen_ack((SELECT lease_id FROM popped LIMIT 1))"),
    Case("ack without order", POP_FREELY, "queen_ack((SELECT lease_id FROM popped LIMIT 1))"),
    Case(
        "ack as failed",
        POP,
        "queen_ack((SELECT lease_id FROM popped LIMIT 1), status => 'failed')",
    ),
    Case(
        "ack as failed without order",
        POP_FREELY,
        "queen_ack((SELECT lease_id FROM popped LIMIT 1), status => 'dead_letter')",
    ),
    Case(
        "ack again",
        ACKED,
        "queen_ack((SELECT lease_id FROM popped LIMIT 1), ARRAY(SELECT message_id FROM popped))",
    ),
    Case(
        "settle",
        POP,
        "queen_settle((SELECT lease_id FROM popped LIMIT 1), (SELECT jsonb_build_array(
             jsonb_build_object('transactionId', max(transaction_id), 'status', 'completed'))
                 FROM popped))",
    ),
    Case("extend", POP, "queen_extend((SELECT lease_id FROM popped LIMIT 1))"),
    Case("subscribe", "", "queen_subscribe('q', 'other')"),
    Case("subscribe to all", "", "queen_subscribe('small', 'other', 'all')"),
    Case("seek a partition", "", "queen_seek('q', 'g', 'end', partition => 'p')"),
    Case("seek", "", "queen_seek('small', 'g', 'start')"),
    Case("unsubscribe", "", "queen_unsubscribe('small', 'g')"),
    Case("purge", "", "queen_purge('small')"),
    Case("purge a partition", "", "queen_purge('small', 'p')"),
    Case("delete a queue", "", "queen_delete_queue('small')"),
    Case(
        "replay a dead letter",
        "CREATE TEMP TABLE dead ON COMMIT DROP AS SELECT min(id) AS id FROM queen_mq.dead_letter
         WHERE partition = 'dead'",
        "queen_dead_letter_replay((SELECT id FROM dead))",
    ),
    Case("replay dead letters", "", "queen_dead_letter_replay_all('q', max_messages => 3)"),
    Case("purge dead letters", "", "queen_dead_letter_purge('q', 'other')"),
    Case("schedule", "", "queen_schedule('q', 'timer', '{}', delay => '1 hour')"),
    Case("every", "", "queen_every('q', 'timer', '@daily', '{}')"),
    Case("bind", "", "queen_bind('a.*', 'q')"),
    Case("unbind", "", "queen_unbind('b.*', 'q')"),
    Case("publish", "", "queen_publish('b.c', '{}')"),
    Case("cancel", "", "queen_cancel('q', 'timer')"),
    Case("kv_get", "", "queen_kv_get('n', 'key')"),
    Case("kv_get_many", "", "queen_kv_get_many('n', '{key,none,key}')"),
    Case("kv_list", "", "queen_kv_list('n', 'k')"),
    Case("kv_put", "", "queen_kv_put('n', 'key', '2', forever => true)"),
    Case("kv_put_if_absent", "", "queen_kv_put_if_absent('n', 'key', '2', forever => true)"),
    Case("kv_incr", "", "queen_kv_incr('n', 'key', forever => true)"),
    Case("kv_check", "", "queen_kv_check('n', 'key', 1)"),
    Case("kv_delete", "", "queen_kv_delete('n', 'key')"),
    Case(
        "tx_commit",
        POP,
        r#"queen_tx_commit(jsonb_build_array(
               jsonb_build_object('type', 'ack', 'leaseId', (SELECT lease_id FROM popped LIMIT 1)),
               '{"type": "push", "queue": "q", "payload": 1, "transactionId": "id p3",
                 "partition": "p"}'::jsonb),
               '[{"op": "put", "ns": "n", "key": "key", "value": 2, "forever": true}]')"#,
    ),
];

const POP: &str =
    "CREATE TEMP TABLE popped ON COMMIT DROP AS SELECT * FROM queen_pop('q', 'g', 5, 'p')";
const POP_SEVERAL: &str = "CREATE TEMP TABLE popped ON COMMIT DROP AS \
                           SELECT * FROM queen_pop('q', 'g', 9, partitions => 2)";
const POP_FREELY: &str =
    "CREATE TEMP TABLE popped ON COMMIT DROP AS SELECT * FROM queen_pop('u', 'g', 5)";
const ACKED: &str =
    "CREATE TEMP TABLE popped ON COMMIT DROP AS SELECT * FROM queen_pop('q', 'g', 5, 'p');
    SELECT queen_ack((SELECT lease_id FROM popped LIMIT 1))";

/// The pages that a statement reads, together with everything it calls.
async fn pages(session: &Session, Case(name, before, call): &Case) -> Result<i64> {
    session.run("BEGIN").await?;
    session.run(before).await.with_context(|| format!("before {name}"))?;
    let explain = format!("EXPLAIN (ANALYZE, BUFFERS, FORMAT JSON) SELECT * FROM {call}");
    let plan = session.query_one(&explain, &[]).await.with_context(|| format!("{name}: {call}"))?;
    session.run("ROLLBACK").await?;
    let plan: Value = plan.get(0);
    let blocks = |kind: &str| plan[0]["Plan"][kind].as_i64().context("a count of blocks");
    Ok(blocks("Shared Hit Blocks")? + blocks("Shared Read Blocks")?)
}

/// The lower figure of two calls each: one pop in 256 of a group without order also folds claims,
/// for a hundredth of a second.
async fn pages_of_all(session: &Session) -> Result<BTreeMap<&'static str, i64>> {
    let mut pages_of = BTreeMap::new();
    for case in CASES {
        let (first, second) = (pages(session, case).await?, pages(session, case).await?);
        pages_of.insert(case.0, first.min(second));
    }
    Ok(pages_of)
}

/// A database with a few rows of each kind, without autovacuum.
async fn database() -> Result<(TestDb, Session)> {
    let db = TestDb::fresh().await?;
    let session = db.session().await?;
    session
        .run(
            "DO $$ DECLARE t regclass; BEGIN
                 FOR t IN SELECT oid FROM pg_class
                          WHERE relnamespace = 'queen_mq'::regnamespace AND relkind = 'r' LOOP
                     EXECUTE format('ALTER TABLE %s SET (autovacuum_enabled = off)', t);
                 END LOOP;
             END $$",
        )
        .await?;
    Ok((db, session))
}

/// Run each statement in a transaction of its own, so that the groups come to the end of the log.
async fn begin_with_little(session: &Session) -> Result<()> {
    for statement in LITTLE.split_terminator(';') {
        session.run(statement).await.with_context(|| statement)?;
    }
    Ok(())
}

async fn fill(session: &Session) -> Result<()> {
    let bulk = BULK.replace("$MANY", &MANY.to_string());
    session.run(&format!("BEGIN; {bulk}; COMMIT")).await.context("bulk rows")
}

/// Check that each call reads about as many pages in large tables as in small ones.
fn compare(small: &BTreeMap<&str, i64>, large: &BTreeMap<&str, i64>) -> Result<()> {
    let mut scans = Vec::new();
    for (name, pages) in large {
        let before = small[name];
        println!("{name}: {before} pages, then {pages}");
        if *pages > 2 * before + A_WHOLE_TABLE {
            scans.push(format!("{name}: {before} pages, then {pages}"));
        }
    }
    ensure!(scans.is_empty(), "these calls look at whole tables:\n{}", scans.join("\n"));
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn calls_look_things_up_in_large_tables_without_statistics() -> Result<()> {
    let (db, loading) = database().await?;
    begin_with_little(&loading).await?;
    let small = pages_of_all(&db.session().await?).await?;
    fill(&loading).await?;
    compare(&small, &pages_of_all(&db.session().await?).await?)
}

/// The plans of the session were made on empty tables, and the statistics say the tables are empty.
#[tokio::test(flavor = "multi_thread")]
async fn calls_look_things_up_by_plans_that_were_made_on_empty_tables() -> Result<()> {
    let (db, loading) = database().await?;
    loading.run("VACUUM ANALYZE").await?;
    let session = db.session().await?;
    // Calls that need nothing succeed, and those that need something fail.
    for case in CASES {
        drop(pages(&session, case).await);
        session.run("ROLLBACK").await?;
    }
    begin_with_little(&loading).await?;
    let small = pages_of_all(&session).await?;
    fill(&loading).await?;
    compare(&small, &pages_of_all(&session).await?)
}

/// The statistics are those of tables that were small, and of other rows.
#[tokio::test(flavor = "multi_thread")]
async fn calls_look_things_up_by_statistics_that_are_wrong() -> Result<()> {
    let (db, loading) = database().await?;
    begin_with_little(&loading).await?;
    loading.run("ANALYZE").await?;
    let small = pages_of_all(&db.session().await?).await?;
    fill(&loading).await?;
    compare(&small, &pages_of_all(&db.session().await?).await?)
}

/// The transaction loads the rows itself, before any ANALYZE.
#[tokio::test(flavor = "multi_thread")]
async fn a_hundred_thousand_ids_repeated_in_their_own_transaction_take_seconds() -> Result<()> {
    let (_db, session) = database().await?;
    let push = "SELECT count(*) FILTER (WHERE status = 'queued'),
        count(*) FILTER (WHERE status = 'duplicate')
        FROM queen_push_batch('q', array_fill('1'::jsonb, '{100000}'), 'p',
                              ARRAY(SELECT 'id ' || i FROM generate_series(1, 100000) AS i))";
    session.run("BEGIN").await?;
    let first = session.query_one(push, &[]).await?;
    assert_eq!((first.get(0), first.get(1)), (100_000i64, 0i64));
    let began = Instant::now();
    let again = session.query_one(push, &[]).await?;
    assert_eq!((again.get(0), again.get(1)), (0i64, 100_000i64));
    ensure!(began.elapsed() < Duration::from_secs(20), "it took {:?}", began.elapsed());
    session.run("COMMIT").await?;
    Ok(())
}
