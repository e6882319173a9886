//! `ALTER EXTENSION queen_mq UPDATE`: from each released version on, what is there afterwards is
//! what a fresh installation has, and the data of before is gone on from.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

use anyhow::{Context, Result, ensure};
use queen_tests::db::server;
use queen_tests::{Pop, Session, TestDb};

/// Versions with an upgrade script.
const RELEASED: &[&str] = &["0.1.0"];

/// Everything that the extension has in a database, each with a description in which numbers of
/// objects do not occur. Columns may lie in another order.
const CATALOGUE: &str = "
    WITH members AS (
        SELECT d.classid, d.objid FROM pg_depend AS d JOIN pg_extension AS e ON e.oid = d.refobjid
        WHERE d.refclassid = 'pg_extension'::regclass AND e.extname = 'queen_mq' AND d.deptype = 'e'
    ), tables AS (
        SELECT c.* FROM pg_class AS c JOIN members AS m ON m.objid = c.oid
        WHERE m.classid = 'pg_class'::regclass
    )
    SELECT 'member ' || pg_describe_object(classid, objid, 0) AS name, '' AS described FROM members
    UNION ALL
    SELECT 'function ' || p.oid::regprocedure, concat_ws(' | ', pg_get_functiondef(p.oid),
        p.proowner::regrole, p.proacl, obj_description(p.oid, 'pg_proc'))
    FROM pg_proc AS p JOIN members AS m ON m.objid = p.oid WHERE m.classid = 'pg_proc'::regclass
    UNION ALL
    SELECT 'relation ' || oid::regclass, concat_ws(' | ', relkind, relpersistence, relreplident,
        reloptions, relacl, relowner::regrole, relrowsecurity, obj_description(oid, 'pg_class'),
        CASE relkind WHEN 'v' THEN pg_get_viewdef(oid) END)
    FROM tables
    UNION ALL
    SELECT 'column ' || attrelid::regclass || '.' || attname, concat_ws(' | ',
        format_type(atttypid, atttypmod), attnotnull, attidentity, attgenerated, attstorage,
        attcompression, attcollation::regcollation, pg_get_expr(adbin, adrelid), attacl)
    FROM pg_attribute JOIN tables AS t ON t.oid = attrelid
    LEFT JOIN pg_attrdef ON (adrelid, adnum) = (attrelid, attnum)
    WHERE attnum > 0 AND NOT attisdropped
    UNION ALL
    SELECT 'constraint ' || conrelid::regclass || '.' || conname, pg_get_constraintdef(c.oid)
    FROM pg_constraint AS c JOIN tables AS t ON t.oid = conrelid
    UNION ALL
    SELECT 'index ' || indexrelid::regclass, pg_get_indexdef(indexrelid) || (
        SELECT coalesce(i.reloptions::text, '') FROM pg_class AS i WHERE i.oid = indexrelid)
    FROM pg_index JOIN tables AS t ON t.oid = indrelid
    UNION ALL
    SELECT 'trigger ' || tgname, pg_get_triggerdef(g.oid)
    FROM pg_trigger AS g JOIN tables AS t ON t.oid = tgrelid WHERE NOT tgisinternal
    UNION ALL
    SELECT 'sequence ' || seqrelid::regclass, concat_ws(' | ', seqtypid::regtype, seqstart,
        seqincrement, seqmax, seqmin, seqcache, seqcycle)
    FROM pg_sequence JOIN tables AS t ON t.oid = seqrelid
    UNION ALL
    SELECT 'saved ' || saved::regclass, condition
    FROM pg_extension, unnest(extconfig, extcondition) AS s(saved, condition)
    WHERE extname = 'queen_mq'";

async fn catalogue(session: &Session) -> Result<BTreeMap<String, String>> {
    let rows = session.query(CATALOGUE, &[]).await?;
    Ok(rows.iter().map(|row| (row.get(0), row.get(1))).collect())
}

#[tokio::test(flavor = "multi_thread")]
async fn an_upgraded_extension_is_a_fresh_one() -> Result<()> {
    let fresh = TestDb::fresh().await?;
    let expected = catalogue(&fresh.session().await?).await?;
    ensure!(expected.len() > 200, "{} objects", expected.len());
    for version in RELEASED {
        let db = TestDb::create_empty(&server()?).await?;
        let session = db.session().await?;
        session.run(&format!("CREATE EXTENSION queen_mq VERSION '{version}'")).await?;
        ensure!(catalogue(&session).await? != expected, "{version} is what a fresh one is");
        session.run("ALTER EXTENSION queen_mq UPDATE").await?;
        let upgraded = catalogue(&session).await?;
        for (name, described) in &expected {
            ensure!(upgraded.get(name) == Some(described), "{version}: {name}: {described}");
        }
        let more: Vec<_> = upgraded.keys().filter(|name| !expected.contains_key(*name)).collect();
        ensure!(more.is_empty(), "{version} has {more:?}");
    }
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn rights_that_were_given_outlive_an_upgrade() -> Result<()> {
    let fresh = TestDb::fresh().await?;
    // What a dump leaves out, because a restore has it from CREATE EXTENSION.
    let initial = "SELECT string_agg(concat_ws(' ', pg_describe_object(i.classoid, i.objoid,
            i.objsubid), i.initprivs), ', ' ORDER BY pg_describe_object(i.classoid, i.objoid,
            i.objsubid))
        FROM pg_init_privs AS i JOIN pg_depend AS d ON (d.classid, d.objid) = (classoid, objoid)
        JOIN pg_extension AS e ON e.oid = d.refobjid AND d.deptype = 'e'
        WHERE d.refclassid = 'pg_extension'::regclass AND e.extname = 'queen_mq'";
    let initial_rights: String = fresh.session().await?.query_one(initial, &[]).await?.get(0);
    let granted = "SELECT string_agg(p.proname || ' ' || x.is_grantable, ', ' ORDER BY p.proname)
        FROM pg_proc AS p, aclexplode(p.proacl) AS x
        WHERE p.proname LIKE 'queen%' AND x.grantee = 'pg_monitor'::regrole";
    for version in RELEASED {
        let db = TestDb::create_empty(&server()?).await?;
        let session = db.session().await?;
        session
            .run(&format!(
                "CREATE EXTENSION queen_mq VERSION '{version}';
                 GRANT EXECUTE ON ALL FUNCTIONS IN SCHEMA public TO pg_monitor WITH GRANT OPTION;
                 GRANT SELECT ON ALL TABLES IN SCHEMA public TO pg_monitor"
            ))
            .await?;
        let before: String = session.query_one(granted, &[]).await?.get(0);
        session.run("ALTER EXTENSION queen_mq UPDATE").await?;
        let after: String = session.query_one(granted, &[]).await?.get(0);
        ensure!(before.len() > 200, "{before}");
        assert_eq!(before, after, "{version}");
        let left: String = session.query_one(initial, &[]).await?.get(0);
        assert_eq!(left, initial_rights, "{version}");
    }
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn default_privileges_give_no_role_rights_by_an_upgrade() -> Result<()> {
    for version in RELEASED {
        let db = TestDb::create_empty(&server()?).await?;
        let session = db.session().await?;
        session
            .run(&format!(
                "CREATE EXTENSION queen_mq VERSION '{version}';
                 ALTER DEFAULT PRIVILEGES GRANT EXECUTE ON FUNCTIONS TO pg_monitor;
                 ALTER EXTENSION queen_mq UPDATE"
            ))
            .await?;
        assert_eq!(session.count("SELECT count(*) FROM queen_mq.grants").await?, 0, "{version}");
        let may_pop = "SELECT count(*) FROM pg_proc AS p, aclexplode(p.proacl) AS x
                       WHERE p.proname = 'queen_pop' AND x.grantee = 'pg_monitor'::regrole";
        assert_eq!(session.count(may_pop).await?, 0, "{version}");
    }
    Ok(())
}

/// Where the owner has another name by now, another role may have the old one after a restore.
#[tokio::test(flavor = "multi_thread")]
async fn a_dump_leaves_out_an_owner_of_a_name_that_is_no_more() -> Result<()> {
    let db = TestDb::fresh().await?;
    let session = db.session().await?;
    let condition = "SELECT condition FROM pg_extension,
                         unnest(extconfig, extcondition) AS s(saved, condition)
                     WHERE extname = 'queen_mq' AND saved = 'queen_mq.owner'::regclass";
    let condition: String = session.query_one(condition, &[]).await?.get(0);
    let dumped = format!("SELECT count(*) FROM queen_mq.owner {condition}");
    assert_eq!(session.count(&dumped).await?, 1);
    session.run("UPDATE queen_mq.owner SET role_name = 'who_was_renamed'").await?;
    assert_eq!(session.count(&dumped).await?, 0);
    Ok(())
}

/// What a group gets of a partition, each message with its attempt.
async fn rest(session: &Session, queue: &str, group: &str, partition: &str) -> Result<String> {
    let pop = Pop::new(queue).group(group).partition(partition).batch(100);
    let came = pop.run(session).await?;
    let shown =
        came.iter().map(|message| format!("{}/{}", message.payload, message.delivery_attempt));
    Ok(shown.collect::<Vec<_>>().join(" "))
}

async fn text(session: &Session, sql: &str) -> Result<String> {
    let sql = format!("SELECT ({sql})::text");
    Ok(session.query_one(&sql, &[]).await.context(sql)?.get(0))
}

/// Data that [`fill.sql`](../../upgrade/fill.sql) has made.
async fn goes_on(session: &Session) -> Result<()> {
    let pending = "SELECT string_agg(consumer_group || ' ' || pending || ' ' || dead_letters, ', '
                   ORDER BY consumer_group) FROM queen_groups";
    assert_eq!(text(session, pending).await?, "billing 8 1, sender 3 0");
    let blocked = "SELECT string_agg(partition || ' ' || state || ' ' || failures, ', '
                   ORDER BY partition) FROM queen_blocked";
    let retrying = "a retrying 0, b retrying 1, d retrying 0, e retrying 0";
    assert_eq!(text(session, blocked).await?, retrying);
    let status = "SELECT state FROM queen_message_status('orders', 'once', 'a')";
    assert_eq!(text(session, status).await?, "completed");
    // Leases do not outlive a restore: what they held is delivered again.
    assert_eq!(rest(session, "orders", "billing", "a").await?, "3/2 4/1 5/1 6/1");
    assert_eq!(rest(session, "orders", "billing", "b").await?, "11/2 12/1");
    assert_eq!(rest(session, "orders", "billing", "c").await?, "");
    assert_eq!(rest(session, "orders", "billing", "d").await?, "31/2");
    assert_eq!(rest(session, "orders", "billing", "e").await?, "41/2");
    assert_eq!(rest(session, "orders", "billing", "g").await?, "62/1");
    assert_eq!(rest(session, "mails", "sender", "Default").await?, "52/2 53/2 54/1");
    let pushed = "SELECT status FROM queen_push('orders', '1', 'g', 'delayed')";
    assert_eq!(text(session, pushed).await?, "duplicate");
    let replayed = "SELECT count(*) FROM queen_dead_letters AS d,
                    queen_dead_letter_replay(d.dead_letter_id)";
    assert_eq!(text(session, replayed).await?, "1");
    assert_eq!(rest(session, "orders", "billing", "c").await?, "21/1");
    assert_eq!(text(session, "SELECT queen_cancel('orders', 'later')").await?, "true");
    let marker = "SELECT value ->> 'id' FROM queen_kv_get('orders', 'charge:1')";
    assert_eq!(text(session, marker).await?, "ch_1");
    let count = "SELECT value FROM queen_kv_incr('orders', 'count', forever => true)";
    assert_eq!(text(session, count).await?, "8");
    let options = "SELECT retry_limit FROM queen_configure('orders')";
    assert_eq!(text(session, options).await?, "5");
    assert_eq!(text(session, "SELECT queen_purge('orders')").await?, "13");
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn the_data_of_a_former_version_is_gone_on_from() -> Result<()> {
    let _turn = TestDb::fresh().await?;
    for version in RELEASED {
        let db = TestDb::create_empty(&server()?).await?;
        let file = Path::new(env!("CARGO_MANIFEST_DIR")).join(format!("../upgrade/{version}.sql"));
        let data = fs::read_to_string(&file).with_context(|| file.display().to_string())?;
        let session = db.session().await?;
        session.run(&format!("CREATE EXTENSION queen_mq VERSION '{version}'")).await?;
        session.run(&data).await.context("the data")?;
        let session = db.session().await?;
        session.run("ALTER EXTENSION queen_mq UPDATE").await?;
        goes_on(&session).await.with_context(|| format!("from {version}"))?;
    }
    Ok(())
}

/// In 0.1.0, a push with a delay was dropped if another push of its id was remembered when it was
/// due.
#[tokio::test(flavor = "multi_thread")]
async fn delayed_pushes_of_0_1_0_are_dropped_only_as_duplicates() -> Result<()> {
    let _turn = TestDb::fresh().await?;
    let db = TestDb::create_empty(&server()?).await?;
    let session = db.session().await?;
    session
        .run(
            r"CREATE EXTENSION queen_mq VERSION '0.1.0';
            INSERT INTO queen_mq.queue (name, created_at, installation, xid_offset, dedup_window)
            SELECT name, now(), 1, 0, dedup_window::interval
            FROM (VALUES ('default', NULL), ('long', '10 days')) AS q(name, dedup_window);
            INSERT INTO queen_mq.admission
            SELECT q.id, 'p', a.id, 7, now() - a.age::interval
            FROM queen_mq.queue AS q,
                (VALUES ('over', '2 h'), ('by then', '1 min'), ('now', '1 min')) AS a(id, age);
            INSERT INTO queen_mq.timer
                (queue_id, timer_key, partition, transaction_id, deliver_at, payload)
            SELECT q.id, E'\x01p\x1f' || t.id, 'p', t.id, now() + t.delay::interval, '1'
            FROM queen_mq.queue AS q, (VALUES ('over', '1 min'), ('by then', '2 h'),
                ('now', '1 min'), ('none', '1 min')) AS t(id, delay);
            ALTER EXTENSION queen_mq UPDATE",
        )
        .await?;
    let left = "SELECT string_agg(q.name || ' ' || t.transaction_id, ', '
                    ORDER BY q.name, t.transaction_id COLLATE \"C\")
                FROM queen_mq.timer AS t JOIN queen_mq.queue AS q ON q.id = t.queue_id";
    assert_eq!(
        text(&session, left).await?,
        "default by then, default none, default over, long none"
    );
    let remembered = "SELECT string_agg(concat_ws(' ', q.name, a.transaction_id, message_id), ', '
                          ORDER BY q.name, a.transaction_id COLLATE \"C\")
                      FROM queen_mq.admission AS a JOIN queen_mq.queue AS q ON q.id = a.queue_id";
    assert_eq!(
        text(&session, remembered).await?,
        "default by then 7, default none, default now 7, default over, \
         long by then 7, long none, long now 7, long over 7"
    );
    Ok(())
}
