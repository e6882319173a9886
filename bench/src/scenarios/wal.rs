//! Scenario 11: how much WAL a message costs.

use anyhow::{Result, ensure};

use super::consume::SYSTEMS;
use crate::db::{Db, Session};
use crate::fill;
use crate::job::{self, Action, Held, Job, System, Turn};
use crate::lab::Lab;
use crate::outcome::{Check, Goal, Outcome, Sample};
use crate::payload::Size;

const WARM_UP: u64 = 200;

#[derive(Clone, Copy)]
struct Cycles {
    batch: usize,
    unordered: bool,
    /// In bytes. Without a goal, only queen_mq is measured.
    goal: Option<f64>,
}

const CASES: [Cycles; 4] = [
    Cycles { batch: 1, unordered: false, goal: Some(1000.0) },
    Cycles { batch: 100, unordered: false, goal: Some(200.0) },
    Cycles { batch: 50, unordered: true, goal: Some(300.0) },
    Cycles { batch: 1, unordered: true, goal: None },
];

pub async fn run(lab: &Lab) -> Result<Outcome> {
    let db = lab.server.database("wal").await?;
    let method = "one session pushes, pops and acks over and over, into one partition; after a \
                  checkpoint and 200 cycles, which write the full images of the pages \
                  that are used, the distance of pg_current_wal_insert_lsn() over the next cycles \
                  is divided by their messages. No checkpoint happens meanwhile; \
                  autovacuum is on and counted";
    let mut outcome = Outcome::new(11, "WAL per message through push + pop + ack", method);
    for case in CASES {
        let ours = case.goal.is_some();
        for system in SYSTEMS.into_iter().filter(|system| ours || *system == System::Queen) {
            let unordered = case.unordered && system == System::Queen;
            let order = if unordered { ", without order" } else { "" };
            let label = format!("{}, batch {}{order}", system.label(), case.batch);
            lab.progress.set_message(label.clone());
            let bytes = per_message(lab, &db, system, case).await?;
            let goal = case.goal.filter(|_| system == System::Queen).map(Goal::Below);
            outcome.checks.push(Check::value(label.clone(), bytes, "B", goal));
            outcome.samples.push(Sample::of_values(label, "B/msg", vec![bytes]));
        }
    }
    lab.server.drop_database(db).await?;
    Ok(outcome)
}

async fn per_message(lab: &Lab, db: &Db, system: System, case: Cycles) -> Result<f64> {
    let Cycles { batch, unordered, .. } = case;
    let cycles = lab.scale.wal_cycles / if batch == 1 { 1 } else { 10 };
    let session = db.session().await?;
    let queue = format!("q_{batch}_{unordered}");
    system.create(&session, &queue).await?;
    if unordered && system == System::Queen {
        job::without_order(&session, &queue).await?;
    }
    let job =
        Job { system, queue, action: Action::Cycle { batch }, size: Size::Small, partitions: 1 };
    fill::analyze(db, system, &job.queue).await?;
    session.batch_execute("CHECKPOINT").await?;
    let steps = async |from: u64, to: u64| {
        let mut messages = 0;
        for step in from..to {
            let turn = Turn { worker: 0, step };
            messages += job.step(&session, &lab.payloads, turn, &mut Held::default()).await?;
        }
        anyhow::Ok(messages)
    };

    steps(0, WARM_UP).await?;
    let before = position(&session).await?;
    let messages = steps(WARM_UP, WARM_UP + cycles).await?;
    let after = position(&session).await?;
    ensure!(before.checkpoint == after.checkpoint, "a checkpoint came between");
    ensure!(messages == cycles * batch as u64, "{messages} messages in {cycles} cycles");
    Ok((after.wal - before.wal) / messages as f64)
}

struct Position {
    wal: f64,
    checkpoint: String,
}

async fn position(session: &Session) -> Result<Position> {
    let sql = "SELECT (pg_current_wal_insert_lsn() - '0/0')::float8,
                      (pg_control_checkpoint()).redo_lsn::text";
    let row = session.row(sql, &[]).await?;
    Ok(Position { wal: row.get(0), checkpoint: row.get(1) })
}
