//! The processor time of the server, from Linux's /proc. Elsewhere, or when the server runs on
//! another machine, there is none.

use std::fs;
use std::time::Duration;

use anyhow::Result;

use crate::db::Session;

/// The unit of the times in /proc: USER_HZ is 100 on x86-64 and on ARM.
const TICK: Duration = Duration::from_millis(10);

/// The processes of a server: the postmaster, and its children, which are all others.
#[derive(Clone, Copy)]
pub struct ServerProcesses {
    postmaster: i32,
}

impl ServerProcesses {
    /// The server of this session, if /proc shows its processes.
    pub async fn find(session: &Session) -> Result<Option<Self>> {
        let pid: i32 = session.row("SELECT pg_backend_pid()", &[]).await?.get(0);
        let backend = Process::read(pid).filter(Process::is_postgres);
        let found = backend
            .map(|backend| backend.parent)
            .filter(|parent| Process::read(*parent).is_some_and(|parent| parent.is_postgres()));
        Ok(found.map(|postmaster| Self { postmaster }))
    }

    /// The time that all processes of the server have used so far, with those that have ended.
    pub fn used(self) -> Result<Duration> {
        let mut ticks = 0;
        for entry in fs::read_dir("/proc")? {
            let Ok(pid) = entry?.file_name().to_string_lossy().parse() else { continue };
            // A process may end before it is read.
            let Some(process) = Process::read(pid) else { continue };
            if pid == self.postmaster {
                ticks += process.own + process.ended_children;
            } else if process.parent == self.postmaster {
                ticks += process.own;
            }
        }
        Ok(TICK * ticks)
    }
}

/// The time that one process has used so far, from the scheduler's own count in nanoseconds.
pub fn used_by(pid: i32) -> Option<Duration> {
    let text = fs::read_to_string(format!("/proc/{pid}/schedstat")).ok()?;
    let nanoseconds = text.split_whitespace().next()?.parse().ok()?;
    Some(Duration::from_nanos(nanoseconds))
}

/// What /proc says about a process. Times are in ticks.
#[derive(Debug, PartialEq)]
struct Process {
    name: String,
    parent: i32,
    own: u32,
    ended_children: u32,
}

impl Process {
    fn read(pid: i32) -> Option<Self> {
        Self::parse(&fs::read_to_string(format!("/proc/{pid}/stat")).ok()?)
    }

    /// The name is in parentheses and may contain any character. The other fields are numbered in
    /// proc(5): the parent is 4, the times are 14 to 17.
    fn parse(stat: &str) -> Option<Self> {
        let (before, after) = stat.rsplit_once(')')?;
        let (_, name) = before.split_once('(')?;
        let fields: Vec<&str> = after.split_whitespace().collect();
        let field = |number: usize| fields.get(number - 3)?.parse::<u32>().ok();
        Some(Self {
            name: name.to_owned(),
            parent: i32::try_from(field(4)?).ok()?,
            own: field(14)? + field(15)?,
            ended_children: field(16)? + field(17)?,
        })
    }

    fn is_postgres(&self) -> bool {
        ["postgres", "postmaster"].contains(&self.name.as_str())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_fields_are_counted_from_the_end_of_the_name() {
        let stat = "42 (a) (b)) S 7 42 42 0 -1 4194304 10 11 12 13 100 20 3 4 20 0 1 0 99";
        let expected =
            Process { name: "a) (b)".to_owned(), parent: 7, own: 120, ended_children: 7 };
        assert_eq!(Process::parse(stat), Some(expected));
    }
}
