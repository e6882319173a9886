//! The disk of the log, or of the tables, is full for a while.

use std::fs;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use tokio::task::spawn_blocking;
use tokio::time::sleep;

use super::{COME_BACK, SETTINGS, Season, Shop, Staff, audit, report, set_up};
use crate::cluster::Cluster;
use crate::torture::Report;
use crate::{Session, TestDb};

/// What is on the small disk.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SmallFor {
    Log,
    Tables,
}

/// A file system of its own, with this many megabytes.
struct SmallDisk(PathBuf);

impl SmallDisk {
    /// None, and the reason on stderr, if this process may not mount one.
    fn mount(at: &Path, megabytes: u32) -> Result<Option<Self>> {
        let mount = Command::new("mount")
            .args(["-t", "tmpfs", "-o", &format!("size={megabytes}m,mode=0700"), "queen"])
            .arg(at)
            .output();
        match mount {
            Ok(output) if output.status.success() => Ok(Some(Self(at.to_owned()))),
            Ok(output) => {
                let said = String::from_utf8_lossy(&output.stderr).into_owned();
                eprintln!("skipped: this user may not mount a small disk: {}", said.trim());
                Ok(None)
            }
            Err(error) => {
                eprintln!("skipped: there is no command to mount a small disk with: {error}");
                Ok(None)
            }
        }
    }

    /// Write until nothing more fits.
    fn fill(&self) -> Result<()> {
        let mut ballast = fs::File::options().create(true).append(true).open(self.ballast())?;
        for size in [1 << 20, 1 << 12] {
            let block = vec![7; size];
            while ballast.write_all(&block).is_ok() {}
        }
        Ok(())
    }

    fn free(&self) -> Result<()> {
        Ok(fs::remove_file(self.ballast())?)
    }

    fn ballast(&self) -> PathBuf {
        self.0.join("ballast")
    }
}

impl Drop for SmallDisk {
    fn drop(&mut self) {
        let unmounted = Command::new("umount").arg("-l").arg(&self.0).status();
        if !unmounted.is_ok_and(|status| status.success()) {
            eprintln!("could not unmount {}", self.0.display());
        }
    }
}

/// Fill the disk `times` times. None: it cannot be tested here.
pub async fn with_a_full_disk(season: Season, place: SmallFor) -> Result<Option<Report>> {
    let settings = "min_wal_size = 32MB\nmax_wal_size = 48MB\nwal_keep_size = 0";
    let cluster = Arc::new(Cluster::init_with(&format!("{SETTINGS}{settings}"))?);
    let disk = match place {
        SmallFor::Log => log_disk(&cluster)?,
        SmallFor::Tables => {
            let directory = cluster.file("small");
            fs::create_dir(&directory)?;
            SmallDisk::mount(&directory, 64)?
        }
    };
    let Some(disk) = disk else { return Ok(None) };
    cluster.start()?;
    let db = TestDb::create_empty(&cluster.config()).await?;
    if place == SmallFor::Tables {
        let admin = Session::open(&cluster.config()).await?;
        let directory = cluster.file("small/space");
        fs::create_dir(&directory)?;
        let sql = format!("CREATE TABLESPACE small LOCATION '{}'", directory.display());
        admin.run(&sql).await?;
        admin.run(&format!("ALTER DATABASE {} SET TABLESPACE small", db.name())).await?;
    }
    db.session().await?.run("CREATE EXTENSION queen_mq").await?;
    set_up(db.config()).await?;
    let shop = Shop::new(season, db.config().clone());
    let played = play(&shop, &cluster, &disk, place).await;
    drop(db);
    let stopped = cluster.crash();
    played.with_context(|| cluster.logged().unwrap_or_default())?;
    stopped?;
    Ok(Some(report(&shop)))
}

/// Put the log on a disk of its own.
fn log_disk(cluster: &Cluster) -> Result<Option<SmallDisk>> {
    let (log, aside) = (cluster.data().join("pg_wal"), cluster.file("wal"));
    fs::rename(&log, &aside)?;
    fs::create_dir(&log)?;
    let disk = SmallDisk::mount(&log, 96)?;
    let copied = Command::new("cp").arg("-a").arg(aside.join(".")).arg(&log).status()?;
    ensure!(copied.success(), "the log was not copied");
    Ok(disk)
}

async fn play(
    shop: &Arc<Shop>,
    cluster: &Arc<Cluster>,
    disk: &SmallDisk,
    place: SmallFor,
) -> Result<()> {
    let mut staff = Staff::hire(shop);
    let target = shop.primary().0;
    for number in 1..=shop.season.times {
        staff.work(shop, shop.season.between).await?;
        disk.fill()?;
        match place {
            SmallFor::Log => until_the_log_is_full(shop, cluster).await?,
            SmallFor::Tables => until_tables_are_full(shop, &mut staff).await?,
        }
        disk.free()?;
        shop.count("times the disk was full");
        if place == SmallFor::Log {
            let restarted = cluster.clone();
            spawn_blocking(move || come_back(&restarted)).await??;
        }
        audit::audit(shop, &target).await?;
        shop.say(&format!("full {number} times"));
    }
    staff.work(shop, shop.season.between).await?;
    shop.closing.store(true, Ordering::Relaxed);
    staff.finish(shop).await?;
    audit::audit(shop, &target).await?;
    audit::figures(shop).await
}

/// The server panics when it needs a further file for its log.
async fn until_the_log_is_full(shop: &Shop, cluster: &Cluster) -> Result<()> {
    let began = Instant::now();
    let panics = || cluster.logged().map(|log| log.matches("PANIC").count());
    let before = panics()?;
    while panics()? == before {
        ensure!(began.elapsed() < COME_BACK, "the log did not become full");
        if let Ok(session) = Session::open(&shop.primary().0).await {
            drop(session.run("SELECT pg_switch_wal()").await);
        }
        sleep(Duration::from_millis(20)).await;
    }
    // It tries to recover meanwhile, and may fail.
    sleep(Duration::from_millis(500)).await;
    Ok(())
}

async fn until_tables_are_full(shop: &Shop, staff: &mut Staff) -> Result<()> {
    let began = Instant::now();
    let refused = || shop.ledger().stats.get("disk full").copied().unwrap_or(0);
    let before = refused();
    while refused() < before + 20 {
        ensure!(began.elapsed() < COME_BACK, "the tables did not fill their disk");
        staff.watch(Duration::from_millis(20)).await?;
    }
    Ok(())
}

/// Wait for the end of the recovery, or start the server if that has failed.
fn come_back(cluster: &Cluster) -> Result<()> {
    let began = Instant::now();
    loop {
        match cluster.state()? {
            (true, true) => return Ok(()),
            (true, false) => {}
            (false, _) => drop(cluster.start()),
        }
        ensure!(began.elapsed() < COME_BACK, "the server did not come back");
        std::thread::sleep(Duration::from_millis(100));
    }
}
