//! An error in any function, whatever raises it and wherever it is caught, acts like an error in a
//! statement of PostgreSQL itself. Role, settings and transaction are as before the call. What the
//! failed block did is undone, what came before it stays, and the session goes on.

use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use queen_tests::cluster::Cluster;
use queen_tests::containment::{
    CALLS, Call, Failure, Interrupt, MODES, Mode, Ready, SETTINGS, Stage, is_plain, statement,
};
use queen_tests::{Fails, Session};

/// All cases that went wrong, so that one run reports all of them.
#[derive(Default)]
struct CaseReport(Vec<String>);

impl CaseReport {
    /// Note a case that went wrong. True if the session may be in any state now.
    async fn note(&mut self, stage: &Stage, what: &str, done: Result<()>) -> Result<bool> {
        let Err(error) = done else { return Ok(false) };
        self.0.push(format!("{what}: {error:#}"));
        stage.admin.run("SELECT 1").await.with_context(|| format!("{what}: {error:#}"))?;
        Ok(true)
    }

    fn judge(self, stage: &Stage) -> Result<()> {
        let n = self.0.len();
        ensure!(n == 0, "{n} cases went wrong:\n{}", self.0.join("\n"));
        stage.logs_nothing_bad()
    }
}

async fn stage() -> Result<Stage> {
    Stage::set_up(Cluster::start_with(SETTINGS)?).await
}

/// What another session does to make the call wait.
fn obstacles(call: &Call, ready: &Ready) -> Vec<String> {
    let table = format!("LOCK TABLE queen_mq.{} IN ACCESS EXCLUSIVE MODE", call.table);
    call.rival.holds().map(|rival| ready.fill(rival)).into_iter().chain([table]).collect()
}

/// Let a transaction hold the call up until the call fails, in each mode and with each obstacle.
/// Then the call succeeds, because no failure has left anything behind.
async fn every_call_that_waits(failure: Failure) -> Result<()> {
    let stage = stage().await?;
    let mut report = CaseReport::default();
    let mut app = stage.app().await?;
    for call in CALLS {
        let ready = stage.prepare().await.context(call.name)?;
        let all = obstacles(call, &ready);
        // Waiting for the end of a statement takes long, so one obstacle is enough.
        let few =
            if failure.settings.iter().any(|set| set.0 == "statement_timeout") { 1 } else { 2 };
        for obstacle in all.iter().take(few) {
            for mode in MODES.into_iter().filter(|mode| call.works_in(*mode)) {
                let failure = Failure { obstacle: obstacle.clone(), ..failure.clone() };
                let done = stage.fails(&app, call, &ready, mode, &failure).await;
                let what = format!("{}, {mode:?}, behind {obstacle}", call.name);
                if report.note(&stage, &what, done).await? {
                    app = stage.app().await?;
                }
            }
        }
        report.note(&stage, call.name, succeeds(&app, call, &ready).await).await?;
    }
    report.judge(&stage)
}

/// Make the call without an obstacle.
async fn succeeds(app: &Session, call: &Call, ready: &Ready) -> Result<()> {
    if !call.sql.starts_with("CALL") {
        app.run(&statement(&ready.fill(call.sql))).await.context("with nothing in its way")?;
    }
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn a_lock_timeout() -> Result<()> {
    let settings = &[("lock_timeout", "20ms")];
    every_call_that_waits(Failure { state: "55P03", settings, ..Failure::default() }).await
}

#[tokio::test(flavor = "multi_thread")]
async fn a_lock_timeout_at_each_table_that_a_call_comes_to() -> Result<()> {
    let stage = stage().await?;
    let mut report = CaseReport::default();
    let mut app = stage.app().await?;
    let sql = "SELECT oid::regclass::text FROM pg_class
               WHERE relnamespace = 'queen_mq'::regnamespace AND relkind = 'r'";
    let tables: Vec<String> =
        stage.admin.query(sql, &[]).await?.iter().map(|row| row.get(0)).collect();
    ensure!(tables.len() > 15, "{tables:?}");
    for call in CALLS.iter().filter(|call| call.works_in(Mode::Handler)) {
        let ready = stage.prepare().await.context(call.name)?;
        for table in &tables {
            let failure = Failure {
                state: "55P03",
                settings: &[("lock_timeout", "3ms")],
                obstacle: format!("LOCK TABLE {table} IN ACCESS EXCLUSIVE MODE"),
                may_succeed: true,
                ..Failure::default()
            };
            let done = stage.fails(&app, call, &ready, Mode::Handler, &failure).await;
            if report.note(&stage, &format!("{} at {table}", call.name), done).await? {
                app = stage.app().await?;
            }
        }
        report.note(&stage, call.name, succeeds(&app, call, &ready).await).await?;
    }
    report.judge(&stage)
}

#[tokio::test(flavor = "multi_thread")]
async fn a_statement_timeout() -> Result<()> {
    let settings = &[("statement_timeout", "120ms")];
    every_call_that_waits(Failure { state: "57014", settings, ..Failure::default() }).await
}

#[tokio::test(flavor = "multi_thread")]
async fn a_cancellation() -> Result<()> {
    let interrupt = Interrupt::Call("pg_cancel_backend");
    every_call_that_waits(Failure { state: "57014", interrupt, ..Failure::default() }).await
}

#[tokio::test(flavor = "multi_thread")]
async fn a_termination() -> Result<()> {
    let stage = stage().await?;
    let mut report = CaseReport::default();
    let interrupt = Interrupt::Call("pg_terminate_backend");
    for call in CALLS {
        let ready = stage.prepare().await.context(call.name)?;
        let obstacles = obstacles(call, &ready);
        for (mode, obstacle) in MODES.into_iter().zip(obstacles.iter().cycle()) {
            if call.works_in(mode) {
                let obstacle = obstacle.clone();
                let failure = Failure { state: "57P01", obstacle, interrupt, ..Failure::default() };
                let what = format!("{}, {mode:?}, behind {}", call.name, failure.obstacle);
                let done = stage.dies(call, &ready, mode, &failure).await;
                report.note(&stage, &what, done).await?;
                stage.holder.run("ROLLBACK").await?;
            }
        }
        let done = succeeds(&stage.app().await?, call, &ready).await;
        report.note(&stage, call.name, done).await?;
    }
    report.judge(&stage)
}

#[tokio::test(flavor = "multi_thread")]
async fn a_transaction_that_only_reads() -> Result<()> {
    let stage = stage().await?;
    let mut report = CaseReport::default();
    let mut app = stage.app().await?;
    for call in CALLS {
        let ready = stage.prepare().await.context(call.name)?;
        // Here queen_kv_check guards no write, so it takes no lock.
        if !call.writes || call.name == "queen_kv_check" {
            app.run("BEGIN READ ONLY").await?;
            let done = succeeds(&app, call, &ready).await;
            app.run("ROLLBACK").await?;
            report.note(&stage, call.name, done).await?;
            continue;
        }
        for mode in MODES.into_iter().filter(|mode| call.works_in(*mode)) {
            let failure = match mode {
                Mode::Autocommit => Failure {
                    settings: &[("default_transaction_read_only", "on")],
                    ..Failure::default()
                },
                _ => Failure {
                    in_block: "SET LOCAL transaction_read_only = on",
                    ..Failure::default()
                },
            };
            let failure = Failure { state: "25006", ..failure };
            let done = stage.fails(&app, call, &ready, mode, &failure).await;
            if report.note(&stage, &format!("{}, {mode:?}", call.name), done).await? {
                app = stage.app().await?;
            }
        }
        report.note(&stage, call.name, succeeds(&app, call, &ready).await).await?;
    }
    report.judge(&stage)
}

#[tokio::test(flavor = "multi_thread")]
async fn a_conflict_in_repeatable_read() -> Result<()> {
    let stage = stage().await?;
    let mut report = CaseReport::default();
    let mut app = stage.app().await?;
    for call in CALLS {
        let Some(rival) = call.rival.conflicts() else { continue };
        for mode in MODES {
            // In autocommit the snapshot is older than the wait.
            let interrupts = match mode {
                Mode::Autocommit => &[Interrupt::Commit][..],
                _ => &[Interrupt::Before, Interrupt::Commit],
            };
            for interrupt in interrupts {
                let ready = stage.prepare().await.context(call.name)?;
                let failure = Failure {
                    state: "40001",
                    settings: &[("default_transaction_isolation", "repeatable read")],
                    obstacle: ready.fill(rival),
                    interrupt: *interrupt,
                    ..Failure::default()
                };
                let done = stage.fails(&app, call, &ready, mode, &failure).await;
                if report.note(&stage, &format!("{}, {mode:?}", call.name), done).await? {
                    app = stage.app().await?;
                }
            }
        }
    }
    report.judge(&stage)
}

const BACKTRACES: &[(&str, &str)] = &[("RUST_BACKTRACE", "full"), ("RUST_LIB_BACKTRACE", "1")];

#[tokio::test(flavor = "multi_thread")]
async fn no_error_carries_a_backtrace_whatever_the_environment_says() -> Result<()> {
    let stage = Stage::set_up(Cluster::start_in(BACKTRACES, SETTINGS)?).await?;
    let mut report = CaseReport::default();
    let mut app = stage.app().await?;
    for call in CALLS {
        let ready = stage.prepare().await.context(call.name)?;
        let failure = Failure {
            state: "55P03",
            settings: &[("lock_timeout", "10ms")],
            obstacle: obstacles(call, &ready).swap_remove(0),
            ..Failure::default()
        };
        let done = stage.fails(&app, call, &ready, Mode::Autocommit, &failure).await;
        if report.note(&stage, call.name, done).await? {
            app = stage.app().await?;
        }
    }
    // Errors of the extension itself, and errors of what it calls.
    for (sql, state) in [
        ("SELECT queen_ack('00000000-0000-4000-8000-000000000000')", "QN003"),
        ("SELECT queen_push('q', NULL)", "22023"),
        ("SELECT queen_purge('nothing of the kind')", "42704"),
        ("SELECT queen_kv_incr('n', 'k', 'NaN', forever => true)", "22023"),
        ("SELECT queen_tx_commit('[{\"type\": \"push\"}]')", "22023"),
    ] {
        let raised = app.run(sql).await.fails_with(state)?;
        report.note(&stage, sql, is_plain(raised.detail().unwrap_or_default())).await?;
    }
    report.judge(&stage)
}

/// The shortest time after which a lock timeout of 100 ms ends a statement, in sessions that have
/// raised no error before.
async fn first_timeout(stage: &Stage, obstacle: &str, sql: &str) -> Result<Duration> {
    let mut shortest = Duration::MAX;
    for _ in 0..4 {
        let fresh = stage.db.session().await?;
        fresh.run("SET lock_timeout = '100ms'").await?;
        stage.holder.run("BEGIN").await?;
        stage.holder.run(obstacle).await?;
        let began = Instant::now();
        let done = fresh.run(sql).await;
        shortest = shortest.min(began.elapsed());
        stage.holder.run("ROLLBACK").await?;
        done.fails_with("55P03")?;
    }
    Ok(shortest)
}

#[tokio::test(flavor = "multi_thread")]
async fn the_first_error_of_a_session_is_no_later_than_without_the_extension() -> Result<()> {
    let stage = Stage::set_up(Cluster::start_in(BACKTRACES, SETTINGS)?).await?;
    stage.admin.run("SELECT queen_push('q', '1')").await?;
    let plain = "LOCK TABLE public.effects";
    let plain = first_timeout(&stage, plain, "SELECT * FROM public.effects").await?;
    let lock = "LOCK TABLE queen_mq.segment IN ACCESS EXCLUSIVE MODE";
    let ours = first_timeout(&stage, lock, "SELECT queen_push('q', '2')").await?;
    ensure!(ours < plain + Duration::from_millis(100), "{ours:?}, and {plain:?} without");
    Ok(())
}
