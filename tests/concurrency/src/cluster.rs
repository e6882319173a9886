//! PostgreSQL clusters for tests that crash a server or restore into another one.

use std::env;
use std::ffi::OsString;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{self, Child, Command, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::thread::sleep;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use tokio_postgres::config::{Config, Host};

/// The directory of initdb, pg_ctl, pg_dump and pg_restore.
pub const PGBIN: &str = "QUEEN_TEST_PGBIN";

/// The settings of every cluster. Durability stays on, because these tests crash the server.
const SETTINGS: &str = "
shared_preload_libraries = 'queen_mq'
queen_mq.databases = 'none of these'
listen_addresses = ''
max_connections = 200
max_prepared_transactions = 20
log_min_messages = warning
";

/// A cluster in a temporary directory, with its socket there. It is stopped and removed when this
/// value is dropped.
pub struct Cluster {
    directory: PathBuf,
    /// Variables that are added to the server's environment.
    environment: &'static [(&'static str, &'static str)],
}

/// A file of pg_xact: 32 pages, with two bits for each transaction.
const SEGMENT_BYTES: usize = 32 * 8192;
const XIDS_OF_A_SEGMENT: u32 = SEGMENT_BYTES as u32 * 4;

impl Cluster {
    /// Make a cluster with initdb and start it. Background workers serve none of its databases.
    pub fn start_new() -> Result<Self> {
        Self::start_with("")
    }

    /// `start_new`, with further settings.
    pub fn start_with(more: &str) -> Result<Self> {
        Self::start_in(&[], more)
    }

    /// `start_with`, with variables in the server's environment.
    pub fn start_in(
        environment: &'static [(&'static str, &'static str)],
        more: &str,
    ) -> Result<Self> {
        let cluster = Self::init_in(environment, more)?;
        cluster.start()?;
        Ok(cluster)
    }

    /// Make a cluster with initdb, without starting it.
    pub fn init_with(more: &str) -> Result<Self> {
        Self::init_in(&[], more)
    }

    fn init_in(environment: &'static [(&'static str, &'static str)], more: &str) -> Result<Self> {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        // The name is short because the path of a socket may have 107 bytes.
        let name = format!("queen-{}-{}", process::id(), NEXT.fetch_add(1, Ordering::Relaxed));
        let cluster = Self { directory: env::temp_dir().join(name), environment };
        fs::create_dir(&cluster.directory)
            .with_context(|| format!("creating {}", cluster.directory.display()))?;
        run(tool("initdb")?.arg("-D").arg(cluster.data()).args([
            "-U",
            "postgres",
            "-A",
            "trust",
            "-E",
            "UTF8",
            "--no-locale",
            "--no-sync",
        ]))?;
        let settings = format!(
            "{SETTINGS}unix_socket_directories = '{}'\n{more}\n",
            cluster.directory.display()
        );
        let file = cluster.data().join("postgresql.conf");
        let generated = fs::read_to_string(&file)?;
        fs::write(&file, generated + &settings)?;
        Ok(cluster)
    }

    pub(crate) fn data(&self) -> PathBuf {
        self.directory.join("data")
    }

    fn log(&self) -> PathBuf {
        self.directory.join("log")
    }

    /// Start it, and wait until it answers.
    pub fn start(&self) -> Result<()> {
        self.start_as("")
    }

    /// `start`, with options of the server.
    pub fn start_as(&self, options: &str) -> Result<()> {
        run(tool("pg_ctl")?
            .args(["start", "-w", "-s", "-t", "60", "-o", options, "-D"])
            .arg(self.data())
            .arg("-l")
            .arg(self.log())
            .envs(self.environment.iter().copied()))
        .with_context(|| fs::read_to_string(self.log()).unwrap_or_default())
    }

    /// Stop it as a crash would: without a checkpoint.
    pub fn crash(&self) -> Result<()> {
        run(tool("pg_ctl")?.args(["stop", "-w", "-s", "-m", "immediate", "-D"]).arg(self.data()))
    }

    /// Kill the postmaster. The other processes notice it and end; wait until they have.
    pub fn kill(&self) -> Result<()> {
        let file = self.data().join("postmaster.pid");
        let pid = fs::read_to_string(&file)?.lines().next().unwrap_or_default().to_owned();
        run(Command::new("kill").args(["-9", &pid]))?;
        let began = Instant::now();
        // A new postmaster refuses to start while one of the old processes is running.
        while let Err(refused) = self.start() {
            ensure!(began.elapsed() < Duration::from_secs(20), "{refused:#}");
            sleep(Duration::from_millis(100));
        }
        Ok(())
    }

    /// Stop it as an administrator would: with a checkpoint.
    pub fn stop(&self) -> Result<()> {
        run(tool("pg_ctl")?
            .args(["stop", "-w", "-s", "-m", "fast", "-t", "20", "-D"])
            .arg(self.data()))
    }

    /// What the server has logged so far.
    pub fn logged(&self) -> Result<String> {
        Ok(fs::read_to_string(self.log())?)
    }

    /// Stop it, let its next transaction id be `next`, and start it again. All rows of all
    /// databases are frozen before, so none of them is of a transaction in the future.
    pub fn move_next_xid(&self, next: u32) -> Result<()> {
        run(tool("vacuumdb")?
            .args(["--all", "--freeze", "--quiet", "--username", "postgres", "--host"])
            .arg(&self.directory))?;
        self.stop()?;
        // The server does not start without the page with the state of that transaction.
        let segment = format!("pg_xact/{:04X}", next / XIDS_OF_A_SEGMENT);
        let path = self.data().join(segment);
        if !path.exists() {
            fs::write(&path, vec![0; SEGMENT_BYTES])?;
        }
        run(tool("pg_resetwal")?.args(["-x", &next.to_string(), "-D"]).arg(self.data()))?;
        self.start()
    }

    /// Make a standby of this cluster and start it. Its socket is in its own directory.
    pub fn standby(&self) -> Result<Self> {
        self.standby_as("standby")
    }

    /// `standby`, in a directory with this extension. A standby may have standbys, too.
    pub fn standby_as(&self, extension: &str) -> Result<Self> {
        let directory = self.directory.with_extension(extension);
        fs::create_dir(&directory)?;
        let standby = Self { directory, environment: self.environment };
        run(tool("pg_basebackup")?
            .args(["-R", "-c", "fast", "--no-sync", "-U", "postgres", "-h"])
            .arg(&self.directory)
            .arg("-D")
            .arg(standby.data()))?;
        let file = standby.data().join("postgresql.conf");
        let own = format!("unix_socket_directories = '{}'\n", standby.directory.display());
        fs::write(&file, fs::read_to_string(&file)? + &own)?;
        standby.start()?;
        Ok(standby)
    }

    /// Make a standby a primary.
    pub fn promote(&self) -> Result<()> {
        run(tool("pg_ctl")?.args(["promote", "-w", "-s", "-D"]).arg(self.data()))
    }

    /// Whether it has a postmaster, and whether that lets clients in.
    pub fn state(&self) -> Result<(bool, bool)> {
        let running = tool("pg_ctl")?.args(["status", "-s", "-D"]).arg(self.data()).output()?;
        let ready = tool("pg_isready")?.args(["-q", "-h"]).arg(&self.directory).status()?;
        Ok((running.status.success(), ready.success()))
    }

    /// How the superuser connects to the maintenance database.
    pub fn config(&self) -> Config {
        let mut config = Config::new();
        config.host_path(&self.directory).user("postgres").dbname("postgres");
        config
    }

    /// Dump a database into a file in the custom format.
    pub fn dump(&self, database: &str, file: &Path) -> Result<()> {
        self.dump_as("postgres", database, file)
    }

    /// `dump`, by a role.
    pub fn dump_as(&self, role: &str, database: &str, file: &Path) -> Result<()> {
        run(tool("pg_dump")?
            .args(["-Fc", "-U", role, "-d", database, "-h"])
            .arg(&self.directory)
            .arg("-f")
            .arg(file))
    }

    /// Restore such a file into an empty database.
    pub fn restore(&self, database: &str, file: &Path) -> Result<()> {
        self.restore_as("postgres", database, file)
    }

    /// `restore`, by a role.
    pub fn restore_as(&self, role: &str, database: &str, file: &Path) -> Result<()> {
        self.restore_with(&["-U", role], database, file)
    }

    /// `restore`, with further options of pg_restore.
    pub fn restore_with(&self, options: &[&str], database: &str, file: &Path) -> Result<()> {
        run(tool("pg_restore")?
            .args(["--exit-on-error", "-U", "postgres"])
            .args(options)
            .args(["-d", database, "-h"])
            .arg(&self.directory)
            .arg(file))
    }

    /// A path for a file that lives as long as the cluster.
    pub fn file(&self, name: &str) -> PathBuf {
        self.directory.join(name)
    }
}

impl Drop for Cluster {
    fn drop(&mut self) {
        if self.data().join("postmaster.pid").exists()
            && let Err(error) = self.crash()
        {
            eprintln!("could not stop {}: {error:#}", self.directory.display());
            return;
        }
        if env::var_os("QUEEN_TEST_KEEP").is_none()
            && let Err(error) = fs::remove_dir_all(&self.directory)
        {
            eprintln!("could not remove {}: {error}", self.directory.display());
        }
    }
}

/// PgBouncer in transaction mode before a server, with fewer server connections than clients. It
/// listens on a socket of its own, and stops when this value is dropped.
pub struct Bouncer {
    directory: PathBuf,
    child: Child,
}

impl Bouncer {
    /// Start it with two connections to `server`, whose first host is the directory of its socket.
    pub fn start(server: &Config) -> Result<Self> {
        let Some(Host::Unix(socket)) = server.get_hosts().first() else {
            bail!("the server is not reached through a Unix socket")
        };
        let port = server.get_ports().first().unwrap_or(&5432);
        let user = server.get_user().unwrap_or("postgres");
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let name =
            format!("queen-bouncer-{}-{}", process::id(), NEXT.fetch_add(1, Ordering::Relaxed));
        let directory = env::temp_dir().join(name);
        fs::create_dir(&directory)?;
        let settings = format!(
            "[databases]\n* = host={} port={port} user={user}\n[pgbouncer]\n\
             unix_socket_dir = {}\nlisten_port = 6432\nauth_type = any\npool_mode = transaction\n\
             default_pool_size = 2\nmax_client_conn = 100\nlogfile = {}\n\
             ignore_startup_parameters = extra_float_digits\n",
            socket.display(),
            directory.display(),
            directory.join("log").display(),
        );
        let file = directory.join("pgbouncer.ini");
        fs::write(&file, settings)?;
        let known = ["/usr/sbin/pgbouncer", "/usr/bin/pgbouncer"].map(Path::new);
        let program = known.into_iter().find(|path| path.exists());
        let child = as_server(program.context("pgbouncer is not installed")?)?
            .arg("--quiet")
            .arg(file)
            .stdin(Stdio::null())
            .spawn()?;
        Ok(Self { directory, child })
    }

    /// The settings of `server`, but through the pooler.
    pub fn config(&self, server: &Config) -> Config {
        let mut config = Config::new();
        config.host_path(&self.directory).port(6432).user(server.get_user().unwrap_or("postgres"));
        config.dbname(server.get_dbname().unwrap_or("postgres"));
        config
    }
}

impl Drop for Bouncer {
    fn drop(&mut self) {
        let stopped = self.child.kill().and_then(|()| self.child.wait());
        if let Err(error) = stopped.and_then(|_| fs::remove_dir_all(&self.directory)) {
            eprintln!("could not clean up {}: {error}", self.directory.display());
        }
    }
}

/// A command that runs a program of PostgreSQL. The server refuses to run as root, so root maps
/// itself to the user `postgres` in a user namespace; this needs no other rights and changes no
/// owners.
pub(crate) fn tool(name: &str) -> Result<Command> {
    let directory = env::var_os(PGBIN).with_context(|| {
        format!("{PGBIN} is not set: this test needs the directory of initdb, pg_ctl and pg_dump")
    })?;
    let program = Path::new(&directory).join(name);
    ensure!(program.exists(), "{} does not exist", program.display());
    as_server(&program)
}

/// A command for any program that refuses to run as root.
fn as_server(program: &Path) -> Result<Command> {
    let mut command = if id(&["-u"])? == "0" {
        let mut command = Command::new("unshare");
        command
            .arg("-U")
            .arg(format!("--map-user={}", id(&["-u", "postgres"])?))
            .arg(format!("--map-group={}", id(&["-g", "postgres"])?))
            .arg(program);
        command
    } else {
        Command::new(program)
    };
    // With a backtrace every error would have one in its DETAIL.
    command.env("RUST_BACKTRACE", "0").env("LC_ALL", "C").env_remove("PGOPTIONS");
    Ok(command)
}

fn id(arguments: &[&str]) -> Result<String> {
    let output = Command::new("id").args(arguments).output().context("running id")?;
    ensure!(output.status.success(), "id {arguments:?} failed");
    Ok(String::from_utf8(output.stdout)?.trim().to_owned())
}

pub(crate) fn run(command: &mut Command) -> Result<()> {
    let shown: Vec<OsString> = command.get_args().map(Into::into).collect();
    // A server that was just started would keep a pipe open, so a file takes the output.
    let stderr = tempfile()?;
    let status = command
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(fs::File::create(&stderr)?)
        .status()
        .with_context(|| format!("running {shown:?}"));
    let said = fs::read_to_string(&stderr);
    fs::remove_file(&stderr)?;
    ensure!(status?.success(), "{shown:?} failed: {}", said?);
    Ok(())
}

fn tempfile() -> Result<PathBuf> {
    static NEXT: AtomicU32 = AtomicU32::new(0);
    let number = NEXT.fetch_add(1, Ordering::Relaxed);
    Ok(env::temp_dir().join(format!("queen-{}-stderr-{number}", process::id())))
}
