//! A clock that a test sets, for a server of its own.

use std::fs::OpenOptions;
use std::io::Write;
use std::path::PathBuf;
use std::process::Command;
use std::{env, fs, process};

use anyhow::{Context, Result, ensure};

/// A clock that the server goes by, in place of the machine's. (`clock.c` says how.)
pub struct ServerClock(PathBuf);

impl ServerClock {
    pub fn new(name: &str) -> Result<Self> {
        let directory = env::temp_dir().join(format!("queen-clock-{name}-{}", process::id()));
        fs::create_dir(&directory)?;
        let clock = Self(directory);
        let source = concat!(env!("CARGO_MANIFEST_DIR"), "/src/clock.c");
        let mut compiler = Command::new("cc");
        compiler.args(["-shared", "-fPIC", "-O1", "-o"]).arg(clock.library()).arg(source);
        ensure!(compiler.arg("-ldl").status()?.success(), "cc failed");
        clock.set(0)?;
        Ok(clock)
    }

    fn library(&self) -> PathBuf {
        self.0.join("clock.so")
    }

    /// So many hours from the machine's clock.
    pub fn set(&self, hours: i64) -> Result<()> {
        // Servers have mapped the file: it is written in place.
        let file = self.0.join("offset");
        let mut file = OpenOptions::new().create(true).truncate(false).write(true).open(file)?;
        Ok(file.write_all(&(hours * 3600).to_ne_bytes())?)
    }

    /// What makes a server go by it.
    pub fn environment(&self) -> Result<&'static [(&'static str, &'static str)]> {
        let leak = |path: PathBuf| -> Result<&'static str> {
            Ok(path.to_str().context("a path that is no text")?.to_owned().leak())
        };
        let (library, file) = (leak(self.library())?, leak(self.0.join("offset"))?);
        Ok(vec![("LD_PRELOAD", library), ("TEST_CLOCK", file)].leak())
    }
}

impl Drop for ServerClock {
    fn drop(&mut self) {
        drop(fs::remove_dir_all(&self.0));
    }
}
