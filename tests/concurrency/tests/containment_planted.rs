//! Whatever was attached to the tables runs with the rights of the role that attached it. The
//! settings it changes are put back with the rest.

use std::time::Duration;

use anyhow::{Context, Result, ensure};
use queen_tests::containment::town::{Town, as_role};
use queen_tests::expect::sqlstate;
use queen_tests::{Fails, Session};

const PUSH: &str = "SELECT public.queen_push('q', '1')";

/// Check that the role has not become a superuser.
async fn is_no_superuser(town: &Town, role: &str) -> Result<()> {
    let sql = format!("SELECT count(*) FROM pg_roles WHERE rolname = '{role}' AND rolsuper");
    ensure!(town.admin.count(&sql).await? == 0, "{role} has become a superuser");
    Ok(())
}

/// The extension belongs to a superuser other than the one that made the cluster.
async fn boss(town: &Town) -> Result<Session> {
    town.admin.run("CREATE ROLE boss LOGIN SUPERUSER").await?;
    let boss = town.role("boss").await?;
    boss.run("CREATE EXTENSION queen_mq SCHEMA public").await?;
    boss.run(
        "SELECT public.queen_grant(role, privilege)
         FROM unnest('{app, mallory}'::text[]) AS role,
             unnest('{push, pop, manage, monitor}'::text[]) AS privilege;
         SELECT public.queen_grant_kv('app', 'write')",
    )
    .await?;
    boss.run(PUSH).await?;
    Ok(boss)
}

/// A trigger that makes its planter a superuser when a superuser runs it.
async fn plant_trigger(planter: &Session, role: &str, table: &str) -> Result<()> {
    let sql = format!(
        "CREATE FUNCTION public.seize() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN
             EXECUTE 'ALTER ROLE {role} SUPERUSER'; RETURN NEW;
         EXCEPTION WHEN insufficient_privilege THEN RETURN NEW; END $$;
         CREATE TRIGGER seize AFTER INSERT ON queen_mq.{table}
             FOR EACH ROW EXECUTE FUNCTION public.seize()"
    );
    Ok(planter.run(&sql).await?)
}

#[tokio::test(flavor = "multi_thread")]
async fn the_predicate_of_an_index_is_evaluated_with_a_pinned_search_path() -> Result<()> {
    let town = Town::found().await?;
    let boss = boss(&town).await?;
    boss.run(
        "CREATE FUNCTION public.is_hot(text) RETURNS bool IMMUTABLE LANGUAGE plpgsql
             AS $$ BEGIN RETURN lower($1) = 'hot'; END $$;
         CREATE INDEX hot ON queen_mq.segment (id) WHERE public.is_hot(partition);
         CREATE SCHEMA evil AUTHORIZATION mallory",
    )
    .await?;
    let mallory = town.role("mallory").await?;
    mallory
        .run(
            "CREATE FUNCTION evil.lower(text) RETURNS text LANGUAGE plpgsql AS $$ BEGIN
                 EXECUTE 'ALTER ROLE mallory SUPERUSER'; RETURN $1; END $$;
             SET search_path = evil, pg_catalog",
        )
        .await?;
    for _ in 0..3 {
        mallory.run(PUSH).await?;
    }
    is_no_superuser(&town, "mallory").await
}

#[tokio::test(flavor = "multi_thread")]
async fn a_transaction_that_is_open_hears_of_a_new_owner_before_it_acts_as_one() -> Result<()> {
    let town = Town::found().await?;
    let _boss = boss(&town).await?;
    let app = Session::open(&as_role(town.db.config(), "app")).await?;
    app.run(PUSH).await?;
    app.run("BEGIN; SELECT 1").await?;
    town.admin.run("REASSIGN OWNED BY boss TO mallory").await?;
    plant_trigger(&town.role("mallory").await?, "mallory", "segment").await?;
    app.run(PUSH).await.context("a push after the change")?;
    app.run("COMMIT").await?;
    is_no_superuser(&town, "mallory").await
}

#[tokio::test(flavor = "multi_thread")]
async fn a_table_of_another_owner_than_the_rest_is_refused() -> Result<()> {
    for (table, call) in [
        ("segment", PUSH),
        ("marker", "SELECT public.queen_kv_put('n', 'k', '1', forever => true)"),
    ] {
        let town = Town::found().await?;
        let boss = boss(&town).await?;
        boss.run(&format!("ALTER TABLE queen_mq.{table} OWNER TO mallory")).await?;
        boss.run("GRANT USAGE ON SCHEMA queen_mq TO mallory").await?;
        plant_trigger(&town.role("mallory").await?, "mallory", table).await?;
        let done = town.role("app").await?.run(call).await;
        is_no_superuser(&town, "mallory").await.context(table)?;
        done.fails_with("55000").context(table)?;
        boss.run(&format!("ALTER TABLE queen_mq.{table} OWNER TO boss")).await?;
        boss.run(&format!("DROP TRIGGER seize ON queen_mq.{table}")).await?;
        town.role("app").await?.run(call).await.context("put right")?;
    }
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn what_a_trigger_sets_for_itself_is_put_back() -> Result<()> {
    let town = Town::found().await?;
    let boss = boss(&town).await?;
    boss.run(
        "CREATE FUNCTION public.sets() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN
             SET LOCAL enable_seqscan = on; SET LOCAL plan_cache_mode = auto;
             SET enable_hashjoin = on;
             SET LOCAL lock_timeout = '7s'; RETURN coalesce(NEW, OLD); END $$;
         SELECT public.queen_subscribe('q', 'g');
         SELECT * FROM public.queen_pop('q', 'g', subscription_mode => 'all')",
    )
    .await?;
    let tables = "SELECT string_agg(format('CREATE TRIGGER sets BEFORE INSERT OR UPDATE OR DELETE
            ON %s FOR EACH ROW EXECUTE FUNCTION public.sets()', oid::regclass), ';')
        FROM pg_class WHERE relnamespace = 'queen_mq'::regnamespace AND relkind = 'r'";
    let triggers: String = boss.query_one(tables, &[]).await?.get(0);
    boss.run(&triggers).await?;
    let app = town.role("app").await?;
    let settings =
        "SELECT string_agg(name || ' = ' || setting, ', ' ORDER BY name) FROM pg_settings
        WHERE name ~ ('^enable_|^jit$|^plan_cache|^lock_timeout|^max_parallel_workers_per'
            || '|^search_path')";
    let before: String = app.query_one(settings, &[]).await?.get(0);
    for call in [
        PUSH,
        "SELECT public.queen_kv_put('n', 'k', '1', forever => true)",
        "SELECT public.queen_tx_commit('[{\"type\": \"push\", \"queue\": \"q\", \"payload\": 1}]')",
        "SELECT public.queen_seek('q', 'g', 'end')",
        "SELECT public.queen_purge('q')",
        "SELECT public.queen_delete_queue('q')",
    ] {
        app.run(call).await.context(call)?;
        let after: String = app.query_one(settings, &[]).await?.get(0);
        assert_eq!(after, before, "{call}");
    }
    Ok(())
}

const RAISES: &str = "CREATE FUNCTION public.raises() RETURNS trigger LANGUAGE plpgsql
    AS $$ BEGIN RAISE 'no' USING ERRCODE = 'P9X99'; END $$";

#[tokio::test(flavor = "multi_thread")]
async fn messages_on_the_way_of_an_error_do_not_take_its_sqlstate() -> Result<()> {
    let town = Town::found().await?;
    let boss = boss(&town).await?;
    boss.run(RAISES).await?;
    boss.run(
        "CREATE TRIGGER raises BEFORE INSERT ON queen_mq.segment FOR EACH ROW
         EXECUTE FUNCTION public.raises()",
    )
    .await?;
    let app = town.role("app").await?;
    let bundle =
        "SELECT public.queen_tx_commit('[{\"type\": \"push\", \"queue\": \"q\", \"payload\": 1}]')";
    for level in ["notice", "debug5"] {
        app.run(&format!("SET client_min_messages = {level}")).await?;
        for call in [PUSH, bundle] {
            app.run(call).await.fails_with("P9X99").with_context(|| format!("{level}: {call}"))?;
        }
    }
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn an_error_at_a_commit_of_a_wait_keeps_its_sqlstate() -> Result<()> {
    let town = Town::found().await?;
    let boss = boss(&town).await?;
    boss.run(RAISES).await?;
    boss.run(
        "CREATE TABLE public.judged (a int);
         CREATE CONSTRAINT TRIGGER raises AFTER INSERT ON public.judged
             DEFERRABLE INITIALLY DEFERRED
             FOR EACH ROW EXECUTE FUNCTION public.raises();
         CREATE PROCEDURE public.waits() LANGUAGE plpgsql AS $$ DECLARE r bool; BEGIN
             INSERT INTO public.judged VALUES (1);
             CALL public.queen_wait('q', 'g', '10 ms', r); END $$",
    )
    .await?;
    let failed = boss.run("CALL public.waits()").await;
    assert_eq!(failed.as_ref().err().and_then(sqlstate), Some("P9X99"));
    tokio::time::timeout(
        Duration::from_secs(10),
        boss.run("CALL public.queen_wait('q', NULL, '0')"),
    )
    .await??;
    Ok(())
}
