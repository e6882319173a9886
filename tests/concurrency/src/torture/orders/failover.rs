//! Standbys are promoted while the clients work. The old primary goes on for a moment, and clients
//! that popped there ack at the new one.
//!
//! There are three servers in a row: the primary, its standby, and the standby of that one. The
//! second becomes the primary, the third its standby, and a new copy of the third the last in the
//! row.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use anyhow::{Context, Result};
use tokio::task::spawn_blocking;
use tokio_postgres::config::Config as Target;

use super::clerk::{self, Batch};
use super::ledger::{Entry, Fate, Span};
use super::{Desk, GROUP, SETTINGS, Season, Shop, Staff, audit, report, set_up};
use crate::cluster::Cluster;
use crate::expect::sqlstate;
use crate::queen::{Ack, Pop};
use crate::torture::Report;
use crate::{Session, TestDb, eventually};

/// How long the old primary goes on after the promotion.
const LATE: Duration = Duration::from_millis(700);
/// Pops for a zombie on each server.
const GRABS: usize = 3;
const SOON: Duration = Duration::from_secs(60);

/// The servers, from the primary on.
type Row = [Arc<Cluster>; 3];

/// Promote a standby `times` times.
pub async fn with_promotions(season: Season) -> Result<Report> {
    let names = if season.synchronous { "*" } else { "" };
    // Who is not connected directly is no synchronous standby, so the third server never is.
    let settings = format!("{SETTINGS}synchronous_standby_names = '{names}'");
    let mut row: Row = spawn_blocking(move || {
        let first = Cluster::start_with(&settings)?;
        let second = first.standby_as("0")?;
        let third = second.standby_as("1")?;
        anyhow::Ok([first, second, third].map(Arc::new))
    })
    .await??;
    let db = TestDb::create(&row[0].config()).await?;
    set_up(db.config()).await?;
    let shop = Shop::new(season, db.config().clone());
    let played = play(&shop, &mut row, db.name()).await;
    // The server on which it was made is gone.
    std::mem::forget(db);
    played.with_context(|| row[0].logged().unwrap_or_default())?;
    Ok(report(&shop))
}

async fn play(shop: &Arc<Shop>, row: &mut Row, database: &str) -> Result<()> {
    let mut staff = Staff::hire(shop);
    for number in 1..=shop.season.times {
        staff.work(shop, shop.season.between).await?;
        promote(shop, row, database, &mut staff).await?;
        shop.count("promotions");
        let target = shop.primary().0;
        audit::audit(shop, &target).await?;
        if number < shop.season.times {
            let source = row[1].clone();
            let fresh = move || source.standby_as(&format!("{}", number + 1));
            row[2] = Arc::new(spawn_blocking(fresh).await??);
        }
        shop.say(&format!("promoted {number} times"));
    }
    staff.work(shop, shop.season.between).await?;
    shop.closing.store(true, Ordering::Relaxed);
    staff.finish(shop).await?;
    let target = shop.primary().0;
    audit::audit(shop, &target).await?;
    audit::figures(shop).await
}

/// Promote the second server. The first one is fenced later, and dropped.
async fn promote(shop: &Arc<Shop>, row: &mut Row, database: &str, staff: &mut Staff) -> Result<()> {
    let (old, _) = shop.primary();
    let mut new = row[1].config();
    new.dbname(database);
    let known = Grabbed::from(shop, &old).await?.commit().await?;
    let unknown = Grabbed::from(shop, &old).await?;
    if shop.season.synchronous {
        is_replicated(&new, known.iter().map(|batch| batch.span.after).max()).await?;
    } else {
        cut_off(&new, &old).await?;
        staff.work(shop, shop.season.between / 2).await?;
    }
    let promoted = row[1].clone();
    spawn_blocking(move || promoted.promote()).await??;
    let fork = fork(&new).await?;
    let unknown = unknown.commit().await?;
    shop.ledger().forks.push(fork);
    shop.move_to(new.clone());
    staff.watch(LATE).await?;
    let fenced = row[0].clone();
    spawn_blocking(move || fenced.crash()).await??;
    shop.say("fenced the old primary");

    let zombie = Desk::open(shop).await?;
    for batch in unknown.into_iter().chain(known) {
        settle(shop, &zombie, batch).await?;
    }
    row.rotate_left(1);
    Ok(())
}

/// Leases that last, in a transaction that is open.
struct Grabbed {
    desk: Desk,
    batches: Vec<Batch>,
}

impl Grabbed {
    /// Pop on the primary, until something has come.
    async fn from(shop: &Shop, target: &Target) -> Result<Self> {
        let epoch = shop.primary().1;
        let desk = Desk { session: Session::open(target).await?, epoch };
        desk.session.run("BEGIN").await?;
        let batches = eventually("messages for a zombie", SOON, async || {
            let mut batches = Vec::new();
            for queue in ["orders", "parcels"].repeat(GRABS) {
                let pop = Pop::new(queue).group(GROUP).batch(2).lease("60 seconds");
                batches.extend(clerk::pop_batch(&desk, &pop).await?);
            }
            Ok((!batches.is_empty()).then_some(batches))
        })
        .await?;
        Ok(Self { desk, batches })
    }

    /// A transaction that has only popped waits for no standby.
    async fn commit(self) -> Result<Vec<Batch>> {
        let Self { desk, mut batches } = self;
        let before = desk.position().await?;
        desk.session.run("COMMIT").await?;
        let after = desk.position().await?;
        for batch in &mut batches {
            batch.span = Span { before, after, ..batch.span };
        }
        Ok(batches)
    }
}

/// Wait until a standby has replayed the log so far.
async fn is_replicated(standby: &Target, position: Option<i64>) -> Result<()> {
    let Some(position) = position else { return Ok(()) };
    let session = Session::open(standby).await?;
    let sql = "SELECT (pg_last_wal_replay_lsn() - '0/0')::bigint";
    eventually("replay", SOON, async || {
        // The log ends with what an asynchronous commit has written, and is flushed soon.
        Ok((session.count(sql).await? >= position).then_some(()))
    })
    .await
}

/// The standby gets no log any more.
async fn cut_off(standby: &Target, primary: &Target) -> Result<()> {
    let session = Session::open(standby).await?;
    session.run("ALTER SYSTEM SET primary_conninfo = ''").await?;
    session.run("SELECT pg_reload_conf()").await?;
    let session_there = Session::open(primary).await?;
    let receivers = "SELECT count(*) FROM pg_stat_wal_receiver";
    let senders = "SELECT count(*) FROM pg_stat_replication";
    eventually("end of replication", SOON, async || {
        let gone = session.count(receivers).await? + session_there.count(senders).await? == 0;
        Ok(gone.then_some(()))
    })
    .await
}

/// Where the log of this server has left that of the former primary.
async fn fork(promoted: &Target) -> Result<i64> {
    let session = Session::open(promoted).await?;
    let sql = "SELECT pg_read_file(
                   'pg_wal/' || left(pg_walfile_name(pg_current_wal_lsn()), 8) || '.history')";
    let history: String = session.query_one(sql, &[]).await?.get(0);
    let last = history.lines().rfind(|line| !line.trim().is_empty());
    let position = last.and_then(|line| line.split_whitespace().nth(1));
    let position = position.with_context(|| format!("no fork in {history:?}"))?;
    let sql = "SELECT ($1::text::pg_lsn - '0/0')::bigint";
    Ok(session.query_one(sql, &[&position]).await?.get(0))
}

/// What a zombie does at the new primary: it charges and acks what it popped at the old one.
async fn settle(shop: &Shop, desk: &Desk, batch: Batch) -> Result<()> {
    let fate = shop.ledger().fate(batch.span);
    let session = &desk.session;
    session.run("BEGIN").await?;
    let mut charges = Vec::new();
    for message in &batch.messages {
        let (order, receipt) = (message.transaction_id.clone(), shop.receipt());
        clerk::insert(session, message, receipt).await?;
        charges.push((order, receipt));
    }
    let before = desk.position().await?;
    let settled = match Ack::all(batch.lease).run(session).await {
        Ok(_) => clerk::mark(session, &batch.messages).await,
        Err(error) => Err(error),
    };
    match (fate, settled) {
        (Fate::Lost, Err(error)) if sqlstate(&error) == Some("QN003") => {
            session.run("ROLLBACK").await?;
            shop.count("leases that were not replicated, refused");
        }
        (Fate::Kept, Ok(())) => {
            session.run("COMMIT").await?;
            let after = desk.position().await.unwrap_or(i64::MAX);
            let span = Span { epoch: desk.epoch, before, after };
            let entries = charges.into_iter();
            let entries = entries.map(|(order, receipt)| Entry { order, receipt, span });
            let mut ledger = shop.ledger();
            ledger.charged.extend(entries);
            *ledger.stats.entry("leases that were replicated, accepted").or_default() += 1;
        }
        (Fate::Unknown, _) => {
            session.run("ROLLBACK").await?;
            // If the lease is there, others need not wait for its end.
            drop(Ack::all(batch.lease).status("retry").run(session).await);
            shop.count("leases at the fork, rolled back");
        }
        (_, settled) => {
            session.run("ROLLBACK").await?;
            let text = format!("Zombie: a lease that is {fate:?} gave {settled:?}");
            shop.ledger().violations.push(text);
        }
    }
    Ok(())
}
