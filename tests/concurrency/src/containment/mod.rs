//! What the containment tests share. A stage makes a call of an ordinary role fail, and checks that
//! everything else is as it was.

mod attempt;
mod calls;
pub mod plants;
pub mod town;

use std::cell::Cell;
use std::time::Duration;

use anyhow::{Result, ensure};
use tokio_postgres::config::Config;

use attempt::{Attempt, calm, judge, refused};
pub use attempt::{is_plain, statement};
pub use calls::{CALLS, Call, Rival};

use crate::cluster::Cluster;
use crate::{Session, TestDb, eventually};

const SOON: Duration = Duration::from_secs(10);

/// Settings of the clusters of these tests, which do not test durability.
pub const SETTINGS: &str = "fsync = off\nlog_line_prefix = '%m [%p] '";

/// Functions with which a session shows its roles and every setting.
const SCAFFOLD: &str = r"
CREATE TABLE public.effects (what text);
CREATE TABLE public.caught (state text, detail text, facts text[]);
GRANT ALL ON public.effects, public.caught TO app;
CREATE FUNCTION public.facts() RETURNS text[] LANGUAGE sql VOLATILE AS $$
    SELECT pg_catalog.array_agg(fact ORDER BY fact)
    FROM (SELECT name || ' = ' || coalesce(setting, 'NULL') AS fact FROM pg_catalog.pg_settings
          UNION ALL SELECT 'current_user = ' || current_user
          UNION ALL SELECT 'session_user = ' || session_user
          UNION ALL SELECT 'role = ' || pg_catalog.current_setting('role')
          UNION ALL SELECT 'schemas = ' || pg_catalog.current_schemas(true)::text) AS facts
$$;";

/// Statements that make a queue ready for a call.
pub const PREPARE: &str = r"
CREATE FUNCTION public.prepare(q text, OUT lease uuid, OUT message bigint, OUT dead bigint,
    OUT version bigint)
LANGUAGE plpgsql SET search_path = pg_catalog, public AS $$
BEGIN
    PERFORM queen_configure(q, retry_limit => 0);
    PERFORM queen_push(q, '0', 'graveyard');
    SELECT p.lease_id INTO lease FROM queen_pop(q, 'holder', subscription_mode => 'all') p;
    PERFORM queen_ack(lease, status => 'dead_letter', error => 'dead');
    SELECT d.dead_letter_id INTO dead FROM queen_dead_letters d WHERE d.queue = q;
    PERFORM queen_push_batch(q, ARRAY['1', '2', '3']::jsonb[], 'p', ARRAY['a', 'b', 'c']);
    PERFORM queen_subscribe(q, 'g', 'all');
    SELECT p.lease_id, p.message_id INTO lease, message FROM queen_pop(q, 'holder', batch => 2) p
        ORDER BY p.message_id LIMIT 1;
    PERFORM queen_schedule(q, 'timer', '1', delay => '3 hours');
    PERFORM queen_bind(q || '.#', q);
    SELECT k.version INTO version FROM queen_kv_put('n', q, '1', forever => true) k;
END
$$;";

/// All rights that the extension can give to a role: those of PostgreSQL on its functions and
/// views, each privilege, and, as a restored dump gives it to the former owner, that of its owner.
pub const GRANTS: &str = r"
DO $$
DECLARE o record;
BEGIN
    FOR o IN SELECT classid, objid FROM pg_depend WHERE refclassid = 'pg_extension'::regclass
        AND refobjid = (SELECT oid FROM pg_extension WHERE extname = 'queen_mq') AND deptype = 'e'
    LOOP
        IF o.classid = 'pg_proc'::regclass THEN
            EXECUTE format('GRANT EXECUTE ON ROUTINE %s TO app', o.objid::regprocedure);
        ELSIF EXISTS (SELECT FROM pg_class WHERE oid = o.objid AND relkind = 'v') THEN
            EXECUTE format('GRANT SELECT ON %s TO app', o.objid::regclass);
        END IF;
    END LOOP;
END $$;
SELECT queen_grant('app', privilege) FROM unnest('{push, pop, manage, monitor}'::text[]) privilege;
SELECT queen_grant_kv('app', privilege) FROM unnest('{read, write}'::text[]) privilege;
INSERT INTO queen_mq.grants (role_name, privilege) VALUES ('app', 'owner');";

/// How the application makes the call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mode {
    /// A statement outside of a transaction block.
    Autocommit,
    /// In a PL/pgSQL block that handles the error.
    Handler,
    /// After a savepoint, to which the application rolls back.
    Savepoint,
}

pub const MODES: [Mode; 3] = [Mode::Autocommit, Mode::Handler, Mode::Savepoint];

impl Call {
    /// `queen_wait` ends transactions, so it works only outside of a transaction block.
    pub fn works_in(&self, mode: Mode) -> bool {
        mode == Mode::Autocommit || !self.sql.starts_with("CALL")
    }
}

/// How a call is made to fail.
#[derive(Clone, Default)]
pub struct Failure {
    /// The expected SQLSTATE.
    pub state: &'static str,
    /// Settings of the transaction or, in autocommit, of the session.
    pub settings: &'static [(&'static str, &'static str)],
    /// Statements in the block or after the savepoint, before the call. In autocommit the settings
    /// replace them.
    pub in_block: &'static str,
    /// What the holder does before the call.
    pub obstacle: String,
    pub interrupt: Interrupt,
    /// In a handler the obstacle may not concern the call, which then succeeds.
    pub may_succeed: bool,
}

#[derive(Clone, Copy, Default, PartialEq, Eq)]
pub enum Interrupt {
    /// The call fails by itself.
    #[default]
    None,
    /// The holder commits before the call.
    Before,
    /// The holder commits while the call waits for it.
    Commit,
    /// An administrator calls this function with the process id of the backend.
    Call(&'static str),
}

/// A queue on which everything is ready for a call.
pub struct Ready {
    queue: String,
    lease: String,
    message: String,
    dead: String,
    version: String,
}

impl Ready {
    /// Make a queue of this name, with everything in [`PREPARE`].
    pub async fn prepare(session: &Session, queue: &str) -> Result<Self> {
        let sql = "SELECT lease::text, message::text, dead::text, version::text \
                   FROM public.prepare($1)";
        let row = session.row(sql, &[&queue]).await?;
        Ok(Self {
            queue: queue.to_owned(),
            lease: row.get(0),
            message: row.get(1),
            dead: row.get(2),
            version: row.get(3),
        })
    }

    /// Replace the placeholders by what this queue has.
    pub fn fill(&self, sql: &str) -> String {
        sql.replace("{q}", &self.queue)
            .replace("{lease}", &self.lease)
            .replace("{message}", &self.message)
            .replace("{dead}", &self.dead)
            .replace("{version}", &self.version)
    }
}

/// A database with the extension, an administrator's session, a session (the holder) for which
/// other sessions wait, and an ordinary role `app` that has every right the extension's owner can
/// give.
pub struct Stage {
    // Dropped before the database.
    pub admin: Session,
    pub holder: Session,
    pub db: TestDb,
    pub cluster: Cluster,
    number: Cell<u32>,
}

impl Stage {
    pub async fn set_up(cluster: Cluster) -> Result<Self> {
        let db = TestDb::create(&cluster.config()).await?;
        let [admin, holder] = db.sessions().await?;
        // ROLLBACK outside of a transaction logs a warning, which would be noise.
        holder.run("SET log_min_messages = error").await?;
        admin.run("CREATE ROLE app LOGIN").await?;
        admin.run(SCAFFOLD).await?;
        admin.run(PREPARE).await?;
        admin.run(GRANTS).await?;
        Ok(Self { admin, holder, db, cluster, number: Cell::new(0) })
    }

    pub fn as_role(&self, role: &str) -> Config {
        let mut config = self.db.config().clone();
        config.user(role);
        config
    }

    /// Open a session of the ordinary role, with settings of its own that every error has to leave
    /// alone.
    pub async fn app(&self) -> Result<Session> {
        let app = Session::open(&self.as_role("app")).await?;
        // The first use of PL/pgSQL and of the library defines settings. Do it before the
        // comparison.
        app.run("DO $$ BEGIN END $$; SELECT * FROM queen_kv_get('n', 'k')").await?;
        calm(&app).await?;
        Ok(app)
    }

    /// Make a queue on which everything is ready for a call.
    pub async fn prepare(&self) -> Result<Ready> {
        self.number.set(self.number.get() + 1);
        Ready::prepare(&self.admin, &format!("q{}", self.number.get())).await
    }

    /// Wait until a backend waits for a lock or for a message.
    pub async fn waits(&self, pid: i32) -> Result<()> {
        let sql = "SELECT EXISTS (SELECT FROM pg_stat_activity WHERE pid = $1 AND state = 'active'
                   AND wait_event_type IN ('Lock', 'Extension', 'IPC', 'Timeout'))";
        eventually("wait of the call", SOON, async || {
            Ok(self.admin.row(sql, &[&pid]).await?.get::<_, bool>(0).then_some(()))
        })
        .await
    }

    /// Check that a backend outside of a transaction holds no lock and no snapshot.
    pub async fn holds_nothing(&self, pid: i32) -> Result<()> {
        let sql = "SELECT coalesce(string_agg(concat_ws(' ', locktype, relation::regclass, mode),
            ', '), '')
                   FROM pg_locks WHERE pid = $1";
        let held: String = self.admin.row(sql, &[&pid]).await?.get(0);
        ensure!(held.is_empty(), "locks are left: {held}");
        let sql = "SELECT EXISTS (SELECT FROM pg_stat_activity WHERE pid = $1 AND
                   (backend_xmin IS NOT NULL OR backend_xid IS NOT NULL))";
        ensure!(!self.admin.row(sql, &[&pid]).await?.get::<_, bool>(0), "a snapshot is left");
        Ok(())
    }

    /// Make a call fail, and check that it has the effects of a failed statement of PostgreSQL
    /// itself.
    pub async fn fails(
        &self,
        app: &Session,
        call: &Call,
        ready: &Ready,
        mode: Mode,
        failure: &Failure,
    ) -> Result<()> {
        self.admin.run("TRUNCATE public.effects, public.caught").await?;
        let attempt = Attempt { stage: self, app, sql: ready.fill(call.sql), failure };
        let done = match mode {
            Mode::Autocommit => attempt.autocommit().await.map(|()| true),
            Mode::Handler => attempt.handler().await,
            Mode::Savepoint => attempt.savepoint().await.map(|()| true),
        };
        // The step that failed may have left the holder in a transaction.
        self.holder.run("ROLLBACK").await?;
        let has_failed = done?;
        self.holds_nothing(app.pid()).await?;
        if mode != Mode::Autocommit && has_failed {
            let effects = self.effects().await?;
            ensure!(effects == "after, before", "what is stored: {effects}");
        }
        Ok(())
    }

    async fn effects(&self) -> Result<String> {
        let sql = "SELECT coalesce(string_agg(what, ', ' ORDER BY what), '') FROM public.effects";
        Ok(self.admin.row(sql, &[]).await?.get(0))
    }

    /// Terminate a backend during a call, and check that nothing is left of the call.
    pub async fn dies(
        &self,
        call: &Call,
        ready: &Ready,
        mode: Mode,
        failure: &Failure,
    ) -> Result<()> {
        self.admin.run("TRUNCATE public.effects, public.caught").await?;
        let app = &self.app().await?;
        let attempt = Attempt { stage: self, app, sql: ready.fill(call.sql), failure };
        if mode != Mode::Autocommit {
            attempt.begin().await?;
        }
        let sql = match mode {
            Mode::Handler => attempt.block(),
            Mode::Autocommit | Mode::Savepoint => statement(&attempt.sql),
        };
        if mode == Mode::Savepoint {
            app.run("SAVEPOINT s; INSERT INTO public.effects VALUES ('in the block')").await?;
        }
        let raised = refused(attempt.run(&sql).await?)?;
        judge(&raised, failure)?;
        let gone = "SELECT count(*) = 0 FROM pg_stat_activity WHERE pid = $1";
        eventually("end of the backend", SOON, async || {
            Ok(self.admin.row(gone, &[&app.pid()]).await?.get::<_, bool>(0).then_some(()))
        })
        .await?;
        self.holds_nothing(app.pid()).await?;
        let effects = self.effects().await?;
        ensure!(effects.is_empty(), "what is stored: {effects}");
        Ok(())
    }

    /// Check that the server's log has no line that is a bug.
    pub fn logs_nothing_bad(&self) -> Result<()> {
        let logged = self.cluster.logged()?;
        let bad: Vec<&str> =
            logged.lines().filter(|line| BAD.iter().any(|word| line.contains(word))).collect();
        ensure!(bad.is_empty(), "{} bad lines: {:#?}", bad.len(), &bad[..bad.len().min(10)]);
        Ok(())
    }
}

const BAD: [&str; 6] = ["WARNING:", "PANIC:", "terminated by signal", "backtrace", "TRAP:", "pgrx"];
