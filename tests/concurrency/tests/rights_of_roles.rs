//! What becomes of grants when roles are renamed and dropped, in dumps, and with an upgrade of the
//! extension; and which arguments of `queen_grant` and the like are refused.

use anyhow::{Context, Result, ensure};
use queen_tests::cluster::Cluster;
use queen_tests::{Fails, Session, TestDb};

const PUSH: &str = "SELECT queen_push('q', '1')";

async fn as_role(db: &TestDb, name: &str) -> Result<Session> {
    let mut config = db.config().clone();
    config.user(name);
    Ok(Session::open(&config).await?)
}

async fn create_roles(admin: &Session, roles: &[&str]) -> Result<()> {
    for role in roles {
        admin.run(&format!("CREATE ROLE {role} LOGIN")).await?;
    }
    Ok(())
}

/// The view queen_grants, as one text.
async fn grants(session: &Session) -> Result<String> {
    let sql = "SELECT coalesce(string_agg(concat_ws(' ', role, privilege, 'q ' || queue,
                   'n ' || namespace), ', ' ORDER BY role, privilege, queue, namespace), '')
               FROM queen_grants";
    Ok(session.query_one(sql, &[]).await?.get(0))
}

#[tokio::test(flavor = "multi_thread")]
async fn a_renamed_role_keeps_its_rights_and_its_old_name_has_none() -> Result<()> {
    let cluster = Cluster::start_with("fsync = off")?;
    let db = TestDb::create(&cluster.config()).await?;
    let admin = &db.session().await?;
    create_roles(admin, &["app"]).await?;
    admin.run("SELECT queen_grant('app', 'push', 'q')").await?;
    let app = as_role(&db, "app").await?;
    app.run(PUSH).await?;
    admin.run("ALTER ROLE app RENAME TO old_app; CREATE ROLE app LOGIN").await?;
    // EXECUTE is what a grant on another queue gives, and no more.
    admin.run("SELECT queen_grant('app', 'push', 'other')").await?;
    app.run(PUSH).await.context("in a session from before")?;
    as_role(&db, "old_app").await?.run(PUSH).await?;
    as_role(&db, "app").await?.run(PUSH).await.fails_with("42501")?;
    assert_eq!(grants(admin).await?, "app push q other, old_app push q q");
    // The sweep writes the new name down, for dumps.
    let names = "SELECT string_agg(role_name, ' ' ORDER BY role_name) FROM queen_mq.grants";
    assert_eq!(admin.query_one(names, &[]).await?.get::<_, &str>(0), "app app");
    admin.run("SELECT queen_sweep()").await?;
    assert_eq!(admin.query_one(names, &[]).await?.get::<_, &str>(0), "app old_app");
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn a_role_of_the_name_of_one_that_was_dropped_has_no_rights() -> Result<()> {
    let cluster = Cluster::start_with("fsync = off")?;
    let db = TestDb::create(&cluster.config()).await?;
    let admin = &db.session().await?;
    create_roles(admin, &["app", "kept"]).await?;
    admin.run("SELECT queen_grant('app', 'push'), queen_grant('kept', 'push')").await?;
    // The rights of PostgreSQL keep a role, as always.
    admin.run("DROP ROLE app").await.fails_with("2BP01")?;
    admin.run("DROP OWNED BY app; DROP ROLE app; CREATE ROLE app LOGIN").await?;
    admin.run("GRANT EXECUTE ON FUNCTION queen_push TO app").await?;
    as_role(&db, "app").await?.run(PUSH).await.fails_with("42501")?;
    assert_eq!(grants(admin).await?, "kept push");
    let rows = "SELECT count(*) FROM queen_mq.grants";
    assert_eq!(admin.count(rows).await?, 2);
    let file = cluster.file("dropped.dump");
    cluster.dump(db.name(), &file)?;
    admin.run("SELECT queen_sweep()").await?;
    assert_eq!(admin.count(rows).await?, 1);
    // Nor does a dump from before the sweep give it any.
    let copy = TestDb::create_empty(&cluster.config()).await?;
    cluster.restore(copy.name(), &file)?;
    let admin = copy.session().await?;
    assert_eq!(grants(&admin).await?, "kept push");
    as_role(&copy, "app").await?.run(PUSH).await.fails_with("42501")?;
    as_role(&copy, "kept").await?.run(PUSH).await?;
    // DROP OWNED alone takes EXECUTE; queen_grant gives it back.
    admin.run("DROP OWNED BY kept").await?;
    as_role(&copy, "kept").await?.run(PUSH).await.fails_with("42501")?;
    let again = "SELECT queen_grant('kept', 'push')::int::bigint";
    assert_eq!(admin.count(again).await?, 0);
    as_role(&copy, "kept").await?.run(PUSH).await?;
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn a_dump_carries_grants_by_the_names_of_roles() -> Result<()> {
    let (old, new) = (Cluster::start_with("fsync = off")?, Cluster::start_with("fsync = off")?);
    let source = TestDb::create(&old.config()).await?;
    let admin = &source.session().await?;
    create_roles(admin, &["missing", "app", "stale"]).await?;
    admin
        .run(
            "SELECT queen_grant('app', 'push', 'q'), queen_grant('app', 'pop'),
                 queen_grant_kv('app', 'read', 'n'), queen_grant('stale', 'manage');
             INSERT INTO queen_mq.grants (role_name, privilege) VALUES ('missing', 'push');
             ALTER ROLE stale RENAME TO current; SELECT queen_sweep();
             GRANT USAGE ON SCHEMA public TO PUBLIC",
        )
        .await?;
    let file = old.file("rights.dump");
    old.dump(source.name(), &file)?;
    // There, OIDs mean other roles, and one role of the dump is not there.
    let target = TestDb::create_empty(&new.config()).await?;
    let admin = &target.session().await?;
    create_roles(admin, &["first", "stale", "current", "second", "app"]).await?;
    new.restore(target.name(), &file)?;
    assert_eq!(grants(admin).await?, "app pop, app push q q, app read n n, current manage");
    let app = as_role(&target, "app").await?;
    app.run(&format!("{PUSH}; SELECT queen_pop('q'); SELECT queen_kv_get('n', 'k')")).await?;
    app.run("SELECT queen_push('other', '1')").await.fails_with("42501")?;
    as_role(&target, "current").await?.run("SELECT queen_purge('q')").await?;
    for role in ["first", "second", "stale"] {
        as_role(&target, role).await?.run("SELECT queen_purge('q')").await.fails_with("42501")?;
    }
    // Created later, the missing role has no rights.
    create_roles(admin, &["missing"]).await?;
    admin.run("GRANT EXECUTE ON FUNCTION queen_push TO missing").await?;
    as_role(&target, "missing").await?.run(PUSH).await.fails_with("42501")?;
    Ok(())
}

/// Rows that came into the table without its trigger give no right.
#[tokio::test(flavor = "multi_thread")]
async fn a_row_of_another_installation_gives_no_right() -> Result<()> {
    let cluster = Cluster::start_with("fsync = off")?;
    let db = TestDb::create(&cluster.config()).await?;
    let admin = &db.session().await?;
    create_roles(admin, &["app"]).await?;
    admin
        .run(
            "SET session_replication_role = replica;
             INSERT INTO queen_mq.grants SELECT 'app', 'app'::regrole, 7, 'push', '';
             RESET session_replication_role; GRANT EXECUTE ON FUNCTION queen_push TO app",
        )
        .await?;
    as_role(&db, "app").await?.run(PUSH).await.fails_with("42501")?;
    assert_eq!(grants(admin).await?, "");
    assert_eq!(admin.count("SELECT queen_grant('app', 'push')::int::bigint").await?, 1);
    as_role(&db, "app").await?.run(PUSH).await?;
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn what_a_role_may_call_before_an_upgrade_it_may_call_after_it() -> Result<()> {
    let cluster = Cluster::start_with("fsync = off")?;
    let db = TestDb::create_empty(&cluster.config()).await?;
    let admin = &db.session().await?;
    create_roles(admin, &["producer", "consumer", "reader", "bundler", "auditor"]).await?;
    admin
        .run(
            "CREATE EXTENSION queen_mq VERSION '0.1.0';
             GRANT EXECUTE ON FUNCTION queen_push TO producer;
             GRANT EXECUTE ON FUNCTION queen_pop, queen_ack TO consumer;
             GRANT SELECT ON queen_queues TO reader;
             GRANT EXECUTE ON FUNCTION queen_mq.queue_figures TO reader;
             GRANT EXECUTE ON FUNCTION queen_tx_commit TO bundler;
             GRANT SELECT ON queen_messages TO auditor;
             ALTER EXTENSION queen_mq UPDATE",
        )
        .await?;
    goes_on(&db, 1).await?;
    // What a script of the extension grants is no part of a dump, unless the script sees to it.
    admin.run("SELECT queen_grant('reader', 'push', 'new')").await?;
    let file = cluster.file("upgraded.dump");
    cluster.dump(db.name(), &file)?;
    let copy = TestDb::create_empty(&cluster.config()).await?;
    cluster.restore(copy.name(), &file)?;
    as_role(&copy, "reader").await?.run("SELECT queen_push('new', '1')").await?;
    copy.session().await?.run("SELECT queen_revoke('reader', 'push')").await?;
    goes_on(&copy, 2).await
}

/// The roles of [`what_a_role_may_call_before_an_upgrade_it_may_call_after_it`] may do what they
/// could; `queues`: how many there are then.
async fn goes_on(db: &TestDb, queues: i64) -> Result<()> {
    assert_eq!(
        grants(&db.session().await?).await?,
        "auditor pop, bundler pop, bundler push, bundler read, bundler write, consumer pop, \
         producer push, reader monitor"
    );
    let producer = as_role(db, "producer").await?;
    producer.run(PUSH).await?;
    producer.run("SELECT queen_pop('q')").await.fails_with("42501")?;
    let ack = "SELECT queen_ack((SELECT lease_id FROM queen_pop('q')))";
    as_role(db, "consumer").await?.run(ack).await?;
    // It could read, and may do no more: EXECUTE is not granted.
    let auditor = as_role(db, "auditor").await?;
    let all = "SELECT count(*) FROM queen_messages";
    let of_owner = db.session().await?.count(all).await?;
    assert_eq!((auditor.count(all).await?, of_owner > 0), (of_owner, true));
    for call in ["queen_pop('q')", "queen_subscribe('q', 'g')", "queen_ack(gen_random_uuid())"] {
        auditor.run(&format!("SELECT {call}")).await.fails_with("42501")?;
    }
    let reader = as_role(db, "reader").await?;
    assert_eq!(reader.count("SELECT count(*) FROM queen_queues").await?, queues);
    assert_eq!(reader.count("SELECT count(*) FROM queen_grants").await?, 1);
    let bundle =
        "SELECT queen_tx_commit('[{\"type\": \"push\", \"queue\": \"q\", \"payload\": 1}]',
        '[{\"op\": \"put\", \"ns\": \"n\", \"key\": \"k\", \"value\": 1, \"forever\": true}]')";
    Ok(as_role(db, "bundler").await?.run(bundle).await?)
}

#[tokio::test(flavor = "multi_thread")]
async fn a_revoke_on_all_queues_ends_the_grants_on_single_ones() -> Result<()> {
    let cluster = Cluster::start_with("fsync = off")?;
    let db = TestDb::create(&cluster.config()).await?;
    let admin = &db.session().await?;
    create_roles(admin, &["app"]).await?;
    let answers = |sql: &'static str| async move {
        let row = admin.query_one(sql, &[]).await?;
        anyhow::Ok((0..row.len()).map(|at| row.get::<_, bool>(at)).collect::<Vec<_>>())
    };
    let granted = "SELECT queen_grant('app', 'push', 'a'), queen_grant('app', 'push', 'a'),
        queen_grant('app', 'push', 'b'), queen_grant('app', 'push'), queen_grant('app', 'pop', 'a'),
        queen_grant_kv('app', 'read', 'n'), queen_grant_kv('app', 'read', 'n')";
    assert_eq!(answers(granted).await?, [true, false, true, true, true, true, false]);
    // The right on all queues is not that on a single one.
    let revoked = "SELECT queen_revoke('app', 'push', 'b'), queen_revoke('app', 'push', 'b'),
        queen_revoke('app', 'push', 'c'), queen_revoke('app', 'monitor')";
    assert_eq!(answers(revoked).await?, [true, false, false, false]);
    as_role(&db, "app").await?.run("SELECT queen_push('b', '1')").await?;
    assert_eq!(answers("SELECT queen_revoke('app', 'push')").await?, [true]);
    as_role(&db, "app").await?.run("SELECT queen_push('a', '1')").await.fails_with("42501")?;
    assert_eq!(grants(admin).await?, "app pop q a, app read n n");
    assert_eq!(answers("SELECT queen_revoke_kv('app', 'read')").await?, [true]);
    // The bundle is needed for the right to pop, still.
    let may = "SELECT has_function_privilege('app', 'queen_tx_commit(jsonb, jsonb, jsonb, uuid[])',
        'EXECUTE'), has_function_privilege('app', 'queen_kv_get(text, text)', 'EXECUTE')";
    assert_eq!(answers(may).await?, [true, false]);
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn malformed_grants_are_refused() -> Result<()> {
    let db = TestDb::fresh().await?;
    let session = db.session().await?;
    for (call, state) in [
        ("queen_grant('pg_monitor', 'select')", "22023"),
        ("queen_grant('pg_monitor', 'Push')", "22023"),
        ("queen_grant('pg_monitor', '')", "22023"),
        ("queen_grant('pg_monitor', NULL)", "22023"),
        ("queen_grant('pg_monitor', 'read')", "22023"),
        ("queen_grant('pg_monitor', 'owner')", "22023"),
        ("queen_grant('pg_monitor', 'push', '')", "22023"),
        ("queen_grant('pg_monitor', 'push', repeat('x', 256))", "22023"),
        ("queen_grant(NULL, 'push')", "22023"),
        ("queen_grant('', 'push')", "22023"),
        ("queen_grant('no such role', 'push')", "42704"),
        ("queen_grant('public', 'push')", "42704"),
        ("queen_grant(repeat('x', 64), 'push')", "42704"),
        ("queen_revoke('no such role', 'push')", "42704"),
        ("queen_revoke('pg_monitor', 'read')", "22023"),
        ("queen_revoke('pg_monitor', 'owner', 'q')", "22023"),
        ("queen_grant_kv('pg_monitor', 'push')", "22023"),
        ("queen_grant_kv('pg_monitor', 'read', 'Not one')", "22023"),
        ("queen_grant_kv('pg_monitor', 'read', '')", "22023"),
        ("queen_revoke_kv('pg_monitor', 'monitor', 'n')", "22023"),
    ] {
        let error = session.run(&format!("SELECT {call}")).await.fails_with(state)?;
        ensure!(error.detail().is_some() && error.hint().is_some(), "{call}: {error:?}");
    }
    session.run("BEGIN READ ONLY").await?;
    session.run("SELECT queen_grant('pg_monitor', 'push')").await.fails_with("25006")?;
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn concurrent_grants_wait_for_each_other_and_all_take_effect() -> Result<()> {
    let cluster = Cluster::start_with("fsync = off")?;
    let db = TestDb::create(&cluster.config()).await?;
    let admin = &db.session().await?;
    let roles: Vec<String> = (0..8).map(|number| format!("app{number}")).collect();
    create_roles(admin, &roles.iter().map(String::as_str).collect::<Vec<_>>()).await?;
    let mut granting = tokio::task::JoinSet::new();
    for role in roles.clone() {
        let session = db.session().await?;
        granting.spawn(async move {
            for privilege in ["push", "pop", "manage", "monitor"] {
                session.run(&format!("SELECT queen_grant('{role}', '{privilege}')")).await?;
            }
            session.run(&format!("SELECT queen_revoke('{role}', 'manage')")).await
        });
    }
    while let Some(done) = granting.join_next().await {
        done??;
    }
    for role in roles {
        let session = as_role(&db, &role).await?;
        session
            .run(&format!("{PUSH}; SELECT queen_pop('q'), (SELECT count(*) FROM queen_queues)"))
            .await
            .with_context(|| role.clone())?;
        session.run("SELECT queen_purge('q')").await.fails_with("42501")?;
    }
    Ok(())
}

/// What a role may do with objects of the extension, as PostgreSQL has it.
async fn acl(session: &Session, role: &str) -> Result<String> {
    let sql = format!(
        "SELECT coalesce(string_agg(concat_ws(' ', o.name, a.privilege_type, a.is_grantable), ', '
                    ORDER BY o.name), '')
         FROM (SELECT oid::regprocedure::text AS name, proacl AS acl FROM pg_proc
               UNION ALL SELECT oid::regclass::text, relacl FROM pg_class
               UNION ALL SELECT oid::regnamespace::text, nspacl FROM pg_namespace) AS o,
             aclexplode(o.acl) AS a
         WHERE a.grantee = '{role}'::regrole"
    );
    Ok(session.query_one(&sql, &[]).await?.get(0))
}

#[tokio::test(flavor = "multi_thread")]
async fn a_former_owner_loses_all_that_a_restore_has_granted_it() -> Result<()> {
    let cluster = Cluster::start_with("fsync = off")?;
    let db = TestDb::create(&cluster.config()).await?;
    let admin = &db.session().await?;
    create_roles(admin, &["former", "other", "friend", "guest"]).await?;
    admin.run("SELECT queen_grant('other', 'push', 'q')").await?;
    let with_push = acl(admin, "other").await?;
    for privileges in [&["push"][..], &[]] {
        // As a restore does; and the role makes use of it.
        admin.run("INSERT INTO queen_mq.owner VALUES ('former')").await?;
        let former = as_role(&db, "former").await?;
        former
            .run(
                "GRANT EXECUTE ON FUNCTION queen_push, queen_pop TO friend;
                 GRANT SELECT ON queen_mq.segment TO friend; SELECT queen_grant('guest', 'pop')",
            )
            .await?;
        for privilege in privileges {
            admin.run(&format!("SELECT queen_grant('former', '{privilege}', 'q')")).await?;
        }
        ensure!(acl(admin, "former").await?.matches(" t").count() > 100);
        assert_eq!(admin.count("SELECT queen_revoke('former', 'owner')::int::bigint").await?, 1);
        let left = if privileges.is_empty() { String::new() } else { with_push.clone() };
        assert_eq!(acl(admin, "former").await?, left);
        assert_eq!(acl(admin, "friend").await?, "");
        former.run("SELECT * FROM queen_mq.segment").await.fails_with("42501")?;
        former.run("SELECT queen_grant('friend', 'pop')").await.fails_with("42501")?;
        if !privileges.is_empty() {
            former.run(PUSH).await?;
            admin.run("SELECT queen_revoke('former', 'push')").await?;
        }
    }
    assert_eq!(grants(admin).await?, "guest pop, other push q q");
    Ok(admin.run("DROP ROLE former").await?)
}

/// The former owner's privilege may be in the dump twice: it has owned the extension, has got it
/// back by a restore, and owns it again.
#[tokio::test(flavor = "multi_thread")]
async fn a_restore_may_come_to_a_grant_twice() -> Result<()> {
    let cluster = Cluster::start_with("fsync = off")?;
    let source = TestDb::create_empty(&cluster.config()).await?;
    let admin = &source.session().await?;
    create_roles(admin, &["former", "app"]).await?;
    admin
        .run(
            "ALTER ROLE former SUPERUSER; SET ROLE former; CREATE EXTENSION queen_mq;
             INSERT INTO queen_mq.grants (role_name, privilege) VALUES ('former', 'owner');
             SELECT queen_grant('app', 'push', 'q')",
        )
        .await?;
    let file = cluster.file("twice.dump");
    cluster.dump(source.name(), &file)?;
    // In the one order and in the other: a parallel restore may load the tables in any.
    let copy = TestDb::create_empty(&cluster.config()).await?;
    cluster.restore(copy.name(), &file)?;
    assert_eq!(grants(&copy.session().await?).await?, "app push q q, former owner");
    let other = TestDb::create(&cluster.config()).await?;
    let admin = &other.session().await?;
    admin
        .run(
            "SET session_replication_role = replica;
             INSERT INTO queen_mq.grants SELECT 'x', 'app'::regrole, 7, 'push', 'q';
             RESET session_replication_role;
             INSERT INTO queen_mq.owner VALUES ('former');
             INSERT INTO queen_mq.grants (role_name, privilege, target)
             VALUES ('former', 'owner', ''), ('app', 'push', 'q'), ('app', 'push', 'q')",
        )
        .await?;
    assert_eq!(grants(admin).await?, "app push q q, former owner");
    assert_eq!(admin.count("SELECT count(*) FROM queen_mq.grants").await?, 2);
    Ok(())
}
