//! A synchronous standby of the server, for as long as a scenario needs it.

use std::path::PathBuf;
use std::process::Command;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use tokio::time::sleep;

use crate::db::Session;

/// A standby that has just been started is connected within this time.
const CONNECTED: Duration = Duration::from_secs(60);
const NAMES: &str = "synchronous_standby_names";

/// A program that starts the standby, and stops it: `COMMAND start`, `COMMAND stop`.
#[derive(Clone, Debug)]
pub struct Standby {
    command: PathBuf,
}

impl Standby {
    pub fn new(command: PathBuf) -> Self {
        Self { command }
    }

    /// Starts the standby. From then on commits wait for it as their `synchronous_commit` says.
    pub async fn start(&self, admin: &Session) -> Result<()> {
        self.run("start").await?;
        admin.batch_execute(&format!("ALTER SYSTEM SET {NAMES} = '*'")).await?;
        admin.batch_execute("SELECT pg_reload_conf()").await?;
        let began = Instant::now();
        let sql = "SELECT count(*) FROM pg_catalog.pg_stat_replication WHERE sync_state = 'sync'";
        while admin.row(sql, &[]).await?.get::<_, i64>(0) == 0 {
            ensure!(began.elapsed() < CONNECTED, "the standby is not connected");
            sleep(Duration::from_millis(100)).await;
        }
        Ok(())
    }

    /// First no commit waits for the standby any more.
    pub async fn stop(&self, admin: &Session) -> Result<()> {
        admin.batch_execute(&format!("ALTER SYSTEM RESET {NAMES}")).await?;
        admin.batch_execute("SELECT pg_reload_conf()").await?;
        self.run("stop").await
    }

    async fn run(&self, what: &'static str) -> Result<()> {
        let mut command = Command::new(&self.command);
        command.arg(what);
        let status = tokio::task::spawn_blocking(move || command.status()).await?;
        let status = status.with_context(|| self.command.display().to_string())?;
        ensure!(status.success(), "{} {what}: {status}", self.command.display());
        Ok(())
    }
}
