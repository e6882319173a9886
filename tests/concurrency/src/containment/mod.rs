//! What the containment tests share: a stage on which a call of an ordinary role is made to fail,
//! and what has to be as it was afterwards.

mod calls;

use std::cell::Cell;
use std::pin::pin;
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use tokio_postgres::Error;
use tokio_postgres::config::Config;
use tokio_postgres::error::DbError;

pub use calls::{CALLS, Call, Rival};

use crate::cluster::Cluster;
use crate::{Session, TestDb, eventually};

const SOON: Duration = Duration::from_secs(10);

/// Settings of the clusters of these tests: nothing here is about durability.
pub const SETTINGS: &str = "fsync = off\nlog_line_prefix = '%m [%p] '";

/// What a session sees of itself: its roles and every setting. And what makes a call ready.
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
$$;
CREATE FUNCTION public.prepare(q text, OUT lease uuid, OUT message bigint, OUT dead bigint)
LANGUAGE plpgsql AS $$
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
    PERFORM queen_kv_put('n', q, '1', forever => true);
END
$$;";

/// Everything that the extension offers, for a role.
const GRANTS: &str = r"
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
END $$;";

/// How an application calls.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mode {
    /// A statement by itself.
    Autocommit,
    /// In a block of PL/pgSQL that handles the error.
    Handler,
    /// Behind a savepoint, which is rolled back to.
    Savepoint,
}

pub const MODES: [Mode; 3] = [Mode::Autocommit, Mode::Handler, Mode::Savepoint];

impl Call {
    /// `queen_wait` ends transactions, and so works outside of them alone.
    pub fn works_in(&self, mode: Mode) -> bool {
        mode == Mode::Autocommit || !self.sql.starts_with("CALL")
    }
}

/// How a call is made to fail.
#[derive(Clone, Default)]
pub struct Failure {
    /// The SQLSTATE to come.
    pub state: &'static str,
    /// Settings of the transaction or, in autocommit, of the session.
    pub settings: &'static [(&'static str, &'static str)],
    /// Within the block or behind the savepoint, before the call; in autocommit its settings do.
    pub in_block: &'static str,
    /// What the holder has done when the call is made.
    pub obstacle: String,
    pub interrupt: Interrupt,
}

#[derive(Clone, Copy, Default, PartialEq, Eq)]
pub enum Interrupt {
    /// It fails by itself.
    #[default]
    None,
    /// The holder commits before the call.
    Before,
    /// The holder commits while the call waits for it.
    Commit,
    /// A function of the administrator's, of the process id.
    Call(&'static str),
}

/// A queue that is ready for a call.
pub struct Ready {
    queue: String,
    lease: String,
    message: String,
    dead: String,
}

impl Ready {
    /// With what this queue has in place of the placeholders.
    pub fn fill(&self, sql: &str) -> String {
        sql.replace("{q}", &self.queue)
            .replace("{lease}", &self.lease)
            .replace("{message}", &self.message)
            .replace("{dead}", &self.dead)
    }
}

/// A database with the extension, an administrator, a session that holds what others wait for, and
/// an ordinary role `app` with every right that the extension's owner can give.
pub struct Stage {
    // Before the database is dropped.
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
        // It is rolled back whether or not it is in a transaction.
        holder.run("SET log_min_messages = error").await?;
        admin.run("CREATE ROLE app LOGIN").await?;
        admin.run(SCAFFOLD).await?;
        admin.run(GRANTS).await?;
        Ok(Self { admin, holder, db, cluster, number: Cell::new(0) })
    }

    pub fn as_role(&self, role: &str) -> Config {
        let mut config = self.db.config().clone();
        config.user(role);
        config
    }

    /// A session of the ordinary role, with settings of its own that must outlast every error.
    pub async fn app(&self) -> Result<Session> {
        let app = Session::open(&self.as_role("app")).await?;
        // What its first use adds to the settings is there before.
        app.run("DO $$ BEGIN END $$; SELECT * FROM queen_kv_get('n', 'k')").await?;
        calm(&app).await?;
        Ok(app)
    }

    /// A queue, ready for any of the calls.
    pub async fn prepare(&self) -> Result<Ready> {
        self.number.set(self.number.get() + 1);
        let queue = format!("q{}", self.number.get());
        let sql = "SELECT lease::text, message::text, dead::text FROM public.prepare($1)";
        let row = self.admin.row(sql, &[&queue]).await?;
        Ok(Ready { queue, lease: row.get(0), message: row.get(1), dead: row.get(2) })
    }

    /// Wait until a backend waits: for a lock, or for a message.
    pub async fn waits(&self, pid: i32) -> Result<()> {
        let sql = "SELECT EXISTS (SELECT FROM pg_stat_activity WHERE pid = $1 AND state = 'active'
                   AND wait_event_type IN ('Lock', 'Extension', 'IPC', 'Timeout'))";
        eventually("wait of the call", SOON, async || {
            Ok(self.admin.row(sql, &[&pid]).await?.get::<_, bool>(0).then_some(()))
        })
        .await
    }

    /// Nothing is held by a backend between its transactions: no lock, no snapshot.
    pub async fn holds_nothing(&self, pid: i32) -> Result<()> {
        let sql = "SELECT coalesce(string_agg(concat_ws(' ', locktype, relation::regclass, mode), ', '), '')
                   FROM pg_locks WHERE pid = $1";
        let held: String = self.admin.row(sql, &[&pid]).await?.get(0);
        ensure!(held.is_empty(), "locks are left: {held}");
        let sql = "SELECT EXISTS (SELECT FROM pg_stat_activity WHERE pid = $1 AND
                   (backend_xmin IS NOT NULL OR backend_xid IS NOT NULL))";
        ensure!(!self.admin.row(sql, &[&pid]).await?.get::<_, bool>(0), "a snapshot is left");
        Ok(())
    }

    /// Make a call fail, and see that it was as a statement of PostgreSQL's own would have been.
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
            Mode::Autocommit => attempt.autocommit().await,
            Mode::Handler => attempt.handler().await,
            Mode::Savepoint => attempt.savepoint().await,
        };
        // Whichever step it was.
        self.holder.run("ROLLBACK").await?;
        done?;
        self.holds_nothing(app.pid()).await?;
        if mode != Mode::Autocommit {
            let effects = self.effects().await?;
            ensure!(effects == "after, before", "what is stored: {effects}");
        }
        Ok(())
    }

    async fn effects(&self) -> Result<String> {
        let sql = "SELECT coalesce(string_agg(what, ', ' ORDER BY what), '') FROM public.effects";
        Ok(self.admin.row(sql, &[]).await?.get(0))
    }

    /// Let a backend be terminated within a call, and see that nothing is left of it.
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
            Mode::Autocommit => statement(&attempt.sql),
            Mode::Handler => attempt.block(),
            Mode::Savepoint => {
                app.run("SAVEPOINT s; INSERT INTO public.effects VALUES ('in the block')").await?;
                statement(&attempt.sql)
            }
        };
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

    /// The log of the server tells nothing that it should not.
    pub fn logs_nothing_bad(&self) -> Result<()> {
        let logged = self.cluster.logged()?;
        let bad: Vec<&str> =
            logged.lines().filter(|line| BAD.iter().any(|word| line.contains(word))).collect();
        ensure!(bad.is_empty(), "{} bad lines: {:#?}", bad.len(), &bad[..bad.len().min(10)]);
        Ok(())
    }
}

const BAD: [&str; 6] = ["WARNING:", "PANIC:", "terminated by signal", "backtrace", "TRAP:", "pgrx"];

/// Settings that are not the defaults, as an application may have them.
async fn calm(app: &Session) -> Result<()> {
    let sql = "RESET ALL; SET search_path = public, pg_temp; SET enable_seqscan = off;
               SET enable_hashjoin = off; SET work_mem = '1MB'; SET statement_timeout = '20s'";
    Ok(app.run(sql).await?)
}

async fn facts(app: &Session) -> Result<Vec<String>> {
    Ok(app.query_one("SELECT public.facts()", &[]).await?.get(0))
}

fn unchanged(before: &[String], after: &[String]) -> Result<()> {
    let lost = before.iter().filter(|fact| !after.contains(fact));
    let came = after.iter().filter(|fact| !before.contains(fact));
    let (lost, came): (Vec<_>, Vec<_>) = (lost.take(4).collect(), came.take(4).collect());
    ensure!(lost.is_empty() && came.is_empty(), "it was {lost:?}, and is {came:?}");
    Ok(())
}

/// The extension and the session go on.
async fn goes_on(app: &Session) -> Result<()> {
    app.query_one("SELECT 1", &[]).await.context("the next statement")?;
    let sql = "SELECT status FROM queen_push('goes on', '1')";
    let status: String = app.query_one(sql, &[]).await.context("the next push")?.get(0);
    ensure!(status == "queued", "the next push was {status}");
    Ok(())
}

/// What came is the error to come, and tells nothing of the inside.
fn judge(error: &DbError, failure: &Failure) -> Result<()> {
    let state = error.code().code();
    ensure!(state == failure.state, "{state} came, not {}: {error:?}", failure.state);
    is_plain(error.detail().unwrap_or_default())
}

/// A text for users: no backtrace.
pub fn is_plain(detail: &str) -> Result<()> {
    ensure!(!detail.contains("backtrace") && !detail.contains(".rs:"), "a backtrace: {detail}");
    Ok(())
}

fn refused(done: Result<(), Error>) -> Result<DbError> {
    let Err(error) = done else { bail!("it succeeded") };
    let raised = error.as_db_error().with_context(|| format!("not an error but {error:?}"))?;
    Ok(raised.clone())
}

/// A call as a statement.
pub fn statement(sql: &str) -> String {
    match sql.starts_with("CALL") {
        true => sql.to_owned(),
        false => format!("SELECT * FROM {sql}"),
    }
}

/// One call, to fail.
struct Attempt<'a> {
    stage: &'a Stage,
    app: &'a Session,
    sql: String,
    failure: &'a Failure,
}

impl Attempt<'_> {
    /// Run what contains the call, beside what makes it fail. The holder is out of the way then.
    async fn run(&self, statement: &str) -> Result<Result<(), Error>> {
        let Self { stage: Stage { admin, holder, .. }, app, failure, .. } = self;
        holder.run("BEGIN").await?;
        holder.run(&failure.obstacle).await.context("the obstacle")?;
        if failure.interrupt == Interrupt::Before {
            holder.run("COMMIT").await?;
        }
        let interrupt = async {
            match failure.interrupt {
                Interrupt::None | Interrupt::Before => {}
                Interrupt::Commit => {
                    self.stage.waits(app.pid()).await?;
                    holder.run("COMMIT").await?;
                }
                Interrupt::Call(function) => {
                    self.stage.waits(app.pid()).await?;
                    admin.query(&format!("SELECT {function}({})", app.pid()), &[]).await?;
                }
            }
            anyhow::Ok(())
        };
        let mut running = pin!(app.run(statement));
        let done = tokio::select! {
            done = &mut running => done,
            interrupted = interrupt => {
                interrupted?;
                running.await
            }
        };
        holder.run("ROLLBACK").await?;
        Ok(done)
    }

    async fn autocommit(&self) -> Result<()> {
        let Self { app, failure, .. } = self;
        for (name, value) in failure.settings {
            app.run(&format!("SET {name} = '{value}'")).await?;
        }
        let before = facts(app).await?;
        let raised = refused(self.run(&statement(&self.sql)).await?)?;
        judge(&raised, failure)?;
        unchanged(&before, &facts(app).await?)?;
        calm(app).await?;
        goes_on(app).await
    }

    /// Begin a transaction, with something written in it.
    async fn begin(&self) -> Result<Vec<String>> {
        self.app.run("BEGIN").await?;
        for (name, value) in self.failure.settings {
            // Those of a transaction that begins are no defaults any more.
            let name = name.strip_prefix("default_").unwrap_or(name);
            self.app.run(&format!("SET LOCAL {name} = '{value}'")).await?;
        }
        let sql = "SET LOCAL cpu_tuple_cost = 0.02; INSERT INTO public.effects VALUES ('before')";
        self.app.run(sql).await?;
        facts(self.app).await
    }

    async fn handler(&self) -> Result<()> {
        let Self { app, failure, .. } = self;
        let before = self.begin().await?;
        self.run(&self.block()).await?.context("what follows the handler")?;
        let row = app.query_one("SELECT state, detail, facts FROM public.caught", &[]).await?;
        let (state, detail): (String, Option<String>) = (row.get(0), row.get(1));
        ensure!(state == failure.state, "{state} was caught, not {}: {detail:?}", failure.state);
        is_plain(&detail.unwrap_or_default())?;
        unchanged(&before, &row.get::<_, Vec<String>>(2)).context("in the handler")?;
        unchanged(&before, &facts(app).await?).context("after the handler")?;
        commit(app).await
    }

    /// The call in a block that handles its error.
    fn block(&self) -> String {
        format!(
            "DO $do$ DECLARE state text := 'none'; detail text;
             BEGIN
                 BEGIN
                     INSERT INTO public.effects VALUES ('in the block');
                     {};
                     PERFORM * FROM {};
                 EXCEPTION WHEN OTHERS OR query_canceled THEN
                     GET STACKED DIAGNOSTICS state = RETURNED_SQLSTATE, detail = PG_EXCEPTION_DETAIL;
                 END;
                 INSERT INTO public.caught VALUES (state, detail, public.facts());
             END $do$",
            match self.failure.in_block {
                "" => "NULL",
                sql => sql,
            },
            self.sql
        )
    }

    async fn savepoint(&self) -> Result<()> {
        let Self { app, failure, .. } = self;
        let before = self.begin().await?;
        app.run("SAVEPOINT s; INSERT INTO public.effects VALUES ('in the block')").await?;
        app.run(failure.in_block).await?;
        let raised = refused(self.run(&statement(&self.sql)).await?)?;
        judge(&raised, failure)?;
        app.run("ROLLBACK TO SAVEPOINT s").await.context("ROLLBACK TO SAVEPOINT")?;
        unchanged(&before, &facts(app).await?)?;
        app.run("RELEASE SAVEPOINT s").await?;
        commit(app).await
    }
}

/// The rest of a transaction, which is no subtransaction any more; its end.
async fn commit(app: &Session) -> Result<()> {
    let sql =
        "INSERT INTO public.effects VALUES ('after') RETURNING xmin = pg_current_xact_id()::xid";
    let is_top: bool = app.query_one(sql, &[]).await.context("after the error")?.get(0);
    ensure!(is_top, "a subtransaction is open");
    app.run("SET LOCAL lock_timeout = 0; SET LOCAL statement_timeout = '20s'").await?;
    goes_on(app).await?;
    app.run("COMMIT").await.context("COMMIT")?;
    goes_on(app).await
}
