//! `queen_grant` and `queen_revoke`: how grants come and go, what other sessions see of them, and
//! what becomes of them with their roles, in dumps, and in upgrades.

use std::time::Duration;

use anyhow::{Context, Result, ensure};
use queen_tests::cluster::Cluster;
use queen_tests::{Fails, Pop, Push, Session, TestDb, eventually, n};
use tokio_postgres::Error;

const SOON: Duration = Duration::from_secs(20);

const PUSH: &str = "SELECT queen_push('q', '1')";

/// A server of its own, since roles belong to all databases of a server.
struct Place {
    // Dropped before the database.
    admin: Session,
    db: TestDb,
    _cluster: Cluster,
}

impl Place {
    async fn with_roles(roles: &[&str]) -> Result<Self> {
        let cluster = Cluster::start_with("fsync = off")?;
        let db = TestDb::create(&cluster.config()).await?;
        let admin = db.session().await?;
        for role in roles {
            admin.run(&format!("CREATE ROLE {role} LOGIN")).await?;
        }
        Ok(Self { admin, db, _cluster: cluster })
    }

    async fn role(&self, name: &str) -> Result<Session> {
        let mut config = self.db.config().clone();
        config.user(name);
        Ok(Session::open(&config).await?)
    }
}

/// The message, DETAIL and HINT of a refusal.
async fn refusal(session: &Session, sql: &str) -> Result<[String; 3]> {
    let error = session.run(sql).await.fails_with("42501").context(sql.to_owned())?;
    let text = |part: Option<&str>| part.unwrap_or_default().to_owned();
    Ok([error.message().to_owned(), text(error.detail()), text(error.hint())])
}

/// The view queen_grants, as one text.
async fn grants(session: &Session) -> Result<String, Error> {
    let sql = "SELECT coalesce(string_agg(concat_ws(' ', role, privilege, 'q ' || queue,
                   'n ' || namespace), ', ' ORDER BY role, privilege, queue, namespace), '')
               FROM queen_grants";
    Ok(session.query_one(sql, &[]).await?.get(0))
}

#[tokio::test(flavor = "multi_thread")]
async fn other_sessions_notice_a_grant_and_a_revoke_at_once() -> Result<()> {
    let place = Place::with_roles(&["app"]).await?;
    let admin = &place.admin;
    admin.run("SELECT queen_grant('app', 'push', 'elsewhere'), queen_push('q', '1')").await?;
    let [app, open, repeatable] =
        [place.role("app").await?, place.role("app").await?, place.role("app").await?];
    open.run("BEGIN; SELECT 1").await?;
    repeatable.begin_snapshot().await?;
    for _ in 0..3 {
        for session in [&app, &open, &repeatable] {
            session.run("SAVEPOINT s").await.ok();
            session.run(PUSH).await.fails_with("42501")?;
            session.run("ROLLBACK TO s").await.ok();
        }
        admin.run("SELECT queen_grant('app', 'push', 'q')").await?;
        for session in [&app, &open, &repeatable] {
            session.run(PUSH).await?;
        }
        admin.run("SELECT queen_revoke('app', 'push', 'q')").await?;
    }
    // Not before it is committed; in the granting transaction itself at once; not after a rollback.
    admin.run("BEGIN; SELECT queen_grant('app', 'push', 'q'); SET ROLE app").await?;
    admin.run(PUSH).await?;
    app.run(PUSH).await.fails_with("42501")?;
    admin.run("ROLLBACK; SET ROLE app").await?;
    admin.run(PUSH).await.fails_with("42501")?;
    admin.run("RESET ROLE; BEGIN; SELECT queen_grant('app', 'push', 'q'); SAVEPOINT s").await?;
    admin.run("SELECT queen_revoke('app', 'push', 'q'); SET ROLE app").await?;
    admin.run(PUSH).await.fails_with("42501")?;
    admin.run("ROLLBACK TO s; SET ROLE app").await?;
    admin.run(PUSH).await?;
    admin.run("RESET ROLE; PREPARE TRANSACTION 'grant'").await?;
    app.run(PUSH).await.fails_with("42501")?;
    admin.run("COMMIT PREPARED 'grant'").await?;
    app.run(PUSH).await?;
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn a_waiting_pop_ends_when_its_right_is_revoked() -> Result<()> {
    let place = Place::with_roles(&["app"]).await?;
    let admin = &place.admin;
    admin.run("SELECT queen_grant('app', 'pop', 'q')").await?;
    let app = place.role("app").await?;
    let waits = "SELECT count(*) FROM pg_stat_activity
                 WHERE query LIKE '%queen_pop%' AND wait_event_type = 'Extension'
                   AND pid <> pg_backend_pid()";
    let popping = async {
        let done = app.run("SELECT queen_pop('q', wait => '50 s')").await;
        done.fails_with("42501").map(drop)
    };
    let revoking =
        async {
            eventually("waiting pop", SOON, async || {
                Ok((admin.count(waits).await? == 1).then_some(()))
            })
            .await?;
            admin.run("SELECT queen_revoke('app', 'pop', 'q')").await?;
            // A push wakes it; otherwise it looks after 5 s.
            Ok(Push::new("q", n(1)).run(admin).await.map(drop)?)
        };
    let (popped, revoked) = tokio::join!(popping, revoking);
    revoked.and(popped)?;
    // It has popped nothing.
    assert_eq!(Pop::new("q").run(admin).await?.len(), 1);
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn other_sessions_notice_changes_of_memberships_at_once() -> Result<()> {
    let place = Place::with_roles(&["app", "team", "owners"]).await?;
    let admin = &place.admin;
    admin.run("SELECT queen_grant('team', 'push')").await?;
    let app = place.role("app").await?;
    app.run(PUSH).await.fails_with("42501")?;
    for (grant, revoke) in [
        ("GRANT team TO app", "REVOKE team FROM app"),
        ("GRANT team TO owners; GRANT owners TO app", "REVOKE team FROM owners"),
        ("GRANT postgres TO app", "REVOKE postgres FROM app"),
        ("ALTER ROLE app SUPERUSER", "ALTER ROLE app NOSUPERUSER"),
    ] {
        admin.run(grant).await?;
        app.run(PUSH).await.context(grant)?;
        app.run("BEGIN").await?;
        app.run(PUSH).await?;
        admin.run(revoke).await?;
        app.run(PUSH).await.fails_with("42501").context(revoke)?;
        app.run("ROLLBACK").await?;
    }
    // A member of the role that owns the extension may do everything, also grant.
    admin.run("GRANT postgres TO app").await?;
    app.run("SELECT queen_grant('team', 'pop', 'x'); SELECT queen_sweep()").await?;
    ensure!(grants(&app).await?.contains("team pop q x"));
    Ok(())
}

/// The error is the same, but for the name, whether there is such a queue or not, and whatever the
/// role may do with others.
#[tokio::test(flavor = "multi_thread")]
async fn a_refusal_does_not_say_whether_the_queue_exists() -> Result<()> {
    let place = Place::with_roles(&["app"]).await?;
    let admin = &place.admin;
    admin
        .run(
            "SELECT queen_configure('here');
             SELECT queen_push('here', '1'); SELECT queen_subscribe('here', 'g', 'all');
             SELECT queen_schedule('here', 'k', '1', delay => '1 h');
             SELECT queen_bind('t', 'here');
             SELECT queen_kv_put('here', 'k', '1', forever => true);
             SELECT queen_grant('app', p, 'mine')
                 FROM unnest('{push,pop,manage,monitor}'::text[]) p;
             SELECT queen_grant_kv('app', p, 'mine') FROM unnest('{read,write}'::text[]) p",
        )
        .await?;
    let app = place.role("app").await?;
    for call in [
        "queen_push('{}', '1')",
        "queen_push('{}', '1', delay => '1 h')",
        "queen_push_batch('{}', '{1,2}')",
        "queen_push_items('[{\"queue\": \"mine\", \"payload\": 1}, {\"queue\": \"{}\", \
         \"payload\": 1}]')",
        "queen_schedule('{}', 'k', '1', delay => '1 h')",
        "queen_every('{}', 'k', '@daily', '1')",
        "queen_cancel('{}', 'k')",
        "queen_pop('{}', 'g')",
        "queen_pop('{}')",
        "queen_subscribe('{}', 'g')",
        "queen_unsubscribe('{}', 'g')",
        "queen_seek('{}', 'g', 'end')",
        "queen_configure('{}')",
        "queen_configure_group('{}', 'g')",
        "queen_purge('{}')",
        "queen_delete_queue('{}')",
        "queen_bind('t', '{}')",
        "queen_unbind('t', '{}')",
        "queen_dead_letter_purge('{}')",
        "queen_dead_letter_replay_all('{}')",
        "queen_kv_get('{}', 'k')",
        "queen_kv_list('{}')",
        "queen_kv_put('{}', 'k', '1', forever => true)",
        "queen_kv_check('{}', 'k', 0)",
        "queen_tx_commit('[{\"type\": \"push\", \"queue\": \"{}\", \"payload\": 1}]')",
        "queen_tx_commit(timers =>
            '[{\"op\": \"cancel\", \"queue\": \"{}\", \"timerKey\": \"k\"}]')",
        "queen_tx_commit(kv => '[{\"op\": \"get\", \"ns\": \"{}\", \"key\": \"k\"}]')",
    ] {
        for auto_create in ["on", "off"] {
            app.run(&format!("SET queen_mq.auto_create = {auto_create}")).await?;
            let there = refusal(&app, &format!("SELECT {}", call.replace("{}", "here"))).await?;
            let not = refusal(&app, &format!("SELECT {}", call.replace("{}", "gone"))).await?;
            let not = not.map(|text| text.replace("gone", "here"));
            assert_eq!(there, not, "{call}");
            ensure!(there[1].contains("\"here\"") && there[2].contains("'here'"), "{there:?}");
        }
    }
    for view in ["queen_queues", "queen_groups", "queen_messages", "queen_timers", "queen_bindings"]
    {
        assert_eq!(app.count(&format!("SELECT count(*) FROM {view}")).await?, 0, "{view}");
    }
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn a_refusal_names_the_role_the_privilege_and_what_would_grant_it() -> Result<()> {
    let place = Place::with_roles(&["app", "\"o'hara\""]).await?;
    let admin = &place.admin;
    admin.run("GRANT EXECUTE ON ALL FUNCTIONS IN SCHEMA public TO app, \"o'hara\"").await?;
    let app = place.role("app").await?;
    assert_eq!(
        refusal(&app, "SELECT queen_pop('orders')").await?,
        [
            "permission denied for queue \"orders\"",
            "Role \"app\" lacks the privilege \"pop\" on queue \"orders\".",
            "Let the owner of the extension run queen_grant('app', 'pop', 'orders').",
        ]
    );
    assert_eq!(
        refusal(&app, "SELECT queen_kv_get('billing', 'k')").await?,
        [
            "permission denied for namespace \"billing\"",
            "Role \"app\" lacks the privilege \"read\" on namespace \"billing\".",
            "Let the owner of the extension run queen_grant_kv('app', 'read', 'billing').",
        ]
    );
    assert_eq!(
        refusal(&app, "SELECT queen_metrics()").await?[1..],
        [
            "Role \"app\" lacks the privilege \"monitor\" on any queue.",
            "Let the owner of the extension run queen_grant('app', 'monitor').",
        ]
    );
    let [_, _, hint] = refusal(&place.role("o'hara").await?, "SELECT queen_purge('a''b')").await?;
    ensure!(hint.contains("queen_grant('o''hara', 'manage', 'a''b')"), "{hint}");
    // What the HINT says helps.
    admin.run("SELECT queen_grant('o''hara', 'manage', 'a''b')").await?;
    let purged = place.role("o'hara").await?.run("SELECT queen_purge('a''b')").await;
    purged.fails_with("42704")?;
    for call in ["queen_grant('app', 'push')", "queen_sweep()", "queen_revoke_kv('app', 'read')"] {
        let told = refusal(&app, &format!("SELECT {call}")).await?;
        ensure!(told[1].contains("neither the owner"), "{told:?}");
    }
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn a_lease_is_of_use_to_roles_that_may_pop_its_queue() -> Result<()> {
    let place = Place::with_roles(&["app", "thief"]).await?;
    let admin = &place.admin;
    admin
        .run("SELECT queen_grant('app', 'pop', 'q'), queen_grant('thief', 'pop', 'other')")
        .await?;
    let [app, thief] = [place.role("app").await?, place.role("thief").await?];
    for number in 1..=2 {
        Push::new("q", n(number)).partition(format!("p{number}")).run(admin).await?;
    }
    let pop = Pop::new("q").group("g").mode("all").batch(2).partitions(2);
    let held = pop.run(&app).await?;
    let lease = held[0].lease()?;
    for call in [
        format!("queen_ack('{lease}')"),
        format!("queen_extend('{lease}')"),
        format!("queen_settle('{lease}', '[{{\"messageId\": 1, \"status\": \"failed\"}}]')"),
        format!("queen_tx_commit('[{{\"type\": \"ack\", \"leaseId\": \"{lease}\"}}]')"),
    ] {
        let told = refusal(&thief, &format!("SELECT {call}")).await?;
        ensure!(told[1].contains("\"pop\" on queue \"q\""), "{told:?}");
    }
    // A lease that never was is unknown, also to a role without the right.
    let guess = "SELECT queen_ack(gen_random_uuid())";
    thief.run(guess).await.fails_with("QN003")?;
    app.run(&format!("SELECT queen_ack('{lease}')")).await?;
    // The lease has ended, and its receipt is there.
    thief.run(&format!("SELECT queen_ack('{lease}')")).await.fails_with("42501")?;
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn a_publish_needs_the_right_on_each_bound_queue() -> Result<()> {
    let place = Place::with_roles(&["app"]).await?;
    let admin = &place.admin;
    admin.run("SELECT queen_bind('t', 'a'), queen_bind('t', 'b')").await?;
    admin.run("SELECT queen_grant('app', 'push', 'a')").await?;
    let app = place.role("app").await?;
    let told = refusal(&app, "SELECT queen_publish('t', '1')").await?;
    ensure!(told[1].contains("queue \"b\""), "{told:?}");
    assert_eq!(admin.count("SELECT count(*) FROM queen_messages").await?, 0);
    admin.run("SELECT queen_grant('app', 'push', 'b')").await?;
    assert_eq!(app.count("SELECT count(*) FROM queen_publish('t', '1')").await?, 2);
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn views_and_metrics_show_what_their_reader_may_see() -> Result<()> {
    let place = Place::with_roles(&["app", "sneak"]).await?;
    let admin = &place.admin;
    for queue in ["seen", "hidden"] {
        admin
            .run(&format!(
                "SELECT queen_push('{queue}', '1'); SELECT queen_push('{queue}', '2');
                 SELECT queen_pop('{queue}', 'g', subscription_mode => 'all');
                 SELECT queen_bind('t', '{queue}');
                 SELECT queen_schedule('{queue}', 'k', '1', delay => '1 h');
                 SELECT queen_every('{queue}', 'l', '@daily', '1');
                 SELECT queen_push('{queue}', '3', 'dead');
                 SELECT queen_ack((SELECT lease_id FROM queen_pop('{queue}', 'h',
                     partition => 'dead', subscription_mode => 'all')), NULL, 'dead_letter')"
            ))
            .await?;
    }
    admin
        .run("SELECT queen_grant('app', p, 'seen') FROM unnest('{monitor,pop}'::text[]) p")
        .await?;
    // A condition that tells what it is shown, and that the planner takes for cheap.
    admin
        .run(
            "SELECT queen_grant('sneak', p, 'none') FROM unnest('{monitor,pop}'::text[]) p;
             GRANT CREATE ON SCHEMA public TO sneak; CREATE TABLE told (what text);
             GRANT INSERT ON told TO sneak; SET ROLE sneak;
             CREATE FUNCTION tell(what text) RETURNS boolean LANGUAGE plpgsql COST 0.0001
                 AS 'BEGIN INSERT INTO told VALUES (what); RETURN true; END'; RESET ROLE",
        )
        .await?;
    let [app, sneak] = [place.role("app").await?, place.role("sneak").await?];
    for view in [
        "queen_queues",
        "queen_groups",
        "queen_leases",
        "queen_bindings",
        "queen_messages",
        "queen_dead_letters",
        "queen_timers",
        "queen_schedules",
    ] {
        let queues = format!("SELECT string_agg(DISTINCT queue, ' ') FROM {view}");
        let seen: Option<String> = app.query_one(&queues, &[]).await?.get(0);
        assert_eq!(seen.as_deref(), Some("seen"), "{view}");
        let seen: Option<String> = admin.query_one(&queues, &[]).await?.get(0);
        assert_eq!(seen.as_deref(), Some("hidden seen"), "{view}");
        let sneaky = format!("SELECT count(*) FROM {view} AS v WHERE tell(v::text)");
        assert_eq!(sneak.count(&sneaky).await?, 0, "{view}");
        let sneaky = format!("SELECT count(*) FROM {view} WHERE tell(queue)");
        assert_eq!(sneak.count(&sneaky).await?, 0, "{view}");
    }
    assert_eq!(admin.count("SELECT count(*) FROM told").await?, 0);
    for (session, expected) in [(&app, "seen"), (admin, "hidden seen")] {
        let queues = "SELECT string_agg(DISTINCT labels ->> 'queue', ' ') FROM queen_metrics()";
        assert_eq!(session.query_one(queues, &[]).await?.get::<_, &str>(0), expected);
        let text: String = session.query_one("SELECT queen_prometheus()", &[]).await?.get(0);
        assert_eq!(text.contains("\"hidden\""), expected.contains("hidden"));
    }
    // The functions behind the views tell no more.
    for call in ["group_figures('hidden', 'g')", "queue_figures('hidden')"] {
        admin.run("GRANT USAGE ON SCHEMA queen_mq TO app").await?;
        assert_eq!(app.count(&format!("SELECT count(*) FROM queen_mq.{call}")).await?, 0);
    }
    Ok(())
}
