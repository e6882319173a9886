//! The postmaster is killed while the clients work.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use anyhow::{Context, Result, bail};
use rand::RngExt;
use tokio::task::spawn_blocking;

use super::{SETTINGS, Season, Shop, Staff, audit, pester, report, set_up};
use crate::clock::ServerClock;
use crate::cluster::Cluster;
use crate::torture::Report;
use crate::{Session, TestDb};

/// Kill the postmaster, or a backend, `times` times.
pub async fn with_crashes(season: Season) -> Result<Report> {
    let clock = Arc::new(ServerClock::new("orders")?);
    let cluster = Arc::new(Cluster::start_in(clock.environment()?, SETTINGS)?);
    let db = TestDb::create(&cluster.config()).await?;
    set_up(db.config()).await?;
    let shop = Shop::new(season, db.config().clone());
    let played = play(&shop, &cluster, &clock).await;
    drop(db);
    played.with_context(|| cluster.logged().unwrap_or_default())?;
    Ok(report(&shop))
}

async fn play(shop: &Arc<Shop>, cluster: &Arc<Cluster>, clock: &Arc<ServerClock>) -> Result<()> {
    let mut staff = Staff::hire(shop);
    let pest = tokio::spawn(pester::pester(shop.clone(), Some(clock.clone())));
    let target = shop.primary().0;
    for number in 1..=shop.season.times {
        let between = shop.season.between.mul_f64(rand::rng().random_range(0.7..1.3));
        staff.work(shop, between).await?;
        // Of three crashes more, one is that of a single backend.
        if number % 3 == 0 {
            kill_a_backend(shop).await?;
        }
        let killed = cluster.clone();
        let held = shop.clock.lock().await;
        spawn_blocking(move || killed.kill()).await??;
        drop(held);
        shop.count("postmasters killed");
        audit::audit(shop, &target).await?;
        shop.say(&format!("killed {number} times"));
    }
    staff.work(shop, shop.season.between).await?;
    shop.closing.store(true, Ordering::Relaxed);
    pest.await??;
    pester::calm(shop, clock).await?;
    staff.finish(shop).await?;
    audit::audit(shop, &target).await?;
    audit::figures(shop).await
}

/// The postmaster then ends all sessions, recovers, and goes on.
async fn kill_a_backend(shop: &Shop) -> Result<()> {
    let Ok(session) = Session::open(&shop.primary().0).await else { return Ok(()) };
    let sql = "SELECT pid FROM pg_stat_activity WHERE application_name = $1 LIMIT 1";
    let Ok(Some(row)) = session.query_opt(sql, &[&super::APPLICATION]).await else { return Ok(()) };
    let pid: i32 = row.get(0);
    let status = std::process::Command::new("kill").args(["-9", &pid.to_string()]).status()?;
    if status.success() {
        shop.count("backends killed");
        tokio::time::sleep(shop.season.between / 2).await;
    }
    if shop.closed.load(Ordering::Relaxed) {
        bail!("the run has ended");
    }
    Ok(())
}
