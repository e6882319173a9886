//! Databases of the benchmark, and sessions in them.

use std::collections::HashMap;
use std::ops::Deref;
use std::sync::{Arc, Mutex, PoisonError};

use anyhow::{Context, Result};
use sqlx::postgres::{PgConnectOptions, PgPoolOptions};
use tokio_postgres::config::{Config, Host};
use tokio_postgres::types::ToSql;
use tokio_postgres::{Client, Error, NoTls, Row, Statement};

use crate::graphile::Graphile;

/// The database that all others are copied from. The message systems are installed in it.
const TEMPLATE: &str = "queen_bench_template";

/// One connection. Its statements are prepared on first use and kept.
pub struct Session {
    client: Client,
    prepared: Mutex<HashMap<String, Statement>>,
}

impl Deref for Session {
    type Target = Client;

    fn deref(&self) -> &Client {
        &self.client
    }
}

impl Session {
    pub async fn open(config: &Config) -> Result<Self> {
        let (client, connection) = config.connect(NoTls).await.context("connecting")?;
        // The error that ends a connection is returned by the call that waits for an answer on it.
        tokio::spawn(async move { drop(connection.await) });
        Ok(Self { client, prepared: Mutex::default() })
    }

    pub async fn rows(&self, sql: &str, params: &[&(dyn ToSql + Sync)]) -> Result<Vec<Row>, Error> {
        self.client.query(&self.prepared(sql).await?, params).await
    }

    pub async fn row(&self, sql: &str, params: &[&(dyn ToSql + Sync)]) -> Result<Row, Error> {
        self.client.query_one(&self.prepared(sql).await?, params).await
    }

    pub async fn execute(&self, sql: &str, params: &[&(dyn ToSql + Sync)]) -> Result<u64, Error> {
        self.client.execute(&self.prepared(sql).await?, params).await
    }

    async fn prepared(&self, sql: &str) -> Result<Statement, Error> {
        let known = self.prepared.lock().unwrap_or_else(PoisonError::into_inner).get(sql).cloned();
        if let Some(statement) = known {
            return Ok(statement);
        }
        let statement = self.client.prepare(sql).await?;
        let mut prepared = self.prepared.lock().unwrap_or_else(PoisonError::into_inner);
        prepared.insert(sql.to_owned(), statement.clone());
        Ok(statement)
    }
}

/// The server under test.
pub struct Server {
    config: Config,
    admin: Session,
}

impl Server {
    /// Connects, and makes the template with all systems installed.
    pub async fn prepare(url: &str, contender: Option<&Graphile>) -> Result<Self> {
        let config: Config = url.parse().context("the connection string")?;
        let admin = Session::open(&config).await?;
        let server = Self { config, admin };
        server.create(TEMPLATE, "template0").await?;
        server.install_queen().await?;
        server.install_pgmq().await?;
        if let Some(graphile) = contender {
            graphile.install(&server.of(TEMPLATE)).await?;
        }
        Ok(server)
    }

    async fn install_queen(&self) -> Result<()> {
        let session = Session::open(&self.of(TEMPLATE)).await?;
        session.batch_execute("CREATE EXTENSION queen_mq").await.context("CREATE EXTENSION")
    }

    async fn install_pgmq(&self) -> Result<()> {
        let pool = PgPoolOptions::new()
            .max_connections(1)
            .connect_with(sqlx_options(&self.of(TEMPLATE)))
            .await
            .context("connecting for the installation of pgmq")?;
        pgmq::install::install_sql_from_embedded(&pool).await.context("installing pgmq")?;
        pool.close().await;
        Ok(())
    }

    /// Makes a database for one scenario.
    pub async fn database(&self, name: &str) -> Result<Db> {
        let name = format!("queen_bench_{name}");
        self.create(&name, TEMPLATE).await?;
        Ok(Db { config: self.of(&name), name, sessions: Mutex::default() })
    }

    pub async fn drop_database(&self, db: Db) -> Result<()> {
        self.drop(&db.name).await
    }

    /// Drops the template, the last thing that is left.
    pub async fn clean_up(&self) -> Result<()> {
        self.drop(TEMPLATE).await
    }

    /// A few facts to print beside the figures.
    pub async fn facts(&self) -> Result<Vec<(String, String)>> {
        let rows = self
            .admin
            .rows(
                "SELECT name, setting || coalesce(' ' || unit, '') FROM pg_catalog.pg_settings
                 WHERE name IN ('server_version', 'fsync', 'synchronous_commit', 'shared_buffers',
                                'max_wal_size', 'wal_level', 'full_page_writes',
                                'shared_preload_libraries')
                 ORDER BY name",
                &[],
            )
            .await?;
        Ok(rows.iter().map(|row| (row.get(0), row.get(1))).collect())
    }

    async fn create(&self, name: &str, template: &str) -> Result<()> {
        self.drop(name).await?;
        self.admin
            .batch_execute(&format!("CREATE DATABASE {name} TEMPLATE {template}"))
            .await
            .with_context(|| format!("creating database {name}"))
    }

    async fn drop(&self, name: &str) -> Result<()> {
        let sql = format!("DROP DATABASE IF EXISTS {name} WITH (FORCE)");
        self.admin.batch_execute(&sql).await.with_context(|| sql)
    }

    fn of(&self, database: &str) -> Config {
        let mut config = self.config.clone();
        config.dbname(database);
        config
    }
}

/// sqlx has a connection string format of its own; this is the server in that format.
fn sqlx_options(config: &Config) -> PgConnectOptions {
    let mut options = PgConnectOptions::new().ssl_mode(sqlx::postgres::PgSslMode::Disable);
    match config.get_hosts().first() {
        Some(Host::Unix(directory)) => options = options.socket(directory),
        Some(Host::Tcp(host)) => options = options.host(host),
        None => {}
    }
    if let Some(port) = config.get_ports().first() {
        options = options.port(*port);
    }
    if let Some(user) = config.get_user() {
        options = options.username(user);
    }
    if let Some(password) = config.get_password() {
        options = options.password(&String::from_utf8_lossy(password));
    }
    config.get_dbname().map_or(options.clone(), |name| options.database(name))
}

/// One database, and the sessions opened in it so far. All measurements of a scenario use these
/// sessions, so that every system meets sessions that are equally warm.
pub struct Db {
    name: String,
    config: Config,
    sessions: Mutex<Vec<Arc<Session>>>,
}

impl Db {
    pub fn config(&self) -> &Config {
        &self.config
    }

    pub async fn session(&self) -> Result<Session> {
        Session::open(&self.config).await
    }

    pub async fn sessions(&self, count: usize) -> Result<Vec<Arc<Session>>> {
        let mut sessions = self.sessions.lock().unwrap_or_else(PoisonError::into_inner).clone();
        while sessions.len() < count {
            sessions.push(Arc::new(self.session().await?));
        }
        self.sessions.lock().unwrap_or_else(PoisonError::into_inner).clone_from(&sessions);
        sessions.truncate(count);
        Ok(sessions)
    }
}
