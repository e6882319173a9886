//! Where the sessions of queen_mq spend their time: `perf record` while they push, pop and settle.
//! `scripts/flame.sh` draws what it writes.

use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use tokio::time::sleep;

use crate::db::Db;
use crate::fill::Backlog;
use crate::job::System;
use crate::lab::{Contender, Lab};
use crate::scenarios::single_backlog;

/// Samples a second and session. Not a round number, so that it does not beat with timers.
const FREQUENCY: &str = "499";
/// The kernel copies so much of the stack for each sample; without frame pointers it is unwound
/// from this copy.
const CALL_GRAPH: &str = "dwarf,32768";
const DURATION: Duration = Duration::from_secs(8);
/// perf has attached to the sessions after this time.
const ATTACHED: Duration = Duration::from_millis(500);
const PARTITIONS: u64 = 1000;

/// Records one file for each kind of work: `push-1.perf` and so on.
pub async fn record(lab: &Lab, directory: &Path) -> Result<()> {
    let messages = lab.scale.batches;
    let hundreds = Backlog { messages, partitions: PARTITIONS, segment: 100 };
    let work = [
        ("push-1", Contender::pushes(System::Queen, 1, PARTITIONS, 32)),
        ("push-100", Contender::pushes(System::Queen, 100, PARTITIONS, 4)),
        ("pop-100", Contender::consumes(System::Queen, 100, 4, hundreds)),
        ("pop-1", Contender::consumes(System::Queen, 1, 8, single_backlog(lab))),
    ];
    let db = lab.server.database("profile").await?;
    for (n, (name, contender)) in work.iter().enumerate() {
        let queue = format!("q{n}");
        lab.progress.set_message(format!("{name}: filling"));
        lab.fresh(&db, contender, &queue).await?;
        let file = directory.join(format!("{name}.perf"));
        let perf = Perf::attach(&db, contender.sessions, &file).await?;
        lab.progress.set_message(*name);
        let measured = lab.measure(&db, contender, &queue, DURATION).await;
        perf.end()?;
        let rate = measured?.rate();
        lab.progress.suspend(|| println!("{name}: {rate:.0} messages/s while recorded"));
    }
    lab.server.drop_database(db).await
}

struct Perf {
    child: Child,
    file: PathBuf,
}

impl Perf {
    /// Records so many sessions of this database: those that a measurement will use.
    async fn attach(db: &Db, sessions: usize, file: &Path) -> Result<Self> {
        let mut pids = Vec::new();
        for session in db.sessions(sessions).await? {
            let pid: i32 = session.row("SELECT pg_backend_pid()", &[]).await?.get(0);
            pids.push(pid.to_string());
        }
        let child = Command::new("perf")
            .args(["record", "--quiet", "--event", "cpu-clock", "--freq", FREQUENCY])
            .args(["--call-graph", CALL_GRAPH, "--pid", &pids.join(",")])
            .arg("--output")
            .arg(file)
            .stdin(Stdio::null())
            .spawn()
            .context("running perf")?;
        sleep(ATTACHED).await;
        Ok(Self { child, file: file.to_owned() })
    }

    /// perf ends its file when it is interrupted.
    fn end(mut self) -> Result<()> {
        let pid = self.child.id().to_string();
        Command::new("kill").args(["-INT", &pid]).status().context("interrupting perf")?;
        self.child.wait()?;
        ensure!(self.file.exists(), "perf has not written {}", self.file.display());
        Ok(())
    }
}
