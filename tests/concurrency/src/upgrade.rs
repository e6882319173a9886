//! pg_upgrade from one cluster into another one of the same major version.

use std::env;
use std::fs;
use std::process::Stdio;

use anyhow::{Context, Result};

use crate::cluster::{Cluster, PGBIN, run, tool};

impl Cluster {
    /// The next transaction id that the last checkpoint stored. The cluster must be stopped.
    pub fn next_xid(&self) -> Result<u64> {
        let said = tool("pg_controldata")?.arg("-D").arg(self.data()).output()?;
        let said = String::from_utf8(said.stdout)?;
        let next = said.lines().find_map(|line| line.strip_prefix("Latest checkpoint's NextXID:"));
        let (epoch, xid) = next.and_then(|next| next.trim().split_once(':')).context("NextXID")?;
        Ok(epoch.parse::<u64>()? << 32 | xid.parse::<u64>()?)
    }

    /// Run pg_upgrade from this cluster into `new`; both must be stopped. Without options it copies
    /// the files.
    pub fn upgrade_into(&self, new: &Cluster, options: &[&str]) -> Result<()> {
        let programs = env::var_os(PGBIN).context(PGBIN)?;
        let directory = new.file("upgrade");
        fs::create_dir(&directory)?;
        let mut command = tool("pg_upgrade")?;
        command
            .current_dir(&directory)
            .stdin(Stdio::null())
            .args(options)
            .args(["-U", "postgres", "-d"])
            .arg(self.data())
            .arg("-D")
            .arg(new.data())
            .arg("-b")
            .arg(&programs)
            .arg("-B")
            .arg(&programs)
            .arg("-s")
            .arg(&directory);
        run(&mut command)
    }
}
