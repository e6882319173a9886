//! Scenario 17: many sessions wait on one queue for the messages of one producer.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Result, bail, ensure};
use tokio::task::JoinSet;
use tokio::time::{interval, sleep, timeout};

use crate::cpu::ServerProcesses;
use crate::db::{Db, Session};
use crate::job::System;
use crate::lab::Lab;
use crate::load::{self, Latencies};
use crate::outcome::{Check, Goal, Line, Outcome, Sample, median};

/// Pushes a second.
const RATES: [u64; 2] = [100, 300];
const SYSTEMS: [System; 2] = [System::Queen, System::Pgmq];
const PARTITIONS: i64 = 100;
/// The numbers of waiting sessions that are compared.
const FEW: usize = 4;
const MANY: usize = 60;
/// All sessions are asleep so long after they began to wait.
const ASLEEP: Duration = Duration::from_millis(300);
/// How long a session may take to notice that its call is cancelled.
const NOTICE: Duration = Duration::from_millis(100);
/// The messages on their way when the run ends are not lost.
const FULL_RATE: f64 = 0.98;

/// So many sessions that wait, for so many messages a second.
#[derive(Clone, Copy)]
struct Case {
    system: System,
    waiting: usize,
    rate: u64,
}

impl Case {
    fn label(self) -> String {
        format!("{}, {} wait, {}/s", self.system.label(), self.waiting, self.rate)
    }

    fn cpu_label(self) -> String {
        format!("{}, CPU", self.label())
    }
}

/// The rounds of one case so far.
struct Rounds {
    case: Case,
    rates: Vec<f64>,
    /// What the producer reached, which waits for the disk after each push.
    pushed: Vec<f64>,
    /// In % of one core. Empty where /proc does not show the server.
    cpu: Vec<f64>,
    /// Of the messages that came. The rate tells whether some did not.
    latencies: Latencies,
}

impl Rounds {
    fn new(case: Case) -> Result<Self> {
        let latencies = load::latencies()?;
        Ok(Self { case, rates: Vec::new(), pushed: Vec::new(), cpu: Vec::new(), latencies })
    }
}

pub async fn run(lab: &Lab) -> Result<Outcome> {
    let db = lab.server.database("waiting").await?;
    let processes = ServerProcesses::find(&db.session().await?).await?;
    let mut all = Vec::new();
    for rate in RATES {
        for waiting in lab.scale.waiting_sessions.iter().copied() {
            for system in SYSTEMS {
                all.push(Rounds::new(Case { system, waiting, rate })?);
            }
        }
    }
    for round in 0..lab.scale.rounds {
        for (n, rounds) in all.iter_mut().enumerate() {
            lab.progress.set_message(rounds.case.label());
            one_round(lab, &db, processes, rounds, &format!("q{n}_{round}")).await?;
        }
    }

    let seconds = lab.scale.waiting_time.as_secs_f64();
    let method = format!(
        "sessions wait in queen_pop(wait => '20 s'), or in pgmq.read_with_poll for 20 s with its \
         own interval of 100 ms, and settle what they get; one session pushes to 100 partitions \
         for {seconds} s. Rate: messages that came in this time. Latency: from the return of the \
         push to that of the pop. CPU: all processes of the server, in % of one core"
    );
    let mut outcome = Outcome::new(17, "many that wait", method);
    for rounds in all {
        let case = rounds.case;
        outcome.samples.push(Sample::of_rates(case.label(), rounds.rates, &rounds.latencies));
        if !rounds.cpu.is_empty() {
            let sample = Sample::of_values(case.cpu_label(), "% of a core", rounds.cpu);
            outcome.samples.push(sample);
        }
        if case.waiting == MANY {
            let what = format!("{}: pushed / due", case.label());
            let pushed = median(&rounds.pushed);
            outcome.checks.push(Check::ratio(what, pushed, case.rate as f64, None));
        }
    }
    judge(&mut outcome, processes.is_some());
    if processes.is_some() {
        draw(&mut outcome, lab.scale.waiting_sessions);
    }
    lab.server.drop_database(db).await?;
    Ok(outcome)
}

fn judge(outcome: &mut Outcome, with_cpu: bool) {
    for rate in RATES {
        for system in SYSTEMS {
            let ours = system == System::Queen;
            let case = |waiting: usize| Case { system, waiting, rate };
            let many = case(MANY).label();
            if with_cpu {
                let goal = ours.then_some(Goal::AtMost(1.5));
                outcome.compare(&case(MANY).cpu_label(), &case(FEW).cpu_label(), goal);
            }
            let goal = ours.then_some(Goal::AtLeast(FULL_RATE));
            let what = format!("{many}: came / due");
            outcome.checks.push(Check::ratio(what, outcome.median(&many), rate as f64, goal));
            let sample = outcome.samples.iter().find(|sample| sample.label == many);
            let p99 = sample.and_then(|sample| sample.p99_ms).unwrap_or(f64::NAN);
            let goal = ours.then_some(Goal::Below(20.0));
            outcome.checks.push(Check::value(format!("{many}: p99"), p99, "ms", goal));
        }
    }
}

/// The CPU over the number of sessions, at the highest rate.
fn draw(outcome: &mut Outcome, sessions: &[usize]) {
    let [.., rate] = RATES;
    for system in SYSTEMS {
        let of = |waiting: usize| outcome.median(&Case { system, waiting, rate }.cpu_label());
        let points = sessions.iter().map(|n| (*n as f64, of(*n))).collect();
        outcome.lines.push(Line { label: format!("{}, {rate}/s", system.label()), points });
    }
    outcome.x_axis = "waiting sessions";
    outcome.y_axis = "CPU, % of one core";
}

/// Measures a case once, on a new queue.
async fn one_round(
    lab: &Lab,
    db: &Db,
    processes: Option<ServerProcesses>,
    rounds: &mut Rounds,
    queue: &str,
) -> Result<()> {
    let case = rounds.case;
    let duration = lab.scale.waiting_time;
    let sessions = db.sessions(1 + case.waiting).await?;
    let [producer, waiting @ ..] = sessions.as_slice() else { bail!("no session") };
    case.system.create(producer, queue).await?;
    let statements = Arc::new(Statements::new(case.system, queue)?);
    warm_up(&statements, producer, waiting).await?;
    let crowd = Crowd::start(&statements, waiting).await?;

    let used = |processes: ServerProcesses| processes.used();
    let before = processes.map(used).transpose()?;
    let began = Instant::now();
    let committed = produce(&statements, producer, case.rate, duration).await?;
    sleep(duration.saturating_sub(began.elapsed())).await;
    let elapsed = began.elapsed();
    let after = processes.map(used).transpose()?;
    let came = crowd.end(producer).await?;

    let in_time = came.iter().filter(|(_, returned)| *returned <= began + elapsed);
    rounds.pushed.push(committed.len() as f64 / elapsed.as_secs_f64());
    rounds.rates.push(in_time.count() as f64 / elapsed.as_secs_f64());
    if let (Some(before), Some(after)) = (before, after) {
        let cpu = after.saturating_sub(before).as_secs_f64() / elapsed.as_secs_f64();
        rounds.cpu.push(cpu * 100.0);
    }
    for (number, returned) in came {
        // A pop may return before the push does; then it took no time.
        if let Some(committed) = committed.get(number) {
            load::record(&mut rounds.latencies, returned.saturating_duration_since(*committed));
        }
    }
    Ok(())
}

/// The statements on one queue of one system.
struct Statements {
    /// Takes the number of the message, and that of the partition.
    push: String,
    /// Waits for a message. Returns a handle and the message's number.
    pop: String,
    /// Settles the message with this handle.
    settle: String,
}

impl Statements {
    fn new(system: System, queue: &str) -> Result<Self> {
        let (push, pop, settle) = match system {
            System::Queen => (
                "SELECT 1 FROM queen_push('QUEUE', \
                    jsonb_build_object('n', $1::bigint, 'pad', repeat('x', 70)), \
                    'p' || $2::bigint)",
                "SELECT lease_id::text, (payload->>'n')::bigint \
                 FROM queen_pop('QUEUE', wait => '20 s')",
                "SELECT 1 FROM queen_ack($1::text::uuid)",
            ),
            System::Pgmq => (
                "SELECT 1 FROM pgmq.send('QUEUE', \
                    jsonb_build_object('n', $1::bigint, 'pad', repeat('x', 64), 'p', $2::bigint))",
                "SELECT msg_id::text, (message->>'n')::bigint \
                 FROM pgmq.read_with_poll('QUEUE', 60, 1, 20)",
                "SELECT pgmq.delete('QUEUE', $1::text::bigint)",
            ),
            System::Table | System::Graphile => bail!("no session can wait for it"),
        };
        let [push, pop, settle] = [push, pop, settle].map(|sql| sql.replace("QUEUE", queue));
        Ok(Self { push, pop, settle })
    }
}

/// Uses every partition and every session before the clock runs, and leaves the queue empty.
async fn warm_up(sql: &Statements, producer: &Session, waiting: &[Arc<Session>]) -> Result<()> {
    let turns = waiting.len().max(usize::try_from(PARTITIONS)?);
    for (turn, session) in (0_i64..).zip(waiting.iter().cycle().take(turns)) {
        producer.row(&sql.push, &[&turn, &(turn % PARTITIONS)]).await?;
        let rows = session.rows(&sql.pop, &[]).await?;
        ensure!(rows.len() == 1, "one message was pushed, {} came", rows.len());
        session.row(&sql.settle, &[&rows[0].get::<_, String>(0)]).await?;
    }
    Ok(())
}

/// Pushes at a steady rate. Returns when each push had committed, by this driver's clock.
async fn produce(
    sql: &Statements,
    producer: &Session,
    rate: u64,
    duration: Duration,
) -> Result<Vec<Instant>> {
    let began = Instant::now();
    let mut ticks = interval(Duration::from_micros(1_000_000 / rate));
    let mut committed = Vec::new();
    for number in 0_i64.. {
        ticks.tick().await;
        if began.elapsed() >= duration {
            break;
        }
        producer.row(&sql.push, &[&number, &(number % PARTITIONS)]).await?;
        committed.push(Instant::now());
    }
    Ok(committed)
}

/// The number of a message, and when the pop returned that brought it.
type Came = (usize, Instant);

/// The sessions that wait.
struct Crowd {
    tasks: JoinSet<Result<Vec<Came>>>,
    over: Arc<AtomicBool>,
    pids: Vec<i32>,
}

impl Crowd {
    async fn start(sql: &Arc<Statements>, waiting: &[Arc<Session>]) -> Result<Self> {
        let mut crowd = Self { tasks: JoinSet::new(), over: Arc::default(), pids: Vec::new() };
        for session in waiting {
            let pid = session.row("SELECT pg_backend_pid()", &[]).await?.get(0);
            crowd.pids.push(pid);
            crowd.tasks.spawn(consume(sql.clone(), session.clone(), crowd.over.clone()));
        }
        sleep(ASLEEP).await;
        Ok(crowd)
    }

    /// Cancels what the sessions wait for. Returns what came.
    async fn end(mut self, admin: &Session) -> Result<Vec<Came>> {
        self.over.store(true, Ordering::Relaxed);
        let cancel = "SELECT pg_cancel_backend(pid) FROM unnest($1::int[]) AS pid";
        let mut came = Vec::new();
        loop {
            // Nothing happens to a session that is between two calls. It is cancelled again.
            admin.rows(cancel, &[&self.pids]).await?;
            while let Ok(ended) = timeout(NOTICE, self.tasks.join_next()).await {
                let Some(one) = ended else { return Ok(came) };
                came.extend(one??);
            }
        }
    }
}

/// Waits for one message after the other and settles it, until the run is over.
async fn consume(
    sql: Arc<Statements>,
    session: Arc<Session>,
    over: Arc<AtomicBool>,
) -> Result<Vec<Came>> {
    let mut came = Vec::new();
    while !over.load(Ordering::Relaxed) {
        match next(&sql, &session, &mut came).await {
            // The call was cancelled.
            Err(_) if over.load(Ordering::Relaxed) => break,
            done => done?,
        }
    }
    Ok(came)
}

async fn next(sql: &Statements, session: &Session, came: &mut Vec<Came>) -> Result<()> {
    let rows = session.rows(&sql.pop, &[]).await?;
    let returned = Instant::now();
    for row in rows {
        came.push((usize::try_from(row.get::<_, i64>(1))?, returned));
        session.row(&sql.settle, &[&row.get::<_, String>(0)]).await?;
    }
    Ok(())
}
