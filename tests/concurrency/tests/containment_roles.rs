//! Nothing in the extension runs with more rights than the role had that created it, and nothing
//! that the extension runs gives a right to any role.

use std::time::Duration;

use anyhow::{Context, Result};
use queen_tests::containment::town::Town;
use queen_tests::containment::{CALLS, Ready, plants, statement};
use queen_tests::{Session, eventually};

const SOON: Duration = Duration::from_secs(20);

/// How a call is made.
#[derive(Clone, Copy, Debug)]
enum Caller {
    /// In a session of this role.
    Role(&'static str),
    /// By a superuser, after SET ROLE to this role.
    SetRole(&'static str),
    SessionAuthorization(&'static str),
    /// By a role without rights, through a SECURITY DEFINER function of `app`.
    Definer,
}

/// Search paths that put planted objects after PostgreSQL's own, and before.
const PATHS: [&str; 2] = ["evil, public, pg_catalog", "public, pg_temp"];

impl Caller {
    async fn session(self, town: &Town) -> Result<Session> {
        let session = match self {
            Self::Role(role) => town.role(role).await?,
            Self::SetRole(_) | Self::SessionAuthorization(_) => town.role("postgres").await?,
            Self::Definer => town.role("stranger").await?,
        };
        session.run("SET statement_timeout = '20s'; SET search_path = pg_catalog").await?;
        match self {
            Self::SetRole(role) => session.run(&format!("SET ROLE {role}")).await?,
            Self::SessionAuthorization(role) => {
                session.run(&format!("SET SESSION AUTHORIZATION {role}")).await?;
            }
            Self::Role(_) | Self::Definer => {}
        }
        if let Self::Role(role) = self {
            plants::in_session(&session, role).await?;
        }
        Ok(session)
    }

    /// Which third of the calls this caller makes. None: all calls.
    fn share(self) -> Option<usize> {
        match self {
            Self::Role(_) => None,
            Self::SetRole(_) => Some(0),
            Self::SessionAuthorization(_) => Some(1),
            Self::Definer => Some(2),
        }
    }

    /// Make the calls, each on a queue of its own.
    async fn calls_everything(self, town: &Town, carol: &Session) -> Result<()> {
        let session = self.session(town).await?;
        let role: String = format!("{self:?}").chars().filter(|c| c.is_alphanumeric()).collect();
        for (number, call) in CALLS.iter().enumerate() {
            // The indirect callers share the calls.
            if self.share().is_some_and(|share| number % 3 != share) {
                continue;
            }
            let path = PATHS[number / 3 % PATHS.len()];
            let ready = Ready::prepare(carol, &format!("{role} {number}")).await?;
            let sql = ready.fill(call.sql).replace("20 s", "10 ms");
            let sql = match self {
                Self::Definer if call.sql.starts_with("CALL") => continue,
                Self::Definer => format!("SELECT app.wrapped($w${}$w$)", statement(&sql)),
                _ => statement(&sql),
            };
            session.run(&format!("SET search_path = {path}")).await?;
            let what = format!("{}, {self:?}, search_path {path}", call.name);
            session.run(&sql).await.context(what)?;
        }
        Ok(())
    }
}

const WRAPPED: &str = "CREATE SCHEMA app AUTHORIZATION app;
    CREATE FUNCTION app.wrapped(call text) RETURNS void LANGUAGE plpgsql SECURITY DEFINER
        AS 'BEGIN EXECUTE call; END';
    ALTER FUNCTION app.wrapped OWNER TO app; GRANT USAGE ON SCHEMA app TO stranger";

/// Give the worker every kind of work, and wait until it is done.
async fn worker_works(town: &Town, carol: &Session) -> Result<()> {
    carol
        .run(
            "SELECT queen_configure('w', retention => '300 ms', dedup_window => '200 ms',
                lease_time => '200 ms');
             SELECT queen_push_batch('w', '{1,2,3}', 'p', '{x,y,z}');
             SELECT queen_pop('w', 'g', batch => 2, subscription_mode => 'all');
             SELECT queen_push('kept', '1', 'p');
             SELECT queen_configure('kept', lease_time => '200 ms');
             SELECT queen_pop('kept', 'g', subscription_mode => 'all');
             SELECT queen_schedule('timed', 'k', '1', delay => '300 ms');
             SELECT queen_kv_put('w', k::text, '1', ttl => '100 ms')
                 FROM generate_series(1, 100) AS k;
             SELECT queen_worker_start()",
        )
        .await?;
    let left = "SELECT (SELECT count(*) FROM public.queen_messages WHERE queue = 'w')
        + (SELECT count(*) FROM queen_mq.marker WHERE ns = 'w')
        + (SELECT count(*) FROM queen_mq.admission
            JOIN queen_mq.queue q ON q.id = queue_id WHERE q.name = 'w')
        + (SELECT 1 - count(*) FROM public.queen_messages WHERE queue = 'timed')";
    eventually("end of the worker's work", SOON, async || {
        Ok((town.admin.count(left).await? == 0).then_some(()))
    })
    .await
}

const ALL_CALLERS: [Caller; 6] = [
    Caller::Role("app"),
    Caller::Role("carol"),
    Caller::Role("postgres"),
    Caller::SetRole("app"),
    Caller::SessionAuthorization("app"),
    Caller::Definer,
];

async fn plant(town: &Town) -> Result<()> {
    plants::before_all(&town.role("olga").await?, "olga", "evil").await.context("olga's")?;
    let mallory = town.role("mallory").await?;
    plants::among_others(&mallory, "mallory", "public").await.context("mallory's")?;
    let name = town.db.name();
    let path = format!("ALTER DATABASE {name} SET search_path = evil, public, pg_catalog");
    town.role("olga").await?.run(&path).await?;
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn what_was_planted_before_runs_with_its_planters_rights_at_most() -> Result<()> {
    let town = Town::found().await?;
    plant(&town).await?;
    let carol = town.extension().await?;
    town.admin.run(WRAPPED).await?;
    town.harvest_is_empty().context("CREATE EXTENSION")?;
    let rights = town.rights().await?;
    worker_works(&town, &carol).await?;
    town.harvest_is_empty().context("the worker")?;
    for caller in ALL_CALLERS {
        caller.calls_everything(&town, &carol).await?;
        town.harvest_is_empty().with_context(|| format!("{caller:?}"))?;
    }
    assert_eq!(town.rights().await?, rights);
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn what_was_planted_afterwards_runs_with_its_planters_rights_at_most() -> Result<()> {
    let town = Town::found().await?;
    let carol = town.extension().await?;
    // These sessions have plans from before the planting.
    let callers = [Caller::Role("app"), Caller::Role("postgres")];
    for (number, caller) in callers.iter().enumerate() {
        let ready = Ready::prepare(&carol, &format!("warm {number}")).await?;
        let session = caller.session(&town).await?;
        session.run("SET search_path = public").await?;
        for call in CALLS.iter().filter(|call| call.sql.starts_with("queen_k")) {
            session.run(&statement(&ready.fill(call.sql))).await.context(call.name)?;
        }
    }
    plant(&town).await?;
    let rights = town.rights().await?;
    // A new worker starts with the settings of the database.
    let ended = "SELECT count(pg_terminate_backend(pid)) FROM pg_stat_activity
                 WHERE backend_type = 'queen_mq worker'";
    town.admin.count(ended).await?;
    worker_works(&town, &carol).await?;
    town.harvest_is_empty().context("the worker")?;
    for caller in callers {
        caller.calls_everything(&town, &carol).await?;
        town.harvest_is_empty().with_context(|| format!("{caller:?}"))?;
    }
    assert_eq!(town.rights().await?, rights);
    Ok(())
}
