//! Test databases, and sessions in them.

use std::collections::HashMap;
use std::env;
use std::future::Future;
use std::ops::Deref;
use std::process;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use anyhow::{Context, Result, anyhow};
use chrono::{DateTime, Utc};
use tokio::task::{AbortHandle, JoinHandle};
use tokio_postgres::config::Config;
use tokio_postgres::types::ToSql;
use tokio_postgres::{Client, Error, NoTls, Row, Statement};

/// The connection string of a superuser of a cluster that preloads the library.
pub const URL: &str = "QUEEN_TEST_URL";

/// Key of the advisory lock with which a timing-sensitive test keeps all other tests out.
const TURN: i64 = 0x7175_6565_6e5f_6d71;

/// A statement that takes longer hangs: an error is better than a test that never ends.
const STATEMENT_TIMEOUT: &str = "60s";

/// The server under test, from the environment.
pub fn server() -> Result<Config> {
    let url = env::var(URL).with_context(|| {
        format!(
            "{URL} is not set: these tests need the connection string of a superuser of a running \
             PostgreSQL with shared_preload_libraries = 'queen_mq', max_connections = 200 and \
             max_prepared_transactions = 20"
        )
    })?;
    url.parse().with_context(|| format!("{URL} is not a connection string"))
}

/// One connection. It dereferences to the client. Statements that go through [`Session::rows`] are
/// prepared once.
pub struct Session {
    client: Client,
    connection: JoinHandle<()>,
    pid: i32,
    prepared: Mutex<HashMap<&'static str, Statement>>,
}

impl Deref for Session {
    type Target = Client;

    fn deref(&self) -> &Client {
        &self.client
    }
}

impl Session {
    pub async fn open(config: &Config) -> Result<Self, Error> {
        let (client, connection) = config.connect(NoTls).await?;
        // The error that ends a connection is returned by the call that waits for an answer on it.
        let connection = tokio::spawn(async move { drop(connection.await) });
        client.batch_execute(&format!("SET statement_timeout = '{STATEMENT_TIMEOUT}'")).await?;
        let pid = client.query_one("SELECT pg_backend_pid()", &[]).await?.get(0);
        Ok(Self { client, connection, pid, prepared: Mutex::default() })
    }

    /// With it a test closes the connection without a word, as the kernel does for a client that is
    /// killed.
    pub fn connection(&self) -> AbortHandle {
        self.connection.abort_handle()
    }

    /// The process id of the backend.
    pub fn pid(&self) -> i32 {
        self.pid
    }

    /// Run statements without a result, as psql would send them.
    pub async fn run(&self, sql: &str) -> Result<(), Error> {
        self.client.batch_execute(sql).await
    }

    /// Query with a statement that is prepared on its first use in this session.
    pub async fn rows(
        &self,
        sql: &'static str,
        params: &[&(dyn ToSql + Sync)],
    ) -> Result<Vec<Row>, Error> {
        self.client.query(&self.prepared(sql).await?, params).await
    }

    /// The single row of a query that is prepared like that of `rows`.
    pub async fn row(
        &self,
        sql: &'static str,
        params: &[&(dyn ToSql + Sync)],
    ) -> Result<Row, Error> {
        self.client.query_one(&self.prepared(sql).await?, params).await
    }

    async fn prepared(&self, sql: &'static str) -> Result<Statement, Error> {
        let known = self.prepared.lock().unwrap_or_else(PoisonError::into_inner).get(sql).cloned();
        if let Some(statement) = known {
            return Ok(statement);
        }
        let statement = self.client.prepare(sql).await?;
        let mut prepared = self.prepared.lock().unwrap_or_else(PoisonError::into_inner);
        prepared.insert(sql, statement.clone());
        Ok(statement)
    }

    /// The single number that a query returns.
    pub async fn count(&self, sql: &str) -> Result<i64, Error> {
        Ok(self.client.query_one(sql, &[]).await?.get(0))
    }

    /// The server's clock.
    pub async fn now(&self) -> Result<DateTime<Utc>, Error> {
        Ok(self.client.query_one("SELECT clock_timestamp()", &[]).await?.get(0))
    }

    /// Begin a transaction in REPEATABLE READ and take its snapshot now.
    pub async fn begin_snapshot(&self) -> Result<(), Error> {
        self.run("BEGIN ISOLATION LEVEL REPEATABLE READ; SELECT count(*) FROM pg_class").await
    }

    /// From here on every statement must answer within half a second, or it raises 57014.
    pub async fn be_prompt(&self) -> Result<(), Error> {
        self.run("SET statement_timeout = '500ms'").await
    }
}

/// A database with the extension. It is dropped with this value, or kept when QUEEN_TEST_KEEP is
/// set.
///
/// Tests run at the same time, except those that measure time or load the machine: these keep all
/// other tests out while they run. They do so with an advisory lock, which works between processes,
/// too. A test locks only once: with a second database it could wait for itself.
pub struct TestDb {
    name: String,
    config: Config,
    maintenance: Config,
    turn: Option<Session>,
}

impl TestDb {
    /// Create a database, while other tests run.
    pub async fn fresh() -> Result<Self> {
        Self::on_server("SELECT pg_advisory_lock_shared($1)").await
    }

    /// Create a database, and keep other tests out while it exists.
    pub async fn alone() -> Result<Self> {
        Self::on_server("SELECT pg_advisory_lock($1)").await
    }

    async fn on_server(lock: &'static str) -> Result<Self> {
        let maintenance = server()?;
        let turn = Session::open(&maintenance).await.context("connecting to the server")?;
        turn.run("SET statement_timeout = 0").await?;
        turn.rows(lock, &[&TURN]).await?;
        let mut db = Self::create(&maintenance).await?;
        db.turn = Some(turn);
        Ok(db)
    }

    /// Create a database with the extension on any server.
    pub async fn create(maintenance: &Config) -> Result<Self> {
        let db = Self::create_empty(maintenance).await?;
        db.session().await?.run("CREATE EXTENSION queen_mq").await.context("CREATE EXTENSION")?;
        Ok(db)
    }

    /// Create a database without the extension, to restore into.
    pub async fn create_empty(maintenance: &Config) -> Result<Self> {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let nanos = SystemTime::now().duration_since(UNIX_EPOCH)?.subsec_nanos();
        let name = format!(
            "queen_test_{}_{}_{nanos}",
            process::id(),
            NEXT.fetch_add(1, Ordering::Relaxed)
        );
        let admin = Session::open(maintenance).await.context("connecting to the server")?;
        admin
            .run(&format!("CREATE DATABASE {name} TEMPLATE template0"))
            .await
            .context("CREATE DATABASE")?;
        let mut config = maintenance.clone();
        config.dbname(&name);
        Ok(Self { name, config, maintenance: maintenance.clone(), turn: None })
    }

    pub fn name(&self) -> &str {
        &self.name
    }

    pub fn config(&self) -> &Config {
        &self.config
    }

    pub async fn session(&self) -> Result<Session> {
        Ok(Session::open(&self.config).await?)
    }

    /// Open as many sessions as the caller names: `let [first, second] = db.sessions().await?`.
    pub async fn sessions<const N: usize>(&self) -> Result<[Session; N]> {
        let sessions = self.crowd(N).await?;
        sessions.try_into().map_err(|_| anyhow!("as many sessions as were opened"))
    }

    pub async fn crowd(&self, n: usize) -> Result<Vec<Session>> {
        let mut sessions = Vec::with_capacity(n);
        for _ in 0..n {
            sessions.push(self.session().await?);
        }
        Ok(sessions)
    }
}

impl Drop for TestDb {
    fn drop(&mut self) {
        if env::var_os("QUEEN_TEST_KEEP").is_some() {
            return;
        }
        let (name, config, maintenance) =
            (self.name.clone(), self.config.clone(), self.maintenance.clone());
        // `drop` may run inside a runtime, which cannot block on another future: another thread
        // does it.
        let dropped = std::thread::spawn(move || -> Result<()> {
            block_on(async {
                let admin = Session::open(&maintenance).await?;
                roll_back_prepared(&admin, &name, &config).await?;
                admin.run(&format!("DROP DATABASE IF EXISTS {name} WITH (FORCE)")).await?;
                Ok(())
            })
        });
        match dropped.join() {
            Ok(Ok(())) => {}
            Ok(Err(error)) => eprintln!("could not drop database {}: {error:#}", self.name),
            Err(_) => eprintln!("could not drop database {}", self.name),
        }
    }
}

/// Roll back prepared transactions that a failed test left behind: with them the database cannot be
/// dropped.
async fn roll_back_prepared(admin: &Session, name: &str, config: &Config) -> Result<()> {
    let left =
        admin.query("SELECT gid FROM pg_prepared_xacts WHERE database = $1", &[&name]).await?;
    if left.is_empty() {
        return Ok(());
    }
    let inside = Session::open(config).await?;
    for row in left {
        let gid: String = row.get(0);
        inside.run(&format!("ROLLBACK PREPARED '{gid}'")).await?;
    }
    Ok(())
}

/// Run a future to its end on a small runtime of its own.
pub fn block_on<T>(future: impl Future<Output = Result<T>>) -> Result<T> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let result = runtime.block_on(future);
    runtime.shutdown_timeout(Duration::from_secs(1));
    result
}
