//! The memory of one backend of the server, seen from outside: how much it uses, and a limit for
//! it. Needs Linux; the tests run as the server's user or as root.

use std::fs;
use std::process::Command;

use anyhow::{Context, Result, ensure};

use crate::Session;

pub const MIB: u64 = 1024 * 1024;

/// A value of /proc/PID/status, in bytes: `VmSize`, `VmHWM`.
pub fn figure(session: &Session, name: &str) -> Result<u64> {
    let file = format!("/proc/{}/status", session.pid());
    let status = fs::read_to_string(&file).with_context(|| file.clone())?;
    let line = status.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':'));
    let kilobytes = line.and_then(|rest| rest.trim().strip_suffix(" kB")).context(file)?;
    Ok(kilobytes.trim().parse::<u64>()? * 1024)
}

/// Limit the backend to so many bytes more than it has now.
pub fn allow(session: &Session, more: u64) -> Result<()> {
    limit(session, &(figure(session, "VmSize")? + more).to_string())
}

/// Remove the limit.
pub fn allow_all(session: &Session) -> Result<()> {
    limit(session, "unlimited")
}

/// Sets only the soft limit: the hard one could not be raised again.
fn limit(session: &Session, bytes: &str) -> Result<()> {
    let status = Command::new("prlimit")
        .arg(format!("--pid={}", session.pid()))
        .arg(format!("--as={bytes}:"))
        .status()
        .context("running prlimit")?;
    ensure!(status.success(), "prlimit failed");
    Ok(())
}
