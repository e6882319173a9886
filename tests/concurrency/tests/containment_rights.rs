//! Rights: a role without a grant may do nothing, the owner of the extension may do everything, and
//! all objects belong to the owner. What other roles lock, guess or plant changes nothing.

use std::time::Duration;

use anyhow::{Context, Result, ensure};
use queen_tests::containment::town::{Town, as_role};
use queen_tests::containment::{CALLS, Ready, statement};
use queen_tests::{Fails, Pop, Session, eventually, n, numbers};
use tokio_postgres::Error;
use tokio_postgres::config::Config;

const SOON: Duration = Duration::from_secs(20);

/// Whether the call is one of those that the name stands for: of the function itself, or one of
/// its kinds.
fn is_called(call: &str, name: &str) -> bool {
    call.strip_prefix(name).is_some_and(|rest| rest.is_empty() || rest.starts_with([' ', ',']))
}

/// Check that the calls with these names succeed and all others are refused.
async fn may_only(town: &Town, carol: &Session, role: &str, names: &[&str]) -> Result<()> {
    let session = town.role(role).await?;
    session.run("SET search_path = public; SET statement_timeout = '10s'").await?;
    for (number, call) in CALLS.iter().enumerate() {
        let ready = Ready::prepare(carol, &format!("{role} {number}")).await?;
        let done = session.run(&statement(&ready.fill(call.sql).replace("20 s", "10 ms"))).await;
        let what = format!("{} by {role}", call.name);
        match names.iter().any(|name| is_called(call.name, name)) {
            true => done.context(what)?,
            false => drop(done.fails_with("42501").context(what)?),
        }
    }
    Ok(())
}

/// What a role may do that has the privilege to push, or to pop, on all queues.
const PRODUCER: &[&str] = &[
    "queen_push",
    "queen_push_batch",
    "queen_push_items",
    "queen_publish",
    "queen_schedule",
    "queen_every",
    "queen_cancel",
    "queen_tx_commit, push",
    "queen_tx_commit, schedule",
    "queen_tx_commit, cancel",
];
const CONSUMER: &[&str] = &[
    "queen_pop",
    "queen_pop_any",
    "queen_ack",
    "queen_settle",
    "queen_extend",
    "queen_subscribe",
    "queen_wait",
    "queen_message_status",
    "queen_tx_commit, ack",
    "queen_messages",
    "queen_dead_letters",
    "queen_timers",
    "queen_schedules",
];

#[tokio::test(flavor = "multi_thread")]
async fn a_role_can_do_what_was_granted_to_it_and_no_more() -> Result<()> {
    let town = Town::found().await?;
    let carol = town.extension().await?;
    carol.run("SELECT queen_grant('producer', 'push'), queen_grant('consumer', 'pop')").await?;
    let rights = town.rights().await?;
    may_only(&town, &carol, "producer", PRODUCER).await?;
    may_only(&town, &carol, "consumer", CONSUMER).await?;
    // The right to connect gives no other right, and owning the database gives none either.
    for role in ["stranger", "olga"] {
        may_only(&town, &carol, role, &[]).await?;
    }
    for role in ["stranger", "olga", "producer", "consumer", "app"] {
        let session = town.role(role).await?;
        for table in ["segment", "queue", "progress", "marker"] {
            for sql in ["DELETE FROM", "PERFORM FROM", "LOCK TABLE"] {
                let sql = format!("DO $$ BEGIN {sql} queen_mq.{table}; END $$");
                session
                    .run(&sql)
                    .await
                    .fails_with("42501")
                    .with_context(|| format!("{role}: {sql}"))?;
            }
        }
    }
    assert_eq!(town.rights().await?, rights);
    Ok(())
}

/// The objects of the extension that do not belong to `owner` as they should.
async fn misowned(admin: &Session, owner: &str) -> Result<Vec<String>> {
    let sql = "WITH member AS (
            SELECT classid, objid FROM pg_depend d JOIN pg_extension e ON e.oid = d.refobjid
            WHERE d.refclassid = 'pg_extension'::regclass AND e.extname = 'queen_mq'
                AND d.deptype = 'e')
        SELECT concat_ws(' ', oid::regclass, 'belongs to', relowner::regrole) FROM pg_class
            WHERE relowner <> $1::text::regrole AND (oid IN (SELECT objid FROM member)
                OR relnamespace = 'queen_mq'::regnamespace)
        UNION ALL SELECT concat_ws(' ', oid::regprocedure, 'belongs to', proowner::regrole)
            FROM pg_proc
            WHERE proowner <> $1::text::regrole AND oid IN (SELECT objid FROM member)
        UNION ALL SELECT concat_ws(' ', 'schema belongs to', nspowner::regrole) FROM pg_namespace
            WHERE nspname = 'queen_mq' AND nspowner <> $1::text::regrole
        UNION ALL SELECT concat_ws(' ', 'type', oid::regtype, 'belongs to', typowner::regrole)
            FROM pg_type
            WHERE typnamespace = 'queen_mq'::regnamespace AND typowner <> $1::text::regrole
        UNION ALL SELECT concat_ws(' ', 'extension belongs to', extowner::regrole) FROM pg_extension
            WHERE extname = 'queen_mq' AND extowner <> $1::text::regrole
        UNION ALL SELECT concat_ws(' ', oid::regprocedure, 'is SECURITY DEFINER, or has settings',
            proconfig) FROM pg_proc
            WHERE (prosecdef OR proconfig IS NOT NULL AND prorettype <> 'trigger'::regtype
                                AND proname NOT IN ('change_acl', 'take_from_former_owner'))
              AND oid IN (SELECT objid FROM member)
        UNION ALL SELECT concat_ws(' ', oid::regprocedure, 'is for PUBLIC') FROM pg_proc
            WHERE oid IN (SELECT objid FROM member) AND (proacl IS NULL
                OR EXISTS (SELECT FROM aclexplode(proacl) WHERE grantee = 0))
        UNION ALL SELECT concat_ws(' ', oid::regclass, 'is for PUBLIC') FROM pg_class
            WHERE oid IN (SELECT objid FROM member) AND EXISTS (SELECT FROM aclexplode(relacl)
                WHERE grantee = 0)
        ORDER BY 1";
    Ok(admin.query(sql, &[&owner]).await?.iter().map(|row| row.get(0)).collect())
}

/// Push, pop and ack by a role that has the rights.
async fn goes_around(session: &Session, queue: &str) -> Result<(), Error> {
    let sql = format!(
        "SELECT * FROM public.queen_push('{queue}', '1');
         DO $$ BEGIN
             PERFORM public.queen_ack((SELECT lease_id FROM public.queen_pop('{queue}', 'round',
                 subscription_mode => 'all')));
         END $$;
         SELECT * FROM public.queen_groups"
    );
    session.run(&sql).await
}

#[tokio::test(flavor = "multi_thread")]
async fn everything_belongs_to_the_role_that_created_it_or_was_given_it() -> Result<()> {
    let town = Town::found().await?;
    let carol = town.extension().await?;
    assert_eq!(misowned(&town.admin, "carol").await?, Vec::<String>::new());
    let [app, dave] = [town.role("app").await?, town.role("dave").await?];
    for (session, queue) in [(&carol, "carol"), (&app, "app")] {
        goes_around(session, queue).await.context(queue)?;
    }
    goes_around(&dave, "dave").await.fails_with("42501")?;

    town.admin.run("REASSIGN OWNED BY carol TO dave").await?;
    assert_eq!(misowned(&town.admin, "dave").await?, Vec::<String>::new());
    // In sessions from before the change, and in new ones.
    for (session, queue) in [(&dave, "dave"), (&app, "app"), (&town.role("app").await?, "app")] {
        goes_around(session, queue).await.context(queue)?;
    }
    goes_around(&carol, "carol").await.fails_with("42501")?;
    dave.run("SELECT public.queen_schedule('later', 'k', '1', delay => '100 ms')").await?;
    eventually("a timer, by the worker", SOON, async || {
        let sql = "SELECT count(*) FROM public.queen_messages WHERE queue = 'later'";
        Ok((dave.count(sql).await? == 1).then_some(()))
    })
    .await?;

    // Dropping a role drops the rights it was granted.
    drop(app);
    town.admin.run("DROP OWNED BY app; DROP OWNED BY carol CASCADE").await?;
    town.admin.run("DROP ROLE app; DROP ROLE carol").await?;
    goes_around(&dave, "dave").await?;
    dave.run("DROP EXTENSION queen_mq").await?;
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn a_restored_database_works_for_its_owner_and_those_it_gave_rights_to() -> Result<()> {
    let town = Town::found().await?;
    let name = town.db.name();
    // The database is carol's, and `app` has one privilege only.
    town.admin.run(&format!("ALTER DATABASE {name} OWNER TO carol")).await?;
    let carol = town.role("carol").await?;
    carol.run("SET search_path = public; CREATE EXTENSION queen_mq SCHEMA public").await?;
    carol.run("SELECT queen_grant('app', 'push')").await?;
    for payload in 1..=2 {
        carol.run(&format!("SELECT queen_push('kept', '{{\"n\": {payload}}}')")).await?;
    }
    carol.run("SELECT queen_kv_put('n', 'k', '1', forever => true)").await?;
    let file = town.cluster.file("carol.dump");
    town.cluster.dump_as("carol", name, &file).context("dump by carol")?;
    town.admin.run("ALTER ROLE carol CREATEDB").await?;
    let mut wrong = Vec::new();
    for restorer in ["carol", "postgres"] {
        let copy = format!("copy_by_{restorer}");
        town.admin.run(&format!("CREATE DATABASE {copy} OWNER carol TEMPLATE template0")).await?;
        let restored = town.cluster.restore_as(restorer, &copy, &file);
        let mut config = town.db.config().clone();
        config.dbname(&copy);
        let works = match restored {
            Ok(()) => works_as_before(&config).await,
            failed => failed,
        };
        if let Err(error) = works {
            wrong.push(format!("restored by {restorer}: {error:#}"));
        }
    }
    ensure!(wrong.is_empty(), "{}", wrong.join("\n"));
    Ok(())
}

async fn works_as_before(config: &Config) -> Result<()> {
    let carol = Session::open(&as_role(config, "carol")).await?;
    carol.run("SET search_path = public").await?;
    let pop = Pop::new("kept").group("g").mode("all").batch(10);
    assert_eq!(numbers(&pop.run(&carol).await?), [1, 2]);
    assert_eq!(carol.count("SELECT count(*) FROM queen_messages").await?, 2);
    let marker = "SELECT count(*) FROM queen_kv_get('n', 'k') WHERE found";
    assert_eq!(carol.count(marker).await?, 1);
    for role in ["app", "carol"] {
        let session = Session::open(&as_role(config, role)).await?;
        let push = format!("SELECT public.queen_push('kept', '{}')", n(3));
        session.run(&push).await.with_context(|| format!("push by {role}"))?;
    }
    let app = Session::open(&as_role(config, "app")).await?;
    app.run("SELECT public.queen_pop('kept')").await.fails_with("42501")?;
    carol.run("SELECT queen_grant('app', 'pop')").await?;
    app.run("SELECT public.queen_pop('kept')").await?;
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn no_lock_that_a_stranger_can_take_holds_a_call_up() -> Result<()> {
    let town = Town::found().await?;
    let carol = town.extension().await?;
    let app = town.role("app").await?;
    app.run("SET search_path = public; SET statement_timeout = '5s'").await?;
    for (number, call) in CALLS.iter().enumerate() {
        if call.sql.starts_with("CALL") {
            continue;
        }
        let ready = Ready::prepare(&carol, &format!("lock {number}")).await?;
        app.run("BEGIN").await?;
        app.run(&statement(&ready.fill(call.sql))).await.context(call.name)?;
        let locks = "SELECT coalesce(string_agg(concat_ws(' ', datname, classid, objid, objsubid),
                 ', '), '') FROM pg_locks
             LEFT JOIN pg_stat_activity USING (pid) WHERE locktype = 'advisory'
                 AND datname = current_database()";
        let held: String = town.admin.row(locks, &[]).await?.get(0);
        ensure!(held.is_empty(), "{} holds advisory locks: {held}", call.name);
        app.run("ROLLBACK").await?;
    }
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn a_guessed_lease_settles_nothing() -> Result<()> {
    let town = Town::found().await?;
    let carol = town.extension().await?;
    let ready = Ready::prepare(&carol, "guess").await?;
    let lease = ready.fill("{lease}");
    let bits: Vec<u32> = (0..128).collect();
    let app = town.role("app").await?;
    app.run("SET search_path = public").await?;
    let known = lease.parse::<uuid::Uuid>()?.as_u128();
    for bit in bits {
        let guess = uuid::Uuid::from_u128(known ^ (1 << bit));
        for sql in
            [format!("SELECT queen_ack('{guess}')"), format!("SELECT queen_extend('{guess}')")]
        {
            let Err(error) = app.run(&sql).await else {
                anyhow::bail!("bit {bit} is nothing: {sql}")
            };
            let state = error.code().map(|state| state.code().to_owned()).unwrap_or_default();
            ensure!(["QN001", "QN002", "QN003", "QN004"].contains(&&*state), "{sql}: {error:?}");
        }
    }
    let settled = format!("SELECT settled::bigint FROM queen_ack('{lease}')");
    assert_eq!(app.count(&settled).await?, 2);
    Ok(())
}

/// A trigger for each kind of write to each table. It reports as which role it runs.
const TRIGGERS: &str = "
CREATE SCHEMA traps; GRANT USAGE ON SCHEMA traps TO PUBLIC;
CREATE FUNCTION traps.tell() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    RAISE LOG 'planted by carol: ran as % : trigger on %', current_user, TG_RELID::regclass;
    RETURN coalesce(NEW, OLD);
END $$;
DO $$
DECLARE t regclass;
BEGIN
    FOR t IN SELECT oid FROM pg_class WHERE relnamespace = 'queen_mq'::regnamespace
        AND relkind = 'r' LOOP
        EXECUTE format('CREATE TRIGGER before BEFORE INSERT OR UPDATE OR DELETE ON %s FOR EACH ROW
            EXECUTE FUNCTION traps.tell()', t);
        EXECUTE format('CREATE TRIGGER after AFTER INSERT OR UPDATE OR DELETE ON %s FOR EACH ROW
            EXECUTE FUNCTION traps.tell()', t);
        EXECUTE format('CREATE TRIGGER statement AFTER INSERT OR UPDATE OR DELETE ON %s
            FOR EACH STATEMENT
            EXECUTE FUNCTION traps.tell()', t);
    END LOOP;
END $$";

#[tokio::test(flavor = "multi_thread")]
async fn triggers_of_the_owner_run_as_the_owner() -> Result<()> {
    let town = Town::found().await?;
    let carol = town.extension().await?;
    let ready: Vec<Ready> = {
        let mut ready = Vec::new();
        for number in 0..CALLS.len() {
            ready.push(Ready::prepare(&carol, &format!("trap {number}")).await?);
        }
        ready
    };
    carol.run(TRIGGERS).await.context("triggers on tables of one's own")?;
    for role in ["postgres", "app"] {
        let session = town.role(role).await?;
        session.run("SET search_path = public; SET statement_timeout = '10s'").await?;
        for (call, ready) in CALLS.iter().zip(&ready) {
            let sql = statement(&ready.fill(call.sql).replace("20 s", "10 ms"));
            // A call on such a table may also be refused, with a plain error.
            if let Err(error) = session.run(&sql).await {
                let state = error.code().map(|state| state.code().to_owned());
                let plain = state.filter(|state| {
                    !["XX", "57", "58"].iter().any(|class| state.starts_with(class))
                });
                ensure!(plain.is_some(), "{} by {role}: {error:?}", call.name);
            }
        }
    }
    town.harvest_is_empty()?;
    ensure!(!town.cluster.logged()?.contains("terminated by signal"), "the server crashed");
    Ok(())
}
