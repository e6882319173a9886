//! Scenario 12: from the commit of a push to the return of the pop that waits for it.

use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Result, ensure};
use tokio::sync::Mutex;
use tokio::time::interval;

use crate::lab::Lab;
use crate::load;
use crate::outcome::{Check, Goal, Outcome, Sample};
use crate::payload::Size;

/// Pushes a second.
const RATE: u64 = 200;
/// Other sessions, which wait for a queue to which no producer pushes.
const BYSTANDERS: usize = 200;
const LABEL: &str = "push commit to pop return";

pub async fn run(lab: &Lab) -> Result<Outcome> {
    let db = lab.server.database("wakeups").await?;
    let messages = RATE * lab.scale.wakeup_seconds;
    let sessions = db.sessions(2 + BYSTANDERS).await?;
    let (producer, consumer) = (sessions[0].clone(), sessions[1].clone());
    producer.row("SELECT queen_subscribe('q', 'g')", &[]).await?;
    let mut bystanders = Vec::new();
    for session in &sessions[2..] {
        let session = session.clone();
        bystanders.push(tokio::spawn(async move {
            // They wait until the end of the run, which drops them.
            while session.rows("SELECT 1 FROM queen_pop('idle', wait => '60 s')", &[]).await.is_ok()
            {
            }
        }));
    }

    // When each push had committed, by its producer's clock.
    let committed: Arc<Mutex<Vec<Option<Instant>>>> =
        Arc::new(Mutex::new(vec![None; usize::try_from(messages)?]));
    let payload = lab.payloads.one(Size::Small, 0).text().to_owned();
    let pushes = {
        let committed = committed.clone();
        tokio::spawn(async move {
            let mut ticks = interval(Duration::from_micros(1_000_000 / RATE));
            for n in 0..messages {
                ticks.tick().await;
                let id = n.to_string();
                let sql = "SELECT 1 FROM queen_push('q', $1::text::jsonb, transaction_id => $2)";
                let began = Instant::now();
                producer.row(sql, &[&payload, &id]).await?;
                // The pop may return before the push does; then it took no time.
                committed.lock().await[usize::try_from(n)?] = Some(Instant::now().max(began));
            }
            Ok::<_, anyhow::Error>(())
        })
    };
    let mut latencies = load::latencies()?;
    let mut came = 0;
    while came < messages {
        let sql = "SELECT transaction_id FROM queen_pop('q', 'g', batch => 100, wait => '20 s', \
            auto_ack => true)";
        let rows = consumer.rows(sql, &[]).await?;
        let returned = Instant::now();
        ensure!(!rows.is_empty(), "{came} of {messages} messages came");
        for row in rows {
            came += 1;
            let n: usize = row.get::<_, String>(0).parse()?;
            let pushed = committed.lock().await[n];
            let delay = pushed.map_or(Duration::ZERO, |at| returned.saturating_duration_since(at));
            load::record(&mut latencies, delay);
        }
    }
    pushes.await??;
    bystanders.iter().for_each(tokio::task::JoinHandle::abort);

    let method = format!(
        "one session pushes {RATE} times a second, another waits in queen_pop; \
         {BYSTANDERS} more wait for a queue to which no producer pushes"
    );
    let mut outcome = Outcome::new(12, "waking a waiting pop", method);
    let sample = Sample::of_latencies(LABEL, &latencies);
    let [p50, p99] = [sample.p50_ms, sample.p99_ms].map(Option::unwrap_or_default);
    outcome.samples.push(sample);
    outcome.checks.push(Check::value("median".to_owned(), p50, "ms", Some(Goal::Below(2.0))));
    outcome.checks.push(Check::value("99 of 100".to_owned(), p99, "ms", Some(Goal::Below(10.0))));
    drop(sessions);
    lab.server.drop_database(db).await?;
    Ok(outcome)
}
