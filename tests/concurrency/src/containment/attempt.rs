//! One call that is made to fail, and the comparison of before and after.

use std::pin::pin;

use anyhow::{Context, Result, bail, ensure};
use tokio_postgres::Error;
use tokio_postgres::error::DbError;

use super::{Failure, Interrupt, Stage};
use crate::Session;

/// Give the session settings that are not the defaults, as an application may have them.
pub async fn calm(app: &Session) -> Result<()> {
    let sql = "RESET ALL; SET search_path = public, pg_temp; SET enable_seqscan = off;
               SET enable_hashjoin = off; SET work_mem = '1MB'; SET statement_timeout = '20s'";
    Ok(app.run(sql).await?)
}

async fn facts(app: &Session) -> Result<Vec<String>> {
    Ok(app.query_one("SELECT public.facts()", &[]).await?.get(0))
}

fn unchanged(before: &[String], after: &[String]) -> Result<()> {
    let lost = before.iter().filter(|fact| !after.contains(fact));
    let came = after.iter().filter(|fact| !before.contains(fact));
    let (lost, came): (Vec<_>, Vec<_>) = (lost.take(4).collect(), came.take(4).collect());
    ensure!(lost.is_empty() && came.is_empty(), "it was {lost:?}, and is {came:?}");
    Ok(())
}

/// Check that the session and the extension still work.
async fn goes_on(app: &Session) -> Result<()> {
    app.query_one("SELECT 1", &[]).await.context("the next statement")?;
    let sql = "SELECT status FROM queen_push('goes on', '1')";
    let status: String = app.query_one(sql, &[]).await.context("the next push")?.get(0);
    ensure!(status == "queued", "the next push was {status}");
    Ok(())
}

/// Check that the error is the expected one and shows nothing of the implementation.
pub fn judge(error: &DbError, failure: &Failure) -> Result<()> {
    let state = error.code().code();
    ensure!(state == failure.state, "{state} came, not {}: {error:?}", failure.state);
    is_plain(error.detail().unwrap_or_default())
}

/// Check that a text is fit for users: without a backtrace.
pub fn is_plain(detail: &str) -> Result<()> {
    ensure!(
        !detail.contains("backtrace") && !detail.contains(".rs:"),
        "a backtrace: {:.60}",
        detail.trim()
    );
    Ok(())
}

pub fn refused(done: Result<(), Error>) -> Result<DbError> {
    let Err(error) = done else { bail!("it succeeded") };
    let raised = error.as_db_error().with_context(|| format!("not an error but {error:?}"))?;
    Ok(raised.clone())
}

/// A statement that makes the call.
pub fn statement(sql: &str) -> String {
    match sql.starts_with("CALL") {
        true => sql.to_owned(),
        false => format!("SELECT * FROM {sql}"),
    }
}

/// One call that is made to fail.
pub struct Attempt<'a> {
    pub stage: &'a Stage,
    pub app: &'a Session,
    /// The text after FROM.
    pub sql: String,
    pub failure: &'a Failure,
}

impl Attempt<'_> {
    /// Run a statement that contains the call, while the obstacle is in place. Then end the
    /// holder's transaction.
    pub async fn run(&self, statement: &str) -> Result<Result<(), Error>> {
        let Self { stage: Stage { admin, holder, .. }, app, failure, .. } = self;
        holder.run("BEGIN").await?;
        holder.run(&failure.obstacle).await.context("the obstacle")?;
        if failure.interrupt == Interrupt::Before {
            holder.run("COMMIT").await?;
        }
        let interrupt = async {
            match failure.interrupt {
                Interrupt::None | Interrupt::Before => {}
                Interrupt::Commit => {
                    self.stage.waits(app.pid()).await?;
                    holder.run("COMMIT").await?;
                }
                Interrupt::Call(function) => {
                    self.stage.waits(app.pid()).await?;
                    admin.query(&format!("SELECT {function}({})", app.pid()), &[]).await?;
                }
            }
            anyhow::Ok(())
        };
        let mut running = pin!(app.run(statement));
        let done = tokio::select! {
            done = &mut running => done,
            interrupted = interrupt => {
                interrupted?;
                running.await
            }
        };
        holder.run("ROLLBACK").await?;
        Ok(done)
    }

    pub async fn autocommit(&self) -> Result<()> {
        let Self { app, failure, .. } = self;
        for (name, value) in failure.settings {
            app.run(&format!("SET {name} = '{value}'")).await?;
        }
        let before = facts(app).await?;
        let raised = refused(self.run(&statement(&self.sql)).await?)?;
        judge(&raised, failure)?;
        unchanged(&before, &facts(app).await?)?;
        calm(app).await?;
        goes_on(app).await
    }

    /// Begin a transaction and write something in it.
    pub async fn begin(&self) -> Result<Vec<String>> {
        self.app.run("BEGIN").await?;
        for (name, value) in self.failure.settings {
            // A running transaction has settings of its own instead of the defaults for new ones.
            let name = name.strip_prefix("default_").unwrap_or(name);
            self.app.run(&format!("SET LOCAL {name} = '{value}'")).await?;
        }
        let sql = "SET LOCAL cpu_tuple_cost = 0.02; INSERT INTO public.effects VALUES ('before')";
        self.app.run(sql).await?;
        facts(self.app).await
    }

    /// Make the call in a block that handles the error. False if the call may succeed and does;
    /// then it is rolled back.
    pub async fn handler(&self) -> Result<bool> {
        let Self { app, failure, .. } = self;
        let before = self.begin().await?;
        self.run(&self.block()).await?.context("what follows the handler")?;
        let row = app.query_one("SELECT state, detail, facts FROM public.caught", &[]).await?;
        let (state, detail): (String, Option<String>) = (row.get(0), row.get(1));
        if failure.may_succeed && state == "none" {
            app.run("ROLLBACK").await?;
            return Ok(false);
        }
        ensure!(state == failure.state, "{state} was caught, not {}: {detail:?}", failure.state);
        is_plain(&detail.unwrap_or_default())?;
        unchanged(&before, &row.get::<_, Vec<String>>(2)).context("in the handler")?;
        unchanged(&before, &facts(app).await?).context("after the handler")?;
        commit(app).await?;
        Ok(true)
    }

    /// A DO block that makes the call and handles its error.
    pub fn block(&self) -> String {
        format!(
            "DO $do$ DECLARE state text := 'none'; detail text;
             BEGIN
                 BEGIN
                     INSERT INTO public.effects VALUES ('in the block');
                     {};
                     PERFORM * FROM {};
                 EXCEPTION WHEN OTHERS OR query_canceled THEN
                     GET STACKED DIAGNOSTICS state = RETURNED_SQLSTATE,
                         detail = PG_EXCEPTION_DETAIL;
                 END;
                 INSERT INTO public.caught VALUES (state, detail, public.facts());
             END $do$",
            match self.failure.in_block {
                "" => "NULL",
                sql => sql,
            },
            self.sql
        )
    }

    pub async fn savepoint(&self) -> Result<()> {
        let Self { app, failure, .. } = self;
        let before = self.begin().await?;
        app.run("SAVEPOINT s; INSERT INTO public.effects VALUES ('in the block')").await?;
        app.run(failure.in_block).await?;
        let raised = refused(self.run(&statement(&self.sql)).await?)?;
        judge(&raised, failure)?;
        app.run("ROLLBACK TO SAVEPOINT s").await.context("ROLLBACK TO SAVEPOINT")?;
        unchanged(&before, &facts(app).await?)?;
        app.run("RELEASE SAVEPOINT s").await?;
        commit(app).await
    }
}

/// Check that no subtransaction is left open, finish the transaction and commit it.
async fn commit(app: &Session) -> Result<()> {
    let sql =
        "INSERT INTO public.effects VALUES ('after') RETURNING xmin = pg_current_xact_id()::xid";
    let is_top: bool = app.query_one(sql, &[]).await.context("after the error")?.get(0);
    ensure!(is_top, "a subtransaction is open");
    app.run("SET LOCAL lock_timeout = 0; SET LOCAL statement_timeout = '20s'").await?;
    goes_on(app).await?;
    app.run("COMMIT").await.context("COMMIT")?;
    goes_on(app).await
}
