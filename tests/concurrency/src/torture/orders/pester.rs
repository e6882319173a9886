//! Ends and cancels sessions, ends the worker, and sets the clock, at random.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use anyhow::Result;
use rand::RngExt;
use tokio::time::sleep;
use tokio_postgres::Error;

use super::{APPLICATION, Shop};
use crate::Session;
use crate::clock::ServerClock;

const CLIENTS: &str = "SELECT pid FROM pg_stat_activity WHERE application_name = $1
                       ORDER BY random() LIMIT 1";

/// Go on until the shop is closing.
pub async fn pester(shop: Arc<Shop>, clock: Option<Arc<ServerClock>>) -> Result<()> {
    let mut session = None;
    while !shop.closing.load(Ordering::Relaxed) {
        let pause = rand::rng().random_range(20..120);
        sleep(Duration::from_millis(pause)).await;
        if let Some(clock) = clock.as_ref().filter(|_| rand::rng().random_bool(0.1)) {
            let _held = shop.clock.lock().await;
            clock.set(rand::rng().random_range(-1..=1))?;
            shop.count("times the clock was set");
        }
        let Some(open) = &session else {
            session = Session::open(&shop.primary().0).await.ok();
            continue;
        };
        match disturb(open).await {
            Ok(what) => shop.count(what),
            Err(_) => session = None,
        }
    }
    Ok(())
}

async fn disturb(session: &Session) -> Result<&'static str, Error> {
    let dice = rand::rng().random_range(0..100);
    let (what, sql) = match dice {
        0..55 => {
            ("sessions cancelled", format!("SELECT pg_cancel_backend(pid) FROM ({CLIENTS}) c"))
        }
        55..95 => {
            ("sessions ended", format!("SELECT pg_terminate_backend(pid) FROM ({CLIENTS}) c"))
        }
        _ => {
            let sql = "SELECT pg_terminate_backend(pid) FROM pg_stat_activity
                       WHERE backend_type = 'queen_mq worker' AND $1 <> ''";
            ("times the worker was ended", sql.to_owned())
        }
    };
    session.query(&sql, &[&APPLICATION]).await?;
    Ok(what)
}

/// Set the clock to where each lease has ended, and end all sessions: a timeout that was set before
/// would come when the clock is there.
pub async fn calm(shop: &Shop, clock: &ServerClock) -> Result<()> {
    clock.set(3)?;
    let sql = "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE application_name = $1";
    let session = Session::open(&shop.primary().0).await?;
    session.query(sql, &[&APPLICATION]).await?;
    Ok(())
}
